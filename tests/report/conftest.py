"""Run folders written by hand, so that every number on a page can be told beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from flgraph.cli import main as cli
from flgraph.report import page

MakeRun = Callable[..., Path]
Report = Callable[..., str]


def settings(aggregator: str, seed: int, folder: Path, rounds: int, **model: Any) -> dict[str, Any]:
    """As a run writes them."""
    return {
        "seed_everything": seed,
        "trainer": {
            "aggregator": {"class_path": f"flgraph.callbacks.{aggregator}", "init_args": {}},
            "rounds": rounds,
            "monitor": "val/accuracy",
            "monitor_mode": "max",
            "default_root_dir": str(folder.parent),
            "name": folder.name,
        },
        "model": {"class_path": "flgraph.models.GNN", "init_args": {"lr": 0.001, **model}},
        "data": {"class_path": "flgraph.data.TUFederation", "init_args": {"datasets": ["A", "B"], "root": "/data"}},
    }


def write_run(
    folder: Path,
    tests: Sequence[Mapping[str, float | None]],
    *,
    aggregator: str = "FedAvg",
    seed: int = 1,
    finished: bool = True,
    planned: int | None = None,
    every: int = 1,
    rename: Mapping[str, str] | None = None,
    dropped: Mapping[int, Mapping[str, str]] | None = None,
    bytes_up: int = 1000,
    server: Sequence[Mapping[str, Any]] = (),
    data: Mapping[str, Any] | None = None,
    parameters: Any = None,
    version: int = 0,
    **model: Any,
) -> Path:
    """Writes a run folder.

    Args:
        folder: of the run's name; the run lies in ``version_N`` below it.
        tests: client to test accuracy, for every round.
        aggregator: name of the class.
        seed: of the run.
        finished: whether there are results.
        planned: rounds in the settings; as many as there are, if not given.
        every: rounds from one evaluation to the next.
        rename: metrics by other names.
        dropped: round to clients that were left out, and why.
        bytes_up: of every round.
        server: the server's records of every round.
        data: in place of the data's settings.
        parameters: what results tell of them.
        version: number of the folder.
        model: further settings of the model.
    """
    run = folder / f"version_{version}"
    run.mkdir(parents=True)
    config = settings(aggregator, seed, folder, planned or len(tests), **model)
    if data is not None:
        config["data"]["init_args"].update(data)
    lines, parts = [], []
    for count, values in enumerate(tests, start=1):
        metrics = {
            client: {"test/accuracy": value, "val/accuracy": value, "train/loss": 1 / count, "test/loss": 1 / count}
            for client, value in values.items()
        }
        names = ("test/accuracy", "val/accuracy", "train/loss", "test/loss")
        columns = {name: [client[name] for client in metrics.values()] for name in names}
        mean = {n: None if None in column else sum(column) / len(column) for n, column in columns.items()}
        part = {"metrics": metrics, "mean": mean} if count % every == 0 else {"metrics": {}, "mean": {}}
        record = {"round": count, "seconds": 0.5, "bytes_up": bytes_up, "bytes_down": 2 * bytes_up, **part}
        if server:
            record["server"] = server[count - 1]
        record["dropped"] = (dropped or {}).get(count, {})
        lines.append(json.dumps(record) + "\n")
        parts.append({"round": count, "clients": metrics, "mean": mean})
    (run / "history.jsonl").write_text("".join(lines))
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    if finished:
        results = {
            "final": parts[-1],
            "best_val": max(parts, key=lambda part: part["mean"]["val/accuracy"] or 0),
            "rounds": len(tests),
            "seconds_per_round": 0.5,
            "bytes_per_round": {"up": float(bytes_up), "down": 2.0 * bytes_up},
            "seed": seed,
            "versions": {"python": "3.11", "git": "0123abc"},
            "config": config,
        }
        if parameters is not None:
            results["parameters"] = parameters
        if dropped:
            left_out = {client: None for clients in dropped.values() for client in clients}
            results["dropped"] = {client: {"times": 3, "excluded": True} for client in left_out}
        (run / "results.json").write_text(json.dumps(results))
    for name, other in (rename or {}).items():
        for file in run.glob("*.json*"):
            file.write_text(file.read_text().replace(f'"{name}"', f'"{other}"'))
    return run


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Writes ``runs/NAME/version_N``: see :func:`write_run`."""

    def make(name: str, *args: Any, **kwargs: Any) -> Path:
        return write_run(tmp_path / "runs" / name, *args, **kwargs)

    return make


@pytest.fixture
def study(make_run: MakeRun, tmp_path: Path) -> Path:
    """Local and FedAvg with seeds 1 and 2 on clients A and B, three rounds."""
    make_run(
        "Local-seed1",
        [{"A": 0.5, "B": 0.5}, {"A": 0.7, "B": 0.7}, {"A": 0.6, "B": 0.6}],
        aggregator="Local",
        bytes_up=0,
    )
    make_run(
        "Local-seed2",
        [{"A": 0.5, "B": 0.5}, {"A": 0.5, "B": 0.5}, {"A": 0.7, "B": 0.7}],
        aggregator="Local",
        seed=2,
        bytes_up=0,
    )
    make_run("FedAvg-seed1", [{"A": 0.5, "B": 0.5}, {"A": 0.6, "B": 0.6}, {"A": 0.9, "B": 0.5}])
    make_run("FedAvg-seed2", [{"A": 0.5, "B": 0.5}, {"A": 0.9, "B": 0.9}, {"A": 0.9, "B": 0.7}], seed=2)
    return tmp_path / "runs"


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Writes a report in this process and gives its text."""

    def write(*args: object) -> str:
        out = tmp_path / "out" / "report.html"
        cli.main(["report", *map(str, args), "--out", str(out)])
        return out.read_text()

    return write


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves charts empty, for tests that look at texts and tables: to write them as SVG takes the most time."""
    monkeypatch.setattr(page, "to_svg", lambda figure, name, description: "<svg></svg>")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Report:
    """The sentence with which ``flgraph report`` refuses its arguments."""

    def call(*args: object) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            cli.main(["report", *map(str, args)])
        assert exit.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert "Traceback" not in err
        return err.removeprefix("flgraph: error: ").strip()

    return call
