"""A client whose turn fails, in a run that goes on without it: it is as it was before, and resuming gives the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import federations
import pytest
import pytorch_lightning as pl

from flgraph import callbacks, models
from flgraph.federation import FederatedCallback, Sequential, Tolerance
from flgraph.federation.messages import Request, Turn

SMALL = {"hidden_channels": 4, "num_layers": 2}
GRAPHS = (partial(models.GNN, **SMALL), federations.Graphs)
WHOLE = {name: (partial(getattr(models, name), hidden_channels=4), federations.Whole) for name in ("FGGP", "AdaFGL")}
METHODS: dict[str, tuple[Callable[[], Any], tuple[Callable[[], Any], Callable[[], Any]]]] = {
    "FedAvg": (callbacks.FedAvg, GRAPHS),
    "FedRep": (callbacks.FedRep, GRAPHS),
    "SCAFFOLD": (callbacks.SCAFFOLD, GRAPHS),
    "Ditto": (callbacks.Ditto, GRAPHS),
    "APFL": (callbacks.APFL, GRAPHS),
    "FedProto": (partial(callbacks.FedProto, inference="prototypes"), GRAPHS),
    "FGGP": (callbacks.FGGP, WHOLE["FGGP"]),
    "AdaFGL": (partial(callbacks.AdaFGL, federated_rounds=1), WHOLE["AdaFGL"]),
}


class Fails(FederatedCallback):
    """The second client does, in one round, after a batch."""

    def __init__(self, stage: str, round: int) -> None:
        self.stage, self.round = stage, round

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        self._fail("train")

    def on_validation_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        self._fail("val")

    def _fail(self, stage: str) -> None:
        if stage == self.stage and Notes.now == (self.round, self.client):
            raise RuntimeError("out of luck")


class Notes(Sequential):
    """Knows whose turn of which round it is, and compares the client before and after one that failed."""

    now: tuple[int, str] = (0, "")
    same = 0

    def __init__(self, assert_same: Callable[..., None]) -> None:
        super().__init__()
        self.assert_same = assert_same

    def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
        answers: dict[str, bytes | Exception] = {}
        for name, turn in turns.items():
            work = turn.request in (Request.EXCHANGE, Request.EVALUATE)
            Notes.now = (turn.round if work else 0, name if name == self.second else "")
            client = self.clients[name]
            before, modes = copy.deepcopy(client.state()), [part.training for part in client.module.modules()]
            answers |= super().run({name: turn})
            if isinstance(answers[name], Exception):
                self.assert_same(client.state(), before)
                assert [part.training for part in client.module.modules()] == modes
                assert "head" not in vars(client.module)
                self.same += 1
        return answers

    @property
    def second(self) -> str:
        return sorted(self.clients)[1]


@pytest.mark.parametrize(
    ("name", "stage"), [*((name, "train") for name in METHODS), ("APFL", "val"), ("FedProto", "val"), ("AdaFGL", "val")]
)
def test_a_turn_that_fails_leaves_no_trace(
    name: str, stage: str, federate: Any, assert_same: Callable[..., None]
) -> None:
    half, (model, data) = METHODS[name]

    def run(folder: str, rounds: int, ckpt_path: str | None = None) -> Any:
        more: dict[str, Any] = {"engine": Notes(assert_same), "tolerance": Tolerance(on_bad_upload="drop")}
        trainer = federate(half(), rounds=rounds, name=folder, callbacks=[Fails(stage, 2)], **more)
        trainer.fit(model(), data(), ckpt_path=ckpt_path)
        return trainer

    whole = run("whole", 3)
    assert whole.engine.same == 1
    run("cut", 2)
    resumed = run("cut", 3, "last")
    for client in whole.engine.clients:
        assert_same(resumed.engine.clients[client].state(), whole.engine.clients[client].state())
