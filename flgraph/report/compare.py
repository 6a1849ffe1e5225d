"""Runs that differ only in their seed become a method; methods on the same data are compared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from flgraph.errors import InputError, expect
from flgraph.report.charts import Spread, spread
from flgraph.report.settings import (
    contents_key,
    data_key,
    data_name,
    difference,
    differing,
    method_key,
    method_name,
    of_data,
    seeds,
    shown,
)
from flgraph.runs.history import lower_is_better
from flgraph.runs.reader import Run, mapping, natural, number
from flgraph.runs.results import version_of

T = TypeVar("T")

PERCENT = {
    "accuracy",
    "balanced_accuracy",
    "f1",
    "auroc",
    "auprc",
    "average_precision",
    "precision",
    "recall",
    "specificity",
    "exact_match",
}
"""Metrics that are shown in percent, as papers do."""


@dataclass(frozen=True)
class Metric:
    """What methods are compared by.

    Args:
        name: for example ``accuracy``, or with the split it is of, such as ``global_test/accuracy`` or ``val/loss``.
        lower: whether less is better.
    """

    name: str
    lower: bool = False

    @property
    def words(self) -> str:
        """``test accuracy``, ``global test accuracy``, ``validation loss``."""
        if self.name.startswith("val/"):
            return f"validation {self.bare}"
        return self.test.replace("/", " ").replace("_", " ")

    @property
    def bare(self) -> str:
        """The name without a split."""
        return self.name.rpartition("/")[2]

    @property
    def scale(self) -> float:
        """Factor from what runs write to what is shown."""
        return 100.0 if self.bare in PERCENT else 1.0

    @property
    def unit(self) -> str:
        """In brackets behind the name, with a space before; empty for none."""
        return " (%)" if self.bare in PERCENT else ""

    @property
    def test(self) -> str:
        """As runs write it."""
        return self.name if "/" in self.name else f"test/{self.name}"

    @property
    def val(self) -> str:
        """As runs write it."""
        return f"val/{self.bare}"

    @property
    def difference(self) -> str:
        """What a difference from a baseline is called: of errors a good one is below zero."""
        return "difference from" if self.lower else "gain over"

    def better(self, gain: float) -> bool:
        """Whether a difference is an improvement."""
        return gain < 0 if self.lower else gain > 0


class Method:
    """Runs that differ only in their seed.

    Args:
        runs: at least one.
        metric: what is compared.
    """

    def __init__(self, runs: Sequence[Run], metric: Metric) -> None:
        kept: dict[Any, Run] = {}
        self.repeats: list[Run] = []
        """Left out: the same seeds were run again."""
        for run in sorted(runs, key=lambda run: (run.finished, version_of(run.folder.resolve()) or 0)):
            key = str(run.folder) if run.seed is None else (run.seed, seeds(run))
            if key in kept:
                self.repeats.append(kept[key])
            kept[key] = run
        self.all = sorted(kept.values(), key=lambda run: (run.seed is None, run.seed or 0, natural(str(run.folder))))
        self.metric = metric
        self.finished = any(run.finished for run in self.all)
        self.runs = [run for run in self.all if run.finished or not self.finished]
        """What means are over: the finished runs if there are any."""
        self.rest = [run for run in self.all if run not in self.runs]
        """Runs that are not finished, where others are."""
        self.label = method_name(self.runs)
        self.flat = self.runs[0].flat

    @cached_property
    def order(self) -> tuple[int, bool, list[tuple[int, int, str]]]:
        """As the user named them, what shares nothing first."""
        return min(run.position for run in self.all), not self.shares_nothing, natural(self.label)

    @property
    def rounds(self) -> str:
        """How many rounds its runs did; of how many, if none is finished."""
        done = sorted({run.done for run in self.runs})
        text = f"{done[0]}" if len(done) == 1 else f"{done[0]}–{done[-1]}"
        planned = {run.planned for run in self.runs if run.planned}
        return text if self.finished or not planned else f"{text} of {max(planned)}"

    @property
    def planned(self) -> set[int]:
        """Rounds that its runs were to do; of one that stopped early those are more than it did."""
        return {run.planned or run.done if run.stopped_early else run.done for run in self.runs}

    @property
    def seeds(self) -> set[tuple[int | None, tuple[tuple[str, str], ...]]]:
        """Of its runs, with the seeds of their data."""
        return {(run.seed, seeds(run, "data.")) for run in self.runs}

    @property
    def versions(self) -> list[str]:
        """With what its runs were computed, each combination once."""
        texts = {", ".join(f"{k} {shown(v)}" for k, v in run.versions.items() if k != "git") for run in self.all}
        return sorted(text for text in texts if text)

    @property
    def shares_nothing(self) -> bool:
        """Whether every client trains alone."""
        aggregator = self.flat.get("trainer.aggregator", self.flat.get("aggregator"))
        return str(aggregator).rpartition(".")[2] == "Local" or (aggregator is None and self.label.lower() == "local")

    def final(self) -> Spread:
        """Test metric after the last round, over runs."""
        return self._spread(run.protocol("final")[0].get(self.metric.test, math.nan) for run in self.runs)

    def best_val(self) -> Spread:
        """Test metric of the round with the best validation metric."""
        return self._spread(run.protocol("best_val")[0].get(self.metric.test, math.nan) for run in self.runs)

    def best_test(self) -> Spread:
        """Test metric of the round in which it is best: it looks at the test data."""
        choose: Callable[[list[float]], float] = min if self.metric.lower else max
        curves = [[v for v in run.curve(self.metric.test) if math.isfinite(v)] for run in self.runs]
        return self._spread(choose(curve) if curve else math.nan for curve in curves)

    def client(self, name: str) -> Spread:
        """A client's test metric after the last round, over the runs that have it."""
        return self._known(self._of_client(run, name) for run in self.runs)

    def gain(self, baseline: Method, client: str | None = None) -> Spread:
        """Final test metric minus the baseline's: of a client, or of the mean over clients.

        Runs of the same seed, on data partitioned with the same seeds, are paired; if there are none, it is the
        difference of the means.
        """

        def value(run: Run) -> float:
            if client is not None:
                return self._of_client(run, client)
            return run.protocol("final")[0].get(self.metric.test, math.nan)

        def values(method: Method) -> dict[Any, float]:
            by_seed: dict[Any, list[float]] = {}
            for run in method.runs:
                if run.seed is not None:
                    by_seed.setdefault((run.seed, seeds(run, "data.")), []).append(value(run))
            return {key: spread(several)[0] for key, several in by_seed.items()}

        mine, other = values(self), values(baseline)
        pairs = [mine[key] - other[key] for key in mine if key in other]
        if any(math.isfinite(pair) for pair in pairs):
            return self._spread(pairs) if client is None else self._known(pairs)
        means = [spread([value(run) for run in method.runs])[0] for method in (self, baseline)]
        return (means[0] - means[1]) * self.metric.scale, math.nan

    def per_round(self, what: str) -> Spread:
        """``seconds``, ``up`` or ``down``, a mean per round, over runs."""
        return spread([run.per_round(what) for run in self.runs])

    def parameters(self, which: str) -> float:
        """Parameters of a client's model (``total``, the mean over clients) or those it shares; NaN if not recorded."""
        for run in self.runs:
            counts = [number(mapping(of).get(which)) for of in mapping(run.results.get("parameters")).values()]
            if counts and all(math.isfinite(count) for count in counts):
                return math.fsum(counts) / len(counts)
        return math.nan

    def curves(self, metric: str, runs: Sequence[Run] | None = None) -> list[list[float]]:
        """A metric per run and round, as it is shown."""
        scale = Metric(metric.rpartition("/")[2]).scale
        chosen = self.runs if runs is None else runs
        return [[scale * value for value in run.curve(metric)] for run in chosen]

    def over_bytes(self) -> tuple[list[float], list[float]]:
        """Megabytes sent so far and the test metric then, means over runs, for every round with a metric."""
        megabytes: dict[int, list[float]] = {}
        values: dict[int, list[float]] = {}
        for run in self.runs:
            sent = 0.0
            for record in run.rounds:
                sent += sum(part for part in (record.up, record.down) if math.isfinite(part))
                value = record.mean.get(self.metric.test, math.nan)
                if math.isfinite(value):
                    megabytes.setdefault(record.number, []).append(sent / 1e6)
                    values.setdefault(record.number, []).append(self.metric.scale * value)
        rounds = sorted(values)
        return [spread(megabytes[r])[0] for r in rounds], [spread(values[r])[0] for r in rounds]

    def _of_client(self, run: Run, client: str) -> float:
        return run.protocol("final")[1].get(client, {}).get(self.metric.test, math.nan)

    def _spread(self, values: Iterable[float]) -> Spread:
        """NaN where a run has no value: a mean over those that did not diverge would be another method's."""
        found = list(values)
        return self._known(found if all(map(math.isfinite, found)) else [])

    def _known(self, values: Iterable[float]) -> Spread:
        mean, std = spread(list(values))
        return mean * self.metric.scale, std * self.metric.scale


