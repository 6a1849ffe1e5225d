from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks import FedAvg, Local
from flgraph.data import GraphFederation
from flgraph.errors import InputError
from flgraph.federation import Aggregator, Client, FederatedCallback, FederatedTrainer, Payload, Request, Turn
from flgraph.federation.seeding import derive_seed, seed_all
from flgraph.federation.template import client_module
from flgraph.models import GNN
from flgraph.runs.checkpoint import load_bytes, state_bytes

Fit = Callable[..., FederatedTrainer]


@pytest.fixture
def fit(federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any) -> Fit:
    """Runs a federation of clients with 6 and 9 rows, three batches each, and returns its trainer."""

    def run(aggregator: Aggregator, model: Any = None, rounds: int = 3, **kwargs: Any) -> FederatedTrainer:
        trainer = federate(aggregator, rounds=rounds, **{"enable_checkpointing": False, **kwargs})
        data = toy_federation()
        data.given = {**toy_federation(6, batch_size=2).given}
        data.given["B"] = toy_federation(9, batch_size=3).given["A"]
        trainer.fit(model or toy_module(), data)
        return trainer

    return run


# ------------------------------------------------------------------------------------------- one Trainer for the run
class Watch(FederatedCallback):
    """Notes what each client's Trainer looks like after every round."""

    def __init__(self) -> None:
        self.seen: list[dict[str, tuple[int, int, int]]] = []

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        clients = trainer.engine.clients  # type: ignore[attr-defined]
        self.seen.append(
            {name: (id(c.trainer), c.trainer.current_epoch, c.trainer.global_step) for name, c in clients.items()}
        )


@pytest.mark.parametrize("local_epochs", [1, 2])
def test_one_trainer_lives_for_the_whole_run(fit: Fit, local_epochs: int) -> None:
    """Evaluations in between leave its counters alone."""
    watch = Watch()
    fit(FedAvg(), local_epochs=local_epochs, callbacks=[watch])
    for name in "AB":
        ids, epochs, steps = zip(*(seen[name] for seen in watch.seen), strict=True)
        assert len(set(ids)) == 1
        assert list(epochs) == [local_epochs * round for round in (1, 2, 3)]
        assert list(steps) == [3 * local_epochs * round for round in (1, 2, 3)]


def test_epochs_are_told_to_the_module(fit: Fit, toy_module: Any) -> None:
    """A module that warms up by `current_epoch` must see 0, 1, 2, ... over rounds."""
    epochs: list[tuple[int, int]] = []

    class Telling(toy_module):  # type: ignore[misc]
        def on_train_epoch_start(self) -> None:
            epochs.append((self.current_epoch, self.trainer.max_epochs))

    trainer = fit(Local(), Telling(), local_epochs=2)
    assert epochs[:4:2] == [(0, 2), (0, 2)]  # both clients' first round
    assert sorted(epoch for epoch, _ in epochs) == sorted(2 * list(range(6)))
    assert trainer.engine.clients["A"].trainer.fit_loop.max_epochs == 6


def test_fit_takes_a_number_of_epochs(fit: Fit) -> None:
    """Algorithms whose exchanges train for different lengths say so."""

    class Long(Local):
        def local_update(self, client: Any, round: int, exchange: str) -> None:
            client.fit(epochs=round)

    assert fit(Long()).engine.clients["A"].trainer.current_epoch == 1 + 2 + 3


# ----------------------------------------------------------------------------------------------------- optimizer state
def plain_training(module: Any, data: Any, name: str, rounds: int, keep: bool, seed: int = 0) -> dict[str, Tensor]:
    """What a client does when it is alone, with torch alone: the reference."""
    optimizer = scheduler = None
    for round in range(1, rounds + 1):
        seed_all(derive_seed(seed, name, round, "train"))
        if optimizer is None or not keep:
            made = module.configure_optimizers()
            optimizer, scheduler = (made[0][0], made[1][0]) if isinstance(made, tuple) else (made, None)
        module.train()
        loader = data.train_dataloader()
        if round > 1:
            iter(loader)  # draws a seed; Lightning makes one iterator too many in every fit but the first
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return {"weights": module.state_dict(), "optimizer": optimizer.state_dict() if optimizer else {}}


