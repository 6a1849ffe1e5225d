"""The same run gives the same bits wherever its clients run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
try:
    from methods import METHODS
finally:
    sys.path.pop(0)


@pytest.mark.parametrize("where", ["two", "three", "two-then-one", "one-then-three"])
@pytest.mark.parametrize("method", METHODS)
def test_same_bits(
    method: str, where: str, runs: Path, measured: Callable[[Path], dict[str, Any]], assert_same: Callable[..., None]
) -> None:
    folders = sorted((runs / where / method).glob("version_*"))
    assert [folder.name for folder in folders] == ["version_0"]  # one process writes, and a resumed run goes on
    one, other = measured(runs / "one" / method / "version_0"), measured(folders[0])
    assert len(one["clients"]) == 4
    assert_same(other, one)
