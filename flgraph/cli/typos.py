"""What is surely wrong with a command line of ``flgraph fit`` and its like, found before torch is imported.

The parser of :mod:`flgraph.cli.fit` decides in the end; here only what it would refuse, too, is refused, in time for
somebody who has mistyped a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from flgraph.cli.outline import Outline, exported, outline
from flgraph.cli.parser import Refusing, UsageError, suggestion
from flgraph.configs import PACKAGES, Loader, find_config, is_inline
from flgraph.errors import InputError, expect

TRAINER = "flgraph.federation.FederatedTrainer"
OWN_FILES = tuple(f"flgraph.data.{kind}Clients" for kind in ("Node", "Graph", "Hetero"))
NEEDED = ("model", "data", "trainer.aggregator")
_TOP = ("config", "help", "print_config", "seed_everything", "ckpt_path", "trainer", "model", "data")
SECTIONS = ("seed_everything", "trainer", "model", "data", "ckpt_path")
_INNER = ("class_path", "init_args", "dict_kwargs", "help")
"""What may stand in the name of a field of a class besides the field."""
_LINKED = "seed"
"""The trainer's field that has another name on the command line."""


def trainer_fields() -> dict[str, Any]:
    """The trainer's fields that the command line has, by name."""
    known = outline(TRAINER)
    assert known is not None
    return {name: own for name, own in known.fields.items() if name != _LINKED}


@dataclass
class _Seen:
    """What a command line has said so far."""

    classes: dict[str, str] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    foreign: list[str] = field(default_factory=list)
    """Classes of somebody else, which may bring short names with them."""
    runs: bool = True
    """Whether something is to run, rather than to be shown."""


def check(command: str, args: Sequence[str]) -> list[str]:
    """Refuses what is surely wrong; silent about everything that only the classes themselves can judge.

    Args:
        command: ``fit``, ``validate``, ``test`` or ``predict``.
        args: what follows it.

    Returns:
        Import paths of classes that are somebody else's.

    Raises:
        InputError: one sentence, with a name that is close where there is one.
    """
    seen = _Seen()
    for name, value in _options(args):
        if not name:
            raise UsageError("", "", f"unrecognized arguments: {(value or '')[:60]}")
        if name != "config":
            _check_option(name, value, seen)
        elif value is not None:
            _check_file(value, seen)
        elif seen.runs:
            raise InputError("-c", "followed by a file", "none")
    missing = [name for name in NEEDED if name not in seen.given]
    if seen.runs and missing:
        how = "given by -c files (configs/data/chem.yaml, configs/method/fedavg.yaml, or your own) or --NAME CLASS,"
        raise InputError("`, `".join(missing), how, f"no {' and no '.join(missing)} for flgraph {command}")
    if "model" in seen.classes and "data" in seen.classes:
        _check_task(seen.classes["model"], seen.classes["data"])
    return seen.foreign


def chosen(args: Sequence[str], name: str) -> str | None:
    """The class that arguments choose for a field, if it is one of the package's."""
    seen = _Seen(runs=False)
    for option, value in _options(args):
        if option == "config" and value is not None:
            _check_file(value if is_inline(value) else str(find_config(value)), seen)
        elif option == name and value is not None:
            _take_class(name, value, seen)
    return seen.classes.get(name)