@pytest.mark.parametrize("state", ["keep", "reset"])
@pytest.mark.parametrize("decay_every", [0, 2])
def test_alone_equals_plain_torch_bit_for_bit(
    fit: Fit, toy_federation: Any, toy_module: Any, assert_same: Any, state: Any, decay_every: int
) -> None:
    """4 rounds of one epoch against 4 plain epochs: dropout, Adam's moments, and a StepLR scheduler included.

    With ``reset``, optimizer and scheduler are new in each round.
    """
    settings: dict[str, Any] = {"dropout": 0.5, "optimizer": "adam", "decay_every": decay_every}
    trainer = fit(Local(optimizer_state=state), toy_module(**settings), rounds=4)
    data = toy_federation(6, batch_size=2).given["A"]
    module = client_module(toy_module(**settings), data, 0, "A")
    expected = plain_training(module, data, "A", 4, keep=state == "keep")
    client = trainer.engine.clients["A"]
    assert_same(client.module.state_dict(), expected["weights"])
    group = client.trainer.optimizers[0].state_dict()
    assert_same(group["state"], expected["optimizer"]["state"])
    assert int(group["state"][0]["step"]) == (12 if state == "keep" else 3)
    if decay_every and state == "keep":
        assert group["param_groups"][0]["lr"] == pytest.approx(0.1 / 4)  # after epochs 2 and 4
    assert group["param_groups"][0]["lr"] == expected["optimizer"]["param_groups"][0]["lr"]


def test_a_graph_network_alone_equals_plain_torch_bit_for_bit(
    graph_federation: Callable[..., GraphFederation], federate: Callable[..., FederatedTrainer], assert_same: Any
) -> None:
    """Shuffled batches and the network's own dropout draw from the client's seed, in this order and nothing between."""
    model = GNN(hidden_channels=8, num_layers=2, dropout=0.5)
    trainer = federate(Local(), rounds=4, enable_checkpointing=False)
    trainer.fit(model, graph_federation())
    data = graph_federation()
    data.setup()
    module = client_module(model, data.client("B"), 0, "B")
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, weight_decay=5e-4, fused=True)
    for round in range(1, 5):
        seed_all(derive_seed(0, "B", round, "train"))
        module.train()
        for batch in data.client("B").train_dataloader():
            optimizer.zero_grad()
            F.cross_entropy(module(batch), batch.y).backward()
            optimizer.step()
    assert_same(trainer.engine.clients["B"].module.state_dict(), module.state_dict())


def test_two_optimizers_of_a_manual_module_are_kept(fit: Fit, toy_module: Any) -> None:
    class Manual(toy_module):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(self.first.parameters()), torch.optim.Adam(self.last.parameters())]

        def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()

    trainer = fit(FedAvg(), lambda data: Manual(in_features=4))
    states = trainer.engine.clients["A"].state()["optimizer_states"]
    assert [int(state["state"][0]["step"]) for state in states] == [9, 9]


# ------------------------------------------------------------------------------------------------------- callbacks
class Count(FederatedCallback):
    """Counts Lightning's hooks where it lives, and the round's hooks where it was given."""

    living: list[Count] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Count:
        copied = Count()
        self.living.append(copied)
        return copied

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.calls.append("fit")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.calls.append("epoch")

    def on_train_batch_end(self, *args: Any) -> None:
        self.calls.append("batch")

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.calls.append("validation")

    def on_federation_start(self, trainer: FederatedTrainer) -> None:
        self.calls.append("start")

    def on_round_start(self, trainer: FederatedTrainer) -> None:
        self.calls.append(f"round {trainer.current_round} of {trainer.rounds}")

    def on_round_end(self, trainer: FederatedTrainer) -> None:
        assert trainer.record.round == trainer.current_round
        assert "val/accuracy" in trainer.record.mean
        self.calls.append("round end")

    def on_federation_end(self, trainer: FederatedTrainer) -> None:
        assert trainer.run_dir is not None
        assert (trainer.run_dir / "results.json").exists()
        self.calls.append("end")


