"""From three partners' tables to a trained federation at three sites; nothing of a row is anywhere else."""

from __future__ import annotations

import json
import signal
import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flgraph.cli.flare import configuration
from flgraph.cli.main import main
from flgraph.flare.gather import gather
from flgraph.flare.run import serve
from flgraph.flare.settings import read_settings
from flgraph.projects import PARTNERS, create

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI's args")

MARKER = "Zyxomma"
ODD = "73137.1337"
"""A value that no other number resembles."""


def mark(folder: Path, sites: Iterable[str] = PARTNERS) -> None:
    """Adds an account of a name and with a balance that can be found again."""
    for site in sites:
        with (folder / site / "nodes.csv").open("a") as file:
            file.write(f"{MARKER},fine,1.0,{ODD},city\n")
        with (folder / site / "edges.csv").open("a") as file:
            file.write(f"{MARKER},A001\n")


def with_marker(folder: Path) -> set[Path]:
    """Files in which it is, in any of them."""
    words = (MARKER.lower().encode(), ODD.encode(), *(struct.pack(kind, float(ODD)) for kind in ("<f", "<d")))
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        path
        for path in files
        if any(word in content for content in (path.read_bytes(), path.read_bytes().lower()) for word in words)
    }


def tables(folder: Path) -> set[Path]:
    return {folder / site / name for site in PARTNERS for name in ("nodes.csv", "edges.csv")}


def test_three_sites_in_at_most_eight_commands(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the README of a new project has it, and with the default policy."""
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'flgraph[flare]'")
    project = tmp_path / "project"
    create(project, "nodes")
    mark(project)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    commands = [
        ("flare", "provision", "--sites", ",".join(PARTNERS), "--data", "sites", "--port", port),
        *(("flare", "start", f"kits/{kit}") for kit in ("server", *PARTNERS)),
        ("flare", "submit", "--name", "first", "--sites", ",".join(PARTNERS), "-c", "federation.yaml"),
    ]
    assert len(commands) <= 8
    kits = []
    try:
        for number, command in enumerate(commands):
            run = start(*command, folder=project, log=f"{number}-")
            if command[1] == "start":
                kits.append(run)
            else:
                assert run.wait() == 0, run.stderr.read_text()
        report = run.stdout.read_text()
    finally:
        for kit in kits:
            kit.signal(signal.SIGTERM)
        for kit in kits:
            kit.wait()
    assert "results in runs/flare/first: test/accuracy" in report
    results = json.loads((project / "runs/flare/first/results.json").read_text())
    assert results["rounds"] == 20
    assert sorted(results["final"]["clients"]) == sorted(PARTNERS)
    assert with_marker(tmp_path) == tables(project)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("task", ["nodes", "graphs", "hetero"])
def test_sites_have_the_bits_of_one_process(
    task: str,
    in_memory: Any,
    measured: Callable[[Path], dict[str, Any]],
    as_sites_tell: Callable[..., Any],
    assert_same: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    project = tmp_path / "project"
    create(project, task)
    if task == "nodes":
        mark(project)
    monkeypatch.chdir(project)
    run = ("-c", "federation.yaml", "--trainer.rounds", "2")
    main(["fit", *run, "--trainer.name", "one"])
    expected = measured(project / "runs" / "one" / "version_0")
    sites = {site: yaml.safe_load((project / "sites" / f"{site}.yaml").read_text()) for site in PARTNERS}
    common = {"seed": 0, "policy": {"metrics": {"*": None}}}
    kits = tmp_path / "kits"
    transport = in_memory(kits, {site: {**own, "clients": [site], **common} for site, own in sites.items()})
    (kits / "server" / "local").mkdir(parents=True)
    config = configuration(run)
    serve(
        config, "first", transport, transport.open(config, "first"), read_settings(kits / "server"), {"deadline": 60.0}
    )
    there = measured(gather("first", kits, tmp_path / "gathered"))
    assert_same(there, {**expected, "results": as_sites_tell(expected["results"], kits)})
    main(["predict", *run, "--trainer.name", "one"])
    predicted = {project / "runs" / "one" / "version_0" / "predictions" / f"{site}.csv" for site in PARTNERS}
    assert with_marker(tmp_path) == (tables(project) | predicted if task == "nodes" else set())  # whose ids these are
    assert not any(ODD in file.read_text() for file in predicted)
    said = "".join(capfd.readouterr()) + caplog.text
    assert MARKER not in said
    assert ODD not in said


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"columns": None}, "Expected `data.columns` to be given where partners keep their files apart"),
        ({"classes": None}, "Expected `data.classes` to be given where partners keep their files apart"),
        ({"classes": ["fine", "bad"]}, "to be one of the 2 classes of `data.classes` but got another in row "),
        ({"columns": {"branch": ["city"]}}, "to be one of its 1 declared categories but got another in row "),
        ({"columns": {"branch": "number"}}, "to be numbers, as `data.columns` says, but got something else"),
        (
            {"columns": {"id": "number"}},
            "to be a table with the column `id`, as `data.columns` says, but got one without",
        ),
        ({"graphs": {"north": "north/nodes.csv"}}, "to be a folder with nodes.csv and edges.csv, or a file"),
        ({"graphs": {"north": "elsewhere"}}, "elsewhere, which is not there"),
        ({"graphs": "north/nodes.csv"}, "Expected `data.graphs` to be a mapping but got"),
    ],
)
def test_mistakes_of_a_site(
    changed: dict[str, Any],
    told: str,
    in_memory: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its own log says what is wrong, without a value; the server hears one word."""
    create(tmp_path / "project", "nodes")
    mark(tmp_path / "project")
    own = yaml.safe_load((tmp_path / "project" / "sites" / "north.yaml").read_text())
    own["data"]["init_args"] |= changed
    transport = in_memory(tmp_path / "kits", {"north": own})
    config = configuration(["-c", str(tmp_path / "project" / "federation.yaml")])
    error = transport.open(config, "first")["north"]
    assert str(error) == (
        "Expected `job` to be one that site `north` can work on but got a refusal, which its own log explains "
        "(flgraph.log in its kit)."
    )
    assert told in caplog.text
    assert with_marker(tmp_path) == tables(tmp_path / "project")
    said = "".join(capfd.readouterr()) + caplog.text
    assert MARKER not in said
    assert ODD not in said
