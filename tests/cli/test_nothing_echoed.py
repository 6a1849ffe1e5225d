"""A file of data that is given by mistake is told by its name; nothing of what is in it is repeated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]  # see conftest.py

MARKER = "Zyxomma"
FEDAVG = ("-c", "configs/method/fedavg.yaml")
NODES = ("--data", "NodeFederation", "--data.dataset", "Cora")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"patient{number},a,{number}\n" for number in range(200))
    Path("nodes.csv").write_text(f"id,label,age\n{MARKER},b,1\n{rows}")
    Path("notes.txt").write_text(f"{MARKER}: see below: {MARKER}\n- {MARKER}\n")
    Path("alias.yaml").write_text(f"model: *{MARKER}\n")
    Path("graph.json").write_text(json.dumps({"directed": False, "nodes": [{"id": MARKER}] * 100}))


@pytest.mark.parametrize(
    "args",
    [
        ("-c", "nodes.csv"),
        ("-c", "notes.txt"),
        ("-c", "alias.yaml"),
        ("-c", "graph.json"),
        (*FEDAVG, "--data", "NodeFederation", "--data.dataset", "nodes.csv"),
        (*FEDAVG, "--data", "HeteroFederation", "--data.dataset", "nodes.csv"),
        (*FEDAVG, "--data.datasets", "nodes.csv"),
        (*FEDAVG, "--data.datasets", "[nodes.csv]", "--data.root", "."),
        (*FEDAVG, "--data", "nodes.csv"),
        (*FEDAVG, "--data", "graph.json"),
        (*FEDAVG, "--data", "GraphFederation", "--data.graphs", "nodes.csv"),
        (*FEDAVG, *NODES, "--model", "nodes.csv"),
        (*FEDAVG, *NODES, "--trainer", "nodes.csv"),
        (*FEDAVG, *NODES, "--trainer", "graph.json"),
        (*FEDAVG, *NODES, "--trainer.aggregator", "nodes.csv"),
        (*FEDAVG, *NODES, "--trainer.callbacks", "nodes.csv"),
        (*FEDAVG, *NODES, "--trainer.policy", "graph.json"),
    ],
    ids=" ".join,
)
def test_a_file_of_data_in_the_wrong_argument(call: Call, args: tuple[str, ...]) -> None:
    done = call("fit", *args)
    assert MARKER not in done.out + done.err
    assert done.sentence


def test_long_values_are_cut(call: Call) -> None:
    sentence = call("fit", *FEDAVG, *NODES, "--data.num_clients", "x" * 1000).sentence
    assert sentence == f"Expected `data.num_clients` to be of type int but got {'x' * 60}...."
    sentence = call(
        "fit", "-c", "configs/method/fedego.yaml", "--data", "NodeFederation", "--data.dataset", "x" * 1000
    ).sentence
    assert sentence.endswith(f"but got '{'x' * 59}....")
