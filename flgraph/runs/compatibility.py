"""Which settings a run must share with a checkpoint to continue from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from flgraph.errors import InputError
from flgraph.runs.keys import canonical, derive_key, signature

SITES = "SitesData"
"""Class of the datamodule of a server whose clients are at sites."""

SEALED = "settings_sha256"
"""Stands for a client's settings where nobody else may see them."""

_CLEAR = ("num_train_samples", "trainer")
"""What a site tells of a client beside the digest; ``trainer``, the fields of its own."""

_DIGESTS = {"declared": "data.classes` and `data.columns", "edges": "data.edge_columns"}
"""Settings of a client's own files that are digests, and the fields that these are of."""

MACHINE = {"trainer.aggregator.server_accelerator"}
"""Settings that say where something is computed: a run may go on on another machine."""


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
    current, defaults = json.loads(json.dumps([current, dict(defaults)]))
    saved, current = _as_the_other(saved, current), _as_the_other(current, saved)
    now, then = flatten(current), flatten(saved)
    later = {key for key in now.keys() - then.keys() if key in defaults and defaults[key] == now[key]}
    # A setting that explains other contents is named before these.
    names = sorted((now.keys() | then.keys()) - later - MACHINE, key=lambda name: (name.endswith(".content"), name))
    different = [name for name in names if now.get(name) != then.get(name)]
    as_before = f"as in checkpoint {checkpoint}"
    for name in ("trainer.aggregator", "model"):  # of others, all else is other, too
        if name in different:
            raise InputError(name, f"{then.get(name)!r} {as_before}", repr(now.get(name)))
    for here, there, wanted, got in ((now, then, "there", "nothing"), (then, now, "left out", "it")):
        sections = set(_sections(here))
        for name in different:
            missing = [part for part in _sections([name])[:-1] if part not in sections]
            if name in there and missing:
                raise InputError(missing[0], f"{wanted} {as_before}", got)
    for name in different:
        client, _, last = name.removeprefix("data.").rpartition(".")
        if last == SEALED:
            got = "other data or other settings of it, or a site with another secret (it sends a digest only)"
            raise InputError(f"data.{client}", as_before, got)
        if (declared := _DIGESTS.get(last)) and name.startswith("data."):
            raise InputError(declared, as_before, f"something else at `{client}`")
        if last == "content" and name.startswith("data."):
            raise InputError(f"data.{client}", f"the same data {as_before}", "other data: its files have changed")
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


def sealed(settings: Mapping[str, Any], key: bytes) -> dict[str, Any]:
    """What another owner may know of a client's data.

    Args:
        settings: what the client says of itself at home, with ``num_train_samples``.
        key: of the site: who does not have it cannot find the settings by trying.

    Returns:
        ``num_train_samples``, and a keyed digest of all of them, by which data that has changed is noticed.
    """
    text = json.dumps(dict(settings))
    plain = json.loads(text, parse_float=lambda digits: int(float(digits)) if float(digits) % 1 == 0 else float(digits))
    digest = signature(derive_key(key, "settings"), canonical(plain))[:32]
    return {"num_train_samples": settings["num_train_samples"], SEALED: digest}


def _as_the_other(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """``one``, with what can be compared where only one of the two has sealed a client's data, as sites do."""
    data = {}
    for name, of in one.get("data", {}).items():
        theirs = other.get("data", {}).get(name, of)
        both = (key for key in _CLEAR if key in of and (key in theirs or key == "trainer"))  # a number may be withheld
        data[name] = of if (SEALED in of) == (SEALED in theirs) else {key: of[key] for key in both}
    return {**one, "data": data} if data else dict(one)


def comparable(saved: dict[str, Any], current: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of two runs with what both have: callbacks may come and go, and sites have a datamodule of their own."""
    then, now = saved.get("callbacks", {}), current["callbacks"]
    # Where the datamodule is another one, what its clients' data is made of is compared all the same; of those sites
    # that are there.
    kind, sites = current["datamodule"]["class"], current["datamodule"]["class"] == SITES
    common: dict[str, Any] = {"datamodule": {}} if sites or saved.get("datamodule", {}).get("class") != kind else {}
    if sites:
        saved, current = (
            {**one, "data": {name: of for name, of in one["data"].items() if name in other["data"]}}
            for one, other in ((saved, current), (current, saved))
        )
    return (
        {**saved, **common, "callbacks": {name: own for name, own in then.items() if name in now}},
        {**current, **common, "callbacks": {name: own for name, own in now.items() if name in then}},
    )


def _sections(names: Iterable[str]) -> list[str]:
    """All names, and those of the sections they are in, outermost first: ``a``, ``a.b`` and ``a.b.c`` of ``a.b.c``."""
    return [section for name in names for section in accumulate(name.split("."), "{}.{}".format)]


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
