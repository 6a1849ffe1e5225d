"""A table or figure of a paper as data: which runs it takes, and what the paper printed."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from flgraph.cli.parser import suggestion
from flgraph.configs import find_config
from flgraph.errors import InputError, expect
from flgraph.reproduce.settings import digest, read_yaml, resolve
from flgraph.runs.history import lower_is_better
from flgraph.runs.reader import natural

_HERE = Path(__file__).resolve().parent

LISTED = "a study that `flgraph reproduce --list` shows"
"""What is expected of a name; there are some sixty."""

FigureKind = Literal["convergence", "settings", "divergence", "clients", "labels", "predictions", "embeddings"]
"""``convergence``: test metric over rounds, a picture per setting; ``settings``: the last round's over the settings;
``divergence``: distance of every client's weights to the server's after the last round (FedEgo, Figure 5); ``clients``:
every client's test metric after the last round, a picture per setting (FedEgo, Figure 6); ``labels``: classes of every
client in the partition of the first run (FedEgo, Figure 7 (a)); ``predictions``: classes that every client predicts
after the last round of the first run, from :class:`flgraph.callbacks.PredictedLabels` (FedEgo, Figure 7 (b));
``embeddings``: what :class:`flgraph.callbacks.EmbeddingPictures` wrote in the first seed's run (FCLG, Figure 3)."""

Average = Literal["clients", "samples"]
"""Whether a mean over clients is unweighted, or weighted by the numbers of samples that each measured on."""


@dataclass(frozen=True)
class Run:
    """One run of a study.

    Args:
        setting: column of the table.
        method: row of the table.
        seed: the run's seed.
        args: arguments of ``flgraph fit`` that make it, without seed, rounds and folders.
    """

    setting: str
    method: str
    seed: int
    args: tuple[str, ...]

    @property
    def name(self) -> str:
        """Setting and method, as a file may be called, such as ``CHEM-FedStar``."""
        return "-".join(re.sub(r"[^\w.+-]+", "_", part).strip("_") for part in (self.setting, self.method))

    @property
    def digest(self) -> str:
        """Tells runs apart whose configuration files and arguments come to something else."""
        return digest(resolve(self.args))


