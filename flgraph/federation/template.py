"""From the one model of the configuration to each client's own."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_warn
from torch.nn.parameter import is_lazy

from flgraph.errors import InputError, brief, expect
from flgraph.federation.callback import acts_in_rounds
from flgraph.federation.data import ClientData
from flgraph.federation.lightning_callbacks import check_callbacks
from flgraph.federation.seeding import derive_seed, seed_all
from flgraph.hooks import overrides

Model = pl.LightningModule | Callable[[ClientData], pl.LightningModule]
"""A template, or a function from a client's data to its model."""


def client_module(model: Model, data: ClientData, seed: int, name: str) -> pl.LightningModule:
    """Makes a client's model, with initial weights that depend on the seed and the client alone.

    A template is made anew from its saved hyper-parameters, those that it leaves open (-1 or None) taken from
    ``data.model_args``. One without ``save_hyperparameters`` is copied, weights included: these are then those that it
    was given, the same for all clients, whatever the seed.

    Raises:
        InputError: a hyper-parameter contradicts the data, a function makes something else, a parameter has no shape
            yet, or there is none for the optimizer.
    """
    seed_all(derive_seed(seed, name, "initial weights"))
    if isinstance(model, pl.LightningModule):
        module = _filled(model, data.model_args, f"the data of client `{name}`")
    else:
        module = model(data)
    made = type(module).__name__
    expect(isinstance(module, pl.LightningModule), "model", "a function that returns a LightningModule", made)
    unknown = [parameter for parameter, value in module.named_parameters() if is_lazy(value)]
    wanted = f"of sizes that its saved hyper-parameters or the data of client `{name}` (`model_args`) say"
    expect(not unknown, "model", wanted, f"{made} with `{''.join(unknown[:1])}` that waits for its first batch")
    late = overrides(module, pl.LightningModule, ["configure_model", "configure_sharded_model"])
    expect(
        not late, "model", "one that makes its layers in `__init__`, as routes are of these,", f"{made}.configure_model"
    )
    optimized = overrides(module, pl.LightningModule, ["configure_optimizers"])
    empty = next(module.parameters(), None) is None
    expect(not (optimized and empty), "model", wanted, f"{made} without parameters")
    return module


def callbacks_of(module: pl.LightningModule) -> list[pl.Callback]:
    """Takes the callbacks that a module configures: Lightning would ask for new ones at each fit, and so in every turn.

    Raises:
        InputError: one has no place in a client's Trainer.
    """
    if not overrides(module, pl.LightningModule, ["configure_callbacks"]):
        return []
    configured = module.configure_callbacks()
    field = f"{type(module).__name__}.configure_callbacks"
    check_callbacks(configured, field)
    listed = list(configured) if isinstance(configured, Sequence) else [configured]
    for callback in listed:
        what = type(callback).__name__
        expect(not acts_in_rounds(callback), field, "without what acts in rounds, as `trainer.callbacks` do,", what)
    module.configure_callbacks = list  # type: ignore[method-assign]  # of none any more
    return listed


def server_module(model: Model | None, sizes: Mapping[str, Any], seed: int) -> pl.LightningModule:
    """Makes a model like the clients' for the server half, with initial weights that depend on the seed alone.

    Args:
        model: the template.
        sizes: hyper-parameters that it leaves open. The server has no data: clients must have told them.
        seed: the run's.

    Raises:
        InputError: there is no template to make it of, or a hyper-parameter contradicts ``sizes``.
    """
    seed_all(derive_seed(seed, "server", 0))
    return _filled(as_template(model), sizes, "what clients tell")


def as_template(model: Model | None) -> pl.LightningModule:
    """The run's model where the server half can use it.

    Raises:
        InputError: it is a function of a client's data, which the server does not have.
    """
    if not isinstance(model, pl.LightningModule):
        raise InputError("model", "a LightningModule, as this algorithm's server half uses it, too,", brief(model))
    return model


def expect_classes(module: pl.LightningModule, what: str) -> None:
    """Refuses a model that learns several labels or numbers, as its ``task`` says, for what needs classes.

    Raises:
        InputError: names ``what``.
    """
    task = getattr(module, "task", "multiclass")
    expect(task == "multiclass", "model.task", f"multiclass for {what}, which needs classes,", task)


def check_monitors(monitors: Mapping[str, str | None], module: pl.LightningModule) -> None:
    """Refuses metrics of validation that a module will not report, as far as it says (``validation_names``).

    Args:
        monitors: field to metric; ``None`` for one that is not given.
        module: a client's.

    Raises:
        InputError: names the field.
    """
    names = [f"val/{name}" for name in getattr(module, "validation_names", None) or ()]
    for field, metric in monitors.items():
        asked = bool(metric) and (str(metric).startswith("val/") or "/" not in str(metric))
        expect(not names or not asked or metric in names, field, f"one of {', '.join(names)}", metric)


def _filled(model: pl.LightningModule, sizes: Mapping[str, Any], source: str) -> pl.LightningModule:
    given = _arguments(type(model), dict(model.hparams))
    if "edge_channels" in sizes and "edge_channels" not in (given or {}):
        rank_zero_warn(f"Edges have features, which {type(model).__name__} makes no use of.")
    if given is None:
        return copy.deepcopy(model)
    for key, value in sizes.items():
        if key not in given or given[key] == 0:  # a size of 0 means that the model does without
            continue
        if given[key] is not None and given[key] not in (-1, value):
            raise InputError(f"model.{key}", f"{value}, as in {source},", given[key])
        given[key] = value
    if sizes and given.get("edge_channels") == -1:  # no edge has features
        given["edge_channels"] = 0
    return type(model)(**given)


def _arguments(kind: type[pl.LightningModule], hparams: dict[str, Any]) -> dict[str, Any] | None:
    """What a module of this class is made anew with; ``None`` if its hyper-parameters do not tell."""
    parameters = list(inspect.signature(kind).parameters.values())
    named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    # One that was left out (`save_hyperparameters(ignore=...)`) would be lost, even where it has a default.
    if not hparams or not hparams.keys() >= set(named):
        return None
    if any(p.kind == p.VAR_KEYWORD for p in parameters):
        return dict(hparams)
    return {name: hparams[name] for name in named}  # a base class may have saved others
