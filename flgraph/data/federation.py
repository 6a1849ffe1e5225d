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


def name_clients(given: Sequence[str] | None, count: int) -> list[str]:
    """The names of so many clients, which are ``client-1`` and so on where none are given.

    Raises:
        InputError: those that are given are no list of so many different names.
    """
    if given is None:
        return [f"client-{number}" for number in range(1, count + 1)]
    valid = not isinstance(given, str) and all(isinstance(name, str) and name for name in given)
    expect(valid, "data.client_names", "a list of names", given)
    known = len(set(given)) == len(given) == count
    expect(known, "data.client_names", f"{count} names, one for each client, all different,", list(given))
    return list(given)