def _options(args: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Names of options and their values; what is neither ends it with an empty name."""
    rest = list(args)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in ("-c", "-h"):
            name = {"-c": "--config", "-h": "--help"}[name]
        if not name.startswith("--"):
            yield "", name
            return
        follows = not equals and bool(rest) and not rest[0].startswith("--") and rest[0] not in ("-c", "-h")
        given = value if equals else rest.pop(0) if follows else None
        plain = name.removeprefix("--").removesuffix("+")
        # What is added to a list is no list, and left to the parser.
        yield plain, None if name.endswith("+") and plain not in PACKAGES else given


def _check_option(name: str, value: str | None, seen: _Seen) -> None:
    top, *parts = name.split(".")
    seen.runs = seen.runs and top not in ("help", "print_config") and parts[-1:] != ["help"]
    if top not in _TOP:
        given = f"--{name}" + ("" if value is None else f" {value[:60]}")
        names = [*_TOP, *(f"trainer.{name}" for name in trainer_fields())]
        raise UsageError("", "", f"unrecognized arguments: {given}{suggestion(name, names, '--{}')}")
    if top == "trainer" and not parts:  # all of its fields at once
        seen.runs = False
    elif top == "trainer":
        if parts[0] not in trainer_fields() and parts[0] != "help":
            given = f"--{name}" + ("" if value is None else f" {value[:60]}")
            close = suggestion(parts[0], trainer_fields(), "--trainer.{}")
            raise UsageError("", "", f"unrecognized arguments: {given}{close}")
        _check_field(f"trainer.{parts[0]}", parts[1:], value, seen)
    elif top in PACKAGES:
        _check_field(top, parts, value, seen)


def _check_field(name: str, parts: Sequence[str], value: Any, seen: _Seen) -> None:
    """A field that may be a class, or the field of a class."""
    inner = [part for part in parts if part not in _INNER]
    if name not in PACKAGES:
        if not inner and name.startswith("trainer."):
            _check_value(name, trainer_fields()[name.removeprefix("trainer.")].type, value)
    elif inner:
        known = _known(name, seen)
        if known is not None:
            _check_inner(name, known, inner, value, seen)
    elif isinstance(value, str) and not parts and value[:1] in ("[", "{"):
        with suppress(yaml.YAMLError, InputError):  # of which the parser tells
            value = yaml.load(value, Loader)
        _check_section(name, value, seen)
    elif isinstance(value, str) and (not parts or parts[-1] == "class_path"):
        _take_class(name, value, seen)


def _check_inner(name: str, known: Outline, inner: Sequence[str], value: Any, seen: _Seen) -> None:
    if inner[0] not in known.fields:
        if known.complete:
            got = f"`{inner[0]}`{suggestion(inner[0], known.fields, '`{}`')}"
            raise InputError(name, f"given only fields of {seen.classes[name]}", got)
    elif len(inner) == 1:
        _check_value(f"{name}.{inner[0]}", known.fields[inner[0]].type, value)


def _take_class(name: str, path: str, seen: _Seen) -> None:
    """Notes the class of a field, if it is one of the package's; refuses a short name that nobody has."""
    seen.classes.pop(name, None)
    if path == "null":
        seen.given.discard(name)
        return
    seen.given.add(name)
    package = PACKAGES[name]
    if "." not in path and path.isidentifier() and path not in ("true", "false"):
        if outline(f"{package}.{path}") is None:
            if not seen.foreign and not _defined(path):
                close = suggestion(path, exported(package))
                raise InputError(name, "the name of a class", f"'{path}'{close}")
            return
        path = f"{package}.{path}"
    if outline(path) is not None:
        seen.classes[name] = path
    elif path.startswith("flgraph."):
        module, _, last = path.rpartition(".")
        if names := exported(module):
            what = f"'{path}' (module '{module}' has no attribute '{last}'){suggestion(last, names)}"
            raise InputError(name, "the name of a class", what)
    else:
        seen.foreign.append(path)
        _check_module(name, path.partition(".")[0])


def _check_module(name: str, module: str) -> None:
    """What is installed comes before modules of the current folder."""
    own = Path(f"{module}.py")
    found = find_spec(module) if own.is_file() else None
    if found is not None and found.origin is not None and Path(found.origin).resolve() != own.resolve():
        got = f"{own}, in whose place {found.origin} is imported: rename it"
        raise InputError(name, "a class of a module that no other hides", got)


def _defined(name: str) -> bool:
    """Whether the package, or Lightning, has a class of this name: also those that are not exported."""
    lightning = find_spec("pytorch_lightning")
    assert lightning is not None
    assert lightning.origin is not None
    folders = (Path(__file__).parents[1], Path(lightning.origin).parent)
    files = (file for folder in folders for file in folder.rglob("*.py"))
    return any(f"class {name}" in file.read_text(encoding="utf-8") for file in files)


def _known(name: str, seen: _Seen) -> Outline | None:
    path = seen.classes.get(name)
    return None if path is None else outline(path)


class _ValueParser(Refusing, ArgumentParser):
    """For one value."""


def _check_value(name: str, kind: Any, value: Any) -> None:
    """Whether a field of one of Python's types can take a value; classes are left to the parser."""
    if kind is Any or value is None:
        return
    parser = _ValueParser()
    parser.add_argument(f"--{name}", type=kind)
    parser.parse_args([f"--{name}={value}" if isinstance(value, str) else f"--{name}={yaml.safe_dump(value).strip()}"])


# --------------------------------------------------------------------------------------------------------------- tasks
_TASKS = {
    "graphs": ("many graphs", "configs/data/chem.yaml"),
    "nodes": ("one large graph", "configs/data/cora.yaml"),
    "hetero": ("a graph with types of nodes and edges", "configs/data/aifb.yaml"),
}
"""Folders of models and of data that go together, what such data is, and an example."""
_SHOWN = 6
"""Methods that a sentence names."""


def _check_task(model: str, data: str) -> None:
    """Models and data of different tasks do not fit, whatever their settings."""
    wanted, found = _task(model), _task(data)
    if wanted is None or found is None or wanted == found:
        return
    fitting = [file for file in _packaged("method") if f".{found}." in _path_of(_model_of(file))]
    names = ", ".join(Path(file).stem for file in fitting[:_SHOWN])
    names += f" and {len(fitting) - _SHOWN} more" * (len(fitting) > _SHOWN)
    network, holder = model.rpartition(".")[2], data.rpartition(".")[2]
    raise InputError(
        "data",
        f"{_TASKS[wanted][0]} ({_TASKS[wanted][1]}), as {network} needs,",
        f"{_TASKS[found][0]} ({holder}): try {names} of configs/method",
    )


def _task(path: str) -> str | None:
    """The folder that a model or data lies in; embeddings of graphs are learned from many graphs."""
    folder = f"{_path_of(path)}...".split(".")[2].replace("unsupervised", "graphs")
    return folder if folder in _TASKS else None


def _path_of(path: str) -> str:
    """Where a class is defined; empty for one from elsewhere."""
    known = outline(path)
    return "" if known is None else known.path


def _model_of(file: str) -> str:
    content = yaml.load(find_config(file).read_text(encoding="utf-8"), Loader)
    return str(content.get("model", {}).get("class_path", ""))


# --------------------------------------------------------------------------------------------------------------- files
def _check_file(value: str, seen: _Seen) -> None:
    inline = is_inline(value)
    if not inline and not Path(value).is_file():
        raise InputError("-c", "a file", f"'{value}'{suggestion(value, _packaged())}")
    try:
        content = yaml.load(value if inline else Path(value).read_text(encoding="utf-8"), Loader)
    except InputError as error:
        raise error.within("-c" if inline else value) from None
    except (OSError, ValueError, yaml.YAMLError):
        seen.runs = False  # the parser says what is wrong with it
        return
    value = "-c" if inline else value
    if not isinstance(content, dict):
        return
    for section, fields in content.items():
        if section not in SECTIONS:
            raise InputError(value, f"a file of sections {', '.join(SECTIONS)}", _named(section, SECTIONS))
        if section in PACKAGES:
            before = seen.classes.get(section, "")
            _check_section(section, fields, seen)
            if section == "data" and before in OWN_FILES and seen.classes.get(section) not in (None, before):
                wanted = "before your own file, whose class of data it would replace (-c METHOD -c YOURS),"
                raise InputError(value, wanted, "it behind")
        elif section == "trainer":
            if not isinstance(fields, Mapping):
                raise InputError(f"trainer` in `{value}", "a mapping of its fields", "something else")
            for name, own in fields.items():
                if name not in trainer_fields() and name != _LINKED:
                    raise InputError(f"trainer` in `{value}", "fields that there are", _named(name, trainer_fields()))
                if f"trainer.{name}" in PACKAGES:
                    _check_section(f"trainer.{name}", own, seen)
                elif name != _LINKED:
                    _check_value(f"trainer.{name}", trainer_fields()[name].type, own)


def _named(name: Any, names: Iterable[str]) -> str:
    """A name of a file where it is close to one that there is: a file may be data that was given by mistake."""
    close = suggestion(str(name), names, "`{}`")
    return f"`{name}`{close}" if close else "another one"


def _packaged(kind: str = "*") -> list[str]:
    folder = Path(__file__).parents[1] / "configs"
    return sorted(f"configs/{file.relative_to(folder).as_posix()}" for file in folder.glob(f"{kind}/*.yaml"))


def _check_section(name: str, content: Any, seen: _Seen) -> None:
    """A class with its arguments, as files have it."""
    if content is None or isinstance(content, str):
        _take_class(name, content or "null", seen)
    for own in content if isinstance(content, list) else ():
        expect(name == "trainer.callbacks", name, "one class", "a list")
        if isinstance(own, Mapping) and "class_path" not in own:
            got = f"`{next(iter(own), '')}` without{suggestion(next(iter(own), ''), _INNER, '`{}`')}"
            raise InputError(name, "a list of classes, each with its `class_path`,", got)
        _check_section(name, own, seen)
    if not isinstance(content, Mapping):
        return
    if isinstance(content.get("class_path"), str):
        beside = [str(key)[:60] for key in content if key not in _INNER]
        if beside:
            wanted = "`class_path` and, below `init_args`, the fields of the class,"
            raise InputError(name, wanted, f"`{beside[0]}` beside it{suggestion(beside[0], _INNER, '`{}`')}")
        _take_class(name, content["class_path"], seen)
    known, inner = _known(name, seen), content.get("init_args", {})
    if known is not None and isinstance(inner, Mapping):
        for argument, value in inner.items():
            _check_inner(name, known, [str(argument)], value, seen)
