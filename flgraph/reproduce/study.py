"""A table of a paper as data: which runs it takes, and what the paper printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from flgraph.errors import InputError, expect

_HERE = Path(__file__).parent


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


@dataclass(frozen=True)
class Study:
    """A grid of settings, methods and seeds.

    Args:
        name: ``paper/table``.
        title: what the table shows.
        metric: what is reported, such as ``accuracy``; of the test split, in percent.
        rounds: communication rounds of each run.
        seeds: one run each.
        settings: name to configuration file, or to a list of command-line arguments.
        methods: the same.
        paper: setting to method to (mean, standard deviation) as printed, in percent.
    """

    name: str
    title: str
    metric: str
    rounds: int
    seeds: list[int]
    settings: dict[str, str | list[str]]
    methods: dict[str, str | list[str]]
    paper: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def runs(self) -> Iterator[Run]:
        """All runs, seed by seed, so that an unfinished study has whole tables of few seeds."""
        for seed in self.seeds:
            for setting, data in self.settings.items():
                for method, config in self.methods.items():
                    yield Run(setting, method, seed, (*_args(data), *_args(config)))

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
        return replace(
            self,
            settings={name: self.settings[name] for name in settings or self.settings},
            methods={name: self.methods[name] for name in methods or self.methods},
            seeds=list(seeds or self.seeds),
            rounds=rounds or self.rounds,
        )


def list_studies() -> list[str]:
    """Names of all studies, ``paper/table``."""
    return sorted(f"{file.parent.name}/{file.stem}" for file in _HERE.glob("*/*.yaml"))


def load_study(name: str) -> Study:
    """Reads a study by its name, or from a YAML file of the same form.

    Raises:
        InputError: there is no such study, or the file lacks or misspells a field.
    """
    file = Path(name) if name.endswith((".yaml", ".yml")) else _HERE / f"{name}.yaml"
    if not file.is_file():
        raise InputError(f"Expected study to be a YAML file or one of {', '.join(list_studies())} but got {name!r}.")
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    try:
        return Study(name=name if file.parent.parent == _HERE else file.stem, **content)
    except TypeError as error:
        raise InputError(f"Expected study {file} to have the fields of `Study` but got {error}.") from error


def _args(value: str | list[str]) -> list[str]:
    return ["-c", value] if isinstance(value, str) else [str(part) for part in value]
