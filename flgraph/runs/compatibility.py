"""Which settings a run must share with a checkpoint to continue from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from flgraph.errors import InputError

SEALED = "settings_sha256"
"""Stands for a client's settings where nobody else may see them."""

_MACHINE = {"trainer.aggregator.server_accelerator"}
"""Settings that say where something is computed: a run may go on on another machine."""

_BEFORE = {"trainer.aggregator.labels": "all"}
"""What earlier versions did where a setting came later and its default is something else."""


def check_settings(
    saved: Mapping[str, Any], current: Mapping[str, Any], defaults: Mapping[str, Any], checkpoint: Path
) -> None:
    """Refuses to continue from a checkpoint of another configuration.

    Args:
        saved: nested settings, as the checkpoint's manifest has them.
        current: nested settings of the run that is to go on.
        defaults: name, as :func:`flatten` makes it, to default value. Checkpoints of earlier versions lack settings
            that came later; where the default is chosen, it does what these versions did.
        checkpoint: for error messages.

    Raises:
        InputError: names the first setting that differs, and both values.
    """
    # In JSON, tuples and lists are the same.
    current, defaults = json.loads(json.dumps([current, {**defaults, **_BEFORE}]))
    saved, current = _sealed_like(saved, current), _sealed_like(current, saved)
    now, then = flatten(current), flatten(saved)
    later = {key for key in now.keys() - then.keys() if key in defaults and defaults[key] == now[key]}
    # A setting that explains other contents is named before these.
    names = sorted((now.keys() | then.keys()) - later - _MACHINE, key=lambda name: (name.endswith(".content"), name))
    different = [name for name in names if now.get(name) != then.get(name)]
    as_before = f"as in checkpoint {checkpoint}"
    for here, there, wanted, got in ((now, then, "there", "nothing"), (then, now, "left out", "it")):
        sections = set(_sections(here))
        for name in different:
            missing = [part for part in _sections([name])[:-1] if part not in sections]
            if name in there and missing:
                raise InputError(missing[0], f"{wanted} {as_before}", got)
    for name in different:
        client, _, last = name.removeprefix("data.").rpartition(".")
        if last == SEALED:
            got = "other data or other settings of it (its site sends a digest of them only)"
            raise InputError(f"data.{client}", as_before, got)
        raise InputError(name, f"{then.get(name)!r} {as_before}", repr(now.get(name)))


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names, a class under the name of what it is chosen for; empty mappings are left out.

    >>> flatten({"model": {"class_path": "GNN", "init_args": {"lr": 0.001}}, "data": {"class": "TU"}, "callbacks": {}})
    {'model': 'GNN', 'model.lr': 0.001, 'data': 'TU'}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = prefix.rstrip(".") if prefix and key in ("class_path", "init_args", "class") else f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``values`` that JSON can hold: what settings of a run can be compared by."""
    return {name: value for name, value in values.items() if _is_json(value)}


def sealed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What another owner may know of a client's data.

    Args:
        settings: what the client says of itself at home, with ``num_train_samples``; or what this function made of it.

    Returns:
        ``num_train_samples``, and a digest of all of them, by which data that has changed is noticed; ``trainer``, the
        fields of a site's own, stays as it is.
    """
    if SEALED in settings:
        return dict(settings)
    own = {key: settings[key] for key in ("trainer",) if key in settings}
    text = json.dumps({key: value for key, value in settings.items() if key not in own})
    plain = json.loads(text, parse_float=lambda digits: int(float(digits)) if float(digits) % 1 == 0 else float(digits))
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
    return {"num_train_samples": settings["num_train_samples"], SEALED: digest, **own}


def _sealed_like(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """``one``, the data of those clients sealed whose data ``other`` has sealed, as sites send it."""
    theirs = other.get("data", {})
    data = {name: sealed(of) if SEALED in theirs.get(name, {}) else of for name, of in one.get("data", {}).items()}
    return {**one, "data": data} if data else dict(one)


def _sections(names: Iterable[str]) -> list[str]:
    """All names, and those of the sections they are in, outermost first: ``a``, ``a.b`` and ``a.b.c`` of ``a.b.c``."""
    return [section for name in names for section in accumulate(name.split("."), "{}.{}".format)]


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
