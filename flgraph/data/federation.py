"""What the data of every federation has: a name, clients, and its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import pytorch_lightning as pl

from flgraph.errors import expect

C = TypeVar("C")
"""A client's data."""


class ClientDataModule(pl.LightningDataModule):
    """One client's data: ``graph``, or ``graphs``."""

    def __str__(self) -> str:
        """Lightning's own looks into torch's loaders, and fails at others."""
        held = vars(self)
        return f"{type(self).__name__}({held.get('graph', held.get('graphs'))})"


class Federation(pl.LightningDataModule, Generic[C]):
    """Several clients' data.

    All constructor arguments, those of subclasses too, are in ``hparams``, which a run that goes on compares with what
    it began with. Left out are those that say where data lies, and data itself, for which its name stands.

    Args:
        name: how runs on this data are called.
        dataset: name of the data, where it is one data set.
    """

    name: str  # Lightning's own may be None; the trainer needs one

    class_names: Sequence[str] = ()
    """Names of the classes in the order of their numbers, where own files have some; known after ``setup``."""

    def __init__(self, name: str, dataset: str | None = None) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["graphs", "dataset", "root"], logger=False)
        if dataset is not None:
            self.hparams["dataset"] = dataset
        self.name = name
        self._clients: dict[str, C] = {}

    @property
    def clients(self) -> list[str]:
        """Names of the clients; known after ``setup``."""
        return list(self._clients)

    def client(self, name: str) -> C:
        """A client's data; known after ``setup``.

        Raises:
            InputError: there is none of this name.
        """
        known = ", ".join(self.clients) or "none before setup()"
        expect(name in self._clients, "client", f"one of the clients ({known})", name)
        return self._clients[name]
