"""A table or figure of a paper as data: which runs it takes, and what the paper printed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from flgraph.errors import InputError, expect
from flgraph.reproduce.check import check_study
from flgraph.reproduce.settings import digest, read_yaml, resolve
from flgraph.runs.reader import natural

_HERE = Path(__file__).resolve().parent

_NOT_GIVEN = ("name", "source", "cut_short")
"""Fields of a study that its file does not hold."""

FigureKind = Literal["convergence", "settings", "divergence", "clients", "labels", "predictions", "embeddings"]
"""``convergence``: test metric over rounds, a picture per setting; ``settings``: the last round's over the settings;
``divergence``: distance of every client's weights to the server's after the last round (FedEgo, Figure 5); ``clients``:
every client's test metric after the last round, a picture per setting (FedEgo, Figure 6); ``labels``: classes of every
client in the partition of the first run (FedEgo, Figure 7 (a)); ``predictions``: classes that every client predicts
after the last round of the first run, from :class:`flgraph.callbacks.PredictedLabels` (FedEgo, Figure 7 (b));
``embeddings``: what :class:`flgraph.callbacks.EmbeddingPictures` wrote in the first seed's run (FCLG, Figure 3)."""


Average = Literal["clients", "samples"]
"""Whether a mean over clients is unweighted, or weighted by the numbers of samples that each measured on."""

Arguments = str | list[str]
"""A configuration file, or arguments of the command line."""


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
        """Configuration files and further arguments in short, such as ``chem+fedstar+local_epochs=2``."""
        name = "+".join(_short(self.args))
        return name if len(name) <= 80 else name[:80].rstrip("+=.-_")

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
        metric: what is reported, in percent: ``accuracy`` of the test split, or another one as runs log it, such as
            ``global_test/accuracy``; or a list of these. ``partition/NAME`` is a statistic of the partition, as
            ``results.json`` has it, as it is: mean over clients.
        rounds: communication rounds of each run; the most of them where runs stop early.
        seeds: one run each.
        settings: name to configuration file, or to a list of command-line arguments, in which ``{seed}`` stands for the
            run's seed (``--data.partition_seed={seed}``: another partition for each).
        methods: the same; where a method's arguments depend on the setting, setting to either.
        paper: setting to method to (mean, standard deviation) as printed, in percent; a cell without a printed
            deviation has the mean alone, one that is not in the paper none. Where there are several metrics, metric to
            all of this.
        average: how clients are averaged, ``clients`` (unweighted) or ``samples``.
        method_rounds: method to its rounds, for those that need others.
        figure: a picture to draw, too.
        axis: what the settings are, as a label.
        protocols: further protocols that its tables show, ``best_client``.
        notes: what a reader should know, a sentence each.
        values: name to what stands for ``{name}`` in arguments: setting to seed to value; ``other`` stands for seeds
            that are not named.
        source: the file that it is from, where it is no packaged one; set by :func:`load_study`.
        cut_short: whether its rounds are others than it was written with; set by :meth:`cut`.
    """

    name: str
    title: str
    metric: str | list[str]
    rounds: int
    seeds: list[int]
    settings: dict[str, Arguments]
    methods: dict[str, Arguments | dict[str, Arguments]]
    paper: dict[str, Any] = field(default_factory=dict)
    average: Average = "clients"
    method_rounds: dict[str, int] = field(default_factory=dict)
    figure: FigureKind | None = None
    axis: str = "setting"
    protocols: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    values: dict[str, dict[str, dict[int | str, Any]]] = field(default_factory=dict)
    source: str = ""
    cut_short: bool = False

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
            InputError: the method has no arguments for this setting, or a value none for this setting and seed.
        """
        chosen = self.methods[method]
        if isinstance(chosen, dict):
            expect(setting in chosen, f"methods.{method}", f"arguments for {setting}, too,", list(chosen))
            chosen = chosen[setting]
        args = (*_args(self.settings[setting]), *_args(chosen))
        return Run(setting, method, seed, tuple(self._filled(arg, setting, seed) for arg in args))

    def _filled(self, arg: str, setting: str, seed: int) -> str:
        for name, values in self.values.items():
            if f"{{{name}}}" in arg:
                of_seed = values.get(setting, {})
                value = of_seed.get(seed, of_seed.get("other"))
                expect(value is not None, f"values.{name}", f"given for {setting} with seed {seed}, too,", of_seed)
                arg = arg.replace(f"{{{name}}}", str(value))
        return arg.replace("{seed}", str(seed))

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
                expect(name in known, f"--{field_name}", f"among {', '.join(known)}", name)
        expect(rounds is None or rounds >= 1, "--rounds", "1 or more", rounds)
        expect(len(set(seeds or ())) == len(seeds or ()), "--seeds", "different numbers", list(seeds or ()))
        return replace(
            self,
            settings={name: self.settings[name] for name in settings or self.settings},
            methods={name: self.methods[name] for name in methods or self.methods},
            seeds=list(seeds or self.seeds),
            rounds=rounds or self.rounds,
            method_rounds={} if rounds else self.method_rounds,
            cut_short=self.cut_short or rounds is not None,
        )


