"""``flgraph report`` from the command line to the page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

VOID = {"meta", "input", "line", "br"}


class Reader(HTMLParser):
    """Checks that elements are closed as they were opened, and keeps what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.open += [] if tag in VOID else [tag]
        for name, value in attrs:
            if name in ("src", "srcset", "data", "href", "xlink:href") and value and not value.startswith("#"):
                self.fetched.append(value)
            elif name == "href" and value:
                self.links.append(value[1:])
            if name == "id" and value:
                self.ids.append(value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def rows(page: str) -> dict[str, list[str]]:
    """The summary table: method to the texts of its cells."""
    table = page.split('<table class="summary">')[1].split("</table>")[0]
    found = {}
    for row in re.findall(r"<tr class=.*?</tr>", table):
        cells = [re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row)]
        found[cells[0]] = cells[1:]
    return found


@pytest.mark.usefixtures("undrawn")
def test_summary(study: Path, report: Any) -> None:
    page = report(study)
    assert rows(page) == {
        "Local": ["65.00 ± 7.07", "–", "70.00 ± 0.00", "70.00 ± 0.00", "–", "2", "3", "0", "0", "0.50 ± 0.00"],
        "FedAvg": [
            *("75.00 ± 7.07", "+10.00 ± 0.00", "80.00 ± 14.14", "80.00 ± 14.14", "1 of 2", "2", "3"),
            *("1.0", "2.0", "0.50 ± 0.00"),
        ],
    }
    assert '<td class="best">75.00' in page
    assert '<td class="best">65.00' not in page


