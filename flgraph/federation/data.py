"""What the loop needs of data: a federation's, and one client's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from flgraph.errors import expect


class ClientData(Protocol):
    """What a client must hold; any LightningDataModule with ``num_train_samples`` and ``model_args`` will do.

    It may also have ``prediction_rows``, what ``predict_dataloader`` goes over, a list of values for each
    heading: ``{"node": [7, 9], "split": ["train", "test"]}``. They are written beside the predictions.
    """

    @property
    def num_train_samples(self) -> int:
        """The client's weight in averages."""

    @property
    def model_args(self) -> Mapping[str, Any]:
        """Plain values: arguments of the model that the data decides, such as ``in_channels`` and ``num_classes``."""

    def train_dataloader(self) -> Any:
        """Batches to train on."""

    def val_dataloader(self) -> Any:
        """Batches to validate on."""

    def test_dataloader(self) -> Any:
        """Batches to test on."""

    def predict_dataloader(self) -> Any:
        """Batches to predict."""


@runtime_checkable
class Movable(Protocol):
    """Client data that can be kept on the client's device, so that batches need no copy from the host."""

    def to(self, device: torch.device) -> Any:
        """Moves the data."""


class FederatedData(Protocol):
    """What the trainer needs of a federated datamodule.

    One may also have ``statistics``, plain values about the partition that go into ``results.json`` as
    ``partition``; ``figures()``, tag to matplotlib figure, which TensorBoard shows; ``partition_file()``, the content
    of the run's ``partition.npz``; and ``release(name)``, which lets go of the data of a client that has moved to
    another process. Where there are several processes, each asks for the data of its own clients only, but for the
    ``partition_file()`` of the one that leads, which may load the others' for a moment.
    """

    @property
    def name(self) -> str:
        """How runs on this data are called."""

    @property
    def clients(self) -> Sequence[str]:
        """Names of the clients; they serve as file names."""

    def client(self, name: str) -> ClientData:
        """A client's data."""

    def prepare_data(self) -> None:
        """Fetches what is not there."""

    def setup(self, stage: str) -> None:
        """Makes the data ready; called before the others."""


def check_client_data(data: object, name: str) -> None:
    """Refuses what lacks a part of :class:`ClientData` that Lightning's datamodules do not have.

    Raises:
        InputError: names the part.
    """
    for part in ("num_train_samples", "model_args"):
        there = hasattr(type(data), part) or hasattr(data, part)
        expect(there, f"data of client `{name}", f"with `{part}`", f"{type(data).__name__} without")


def client_names(datamodule: FederatedData) -> list[str]:
    """The names of a federation's clients, once its data is ready.

    Raises:
        InputError: there is no client, two have one name, or a name cannot be a file name.
    """
    names = list(datamodule.clients)
    expect(len(names) > 0, "data.clients", "at least one client", "none")
    expect(len(set(names)) == len(names), "data.clients", "different names", names)
    for name in names:
        fits = is_file_name(name) and name != "mean"
        expect(fits, "data.clients", "names that can be file names, and none of them `mean`,", name)
    return names


def is_file_name(name: object) -> bool:
    """Whether a file, and a checkpoint, can be called so."""
    if not isinstance(name, str):
        return False
    fits = len(f"{name}.ckpt".encode()) <= 255  # what file systems take
    return fits and bool(re.fullmatch(r"[^/\\\0]+", name)) and name not in (".", "..")


def described_of(data: ClientData) -> dict[str, Any]:
    """What a client's data tells of itself."""
    return {"num_train_samples": data.num_train_samples, **data.model_args, **getattr(data, "settings", {})}
