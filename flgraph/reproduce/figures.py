"""The pictures of a study, as PNG."""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flgraph.errors import expect
from flgraph.federation.records import read_records
from flgraph.report.runs import number
from flgraph.reproduce.study import Study, in_words, logged_name
from flgraph.reproduce.table import Cell, Done


def write_figures(study: Study, done: Done, cells: Sequence[Cell], out: Path) -> list[Path]:
    """Draws what the study asks for into ``out/PAPER``."""
    if study.figure is None or not done:
        return []
    folder, table = out / study.paper_name, study.name.rpartition("/")[2]
    folder.mkdir(parents=True, exist_ok=True)
    settings = list(dict.fromkeys(setting for setting, _ in done))
    if study.figure == "divergence":
        return [_divergence(done, setting, folder / f"{table}_{_plain(setting)}.png") for setting in settings]
    if study.figure == "labels":
        return [_labels(done, setting, folder / f"{table}_{_plain(setting)}.png") for setting in settings]
    if study.figure == "predictions":
        files = [folder / f"{table}_{_plain(setting)}.png" for setting in settings]
        return [_predictions(done, setting, file) for setting, file in zip(settings, files, strict=True)]
    if study.figure == "embeddings":
        drawn = [_embeddings(done, setting, folder / f"{table}_{_plain(setting)}.png") for setting in settings]
        return [file for file in drawn if file is not None]
    several = len(study.metrics) > 1
    files = []
    for metric in study.metrics:
        stem = f"{table}_{_plain(metric)}" if several else table
        if study.figure == "settings":
            files.append(_over_settings(study, cells, metric, folder / f"{stem}.png"))
            continue
        draw = _clients if study.figure == "clients" else _convergence
        files += [draw(study, done, setting, metric, folder / f"{stem}_{_plain(setting)}.png") for setting in settings]
    return files


def _convergence(study: Study, done: Done, setting: str, metric: str, file: Path) -> Path:
    """A test metric over rounds, mean over clients, with bands over seeds."""
    from flgraph.report.charts import learning_curves, save_png  # matplotlib loads slowly

    series = {
        method: [_curve(result, logged_name(metric), study.mean_key) for result in results]
        for (where, method), results in done.items()
        if where == setting
    }
    figure = learning_curves(series, ylabel=f"{in_words(metric)} in percent", title=setting, size=(7.0, 4.6))
    save_png(figure, file)
    return file


def _divergence(done: Done, setting: str, file: Path) -> Path:
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
    return file


def _clients(study: Study, done: Done, setting: str, metric: str, file: Path) -> Path:
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
    return file


def _labels(done: Done, setting: str, file: Path) -> Path:
    """Classes of every client's training data, in the partition of the first run."""
    from flgraph.data.partition_plot import label_figure
    from flgraph.report.charts import save_png

    first = next(runs[0] for (where, _), runs in done.items() if where == setting)
    save_png(label_figure(first["partition"]), file)
    return file


def _predictions(done: Done, setting: str, file: Path) -> Path:
    """Classes that every client predicts of the global test data after the last round, above the true ones."""
    from flgraph.data.partition_plot import share_figure
    from flgraph.report.charts import save_png

    first = next(runs[0] for (where, _), runs in done.items() if where == setting)
    rows = {name: _shares(metrics, "predicted") for name, metrics in first["final"]["clients"].items()}
    rows["true classes"] = _shares(next(iter(first["final"]["clients"].values())), "true")
    save_png(share_figure(rows, "share of the global test nodes", "classes that every client predicts"), file)
    return file


def _shares(metrics: dict[str, Any], name: str) -> list[float]:
    shares: list[float] = []
    while (key := f"global_test/{name}_{len(shares)}") in metrics:
        shares.append(number(metrics[key]))
    expect(len(shares) > 0, "study", "of runs with callback flgraph.callbacks.PredictedLabels", "one without")
    return shares


def _embeddings(done: Done, setting: str, file: Path) -> Path | None:
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
    if not panels:
        return None
    save_png(embedding_panels(panels), file)
    return file


def _over_settings(study: Study, cells: Sequence[Cell], metric: str, file: Path) -> Path:
    """The last round's test metric over the settings, with error bars over seeds."""
    from flgraph.report.charts import error_bars, save_png

    final = [cell for cell in cells if (cell.protocol, cell.metric) == ("final", metric)]
    series = {
        method: {cell.setting: (cell.mean, cell.std) for cell in final if cell.method == method}
        for method in dict.fromkeys(cell.method for cell in final)
    }
    figure = error_bars(series, xlabel=study.axis, ylabel=f"{in_words(metric)} in percent")
    save_png(figure, file)
    return file


def _curve(results: dict[str, Any], metric: str, mean: str) -> list[float]:
    """Percent per round from the first; NaN in rounds without evaluation."""
    records = read_records(Path(results["folder"]) / "history.jsonl")
    return [100 * number(record.get(mean, {}).get(metric)) for record in records]


def _plain(name: str) -> str:
    return re.sub(r"\W+", "_", name)
