"""What objects were made with, for comparing a run with the one that goes on from it."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.core.mixins.hparams_mixin import HyperparametersMixin

from flgraph.federation.callback import FederatedCallback, defaults
from flgraph.runs.compatibility import plain_values


def describe(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Class and constructor arguments of an object, and those arguments' defaults; plain values only.

    Args:
        value: a federated callback or algorithm, which notes its arguments; a Lightning module or datamodule, with what
            it saved as hyper-parameters; or anything else, with its public attributes.
    """
    kind = type(value)
    if isinstance(value, FederatedCallback):
        arguments = dict(value.arguments)
    elif isinstance(value, HyperparametersMixin):
        arguments = dict(value.hparams)
    elif isinstance(value, pl.Callback) or not callable(value):
        arguments = {name: own for name, own in vars(value).items() if not name.startswith("_")}
    else:  # a function that makes models
        return {"class": getattr(value, "__qualname__", kind.__qualname__)}, {}
    nested = {name: describe(own)[0] for name, own in arguments.items() if type(own).__module__.startswith("flgraph.")}
    return {"class": kind.__name__, **plain_values({**arguments, **nested})}, plain_values(defaults(kind))