@dataclass(frozen=True)
class Study:
    """A grid of settings, methods and seeds.

    Args:
        name: ``paper/table``.
        title: what it shows.
        metric: what is reported: ``accuracy`` of the test split, or another one as runs log it, such as
            ``global_test/accuracy``; or a list of these. In percent, but errors such as ``rmse`` in the unit of what is
            predicted. ``partition/NAME`` is a statistic of the partition, as ``results.json`` has it: mean over
            clients.
        rounds: communication rounds of each run; the most of them where runs stop early.
        seeds: one run each.
        settings: name to configuration files and further arguments of ``flgraph fit``, in one line as in a shell; files
            need no ``-c``. ``{seed}`` stands for the run's seed (``--data.partition_seed={seed}``: another partition
            for each), ``{setting}`` for the setting's name, and ``{NAME}`` for one of ``values``.
        methods: the same; they come after those of the setting.
        paper: setting to method to (mean, standard deviation) as printed, in the metric's unit; a cell without a
            printed deviation has the mean alone, one that is not in the paper none. Where there are several metrics,
            metric to all of this.
        average: how clients are averaged, ``clients`` (unweighted) or ``samples``.
        method_rounds: method to its rounds, for those that need others.
        figure: a picture to draw, too.
        axis: what the settings are, as a label.
        protocols: further protocols that its tables show, ``best_client``.
        notes: what a reader should know, a sentence each.
        leaderboard: whether it compares whole methods on whole data sets, so that the leaderboard's picture has it; a
            study that extends it does not by that.
        base: the method from which tables show every other's difference, over the seeds that both have; none if empty.
        values: name to what stands for ``{name}`` in arguments: text; or setting to text; or setting to seed to text.
            ``other`` stands for settings and seeds that are not named. Values may hold the names of later ones.
        source: the file that it is from, where it is no packaged one; set by :func:`load_study`.
        cut_short: whether its rounds are others than it was written with; set by :meth:`cut`.
    """

    name: str
    title: str
    metric: str | list[str]
    rounds: int
    seeds: list[int]
    settings: dict[str, str]
    methods: dict[str, str]
    paper: dict[str, Any] = field(default_factory=dict)
    average: Average = "clients"
    method_rounds: dict[str, int] = field(default_factory=dict)
    figure: FigureKind | None = None
    axis: str = "setting"
    protocols: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    leaderboard: bool = False
    base: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    cut_short: bool = False

    @property
    def table(self) -> str:
        """Name of the files of its table: another one where it has other rounds than it was written with."""
        own = self.name.rpartition("/")[2]
        return f"{own}_{self.rounds}_rounds" if self.cut_short else own

    @property
    def metrics(self) -> list[str]:
        """Names of what is reported."""
        return [self.metric] if isinstance(self.metric, str) else list(self.metric)

    def printed(self, metric: str, setting: str, method: str) -> tuple[float, float]:
        """Mean and standard deviation in the paper; NaN for what it does not tell."""
        paper = self.paper if isinstance(self.metric, str) else self.paper.get(metric, {})
        numbers = [*paper.get(setting, {}).get(method, []), math.nan, math.nan]
        return float(numbers[0]), float(numbers[1])

    @property
    def mean_key(self) -> str:
        """Under which name records and results have the mean over clients that is reported."""
        return "mean" if self.average == "clients" else "weighted_mean"

    def rounds_of(self, method: str) -> int:
        """Communication rounds of a method's runs."""
        return self.method_rounds.get(method, self.rounds)

    @property
    def paper_name(self) -> str:
        """What stands before the slash; empty for a study of the user's own."""
        return self.name.rpartition("/")[0]

    def runs(self) -> Iterator[Run]:
        """All runs, seed by seed, so that an unfinished study has whole tables of few seeds."""
        for seed in self.seeds:
            for setting in self.settings:
                for method in self.methods:
                    yield self.run(setting, method, seed)

    def run(self, setting: str, method: str, seed: int) -> Run:
        """The run of one cell.

        Raises:
            InputError: a value is not given for this setting and seed, or comes after one that names it.
        """
        line = f"{self.settings[setting]} {self.methods[method]}"
        for name, value in {**self.values, "setting": setting, "seed": seed}.items():
            if f"{{{name}}}" in line:
                for key in (setting, seed):
                    value = value.get(key, value.get("other")) if isinstance(value, dict) else value
                expect(
                    value is not None, f"values.{name}", f"given for {setting} with seed {seed}", self.values.get(name)
                )
                line = line.replace(f"{{{name}}}", str(value))
        left = [name for name in self.values if f"{{{name}}}" in line]
        expect(not left, "values", "in an order in which each comes before those that it names", left)
        return Run(setting, method, seed, _words(line))

    def cut(
        self,
        settings: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        rounds: int | None = None,
    ) -> Study:
        """The same study with fewer settings, methods, seeds or rounds.

        Raises:
            InputError: a setting or method is not in the study, or ``rounds`` is not positive.
        """
        for field_name, wanted, known in (("settings", settings, self.settings), ("methods", methods, self.methods)):
            for name in wanted or ():
                if name not in known:
                    got = f"'{name}'{suggestion(name, known)}"
                    raise InputError(f"--{field_name}", f"among {', '.join(known)}", got)
        expect(rounds is None or rounds >= 1, "--rounds", "1 or more", rounds)
        expect(len(set(seeds or ())) == len(seeds or ()), "--seeds", "different numbers", list(seeds or ()))
        return replace(
            self,
            settings={name: self.settings[name] for name in settings or self.settings},
            methods={name: self.methods[name] for name in methods or self.methods},
            base=self.base if self.base in (methods or self.methods) else "",
            seeds=list(seeds or self.seeds),
            rounds=rounds or self.rounds,
            method_rounds={} if rounds else self.method_rounds,
            cut_short=self.cut_short or rounds not in (None, self.rounds) or bool(rounds and self.method_rounds),
        )


PARTITION = "partition/"
"""What the names of statistics of the partition begin with, where metrics are named."""


def logged_name(metric: str) -> str:
    """A metric as runs log it: ``accuracy`` is that of the test split."""
    return metric if "/" in metric else f"test/{metric}"


def in_words(metric: str) -> str:
    """``test accuracy``, ``global test accuracy``."""
    return logged_name(metric).replace("/", " ").replace("_", " ")


def unit_of(metric: str) -> int:
    """What values are multiplied by: 100 where they are told in percent, 1 for errors and statistics."""
    return 1 if metric.startswith(PARTITION) or lower_is_better(metric) else 100


