"""The folder of a run, ``version_N``, and what stands in its ``results.json`` besides the metrics."""

from __future__ import annotations

import json
import math
import platform
import re
import subprocess
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flgraph.errors import InputError, expect
from flgraph.runs.history import read_records

if TYPE_CHECKING:
    import pandas as pd


class Results(dict[str, Any]):
    """The contents of ``results.json``, with what a notebook wants of them.

    Args:
        content: see docs/results.md.
        folder: of the run.
    """

    def __init__(self, content: dict[str, Any] | None = None, folder: Path | None = None) -> None:
        super().__init__(content or {})
        self.folder = folder

    @property
    def history(self) -> pd.DataFrame:
        """A row per round: seconds, bytes, and means over clients of all metrics (none in rounds without evaluation).

        Raises:
            InputError: pandas is not installed, or the run's folder is not there.
        """
        expect(self.folder is not None, "results", "of a run with a folder", self)
        assert self.folder is not None
        numbers = ("round", "seconds", "bytes_up", "bytes_down")
        records = read_records(self.folder / "history.jsonl")
        rows = [{**{name: record[name] for name in numbers}, **record["mean"]} for record in records]
        frame: pd.DataFrame = _pandas().DataFrame(rows, columns=None if rows else numbers)
        return frame.set_index("round")

    @property
    def clients(self) -> pd.DataFrame:
        """A row per client: all metrics of the final evaluation.

        Raises:
            InputError: pandas is not installed.
        """
        frame: pd.DataFrame = _pandas().DataFrame.from_dict(self["final"]["clients"], orient="index")
        return frame.rename_axis("client")

    def __repr__(self) -> str:
        """One line: rounds, clients, final test metrics, folder."""
        final = self.get("final", {})
        tested = [f"{name} {value:.4f}" for name, value in final.get("mean", {}).items() if name.startswith("test/")]
        parts = [f"{self.get('rounds', 0)} rounds", f"{len(final.get('clients', {}))} clients", *tested]
        return f"Results({', '.join(parts)}{f', in {self.folder}' if self.folder else ''})"


def _pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise InputError("pandas", "installed (`pip install 'flgraph[data]'`)", "no package of that name") from None


@cache
def versions() -> dict[str, str]:
    """Versions of what computed the results, and the git revision of the package where it lies in a checkout."""
    found = {"python": platform.python_version()}
    for package in ("flgraph", "torch", "torch_geometric", "pytorch-lightning", "torchmetrics", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found["git"] = _git_revision()
    return found


def new_version(runs: Path) -> Path:
    """Makes the folder of a new run, ``version_N`` in ``runs``, with the lowest number above all that are there."""
    runs.mkdir(parents=True, exist_ok=True)
    number = max((taken for path in runs.iterdir() if (taken := version_of(path)) is not None), default=-1) + 1
    while True:  # another process may take the number first
        try:
            folder = runs / f"version_{number}"
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def version_of(folder: Path) -> int | None:
    """The N of ``version_N``; None for folders of other names."""
    found = re.fullmatch(r"version_(\d+)", folder.name)
    return int(found[1]) if found else None


def discard_results(folder: Path, rounds: int) -> None:
    """Removes the results of more than ``rounds`` rounds, and the traceback of an error, before a run goes on."""
    (folder / "error.txt").unlink(missing_ok=True)
    file = folder / "results.json"
    if file.is_file():
        try:
            done = float(json.loads(file.read_text())["rounds"])
        except (ValueError, KeyError, TypeError):
            done = math.inf
        if done > rounds:
            file.unlink()


def _git_revision() -> str:
    """The commit that the code is of, with ``-dirty`` where files differ from it; tables of results may."""
    git = ("git", "-C", str(Path(__file__).resolve().parent))
    compare = ("diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)reproduction")
    asked: Any = {"capture_output": True, "text": True, "timeout": 10, "check": False}
    try:
        found = subprocess.run([*git, "rev-parse", "HEAD"], **asked).stdout.strip()
        changed = bool(found) and subprocess.run([*git, *compare], **asked).returncode != 0
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return f"{found}-dirty" if changed else found or "unknown"
