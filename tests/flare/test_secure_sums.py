"""Secure sums at sites on NVIDIA FLARE, whose kits sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flgraph.runs.ledger_reader import read_ledger

CONFIG = str(Path(__file__).resolve().parents[2] / "examples" / "flare" / "federation.yaml")


def test_sites_sign_for_their_clients(federation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(federation.folder)
    what = ("-c", CONFIG, "--trainer.rounds=2", "--trainer.secure_sums.threshold=0.66")
    run = federation.begin("submit", "--sites", "north,east", "--name", "summed", *what, log="summed")
    assert run.wait() == 0, run.stderr.read_text()
    assert [line["clients"] for line in federation.rounds("summed")] == [["trees", "rings", "ladders"]] * 2
    lines = read_ledger(federation.kits / "server" / "flgraph" / "summed" / "version_0" / "ledger.jsonl")
    sent = [line for line in lines if line.direction == "up" and line.request == "shares"]
    assert len(sent) == 6
    assert all(list(line.tensors) == ["certificate", "commitment", "sealed", "signature"] for line in sent)
    told = [line for line in lines if line.direction == "down" and line.request == "hold"]
    assert {line.tensors["certificates"].split("x")[0] for line in told} == {"2"}
