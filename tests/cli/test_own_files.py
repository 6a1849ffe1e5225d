"""`flgraph new`, `flgraph data check`, and from three folders of tables to a trained federation; likely mistakes."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from flgraph.data import HeteroClients
from flgraph.projects import PARTNERS, create

Call = Callable[..., Any]  # see conftest.py
ROOT = Path(__file__).resolve().parents[2]
MARKER = "Zyxomma"
GRAPHS = "{north: north, east: east, west: west}"
FIT = ("fit", "--data", "NodeClients", "--model", "NodeSAGE", "--trainer.aggregator", "FedAvg", "--trainer.rounds", "2")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three partners' folders of tables in the current folder, and nothing else."""
    create(tmp_path / "made", "nodes")
    folder = tmp_path / "empty"
    folder.mkdir()
    for partner in PARTNERS:
        (tmp_path / "made" / partner).rename(folder / partner)
    monkeypatch.chdir(folder)
    return folder


def test_three_folders_to_a_federation(done: Call, project: Path) -> None:
    """With three commands, the first of which only looks and the last of which only measures."""
    checked = done("data", "check", *PARTNERS).out
    assert checked.count("  nodes      60, of which") == 3
    assert "  feature    branch: text of 2 kinds" in checked
    assert checked.endswith("together\n  features   4\n  classes    2\n")
    done(*FIT, "--data.graphs", GRAPHS)
    run = project / "runs" / "fedavg-nodes" / "version_0"
    results = json.loads((run / "results.json").read_text())
    assert list(results["final"]["clients"]) == list(PARTNERS)
    assert yaml.safe_load((run / "config.yaml").read_text())["data"]["init_args"]["graphs"]["north"] == "north"
    done("predict", "-c", str(run / "config.yaml"), "--ckpt_path", str(run))
    assert (run / "predictions" / "west.csv").read_text().count("\n") == 61


def test_the_check_tells_of_other_spellings(done: Call, project: Path) -> None:
    nodes = project / "east" / "nodes.csv"
    nodes.write_text(
        nodes.read_text().upper().replace(nodes.read_text().split("\n")[0].upper(), nodes.read_text().split("\n")[0])
    )
    Path("data.yaml").write_text(
        yaml.safe_dump({"data": {"class_path": "NodeClients", "init_args": {"graphs": {p: p for p in PARTNERS}}}})
    )
    for checked in (done("data", "check", *PARTNERS).out, done("data", "check", "data.yaml").out):
        assert checked.count("CAREFUL") == 3  # of classes, of categories, and of a client
        assert "names differ from another in capital letters only" in checked
        assert "`east`: no class in common with other clients" in checked