def test_hooks_fire_where_they_belong(fit: Fit) -> None:
    given = Count()
    given.living.clear()
    fit(FedAvg(), local_epochs=2, rounds=2, callbacks=[given])
    assert given.calls == ["start", "round 1 of 2", "round end", "round 2 of 2", "round end", "end"]
    at_work = [copied for copied in given.living if copied.calls]
    assert len(at_work) == 2, "a copy for each client"
    for copied in at_work:
        turn = ["fit", *(2 * ["batch", "batch", "batch", "epoch"]), "validation"]
        assert copied.calls == turn + turn


def test_round_callbacks_stay_out_of_clients(fit: Fit) -> None:
    """One that listens to rounds alone may hold anything, a logger or a socket, and is not copied."""

    class Rounds(FederatedCallback):
        def __deepcopy__(self, memo: dict[int, Any]) -> Rounds:
            raise AssertionError("copied")

    trainer = fit(FedAvg(), callbacks=[Rounds()])
    assert not any(isinstance(c, Rounds) for c in trainer.engine.clients["A"].trainer.callbacks)


def test_a_callback_stops_the_run(fit: Fit) -> None:
    class Stop(FederatedCallback):
        def on_round_end(self, trainer: FederatedTrainer) -> None:
            trainer.should_stop = trainer.current_round == 2

    trainer = fit(FedAvg(), rounds=5, evaluate_every=3, callbacks=[Stop()])
    assert trainer.current_round == 2
    assert trainer.history.last["round"] == 2, "the last round is evaluated, wherever it stops"


def test_a_plain_lightning_callback_acts_in_every_client(fit: Fit) -> None:
    """Lightning's own EarlyStopping, Timer, ... know nothing of federations."""

    class Freeze(pl.Callback):
        def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: Any) -> None:
            pl_module.first.weight.grad = None

    start = fit(Local(), rounds=1, callbacks=[Freeze()]).engine.clients
    later = fit(Local(), rounds=2, callbacks=[Freeze()]).engine.clients
    for name in "AB":
        one, other = start[name].module, later[name].module
        assert torch.equal(one.first.weight, other.first.weight)
        assert not torch.equal(one.last.weight, other.last.weight)


def test_callbacks_of_the_module_do_not_accumulate(fit: Fit, toy_module: Any) -> None:
    """Lightning attaches them in each fit, and there is a fit in each round."""
    calls: list[str] = []

    class Noted(pl.Callback):
        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            calls.append("epoch")

    class Configuring(toy_module):  # type: ignore[misc]
        def configure_callbacks(self) -> list[pl.Callback]:
            return [Noted()]

    trainer = fit(FedAvg(), Configuring(), rounds=4)
    for client in trainer.engine.clients.values():
        assert sum(isinstance(callback, Noted) for callback in client.trainer.callbacks) == 1
    assert len(calls) == 2 * 4


# --------------------------------------------------------------------------------------------------------- metrics
def test_metrics_of_an_earlier_round_do_not_leak(fit: Fit, toy_module: Any) -> None:
    class Sometimes(toy_module):  # type: ignore[misc]
        def on_train_epoch_end(self) -> None:
            if self.current_epoch == 0:
                self.log("train/first", 1.0)

        def on_validation_epoch_end(self) -> None:
            if self.current_epoch == 1:
                self.log("val/first", 1.0)

    seen: list[set[str]] = []

    class Names(FederatedCallback):
        def on_round_end(self, trainer: FederatedTrainer) -> None:
            seen.append({name for name in trainer.record.metrics["A"] if name.endswith("/first")})

    fit(FedAvg(), Sometimes(), callbacks=[Names()])
    assert seen == [{"train/first", "val/first"}, set(), set()]


