"""The pictures of a study, as PNG."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flgraph.errors import expect
from flgraph.reproduce.cells import Cell, Done
from flgraph.reproduce.protocols import rounds_of
from flgraph.reproduce.study import Study, logged_name, unit_of, with_unit
from flgraph.runs.reader import mapping, number

Draw = Callable[[Path], None]
"""Draws a picture into a file."""

Series = dict[str, Sequence[dict[str, Any]]]
"""Method to the results of its runs, of one setting."""


def plan_figures(study: Study, done: Done, cells: Sequence[Cell], out: Path) -> list[tuple[Path, Draw | None]]:
    """Which pictures the study asks for; nothing is drawn yet.

    Most pictures need more of a run than its record in the index. Where a run has no folder any more, nothing draws
    such a picture, and it is left as it is.

    Returns:
        Files in ``out/PAPER``, each with what draws it.
    """
    folder, table = out / study.paper_name, study.table
    stems = {metric: f"{table}_{_plain(metric)}" if len(study.metrics) > 1 else table for metric in study.metrics}
    if study.figure in (None, "settings"):
        figures = [(folder / f"{stem}.png", partial(_over_settings, study, cells, key)) for key, stem in stems.items()]
        return [(file, partial(_save, draw)) for file, draw in figures] if study.figure else []
    draw = {"convergence": _convergence, "clients": _clients}.get(study.figure)
    without = {"divergence": _divergence, "labels": _labels, "predictions": _predictions, "embeddings": _embeddings}
    files: list[tuple[Path, Draw | None]] = []
    for setting in dict.fromkeys(cell.setting for cell in cells):
        series = {method: runs for (where, method), runs in done.items() if where == setting}
        there = all("folder" in run for runs in series.values() for run in runs)
        there = there and all(c.seeds <= len(series.get(c.method, ())) for c in cells if c.setting == setting)
        there = there and (study.figure != "embeddings" or any(_written(series)))
        if draw is None:
            pictures = {table: partial(without[study.figure], series)}
        else:
            pictures = {stem: partial(draw, study, series, setting, metric) for metric, stem in stems.items()}
        for stem, picture in pictures.items():
            files.append((folder / f"{stem}_{_plain(setting)}.png", partial(_save, picture) if there else None))
    return files


def _save(draw: Callable[[], Any], file: Path) -> None:
    from flgraph.report.charts import save_figure  # matplotlib loads slowly

    save_figure(draw(), file, dpi=160)


def _convergence(study: Study, series: Series, setting: str, metric: str) -> Any:
    """A test metric over rounds, mean over clients, with bands over seeds."""
    from flgraph.report.charts import learning_curves

    name, unit = logged_name(metric), unit_of(metric)  # from the first round; NaN in rounds without evaluation
    curves = {
        method: [[unit * number(one.get(study.mean_key, {}).get(name)) for one in rounds_of(run)] for run in runs]
        for method, runs in series.items()
    }
    return learning_curves(curves, ylabel=with_unit(metric), title=setting, size=(7.0, 4.6))


def _divergence(series: Series) -> Any:
    """Every client's weight divergence after the last round, as the mean over seeds, a circle per method."""
    from flgraph.report.charts import around_center, spread

    panels = {}
    for method, runs in series.items():
        clients = [run["final"]["clients"] for run in runs]
        found = {name: [number(one.get(name, {}).get("mixing/divergence")) for one in clients] for name in clients[0]}
        panels[method] = {name: spread(values)[0] for name, values in found.items()}
    return around_center(panels)


def _clients(study: Study, series: Series, setting: str, metric: str) -> Any:
    """Every client's test metric after the last round, mean and deviation over seeds."""
    from flgraph.report.charts import grouped_bars, spread, styles_for

    names = list(dict.fromkeys(name for runs in series.values() for run in runs for name in run["final"]["clients"]))
    unit, key = unit_of(metric), logged_name(metric)
    values = {
        method: [
            spread([unit * number(run["final"]["clients"].get(name, {}).get(key)) for run in runs]) for name in names
        ]
        for method, runs in series.items()
    }
    return grouped_bars(names, values, ylabel=with_unit(metric), styles=styles_for(list(values)), width=8.0)


def _labels(series: Series) -> Any:
    """Classes of every client's training data, in the partition of the first run."""
    from flgraph.data.figures import label_figure

    partition = mapping(next(iter(series.values()))[0].get("partition"))
    clients = mapping(partition.get("clients"))
    given = bool(clients) and all("train_labels" in client for client in clients.values())
    expect(given, "figure", "one of runs whose partition has `train_labels` of every client", "labels")
    return label_figure(partition)


def _predictions(series: Series) -> Any:
    """Classes that every client predicts of the global test data after the last round, above the true ones."""
    from flgraph.data.figures import share_figure

    clients = next(iter(series.values()))[0]["final"]["clients"]
    rows = {name: _shares(metrics, "predicted") for name, metrics in clients.items()}
    rows["true classes"] = _shares(next(iter(clients.values())), "true")
    return share_figure(rows, "share of the global test nodes", "classes that every client predicts")


def _shares(metrics: dict[str, Any], name: str) -> list[float]:
    shares: list[float] = []
    while (key := f"global_test/{name}_{len(shares)}") in metrics:
        shares.append(number(metrics[key]))
    expect(len(shares) > 0, "study", "of runs with callback flgraph.callbacks.PredictedLabels", "one without")
    return shares


def _embeddings(series: Series) -> Any:
    """The places of all graphs after some rounds, in the order of the rounds, of every method's first run."""
    from flgraph.report.charts import embedding_panels

    panels = {}
    for method, file in _written(series):
        with open(file, newline="") as stream:
            rows = list(csv.DictReader(stream))
        title = file.stem.replace("-", " ")
        places = [[float(row["x"]), float(row["y"])] for row in rows]
        labels = [int(row["label"]) for row in rows]
        panels[title if len(series) == 1 else f"{method}, {title}"] = (places, labels)
    return embedding_panels(panels)


def _written(series: Series) -> Iterator[tuple[str, Path]]:
    """Every method, and the files with places of its first run, round by round."""
    for method, runs in series.items():
        files = (Path(runs[0]["folder"]) / "embeddings").glob("round-*.csv")
        yield from ((method, file) for file in sorted(files, key=lambda path: int(path.stem.removeprefix("round-"))))


def _over_settings(study: Study, cells: Sequence[Cell], metric: str) -> Any:
    """The last round's test metric over the settings, with error bars over seeds."""
    from flgraph.report.charts import error_bars

    final = [cell for cell in cells if (cell.protocol, cell.metric) == ("final", metric)]
    series = {
        method: {cell.setting: (cell.mean, cell.std) for cell in final if cell.method == method}
        for method in dict.fromkeys(cell.method for cell in final)
    }
    settings = [name for name in study.settings if any(name in spreads for spreads in series.values())]
    return error_bars(series, settings, xlabel=study.axis, ylabel=with_unit(metric))


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name)