@pytest.mark.parametrize("task", ["nodes", "graphs", "hetero"])
def test_new_project(done: Call, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "cd first && flgraph fit -c federation.yaml" in done("new", "first", "--task", task).out
    monkeypatch.chdir(tmp_path / "first")
    assert Path("README.md").read_text().startswith("# first\n")
    checked = done("data", "check", *PARTNERS).out
    assert checked.count("left out   nothing") == 3
    declared = [done("data", "check", f"sites/{own}.yaml").out.splitlines()[-1] for own in PARTNERS]
    assert {done("data", "check", "federation.yaml").out.splitlines()[-1]} == set(declared)
    assert "  declared   " in declared[0]
    done("fit", "-c", "federation.yaml", "--trainer.rounds", "2")
    (run,) = Path("runs").glob("*/version_0")
    assert json.loads((run / "results.json").read_text())["rounds"] == 2
    configuration = yaml.safe_load(Path("federation.yaml").read_text())["data"]
    done("predict", "-c", "federation.yaml")
    ids = {"nodes": ("nodes", "node"), "graphs": ("graphs", "graph"), "hetero": ("author", "node")}[task]
    table = pd.read_csv(f"east/{ids[0]}.csv")
    predicted = pd.read_csv(run / "predictions" / "east.csv")
    assert list(predicted)[:5] == [ids[1], "id", "split", "class", "class_name"]
    assert predicted["id"].tolist() == table["id"].tolist()
    names = np.array(configuration["init_args"]["classes"])
    assert predicted["class_name"].tolist() == names[predicted["class"]].tolist()
    for partner in PARTNERS:  # declares what all have agreed on, and names its own folder only
        own = yaml.safe_load(Path(f"sites/{partner}.yaml").read_text())["data"]
        assert own["init_args"].pop("graphs") == {partner: partner}
        assert own["init_args"].pop("root") == str(tmp_path / "first")
        agreed = {key: value for key, value in configuration["init_args"].items() if key != "graphs"}
        assert own == {**configuration, "init_args": agreed}


@pytest.mark.parametrize("task", ["nodes", "graphs", "hetero"])
def test_script_of_a_new_project(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create(tmp_path / "first", task)
    script = tmp_path / "first" / "train.py"
    script.write_text(script.read_text().replace("rounds=20", "rounds=1"))
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.count("mean test accuracy") == 2


def test_new_project_from_the_wheel(tmp_path: Path) -> None:
    """The templates are in it."""
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    for name in ("flgraph", "callbacks", "configs"):
        (source / name).symlink_to(ROOT / name)
    subprocess.run([*wheel, str(source)], check=True, capture_output=True)
    (file,) = tmp_path.glob("flgraph-*.whl")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(file), str(tmp_path / "packages")], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "packages")}
    command = [sys.executable, "-P", "-m", "flgraph", "new", "first"]
    made = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "first" / "README.md").read_text().startswith("# first\n")


