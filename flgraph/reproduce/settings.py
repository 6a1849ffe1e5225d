"""What configuration files and arguments of a run come to, without Lightning and torch, which load slowly."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from flgraph.configs import PACKAGES, Loader, find_config
from flgraph.errors import InputError

_OF_A_CLASS = ("class_path", "init_args")

_WITHOUT_EFFECT = re.compile(
    r"seed_everything|ckpt_path|trainer\.(rounds|name|default_root_dir|logger.*|"
    r"max_logged_clients|enable_checkpointing|checkpoint_every|keep_checkpoints|enable_progress_bar)"
)
"""Settings that say where a run lies and what it writes, not what it computes; and its seed and rounds, which a study
sets."""

_OF_KNOWN_DATA = re.compile(r"data\.init_args\.(root|name)")
"""The same of data sets that the package knows; of others, and of own files, these may say which data it is."""

_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)


def resolve(args: Sequence[str]) -> dict[str, Any]:
    """The settings that arguments of ``flgraph fit`` make, as the command line itself would merge them.

    Later files and options win. ``--data.num_clients=5`` is an argument of the class of the data, ``--model=GNN`` the
    name of a class, in full or as ``flgraph`` has it; another class keeps the arguments of the one before.

    Raises:
        InputError: a configuration file cannot be read.
    """
    settings: dict[str, Any] = {}
    rest = list(args)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        given = read_yaml(find_config(value)) if option in ("-c", "--config") else _nested(option, value)
        settings = _merged(settings, given) if isinstance(given, Mapping) else settings
    return settings


def digest(settings: Mapping[str, Any]) -> str:
    """Tells settings apart that may compute something else, in 8 digits.

    Neither the order of keys counts nor how a number is written, nor what has no effect on results. Of classes in
    modules of the current folder the source counts, too.
    """
    flat = dict(_flat(settings))
    known = str(flat.get("data.class_path", "")).startswith("flgraph.") and not any(
        key.startswith("data.init_args.graphs") for key in flat
    )
    idle = {key for key in flat if _WITHOUT_EFFECT.fullmatch(key) or (known and _OF_KNOWN_DATA.fullmatch(key))}
    kept = sorted((key, value) for key, value in flat.items() if key not in idle)
    for key, value in list(kept):
        *parts, _ = str(value).split(".")
        if key.endswith("class_path") and parts and parts[0] != "flgraph":
            module = Path(*parts)
            files = (file for file in (module.with_suffix(".py"), module / "__init__.py") if file.is_file())
            kept += [(str(file), hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:8]


def read_yaml(file: Path) -> Any:
    """What a YAML file holds; not to be changed.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return _parsed(file.read_text(encoding="utf-8"))
    except InputError as error:
        raise error.within(str(file)) from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        cause = " ".join(str(error).split())
        raise InputError(str(file), "a YAML file", f"one that cannot be read ({cause})") from error


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    return yaml.load(text, Loader)


def _nested(option: str, value: str) -> dict[str, Any]:
    """An option as a configuration file would have it."""
    try:
        given = _parsed(value)
    except yaml.YAMLError:
        given = value
    for key in reversed(option.removeprefix("--").split(".")):
        given = {key: given}
    return dict(given)


def _merged(old: Any, new: Any, name: str = "") -> Any:
    """Settings with further ones; what is no mapping takes the place of what was there."""
    if name in PACKAGES:
        new = [_as_class(name, item) for item in new] if isinstance(new, list) else _as_class(name, new)
    if name == "trainer.callbacks" and isinstance(new, Mapping):  # one of a list, or arguments of the last one
        return [new] if "class_path" in new else [*(old or [])[:-1], _merged((old or [{}])[-1], new)]
    if not isinstance(new, Mapping):
        return new
    result = dict(old) if isinstance(old, Mapping) else {}
    for key, value in new.items():
        plain, where = key.removesuffix("+"), f"{name}.{key}".strip(".+")
        if key != plain:  # --trainer.callbacks+=CLASS
            value = [*(result.get(plain) or []), *(value if isinstance(value, list) else [value])]
        result[plain] = _merged(result.get(plain), value, where)
    return result


def _as_class(name: str, given: Any) -> Any:
    """A class with its arguments, however it was given."""
    given = {"class_path": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping):
        return given
    own = {**(given.get("init_args") or {}), **{key: given[key] for key in given if key not in _OF_A_CLASS}}
    path = given.get("class_path")
    path = f"{PACKAGES[name]}.{path}" if path and "." not in path else path
    return {key: value for key, value in zip(_OF_A_CLASS, (path, own), strict=True) if value}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all settings, with their values in one form."""
    if isinstance(value, Mapping | list) and value:
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _flat(part, f"{name}.{key}" if name else str(key))
    elif (isinstance(value, int | float) and not isinstance(value, bool)) or _NUMBER.fullmatch(str(value)):
        yield name, repr(float(value))  # also 5e-4, which is text to YAML 1.1 and a number to the command line
    else:
        yield name, value if isinstance(value, str | bool | None) else repr(value)
