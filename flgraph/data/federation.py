"""What the data of every federation has: a name, clients, and its arguments."""

from __future__ import annotations

from typing import Generic, TypeVar

import pytorch_lightning as pl

C = TypeVar("C")
"""A client's data."""


class Federation(pl.LightningDataModule, Generic[C]):
    """Several clients' data.

    All constructor arguments, those of subclasses too, are in ``hparams``, which a run that goes on compares with what
    it began with. Left out are those that say where data lies, and data itself, for which its name stands.

    Args:
        name: how runs on this data are called.
        dataset: name of the data, where it is one data set.
    """

    name: str  # Lightning's own may be None; the trainer needs one

    def __init__(self, name: str, dataset: str | None = None) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["graphs", "dataset", "root", "cache_dir", "manifest"], logger=False)
        if dataset is not None:
            self.hparams["dataset"] = dataset
        self.name = name
        self._clients: dict[str, C] = {}

    @property
    def clients(self) -> list[str]:
        """Names of the clients; known after ``setup``."""
        return list(self._clients)

    def client(self, name: str) -> C:
        """A client's data; known after ``setup``."""
        return self._clients[name]
