"""What follows a linear map, by name."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from flgraph.nn.dropout import relu_dropout
from flgraph.nn.tanh import tanh

Activation = Literal["none", "relu", "tanh", "relu_dropout"]
"""``relu_dropout``: the positive part after dropout of one half, as in training."""

_FUNCTIONS = {"none": lambda x: x, "relu": torch.relu, "tanh": tanh, "relu_dropout": relu_dropout}


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The activation of each element.

    Shapes:
        - **input:** any
        - **output:** as the input

    Example:
        >>> activate(torch.tensor([-1.0, 2.0]), "relu")
        tensor([0., 2.])
    """
    y: Tensor = _FUNCTIONS[activation](x)
    return y
