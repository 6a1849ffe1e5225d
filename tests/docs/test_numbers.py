"""Numbers of the docs are those that are recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flgraph.reproduce import load_study
from flgraph.reproduce.cells import read_earlier
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


def recorded(table: str, digits: int) -> dict[tuple[str, ...], tuple[str, str]]:
    """Mean and deviation, and the number of seeds, of a table's first metric, by setting, method and protocol."""
    study = load_study(table)
    return {
        at[1:]: (f"{cell.mean:.{digits}f} ± {cell.std:.{digits}f}", str(cell.seeds))
        for at, cell in read_earlier(study, ROOT / "reproduction").cells.items()
        if at[0] == study.metrics[0]
    }


def rows_of(page: str, columns: str) -> list[list[str]]:
    """Cells of the table below a line of names of columns."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    table = text.split(f"{columns}\n", 1)[1].split("\n\n")[0]
    return [[cell.strip("* ") for cell in row.strip("|").split("|")] for row in table.splitlines()[1:]]


@pytest.mark.parametrize("page", ["fedavg", "fedper", "fedprox", "fedsage", "fedstar", "gcfl", "local"])
def test_fedstars_table_on_pages_of_methods(page: str) -> None:
    method = {"gcfl": "GCFL", "local": "Local"}.get(page, f"Fed{page[3:].capitalize()}")
    gain = "gain over Local | " if page == "fedstar" else ""
    rows = rows_of(f"methods/{page}.md", f"| data | clients | paper | here | {gain}seeds |")
    found = recorded("fedstar/table1", 2)
    said = {setting: (cells[2], cells[-1]) for setting, *cells in rows if (setting, method, "final") in found}
    assert len(said) >= 2
    assert said == {setting: found[setting, method, "final"] for setting in said}


def test_openfgls_tables() -> None:
    found = recorded("openfgl/subgraph", 1)
    rows = rows_of("reproduction/openfgl.md", "| | OpenFGL's code, Cora | Cora here | CiteSeer here |")
    assert len(rows) == 21
    for method, _, *here in rows:
        for setting, said in zip(("Cora", "CiteSeer"), here, strict=True):
            assert said == " / ".join(found[setting, method, which][0] for which in ("best_val", "final"))
    found = recorded("openfgl/graphs", 1)
    methods = ("Local", "FedAvg", "FedProx", "SCAFFOLD", "GCFL+", "FedStar")
    *sets, _ = rows_of("reproduction/openfgl.md", f"| | {' | '.join(methods)} |")
    assert len(sets) == 16
    for setting, *said in sets:
        assert said == [found[setting, method, "final"][0] for method in methods]


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