@dataclass(frozen=True)
class Comparison:
    """Methods on the same data.

    Args:
        title: what the data is called.
        metric: what they are compared by.
        methods: in the order in which they are shown.
        baseline: what gains are over: the finished method that shares nothing; ``None`` if there is none.
        clients: all of them.
    """

    title: str
    metric: Metric
    methods: list[Method]
    baseline: Method | None
    clients: list[str]

    @property
    def shown(self) -> list[Method]:
        """The finished methods, or all if none is."""
        return [method for method in self.methods if method.finished] or self.methods

    @property
    def compared(self) -> list[Method]:
        """Methods with a gain over the baseline."""
        return [m for m in self.methods if self.baseline is not None and m is not self.baseline and m.finished]

    def unlike(self, method: Method) -> dict[str, str]:
        """In what a finished method differs from most: ``seeds`` or ``rounds``, with what most of them have."""
        finished = [other for other in self.methods if other.finished]
        if not method.finished or len(finished) < 2:
            return {}
        found = {}
        usual = _most_common([frozenset(other.seeds) for other in finished])
        if method.seeds != usual:
            found["seeds"] = ", ".join(str(seed) for seed in sorted({str(seed) for seed, _ in usual}, key=natural))
        rounds = _most_common([frozenset(other.planned) for other in finished])
        if method.planned != rounds:
            found["rounds"] = "–".join(map(str, sorted({min(rounds), max(rounds)})))
        return found

    def differences(self) -> dict[str, list[str]]:
        """Settings that differ between methods, each with the methods' values."""
        return {
            key: [shown(method.flat.get(key)) for method in self.methods]
            for key in differing([method.flat for method in self.methods])
        }


