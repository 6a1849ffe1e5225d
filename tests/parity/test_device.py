"""Methods compute the same on another device as on the CPU, also when resumed, and never mix the two.

Dropout apart, of which a GPU draws other numbers. Where there is no GPU, the device is a stand-in, see ``stand_in.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
METHODS = [
    *("fedstar", "gcflplus", "fedego", "graphfl", "dfedgnn", "fedgcn", "fedsageplus"),
    *("fedhgn", "fedhgn_gat", "fclg", "mvgrl", "scaffold", "ditto", "moon", "fedproto", "apfl"),
    *("fedgta", "fedpub", "fedtad", "fedthin", "adafgl", "fggp", "fedssp"),
]
INEXACT = {"fedssp": ("stand_in", "cuda"), "fggp": ("cuda",)}
"""Where methods only run: FedSSP has biases whose gradients are what rounding leaves; FGGP draws on a GPU."""


@pytest.fixture(
    scope="module",
    params=["stand_in", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))],
)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def root(
    device: str, found_by_name: None, start_in: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder with all runs; in a process of their own: a device stays registered."""
    folder = tmp_path_factory.mktemp("device")
    program = [str(HERE / "device_program.py"), str(folder), device, json.dumps(METHODS)]
    if device == "cuda":  # which allows no fork
        subprocess.run([sys.executable, *program], check=True)
    else:
        run = start_in(folder, *program)
        assert run.wait() == 0, run.stderr.read_text()
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_same_numbers(method: str, device: str, root: Path, measured: Callable[[Path], dict[str, Any]]) -> None:
    one, other = (measured(root / where / method / "version_0") for where in ("cpu", "device"))
    assert json.loads((root / "used.json").read_text())[method] > 1000
    if device in INEXACT.get(method, ()):
        return
    for client, metrics in one["results"]["final"]["clients"].items():
        assert other["results"]["final"]["clients"][client] == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    for client, state in one["clients"].items():
        weights = other["clients"][client]["state_dict"]
        torch.testing.assert_close(weights, state["state_dict"], rtol=1e-3, atol=1e-5)


def test_mixtures_are_refused(device: str, root: Path) -> None:
    if device == "cuda":
        pytest.skip("of the stand-in")
    assert (root / "mixed.txt").read_text() == (
        "Expected all tensors of aten.add.Tensor to be on stand_in:0 but got one on the CPU."
    )
