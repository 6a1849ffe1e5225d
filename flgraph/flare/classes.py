"""What the configuration of a job may name; anything else is refused before it is imported."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import OrderedDict, abc, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytorch_lightning as pl
import torch
import yaml

from flgraph.errors import InputError, expect
from flgraph.federation import FederatedTrainer

FIELDS = ("seed_everything", "model", "trainer")
"""Of the configuration of a job, as :func:`~flgraph.cli.flare.configuration` writes it."""

_WANTED = "a mapping with class_path and init_args, as nothing else is imported for a job,"
_HARMLESS = (torch.nn.Module, pl.Callback)
"""What may be where an argument has no type."""

_PLAIN = (str, int, float, bool, NoneType, Enum, PurePath)
_LISTS = (list, tuple, set, frozenset, deque, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection, abc.Set)
_MAPPINGS = (dict, OrderedDict, abc.Mapping, abc.MutableMapping)
_UNKNOWN = object()  # of an argument whose type cannot be told from its class


def refuse_foreign_classes(config: Any, allow: tuple[str, ...]) -> None:
    """Refuses a configuration that names a class which the site does not allow, or names one in another way.

    A command line has many spellings for a class: its name alone, keys with dots, text that is parsed once more, files.
    A job has one, that of :func:`~flgraph.cli.flare.configuration`: a mapping with ``class_path`` and ``init_args``.
    Nothing is imported but modules of classes that are allowed.

    Args:
        config: of the job, without data.
        allow: patterns of classes that it may name.

    Raises:
        InputError: names the class, or the field.
    """
    known = ", ".join(FIELDS)
    expect(isinstance(config, dict), "configuration", "a YAML mapping", type(config).__name__)
    for key in config:
        expect(key in FIELDS, "configuration", f"a mapping with fields among {known}", key)
    for key in ("model", "trainer"):
        expect(isinstance(config.get(key), dict), key, "a mapping", config.get(key))
    check = _Check(allow)
    try:
        check.value("seed_everything", config.get("seed_everything"), (int,))
        check.value("model", config["model"], (pl.LightningModule,))
        check.arguments("trainer", config["trainer"], FederatedTrainer)
    except RecursionError as error:  # YAML has mappings that hold themselves
        raise InputError("configuration", "a tree", "one that goes on without end") from error


def refuse_foreign_names(config: Any, allow: tuple[str, ...]) -> None:
    """The same of a configuration that was parsed, in which every class is named in full; a second look.

    Raises:
        InputError: names the class.
    """
    check = _Check(allow)
    for name in _named(config):
        check.find(name)


class _Check:
    """Follows a configuration along the signatures of what it names."""

    def __init__(self, allow: tuple[str, ...]) -> None:
        self.allow = allow

    def allows(self, name: str) -> bool:
        """Whether one of the patterns is of this name."""
        return any(fnmatchcase(name, pattern) for pattern in self.allow)

    def find(self, name: Any) -> type:
        """A class, if it is allowed: under this name and where it is defined, as modules import others."""
        parts = name.split(".") if isinstance(name, str) else []
        whole = len(parts) > 1 and all(part.isidentifier() and not part.startswith("__") for part in parts)
        expect(whole, "class_path", "the full name of a class", name)
        sentence = f"among those that this site allows, {', '.join(self.allow)},"
        expect(self.allows(name), "class_path", sentence, name)
        module, _, last = name.rpartition(".")
        try:
            found = getattr(import_module(module), last)  # unlike the parser's, goes through no attributes of modules
        except (ImportError, AttributeError) as error:
            raise InputError("class_path", "the name of a class", f"{name!r} ({error})") from error
        expect(isinstance(found, type), "class_path", "the name of a class", name)
        own = f"{found.__module__}.{found.__qualname__}"
        sound = name in self.allow or self.allows(own) or own.startswith(f"{module}.")
        expect(sound, "class_path", sentence, f"{name}, which is {own}")
        return found

    def arguments(self, field: str, given: Mapping[Any, Any], kind: type) -> None:
        """Of a class: each under its name."""
        expected = _arguments(kind)
        for key, value in given.items():
            plain = isinstance(key, str) and key.isidentifier() and not key.startswith("__")
            expect(plain, field, "a mapping with names of arguments", key)
            hint, default = expected.get(key, (_UNKNOWN, None))
            if default is None or value != default:
                self.value(f"{field}.{key}", value, tuple(_members(hint)))

    def value(self, field: str, given: Any, kinds: tuple[Any, ...]) -> None:
        """Of an argument that may be of these types."""
        if isinstance(given, str):
            expect(not _hides_class(given), field, _WANTED, given)
            expect(_is_text(given, kinds), field, _WANTED, given)
        elif isinstance(given, list):
            inner = tuple(_inner(kinds, _LISTS)) or kinds
            for item in given:
                self.value(field, item, inner)
        elif isinstance(given, dict):
            self.mapping(field, given, kinds)
        else:
            expect(isinstance(given, int | float | None), field, "plain text, a number, a list or a mapping", given)

    def mapping(self, field: str, given: Mapping[Any, Any], kinds: tuple[Any, ...]) -> None:
        """A class, the fields of a dataclass, or no more than a mapping."""
        if "class_path" in given:
            for key in given:
                expect(key in ("class_path", "init_args"), field, "a mapping with class_path and init_args", key)
            kind, args = self.find(given["class_path"]), given.get("init_args", {})
            # The parser makes anything of an argument that may be anything, such as a file of what opens files.
            bases = [base for base in kinds if isinstance(base, type) and base is not object]
            fits = issubclass(kind, tuple(bases) or _HARMLESS) or given["class_path"] in self.allow
            expect(fits, field, "of a class that belongs there", given["class_path"])
            expect(isinstance(args, dict), f"{field}.init_args", "a mapping", args)
            self.arguments(field, args, kind)
            return
        records = [kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)]
        for kind in records:
            self.arguments(field, given, kind)
        if records:
            return
        inner = tuple(_inner(kinds, _MAPPINGS))
        sound = bool(inner) or all(map(_is_plain, kinds))
        expect(sound, field, _WANTED, f"one with {', '.join(map(str, given)) or 'nothing'}")
        for key, value in given.items():
            expect("class_path" not in str(key), field, _WANTED, key)
            self.value(f"{field}.{key}", value, inner or (_UNKNOWN,))


def _arguments(kind: type) -> dict[str, tuple[Any, str | None]]:
    """Of a class and, as far as it hands further ones on, its bases: type, and name of the default if it has one."""
    found: dict[str, tuple[Any, str | None]] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        make = vars(base)["__init__"]
        try:
            hints, parameters = get_type_hints(make, include_extras=True), inspect.signature(make).parameters.values()
        except (NameError, TypeError, ValueError, AttributeError):  # types that are imported for type checkers only
            break
        for item in parameters:
            hint = hints.get(item.name, _UNKNOWN)
            own = f"{getattr(item.default, '__module__', '')}.{getattr(item.default, '__qualname__', '')}"
            found.setdefault(item.name, (hint, own if callable(item.default) else None))
        if not any(item.kind is item.VAR_KEYWORD for item in parameters):
            break
    return found


def _members(hint: Any) -> Iterator[Any]:
    """A type's alternatives."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        for part in get_args(hint):
            yield from _members(part)
    elif origin is Annotated:
        yield from _members(get_args(hint)[0])
    elif hasattr(hint, "__supertype__"):
        yield from _members(hint.__supertype__)
    else:
        yield hint