def compare(runs: Sequence[Run], name: str | None = None) -> list[Comparison]:
    """Groups runs by data and by method.

    Args:
        runs: at least one.
        name: the metric, without the split if that is ``test``. When ``None``, every group takes its own: the accuracy
            in the test, or else in other tests, or what decided the best round, or what there is; of runs without any
            test, in validation. Runs on the same data that have no metric in common are groups of their own.

    Raises:
        InputError: no run has the metric, or any.
    """
    names = sorted({name for run in runs for name in _names_of(run)})
    if not names:
        wanted = "the folder of a run with metrics called `test/...` or `val/...`, or above one,"
        raise InputError("RUN", wanted, f"{len(runs)} without")
    expect(name is None or name in names, "--metric", f"one of {', '.join(names)}", name)
    # Settings say what data it is; where checksums show that different settings give the same data, it is one.
    same = {data_key(run): contents for run in runs if (contents := contents_key(run))}
    by_data = _grouped(runs, lambda run: same.get(data_key(run), data_key(run)))
    by_metric = [[(here, name)] if name else _by_metric(here) for here in by_data]
    return _told_apart([_comparison(group, metric) for groups in by_metric for group, metric in groups])


def _names_of(run: Run) -> set[str]:
    """What a run measured in tests; of one without any, in validation."""
    tested = {name.removeprefix("test/") for name in run.metrics if name.partition("/")[0].endswith("test")}
    return tested or {name for name in run.metrics if name.startswith("val/")}


