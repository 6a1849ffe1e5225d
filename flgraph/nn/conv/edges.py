"""PyG's graph convolutions that use features of edges, by name."""

from __future__ import annotations

from typing import Literal

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor
from torch_geometric.nn import GATConv, GINEConv, PNAConv

from flgraph.errors import expect

EdgeConvName = Literal["gine", "gat", "pna"]
"""Names that :func:`make_edge_conv` takes."""

AnyConvName = Literal["gcn", "gin", "sage", "gine", "gat", "pna"]
"""These, and those of :func:`~flgraph.nn.make_conv`."""

EDGE_CONVS = ("gine", "gat", "pna")

HEADS = 4
"""Attention heads of ``gat``, side by side in the output."""

AGGREGATORS, SCALERS = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
"""Those of PNA's paper, whose products ``pna`` sets side by side."""

DEGREE = 2
"""The degree that ``pna`` scales by: of a ring's nodes, and about that of a molecule's atoms."""


def make_edge_conv(name: str, channels: int, edge_channels: int) -> torch.nn.Module:
    """A layer with ``forward(x [N, channels], edge_index [2, E], edge_attr [E, edge_channels])``.

    ``gine``: `"Strategies for Pre-training Graph Neural Networks" <https://arxiv.org/abs/1905.12265>`_,
    :class:`torch_geometric.nn.GINEConv` with the two linear maps of :class:`~flgraph.nn.GINConv`; ``gat``: `"Graph
    Attention Networks" <https://arxiv.org/abs/1710.10903>`_, :class:`torch_geometric.nn.GATConv` of four heads;
    ``pna``: `"Principal Neighbourhood Aggregation for Graph Nets" <https://arxiv.org/abs/2004.05718>`_,
    :class:`torch_geometric.nn.PNAConv`.

    What ``pna`` aggregates is scaled by ``log(d + 1) / delta`` and its inverse, where the paper's ``delta`` is a mean
    over the training graphs. Here it is ``log(3)`` (:data:`DEGREE`) at every client: a linear map follows, whose shared
    weights would mean something else at each client if each had a ``delta`` of its own, and a common mean would tell of
    the data. These weights learn the scale. It is a constant of the layer, no part of its state, and is never sent.

    Args:
        name: ``gine``, ``gat`` or ``pna``.
        channels: columns of input and output.
        edge_channels: columns of the features of edges; 0 for none, which ``gine`` cannot do without.

    Raises:
        InputError: the name is unknown, or the sizes do not go with it.
    """
    expect(name in EDGE_CONVS, "model.conv", f"one of {', '.join(EDGE_CONVS)}", name)
    if name == "gine":
        expect(edge_channels > 0, "model.edge_channels", "1 or more for gine, which needs features of edges,", 0)
        linear = torch.nn.Linear(channels, channels), torch.nn.ReLU(), torch.nn.Linear(channels, channels)
        return GINEConv(torch.nn.Sequential(*linear), edge_dim=edge_channels)
    if name == "pna":
        histogram = torch.nn.functional.one_hot(torch.tensor(DEGREE))
        layer = PNAConv(channels, channels, AGGREGATORS, SCALERS, histogram, edge_dim=edge_channels or None)
        for scale, value in list(layer.aggr_module.named_buffers()):
            layer.aggr_module.register_buffer(scale, value, persistent=False)
        return layer
    expect(channels % HEADS == 0, "model.hidden_channels", f"divisible by {HEADS}, the heads of gat,", channels)
    return GATConv(channels, channels // HEADS, heads=HEADS, edge_dim=edge_channels or None)


def edge_channels_of(module: torch.nn.Module, conv: str, edge_channels: int) -> int:
    """How many features of edges a module's layers use; says in a sentence where there are some and they use none.

    Args:
        module: for the sentence.
        conv: name of its layers.
        edge_channels: how many there are, 0 for none, or -1 for given by the data.

    Raises:
        InputError: it is no such number.
    """
    wanted = "0, a positive integer, or -1 for given by the data"
    expect(edge_channels >= -1, "model.edge_channels", wanted, edge_channels)
    if conv in EDGE_CONVS:
        return edge_channels
    if edge_channels > 0:
        name = type(module).__name__
        rank_zero_warn(f"Edges have features, which {name} makes no use of; `--model.conv gine`, `gat` and `pna` do.")
    return 0


def edge_features(edge_attr: Tensor | None, columns: int, dtype: torch.dtype) -> Tensor | None:
    """Features of a batch's edges, after a look at their width; ``None`` where none are used.

    Raises:
        InputError: the batch has none, or others.
    """
    if not columns:
        return None
    fits = edge_attr is not None and edge_attr.dim() == 2 and edge_attr.size(1) == columns
    got = "none" if edge_attr is None else list(edge_attr.shape)
    expect(fits, "batch.edge_attr", f"of shape [edges, {columns}]", got)
    assert edge_attr is not None
    return edge_attr.to(dtype)
