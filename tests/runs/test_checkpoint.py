from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from flgraph.callbacks import FedAvg, Local
from flgraph.errors import InputError
from flgraph.runs import checkpoint
from flgraph.runs.checkpoint import CheckpointStore, find_checkpoint, link_or_copy, load_file, read_manifest, save_file

SETTINGS = {"seed": 0, "trainer": {"local_epochs": 1}}


def write_clients(folder: Path, previous: Path | None) -> dict[str, Any]:
    return {f"{n}.ckpt": save_file({"name": n, "w": torch.arange(3)}, folder / f"{n}.ckpt") for n in "AB"}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "name" / "version_0" / "checkpoints", keep=2)


def save(store: CheckpointStore, *rounds: int, best: int | None = None) -> None:
    for round in rounds:
        store.save(round, f"server {round}".encode(), write_clients, SETTINGS, best)


# -------------------------------------------------------------------------------------------------------- what stays
def test_keeps_the_newest_and_the_best(store: CheckpointStore) -> None:
    save(store, 1, 2, 3, 4, best=1)
    assert store.rounds() == [1, 3, 4]
    save(store, 5, best=5)  # the old best goes
    assert store.rounds() == [4, 5]


def test_links_to_last_and_best(store: CheckpointStore) -> None:
    save(store, 1, 2, 3, best=1)
    assert (store.folder / "last").resolve() == store.path(3).resolve()
    assert (store.folder / "best").resolve() == store.path(1).resolve()
    assert not Path(os.readlink(store.folder / "last")).is_absolute(), "a run folder can be moved"


def test_a_round_holds_what_the_documentation_says(store: CheckpointStore) -> None:
    save(store, 37)
    files = sorted(str(path.relative_to(store.folder)) for path in store.folder.rglob("*") if path.is_file())
    names = ("clients/A.ckpt", "clients/B.ckpt", "manifest.json", "server.safetensors")
    assert [file for file in files if not file.startswith("last")] == [f"round-00037/{name}" for name in names]
    manifest = read_manifest(store.path(37))
    assert manifest["round"] == 37
    assert manifest["settings"] == SETTINGS
    assert sorted(manifest["files"]) == ["clients/A.ckpt", "clients/B.ckpt", "server.safetensors"]


def test_folders_of_other_names_are_left_alone(store: CheckpointStore) -> None:
    save(store, 1, 2)
    others = [store.folder / f"round-{name}" for name in ("00050-keep", "x", "7", "000050", "0005\u0661")]
    for other in others:
        shutil.copytree(store.path(2), other)
    (store.folder / "round-00099").touch()  # no folder
    save(store, 3)
    assert store.rounds() == [2, 3]
    assert find_checkpoint("last", store.folder.parent.parent) == store.path(3).resolve()
    store.discard_after(2)
    assert find_checkpoint("last", store.folder.parent.parent) == store.path(2).resolve()
    assert all(other.is_dir() for other in others)
    save(store, 123_456)
    assert store.rounds() == [2, 123_456]


# --------------------------------------------------------------------------------------------------------- atomicity
@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyboardInterrupt(), OSError(errno.EIO, "broken")])
def test_an_error_while_writing_leaves_whole_checkpoints_only(store: CheckpointStore, error: BaseException) -> None:
    def fail(folder: Path, previous: Path | None) -> dict[str, Any]:
        write_clients(folder, previous)
        raise error

    save(store, 1)
    before = {path.name: path.read_bytes() for path in store.path(1).rglob("*") if path.is_file()}
    with pytest.raises((type(error), InputError)):
        store.save(2, b"server", fail, SETTINGS)
    assert store.rounds() == [1]
    assert store.last() == store.path(1)
    assert find_checkpoint("last", store.folder.parent.parent) == store.path(1).resolve()
    read_manifest(store.path(1))
    assert {path.name: path.read_bytes() for path in store.path(1).rglob("*") if path.is_file()} == before
    save(store, 2)  # over whatever was left
    read_manifest(store.path(2))
    assert sorted(path.name for path in store.folder.iterdir()) == ["last", "round-00001", "round-00002"]


