"""What objects were made with, for comparing a run with the one that goes on from it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pytorch_lightning.core.mixins.hparams_mixin import HyperparametersMixin

from flgraph.federation.callback import FederatedCallback, defaults
from flgraph.federation.routes import RoutingTable
from flgraph.runs.compatibility import MACHINE, flatten, plain_values
from flgraph.runs.keys import canonical


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


def describe_run(
    seed: int,
    trainer: Mapping[str, Any],
    aggregator: FederatedCallback,
    callbacks: Sequence[Any],
    model: Any,
    datamodule: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a run must share to continue from its checkpoints, under the names that users know, and defaults of it.

    Args:
        seed: of the run.
        trainer: arguments of the trainer that decide what a run computes.
        aggregator: the algorithm.
        callbacks: those that were given to the trainer.
        model: see :meth:`FederatedTrainer.fit`.
        datamodule: see there.
    """
    settings: dict[str, Any] = {"seed": seed, "trainer": dict(trainer), "callbacks": {}}
    usual: dict[str, Any] = {"trainer": {"personal": []}, "callbacks": {}}
    settings["trainer"]["aggregator"], usual["trainer"]["aggregator"] = describe(aggregator)
    for callback in callbacks:
        own, default = describe(callback)
        same = sum(other["class"] == own["class"] for other in settings["callbacks"].values())
        name = f"{own['class']} {same + 1}" if same else own["class"]
        settings["callbacks"][name], usual["callbacks"][name] = own, default
    settings["model"], usual["model"] = describe(model)
    settings["datamodule"], usual["datamodule"] = describe(datamodule)
    return settings, usual


def algorithm_digest(
    aggregator: Any, routing: RoutingTable, transforms: Sequence[Any] = (), secure_sums: Any = None
) -> str:
    """What a client's tensors are subject to, in 64 digits: the algorithm, its arguments, routes, transforms, masks.

    The agreement among clients, arguments of the default value and where something is computed have no part in it.
    """
    own, usual = json.loads(canonical(describe(aggregator)))  # where tuples and lists are the same
    given = {name: value for name, value in own.items() if name not in usual or usual[name] != value}
    arguments = {n: value for n, value in flatten(given, "trainer.aggregator.").items() if n not in MACHINE}
    rules = [(name, row.form, row.route.kind, row.route.on_mismatch) for name, row in routing.rows.items()]
    kind = f"{type(aggregator).__module__}.{type(aggregator).__qualname__}"
    leaves = [sorted(routing.extra.items()), sorted(routing.scalars), sorted(routing.metrics)]
    further = [describe(own)[0] for own in (*transforms, secure_sums) if own is not None]
    return hashlib.sha256(canonical([kind, arguments, sorted(rules), leaves, *further])).hexdigest()


def _is_object(value: Any) -> bool:
    return hasattr(value, "__qualname__") or type(value).__module__ != "builtins"