def _by_metric(runs: Sequence[Run]) -> list[tuple[list[Run], str]]:
    """Runs with the metric that all of them have; the fewest groups of such, those without any metric in the first."""
    tested = {id(run): _names_of(run) for run in runs}
    rest, groups = [run for run in runs if tested[id(run)]], list[tuple[list[Run], str]]()
    while rest:
        names = sorted({name for run in rest for name in tested[id(run)]})
        monitored = [run.monitor[0] for run in rest]
        bare = [name.partition("/")[2] for name in monitored]
        usual = dict.fromkeys(["accuracy", "global_test/accuracy", *bare, *monitored, *names])
        known = [name for name in usual if name in names]
        # Losses of unlike models cannot be compared: they are the last that is thought of.
        known = [name for name in known if name.rpartition("/")[2] != "loss"] or known
        having = {name: [run for run in rest if name in tested[id(run)]] for name in known}
        name = max(having, key=lambda name: len(having[name]))  # of several, the most usual
        groups.append((having[name], name))
        rest = [run for run in rest if run not in having[name]]
    first, name = groups[0] if groups else ([], "accuracy")
    return [([run for run in runs if run in first or not tested[id(run)]], name), *groups[1:]]


def _comparison(runs: Sequence[Run], name: str) -> Comparison:
    """Compares runs on the same data."""
    monitored = {run.monitor for run in runs}
    modes = {mode for key, mode in monitored if key.partition("/")[2] == name.removeprefix("val/")}
    metric = Metric(name, modes == {"min"} or lower_is_better(name))
    methods = [Method(group, metric) for group in _grouped(runs, method_key)]
    _rename(methods)
    methods.sort(key=lambda method: method.order)
    alone = [method for method in methods if method.shares_nothing and method.finished]
    # Of several, the one that the others differ least from: an ablation of one method is nobody else's baseline.
    models = Counter(str(method.flat.get("model")) for method in methods)
    alone.sort(key=lambda m: (-models[str(m.flat.get("model"))], m.label.lower() != "local", len(m.label)))
    clients = list(dict.fromkeys(client for method in methods for run in method.all for client in run.clients))
    title = data_name(methods[0].runs[0], len(clients))
    return Comparison(title, metric, methods, alone[0] if alone else None, clients)


def _told_apart(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Data of the same name gets what makes it differ."""
    result = []
    for part in comparisons:
        alike = [of_data(other.methods[0].flat) for other in comparisons if other.title == part.title]
        if len(alike) > 1:
            suffix = difference(of_data(part.methods[0].flat), alike)
            if len({other.metric for other in comparisons if other.title == part.title}) > 1:
                suffix = suffix or part.metric.words
            suffix = suffix or f"{part.clients[0] if part.clients else ''} …"
            part = replace(part, title=f"{part.title} ({suffix})")
        result.append(part)
    return result


def _rename(methods: Sequence[Method]) -> None:
    """Methods of the same name get what makes them differ."""
    for same in _grouped(methods, lambda method: method.label):
        if len(same) > 1:
            for method in same:
                if suffix := difference(method.flat, [other.flat for other in same]):
                    method.label += f" ({suffix})"
            for count, method in enumerate(same, start=1):
                if [other.label for other in same].count(method.label) > 1:
                    method.label += f" #{count}"


def _grouped(items: Iterable[T], key: Callable[[T], str]) -> list[list[T]]:
    """Those with the same key together, in the order in which they first come."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _most_common(groups: Sequence[frozenset[T]]) -> frozenset[T]:
    """Of several, the largest."""
    return max(groups, key=lambda group: (groups.count(group), len(group)))
