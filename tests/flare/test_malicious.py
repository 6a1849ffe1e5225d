"""One of three sites on NVIDIA FLARE does something else that is bad in every round; the other two finish."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from flgraph.cli.main import main

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flare"
WAYS = runpy.run_path(str(Path(__file__).with_name("malicious.py")))["WAYS"]
SAID = {
    "not a number": "to be finite",
    "cut short": "to be whole safetensors bytes",
    "another shape": "but got 3x3x3 float32",
    "what nobody asked for": "to be of what the routes name",
    "samples out of thin air": "samples, as at the start",
    "an error": "failed; its own log says why",
    "no message at all": "that can be read",
    "values a million times too large": "to be of values up to",
    "in the name of others": "that can be read",
    "metrics of text": "to be",
}
"""Way to what the server notes of it."""


@pytest.mark.usefixtures("one_thread")
def test_the_others_finish(attacked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their metrics are those of a run without it, bit by bit; both sides' ledgers are whole and agree."""
    monkeypatch.chdir(attacked.folder)
    rounds = len(WAYS)
    what = ("-c", str(EXAMPLE / "federation.yaml"), f"--trainer.rounds={rounds}")
    patient = ("--trainer.tolerance.strikes", "100")
    run = attacked.begin("submit", "--sites", "north,east,west", "--name", "attacked", *what, *patient, log="attacked")
    assert run.wait() == 0, run.stderr.read_text()
    lines = attacked.rounds("attacked")
    for way, line in zip(WAYS, lines, strict=True):
        assert line["clients"] == ["trees", "rings"], way
        assert list(line["dropped"]) == ["ladders"], way
        assert SAID[way] in line["dropped"]["ladders"], way
    stolen = (attacked.kits / "west" / "stolen.txt").read_text().splitlines()
    assert len(stolen) == 2
    assert all("OK" not in line and "no more" in line for line in stolen), stolen
    assert "only the server may ask" in (attacked.kits / "north" / "flgraph.log").read_text()

    content = yaml.safe_load((EXAMPLE / "north.yaml").read_text())["data"]
    content["init_args"]["domains"] = ["trees", "rings"]
    (attacked.folder / "data.yaml").write_text(yaml.safe_dump({"data": content}))
    quiet = ("--trainer.name", "two", "--trainer.enable_progress_bar", "false")
    main(["fit", "-c", "data.yaml", *what, *quiet])
    expected = (attacked.folder / "runs" / "two" / "version_0" / "history.jsonl").read_text().splitlines()
    for without, line in zip(map(json.loads, expected), lines, strict=True):
        honest = {name: line["metrics"][name] for name in ("trees", "rings")}
        assert honest == without["metrics"], line["round"]

    server = attacked.kits / "server" / "flgraph" / "attacked" / "version_0"
    for site in ("north", "east"):
        main(["ledger", str(server), "--site", str(attacked.kits / site)])