def with_unit(metric: str) -> str:
    """``test accuracy in percent``, ``test rmse``."""
    return in_words(metric) + (" in percent" if unit_of(metric) == 100 else "")


def digits_of(metric: str, percent: int) -> int:
    """How many digits after the point are shown: ``percent`` of those, three of errors."""
    return percent if unit_of(metric) == 100 else 3


def list_studies() -> list[str]:
    """Names of all studies, ``paper/table``, in the order of the paper."""
    names = [f"{file.parent.name}/{file.stem}" for file in _HERE.glob("*/*.yaml")]
    return sorted(names, key=natural)


def load_study(name: str) -> Study:
    """Reads a study by its name, without its paper's where only one is called so, or from a YAML file of the same form.

    A file may begin with ``extends: OTHER``, a study beside it or ``PAPER/TABLE``, and give only what differs from
    that. Of its settings and methods it may name some in a list; ``values`` are added to the other's.

    Raises:
        InputError: there is no such study, or the file lacks or misspells a field.
    """
    named = [known for known in list_studies() if name in (known, known.rpartition("/")[2])]
    file = Path(name) if name.endswith((".yaml", ".yml")) else _HERE / f"{named[0] if len(named) == 1 else name}.yaml"
    if not file.is_file():
        raise InputError("study", f"a YAML file or {LISTED}", f"'{name}'{suggestion(name, list_studies())}")
    content = _read(file)
    known = {item.name for item in fields(Study)} - {"name", "source", "cut_short"}
    for key in content:
        expect(key in known, str(file), f"a study with fields among {', '.join(sorted({*known, 'extends'}))}", key)
    packaged = file.resolve().parent.parent == _HERE
    content["name"] = f"{file.parent.name}/{file.stem}" if packaged else file.stem
    lacking = [own.name for own in fields(Study) if own.default is own.default_factory and own.name not in content]
    expect(not lacking, str(file), f"a study with {', '.join(lacking)}", "one without")
    study = Study(**content, source="" if packaged else name)
    _check(study)
    return study


