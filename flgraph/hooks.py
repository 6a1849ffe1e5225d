"""Which hooks of Lightning's something has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def overrides(one: Any, base: type, names: Iterable[str]) -> bool:
    """Whether any attribute of an object is another than its base class's.

    It may be so in the object itself, as the hooks of Lightning's ``LambdaCallback`` are.

    Args:
        one: for example a callback.
        base: the class of Lightning's that it derives from.
        names: of hooks.
    """
    own, kind = getattr(one, "__dict__", {}), type(one)
    return any(name in own or getattr(kind, name, None) is not getattr(base, name, None) for name in names)