def test_names_of_metrics_may_end_with_step(fit: Fit, toy_module: Any) -> None:
    """Of what is logged on steps and epochs, Lightning's name for the last step is left out."""

    class Names(toy_module):  # type: ignore[misc]
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
            self.log("train/time_per_step", 2.0, on_step=False, on_epoch=True)
            self.log("train/number", float(batch_idx), on_step=True, on_epoch=True)
            return super().training_step(batch, batch_idx)

    trainer = fit(FedAvg(), Names(), rounds=2)
    metrics = {name for name in trainer.history.last["clients"]["A"] if name.startswith("train/")}
    assert metrics == {"train/loss", "train/time_per_step", "train/number", "train/number_epoch"}


def test_a_state_of_other_things_is_refused(fit: Fit, toy_module: Any) -> None:
    class Further(toy_module):  # type: ignore[misc]
        def get_extra_state(self) -> Any:
            return {"calls": 3}

        def set_extra_state(self, state: Any) -> None: ...

    with pytest.raises(InputError, match=r"without `get_extra_state`, but got '_extra_state'"):
        fit(FedAvg(), Further())


def test_metrics_are_those_of_the_installed_aggregate(fit: Fit, toy_federation: Any, toy_module: Any) -> None:
    """What a client reports is what its user would get: the newest aggregate, in evaluation mode."""
    trainer = fit(FedAvg(), toy_module(dropout=0.5))
    x, y = trainer.engine.clients["A"].data.x, trainer.engine.clients["A"].data.y
    module = toy_module(in_features=4).eval()
    module.load_state_dict(trainer.server.aggregator.shared)
    with torch.no_grad():
        loss = F.cross_entropy(module(x), y).item()
    assert trainer.history.last["clients"]["A"]["val/loss"] == pytest.approx(loss, abs=1e-6)
    assert trainer.validate()["A"]["val/loss"] == trainer.history.last["clients"]["A"]["val/loss"]


def test_evaluation_changes_nothing(fit: Fit, toy_module: Any, assert_same: Any) -> None:
    """A run that is evaluated in every round and one that is evaluated at its end learn the same bits."""
    model = toy_module(dropout=0.5, norm=True, optimizer="adam", decay_every=2)
    often, once = fit(FedAvg(), model, rounds=4), fit(FedAvg(), model, rounds=4, evaluate_every=4)
    for name in "AB":
        assert_same(often.engine.clients[name].state(), once.engine.clients[name].state())
    assert often.history.last == once.history.last


# -------------------------------------------------------------------------------------------------- what a client says
def test_refuses_to_send_and_to_install_what_is_personal(fit: Fit) -> None:
    """The guard stands in the client, whatever the algorithm's code tries."""

    class Greedy(Local):
        def upload(self, client: Any, round: int, exchange: str) -> Payload:
            return Payload(client.module.state_dict())

    with pytest.raises(Exception, match=r"without personal tensors but got `first\.weight`, whose route is personal"):
        fit(Greedy())

    class Pushy(Local):
        def download(self, client: str, round: int, exchange: str | None) -> Payload:
            return Payload({"first.weight": torch.zeros(3, 4)})

    with pytest.raises(
        Exception,
        match=r"of client `A` to be one of tensors that it shares but got 'first\.weight', which it does not",
    ):
        fit(Pushy())


def test_refuses_to_install_another_shape(fit: Fit) -> None:
    client = fit(FedAvg()).engine.clients["A"]
    before = client.module.first.weight.clone()
    with pytest.raises(Exception, match=r"to be one with `first\.weight` of 3x4 float32 but got 4x3 float32"):
        client.turn(Turn(9, Request.EXCHANGE, "train", Payload({"first.weight": torch.zeros(4, 3)}).to_bytes()))
    assert torch.equal(client.module.first.weight, before)


def test_predicts_with_the_current_model(fit: Fit, toy_module: Any) -> None:
    class Predicting(toy_module):  # type: ignore[misc]
        def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            return self(batch[0])

    trainer = fit(FedAvg(), Predicting())
    client = trainer.engine.clients["B"]
    with torch.no_grad():
        expected = client.module.eval()(client.data.x)
    assert torch.equal(torch.cat(trainer.predict()["B"]), expected)


