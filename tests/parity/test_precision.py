"""Every kind of model and algorithm runs in precisions other than Lightning's default."""

from __future__ import annotations

import json
import math
from pathlib import Path

import methods
import pytest
import torch

DTYPES = {"bf16-true": torch.bfloat16, "64-true": torch.float64, "bf16-mixed": torch.float32}


@pytest.mark.parametrize("precision", sorted(DTYPES))
@pytest.mark.parametrize(
    "method",
    [
        *("fedstar", "fedego", "fedgcn", "fedsageplus", "graphfl", "fedhgn", "fclg"),
        *("mvgrl", "fedtad", "fedssp", "fggp"),
    ],
)
def test_one_round(method: str, precision: str, found_by_name: None, tmp_path: Path) -> None:
    name = f"{method}@{precision}"
    methods.run(name, tmp_path, 1)
    run = tmp_path / name / "version_0"
    final = json.loads((run / "results.json").read_text())["final"]["mean"]
    losses = [value for key, value in final.items() if key.endswith("loss")]
    assert losses
    assert all(math.isfinite(value) for value in losses)
    for file in sorted((run / "checkpoints" / "last" / "clients").iterdir()):
        weights = torch.load(file, weights_only=True)["state_dict"].values()
        assert {weight.dtype for weight in weights if weight.is_floating_point()} == {DTYPES[precision]}
