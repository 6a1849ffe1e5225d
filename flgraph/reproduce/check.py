"""What a study's file may hold, checked before anything is run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flgraph.configs import find_config
from flgraph.errors import expect

if TYPE_CHECKING:
    from flgraph.reproduce.study import Study


def check_study(study: Study, kinds: tuple[str, ...], averages: tuple[str, ...], extends: bool = False) -> None:
    """Refuses a study with a field that cannot be used.

    Args:
        study: as it was read.
        kinds: figures that there are.
        averages: ways to average clients that there are.
        extends: whether it extends another one, of which it may have a part only, but all that the paper has.

    Raises:
        InputError: names the field.
    """
    for name in ("title", "axis"):
        expect(isinstance(getattr(study, name), str), name, "text", getattr(study, name))
    named = isinstance(study.metric, str) or _texts(study.metric)
    expect(bool(study.metric) and named, "metric", "the name of a metric or a list of such", study.metric)
    expect(_whole(study.rounds, 1), "rounds", "a positive integer", study.rounds)
    seeds = study.seeds if isinstance(study.seeds, list) else []
    sound = bool(seeds) and all(_whole(seed, 0) for seed in seeds) and len(set(seeds)) == len(seeds)
    expect(sound, "seeds", "a list of different whole numbers", study.seeds)
    for name, arguments in _cells(study):
        expect(isinstance(arguments, str | list), name, "a configuration file, or a list of arguments,", arguments)
        for file in _files(arguments):
            expect(find_config(file).is_file(), name, "arguments with configuration files that exist", file)
    _check_mappings(study)
    for place, paper in _papers(study):
        _check_paper(study, place, paper, extends)
    expect(study.average in averages, "average", f"one of {', '.join(averages)}", study.average)
    protocols = isinstance(study.protocols, list) and all(protocol == "best_client" for protocol in study.protocols)
    expect(protocols, "protocols", "best_client, or none, in a list,", study.protocols)
    expect(_texts(study.notes), "notes", "a list of sentences", study.notes)
    expect(study.figure is None or study.figure in kinds, "figure", f"one of {', '.join(kinds)}", study.figure)


def _cells(study: Study) -> Iterator[tuple[str, Any]]:
    """Settings and methods: where each stands, and its arguments."""
    for field in ("settings", "methods"):
        content = getattr(study, field)
        expect(isinstance(content, dict) and bool(content), field, "names with arguments, one or more,", content)
        for name, arguments in content.items():
            expect(isinstance(name, str), f"a name in {field}", "text, in quotes where it is a number,", name)
            expect("," not in name, f"a name in {field}", "without a comma, which stands between names,", name)
            if field == "methods" and isinstance(arguments, dict):
                yield from ((f"methods.{name}.{setting}", own) for setting, own in arguments.items())
            else:
                yield f"{field}.{name}", arguments


def _files(arguments: str | list[Any]) -> list[str]:
    """Configuration files among arguments; without those whose names depend on the seed."""
    args = ["-c", arguments] if isinstance(arguments, str) else [str(part) for part in arguments]
    named = [value for flag, value in pairwise(args) if flag in ("-c", "--config")]
    named += [arg.partition("=")[2] for arg in args if arg.startswith(("-c=", "--config="))]
    return [file for file in named if file.endswith((".yaml", ".yml")) and "{" not in file]


def _check_mappings(study: Study) -> None:
    for field in ("paper", "method_rounds", "values"):
        content = getattr(study, field)
        expect(isinstance(content, dict), field, "a mapping", content)
    for method, rounds in study.method_rounds.items():
        among = f"rounds of methods among {', '.join(study.methods)}"
        expect(method in study.methods, "method_rounds", among, method)
        expect(_whole(rounds, 1), f"method_rounds.{method}", "a positive integer", rounds)
    for name, settings in study.values.items():
        deep = isinstance(settings, dict) and all(isinstance(seeds, dict) for seeds in settings.values())
        expect(deep, f"values.{name}", "setting to seed to value", settings)


def _papers(study: Study) -> Iterator[tuple[str, Any]]:
    """What the paper printed of each metric, and where that stands."""
    if isinstance(study.metric, str):
        yield "paper", study.paper
        return
    for metric, paper in study.paper.items():
        expect(metric in study.metric, "paper", f"of metrics among {', '.join(study.metric)}", metric)
        yield f"paper.{metric}", paper


def _check_paper(study: Study, place: str, paper: Any, extends: bool) -> None:
    """Printed numbers of one metric: setting to method to mean, and perhaps deviation."""
    expect(isinstance(paper, dict), place, "a mapping of settings", paper)
    for setting, printed in paper.items():
        expect(extends or setting in study.settings, place, f"of settings among {', '.join(study.settings)}", setting)
        expect(isinstance(printed, dict), f"{place}.{setting}", "a mapping of methods", printed)
        for method, numbers in printed.items():
            expect(
                method in study.methods, f"{place}.{setting}", f"of methods among {', '.join(study.methods)}", method
            )
            listed = isinstance(numbers, list) and 1 <= len(numbers) <= 2 and all(map(_number, numbers))
            expect(listed, f"{place}.{setting}.{method}", "[mean] or [mean, standard deviation]", numbers)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)
