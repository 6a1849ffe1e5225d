"""The single-channel graph neural network of the baselines."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.errors import expect
from flgraph.models.graphs.classifier import GraphClassifier
from flgraph.nn import BatchNorm, ConcatLinear, NormName, OneHot, make_conv
from flgraph.nn.conv.edges import EDGE_CONVS, AnyConvName, edge_channels_of, edge_features, make_edge_conv


class GNN(GraphClassifier):
    r"""Graph convolutions between two linear maps; with ``conv="gin"`` the network of FedStar's and GCFL's baselines.

    .. math::
        \mathbf{X}^{(0)} &= \mathrm{pre}(\mathbf{X}) \\
        \mathbf{X}^{(l)} &= \mathrm{dropout}(\mathrm{ReLU}(\mathrm{conv}_l(\mathbf{X}^{(l-1)}))) \\
        \mathbf{h}_G &= \sum_{i \in G} \mathbf{x}^{(L)}_i \\
        \hat{y} &= \mathrm{readout}(\mathrm{dropout}(\mathrm{ReLU}(\mathrm{post}(\mathbf{h}_G))))

    Args:
        in_channels: columns of the node features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        conv: ``gin``, ``gcn`` or ``sage``; or ``gine``, ``gat`` or ``pna``, which use features of edges, see
            :func:`~flgraph.nn.conv.edges.make_edge_conv`.
        structure_channels: columns of the structure embedding ``batch.s``, which is set beside the raw features before
            ``pre`` (FedStar's Table 2, without decoupling); 0: no structure embedding; -1: given by the data.
        norm: ``batch`` normalisation after each convolution, before the ReLU, or ``none``.
        edge_channels: columns of the edges' features; 0: they are not used; -1: given by the data. Other layers than
            ``gine``, ``gat`` and ``pna`` make no use of them.
        kwargs: see :class:`~flgraph.models.GraphClassifier`.

    Shapes:
        - **input:** a PyG batch of ``N`` nodes and ``B`` graphs, see :class:`~flgraph.models.GraphClassifier`, with
          ``s [N, structure_channels]`` where that is not 0
        - **output:** logits ``[B, num_classes]``

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    data_sizes: ClassVar[tuple[str, ...]] = ("in_channels", "num_classes", "structure_channels", "edge_channels")

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        conv: AnyConvName = "gin",
        structure_channels: int = 0,
        norm: NormName = "none",
        edge_channels: int = -1,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, num_classes, **kwargs)
        expected = "0, a positive integer, or -1 for given by the data"
        expect(structure_channels >= -1, "model.structure_channels", expected, structure_channels)
        self.edge_channels = edge_channels_of(self, conv, edge_channels)
        known = get_args(AnyConvName)
        expect(conv in known, "model.conv", f"one of {', '.join(known)}", conv)
        expect(norm in get_args(NormName), "model.norm", "none or batch", norm)
        self.structure_channels = structure_channels
        if self.is_template:
            return
        hidden = self.hidden_channels
        self.pre = ConcatLinear(in_channels + structure_channels, hidden)
        make = partial(make_edge_conv, conv, hidden, self.edge_channels)
        make = make if conv in EDGE_CONVS else partial(make_conv, conv, hidden, hidden)
        self.convs = torch.nn.ModuleList(make() for _ in range(self.num_layers))
        self.uses_edges = conv in EDGE_CONVS
        norms = self.num_layers if norm == "batch" else 0
        self.norms = torch.nn.ModuleList(BatchNorm(hidden) for _ in range(norms))
        self.add_head()

    def encode_graphs(self, batch: Data) -> Tensor:
        """One row per graph ``[B, hidden_channels]``."""
        s = self.node_input(batch, "s", self.structure_channels) if self.structure_channels else None
        x: Tensor | OneHot = self.features(batch)
        if self.uses_edges:
            return self.pool_nodes(batch, self._with_edges(self.pre(x, s), batch))[0]
        adj = self.neighbours(batch)
        for number, conv in enumerate(self.convs):
            # The first convolution takes the linear map before it along; one of two inputs is made one first.
            if number == 0 and s is not None:
                x = self.pre(x, s)
            before = (self.pre,) if number == 0 and s is None else ()
            h = conv(x, adj, before=before)
            x = h = self.dropout(self.norms[number](h) if len(self.norms) else h, rectify=True)
        return self.pool_nodes(batch, h)[0]

    def _with_edges(self, x: Tensor, batch: Data) -> Tensor:
        edges = edge_features(batch.get("edge_attr"), self.edge_channels, x.dtype)
        for number, conv in enumerate(self.convs):
            h = conv(x, batch.edge_index, edges)
            x = self.dropout(self.norms[number](h) if len(self.norms) else h, rectify=True)
        return x