PARTITION = "partition/"
"""What the names of statistics of the partition begin with, where metrics are named."""


def logged_name(metric: str) -> str:
    """A metric as runs log it: ``accuracy`` is that of the test split."""
    return metric if "/" in metric else f"test/{metric}"


def in_words(metric: str) -> str:
    """``test accuracy``, ``global test accuracy``."""
    return logged_name(metric).replace("/", " ").replace("_", " ")


def list_studies() -> list[str]:
    """Names of all studies, ``paper/table``, in the order of the paper."""
    names = [f"{file.parent.name}/{file.stem}" for file in _HERE.glob("*/*.yaml")]
    return sorted(names, key=natural)


def load_study(name: str) -> Study:
    """Reads a study by its name, or from a YAML file of the same form.

    A file may begin with ``extends: OTHER``, a study beside it, and give only what differs from that.

    Raises:
        InputError: there is no such study, or the file lacks or misspells a field.
    """
    file = Path(name) if name.endswith((".yaml", ".yml")) else _HERE / f"{name}.yaml"
    if not file.is_file():
        raise InputError(f"Expected `study` to be a YAML file or one of {', '.join(list_studies())} but got {name!r}.")
    content, extends = _read(file)
    known = [item.name for item in fields(Study) if item.name not in _NOT_GIVEN]
    for key in content:
        expect(key in known, str(file), f"a study with fields among {', '.join(sorted(known))}", key)
    packaged = file.resolve().parent.parent == _HERE
    try:
        study = Study(
            name=f"{file.parent.name}/{file.stem}" if packaged else file.stem,
            source="" if packaged else name,
            **content,
        )
    except TypeError as error:
        raise InputError(f"Expected study {file} to have the fields of `Study` but got {error}.") from error
    check_study(study, get_args(FigureKind), get_args(Average), extends)
    return study


def _read(file: Path, below: tuple[Path, ...] = ()) -> tuple[dict[str, Any], bool]:
    """A study's fields, and whether some are another's."""
    content = read_yaml(file)
    expect(isinstance(content, dict), str(file), "a YAML mapping", type(content).__name__)
    content = dict(content)
    base = content.pop("extends", None)
    if base is None:
        return dict(content), False
    other = file.with_name(f"{base}.yaml")
    beside = other.is_file() and other not in (file, *below)
    expect(beside, f"extends in {file}", "the name of a study beside it that does not extend it", base)
    return {**_read(other, (*below, file))[0], **content}, True


def _args(value: Arguments) -> list[str]:
    return ["-c", value] if isinstance(value, str) else [str(part) for part in value]


def _short(args: Sequence[str]) -> Iterator[str]:
    for arg in args:
        if arg in ("-c", "--config"):
            continue
        arg = re.sub(r"^(-c|--config)=", "", arg)
        text = Path(arg).stem if arg.endswith((".yaml", ".yml")) else re.sub(r"^--(?:\w+\.)*", "", arg)
        yield re.sub(r"[^\w.=-]+", "_", text).strip("_")
