"""The disk cache of tensors."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flgraph.data import cache
from flgraph.data.cache import cache_folder, cached, content_key

pytestmark = pytest.mark.usefixtures("own_cache")


class Counter:
    """Makes the same tensors at every call, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0
        base = torch.arange(12.0).view(3, 4)
        self.tensors = {
            "a": base,
            "view": base.t(),
            "row": base[1],
            "empty": torch.zeros(0, 3, dtype=torch.int32).max(dim=1).values[:0],
            "flag": torch.tensor(True),
            "half": torch.ones(2, dtype=torch.bfloat16),
        }

    def __call__(self) -> dict[str, Tensor]:
        self.calls += 1
        return self.tensors


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[key].dtype == other[key].dtype and torch.equal(one[key], other[key]) for key in one
    )


def test_second_call_reads(own_cache: Path) -> None:
    compute = Counter()
    first = cached("k", compute)
    second = cached("k", compute)
    assert compute.calls == 1
    assert same(first, compute.tensors)
    assert same(second, compute.tensors)
    assert [path.name for path in own_cache.iterdir()] == ["k.safetensors"]


def test_folder_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLGRAPH_CACHE", str(tmp_path / "deep" / "er"))
    compute = Counter()
    cached("k", compute)
    cached("k", compute)
    assert compute.calls == 1
    assert (tmp_path / "deep" / "er" / "k.safetensors").is_file()
    monkeypatch.delenv("FLGRAPH_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "flgraph"


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "flipped bit"])
def test_damaged_file_is_replaced(own_cache: Path, damage: str) -> None:
    compute = Counter()
    cached("k", compute)
    path = own_cache / "k.safetensors"
    whole = path.read_bytes()
    flipped = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]
    path.write_bytes({"truncated": whole[:-5], "empty": b"", "garbage": b"x" * 99, "flipped bit": flipped}[damage])
    assert same(cached("k", compute), compute.tensors)
    assert compute.calls == 2
    assert path.read_bytes() == whole


def test_unwritable_folder_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_warned", False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLGRAPH_CACHE", str(tmp_path / "file" / "folder"))
    compute = Counter()
    with pytest.warns(UserWarning, match="Nothing is cached, because .* cannot be written"):
        assert same(cached("k", compute), compute.tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached("k", compute)
    assert compute.calls == 2


def test_files_are_as_readable_as_others(tmp_path: Path) -> None:
    cached("k", Counter())
    (tmp_path / "other").touch()
    modes = {path.stat().st_mode for path in tmp_path.rglob("*") if path.is_file()}
    assert len(modes) == 1


def test_interrupted_write_leaves_nothing(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cached("k", Counter())
    assert list(own_cache.iterdir()) == []


def test_error_of_compute_passes() -> None:
    def fail() -> dict[str, Tensor]:
        raise OSError("not the cache's fault")

    with pytest.raises(OSError, match="not the cache's fault"):
        cached("k", fail)


def test_keys_differ() -> None:
    x = torch.arange(6)
    parts: list[tuple[object, ...]] = [
        (),
        (None,),
        (1,),
        (1.0,),
        (True,),
        ("1",),
        (b"1",),
        ("a", "b"),
        ("ab",),
        (("a", "b"),),
        ({"a": "b"},),
        (x,),
        (x.int(),),
        (x.view(2, 3),),
        (x + 1,),
        (Path("1"),),
        (x[:0],),
    ]
    keys = [content_key(*part) for part in parts]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 64 for key in keys)


def test_equal_content_has_equal_keys() -> None:
    x = torch.arange(12).view(3, 4)
    assert content_key(x.t()) == content_key(x.t().contiguous())
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    assert content_key([1, 2]) == content_key((1, 2))
    with pytest.raises(TypeError, match="but got object"):
        content_key(object())
