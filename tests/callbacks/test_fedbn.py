"""FedBN (Li et al., ICLR 2021) is a line over any method: what normalises stays at the clients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flgraph.cli.main import main
from flgraph.runs.checkpoint import load_file


@pytest.mark.parametrize("method", ["fedavg", "fedopt", "ditto"])
def test_normalisation_stays(method: str, tmp_path: Path) -> None:
    files = [f"-c=configs/{name}.yaml" for name in ("quickstart", "method/fedbn")]
    options = {"trainer.rounds": 2, "model.hidden_channels": 4, "model.num_layers": 1, "data.num_graphs": 20}
    if method != "fedavg":
        options |= {"trainer.aggregator": {"fedopt": "FedOpt", "ditto": "Ditto"}[method]}
    args = [*files, *(f"--{key}={value}" for key, value in options.items())]
    quiet = ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    main(["fit", *args, *quiet, f"--trainer.default_root_dir={tmp_path}", "--trainer.name=fedbn"])
    states = [load_file(file) for file in sorted(tmp_path.rglob("checkpoints/last/clients/*.ckpt"))]
    names = [name for name, tensor in states[0]["state_dict"].items() if tensor.is_floating_point()]
    norms = [name for name in names if name.startswith("norms.")]
    assert {name.rpartition(".")[2] for name in norms} == {"weight", "bias", "running_mean", "running_var"}
    assert not any(torch.equal(states[0]["state_dict"][name], states[1]["state_dict"][name]) for name in norms)
    shared = set(states[0]["client"]["shared"])
    assert shared
    assert not shared & set(norms)
