"""Methods compute the same on another device as on the CPU, also when resumed, and never mix the two.

Dropout apart, of which a GPU draws other numbers. The device is a stand-in, see ``stand_in.py``.
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
    *("fedavg", "fedstar", "gcflplus", "fedego", "graphfl", "fedprox_adaptive", "dfedgnn", "fedgcn"),
    *("fedsageplus", "fedhgn", "fedhgn_gat", "fclg", "infograph", "mvgrl"),
    *("scaffold", "ditto", "moon", "fedproto", "fedrep", "apfl"),
]


@pytest.fixture(scope="module")
def root(found_by_name: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all runs; in a process of their own, as a device stays registered."""
    folder = tmp_path_factory.mktemp("device")
    program = [sys.executable, str(HERE / "device_program.py"), str(folder), json.dumps(METHODS)]
    subprocess.run(program, check=True, timeout=400)
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_same_numbers(method: str, root: Path, measured: Callable[[Path], dict[str, Any]]) -> None:
    one, other = (measured(root / where / method / "version_0") for where in ("cpu", "device"))
    for client, metrics in one["results"]["final"]["clients"].items():
        assert other["results"]["final"]["clients"][client] == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    for client, state in one["clients"].items():
        weights = other["clients"][client]["state_dict"]
        torch.testing.assert_close(weights, state["state_dict"], rtol=1e-3, atol=1e-5)
    assert json.loads((root / "operators.json").read_text())[method] > 1000


def test_mixtures_are_refused(root: Path) -> None:
    assert (root / "mixed.txt").read_text() == (
        "Expected all tensors of aten.add.Tensor to be on stand_in:0 but got one on the CPU."
    )
