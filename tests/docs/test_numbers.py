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


def means(table: str, setting: str, method: str, protocol: str = "final") -> list[str]:
    """A method's means, one for each metric of the table."""
    study = load_study(table)
    cells = read_earlier(study, ROOT / "reproduction").cells
    return [f"{cells[metric, setting, method, protocol].mean:.1f}" for metric in study.metrics]


def test_the_first_page() -> None:
    rows = {row[1]: row[3] for row in rows_of("index.md", "| paper | data | paper | here | verdict |")}
    found = recorded("fedstar/table1", 2)
    for setting in ("CHEM", "BIO-CHEM", "BIO-SN-CV"):
        assert (
            next(here for data, here in rows.items() if f"({setting})" in data) == found[setting, "FedStar", "final"][0]
        )
    for setting, data in (
        ("Cora", "Cora, global / local test, each client's best round"),
        ("CiteSeer", "CiteSeer, the same"),
    ):
        assert rows[data] == " / ".join(means("fedego/table2", setting, "FedEgo", "best_client"))
        assert " / ".join(means("fedego/table2", setting, "FedEgo")) in (ROOT / "docs" / "index.md").read_text()
    found = recorded("fedhgn/table3", 2)
    for clients in ("3", "5"):
        assert rows[f"AIFB, Random Edges, {clients} clients"] == found[f"AIFB RE K={clients}", "FedHGN", "final"][0]
    assert rows["PROTEINS, clustering"] == means("fclg/table2", "PROTEINS", "FCLG")[0]


def test_the_readme() -> None:
    rows = rows_of("../README.md", "| | paper | here | weights that leave |")
    found = recorded("fedstar/table1", 1)
    methods = ("Local", "FedAvg", "FedStar (nothing shared)", "FedStar")
    assert [here for _, _, here, _ in rows] == [found["CHEM", method, "final"][0] for method in methods]


FEDEGO = [("fedego", "FedEgo", "paper | "), ("fedgcn", "FedGCN", ""), ("graphfl", "GraphFL", "paper | ")]


@pytest.mark.parametrize(("page", "method", "paper"), [*FEDEGO, ("dfedgnn", "D-FedGNN", "paper | ")])
def test_fedegos_tables_on_pages_of_methods(page: str, method: str, paper: str) -> None:
    rows = rows_of(
        f"methods/{page}.md", f"| data | test | {paper}here, each client's best | here, last round | seeds |"
    )
    for setting, test, *_, best, last, _ in rows:
        at = ("global", "local").index(test)
        for said, protocol in ((best, "best_client"), (last, "final")):
            assert said == means("fedego/table2", setting, method, protocol)[at]


def test_fedegos_page() -> None:
    text = (ROOT / "docs" / "reproduction" / "fedego.md").read_text(encoding="utf-8")
    columns = next(line for line in text.splitlines() if line.startswith("| method | Cora global: paper"))
    rows = rows_of("reproduction/fedego.md", columns)
    assert len(rows) == 7
    for name, *cells in rows:
        method = "Local Only" if name == "Local" else name
        for at, setting in ((0, "Cora"), (6, "CiteSeer")):
            for column, protocol in ((1, "best_client"), (2, "final")):
                said = [cells[at + column], cells[at + column + 3]]
                assert said == means("fedego/table2", setting, method, protocol)


FCLG_SETS = ("PROTEINS", "ENZYMES", "DHFR", "NCI1")


def test_fclgs_tables() -> None:
    rows = [row for row in rows_of("reproduction/fclg.md", f"| | {' | '.join(FCLG_SETS)} |") if "tuned" not in row[0]]
    for page in ("infograph", "fclg"):
        further = rows_of(f"methods/{page}.md", f"| accuracy / macro F1 | {' | '.join(FCLG_SETS)} |")
        name = "here, settings chosen without labels"
        rows += [
            [row[0].replace(name, "FCLG, here").removesuffix(", here"), *row[1:]]
            for row in further
            if "here" in row[0] and "with labels" not in row[0]
        ]
    assert len(rows) == 7
    for method, *cells in rows:
        for setting, cell in zip(FCLG_SETS, cells, strict=True):
            assert cell.split(" [")[0] == " / ".join(means("fclg/table2", setting, method)), (method, setting)


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