# -------------------------------------------------------------------------------------- a client's file is a checkpoint
@pytest.mark.filterwarnings("ignore:.*LeafSpec")
def test_a_client_is_an_ordinary_lightning_checkpoint(
    graph_federation: Callable[..., GraphFederation], federate: Callable[..., FederatedTrainer], assert_same: Any
) -> None:
    """No federation in sight: `load_from_checkpoint`, and a plain Trainer that tests it to the same numbers."""
    trainer = federate(FedAvg(), rounds=2)
    trainer.fit(GNN(hidden_channels=8, num_layers=1), graph_federation())
    assert trainer.run_dir is not None
    module = GNN.load_from_checkpoint(trainer.run_dir / "checkpoints" / "last" / "clients" / "A.ckpt")
    assert_same(module.state_dict(), trainer.engine.clients["A"].module.state_dict())
    assert module.hparams["in_channels"] == 4
    data = graph_federation()
    data.setup()
    plain = pl.Trainer(logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
    metrics = plain.test(module, dataloaders=data.client("A").test_dataloader(), verbose=False)[0]
    assert metrics == {k: v for k, v in trainer.history.last["clients"]["A"].items() if k.startswith("test/")}


def test_trains_with_what_evaluation_kept(toy_module: Any, toy_data: Callable[..., Any]) -> None:
    """A client that sits out the first round is evaluated before it trains."""

    class Keeping(toy_module):  # type: ignore[misc]
        kept: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.kept is None:
                self.kept = torch.ones(x.size(1))
            logits: torch.Tensor = super().forward(x * self.kept)
            return logits

    client = Client("A", Keeping(4), toy_data(6), FedAvg(), trainer_args={"accelerator": "cpu"})
    client.evaluate(("val",))
    client.fit(1)
    assert client.trainer.global_step == 1


# ------------------------------------------------------------------------------------------------- the last download
class Pulled(FedAvg):
    """Goes half of the way back to what it was sent, once it has trained."""

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        super().local_update(client, round, exchange)
        for name, sent in client.last_download.group().items():
            client.shared_tensors()[name].lerp_(sent, 0.5)


def test_the_last_download_survives_a_checkpoint(
    toy_module: Any, toy_data: Callable[..., Any], assert_same: Any
) -> None:
    """A client that is killed between an evaluation, which brings the aggregate, and its training has it, too."""

    def client() -> Client:
        return Client("A", toy_module(4), toy_data(6), Pulled(), trainer_args={"accelerator": "cpu"})

    one, other = client(), client()
    assert not one.last_download.tensors
    sent = Payload({"last.bias": torch.tensor([3.0, -3.0])}, {"round": 1})
    for turn in (
        Turn(0, Request.AGREE, download=Payload(scalars={"shared": "last.bias", "initial": ""}).to_bytes()),
        Turn(1, Request.EVALUATE, download=sent.to_bytes(), splits=("val",)),
    ):
        one.turn(turn)
    assert one.last_download.to_bytes() == sent.to_bytes(), "the terms of the agreement are no download"
    other.load_state(load_bytes(state_bytes(one.state()), "A"))
    assert other.last_download.to_bytes() == sent.to_bytes()
    work = Turn(2, Request.EXCHANGE, "train")
    assert one.turn(work) == other.turn(work)
    assert_same(one.state(), other.state())
    assert not torch.equal(one.module.last.bias, sent.tensors["last.bias"])


def test_what_a_client_makes_of_its_download_is_its_own(toy_module: Any, toy_data: Callable[..., Any]) -> None:
    """Writing into it changes no other client's, nor what it reads the next time."""
    given = Payload({"last.bias": torch.ones(2)}).to_bytes()
    clients = [Client(name, toy_module(4), toy_data(6), FedAvg()) for name in "AB"]
    for client in clients:
        client.turn(Turn(1, Request.EVALUATE, download=given))
    clients[0].last_download.tensors["last.bias"].fill_(7)
    assert all(torch.equal(client.last_download.tensors["last.bias"], torch.ones(2)) for client in clients)
