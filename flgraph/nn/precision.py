"""Types of numbers that sums and losses are computed in."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half-precision tensors as float32, others as they are.

    float16 does not hold large sums, bfloat16 not the small terms of one, and sparse kernels exist for neither.

    Example:
        >>> at_least_float32(torch.ones(1, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def product_type(weight: Tensor) -> torch.dtype:
    """The type that a product with ``weight`` is computed in: that of autocast, or the weight's own.

    Example:
        >>> product_type(torch.ones(1))
        torch.float32
    """
    device = weight.device.type
    narrowed = torch.is_autocast_enabled(device) and weight.dtype != torch.float64
    return torch.get_autocast_dtype(device) if narrowed else weight.dtype
