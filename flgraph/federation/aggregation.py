"""Sums over clients whose result does not depend on who answered first."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flgraph.errors import InputError
from flgraph.federation.payload import Payload


def weighted_mean(uploads: Mapping[str, Payload], weights: Mapping[str, float]) -> dict[str, Tensor]:
    r"""The mean over clients of every uploaded tensor, ``sum_m n_m w_m / sum_m n_m`` (FedAvg, Eq. 4 of FedStar).

    Clients are summed in sorted order of their names and in float64 (complex128 for complex tensors), so the result is
    the same bits whatever order the uploads arrived in; it is returned in the dtype of the tensors, integers rounded.
    Where clients differ in it, as bfloat16 and float32, it is the dtype that holds both (:func:`torch.promote_types`).
    A tensor that only some clients uploaded is averaged over those.

    Args:
        uploads: client to payload.
        weights: client to weight, not negative.

    Returns:
        Name to mean, in the order of first appearance over sorted clients.

    Raises:
        InputError: a tensor's shape differs between clients, or its weights sum to zero.
    """
    sums: dict[str, Tensor] = {}
    totals: dict[str, float] = {}
    dtypes = _dtypes(uploads)
    for client in sorted(uploads):
        for name, tensor in uploads[client].tensors.items():
            weight = weights[client]
            if name not in sums:
                wide = torch.complex128 if dtypes[name].is_complex else torch.float64
                sums[name], totals[name] = torch.zeros(tensor.shape, dtype=wide), 0.0
            if tensor.shape != sums[name].shape:
                raise InputError(
                    f"Expected `{name}` of client `{client}` to be of shape {list(sums[name].shape)} but got "
                    f"{list(tensor.shape)}."
                )
            sums[name].add_(tensor.to(sums[name].dtype), alpha=weight)
            totals[name] += weight
    for name, total in totals.items():
        if total <= 0:
            raise InputError(f"Expected the clients' weights for `{name}` to sum to more than 0 but got {total}.")
    means = {name: total_sum.div_(totals[name]) for name, total_sum in sums.items()}
    return {name: _cast(mean, dtypes[name]) for name, mean in means.items()}


def _dtypes(uploads: Mapping[str, Payload]) -> dict[str, torch.dtype]:
    """Of every tensor the dtype that holds all clients' values of it."""
    dtypes: dict[str, torch.dtype] = {}
    for upload in uploads.values():
        for name, tensor in upload.tensors.items():
            dtypes[name] = torch.promote_types(dtypes.get(name, tensor.dtype), tensor.dtype)
    return dtypes


def _cast(mean: Tensor, dtype: torch.dtype) -> Tensor:
    exact = dtype.is_floating_point or dtype.is_complex
    return (mean if exact else mean.round()).to(dtype)
