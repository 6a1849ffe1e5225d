"""Run folders that two processes write to, that were copied, or that somebody has altered."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flgraph.callbacks import FedAvg
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.federation.payload import Payload, pack, unpack
from flgraph.flare.gather import adopt, checkpoint_key
from flgraph.flare.settings import read_settings
from flgraph.runs import files
from flgraph.runs.checkpoint import (
    CLIENTS,
    MANIFEST,
    SERVER,
    CheckpointStore,
    find_checkpoint,
    load_file,
    read_manifest,
    save_file,
)
from flgraph.runs.files import digest, only_writer
from flgraph.runs.predictions import write_predictions

KEY = b"k" * 32


@pytest.fixture
def fitted(federate: Any, toy_federation: Any, toy_module: Any) -> Callable[..., FederatedTrainer]:
    """Runs a federation for some rounds."""

    def fit(rounds: int, key: bytes | None = None, ckpt_path: str | None = None, **kwargs: Any) -> FederatedTrainer:
        trainer: FederatedTrainer = federate(FedAvg(), rounds=rounds, name="run", **kwargs)
        trainer.checkpoint_key = key
        trainer.fit(toy_module(), toy_federation(6, 8), ckpt_path=ckpt_path)
        return trainer

    return fit


def store_of(trainer: FederatedTrainer) -> CheckpointStore:
    assert trainer.run_dir is not None
    return CheckpointStore(trainer.run_dir / "checkpoints")


# ----------------------------------------------------------------------------------------------------------- writers
def test_two_resumes_of_one_run_do_not_both_write(fitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    folder = fitted(2).run_dir
    with only_writer(folder):
        with pytest.raises(InputError, match=rf"`{folder}` to be the folder of a run that nobody else writes to but"):
            fitted(3, ckpt_path="last")
        assert CheckpointStore(folder / "checkpoints").rounds() == [1, 2]
    assert fitted(3, ckpt_path="last").run_dir == folder


def test_a_run_that_fails_lets_go_of_its_folder(fitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE", 0.1)

    def fail(_: Any, trainer: Any) -> None:
        with pytest.raises(InputError, match="nobody else writes to"), only_writer(trainer.run_dir):
            pass
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr("flgraph.federation.display.RoundProgress.on_round_end", fail)
        with pytest.raises(RuntimeError, match="out of luck"):
            fitted(2)
    folder = fitted(2).run_dir
    with only_writer(folder), only_writer(folder.with_name("version_0")):
        pass


def test_the_lock_of_a_killed_process_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    code = (
        "import sys, time; from pathlib import Path; from flgraph.runs.files import only_writer\n"
        "with only_writer(Path(sys.argv[1])):\n    print('has it', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        try:
            other.stdout.readline()
            with pytest.raises(InputError, match="nobody else writes to"), only_writer(tmp_path):
                pass
        finally:
            other.send_signal(signal.SIGKILL)
    with only_writer(tmp_path):
        pass


# ------------------------------------------------------------------------------------------------------------ copies
@pytest.mark.parametrize("name", ["last", "best"])
def test_a_copy_with_links_followed_goes_on(fitted: Any, tmp_path: Path, name: str) -> None:
    """``cp -rL`` makes folders of `last` and `best`."""
    run = fitted(3, keep_checkpoints=5).run_dir
    copied = tmp_path / "runs" / "run" / "version_7"
    shutil.copytree(run, copied)  # follows links
    store = CheckpointStore(copied / "checkpoints")
    assert not (store.folder / name).is_symlink()
    best = CheckpointStore(run / "checkpoints").best()
    assert best is not None
    expected = {"last": store.path(3), "best": store.path(int(best.resolve().name[-5:]))}[name]
    for path in (name, str(store.folder / name)):
        assert find_checkpoint(path, copied.parent) == expected.resolve()
    assert fitted(4, ckpt_path=name).run_dir == copied
    assert (store.folder / "last").is_symlink()
    assert find_checkpoint("last", copied.parent) == store.path(4).resolve()
    assert not (store.folder / "best").exists() or (store.folder / "best").is_symlink()


def test_links_lead_to_checkpoints_of_their_folder_only(fitted: Any, tmp_path: Path) -> None:
    store = store_of(fitted(2))
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(store.path(1), elsewhere)
    (store.folder / "best").unlink(missing_ok=True)
    for target in (elsewhere, "../../../../elsewhere"):
        (store.folder / "best").symlink_to(target)
        assert store.best() is None
        (store.folder / "best").unlink()
        (store.folder / "best").write_text(str(target))
        assert store.best() is None
        (store.folder / "best").unlink()


# ---------------------------------------------------------------------------------------------------------- contents
@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda content: content.pop("settings"), "one without `settings`"),
        (lambda content: content.update(settings=[]), "one without `settings`"),
        (lambda content: content.pop("round"), "one without `round`"),
        (lambda content: content["files"].pop(SERVER), f"one without size and SHA-256 of {SERVER}"),
        (lambda content: content["files"][SERVER].pop("sha256"), f"one without size and SHA-256 of {SERVER}"),
        (lambda content: content["files"].update({"../x": {"bytes": 1, "sha256": ""}}), "one without size and .* x"),
        (lambda content: content["files"].update({"/etc/x": {"bytes": 1, "sha256": ""}}), "one without size and .* /"),
        (lambda content: content["files"].update(x=3), "one without size and SHA-256 of x"),
    ],
)
def test_a_manifest_that_lacks_something_is_one_sentence(fitted: Any, change: Any, got: str) -> None:
    trainer = fitted(2)
    file = store_of(trainer).path(2) / MANIFEST
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=got.replace(".* x", r".* \.\./x")):
        fitted(3, ckpt_path="last")


def drop(name: str) -> Callable[[Any], Any]:
    return lambda state: state.pop(name)


@pytest.mark.parametrize(
    "change",
    [
        *(drop(name) for name in ("loop", "owners", "algorithm")),
        *(lambda state, name=name: state["loop"].pop(name) for name in ("round", "history", "installed", "callbacks")),
        lambda state: state["loop"].update(round="x"),
        lambda state: state["loop"].update(version=None),
        lambda state: state["loop"].update(installed=3),
        lambda state: state["loop"].update(setup={"unknown": 3}),
        lambda state: state["owners"].update(groups=[]),
        lambda state: state["owners"].update(of={}),
        lambda state: state["algorithm"].update(shared=3),
        lambda state: state.update(algorithm=[]),
    ],
)
def test_a_server_state_that_lacks_something_is_one_sentence(fitted: Any, change: Any) -> None:
    checkpoint = store_of(fitted(2)).path(2)
    state = unpack(Payload.from_bytes((checkpoint / SERVER).read_bytes()))
    change(state)
    (checkpoint / SERVER).write_bytes(pack(state).to_bytes())
    redigested(checkpoint)
    with pytest.raises(InputError, match=rf"`.*{SERVER}` to be a state of this run but got one with |in .*{SERVER}\.$"):
        fitted(3, ckpt_path="last")


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["client"].update(download=torch.zeros(9, dtype=torch.uint8)),  # as it was once
        lambda state: state["client"].update(download={"tensors": {}, "scalars": {}}),
        lambda state: state["client"]["download"].update(names=["another"]),
        lambda state: state["state_dict"].clear(),
        *(drop(name) for name in ("client", "loops", "optimizer_states")),
    ],
)
def test_a_client_state_of_another_form_is_one_sentence(fitted: Any, change: Any) -> None:
    checkpoint = store_of(fitted(2)).path(2)
    file = min((checkpoint / CLIENTS).iterdir())
    state = load_file(file)
    change(state)
    save_file(state, file)
    redigested(checkpoint)
    with pytest.raises(InputError, match=rf"`.*{file.name}` to be a state of this run but got one with \w+Error: "):
        fitted(3, ckpt_path="last")


def redigested(checkpoint: Path) -> None:
    """Makes the manifest fit the files, as whoever altered them would."""
    content = json.loads((checkpoint / MANIFEST).read_text())
    content["files"] = {name: digest(checkpoint / name) for name in content["files"]}
    (checkpoint / MANIFEST).write_text(json.dumps(content))


# -------------------------------------------------------------------------------------------------------- signatures
def test_a_server_with_a_key_goes_on_from_its_own_checkpoints_only(fitted: Any, tmp_path: Path) -> None:
    trainer = fitted(2, KEY, keep_checkpoints=5)
    store, not_signed = (
        store_of(trainer),
        "to be signed by this server for this run and round .* but got one that is not",
    )
    assert fitted(3, KEY, "last", keep_checkpoints=5).run_dir == trainer.run_dir
    read_manifest(store.folder / "last", KEY)
    with pytest.raises(InputError, match=not_signed):
        read_manifest(store.path(3), b"other")

    def refused(change: Callable[[Path], Any], sentence: str = not_signed) -> None:
        copied = tmp_path / "copies" / "run" / "version_0"
        shutil.copytree(trainer.run_dir, copied, symlinks=True)
        read_manifest(copied / "checkpoints" / "round-00003", KEY)
        change(copied / "checkpoints")
        with pytest.raises(InputError, match=sentence):
            read_manifest(find_checkpoint("last", copied.parent), KEY)
        shutil.rmtree(copied)

    def altered(folder: Path) -> None:
        file = folder / "round-00003" / SERVER
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        redigested(file.parent)

    def unsigned(folder: Path) -> None:
        file = folder / "round-00003" / MANIFEST
        file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "hmac"}))

    def older(folder: Path) -> None:
        shutil.rmtree(folder / "round-00003")
        (folder / "round-00002").rename(folder / "round-00003")

    refused(altered)
    refused(unsigned)
    refused(older)
    also = "a checkpoint of the files that its manifest names but got also"
    refused(lambda folder: (folder / "round-00003" / "clients" / "Z.ckpt").write_bytes(b"x"), also)
    for other in ("other/version_0", "run/version_1"):  # another run's
        shutil.copytree(trainer.run_dir, tmp_path / "copies" / other, symlinks=True)
        with pytest.raises(InputError, match=not_signed):
            read_manifest(tmp_path / "copies" / other / "checkpoints" / "round-00003", KEY)
    shutil.rmtree(tmp_path / "runs" / "run")
    fitted(2)
    with pytest.raises(InputError, match=not_signed):
        fitted(3, KEY, "last")


def test_a_run_is_adopted_whole_or_not_at_all(fitted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server takes a run of one machine over when its owner says so, and signs it."""
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    kit = tmp_path / "kit"
    (kit / "local").mkdir(parents=True)
    trainer = fitted(3, keep_checkpoints=3)
    run, key = trainer.run_dir, checkpoint_key(read_settings(kit))
    with only_writer(run), pytest.raises(InputError, match="nobody else writes to"):
        adopt(run, kit)
    file = store_of(trainer).path(2) / SERVER
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"?")
    with pytest.raises(InputError, match="bytes of other content"):
        adopt(run, kit)
    assert list((kit / "flgraph" / "run").iterdir()) == []
    file.write_bytes(whole)
    for path, name in ((run, "version_0"), (run.parent, "version_1")):
        adopted = adopt(path, kit)
        assert adopted == kit / "flgraph" / "run" / name
        store = CheckpointStore(adopted / "checkpoints")
        for number in store.rounds():
            assert read_manifest(store.path(number), key)["round"] == number
        with pytest.raises(InputError, match="`RUN` to be a run that the server does not have but got"):
            adopt(path, kit)
        fitted(2)  # another version
    odd = run.parent.rename(tmp_path / "runs" / "a b")
    with pytest.raises(
        InputError, match=r"`RUN` to be a name of 1 to 100 letters \(a to z\), digits, - and _ but got 'a b'"
    ):
        adopt(odd / "version_0", kit)


@pytest.mark.parametrize(
    ("batches", "rows", "sentence"),
    [
        ([torch.zeros(2, 0)], {}, r"to be a method that gives tensors \[rows, columns\] but got \[2, 0\]"),
        ([torch.zeros(2, 1), torch.zeros(2, 3)], {}, r"\[rows, columns\] but got \[2, 1\], \[2, 3\]"),
        ([torch.zeros(2, 2)], {"node": 3}, "`node of client A's prediction_rows` to be a list but got 'int'"),
    ],
)
def test_predictions_of_another_process_are_looked_at(
    batches: list[Any], rows: Any, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        write_predictions("A", batches, rows, "probabilities", tmp_path / "A.csv")
