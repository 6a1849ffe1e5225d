"""A spectral network of graphs whose filters of eigenvalues can be shared (FedSSP)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch_geometric.data import Data
from torch_geometric.utils import softmax

from flgraph.errors import expect
from flgraph.models.graphs import inputs
from flgraph.models.graphs.classifier import GraphClassifier
from flgraph.nn import Adjacency, BatchNorm, ConcatLinear, PoolName, at_least_float32
from flgraph.nn.spectral import EigenvalueEncoder, SpectralConv, laplacian_spectra


class FedSSP(GraphClassifier):
    r"""Specformer's network for graphs, and a preference that is added to what it makes of each (FedSSP).

    `"FedSSP: Federated Graph Learning with Spectral Knowledge and Personalized Preference"
    <https://arxiv.org/abs/2410.20105>`_ (NeurIPS 2024), with the network of the published code (github
    OakleyTan/FedSSP). Of a graph with the Laplacian :math:`D - A = U \Lambda U^\top`

    - eigenvalues are encoded (:class:`~flgraph.nn.spectral.EigenvalueEncoder`, ``eigen``), look at each other
      (a transformer's layer), and become :math:`\lambda^{(h)}` of ``heads`` heads;
    - an edge's weights in all channels are the softmax, among the edges that a node receives, of a small network
      (``filters``) of :math:`I_{ij}` and :math:`(U \, \mathrm{diag}(\lambda^{(h)}) U^\top)_{ij}`;
    - :class:`~flgraph.nn.spectral.SpectralConv` sends messages with these weights, ``num_layers`` times;
    - nodes are pooled to :math:`h_G`, and logits are linear in :math:`h_G` plus the preference.

    Eigenvectors take time by the cube of a graph's nodes; those of graphs of up to 512 nodes are kept.

    Args:
        in_channels: columns of the node features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        hidden_channels: columns of all hidden layers; even, and a multiple of ``heads``.
        heads: of attention, and filters.
        dropout: probability of a zero.
        pool: how the nodes of a graph become one row.
        kwargs: see :class:`~flgraph.models.GraphClassifier`.

    Shapes:
        - **input:** a PyG batch of ``N`` nodes and ``B`` graphs, see :class:`~flgraph.models.GraphClassifier`
        - **output:** logits ``[B, num_classes]``
    """

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        hidden_channels: int = 128,
        heads: int = 4,
        dropout: float = 0.1,
        pool: PoolName = "mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, num_classes, hidden_channels, dropout=dropout, pool=pool, **kwargs)
        wanted = "a positive divisor of `hidden_channels`, which is even,"
        expect(heads >= 1 and hidden_channels % heads == hidden_channels % 2 == 0, "model.heads", wanted, heads)
        self.heads = heads
        if self.is_template:
            return
        hidden = hidden_channels
        self.pre = ConcatLinear(in_channels, hidden)
        self.eigen = EigenvalueEncoder(hidden)
        self.attention = torch.nn.TransformerEncoderLayer(
            hidden, heads, hidden, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.decode = torch.nn.Linear(hidden, heads)
        layers: list[torch.nn.Module] = []
        for columns in (heads + 1, hidden):
            layers += [torch.nn.Linear(columns, hidden), BatchNorm(hidden), torch.nn.GELU()]
        self.filters = torch.nn.Sequential(*layers)
        self.convs = torch.nn.ModuleList(SpectralConv(hidden, dropout) for _ in range(self.num_layers))
        self.readout = torch.nn.Linear(hidden, num_classes)
        self.preference = torch.nn.Parameter(torch.zeros(hidden))

    def encode_graphs(self, batch: Data) -> Tensor:
        """One row per graph ``[B, hidden_channels]``."""
        x = self.pre(self.features(batch)).relu()
        adj = self.neighbours(batch)
        graph, count = inputs.graph_of_nodes(batch, adj.col.device)
        weights = self._weights(adj, F.pad(torch.bincount(graph, minlength=count).cumsum(0), (1, 0)))
        for conv in self.convs:
            x = conv(x, adj, weights)
        return self.pool_nodes(batch, x)[0]

    def encode(self, batch: Data) -> Tensor:
        """One row per graph ``[B, hidden_channels]``, before the preference is added."""
        self.check_sizes()
        return self.encode_graphs(batch)

    def head(self, encoded: Tensor, batch: Data) -> Tensor:
        """Logits ``[B, num_classes]``."""
        logits: Tensor = self.readout(encoded + self.preference)
        return logits

    def _weights(self, adj: Adjacency, ptr: Tensor) -> Tensor:
        """Of all edges ``[E, hidden_channels]``."""
        values, products = laplacian_spectra(adj, ptr)
        eigenvalues = pad_sequence(values, batch_first=True)
        absent = torch.arange(eigenvalues.size(1), device=ptr.device) >= ptr.diff().unsqueeze(1)
        absent[:, :1] = False  # of no eigenvalue there is no softmax
        rows = self.attention(self.eigen(eigenvalues), src_key_padding_mask=absent)
        spectrum = at_least_float32(self.decode(rows))
        graphs = zip(products, spectrum, strict=True)
        filtered = torch.cat([product.to(own) @ own[: product.size(1)] for product, own in graphs])
        looped = (adj.row == adj.col).unsqueeze(1).to(filtered)
        weights = self.dropout(self.filters(torch.cat([looped, filtered], dim=1).to(self.decode.weight)))
        return softmax(at_least_float32(weights), ptr=adj.rowptr)
