"""Federations of plain LightningDataModules, one per client."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import IterableDataset

from flgraph.errors import InputError, expect
from flgraph.federation.data import FederatedData
from flgraph.federation.template import Model
from flgraph.hooks import overrides
from flgraph.runs.compatibility import plain_values

_UNCALLED = (
    *("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer"),
    *("state_dict", "load_state_dict"),
)
_PARTS = ("name", "clients", "client", "prepare_data", "setup")
"""What :class:`FederatedData` has."""


@dataclass
class PlainFederation:
    """A federation of clients with a plain LightningDataModule each.

    Args:
        modules: client to its data.
    """

    modules: dict[str, pl.LightningDataModule]

    @property
    def name(self) -> str:
        """The clients' names, or their number where they are many."""
        return "-".join(self.clients).lower() if len(self.clients) <= 3 else f"{len(self.clients)}-clients"

    @property
    def clients(self) -> list[str]:
        """Names of the clients, in the order in which they were given."""
        return list(self.modules)

    def client(self, name: str) -> Any:
        """A client's data: the datamodule itself where it tells what a client must, else with what its data tells."""
        module = self.modules[name]
        tells = hasattr(type(module), "num_train_samples") and hasattr(type(module), "model_args")
        return module if tells else PlainClient(name, module)

    def prepare_data(self) -> None:
        """Nothing: every client's own is called before it is made."""

    def setup(self, stage: str) -> None:
        """Nothing, likewise."""


class PlainClient(pl.LightningDataModule):
    """A plain LightningDataModule as a client's data.

    ``num_train_samples`` is the length of the training loader's data set. ``model_args``, the sizes that a template
    leaves open, are the datamodule's own where it has some; otherwise ``in_channels`` (or ``in_features``) is the last
    dimension of the first sample's features, and ``num_classes`` that of the data set (as PyG's have).

    Args:
        name: of the client.
        module: its data.

    Raises:
        InputError: the datamodule has a hook that would not be called.
    """

    def __init__(self, name: str, module: pl.LightningDataModule) -> None:
        super().__init__()
        self.client_name, self.module = name, module
        for hook in _UNCALLED:
            own = overrides(module, pl.LightningDataModule, [hook])
            expect(not own, f"datamodule.{hook}", "in the model or the data set, as clients do not call it here,", name)
        self.settings = plain_values(dict(module.hparams))
        self._loaders: dict[str, Any] = {}
        self._stages: set[str] = set()

    def prepare_data(self) -> None:
        """As the datamodule does."""
        self.module.prepare_data()

    def setup(self, stage: str) -> None:
        """Nothing yet: the datamodule is set up for each stage that a loader is asked of."""
        self._loaders, self._stages = {}, set()

    def _loader(self, name: str, stage: str) -> Any:
        """The datamodule's loader, made once, as sizes are asked of it, too; none where it has none."""
        own = overrides(self.module, pl.LightningDataModule, [name])
        if own and name not in self._loaders:
            if stage not in self._stages:
                self.module.setup(stage)
                self._stages.add(stage)
            self._loaders[name] = getattr(self.module, name)()
        return self._loaders.get(name)

    def train_dataloader(self) -> Any:
        return self._loader("train_dataloader", "fit")

    def val_dataloader(self) -> Any:
        return self._loader("val_dataloader", "fit")

    def test_dataloader(self) -> Any:
        return self._loader("test_dataloader", "test")

    def predict_dataloader(self) -> Any:
        return self._loader("predict_dataloader", "predict")

    @property
    def _train_set(self) -> Any:
        return getattr(self.train_dataloader(), "dataset", None)

    @property
    def num_train_samples(self) -> int:
        """The datamodule's own, or samples in the data set of the training loader."""
        if hasattr(self.module, "num_train_samples"):
            return int(self.module.num_train_samples)
        field, train_set = f"num_train_samples` of datamodule `{self.client_name}", self._train_set
        try:
            return len(train_set)
        except TypeError:
            what = "a `train_dataloader` without a data set of a known length"
            raise InputError(field, "given, as it is the client's weight in averages,", what) from None

    @property
    def model_args(self) -> dict[str, Any]:
        """Sizes that the data decides, as far as they are known."""
        if hasattr(self.module, "model_args"):
            return dict(self.module.model_args)
        train_set = self._train_set
        width = _width(train_set)
        sizes = {"in_channels": width, "in_features": width, "num_classes": getattr(train_set, "num_classes", None)}
        return {name: size for name, size in sizes.items() if isinstance(size, int)}


def _width(data_set: Any) -> int | None:
    """Features of a sample: the last dimension of its ``x``, or of its first tensor."""
    listed = isinstance(data_set, Sized) and not isinstance(data_set, IterableDataset)
    if not listed or not hasattr(data_set, "__getitem__") or not len(data_set):
        return None
    first = data_set[0]
    x = first[0] if isinstance(first, (tuple, list)) and first else getattr(first, "x", first)
    return x.shape[-1] if isinstance(x, torch.Tensor) and x.dim() and x.is_floating_point() else None


def federated(datamodule: Any) -> FederatedData:
    """What was given to a trainer as a federation's data.

    Args:
        datamodule: a federated datamodule, or client to LightningDataModule.

    Raises:
        InputError: it is neither; the sentence says what came.
    """
    if isinstance(datamodule, Mapping):
        for name, module in datamodule.items():
            if not isinstance(name, str):
                raise InputError("datamodule", "LightningDataModules by names", f"one by {type(name).__name__}")
            if not isinstance(module, pl.LightningDataModule):
                raise InputError(f"datamodule[{name!r}]", "a LightningDataModule", what_is(module))
        return PlainFederation(dict(datamodule))
    if all(hasattr(datamodule, part) for part in _PARTS) and not isinstance(datamodule, type):
        given: FederatedData = datamodule
        return given
    one = isinstance(datamodule, pl.LightningDataModule)
    names = "one per client, {'north': datamodule, ...}," if one else "a federated datamodule or {'north': datamodule}"
    raise InputError("datamodule", names, what_is(datamodule))


def check_model(model: Any) -> Model:
    """What was given to a trainer as a model.

    Raises:
        InputError: it is no LightningModule and no function that makes one.
    """
    lightning = isinstance(model, pl.LightningModule)
    called = callable(model) and not isinstance(model, (type, torch.nn.Module))
    if not lightning and not called:
        raise InputError("model", "a LightningModule, or a function from a client's data to one,", what_is(model))
    given: Model = model
    return given


def what_is(thing: Any) -> str:
    """What something is, with its package where it is Lightning's other one."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}, which is not called yet"
    other = next((k for k in type(thing).__mro__ if k.__module__.startswith("lightning.pytorch")), None)
    return type(thing).__name__ + (f", a {other.__name__} of `lightning`, not `pytorch_lightning`" if other else "")
