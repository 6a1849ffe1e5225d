"""Tables that a run prints."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from flgraph.federation.display import ExchangeLines, MetricsTable, final_table, routes_markdown, routes_table
from flgraph.runs.history import Metrics


def rows(metrics: MetricsTable, width: int = 80) -> list[list[str]]:
    """Head (its lines joined by a blank) and cells of the one table there is, as they are printed."""
    (table,) = metrics.tables(width)
    return cells(table)


def cells(table: Table) -> list[list[str]]:
    columns = [[str(column.header).replace("\n", " "), *map(str, column.cells)] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def told(round: int, **clients: dict[str, float]) -> dict[str, object]:
    metrics: Metrics = dict(clients)
    return {"round": round, "clients": metrics}


def test_the_monitored_metric_of_all_splits() -> None:
    a = {"train/accuracy": 0.9, "val/accuracy": 0.8, "test/accuracy": 0.7, "test/loss": 0.5, "test/samples": 4.0}
    b = {"train/accuracy": 0.5, "val/accuracy": 0.4, "test/accuracy": 0.3, "test/loss": 0.1, "mixing/lambda": 0.2}
    best = told(2, a={"test/accuracy": 0.6}, b={"test/accuracy": 0.5})
    table = final_table(told(3, a=a, b=b), best, "val/accuracy")
    assert table.title == "accuracy after round 3; best val round 2"
    assert rows(table) == [
        ["client", "train", "val", "test", "test loss", "best val test"],
        ["a", "0.9000", "0.8000", "0.7000", "0.5000", "0.6000"],
        ["b", "0.5000", "0.4000", "0.3000", "0.1000", "0.5000"],
        ["mean", "0.7000", "0.6000", "0.5000", "0.3000", "0.5500"],
    ]


def test_further_test_data() -> None:
    """The same metric where it was measured there, now and at the best round."""
    own = {"test/accuracy": 0.7, "global_test/accuracy": 0.5, "global_test/f1": 0.4, "global_test/samples": 9.0}
    table = final_table(told(3, a=own), told(1, a={"global_test/accuracy": 0.6}), "val/accuracy")
    assert rows(table) == [
        ["client", "test", "global_ test", "best val global_ test"],
        ["a", "0.7000", "0.5000", "0.6000"],
        ["mean", "0.7000", "0.5000", "0.6000"],
    ]


def test_a_model_tested_by_something_else_than_what_is_monitored() -> None:
    """As graph embeddings are: trained on a loss, tested by clusters on the data of one client."""
    first = {"train/loss": 3.0, "global_test/accuracy": 0.6, "global_test/nmi": 0.1}
    table = final_table(told(3, a=first, b={"train/loss": 1.0}), {}, "val/loss")
    assert table.title == "loss after round 3"
    assert rows(table) == [
        ["client", "train", "global_ test accuracy", "global_ test nmi"],
        ["a", "3.0000", "0.6000", "0.1000"],
        ["b", "1.0000", "-", "-"],
        ["mean", "2.0000", "0.6000", "0.1000"],
    ]
    Console(quiet=True).print(table)


def test_no_number_is_cut_where_lines_are_short() -> None:
    """All metrics of a federated node classification fit into 80 columns; fewer columns hold them in two tables."""
    own = {f"{split}/accuracy": 0.25 for split in ("train", "val", "test", "global_test")} | {"test/loss": 1.5}
    metrics = final_table(told(30, **{"client-1": own, "mean": own}), told(7, **{"client-1": own}), "val/accuracy")
    (whole,) = metrics.tables(80)
    assert len(whole.columns) == 8
    parts = list(metrics.tables(79))
    assert [len(part.columns) for part in parts] == [7, 2]
    assert [part.title for part in parts] == ["accuracy after round 30; best val round 7", None]
    assert cells(parts[1]) == [
        ["client", "best val global_ test"],
        ["client-1", "0.2500"],
        ["mean", "-"],
        ["mean", "0.2500"],
    ]
    assert all(len(list(metrics.tables(narrow))) == 7 for narrow in (1, 20))
    for width in (80, 79, 40):
        lines = io.StringIO()
        Console(file=lines, width=width).print(metrics)
        printed = lines.getvalue()
        assert "…" not in printed
        assert printed.count("0.2500") == 4 * 2 + 2 * 1 + 4 + 2
        assert max(map(len, printed.splitlines())) <= width


def test_without_metrics_clients_are_named() -> None:
    assert rows(MetricsTable({"a": {}}, "test")) == [["client"], ["a"], ["mean"]]


@pytest.mark.parametrize(("every", "shown"), [(0.0, ["a (1/3)", "b (2/3)", "c (3/3)"]), (3600.0, ["a (1/3)"])])
def test_exchanges_before_round_1(every: float, shown: list[str]) -> None:
    lines = io.StringIO()
    tell = ExchangeLines(Console(file=lines), every)
    for number, exchange in enumerate("abc", start=1):
        tell(exchange, number, 3)
    assert lines.getvalue().splitlines() == [f"before round 1: {one}  0 s" for one in shown]


def test_what_may_leave_a_client_has_a_shape_or_a_dash() -> None:
    lines = [("layer[0].weight", "[3, 2]", "shared"), ("num_samples", "", "scalar")]
    assert cells(routes_table(lines))[1:] == [["layer[0].weight", "[3, 2]", "shared"], ["num_samples", "–", "scalar"]]
    printed = io.StringIO()
    Console(file=printed, width=80).print(routes_table(lines))
    assert "layer[0].weight" in printed.getvalue()
    assert routes_markdown(lines).splitlines()[2:] == [
        "| layer[0].weight | [3, 2] | shared |",
        "| num_samples | – | scalar |",
    ]
