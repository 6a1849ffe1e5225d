"""The pictures of a study, as PNG."""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flgraph.errors import expect
from flgraph.report.runs import number
from flgraph.reproduce.protocols import rounds_of
from flgraph.reproduce.study import Study, in_words, logged_name
from flgraph.reproduce.table import Cell, Done


def write_figures(study: Study, done: Done, cells: Sequence[Cell], out: Path) -> list[Path]:
    """Draws what the study asks for into ``out/PAPER``.

    Most pictures need more of a run than its record in the ledger. Where a run has no folder any more, such a picture
    is left as it is.

    Returns:
        The pictures that are there.
    """
    if study.figure is None or not done:
        return []
    folder, table = out / study.paper_name, study.name.rpartition("/")[2]
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    if study.figure == "settings":
        for metric in study.metrics:
            files.append(folder / f"{_stem(study, table, metric)}.png")
            _over_settings(study, cells, metric, files[-1])
        return files
    for setting in dict.fromkeys(setting for setting, _ in done):
        whole = all("folder" in run for (where, _), runs in done.items() if where == setting for run in runs)
        for stem, draw in _pictures(study, done, setting, table):
            file = folder / f"{stem}_{_plain(setting)}.png"
            if whole:
                draw(file)
            files += [file] if file.exists() else []
    return files


def _pictures(study: Study, done: Done, setting: str, table: str) -> Iterator[tuple[str, Callable[[Path], None]]]:
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
    from flgraph.report.charts import around_center, save_png

    panels = {}
    for (where, method), results in done.items():
        if where == setting:
            clients = [result["final"]["clients"] for result in results]
            panels[method] = {
                name: statistics.fmean(number(one[name].get("mixing/divergence")) for one in clients)
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
            spread([100 * number(run["final"]["clients"][name].get(logged_name(metric))) for run in runs])
            for name in names
        ]
        for method, runs in series.items()
    }
    ylabel = f"{in_words(metric)} in percent"
    save_png(grouped_bars(names, values, ylabel=ylabel, styles=styles_for(list(values)), width=8.0), file)


def _labels(done: Done, setting: str, file: Path) -> None:
    """Classes of every client's training data, in the partition of the first run."""
    from flgraph.data.partition_plot import label_figure
    from flgraph.report.charts import save_png

    first = next(runs[0] for (where, _), runs in done.items() if where == setting)
    save_png(label_figure(first["partition"]), file)


def _predictions(done: Done, setting: str, file: Path) -> None:
    """Classes that every client predicts of the global test data after the last round, above the true ones."""
    from flgraph.data.partition_plot import share_figure
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
    methods = [method for where, method in done if where == setting]
    for method in methods:
        folder = Path(done[setting, method][0]["folder"]) / "embeddings"
        for written in sorted(folder.glob("round-*.csv"), key=lambda path: int(path.stem.removeprefix("round-"))):
            with open(written, newline="") as stream:
                rows = list(csv.DictReader(stream))
            title = written.stem.replace("-", " ")
            places = [[float(row["x"]), float(row["y"])] for row in rows]
            panels[title if len(methods) == 1 else f"{method}, {title}"] = (places, [int(row["label"]) for row in rows])
    if panels:
        save_png(embedding_panels(panels), file)


def _over_settings(study: Study, cells: Sequence[Cell], metric: str, file: Path) -> None:
    """The last round's test metric over the settings, with error bars over seeds."""
    from flgraph.report.charts import error_bars, save_png

    final = [cell for cell in cells if (cell.protocol, cell.metric) == ("final", metric)]
    series = {
        method: {cell.setting: (cell.mean, cell.std) for cell in final if cell.method == method}
        for method in dict.fromkeys(cell.method for cell in final)
    }
    figure = error_bars(series, xlabel=study.axis, ylabel=f"{in_words(metric)} in percent")
    save_png(figure, file)


def _curve(results: dict[str, Any], metric: str, mean: str) -> list[float]:
    """Percent per round from the first; NaN in rounds without evaluation."""
    return [100 * number(record.get(mean, {}).get(metric)) for record in rounds_of(results)]


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name)
