"""The folder of a run, ``version_N``, and what stands in its ``results.json`` besides the metrics."""

from __future__ import annotations

import json
import math
import platform
import re
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


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
    folder = Path(__file__).resolve().parent
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"
