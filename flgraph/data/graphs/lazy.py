"""Parts of a PyG batch that are made when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.storage import GlobalStorage


class LazyStorage(GlobalStorage):
    """A storage of which some values are made when they are first read.

    Whatever looks at the storage as a whole (its keys, its length, a copy) makes all of them; moving it to a device
    does not.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._later: dict[str, Callable[[], Any]] = {}
        self._ready: dict[str, Any] = {}
        super().__init__(*args, **kwargs)

    @property
    def _mapping(self) -> dict[str, Any]:
        for key in list(self._later):
            self._ready[key] = self._later.pop(key)()
        return self._ready

    @_mapping.setter
    def _mapping(self, mapping: dict[str, Any]) -> None:
        self._ready = mapping

    def __getitem__(self, key: str) -> Any:
        if key in self._later:
            self._ready[key] = self._later.pop(key)()
        return self._ready[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._later.pop(key, None)
        if value is None:
            super().__setitem__(key, value)
        else:  # which needs no look at the others
            self._pop_cache(key)
            self._ready[key] = value

    def get(self, key: str, value: Any | None = None) -> Any:
        """The value under ``key``, or ``value``."""
        return self[key] if key in self._later else self._ready.get(key, value)

    def unmade(self, key: str) -> Callable[[], Any] | None:
        """What will make the value under ``key``, for who can do without the value; ``None`` where it is made."""
        return self._later.get(key)

    def apply(self, func: Callable[[Any], Any], *args: str) -> LazyStorage:
        """Applies ``func`` to the values (under ``args``, if given); to those not made yet, when they are."""
        later = {} if args else dict(self._later)
        for key in later:
            del self._later[key]
        super().apply(func, *args)
        self._later.update({key: partial(_made, make, func) for key, make in later.items()})
        return self

    def __getstate__(self) -> dict[str, Any]:
        _ = self._mapping  # a function may not be possible to send to another process; its result is
        state: dict[str, Any] = super().__getstate__()
        return state


def put_off(data: Data, key: str, make: Callable[[], Any]) -> None:
    """Sets ``data[key]`` to ``make()``, which is called when that is first read."""
    store = data._store
    if not isinstance(store, LazyStorage):
        private = {name: value for name, value in vars(store).items() if name not in ("_mapping", "_parent")}
        lazy = LazyStorage(store._mapping, _parent=data)
        lazy.__dict__.update(private)
        data.__dict__["_store"] = store = lazy
    store._later[key] = make


def _made(make: Callable[[], Tensor], func: Callable[[Tensor], Tensor]) -> Tensor:
    return func(make())
