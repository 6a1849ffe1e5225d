"""Mistakes in an algorithm of one's own end a run with a sentence that names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from flgraph.callbacks import FedAvg
from flgraph.errors import InputError
from flgraph.federation import Client, Payload, shared
from flgraph.testing import check_algorithm


class _Silent(FedAvg):
    def upload(self, *args: Any) -> Payload | None:
        super().upload(*args)
        return None


class _Bare(FedAvg):
    def __init__(self) -> None:
        self.momentum = 0.9


def _changed(name: str, value: Any) -> type[FedAvg]:
    return type("Own", (FedAvg,), {name: value})


def _returning(name: str, value: Any) -> type[FedAvg]:
    return _changed(name, lambda self, *args: value)


def _nan(self: FedAvg, mean: Any, *args: Any) -> dict[str, torch.Tensor]:
    return {name: tensor * float("nan") for name, tensor in mean.items()}


def _whole(self: FedAvg, mean: Any, *args: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.long() for name, tensor in mean.items()}


class _Counting(FedAvg):
    """Keeps what it declares in attributes of the class."""

    client_attributes = ("turns",)
    server_attributes = ("means",)
    turns: ClassVar[dict[str, int]] = {"n": 0}
    means: ClassVar[list[int]] = []

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        super().local_update(client, round, exchange)
        self.turns["n"] += 1

    def take_mean(self, mean: Any, round: int, exchange: str) -> Any:
        self.means.append(round)
        return mean

    def log_scalars(self) -> dict[str, Any]:
        return {"means": torch.tensor(float(len(self.means)))}

    def summary(self) -> dict[str, Any]:
        return {"means": len(self.means)}


class _Forgetful(_Counting):
    """Declares nothing of what it reports."""

    server_attributes = ()

    def __init__(self) -> None:
        super().__init__()
        self.means = []  # type: ignore[misc]


def test_routes_of_an_unknown_option_are_refused() -> None:
    """It would count as the usual one, whose sentence then says the opposite of what was meant."""
    with pytest.raises(InputError, match=r"`on_mismatch of `\*`` to be error or personal or owners but got 'owner'"):
        shared("*", on_mismatch="owner")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (_Bare, "`trainer.aggregator` to be one whose __init__ calls super().__init__() but got '_Bare'"),
        (_Silent, "`upload` to be with the scalar `num_samples`, by which clients are weighted, but got 'none'"),
        (_returning("upload", {}), "`upload of Own` to be a Payload or None but got 'dict'"),
        (_returning("download", {}), "`download of Own` to be a Payload or None but got 'dict'"),
        (_returning("start", None), "`Own.start` to be one that keeps what it is given, for downloads"),
        (_returning("client_weight", None), "`weight` of client `A` to be a finite number, 0 or more but got None"),
        (
            _changed("take_mean", _nan),
            "`result of Own.aggregate` to be finite and up to 1e+18 in `first.bias` but",
        ),
        (_returning("routes", "shared"), "`routes` to be a list of Route but got 'shared'"),
        (_returning("routes", ["shared"]), "`routes` to be a list of Route but got 'str'"),
        (
            _returning("log_scalars", {"x": "much"}),
            "`log_scalars of Own` to be numbers, as `x` is to be, but got 'str'",
        ),
        (_returning("log_scalars", {"x": torch.ones(2)}), "to be numbers, as `x` is to be, but got 'Tensor'"),
        (_returning("summary", {"x": torch.ones(2)}), "JSON can hold, as `x` is to be, but got 'Tensor'"),
        (_changed("take_mean", _whole), "to be a float32 tensor for `first.bias` but got torch.int64"),
        (_changed("server_attributes", ("v",)), "`server_attributes of Own` to be names of attributes that it has"),
        (_changed("client_attributes", ("v",)), "`client_attributes of Own` to be names of attributes that it has"),
        (_changed("server_attributes", "velocity"), "`server_attributes of Own` to be a tuple of names but got"),
        (_changed("initial_weights", "firs"), "`initial_weights of Own` to be first or mean or own but got 'firs'"),
        (_changed("evaluated_model", "best"), "`evaluated_model of Own` to be aggregated or trained but got 'best'"),
        (_changed("extra_tensors", ("x/*",)), "`extra_tensors of Own` to be a mapping of patterns to what they are"),
        (_changed("extra_tensors", {"x/*": "stuff"}), "`extra_tensors of Own` to be weights or update or gradient or"),
        (_returning("exchanges", "train"), "`exchanges of Own` to be a list of names but got 'train'"),
        (_returning("exchanges", None), "`exchanges of Own` to be a list of names but got None"),
        (_returning("routes", None), "`routes` to be a list of Route but got None"),
        (
            _returning("log_scalars", None),
            "`log_scalars of Own` to be a mapping of names to numbers but got",
        ),
        (_returning("summary", None), "`summary of Own` to be a mapping of names to values but got 'NoneType'"),
        (_returning("client_weights", [1, 1]), "`client_weights of Own` to be a mapping of clients to numbers but got"),
    ],
)
def test_mistakes_are_named(
    kind: type[FedAvg], sentence: str, federate: Callable[..., Any], toy_federation: Callable[..., Any], toy_module: Any
) -> None:
    with pytest.raises(InputError) as caught:
        federate(kind(), rounds=1).fit(toy_module(), toy_federation(6, 9))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("kind", [_Counting, _Forgetful])
def test_what_is_declared_is_kept_and_what_is_not_is_missed(
    kind: type[FedAvg], toy_federation: Callable[..., Any], toy_module: Any
) -> None:
    """What a class has for all its objects is each object's own: clients and runs share nothing."""

    def setup() -> Any:
        return kind(), toy_module(), toy_federation(6, 9)

    if kind is _Counting:
        check_algorithm(setup)
    else:
        with pytest.raises(AssertionError, match=r"^server\.summary\.means is not the same after .* it was stopped"):
            check_algorithm(setup)
    assert _Counting.turns == {"n": 0}
    assert not _Counting.means


def test_what_other_processes_cannot_import_is_named_first() -> None:
    with pytest.raises(InputError, match="Expected `setup` to be a function that other processes can import but got"):
        check_algorithm(lambda: pytest.fail("it was called"), processes=2)