def _inner(kinds: tuple[Any, ...], containers: tuple[Any, ...]) -> Iterator[Any]:
    """What the containers among these types hold; those that may be anything hold anything."""
    for kind in kinds:
        if kind in (Any, object, _UNKNOWN):
            yield kind
        elif (get_origin(kind) or kind) in containers:
            held = [part for part in get_args(kind) if part is not ...]
            for part in (held[1:] if containers is _MAPPINGS else held) or [Any]:
                yield from _members(part)


def _is_plain(kind: Any) -> bool:
    """Whether no value of this type is made from the name of something to import."""
    origin = get_origin(kind) or kind
    if kind in (Any, object) or origin is Literal:  # the parser leaves text as it is for these
        return True
    if origin in _LISTS or origin in _MAPPINGS:
        return all(_is_plain(member) for part in get_args(kind) if part is not ... for member in _members(part))
    return isinstance(origin, type) and issubclass(origin, _PLAIN)


def _is_text(given: str, kinds: tuple[Any, ...]) -> bool:
    """Whether text stays text, as an argument that may be of these types."""
    if _UNKNOWN in kinds:
        first, *further = parts = given.split(".")
        named = bool(further) and all(part.isidentifier() for part in parts)
        return not (named and (first in sys.modules or find_spec(first) is not None))
    if all(map(_is_plain, kinds)):
        return True
    word = re.fullmatch(r"[\w:-]*", given) is not None  # neither a name with dots nor a file nor a mapping
    return word and any(kind in (str, Any, object) or get_origin(kind) is Literal for kind in kinds)


def _hides_class(text: str) -> bool:
    """Whether text would name a class if it were parsed once more, as the parser does for some types.

    One with anchors counts as if it did: what is repeated in it can be any number of times as long as the text.
    """
    with suppress(yaml.YAMLError, ValueError):
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.NodeEvent) and event.anchor and not isinstance(event, yaml.AliasEvent):
                return True
    for load in (json.loads, yaml.safe_load):  # neither takes all that the other one does
        with suppress(yaml.YAMLError, ValueError):
            content = load(text)
            if content != text and _has_class(content):
                return True
    return False


def _has_class(content: Any) -> bool:
    if isinstance(content, dict):
        return any("class_path" in str(key) or _has_class(value) for key, value in content.items())
    if isinstance(content, list):
        return any(map(_has_class, content))
    return isinstance(content, str) and _hides_class(content)


def _named(config: Any) -> Iterator[Any]:
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key == "class_path":
                yield value
            else:
                yield from _named(value)
    elif isinstance(config, list | tuple):
        for value in config:
            yield from _named(value)
