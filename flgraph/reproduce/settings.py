"""What configuration files and arguments of a run come to, told without Lightning and torch, which load slowly."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from flgraph.configs import find_config
from flgraph.errors import InputError

_CLASSES = {
    "model": "flgraph.models",
    "data": "flgraph.data",
    "trainer.aggregator": "flgraph.callbacks",
    "trainer.callbacks": "flgraph.callbacks",
    "trainer.engine": "flgraph.federation",
}
"""Settings that are classes with arguments of their own, and where classes without a dot in their name are."""

_WITHOUT_EFFECT = re.compile(
    r"seed_everything|ckpt_path|data\.init_args\.(root|cache_dir|name)|trainer\.(rounds|name|default_root_dir|logger.*|"
    r"max_logged_clients|enable_checkpointing|checkpoint_every|keep_checkpoints|enable_progress_bar)"
)
"""Settings that say where a run lies and what it writes, not what it computes; and its seed and rounds, which a study
sets."""

_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)


def resolve(args: Sequence[str]) -> dict[str, Any]:
    """The settings that arguments of ``flgraph fit`` make, as the command line itself would merge them.

    Later files and options win. ``--data.num_clients=5`` is an argument of the class of the data, ``--model=GNN`` the
    name of a class, in full or as ``flgraph`` has it; another class keeps the arguments of the one before.

    Raises:
        InputError: a configuration file cannot be read.
    """
    settings: dict[str, Any] = {}
    for option, value in _options(args):
        if option in ("-c", "--config"):
            given = read_yaml(find_config(value))
        else:
            given = _scalar(value)
            for key in reversed(option.removeprefix("--").split(".")):
                given = {key: given}
        if isinstance(given, Mapping):
            settings = _merged(settings, given)
    return settings


def digest(settings: Mapping[str, Any]) -> str:
    """Tells settings apart that may compute something else, in 8 digits.

    Neither the order of keys counts nor how a number is written, nor what has no effect on results.
    """
    kept = sorted((key, value) for key, value in _flat(settings) if not _WITHOUT_EFFECT.fullmatch(key))
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:8]


def read_yaml(file: Path) -> Any:
    """What a YAML file holds.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return _parsed(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        told = " ".join(str(error).split())
        raise InputError(str(file), "a YAML file", f"one that cannot be read ({told})") from error


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """Shared by all who ask for it: not to be changed."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _options(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every option with its value, which stands behind ``=`` or is the next argument."""
    rest = list(args)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        yield option, value


def _scalar(value: str) -> Any:
    try:
        return _parsed(value)
    except yaml.YAMLError:
        return value


def _merged(old: Any, new: Any, name: str = "") -> Any:
    """Settings with further ones; what is no mapping takes the place of what was there."""
    if name in _CLASSES and not isinstance(new, list):
        new = _as_class(name, new)
    if name == "trainer.callbacks":  # a list of classes; fields without a class are of the last one
        if isinstance(new, list):
            return [_as_class(name, item) for item in new]
        before = [] if "class_path" in new else list(old or [{}])
        return [*before[:-1], _merged(before[-1], new) if before else new]
    if not isinstance(new, Mapping):
        return new
    result = dict(old) if isinstance(old, Mapping) else {}
    for key, value in new.items():
        result[key] = _merged(result.get(key), value, f"{name}.{key}" if name else key)
    return result


def _as_class(name: str, given: Any) -> Any:
    """A class with its arguments, however it was given."""
    if isinstance(given, str):
        given = {"class_path": given}
    if not isinstance(given, Mapping):
        return given
    path, own = given.get("class_path"), given.get("init_args") or {}
    own = {**own, **{key: value for key, value in given.items() if key not in ("class_path", "init_args")}}
    whole = {} if path is None else {"class_path": path if "." in path else f"{_CLASSES[name]}.{path}"}
    return {**whole, "init_args": own} if own else whole


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all settings, with their values in one form."""
    if isinstance(value, Mapping | list) and value:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in items:
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    elif isinstance(value, str) and _NUMBER.fullmatch(value):
        yield name, repr(float(value))  # 5e-4 is text to YAML 1.1, and a number to the command line
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, repr(float(value))
    else:
        yield name, value if isinstance(value, str | bool | None) else repr(value)
