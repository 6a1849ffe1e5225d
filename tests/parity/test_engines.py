"""The same run gives the same bits wherever its clients run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ddp
import pytest
import torch
from methods import CONTINUED, METHODS, cut

WAYS = [(name, where) for name in METHODS for where in ("two", "forked")]
WAYS += [(name, where) for name in CONTINUED for where in ("two-then-one", "one-then-two")]


@pytest.mark.parametrize(("method", "where"), WAYS)
def test_same_bits(
    method: str, where: str, runs: Path, measured: Callable[[Path], dict[str, Any]], assert_same: Callable[..., None]
) -> None:
    folders = sorted((runs / where / method).glob("version_*"))
    assert [folder.name for folder in folders] == ["version_0"]  # one process writes, and a resumed run goes on
    one, other = measured(runs / "one" / method / "version_0"), measured(folders[0])
    assert len(one["clients"]) == 4
    assert_same(other, one)


@pytest.mark.parametrize("method", METHODS)
def test_same_checkpoints(method: str, runs: Path, assert_same: Callable[..., None]) -> None:
    one, two = (Path(cut(runs / where / method)) for where in ("one", "two"))
    for file in sorted((one / "clients").iterdir()):
        assert_same(*(torch.load(path, weights_only=False) for path in (two / "clients" / file.name, file)))


def test_ddp_inside_of_clients(runs: Path) -> None:
    """Two processes with half of every batch each train as one with all of it; one of them writes, and resumes."""
    ddp.fit(str(runs / "ddp-one"), 1)
    folders = [runs / where / "run" for where in ("ddp-one", "ddp-two")]
    assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [["version_0"], ["version_0"]]
    one, two = (json.loads((folder / "version_0" / "results.json").read_text()) for folder in folders)
    assert one["rounds"] == two["rounds"] == 3
    for client, metrics in one["final"]["clients"].items():
        assert two["final"]["clients"][client] == pytest.approx(metrics, rel=1e-5)
    assert one["bytes_per_round"] == two["bytes_per_round"]
    for client in "AB":
        files = [folder / "version_0" / "checkpoints" / "last" / "clients" / f"{client}.ckpt" for folder in folders]
        a, b = (torch.load(file, weights_only=True)["state_dict"] for file in files)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