def _read(file: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A study's fields, some of which may be another's."""
    read = read_yaml(file)
    expect(isinstance(read, dict), str(file), "a YAML mapping", type(read).__name__)
    content = dict(read)
    base = content.pop("extends", None)
    if base is None:
        return content
    path = _HERE / f"{base}.yaml" if "/" in str(base) else file.with_name(f"{base}.yaml")
    found = path.is_file() and path not in (file, *below)
    expect(found, f"extends in {file}", "a study beside it, or another paper's, that does not extend it", base)
    other = _read(path, (*below, file))
    for name in ("settings", "methods"):
        if isinstance(content.get(name), list):
            for one in content[name]:
                expect(one in other[name], name, f"among those of {base}: {', '.join(other[name])}", one)
            content[name] = {one: other[name][one] for one in content[name]}
    if isinstance(content.get("values"), dict):
        content["values"] = {**other.get("values", {}), **content["values"]}
    result = {**other, "leaderboard": False, "base": "", **content}
    if "paper" not in content:
        levels = [result[name] for name in ("metric", "settings", "methods")]
        result["paper"] = _part(other.get("paper", {}), *levels[isinstance(levels[0], str) :])
    return result


def _part(paper: dict[str, Any], names: Any, *below: Any) -> dict[str, Any]:
    """What a paper printed under these names, and below them under others."""
    return {name: _part(part, *below) if below else part for name, part in paper.items() if name in names}


_SET_BY_THE_STUDY = re.compile(r"--(trainer\.(rounds|name|default_root_dir)|seed_everything|ckpt_path)\b")


@cache  # runs of all seeds have the same lines
def _words(line: str) -> tuple[str, ...]:
    """The arguments of a line, with ``-c`` before every configuration file."""
    words = list[str]()
    for before, word in pairwise(["", *shlex.split(line)]):
        if not (before.startswith("-") and "=" not in before) and re.fullmatch(r"[^-].*\.ya?ml", word):
            words.append("-c")
        words.append(word)
    return tuple(words)


def _check(study: Study) -> None:
    """Refuses a study with a field that cannot be used, before anything is run."""
    for name, sound, expected in _forms(study):
        expect(sound, name, expected, getattr(study, name))
    for where, name, line in ((w, *item) for w in ("settings", "methods") for item in getattr(study, w).items()):
        expect(isinstance(name, str), f"a name in {where}", "text, in quotes where it is a number,", name)
        expect("," not in name, f"a name in {where}", "without a comma, which stands between names,", name)
        expect("|" not in name, f"a name in {where}", "without `|`, which stands between columns,", name)
        expect("{" not in name, f"a name in {where}", "without `{`: `values` stand in arguments only,", name)
        expect(isinstance(line, str), f"{where}.{name}", "arguments of `flgraph fit` in one line", line)
        try:
            words = [word.rpartition("=")[2] for word in _words(line) if "{" not in word]
        except ValueError as error:
            raise InputError(f"{where}.{name}", "a line that a shell could read", f"{line!r} ({error})") from error
        for word in _words(line):
            own = _SET_BY_THE_STUDY.match(word)
            wanted = "without what the study sets itself (`rounds`, `method_rounds`, `seeds`, folders),"
            expect(own is None, f"{where}.{name}", wanted, word)
        for word in words:
            there = not word.endswith((".yaml", ".yml")) or find_config(word).is_file()
            expect(there, f"{where}.{name}", "arguments with configuration files that exist", word)
    for method, rounds in study.method_rounds.items():
        expect(method in study.methods, "method_rounds", f"of methods among {', '.join(study.methods)}", method)
        expect(_whole(rounds, 1), f"method_rounds.{method}", "a positive integer", rounds)
    for name, value in study.values.items():
        expect(
            not isinstance(value, list),
            f"values.{name}",
            "text, or a mapping of settings, or of seeds, to it (each value to be tried is a method of its own),",
            value,
        )
    if isinstance(study.metric, str):
        _check_paper(study, "paper", study.paper)
    else:
        for metric, paper in study.paper.items():
            expect(metric in study.metric, "paper", f"of metrics among {', '.join(study.metric)}", metric)
            _check_paper(study, f"paper.{metric}", paper)


def _forms(study: Study) -> Iterator[tuple[str, bool, str]]:
    """Fields, whether each has the form that it should have, and which."""
    for name in ("title", "axis"):
        yield name, isinstance(getattr(study, name), str), "text"
    named = isinstance(study.metric, str) or _texts(study.metric)
    yield "metric", bool(study.metric) and named, "the name of a metric or a list of such"
    yield "rounds", _whole(study.rounds, 1), "a positive integer"
    seeds = study.seeds if isinstance(study.seeds, list) else []
    different = bool(seeds) and all(_whole(seed, 0) for seed in seeds) and len(set(seeds)) == len(seeds)
    yield "seeds", different, "a list of different whole numbers"
    for name in ("settings", "methods"):
        content = getattr(study, name)
        yield name, isinstance(content, dict) and bool(content), "names with arguments, one or more,"
    for name in ("paper", "method_rounds", "values"):
        yield name, isinstance(getattr(study, name), dict), "a mapping"
    yield "average", study.average in get_args(Average), f"one of {', '.join(get_args(Average))}"
    only = isinstance(study.protocols, list) and all(protocol == "best_client" for protocol in study.protocols)
    yield "protocols", only, "best_client, or none, in a list,"
    yield "notes", _texts(study.notes), "a list of sentences"
    yield "base", study.base in ("", *study.methods), f"one of {', '.join(map(str, study.methods))}"
    yield "leaderboard", isinstance(study.leaderboard, bool), "true or false"
    yield "figure", study.figure in (None, *get_args(FigureKind)), f"one of {', '.join(get_args(FigureKind))}"


def _check_paper(study: Study, where: str, paper: Any) -> None:
    """Printed numbers of one metric: setting to method to mean, and perhaps deviation."""
    expect(isinstance(paper, dict), where, "a mapping of settings", paper)
    for setting, printed in paper.items():
        expect(setting in study.settings, where, f"of settings among {', '.join(study.settings)}", setting)
        expect(isinstance(printed, dict), f"{where}.{setting}", "a mapping of methods", printed)
        for method, numbers in printed.items():
            among = f"of methods among {', '.join(study.methods)}"
            expect(method in study.methods, f"{where}.{setting}", among, method)
            listed = isinstance(numbers, list) and 1 <= len(numbers) <= 2
            sound = listed and all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers)
            expect(sound, f"{where}.{setting}.{method}", "[mean] or [mean, standard deviation]", numbers)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)
