"""Runs that end by an error of their own, told in one line, and what is left to continue from."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flgraph.cli.main import main
from flgraph.errors import ClientError, InputError
from flgraph.models import GNN
from flgraph.runs import checkpoint
from flgraph.runs.history import read_records
from flgraph.runs.ledger import Ledger


@pytest.fixture
def fit(options: list[str]) -> list[str]:
    return ["fit", *options, "--trainer.rounds", "4", "--trainer.enable_progress_bar", "false"]


def failing(capsys: pytest.CaptureFixture[str], args: list[str], code: int) -> str:
    """What is told, which is one line."""
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert caught.value.code == code
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("flgraph: error: ")
    return told.removeprefix("flgraph: error: ").strip()


def metrics(run: Path) -> Any:
    results = json.loads((run / "results.json").read_text())
    return results["final"], results["best_val"]


def fail_in_round(monkeypatch: pytest.MonkeyPatch, number: int, error: Exception) -> None:
    """Makes the second client's training fail in one round."""
    steps = {"left": 2 * number}
    step = GNN.training_step

    def training_step(self: GNN, batch: Any, batch_idx: int = 0) -> torch.Tensor:
        steps["left"] -= 1
        if steps["left"] == 0:
            raise error
        return step(self, batch, batch_idx)

    monkeypatch.setattr(GNN, "training_step", training_step)


def test_client_fails(
    fit: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        fail_in_round(patch, 3, RuntimeError("out of luck"))
        told = failing(capsys, fit, 1)
    run = tmp_path / "runs" / "run" / "version_0"
    assert told == (
        "Client `TWO` failed in round 3 (train): RuntimeError: out of luck; "
        f"its traceback is in {run}/error.txt; continue with --ckpt_path {run}."
    )
    assert "in training_step" in (run / "error.txt").read_text()
    assert [record["round"] for record in read_records(run / "history.jsonl")] == [1, 2]
    assert not (run / "results.json").exists()
    main([*fit, "--ckpt_path", "last"])
    main(fit)
    assert metrics(run) == metrics(run.with_name("version_1"))


def test_client_fails_before_there_is_a_checkpoint(
    fit: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_in_round(monkeypatch, 1, RuntimeError("out of\nluck"))
    told = failing(capsys, fit, 1)
    file = tmp_path / "runs" / "run" / "version_0" / "error.txt"
    assert told == f"Client `TWO` failed in round 1 (train): RuntimeError: out of luck; its traceback is in {file}."


def test_client_refuses_its_data(
    fit: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operating system's error in a client's turn is the client's, too."""
    fail_in_round(monkeypatch, 2, FileNotFoundError(errno.ENOENT, "No such file", "graphs.pt"))
    told = failing(capsys, fit, 1)
    assert told.startswith("Client `TWO` failed in round 2 (train): FileNotFoundError: [Errno 2] No such file")


@pytest.mark.parametrize("written", ["manifest.json", "server.safetensors", "ONE.ckpt"])
def test_checkpoint_does_not_fit_on_the_disk(
    fit: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], written: str
) -> None:
    """Nor what is still to be written of the ledger."""
    real, close, is_full = checkpoint.flush, Ledger.close, []

    def full(file: Path) -> None:
        if file.name == written and ".writing-00003" in str(file):
            is_full.append(True)
            file.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    def close_of_ledger(self: Ledger) -> None:
        if is_full:
            raise InputError("ledger.jsonl", "writable", "No space left on device")
        close(self)

    folder = tmp_path / "runs" / "run" / "version_0"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "flush", full)
        patch.setattr(Ledger, "close", close_of_ledger)
        told = failing(capsys, fit, 2)
    assert told == (
        f"Expected `{folder}/checkpoints` to be writable for the checkpoint of round 3 but got No space left on "
        f"device; earlier checkpoints are whole, continue with --ckpt_path {folder}."
    )
    store = checkpoint.CheckpointStore(folder / "checkpoints")
    assert store.rounds()[-1] == 2
    assert list(store.folder.glob(".*")) == []
    main([*fit, "--ckpt_path", "last"])
    main(fit)
    assert metrics(folder) == metrics(folder.with_name("version_1"))


def test_results_cannot_be_written(fit: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs" / "run" / "version_0"
    main(fit)
    (folder / "results.json").unlink()
    (folder / "results.json").mkdir()
    capsys.readouterr()
    told = failing(capsys, [*fit, "--ckpt_path", "last"], 2)
    assert told == f"Expected `{folder}` to be writable but got Is a directory."


def test_killed_while_a_checkpoint_was_removed(fit: list[str], tmp_path: Path) -> None:
    """What is half removed does not pass for a checkpoint, and goes with the next run."""
    main(fit)
    folder = tmp_path / "runs" / "run" / "version_0"
    before = metrics(folder)
    store = checkpoint.CheckpointStore(folder / "checkpoints")
    (store.path(4)).rename(store.folder / ".removing-round-00004")
    (store.folder / ".removing-round-00004" / "manifest.json").unlink()
    assert store.last() == store.path(3)
    main([*fit, "--ckpt_path", "last"])
    assert metrics(folder) == before
    assert list(store.folder.glob(".*")) == []


def test_continued_from_an_earlier_round_and_killed_at_once(
    fit: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The links of later rounds must not dangle."""
    main([*fit, "--trainer.keep_checkpoints", "4"])
    folder = tmp_path / "runs" / "run" / "version_0"
    before = metrics(folder)
    with monkeypatch.context() as patch:
        fail_in_round(patch, 1, RuntimeError("out of luck"))
        capsys.readouterr()
        failing(capsys, [*fit, "--ckpt_path", str(folder / "checkpoints" / "round-00002")], 1)
    store = checkpoint.CheckpointStore(folder / "checkpoints")
    assert store.rounds() == [1, 2]
    assert (store.folder / "last").resolve() == store.path(2)
    assert not (store.folder / "best").is_symlink() or (store.folder / "best").exists()
    main([*fit, "--ckpt_path", "last"])
    assert metrics(folder) == before


def test_a_layer_that_takes_no_sparse_features() -> None:
    with pytest.raises(NotImplementedError) as caught:
        torch.nn.functional.dropout(torch.eye(2).to_sparse_csr())
    told = str(ClientError.in_turn("A", 1, "train", caught.value))
    assert told.endswith("Features of many zeros are sparse: it needs `batch.x.to_dense()`.")
    assert len(told) < 250