def test_same_runs_same_bytes_and_nothing_is_fetched(study: Path, report: Any) -> None:
    page = report(study)
    assert report(study) == page
    reader = read(page)
    assert reader.fetched == []
    assert "http" not in page
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert not {"link", "img", "iframe", "object"} & set(reader.seen)
    assert reader.seen.count("script") == 1
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|import)\(", page)
    assert len(set(reader.ids)) == len(reader.ids)
    assert set(reader.links) <= set(reader.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(reader.ids)
    assert reader.seen.count("figure") == 7


def test_names_are_escaped(make_run: Any, report: Any, tmp_path: Path) -> None:
    hostile = "<script>alert('$x$')&"
    make_run(hostile, [{hostile: 0.5, "B": 0.5}], server=[{hostile: 1}], note=hostile)
    make_run("Local", [{hostile: 0.4, "B": 0.5}], aggregator="Local")
    page = report(tmp_path)
    assert read(page).seen.count("script") == 1  # its own
    assert "&lt;script&gt;alert(&#39;$x$&#39;)&amp;" in page


def test_unfinished_runs_are_marked(study: Path, make_run: Any, report: Any) -> None:
    assert 'class="tag"' not in report(study)
    make_run("FedAvg-seed3", [{"A": 0.1, "B": 0.1}], seed=3, finished=False, planned=3)
    make_run("FedPer-seed1", [{"A": 1, "B": 1}] * 2, aggregator="FedPer", finished=False, planned=3)
    page = report(study)
    table = rows(page)
    assert list(table) == ["Local", "FedAvg+1 unfinished", "FedPerunfinished"]
    assert table["FedPerunfinished"][:7] == ["100.00", "–", "100.00", "100.00", "–", "1", "2 of 3"]
    assert '<td class="best">100.00' not in page  # not to be compared with runs that came to their end
    assert "<title>FedPer, unfinished</title>" in page
    assert "6 runs, 3 methods, 2 unfinished" in page


@pytest.mark.usefixtures("undrawn")
def test_only_unfinished_runs(make_run: Any, report: Any, tmp_path: Path) -> None:
    make_run("a", [{"A": 0.5}], finished=False, planned=9)
    assert "1 of 9" in report(tmp_path)


def test_what_is_not_there_is_left_out(tmp_path: Path, report: Any) -> None:
    """Results alone, with the least that can be in them."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "results.json").write_text(json.dumps({"final": {"mean": {"test/accuracy": 0.5}}, "rounds": 1}))
    page = report(tmp_path)
    assert rows(page) == {"a": ["50.00", "1", "1", "–", "–", "–"]}
    assert "No run has metrics per client." in page


def test_null_metrics_are_no_crash(make_run: Any, report: Any, tmp_path: Path) -> None:
    make_run("Local", [{"A": None, "B": 0.5}] * 2, aggregator="Local")
    make_run("FedAvg", [{"A": 0.5, "B": None}] * 2)
    assert rows(report(tmp_path))["FedAvg"][0] == "–"


@pytest.mark.usefixtures("undrawn")
def test_records_of_the_server(make_run: Any, report: Any, tmp_path: Path) -> None:
    make_run("a", [{"A": 0.5}] * 2, server=[{"clusters": 1, "names": ["x"]}, {"clusters": 2, "other": None}])
    page = report(tmp_path)
    assert "Server: clusters" in page
    assert "Server: names" not in page


@pytest.mark.usefixtures("undrawn")
def test_parameters(make_run: Any, report: Any, tmp_path: Path) -> None:
    counts = {"A": {"total": 1200, "shared": 700}, "B": {"total": 1300, "shared": 700}}
    make_run("a", [{"A": 0.5}], parameters=counts)
    page = report(tmp_path)
    assert "parameters / client" in page
    assert rows(page)["a"][5:7] == ["1,250", "700"]


def test_many_clients_are_distributions(make_run: Any, report: Any, tmp_path: Path) -> None:
    clients = {f"client {number}": number / 40 for number in range(40)}
    make_run("Local", [clients], aggregator="Local")
    make_run("FedAvg", [{name: value + 0.01 for name, value in clients.items()}])
    page = report(tmp_path)
    assert page.count("A dot is a client") == 2
    assert rows(page)["FedAvg"][4] == "40 of 40"


@pytest.mark.usefixtures("undrawn")
def test_sections(study: Path, make_run: Any, report: Any) -> None:
    make_run("FedAvg", [{"C": 0.5}], data={"datasets": ["C"]})
    page = report(study)
    assert [re.sub("<.*?>", "", head) for head in re.findall("<h2>.*?</h2>", page)] == ["C", "A, B"]
    reader = read(page)
    assert len(set(reader.ids)) == len(reader.ids)
    assert set(reader.links) <= set(reader.ids)


@pytest.mark.usefixtures("undrawn")
def test_settings_that_differ(study: Path, report: Any) -> None:
    part = report(study).split("Settings that differ</h3>")[1].split("</table>")[0]
    assert re.findall(r"<tr><td><code>(.*?)</code>", part) == ["trainer.aggregator"]


@pytest.mark.usefixtures("undrawn")
def test_another_metric(study: Path, report: Any) -> None:
    page = report(study, "--metric", "loss")
    assert rows(page)["Local"][0] == "0.3333 ± 0.0000"
    assert "(%)" not in page


@pytest.mark.usefixtures("undrawn")
def test_runs_without_a_round_are_told(study: Path, make_run: Any, report: Any) -> None:
    make_run("late", [], finished=False)
    assert re.search(r"Left out, because no round is done yet: <code>.*late/version_0</code>", report(study))


# -------------------------------------------------------------------------------------------------------------- errors
def test_refuses_places_without_runs(refused: Any, tmp_path: Path) -> None:
    assert refused("report.x").startswith("Expected `RUN` to be a run folder or a folder above run folders but got")
    told = "Expected `RUN` to be a folder with results.json or history.jsonl in it or below but got '"
    assert refused(tmp_path).startswith(told)
    assert refused() == "the following arguments are required: runs"


def test_refuses_a_run_without_rounds(refused: Any, make_run: Any, tmp_path: Path) -> None:
    run = make_run("a", [], finished=False)
    assert refused(run) == f"Expected `{run}` to be a run with at least one round but got 0."
    make_run("b", [], finished=False)
    told = "Expected `RUN` to be the folder of a run with at least one round, or above one, but got 2 without."
    assert refused(tmp_path) == told


def test_refuses_an_unknown_metric(refused: Any, study: Path) -> None:
    told = "Expected `--metric` to be one of accuracy, loss but got 'f2'."
    assert refused(study, "--metric", "f2") == told


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("history.jsonl", '{"round": 1\n{"round": 2}\n', "Expected `{file}` to be a round per line but got "),
        ("history.jsonl", '{"rounds": 1}\n', "Expected `{file}` to be a round per line but got "),
        ("history.jsonl", "[1]\n", "Expected `{file}` to be a round per line but got "),
        ("results.json", "{", "Expected `{file}` to be JSON but got "),
        ("results.json", "[" * 100_000, "Expected `{file}` to be JSON but got "),
        ("results.json", "[]", "Expected `{file}` to be a run's results but got "),
        ("config.yaml", "a: [", "Expected `{file}` to be YAML but got "),
    ],
)
def test_refuses_broken_files(refused: Any, make_run: Any, file: str, text: str, told: str) -> None:
    run = make_run("a", [{"A": 0.5}], finished=False)
    (run / file).write_text(text)
    assert refused(run).startswith(told.format(file=run / file))


@pytest.mark.usefixtures("undrawn")
def test_refuses_places_that_cannot_be_written(refused: Any, study: Path, tmp_path: Path) -> None:
    assert refused(study, "--out", tmp_path).startswith("Expected `--out` to be a file but got ")
    (tmp_path / "file").write_text("")
    assert refused(study, "--out", tmp_path / "file" / "a.html").startswith("Expected `--out` to be a file that can be")


@pytest.mark.usefixtures("undrawn")
def test_clusters_are_told_and_not_drawn(make_run: Any, report: Any) -> None:
    rounds = [{"A": 0.5, "B": 0.5}, {"A": 0.7, "B": 0.7}]
    told = [
        {"clusters": 1.0, "cluster/A": 0.0, "cluster/B": 0.0},
        {"clusters": 2.0, "cluster/A": 0.0, "cluster/B": 1.0},
    ]
    run = make_run("GCFL-seed1", rounds, aggregator="GCFL", server=told)
    results = json.loads((run / "results.json").read_text())
    splits = [{"round": 2, "cluster": 0, "into": [["A"], ["<B>"]]}]
    (run / "results.json").write_text(
        json.dumps({**results, "aggregator": {"clusters": [["A"], ["<B>"]], "splits": splits}})
    )
    page = report(run)
    read(page)
    row = re.search(r"<h3>Clusters</h3>.*?<tbody>(.*?)</tbody>", page, re.DOTALL)
    assert row is not None
    cells = [re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row[1])]
    assert cells == ["GCFL", "1", "2", "A; &lt;B&gt;"]
    assert "Server: clusters" in page
    assert "Server: cluster/A" not in page
    assert "<code>cluster/…</code>" in page


@pytest.mark.usefixtures("undrawn")
def test_gains_are_over_the_local_run_that_most_methods_share_a_model_with(make_run: Any, report: Any) -> None:
    rounds = [{"A": 0.5, "B": 0.5}]
    for name, aggregator, other in (("a", "Local", True), ("b", "Local", False), ("c", "FedAvg", False)):
        run = make_run(f"{name}-seed1", rounds, aggregator=aggregator)
        if other:
            for file in ("config.yaml", "results.json"):
                text = (run / file).read_text().replace("flgraph.models.GNN", "flgraph.models.FedStar")
                (run / file).write_text(text)
    assert "gain over b" in report(run.parents[1])


@pytest.mark.usefixtures("undrawn")
def test_data_is_the_same_if_the_clients_hold_the_same(make_run: Any, report: Any) -> None:
    """Two classes of data that give the same graphs are one section; an unfinished run joins those of its settings."""
    rounds = [{"A": 0.5, "B": 0.5}]
    for name, kind, content in (("a", "One", "x"), ("b", "Other", "x"), ("c", "One", "y")):
        run = make_run(f"{name}-seed1", rounds, aggregator="FedAvg", lr=len(name + kind + content), data={"kind": name})
        results = json.loads((run / "results.json").read_text())
        results["data"] = {client: {"content": content} for client in "AB"}
        (run / "results.json").write_text(json.dumps(results))
    make_run("a-seed2", rounds, aggregator="FedAvg", lr=5, data={"kind": "a"}, seed=2, finished=False)
    assert report(run.parents[1]).count("<h3>Summary</h3>") == 2


@pytest.mark.usefixtures("undrawn")
def test_another_test_split_may_be_compared(make_run: Any, report: Any, refused: Any) -> None:
    run = make_run("a-seed1", [{"A": 0.5, "B": 0.5}])
    for file in ("results.json", "history.jsonl"):
        text = (run / file).read_text().replace('"test/loss"', '"global_test/accuracy"')
        (run / file).write_text(text)
    page = report(run, "--metric", "global_test/accuracy")
    assert "Global test accuracy (%)" in page
    assert rows(page)["a"][0].startswith("100.00")
    assert "one of accuracy, global_test/accuracy" in refused(run, "--metric", "x").replace("loss, ", "")


@pytest.mark.usefixtures("undrawn")
def test_what_should_be_alike_is_marked(study: Path, make_run: Any, report: Any) -> None:
    assert "unlike" not in report(study).lower()
    make_run("FedPer-seed1", [{"A": 0.5, "B": 0.5}] * 2, aggregator="FedPer", dropped={2: {"<C>": "<late>"}})
    page = report(study)
    assert rows(page)["FedPer1 left out"][5:7] == ["1unlike", "2unlike"]
    assert 'title="most methods: 1, 2">unlike' in page
    assert "<b>Unlike</b>" in page
    cells = re.findall(r"<td>(.*?)</td>", page.split("Clients that were left out</h3>")[1].split("</table>")[0])
    assert cells[2:] == ["&lt;C&gt;", "2, then for good", "&lt;late&gt;"]


@pytest.mark.usefixtures("undrawn")
def test_sections_have_their_own_metrics(make_run: Any, report: Any, tmp_path: Path) -> None:
    make_run("FedAvg", [{"A": 0.5}])
    ranks = {"test/accuracy": "test/mrr", "val/accuracy": "val/mrr"}
    make_run("links", [{"A": 0.5}], data={"datasets": ["C"]}, rename=ranks)
    page = report(tmp_path)
    assert "Test accuracy (%). <b>final</b>" in page
    assert "Test mrr. <b>final</b>" in page
    assert "<h1>A, B · C: test accuracy, test mrr</h1>" in page


def test_charts_tell_rounds_and_can_be_saved(study: Path, report: Any) -> None:
    page = report(study)
    assert page.count("<template") == 7 + 2
    assert page.count('<div class="phone">') == 7
    assert (
        page.count("<title>round 2\nLocal: 60 ± 14.1\nFedAvg: 75 ± 21.2</title>") == 4
    )  # two charts, on the page and on phones
    chart = re.search(r'<template data-name="A, B Test accuracy over rounds">(.*?)</template>', page, re.DOTALL)
    assert chart is not None
    assert ">FedAvg</text>" in chart[1]  # its own legend
    text = re.search(r'<template data-name="A, B csv">(.*?)</template>', page, re.DOTALL)
    assert text is not None
    assert text[1].startswith("data,method,metric,unit")


@pytest.mark.usefixtures("undrawn")
def test_what_privacy_cost_is_a_column_where_a_run_counted_it(make_run: Any, report: Any, tmp_path: Path) -> None:
    rounds = [{"A": 0.5, "B": 0.5}]
    make_run("FedAvg-seed1", rounds)
    assert "delta in results.json" not in report(tmp_path / "runs")
    for seed, epsilon in ((2, 3.25), (3, 4.125)):
        file = make_run(f"FedProx-seed{seed}", rounds, aggregator="FedProx", seed=seed) / "results.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "privacy": {"epsilon": epsilon}}))
    shown = report(tmp_path / "runs")
    assert "the largest of its runs; delta in results.json" in shown
    assert "4.12" in shown
