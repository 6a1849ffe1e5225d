"""Graph convolutions by name."""

from __future__ import annotations

from typing import Literal

import torch

from flgraph.errors import expect
from flgraph.nn.conv.gcn import GCNConv
from flgraph.nn.conv.gin import GINConv
from flgraph.nn.conv.sage import SAGEConv

ConvName = Literal["gcn", "gin", "sage"]
"""Names that :func:`make_conv` takes."""

_CONVS: dict[str, type[GCNConv] | type[GINConv] | type[SAGEConv]] = {"gcn": GCNConv, "gin": GINConv, "sage": SAGEConv}


def make_conv(name: str, in_channels: int, out_channels: int, *, field: str = "conv") -> torch.nn.Module:
    """A graph convolution with ``forward(x, adj, extra=None)``.

    Args:
        name: ``gcn``, ``gin`` or ``sage``.
        in_channels: columns of the input (of ``x`` and ``extra`` together, where there are two).
        out_channels: columns of the output.
        field: what an error message calls ``name``.

    Raises:
        InputError: the name is unknown.

    Example:
        >>> make_conv("gin", 3, 8)
        GINConv(3, 8, hidden_channels=8)
    """
    check_conv(name, field)
    return _CONVS[name](in_channels, out_channels)


def check_conv(name: str, field: str = "conv") -> None:
    """Raises :class:`~flgraph.errors.InputError` unless :func:`make_conv` takes ``name``.

    Example:
        >>> check_conv("gcn")
        >>> check_conv("gat")
        Traceback (most recent call last):
            ...
        flgraph.errors.InputError: Expected `conv` to be one of gcn, gin, sage but got 'gat'.
    """
    expect(name in _CONVS, field, f"one of {', '.join(_CONVS)}", name)
