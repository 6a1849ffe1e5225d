"""A graph convolutional network on a whole graph, for nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flgraph.errors import expect
from flgraph.models.classifier import Classifier, OptimizerName
from flgraph.models.graphs.inputs import expect_whole_graph
from flgraph.nn import Adjacency, Dropout, sparse_matmul
from flgraph.nn.sparse.csr import rows_times


@dataclass(frozen=True)
class KnownNeighbours:
    r"""What a client knows of its nodes' surroundings beyond its own graph (FedGCN).

    Args:
        nodes: numbers of the client's nodes in the whole graph ``[N]``; batches of the same nodes are meant.
        first: rows of :math:`\hat{A} X` of the whole graph, those of ``nodes`` first, then those of neighbours that
            the client does not hold ``[N + M, F]``, sparse CSR or dense.
        second: rows of :math:`\hat{A}` of ``nodes``, its columns as the rows of ``first``, ``[N, N + M]`` sparse CSR;
            the client's own graph is used when ``None`` (``M`` is then 0).
    """

    nodes: Tensor
    first: Tensor
    second: Tensor | None = None

    def to(self, device: torch.device) -> KnownNeighbours:
        """The same on another device."""
        second = None if self.second is None else self.second.to(device)
        return KnownNeighbours(self.nodes.to(device), self.first.to(device), second)


class GraphConv(torch.nn.Module):
    r"""The map of a graph convolution, :math:`\hat{A} X W + b`, where :math:`\hat{A}` is given as a matrix.

    Args:
        in_channels: columns of the input.
        out_channels: columns of the output.

    Shapes:
        - **weight:** ``[in_channels, out_channels]``: of sparse rows each word then chooses a contiguous row
        - **input:** ``x [M, in_channels]`` dense or sparse CSR, ``matrix [N, M]`` sparse CSR; without it ``x`` is
          taken as summed up already
        - **output:** ``[N, out_channels]``
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(in_channels, out_channels))
        self.bias = torch.nn.Parameter(torch.empty(out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot weights and a zero bias."""
        torch.nn.init.xavier_uniform_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, matrix: Tensor | None) -> Tensor:
        """Node representations after one step."""
        z = rows_times(x, self.weight)
        z = z if matrix is None else sparse_matmul(matrix, z)
        return z + self.bias.to(z.dtype)


class NodeGCN(Classifier):
    r"""Two graph convolutions with ReLU and dropout between them, on a whole graph at once.

    `"Semi-supervised Classification with Graph Convolutional Networks" <https://arxiv.org/abs/1609.02907>`_:
    :math:`\hat{A} \, \mathrm{relu}(\hat{A} X W_1 + b_1) W_2 + b_2` with
    :math:`\hat{A} = \tilde{D}^{-1/2} (A + I) \tilde{D}^{-1/2}`. After :meth:`know`, the products with :math:`\hat{A}`
    are those of a larger graph that the batch's nodes are a part of (FedGCN).

    Args:
        in_channels: columns of the features.
        num_classes: number of classes.
        hidden_channels: columns between the layers.
        dropout: probability of a zero after the first layer.
        lr: learning rate.
        weight_decay: weight decay (an L2 penalty, except with ``adamw``).
        optimizer: ``adam``, ``adamw`` or ``sgd``.

    Shapes:
        - **input:** a :class:`~flgraph.data.WholeGraph`: ``x [N, in_channels]``, ``adj``, ``nodes [N]``, ``index [n]``
        - **output:** logits of the nodes ``index``, ``[n, num_classes]``
    """

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 512,
        dropout: float = 0.5,
        lr: float = 0.01,
        weight_decay: float = 0.0,
        optimizer: OptimizerName = "adam",
    ) -> None:
        super().__init__(in_channels, num_classes, lr, weight_decay, optimizer)
        self.save_hyperparameters()
        expect(hidden_channels >= 1, "model.hidden_channels", "a positive integer", hidden_channels)
        expect(0 <= dropout < 1, "model.dropout", "at least 0 and less than 1", dropout)
        self.known: KnownNeighbours | None = None
        if self.is_template:
            return
        self.convs = torch.nn.ModuleList(
            [GraphConv(in_channels, hidden_channels), GraphConv(hidden_channels, num_classes)]
        )
        self.dropout = Dropout(dropout)

    def know(self, known: KnownNeighbours | None) -> None:
        """Sets what is used in place of the client's own graph for batches of these nodes.

        It is no part of the weights, but of checkpoints.
        """
        self.known = known

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what is known, so that the module gives the same logits wherever it is loaded."""
        checkpoint["known_neighbours"] = None if self.known is None else dict(vars(self.known.to(torch.device("cpu"))))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Puts it back."""
        told = checkpoint.get("known_neighbours")
        self.know(None if told is None else KnownNeighbours(**told))

    def forward(self, batch: Any) -> Tensor:
        """Logits of the nodes ``batch.index``."""
        self.check_sizes()
        expect_whole_graph(batch, self.in_channels)
        known, own = self._known_of(batch.nodes), gcn_matrix(batch.adj)
        if known is None:
            hidden, second = self.convs[0](batch.x, own), own
        else:
            hidden, second = self.convs[0](known.first, None), own if known.second is None else known.second
        logits: Tensor = self.convs[1](self.dropout(hidden, rectify=True), second)
        return logits.index_select(0, batch.index)

    def _known_of(self, nodes: Tensor) -> KnownNeighbours | None:
        """What is known of these nodes; nothing where they are another graph's, such as the global test graph's."""
        if self.known is None:
            return None
        if self.known.nodes.device != nodes.device:
            self.known = self.known.to(nodes.device)
        return self.known if torch.equal(self.known.nodes, nodes) else None


def gcn_matrix(adj: Adjacency) -> Tensor:
    r""":math:`\tilde{D}^{-1/2} (A + I) \tilde{D}^{-1/2}` as sparse CSR ``[N, N]``, made once per adjacency.

    Args:
        adj: without self-loops.
    """
    if "gcn matrix" not in adj.derived:
        n, col = adj.num_nodes, adj.col
        loop = torch.arange(n, device=col.device)
        row = torch.cat([torch.repeat_interleave(adj.rowptr.diff(), output_size=col.numel()), loop])
        column = torch.cat([col, loop])
        order = (row * n + column).argsort()
        row, column = row[order], column[order]
        scale = (adj.rowptr.diff() + 1).double().rsqrt()
        values = (scale[row] * scale[column]).float()
        rowptr = adj.rowptr + torch.arange(n + 1, device=col.device)
        matrix = torch.sparse_csr_tensor(rowptr.int(), column.int(), values, (n, n), check_invariants=False)
        adj.derived["gcn matrix"] = matrix
    matrix = adj.derived["gcn matrix"]
    return matrix
