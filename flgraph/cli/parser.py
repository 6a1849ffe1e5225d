"""Parsers of all commands, and sentences for what they cannot take."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from copy import copy
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from flgraph.cli.outline import exported
from flgraph.errors import LONGEST, InputError

_FIELD = r"""Parser key "(?P<field>[\w.]+)": """
_CLASS = _FIELD + r".*?class_path '(?P<cls>[\w.]+)': "
_TYPE = r"Expected a (?P<type>.+?)\. Got value: ?"
_UNION = (
    r"Does not validate against any of the Union subtypes Subtypes: \[(?P<type>.*?)\] Errors: "
    r".*?Given value: (?P<value>.*?)(?: - Expected a .*)?"
)
_INNER = r"""^Parser key "([\w.]+)": (?:(?!Parser key ").)*?class_path '[\w.]+': Parser key "([\w.]+)": """
_NAME = "the name of a class"
_PACKAGES = ("flgraph.callbacks", "flgraph.federation", "flgraph.models", "flgraph.data")
_SENTENCES = [
    (
        _FIELD
        + r".*Multiple subclasses with name (?P<short>\w+)\. Give the full .*?: (?P<paths>[\w.]+\w(?:, [\w.]+\w)*).*",
        ("{field}", "one of {paths}", "'{short}', which several have for a name"),
    ),
    (
        _FIELD + r".*?class_path 'pytorch_lightning[\w.]*': Option '(?P<option>[\w.]+)' is not accepted.*",
        ("{field}", "chosen before its fields (by --{field} CLASS or a -c file)", "`{field}.{option}` first"),
    ),
    (
        _CLASS + r"Option '(?P<option>[\w.]+)' is not accepted.*",
        ("{field}", "given only fields of {cls}", "`{option}`"),
    ),
    (
        _CLASS + r"(?P<why>(?:module '[\w.]+' has no attribute|No module named) '[\w.]+')(?: - .*)?",
        ("{field}", _NAME, "'{cls}' ({why})"),
    ),
    (
        _CLASS + r"the following arguments are required: (?P<option>\w+).*",
        ("{field}.{option}", "given, as {cls} needs it,", "none"),
    ),
    (
        _FIELD + r".*Expected a dot import path string: (?P<cls>\S+).*",
        ("{field}", _NAME, "'{cls}'"),
    ),
    (
        _FIELD + r"Import path (?P<cls>[\w.]+) does not correspond to a subclass of (?P<kind>\w+).*",
        ("{field}", "a class of kind {kind}", "'{cls}'"),
    ),
    (
        _FIELD + r"Not of type NonNegativeInt: (?:invalid literal .*?: )?(?P<value>.*?)(?: does not conform .*)?",
        ("{field}", "a whole number of 0 or more", "{value}"),
    ),
    (
        r".*?Problem with given class_path '(?:[\w.]+\.)?(?P<last>\w+)': (?P<why>.*?)(?: - Expected a .*)?",
        ("{last}", "given what it needs", "{why}"),
    ),
    (
        _FIELD + r".*Expected an instantiatable class.*NestedArg\(key='(?P<name>\w+)'.*",
        ("{field}", "a class, and then its fields", "its `{name}` alone"),
    ),
    (_FIELD + _UNION, ("{field}", "{type}", "{value}")),
    (_FIELD + _TYPE + r"(?P<value>.*?)(?: - Expected a or null.*)?", ("{field}", "{type}", "{value}")),
    (
        _FIELD + r"Unable to load config.*",
        ("{field}", "given field by field, or in a file after -c,", "something else"),
    ),
]
"""What jsonargparse says of something that a class or a field cannot take, and the parts of the error made of it."""
_WORDS = [
    (r",? ?<class 'NoneType'>", " or null"),
    (r"<class 'collections\.abc\.Sequence'>", "a list"),
    (r"<class 'collections\.abc\.Mapping'>", "a mapping"),
    (r"<class '([\w.]+)'>", r"of type \1"),
    (r"typing\.Literal\[(.*?)\]", r"one of \1"),
    (r"collections\.abc\.(?:Sequence|Collection)\[(\w+)\]", r"a list of \1"),
    (r"collections\.abc\.Mapping\[[^\[\]]*\]", "a mapping"),
    (r"\blist\[[^\[\]]*\]", "a list"),
    (r"\bdict\[[^\[\]']*\]", "a mapping"),
    (r"\bdict\[str, a mapping\]", "a mapping of mappings"),
]


def suggestion(name: str, names: Iterable[str], form: str = "{}") -> str:
    """``(did you mean ...?)`` with a blank before it; nothing where no name is close, or begins alike."""
    candidates, folded = list(names), name.casefold()
    lower = {other.casefold(): other for other in candidates}
    close = get_close_matches(name, candidates, 1) or [lower[other] for other in get_close_matches(folded, lower, 1)]
    close = close or [other for other in candidates if other[:3] == name[:3]]
    return f" (did you mean {form.format(close[0])}?)" if len(close) == 1 else ""


class UsageError(InputError):
    """What a parser says in words of its own, such as ``unrecognized arguments: --x``."""

    def __str__(self) -> str:
        return str(self.got)


def translated(message: str) -> InputError:
    r"""The error that stands for what argparse or jsonargparse says.

    >>> print(translated('Parser key "trainer.rounds": Expected a <class \'int\'>. Got value: x'))
    Expected `trainer.rounds` to be of type int but got x.
    """
    message = " ".join(message.split())
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    while (whole := re.sub(_INNER, r'Parser key "\1.\2": ', message)) != message:
        message = whole
    for pattern, parts in _SENTENCES:
        if found := re.fullmatch(pattern, message):
            values = {
                name: _cut(text) if name in ("value", "cls") else text for name, text in found.groupdict().items()
            }
            field, expected, got = (part.format(**values) for part in parts)
            if expected == _NAME:
                module, _, last = values["cls"].rpartition(".")
                foreign = module and not module.startswith("flgraph")
                names = [name for package in _PACKAGES for name in exported(package)]
                if foreign:
                    names = list(vars(sys.modules[module])) if module in sys.modules else []
                word = last in ("true", "false")
                known = last in names and "why" not in values
                got += ", a class of another kind" if known else "" if word else suggestion(last, names)
            return InputError(field, expected, got or "nothing")
    return UsageError("command line", "as --help says", _cut(message, 4 * LONGEST))


def _cut(text: str, most: int = LONGEST) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


class Refusing:
    """For parsers: errors instead of exits, and options by their full names only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Called by argparse and jsonargparse for anything they cannot take.

        Raises:
            InputError: always, where no other parser is around that would say where it stands.
        """
        if not getattr(self, "exit_on_error", True):  # the parser of one class's arguments
            super().error(message, ex)  # type: ignore[misc]
        if found := re.match("unrecognized arguments: (--[^ =]+)", message):
            message += suggestion(found[1], self._option_string_actions)  # type: ignore[attr-defined]
        raise translated(message)

    def _add_signature_parameter(self, *args: Any, **kwargs: Any) -> None:
        """Arguments of classes are values: the parser would open a file of that name, and take its contents instead.

        One that must be given must be given without a type, too, where the parser would take ``None``.
        """
        container, key, param, *rest = args
        if param.annotation is Parameter.empty and param.default is Parameter.empty:
            param = copy(param)
            param.annotation = Any
        settings = {**kwargs, "sub_configs": False}
        super()._add_signature_parameter(container, key, param, *rest, **settings)  # type: ignore[misc]


class CommandParser(Refusing, ArgumentParser):
    """For commands that take no model and no data."""
