"""Which process is which, who gets which clients, and what a process group does in one process."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from flgraph.callbacks import FedAvg
from flgraph.errors import ClientError, EngineError, InputError, encode_error
from flgraph.federation import FederatedTrainer, ProcessGroup
from flgraph.federation.engines import forked
from flgraph.federation.engines.distributed.environment import ProcessEnvironment, alone, device_of
from flgraph.federation.engines.distributed.schedule import assign, makespan, reassign
from flgraph.federation.engines.host import Message, run_request, turns_of
from flgraph.federation.messages import Request, Turn

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if torchrun had started this process."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)


# ----------------------------------------------------------------------------------------------------------- dealing
def test_dearest_first() -> None:
    """By hand: 5 | 4 | 3, then 3 joins the 3 (6), 2 the 4 (6), 1 the 5 (6)."""
    owners = assign({"a": 1, "b": 2, "c": 3, "d": 5, "e": 4, "f": 3}, 3)
    assert owners == {"a": 0, "b": 1, "c": 2, "d": 0, "e": 1, "f": 2}
    assert makespan({"a": 1, "b": 2, "c": 3, "d": 5, "e": 4, "f": 3}, owners) == 6


def test_equal_costs_go_in_turns() -> None:
    assert list(assign(dict.fromkeys("abcdefg", 1.0), 3).values()) == [0, 1, 2, 0, 1, 2, 0]
    assert list(assign(dict.fromkeys("abc", 0.0), 2).values()) == [0, 1, 0]


@pytest.mark.parametrize("processes", [2, 3])
def test_close_to_the_best_dealing(processes: int) -> None:
    """Within 4/3 - 1/(3 m) of the best of all dealings (Graham, 1969)."""
    chance = random.Random(processes)
    for _ in range(20):
        costs = {str(n): chance.uniform(0, 1) ** 2 for n in range(7)}
        every = (dict(zip(costs, owners, strict=True)) for owners in product(range(processes), repeat=len(costs)))
        best = min(makespan(costs, owners) for owners in every)
        assert best <= makespan(costs, assign(costs, processes)) <= best * (4 / 3 - 1 / (3 * processes)) + 1e-12


def test_clients_move_only_if_it_pays() -> None:
    costs = {"a": 1.0, "b": 1.0, "c": 0.1, "d": 0.1}
    lopsided = {"a": 0, "b": 0, "c": 1, "d": 1}
    assert makespan(costs, reassign(costs, lopsided, 2)) == pytest.approx(1.1)
    nearly = {"a": 0, "b": 1, "c": 0, "d": 0}  # 1.2 against 1.1 saves a twelfth
    assert reassign(costs, nearly, 2) == nearly


# ------------------------------------------------------------------------------------------------------------- place
def test_place() -> None:
    assert ProcessEnvironment.here({}) == ProcessEnvironment(0, 1, 0, 1, 0, False)
    assert ProcessEnvironment.here(TORCHRUN) == ProcessEnvironment(5, 8, 1, 4, 1, True)
    assert ProcessEnvironment.here({"RANK": "1", "WORLD_SIZE": "2"}) == ProcessEnvironment(1, 2, 1, 2, 0, True)


@pytest.mark.parametrize(
    ("devices", "count", "dealt"),
    [
        (1, 2, [0, 1, 0, 1]),
        ("auto", 3, [0, 1, 2, 0]),
        (-1, 4, [0, 1, 2, 3]),
        (2, 4, [0, 1, 0, 1]),
        ([3, 1], 4, [3, 1, 3, 1]),
        ("2,0", 4, [2, 0, 2, 0]),
        ("all of them", 4, None),
    ],
)
def test_processes_share_gpus(devices: Any, count: int, dealt: list[int] | None) -> None:
    found = [device_of(ProcessEnvironment(rank, 4, rank, 4, 0, True), devices, count) for rank in range(4)]
    assert found == ([None] * 4 if dealt is None else [[device] for device in dealt])


@pytest.mark.usefixtures("torchrun")
def test_lightning_sees_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 5)
    assert TorchElasticEnvironment.detect()
    before = dict(os.environ)
    with alone():
        assert not TorchElasticEnvironment.detect()
        assert not set(TORCHRUN) & set(os.environ)
        assert rank_zero_only.rank == 0
    assert dict(os.environ) == before
    assert rank_zero_only.rank == 5


@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize("strategy", ["auto", "ddp"])
def test_trainers_of_a_process_are_alone(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither torchrun's variables nor Slurm's, which say another number of tasks, are Lightning's business."""
    for name, value in {"SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4", "SLURM_JOB_NAME": "job"}.items():
        monkeypatch.setenv(name, value)
    trainer = FederatedTrainer(FedAvg(), engine=ProcessGroup(), accelerator="cpu", strategy=strategy)
    assert (trainer.world_size, trainer.global_rank, trainer.is_global_zero) == (1, 0, True)
    environment = trainer._accelerator_connector.cluster_environment
    assert type(environment) is LightningEnvironment
    assert not trainer.engine.leads
    assert trainer.console.quiet
    assert "RANK" in os.environ