# ------------------------------------------------------------------------------------------------------------ mistakes
def change(project: Path, file: str, old: str, new: str) -> None:
    path = project / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--data.graphs", "{north: nord}"], "or a file .npz, .pt or .graphml, but got nord, which is not there."),
        (["--data.graphs", "north"], "Expected `data.graphs` to be a mapping but got north."),
        (["--data.graphs", "{north: north/nodes.csv}"], "to be a folder with nodes.csv and edges.csv, or a file"),
        (["--data.graphs", "{}"], "Expected `data.graphs` to be the data of at least one client but got none."),
        ([], "Expected `data.graphs` to be given, as flgraph.data.NodeClients needs it, but got none."),
        (
            ["--data.graphs", GRAPHS, "--data.classes", "[fine]"],
            "one of the 1 classes of `data.classes` but got another",
        ),
        (["--data.graphs", GRAPHS, "--data.classes", "[fine, yes]"], "names, in quotes where YAML has its own"),
        (["--data.graphs", GRAPHS, "--data.classes", '["no", "yes"]'], "one of the 2 classes of `data.classes`"),
        (["--data.graphs", GRAPHS, "--data.columns", "{age: number}"], "with the column `age`, as `data.columns` says"),
        (
            ["--data.graphs", GRAPHS, "--data.columns", "{years: float}"],
            "number, years, or a list of categories but got",
        ),
        (
            ["--data.graphs", GRAPHS, "--data.missing", "median"],
            "to be one of 'refuse', 'zero', 'mean' but got median.",
        ),
        (["--data.graphs", GRAPHS, "--data.fractions", "[0.9, 0.2]"], "Expected `data.fractions` to be three numbers"),
    ],
)
def test_mistakes_in_arguments(call: Call, project: Path, args: list[str], told: str) -> None:
    assert told in call(*FIT, *args).sentence
    assert not (project / "runs").exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("east/nodes.csv", "id,label", "key,label", "a table with a column `id` but got one without."),
        ("east/nodes.csv", "A007,", "A006,", "id in east/nodes.csv` to be different names but got 1 that occur again"),
        ("east/nodes.csv", "city\n", "city,1\n", "in CSV but got 6 cells in line 2, where the header has 5;"),
        ("east/nodes.csv", "branch\n", "place\n", "same columns as `north` but got `branch` in one"),
        ("east/nodes.csv", "city\n", "\n", "branch in east/nodes.csv` to be without gaps, unless `data.missing` is"),
        ("east/edges.csv", "source,target", "from,to", "a table with a column `source` but got one"),
        ("east/edges.csv", ",A", f",{MARKER}", "target in east/edges.csv` to be names of nodes.csv but got 1 that are"),
        ("east/edges.csv", "\n", "\n,A001\n", "source in east/edges.csv` to be values in all rows but got"),
    ],
)  # fmt: skip
def test_mistakes_in_tables(call: Call, project: Path, file: str, old: str, new: str, told: str) -> None:
    """The same sentence before a run and from it."""
    change(project, file, old, new)
    sentence = call(*FIT, "--data.graphs", GRAPHS).sentence
    assert told in sentence
    assert MARKER not in sentence
    checked = call("data", "check", *PARTNERS)
    assert (
        "branch: text of 2 kinds, 1 missing" in checked.out if "without gaps" in told else checked.sentence == sentence
    )


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["data", "look"], "Expected `data` to be followed by check but got 'look'."),
        (["data", "check"], "the following arguments are required: paths"),
        (["data", "check", "south"], "Expected `PATH` to be a folder or a file but got south, which is not there."),
        (["data", "check", "north", "south", "north"], "files, each given once, but got 'north'."),
        (["data", "check", "north", "--task", "edges"], "`--task` to be nodes, graphs or hetero but got 'edges'."),
        (
            ["data", "check", "x.yaml", "--task", "nodes"],
            "`--task` to be left out where a configuration says what",
        ),
        (["data", "check", "."], "Expected `.` to be a folder with tables, .csv or .parquet, but got one without."),
        (["new", "north"], "Expected `FOLDER` to be one that does not exist yet, or is empty but got north."),
        (["new", "x", "--task", "edges"], "Expected `--task` to be one of nodes, graphs, hetero but got 'edges'."),
    ],
)
def test_mistakes_in_other_commands(call: Call, project: Path, args: list[str], told: str) -> None:
    assert told in call(*args).sentence