def test_a_kill_between_any_two_steps_leaves_a_whole_last(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops the writer before each of its calls that change the disk, one after another."""

    class Killed(BaseException):
        pass

    save(store, 1)
    steps = 0
    while True:
        left = steps

        def step(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ("replace", "fsync", "symlink", "mkdir", "rmdir", "unlink"):
                patch.setattr(os, name, step(getattr(os, name)))
            with suppress(Killed):
                save(store, 2)
                break
        last = find_checkpoint("last", store.folder.parent.parent)
        assert read_manifest(last)["round"] in (1, 2)
        for round in store.rounds():
            read_manifest(store.path(round))
        steps += 1
    assert steps > 8
    assert read_manifest(find_checkpoint("last", store.folder.parent.parent))["round"] == 2


def test_a_full_disk_is_one_sentence(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        InputError,
        match=r"^Expected `.*checkpoints` to be writable for the checkpoint of round 2 but got No space",
    ):
        save(store, 2)
    assert sorted(path.name for path in store.folder.iterdir()) == ["last", "round-00001"]
    read_manifest(store.path(1))


@pytest.mark.parametrize("numbers", [50_000, 1_000_000])
def test_a_file_that_does_not_fit_is_an_os_error(tmp_path: Path, numbers: int) -> None:
    """torch.save raises RuntimeError when the disk is full, which is not what the store looks for."""
    resource, signal = pytest.importorskip("resource"), pytest.importorskip("signal")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(OSError, match="too large"):
            save_file({"w": torch.zeros(numbers)}, tmp_path / "file")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


# -------------------------------------------------------------------------------------------------------- inspection
@pytest.mark.parametrize("name", ["clients/A.ckpt", "server.safetensors"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), r"to be whole \(\d+ bytes\) but got \d+ bytes;"),
        (lambda file: file.write_bytes(b"?" + file.read_bytes()[1:]), "but got .* bytes of other content"),
        (lambda file: file.unlink(), "to be a checkpoint with .* but got none"),
    ],
    ids=["cut", "altered", "missing"],
)
def test_the_manifest_detects_damage(
    store: CheckpointStore, name: str, damage: Callable[[Path], Any], message: str
) -> None:
    save(store, 1, 2)
    damage(store.path(2) / name)
    with pytest.raises(InputError, match=message) as caught:
        read_manifest(store.path(2))
    assert name in str(caught.value)
    assert f"an older checkpoint is there: continue with --ckpt_path {store.path(1)}" in str(caught.value)
    read_manifest(store.path(1))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"files": 3}'])
def test_a_broken_manifest_is_an_input_error(store: CheckpointStore, text: str) -> None:
    save(store, 1)
    (store.path(1) / "manifest.json").write_text(text)
    with pytest.raises(InputError, match="to be a whole manifest"):
        read_manifest(store.path(1))


def test_client_files_are_read_as_tensors_and_plain_values(tmp_path: Path) -> None:
    torch.save({"w": Path("anything")}, tmp_path / "A.ckpt")
    with pytest.raises(InputError, match="to be a client's checkpoint but got UnpicklingError"):
        load_file(tmp_path / "A.ckpt")
    (tmp_path / "B.ckpt").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="to be a client's checkpoint"):
        load_file(tmp_path / "B.ckpt")


# ------------------------------------------------------------------------------------------------- finding, discarding
def test_finds_a_checkpoint_by_any_of_its_names(store: CheckpointStore) -> None:
    save(store, 1, 2, best=1)
    run, runs = store.folder.parent, store.folder.parent.parent
    (runs / "version_1").mkdir()  # a run that was stopped before its first checkpoint
    (runs / "version_x").mkdir()
    for name in ("last", str(run), str(store.folder), str(store.path(2)), str(store.folder / "last")):
        assert find_checkpoint(name, runs) == store.path(2).resolve(), name
    for name in ("best", str(store.folder / "best"), str(store.path(1))):
        assert find_checkpoint(name, runs) == store.path(1).resolve(), name
    newer = CheckpointStore(runs / "version_10" / "checkpoints")
    save(newer, 1)
    assert find_checkpoint("last", runs) == newer.path(1).resolve()


def test_a_run_without_validation_has_no_best_checkpoint(store: CheckpointStore) -> None:
    save(store, 1)
    with pytest.raises(InputError, match=r"but got none \(a run has none without validation, or where its clients"):
        find_checkpoint("best", store.folder.parent.parent)


def test_the_best_of_an_older_run_is_not_that_of_the_newest(store: CheckpointStore) -> None:
    save(store, 1, best=1)
    runs = store.folder.parent.parent
    newer = CheckpointStore(runs / "version_1" / "checkpoints")
    newer.folder.mkdir(parents=True)
    for name in ("best", "last"):
        with pytest.warns(
            UserWarning, match=rf"version_1 has no checkpoint yet: taken is the {name} one of .*version_0"
        ):
            assert find_checkpoint(name, runs) == store.path(1).resolve()
    save(newer, 1)
    with pytest.raises(InputError, match=r"`ckpt_path` to be the best .* \(a run has none without validation"):
        find_checkpoint("best", runs)
    save(newer, 2, best=2)
    assert find_checkpoint("best", runs) == newer.path(2).resolve()


@pytest.mark.parametrize("name", ["last", "best"])
def test_finds_nothing_where_there_is_no_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"`ckpt_path` to be the {name} checkpoint under .* but got none"):
        find_checkpoint(name, tmp_path)


def test_says_what_it_found_instead(tmp_path: Path) -> None:
    (tmp_path / "file.ckpt").touch()
    for path, found in (("nowhere", "nothing"), ("file.ckpt", "a file"), (".", "a folder without one")):
        with pytest.raises(InputError, match=f"is {found}"):
            find_checkpoint(str(tmp_path / path), tmp_path)


def test_discard_after_removes_later_rounds(store: CheckpointStore) -> None:
    """A run that goes on from an earlier round writes the later ones again, and is found by `last` meanwhile."""
    store.keep = 5
    save(store, 1, 2, 3, 4, best=3)
    store.discard_after(2)
    assert store.rounds() == [1, 2]
    assert find_checkpoint("last", store.folder.parent.parent) == store.path(2).resolve()
    assert find_checkpoint(str(store.folder.parent), store.folder) == store.path(2).resolve()
    save(store, 3, best=1)
    assert find_checkpoint("best", store.folder.parent.parent) == store.path(1).resolve()
    with pytest.raises(InputError, match="`ckpt_path` to be last, best, or a folder but got 3"):
        find_checkpoint(3, store.folder)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- links
def test_link_or_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    assert not link_or_copy(source, tmp_path / "target")
    source.write_text("content")
    assert link_or_copy(source, tmp_path / "link")
    assert (tmp_path / "link").samefile(source)

    def refuse(*args: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert link_or_copy(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "content"
    assert not (tmp_path / "copy").samefile(source)


def test_a_file_system_without_links(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = store.folder.parent.parent
    save(store, 1, 2, best=1)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "symlink", refuse)
    save(store, 3, best=1)
    for name, number in (("last", 3), ("best", 1)):
        assert (store.folder / name).read_text() == f"round-{number:05d}"
        assert find_checkpoint(name, runs) == store.path(number).resolve()
    save(store, 4, best=4)
    store.discard_after(3)  # the best round's goes
    assert find_checkpoint("last", runs) == store.path(3).resolve()
    assert sorted(path.name for path in store.folder.iterdir()) == ["last", "round-00003"]
    save(store, 4, best=3)
    assert find_checkpoint("best", runs) == store.path(3).resolve()
    save(store, 5)
    with pytest.raises(InputError, match="the best checkpoint"):
        find_checkpoint("best", runs)


@pytest.mark.parametrize("step", ["_link", "_prune"])
def test_what_follows_a_checkpoint_is_one_sentence_too(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    save(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, step, refuse)
        with pytest.raises(
            InputError,
            match="to be writable for the checkpoint of round 2 but got Read-only file system; earlier",
        ):
            save(store, 2)
    assert read_manifest(find_checkpoint("last", store.folder.parent.parent))["round"] == 2


@pytest.mark.parametrize("checks", [True, False])
def test_files_have_no_checksums_of_records_and_are_read_all_the_same(tmp_path: Path, checks: bool) -> None:
    """A changed number is found by the file's digest; who else uses ``torch.save`` finds it as it was set."""
    given = {"weight": torch.arange(1000.0), "name": "A"}
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(checks)
    try:
        known = save_file(given, tmp_path / "A.ckpt")
        assert torch.serialization.get_crc32_options() == checks
    finally:
        torch.serialization.set_crc32_options(before)
    assert known == checkpoint.digest(tmp_path / "A.ckpt")
    found = torch.load(tmp_path / "A.ckpt", weights_only=True)
    assert torch.equal(found["weight"], given["weight"])
    assert found["name"] == "A"


def test_a_thread_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is done, the checkpoint before is the last; what goes wrong is said when somebody waits."""
    go, real = threading.Event(), checkpoint.flush

    def slow(path: Path) -> None:
        assert go.wait(10)
        if (path.parent / "full").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path)

    def full(folder: Path, previous: Path | None) -> dict[str, Any]:
        (folder.parent / "full").touch()
        return write_clients(folder, previous)

    monkeypatch.setattr(checkpoint, "flush", slow)
    with ThreadPoolExecutor(1) as thread:
        store = CheckpointStore(tmp_path / "name" / "version_0" / "checkpoints", thread=thread)
        save(store, 1)
        assert store.rounds() == []
        go.set()
        store.wait()
        assert read_manifest(store.path(1))["round"] == 1
        go.clear()
        save(store, 2)
        assert store.rounds() == [1]
        go.set()
        store.save(3, b"server", full, SETTINGS)
        assert store.rounds()[:2] == [1, 2], "one waits for the one before"
        with pytest.raises(InputError, match="for the checkpoint of round 3 but got No space left on device; earlier"):
            save(store, 4)
        save(store, 4)
        store.wait()
        assert store.rounds() == [2, 4]


@pytest.mark.parametrize("aggregator", [Local(), FedAvg()], ids=["local", "fedavg"])
def test_unchanged_clients_are_links(
    aggregator: Any, toy_federation: Callable[..., Any], toy_module: Any, federate: Callable[..., Any]
) -> None:
    """With 1,000 clients of which ten take part, a checkpoint costs ten files. With any evaluation in between all
    clients change, since each gets the new aggregate."""
    trainer = federate(aggregator, rounds=5, client_fraction=0.34, evaluate_every=5, keep_checkpoints=5)
    trainer.fit(toy_module(), toy_federation(4, 4, 4))
    folders = [trainer.run_dir / "checkpoints" / f"round-{round:05d}" / "clients" for round in range(1, 6)]
    for round in range(2, 5):
        participants = trainer.server.participants(round)
        assert len(participants) == 1
        for name in "ABC":
            linked = (folders[round - 1] / f"{name}.ckpt").samefile(folders[round - 2] / f"{name}.ckpt")
            assert linked == (name not in participants), (round, name)
