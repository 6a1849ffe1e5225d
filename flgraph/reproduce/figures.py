"""The pictures of a study, as PNG."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flgraph.errors import expect
from flgraph.reproduce.protocols import rounds_of
from flgraph.reproduce.study import Study, in_words, logged_name
from flgraph.reproduce.tables import Cell, Done
from flgraph.runs.reader import mapping, number

Draw = Callable[[Path], None]
"""Draws a picture into a file."""


def plan_figures(study: Study, done: Done, cells: Sequence[Cell], out: Path) -> list[tuple[Path, Draw | None]]:
    """Which pictures the study asks for; nothing is drawn yet.

    Most pictures need more of a run than its record in the ledger. Where a run has no folder any more, nothing draws
    such a picture, and it is left as it is.

    Returns:
        Files in ``out/PAPER``, each with what draws it.
    """
    if study.figure is None:
        return []
    folder, table = out / study.paper_name, study.name.rpartition("/")[2]
    if study.figure == "settings":
        return [
            (folder / f"{_stem(study, table, metric)}.png", partial(_over_settings, study, cells, metric))
            for metric in study.metrics
        ]
    files: list[tuple[Path, Draw | None]] = []
    for setting in dict.fromkeys(setting for setting, _ in done):
        whole = all("folder" in run for (where, _), runs in done.items() if where == setting for run in runs)
        if study.figure == "embeddings":
            whole = whole and any(_written(done, setting))
        for stem, draw in _pictures(study, done, setting, table):
            files.append((folder / f"{stem}_{_plain(setting)}.png", draw if whole else None))
    return files


def _pictures(study: Study, done: Done, setting: str, table: str) -> Iterator[tuple[str, Draw]]:
    """Of a setting: how each file's name begins, and what draws it."""
    alone = {"divergence": _divergence, "labels": _labels, "predictions": _predictions, "embeddings": _embeddings}
    if study.figure in alone:
        yield table, partial(alone[study.figure], done, setting)
        return
    draw = _clients if study.figure == "clients" else _convergence
    for metric in study.metrics:
        yield _stem(study, table, metric), partial(draw, study, done, setting, metric)


def _stem(study: Study, table: str, metric: str) -> str:
    return f"{table}_{_plain(metric)}" if len(study.metrics) > 1 else table


def _convergence(study: Study, done: Done, setting: str, metric: str, file: Path) -> None:
    """A test metric over rounds, mean over clients, with bands over seeds."""
    from flgraph.report.charts import learning_curves, save_png  # matplotlib loads slowly

    series = {
        method: [_curve(result, logged_name(metric), study.mean_key) for result in results]
        for (where, method), results in done.items()
        if where == setting
    }
    figure = learning_curves(series, ylabel=f"{in_words(metric)} in percent", title=setting, size=(7.0, 4.6))
    save_png(figure, file)


def _divergence(done: Done, setting: str, file: Path) -> None:
    """Every client's weight divergence after the last round, as the mean over seeds, a circle per method."""
    from flgraph.report.charts import around_center, save_png, spread

    panels = {}
    for (where, method), results in done.items():
        if where == setting:
            clients = [result["final"]["clients"] for result in results]
            panels[method] = {
                name: spread([number(one.get(name, {}).get("mixing/divergence")) for one in clients])[0]
                for name in clients[0]
            }
    save_png(around_center(panels), file)


def _clients(study: Study, done: Done, setting: str, metric: str, file: Path) -> None:
    """Every client's test metric after the last round, mean and deviation over seeds."""
    from flgraph.report.charts import grouped_bars, save_png, spread, styles_for

    series = {method: results for (where, method), results in done.items() if where == setting}
    names = list(dict.fromkeys(name for runs in series.values() for run in runs for name in run["final"]["clients"]))
    values = {
        method: [
            spread([100 * number(run["final"]["clients"].get(name, {}).get(logged_name(metric))) for run in runs])
            for name in names
        ]
        for method, runs in series.items()
    }
    ylabel = f"{in_words(metric)} in percent"
    save_png(grouped_bars(names, values, ylabel=ylabel, styles=styles_for(list(values)), width=8.0), file)


def _labels(done: Done, setting: str, file: Path) -> None:
    """Classes of every client's training data, in the partition of the first run."""
    from flgraph.data.figures import label_figure
    from flgraph.report.charts import save_png

    first = next(runs[0] for (where, _), runs in done.items() if where == setting)
    clients = mapping(mapping(first.get("partition")).get("clients"))
    told = bool(clients) and all("train_labels" in client for client in clients.values())
    expect(told, "figure", "one of runs whose partition tells `train_labels` of every client", "labels")
    save_png(label_figure(first["partition"]), file)


def _predictions(done: Done, setting: str, file: Path) -> None:
    """Classes that every client predicts of the global test data after the last round, above the true ones."""
    from flgraph.data.figures import share_figure
    from flgraph.report.charts import save_png

    first = next(runs[0] for (where, _), runs in done.items() if where == setting)
    rows = {name: _shares(metrics, "predicted") for name, metrics in first["final"]["clients"].items()}
    rows["true classes"] = _shares(next(iter(first["final"]["clients"].values())), "true")
    save_png(share_figure(rows, "share of the global test nodes", "classes that every client predicts"), file)


def _shares(metrics: dict[str, Any], name: str) -> list[float]:
    shares: list[float] = []
    while (key := f"global_test/{name}_{len(shares)}") in metrics:
        shares.append(number(metrics[key]))
    expect(len(shares) > 0, "study", "of runs with callback flgraph.callbacks.PredictedLabels", "one without")
    return shares


def _embeddings(done: Done, setting: str, file: Path) -> None:
    """The places of all graphs after some rounds, in the order of the rounds, of every method's first run."""
    from flgraph.report.charts import embedding_panels, save_png

    panels = {}
    alone = sum(where == setting for where, _ in done) == 1
    for method, written in _written(done, setting):
        with open(written, newline="") as stream:
            rows = list(csv.DictReader(stream))
        title = written.stem.replace("-", " ")
        places = [[float(row["x"]), float(row["y"])] for row in rows]
        panels[title if alone else f"{method}, {title}"] = (places, [int(row["label"]) for row in rows])
    save_png(embedding_panels(panels), file)


def _written(done: Done, setting: str) -> Iterator[tuple[str, Path]]:
    """Every method, and the files with places of its first run, round by round."""
    for (where, method), runs in done.items():
        if where == setting:
            files = (Path(runs[0]["folder"]) / "embeddings").glob("round-*.csv")
            yield from (
                (method, file) for file in sorted(files, key=lambda path: int(path.stem.removeprefix("round-")))
            )


def _over_settings(study: Study, cells: Sequence[Cell], metric: str, file: Path) -> None:
    """The last round's test metric over the settings, with error bars over seeds."""
    from flgraph.report.charts import error_bars, save_png

    final = [cell for cell in cells if (cell.protocol, cell.metric) == ("final", metric)]
    series = {
        method: {cell.setting: (cell.mean, cell.std) for cell in final if cell.method == method}
        for method in dict.fromkeys(cell.method for cell in final)
    }
    settings = [name for name in study.settings if any(name in spreads for spreads in series.values())]
    figure = error_bars(series, settings, xlabel=study.axis, ylabel=f"{in_words(metric)} in percent")
    save_png(figure, file)


def _curve(results: dict[str, Any], metric: str, mean: str) -> list[float]:
    """Percent per round from the first; NaN in rounds without evaluation."""
    return [100 * number(record.get(mean, {}).get(metric)) for record in rounds_of(results)]


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name)