# ------------------------------------------------------------------------------------------------------------- input
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"processes": 0}, "`trainer.engine.processes` to be a whole number of 1 or more but got 0"),
        ({"processes": -2}, "`trainer.engine.processes` to be a whole number of 1 or more but got -2"),
        ({"threads": 0}, "`trainer.engine.threads` to be a whole number of 1 or more but got 0"),
        ({"timeout": 0}, "`trainer.engine.timeout` to be above 0 but got 0"),
    ],
)
def test_numbers_out_of_range(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ProcessGroup(**arguments)


@pytest.mark.usefixtures("torchrun")
def test_torchrun_decides_the_number() -> None:
    assert ProcessGroup().process.world == ProcessGroup(8).process.world == 8
    with pytest.raises(InputError, match=r"processes` to be 8, as were started, or left out, but got 4"):
        ProcessGroup(4)


@pytest.mark.usefixtures("torchrun")
def test_one_process_of_many_is_not_the_whole_run() -> None:
    """Each would do the whole run, and write where the others do."""
    with pytest.raises(InputError, match=r"`trainer.engine` to be ProcessGroup, .* 8 processes, as torchrun started"):
        FederatedTrainer(FedAvg(), accelerator="cpu")


def test_a_script_needs_torchrun(toy_federation: Callable[..., Any], toy_module: Any, federate: Any) -> None:
    with pytest.raises(InputError, match=r"processes` to be 1 where nothing started more .* but got 2"):
        federate(FedAvg(), engine=ProcessGroup(2), rounds=1).fit(toy_module(), toy_federation(6, 8))


def test_one_process_needs_no_launch(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Any, assert_same: Callable[..., None]
) -> None:
    model, states = toy_module(dropout=0.5, optimizer="adam"), []
    for engine in (None, ProcessGroup()):
        trainer = federate(FedAvg(), engine=engine, rounds=4)
        trainer.fit(model, toy_federation(6, 8, batch_size=3))
        states.append([client.state() for client in trainer.engine.clients.values()])
        assert set(trainer.validate()) == {"A", "B"}
        assert len(trainer.predict(Predicting(), toy_federation(6, 8))["B"]) == 1
    assert_same(*states)


class Predicting(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def predict_step(self, batch: Any) -> Any:
        return self.layer(batch[0])


# ---------------------------------------------------------------------------------------------------------- messages
@pytest.mark.parametrize("pieces", [{}, {"a": b""}, {"b": b"one", "a": b"", "ä": bytes(range(256)) * 40}])
def test_messages_arrive_as_they_left(pieces: dict[str, bytes]) -> None:
    message = Message({"text": "ä", "list": [1, None], "number": 0.1}, pieces)
    assert Message.from_bytes(message.to_bytes()) == message


@pytest.mark.parametrize(
    "block", [b"", b"x" * 20, Message({"a": 1}, {"b": b"four"}).to_bytes()[:-1], b"\2" + b"\0" * 7 + b"[]"]
)
def test_what_is_no_message_is_refused(block: bytes) -> None:
    with pytest.raises(InputError, match="`message` to be "):
        Message.from_bytes(block)


def test_a_common_download_travels_once() -> None:
    common, own = b"x" * 1000, b"y" * 500
    turns = {
        "A": Turn(3, exchange="train", download=common),
        "B": Turn(3, exchange="train", download=bytes(common)),
        "C": Turn(3, exchange="train", download=own),
        "D": Turn(3, Request.EVALUATE, splits=("val", "test")),
    }
    request = run_request(turns, keep_going=False)
    assert sorted(request.pieces.values()) == [common, own]
    assert turns_of(Message.from_bytes(request.to_bytes())) == turns


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (InputError("a", "b", "c", "d"), InputError, "Expected `a` to be b but got c in d."),
        (
            ClientError.in_turn("A", 3, "train", ValueError("no")),
            ClientError,
            r"Client `A` failed in round 3 \(train\): ValueError: no",
        ),
        (EngineError("Process 0 ended the run"), EngineError, "Process 0 ended the run"),
        (OSError(28, "No space left on device"), OSError, "No space left on device"),
        (KeyError("x"), EngineError, "KeyError: 'x'"),
    ],
)
def test_errors_of_other_processes(error: Exception, kind: type[Exception], text: str) -> None:
    error.add_note("a note")
    arrived = Message.from_bytes(Message({"error": encode_error(error)}).to_bytes()).error
    assert arrived is not None
    with pytest.raises(kind, match=text):
        raise arrived
    assert arrived.__notes__ == ["a note"]


# ------------------------------------------------------------------------------------------------------------- forked
@pytest.mark.parametrize(
    ("clients", "cores", "others", "gpu", "processes"),
    [
        (1, 8, 0, False, 1),
        (4, 8, 0, False, 4),
        (3, 8, 0, False, 1),
        (6, 2, 0, False, 2),
        (6, 2, 1, False, 1),
        (6, 2, 0, True, 1),
    ],
)
def test_when_a_process_forks(
    clients: int, cores: int, others: int, gpu: bool, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for one client, not for more than two cores each, not beside other threads, and not with a GPU."""
    begun: list[tuple[int, ...]] = []

    class Context:
        Pipe = staticmethod(lambda: (SimpleNamespace(), SimpleNamespace(close=lambda: None)))

        def Process(self, target: Any, args: tuple[Any, ...]) -> Any:  # noqa: N802
            return SimpleNamespace(start=lambda: begun.append(args[:2]), kill=lambda: None, join=lambda: None)

    monkeypatch.setattr(forked, "get_context", lambda method: Context())
    monkeypatch.setattr(forked, "num_cores", lambda: cores)
    monkeypatch.setattr(forked.threading, "active_count", lambda: 1 + others)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(forked.ProcessGroup, "setup", lambda *args: threads.append(torch.get_num_threads()))
    engine, threads, before = forked.Forked(), list[int](), torch.get_num_threads()
    with engine.session():
        engine.setup(lambda name: pytest.fail(name), [str(number) for number in range(clients)])
    assert begun == [(rank, processes) for rank in range(1, processes)]
    assert threads == [before if processes == 1 else 1]
    assert torch.get_num_threads() == before
