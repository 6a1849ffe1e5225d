"""Numbers of docs/choosing.md are those that are recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flgraph.reproduce import load_study
from flgraph.reproduce.records import read_records
from flgraph.reproduce.study import digits_of
from flgraph.runs.history import lower_is_better

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
CITED = re.findall(r"\[([\w/]+)\]\(\.\./reproduction/\1\.md\) ([^|:]+): ([^|;]+)(?:;| \|)", TEXT)


@pytest.mark.parametrize(("name", "setting", "cells"), CITED, ids=lambda part: part if "/" in part else "")
def test_metrics(name: str, setting: str, cells: str) -> None:
    """The best comes first. What this checkout has no record of is not compared."""
    study = load_study(name)
    ((_, records),) = read_records([study], ROOT / "reproduction")
    digits, said = digits_of(study.metrics[0], 1), {}
    for cell in cells.split(", "):
        method, _, number = cell.rpartition(" ")
        assert method in study.methods
        said[method] = float(number)
        if (setting, method) in records:
            assert number == f"{records[setting, method].mean:.{digits}f}", method
    assert setting in study.settings
    assert list(said.values()) == sorted(said.values(), reverse=not lower_is_better(study.metrics[0]))


def test_every_table_cites() -> None:
    assert len(CITED) >= 10


def test_costs() -> None:
    """Shares of FedAvg's time, as measured, and of what it sends."""
    measured: dict[str, tuple[str, float]] = {}
    sent = 1.0
    for line in (ROOT / "benchmarks" / "results" / "methods_round.txt").read_text().splitlines():
        if found := re.fullmatch(r"(\S.*?) +[\d.]+ +([\d.]+) +([\d.]+)", line):
            sent = float(found[3]) if found[1] == "FedAvg" else sent
            measured.setdefault(found[1], (f"{float(found[2]):.1f}", float(found[3]) / sent))
    rows = re.findall(r"^\| ([^|]+) \| (\d+\.\d) \| ([\d.]+|–) \|$", TEXT, re.MULTILINE)
    assert len(rows) > 5
    for method, time, share in rows:
        assert time == measured[method][0], method
        assert share == "–" or float(share) == pytest.approx(measured[method][1], abs=0.05), method
