"""What objects were made with, for comparing a run with the one that goes on from it."""

from __future__ import annotations

import copy
from typing import Any

from pytorch_lightning.core.mixins.hparams_mixin import HyperparametersMixin

from flgraph.federation.callback import FederatedCallback, defaults
from flgraph.runs.compatibility import plain_values


def describe(value: Any, depth: int = 2) -> tuple[dict[str, Any], dict[str, Any]]:
    """Class and constructor arguments of an object, and those arguments' defaults; plain values only.

    Arguments that are objects are described likewise, those that are functions or classes by their names. They are
    copies: what becomes of the object does not change its description.

    Args:
        value: a federated callback or algorithm, which notes its arguments; a Lightning module or datamodule, with what
            it saved as hyper-parameters; or anything else, with its public attributes.
        depth: how deep arguments of arguments are described.
    """
    kind = type(value)
    if hasattr(value, "__qualname__"):  # a function that makes models
        return {"class": value.__qualname__}, {}
    if isinstance(value, FederatedCallback):
        # Of an argument that is no plain value, such as a graph, the algorithm may have made one.
        arguments = {
            name: given if plain_values({name: given}) else getattr(value, name, given)
            for name, given in value.arguments.items()
        }
    elif isinstance(value, HyperparametersMixin):
        arguments = dict(value.hparams)
    else:
        arguments = {name: own for name, own in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    plain = copy.deepcopy(plain_values(arguments))
    objects = {name: own for name, own in arguments.items() if name not in plain and depth and _is_object(own)}
    nested = {name: describe(own, depth - 1)[0] for name, own in objects.items()}
    return {"class": kind.__name__, **plain, **nested}, plain_values(defaults(kind))


def comparable(saved: dict[str, Any], current: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of two runs with what both have: callbacks may come and go, and sites have a datamodule of their own."""
    then, now = saved.get("callbacks", {}), current["callbacks"]
    # Where the datamodule is another one, what its clients' data is made of is compared all the same.
    other = saved.get("datamodule", {}).get("class") != current["datamodule"]["class"]
    common: dict[str, Any] = {"datamodule": {}} if other else {}
    return (
        {**saved, **common, "callbacks": {name: own for name, own in then.items() if name in now}},
        {**current, **common, "callbacks": {name: own for name, own in now.items() if name in then}},
    )


def _is_object(value: Any) -> bool:
    return hasattr(value, "__qualname__") or type(value).__module__ != "builtins"