@pytest.mark.parametrize(
    ("task", "file", "old", "new", "told"),
    [
        ("nodes", "east/nodes.csv", ",fraud,", f",{MARKER},", "one of the 2 classes of `data.classes` but got another"),
        ("nodes", "east/nodes.csv", "years,", "age,", "a table with the column `years`, as `data.columns` says,"),
        ("nodes", "east/nodes.csv", ".", f"{MARKER}", "as `data.columns` says, but got something else in row 1"),
        ("nodes", "federation.yaml", "classes: [fine, fraud]", "task: regression", "west/nodes.csv` to be numbers"),
        ("nodes", "federation.yaml", "classes: [fine, fraud]", "task: multilabel", "to be 0 or 1, true or false,"),
        ("graphs", "east/nodes.csv", ",C,", ",Xx,", "east/nodes.csv` to be one of its 3 declared categories"),
        ("hetero", "east/paper.csv", "pages", "words", "`paper in east` to be a table with the column `pages`, as"),
        ("hetero", "federation.yaml", "paper: {", "papers: {", "of node types that files have, author, "),
    ],
)  # fmt: skip
def test_check_of_a_configuration(
    call: Call, task: str, file: str, old: str, new: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run would refuse is found before it."""
    create(tmp_path / "made", task)
    monkeypatch.chdir(tmp_path / "made")
    change(Path(), file, old, new)
    checked = call("data", "check", "federation.yaml")
    assert checked.sentence.startswith(
        "Expected `federation.yaml` to be a configuration whose data can be used but got"
    )
    assert told in checked.out
    assert MARKER not in checked.out
    sentence = call("fit", "-c", "federation.yaml").sentence
    assert f": {sentence}\n" in checked.out or f"PROBLEM    {sentence}\n" in checked.out
    assert not Path("runs").exists()


@pytest.mark.parametrize(("task", "table"), [("nodes", "nodes"), ("graphs", "nodes"), ("hetero", "paper")])
def test_the_check_tells_of_a_file_that_was_cut_off(
    done: Call, task: str, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path / "made", task)
    monkeypatch.chdir(tmp_path / "made")
    file = Path("east", f"{table}.csv")
    file.write_text(file.read_text().rpartition(",")[0])
    change(Path(), "federation.yaml", "    classes:", "    missing: zero\n    classes:")
    for checked in (done("data", "check", *PARTNERS).out, done("data", "check", "federation.yaml").out):
        (line,) = (line for line in checked.splitlines() if "CAREFUL" in line)
        assert f"{file}: rows with fewer cells than the header: 1, the first in line" in line


def test_check_of_other_configurations(call: Call, project: Path) -> None:
    section = {"class_path": "flgraph.data.NodeClients", "init_args": {"graphs": {"north": "north"}}}
    for content, told in (
        ({"model": "NodeSAGE"}, "Expected `own.yaml` to be a configuration with a `data` section but got one without."),
        ({"data": {**section, "class_path": "TUFederation"}}, "to be one of NodeClients, GraphClients, HeteroClients,"),
        ({"data": {**section, "init_args": {"graph": {}}}}, "but got `graph` (did you mean `graphs`?)"),
        ({"data": {**section, "init_args": {"graphs": 3}}}, "`data.graphs` to be a mapping but got 3"),
    ):
        Path("own.yaml").write_text(yaml.safe_dump(content))
        assert told in call("data", "check", "own.yaml").sentence
    assert "folders and files, or one configuration, but" in call("data", "check", "own.yaml", "north").sentence


def test_a_text_makes_no_categories_of_numbers(call: Call, project: Path) -> None:
    change(project, "east/nodes.csv", ".", f"{MARKER}")
    told = "years in east/nodes.csv` to be numbers, as at other clients, but got something else in row 1"
    assert told in call("data", "check", *PARTNERS).sentence
    assert told in call(*FIT, "--data.graphs", GRAPHS).sentence


def test_check_of_numbers_and_labels(done: Call, project: Path) -> None:
    nodes = (project / "north" / "nodes.csv").read_text()
    (project / "north" / "nodes.csv").write_text(nodes.replace("label,", "kind,").replace("balance", "label"))
    out = done("data", "check", "north").out
    assert "  label      label: numbers\n" in out
    assert out.endswith("  labels     1\n")
    (project / "north" / "nodes.csv").write_text(nodes.replace("label,", "kind,").replace("balance", "label_2030"))
    assert "  label      2030: numbers\n" in done("data", "check", "north").out


def test_check_of_types_tells_what_a_run_leaves_out(
    done: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path / "made", "hetero")
    monkeypatch.chdir(tmp_path / "made")
    table = pd.read_csv("east/author.csv")
    table["fame"] = [None, *range(1, len(table))]
    table.to_csv("east/author.csv", index=False)
    assert "  missing    1 values\n  left out   nothing\n" in done("data", "check", "east").out
    assert done("data", "check", "federation.yaml").out.count("left out   column fame of author\n") == 1
    settings = yaml.safe_load(Path("federation.yaml").read_text())
    with pytest.warns(UserWarning, match="Not used of the data of `east`: column fame of author"):
        HeteroClients(**settings["data"]["init_args"]).setup()


def test_check_tells_no_row(done: Call, project: Path) -> None:
    with (project / "north" / "nodes.csv").open("a") as file:
        file.write(f"{MARKER},{MARKER},1,,{MARKER}\n")
    out = done("data", "check", "north").out
    assert MARKER not in out
    assert "balance: numbers, 1 missing" in out
