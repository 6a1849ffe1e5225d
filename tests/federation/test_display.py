"""Tables that a run prints."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from flgraph.federation.display import ExchangeLines, final_table
from flgraph.federation.records import Metrics


def rows(table: Table) -> list[list[str]]:
    """Head (a metric's parts joined by a blank) and cells, as they are printed."""
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
    assert table.title == "after round 3; best val round 2"
    assert rows(table) == [
        ["client", "train accuracy", "val accuracy", "test accuracy", "test loss", "best val test accuracy"],
        ["a", "0.9000", "0.8000", "0.7000", "0.5000", "0.6000"],
        ["b", "0.5000", "0.4000", "0.3000", "0.1000", "0.5000"],
        ["mean", "0.7000", "0.6000", "0.5000", "0.3000", "0.5500"],
    ]


def test_further_test_data() -> None:
    """The same metric where it was measured there, now and at the best round."""
    own = {"test/accuracy": 0.7, "global_test/accuracy": 0.5, "global_test/f1": 0.4, "global_test/samples": 9.0}
    table = final_table(told(3, a=own), told(1, a={"global_test/accuracy": 0.6}), "val/accuracy")
    assert rows(table) == [
        ["client", "test accuracy", "global_test accuracy", "best val global_test accuracy"],
        ["a", "0.7000", "0.5000", "0.6000"],
        ["mean", "0.7000", "0.5000", "0.6000"],
    ]


def test_a_model_tested_by_something_else_than_what_is_monitored() -> None:
    """As graph embeddings are: trained on a loss, tested by clusters on the data of one client."""
    first = {"train/loss": 3.0, "global_test/accuracy": 0.6, "global_test/nmi": 0.1}
    table = final_table(told(3, a=first, b={"train/loss": 1.0}), {}, "val/loss")
    assert table.title == "after round 3"
    assert rows(table) == [
        ["client", "train loss", "global_test accuracy", "global_test nmi"],
        ["a", "3.0000", "0.6000", "0.1000"],
        ["b", "1.0000", "-", "-"],
        ["mean", "2.0000", "0.6000", "0.1000"],
    ]
    Console(quiet=True).print(table)


@pytest.mark.parametrize(("every", "shown"), [(0.0, ["a (1/3)", "b (2/3)", "c (3/3)"]), (3600.0, ["a (1/3)"])])
def test_exchanges_before_round_1(every: float, shown: list[str]) -> None:
    lines = io.StringIO()
    tell = ExchangeLines(Console(file=lines), every)
    for number, exchange in enumerate("abc", start=1):
        tell(exchange, number, 3)
    assert lines.getvalue().splitlines() == [f"before round 1: {one}  0 s" for one in shown]
