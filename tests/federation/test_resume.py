from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from offices import history
from pytorch_lightning.utilities import CombinedLoader
from torch.utils.data import DataLoader

from flgraph.callbacks import (
    DFedGNN,
    FedAvg,
    FedProx,
    FedProxAdaptive,
    GCFLPlus,
    Local,
)
from flgraph.errors import InputError
from flgraph.federation import Aggregator, ClientError, FederatedCallback, FederatedTrainer
from flgraph.models import GNN


def results(trainer: FederatedTrainer) -> dict[str, Any]:
    """results.json but for what may differ between two runs."""
    assert trainer.run_dir is not None
    found = json.loads((trainer.run_dir / "results.json").read_text())
    return {key: value for key, value in found.items() if key not in ("seconds_per_round", "versions")}


@pytest.fixture
def assert_same_run(assert_same: Callable[..., None]) -> Callable[[FederatedTrainer, FederatedTrainer], None]:
    """Two runs ended in the same bits: weights, optimizers, counters, callbacks, server, results, history."""

    def compare(one: FederatedTrainer, other: FederatedTrainer) -> None:
        assert results(one) == results(other)
        assert history(one) == history(other)
        clients: dict[str, Any] = one.engine.clients  # type: ignore[attr-defined]
        for name, client in clients.items():
            assert_same(client.state(), other.engine.clients[name].state())  # type: ignore[attr-defined]
        assert one.server is not None
        assert other.server is not None
        assert one.server.state({}) == other.server.state({})

    return compare


@pytest.fixture
def run(federate: Callable[..., FederatedTrainer], tmp_path: Path) -> Callable[..., FederatedTrainer]:
    """Runs a federation in a folder of its own, or goes on with the last run there."""

    def fit(folder: str, aggregator: Aggregator, model: Any, data: Any, ckpt: str | None = None, **kwargs: Any) -> Any:
        trainer = federate(aggregator, default_root_dir=str(tmp_path / folder), **kwargs)
        trainer.fit(model, data, ckpt_path=ckpt)
        return trainer

    return fit


Run = Callable[..., FederatedTrainer]
Same = Callable[[FederatedTrainer, FederatedTrainer], None]


# --------------------------------------------------------------------------------------------------------- same bits
@pytest.mark.parametrize(
    "aggregator",
    [
        FedAvg(weighting="uniform", optimizer_state="reset"),
        FedProxAdaptive(rule="ratio"),
        GCFLPlus(sequence_length=1, eps1=10, eps2=0, warmup=1),
        DFedGNN(topology="star", weights="metropolis"),
    ],
    ids=["fedavg-uniform-reset", "fedprox-ratio", "gcflplus", "dfedgnn"],
)
def test_resumed_equals_uninterrupted(
    aggregator: Aggregator, graph_federation: Callable[..., Any], run: Run, assert_same_run: Same
) -> None:
    """Everything at once: dropout, shuffled batches, Adam, two local epochs, clients that sit rounds out."""
    model = GNN(hidden_channels=4, num_layers=1, lr=0.01)
    settings: dict[str, Any] = {"local_epochs": 2, "client_fraction": 0.6, "checkpoint_every": 3, "evaluate_every": 3}
    whole = run("whole", aggregator, model, graph_federation(), rounds=6, **settings)
    run("cut", aggregator, model, graph_federation(), rounds=3, **settings)
    resumed = run("cut", aggregator, model, graph_federation(), "last", rounds=6, **settings)
    assert_same_run(resumed, whole)


@pytest.mark.parametrize("aggregator", [FedProx(mu=0.1), Local(optimizer_state="reset")], ids=["fedprox", "reset"])
def test_schedulers_batch_norm_and_torch_loaders_resume(
    aggregator: Aggregator, toy_federation: Callable[..., Any], toy_module: Any, run: Run, assert_same_run: Same
) -> None:
    """A torch DataLoader draws a seed whenever it is iterated over, which Lightning does once less after a restart."""
    model = toy_module(dropout=0.5, norm=True, optimizer="adam", decay_every=2)

    def data() -> Any:
        return toy_federation(6, 8, 9, batch_size=3, shuffle=True)

    whole = run("whole", aggregator, model, data(), rounds=6, client_fraction=0.7)
    run("cut", aggregator, model, data(), rounds=3, client_fraction=0.7)
    assert_same_run(run("cut", aggregator, model, data(), "last", rounds=6, client_fraction=0.7), whole)


@pytest.mark.parametrize("cut", [1, 5])
def test_resumes_from_any_round(
    cut: int, toy_federation: Callable[..., Any], toy_module: Any, run: Run, assert_same_run: Same
) -> None:
    model, data = toy_module(dropout=0.5, optimizer="adam"), toy_federation(6, 8, batch_size=3)
    whole = run("whole", FedAvg(), model, data, rounds=6)
    run("cut", FedAvg(), model, data, rounds=cut)
    assert_same_run(run("cut", FedAvg(), model, data, "last", rounds=6), whole)


def test_resumes_twice(toy_federation: Callable[..., Any], toy_module: Any, run: Run, assert_same_run: Same) -> None:
    model, data = toy_module(dropout=0.5, optimizer="adam"), toy_federation(6, 8, batch_size=3)
    whole = run("whole", FedAvg(), model, data, rounds=6)
    run("cut", FedAvg(), model, data, rounds=2)
    run("cut", FedAvg(), model, data, "last", rounds=4)
    assert_same_run(run("cut", FedAvg(), model, data, "last", rounds=6), whole)


def test_resumes_from_an_older_checkpoint(
    toy_federation: Callable[..., Any], toy_module: Any, run: Run, assert_same_run: Same
) -> None:
    """What came after it is written again, in history and checkpoints alike."""
    model, data = toy_module(dropout=0.5, optimizer="adam"), toy_federation(6, 8, batch_size=3)
    whole = run("whole", FedAvg(), model, data, rounds=6, keep_checkpoints=9)
    assert whole.run_dir is not None
    before = (whole.run_dir / "history.jsonl").read_text()
    older = str(whole.run_dir / "checkpoints" / "round-00002")
    again = run("whole", FedAvg(), model, data, older, rounds=6, keep_checkpoints=9)
    assert len(before.splitlines()) == len(history(again)) == 6
    assert_same_run(again, whole)


def test_hyperparameters_of_any_kind_resume(
    toy_federation: Callable[..., Any], toy_module: Any, run: Run, assert_same_run: Same
) -> None:
    """A function among them must not make the checkpoint unreadable; it is given again, as if it had been ignored."""

    class Activated(toy_module):  # type: ignore[misc]
        def __init__(self, in_features: int = -1, activation: Any = torch.tanh, sizes: Any = (1, 2)) -> None:
            super().__init__(in_features)
            self.save_hyperparameters()
            self.activation = activation

    data, model = toy_federation(6, 8), Activated(activation=torch.relu)
    whole = run("whole", FedAvg(), model, data, rounds=4)
    run("cut", FedAvg(), model, data, rounds=2)
    resumed = run("cut", FedAvg(), model, data, "last", rounds=4)
    assert_same_run(resumed, whole)
    assert resumed.engine.clients["A"].module.activation is torch.relu  # type: ignore[attr-defined]
    assert resumed.run_dir is not None
    file = resumed.run_dir / "checkpoints" / "last" / "clients" / "A.ckpt"
    loaded = Activated.load_from_checkpoint(file, activation=torch.relu)
    assert (loaded.hparams["in_features"], loaded.hparams["sizes"]) == (4, (1, 2))


class Leaves(FederatedCallback):
    """Has client A take part in the first round only."""

    def on_round_end(self, trainer: Any) -> None:
        if trainer.current_round == 1:
            trainer.retire(["A"])


def test_who_has_retired_stays_out(
    toy_federation: Callable[..., Any], toy_module: Any, run: Run, assert_same_run: Same
) -> None:
    data = toy_federation(6, 8)
    whole = run("whole", FedAvg(), toy_module(), data, rounds=4, callbacks=[Leaves()])
    run("cut", FedAvg(), toy_module(), data, rounds=2, callbacks=[Leaves()])
    resumed = run("cut", FedAvg(), toy_module(), data, "last", rounds=4, callbacks=[Leaves()])
    assert_same_run(resumed, whole)
    assert [record["clients"] for record in history(whole)] == [["A", "B"], ["B"], ["B"], ["B"]]


def test_evaluates_what_it_resumed(toy_federation: Callable[..., Any], toy_module: Any, run: Run) -> None:
    """`validate --ckpt_path last` gives what the run itself reported."""
    data = toy_federation(6, 8)
    done = run("cut", FedAvg(), toy_module(), data, rounds=3)
    fresh = FederatedTrainer(
        FedAvg(), default_root_dir=done.default_root_dir, enable_progress_bar=False, logger=False, accelerator="cpu"
    )
    metrics = fresh.validate(toy_module(), data, ckpt_path="last")
    final = done.history.last["clients"]
    assert metrics == {name: {k: v for k, v in final[name].items() if k.startswith("val/")} for name in "AB"}


class Failing(pl.Callback):
    """Raises in client B's third round, unless mended."""

    mended = False

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if not self.mended and trainer.current_epoch == 2 and batch_idx == 1 and len(batch[0]) == 2:
            raise RuntimeError("out of memory")


def test_a_failed_round_is_resumed_from_the_one_before(
    toy_federation: Callable[..., Any],
    toy_module: Any,
    run: Run,
    assert_same_run: Same,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Client A had already trained in that round; nothing of it may be left."""
    model, data = toy_module(dropout=0.5, optimizer="adam"), toy_federation(6, batch_size=3)
    data.given["B"] = toy_federation(8, batch_size=2).given["A"]
    with pytest.raises(ClientError, match=r"Client `B` failed in round 3 \(train\): RuntimeError: out of memory"):
        run("cut", FedAvg(), model, data, rounds=6, callbacks=[Failing()])
    monkeypatch.setattr(Failing, "mended", True)
    whole = run("whole", FedAvg(), model, data, rounds=6, callbacks=[Failing()])
    assert_same_run(run("cut", FedAvg(), model, data, "last", rounds=6, callbacks=[Failing()]), whole)


# ---------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seed": 1}, "`seed` to be 0"),
        ({"local_epochs": 2}, r"`trainer\.local_epochs` to be 1"),
        ({"client_fraction": 0.5}, r"`trainer\.client_fraction` to be 1\.0"),
        ({"gradient_clip_val": 1.0}, r"`trainer\.gradient_clip_val` to be None"),
        ({"precision": "bf16-mixed"}, r"`trainer\.precision` to be None"),
        ({"monitor": "val/loss"}, r"`trainer\.monitor` to be 'val/accuracy'"),
        ({"aggregator": FedProx()}, r"`trainer\.aggregator` to be 'FedAvg'"),
        ({"aggregator": FedAvg(weighting="uniform")}, r"`trainer\.aggregator\.weighting` to be 'samples'"),
        ({"aggregator": FedAvg(optimizer_state="reset")}, r"`trainer\.aggregator\.optimizer_state` to be 'keep'"),
        ({"model": {"lr": 0.2}}, r"`model\.lr` to be 0\.1"),
        ({"model": {"hidden": 5}}, r"`model\.hidden` to be 3"),
        ({"data": (6, 7), "batch_size": 6}, r"`data\.B\.num_train_samples` to be 8"),
        ({"data": (6, 8, 8), "batch_size": 6}, r"`data\.C"),
        ({"data": (6,), "batch_size": 6}, r"`data\.B"),
        ({"batch_size": 2}, r"`data\.A\.batch_size` to be 6"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_another_configuration_is_refused(
    changes: dict[str, Any], field: str, toy_federation: Callable[..., Any], toy_module: Any, run: Run
) -> None:
    before_size = {"batch_size": 6} if changes.get("data") else {}
    done = run("cut", FedAvg(), toy_module(), toy_federation(6, 8, **before_size), rounds=2)
    assert done.run_dir is not None
    before = (done.run_dir / "history.jsonl").read_bytes(), (done.run_dir / "results.json").read_bytes()
    changes = dict(changes)
    aggregator = changes.pop("aggregator", FedAvg())
    model = toy_module(**changes.pop("model", {}))
    size = {"batch_size": changes.pop("batch_size")} if "batch_size" in changes else {}
    data = toy_federation(*changes.pop("data", (6, 8)), **size)
    with pytest.raises(InputError, match=field):
        run("cut", aggregator, model, data, str(done.run_dir), rounds=3, **changes)
    assert before == ((done.run_dir / "history.jsonl").read_bytes(), (done.run_dir / "results.json").read_bytes())


@pytest.mark.parametrize("name", ["server.safetensors", "clients/A.ckpt", "manifest.json"])
def test_a_cut_file_is_refused(name: str, toy_federation: Callable[..., Any], toy_module: Any, run: Run) -> None:
    """And the message says which older checkpoint is whole; that one works."""
    data = toy_federation(6, 8)
    done = run("cut", FedAvg(), toy_module(), data, rounds=2)
    assert done.run_dir is not None
    file = done.run_dir / "checkpoints" / "last" / name
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"continue with --ckpt_path .*round-00001") as caught:
        run("cut", FedAvg(), toy_module(), data, "last", rounds=3)
    older = str(caught.value).split("--ckpt_path ")[1].rstrip(".")
    assert run("cut", FedAvg(), toy_module(), data, older, rounds=3).current_round == 3


def test_nothing_to_resume(toy_federation: Callable[..., Any], toy_module: Any, run: Run) -> None:
    with pytest.raises(InputError, match="`ckpt_path` to be the last checkpoint"):
        run("empty", FedAvg(), toy_module(), toy_federation(6), "last")


def test_a_finished_run_may_be_resumed(toy_federation: Callable[..., Any], toy_module: Any, run: Run) -> None:
    """Nothing is left to do, and nothing is done; not even another line of history."""
    data = toy_federation(6, 8)
    done = run("cut", FedAvg(), toy_module(), data, rounds=2)
    again = run("cut", FedAvg(), toy_module(), data, "last", rounds=2)
    assert results(again) == results(done)
    assert len(history(again)) == 2


class Killed(FederatedCallback):
    """Ends a run when a round is to begin, without a word."""

    def __init__(self, before: int) -> None:
        self.before = before

    def on_round_start(self, trainer: FederatedTrainer) -> None:
        if trainer.current_round == self.before:
            raise KeyboardInterrupt


@pytest.mark.parametrize("evaluate_every", [1, 2, 50])
def test_a_stopped_run_may_end_where_it_was_stopped(
    evaluate_every: int, toy_federation: Callable[..., Any], toy_module: Any, run: Run, assert_same_run: Same
) -> None:
    """Its last round is evaluated, as that of a run that was to end there."""
    data, args = toy_federation(6, 8), {"evaluate_every": evaluate_every}
    whole = run("whole", FedAvg(), toy_module(), data, rounds=3, **args)
    with pytest.raises(KeyboardInterrupt):
        run("cut", FedAvg(), toy_module(), data, rounds=6, callbacks=[Killed(4)], **args)
    for _ in range(2):  # the second time nothing is left to do at all
        assert_same_run(run("cut", FedAvg(), toy_module(), data, "last", rounds=3, **args), whole)


def test_clients_in_another_order_take_part_as_before(
    toy_federation: Callable[..., Any], toy_module: Any, run: Run
) -> None:
    data, args = toy_federation(6, 8, 4, 5), {"client_fraction": 0.5}
    whole = run("whole", FedAvg(), toy_module(), data, rounds=8, **args)
    run("cut", FedAvg(), toy_module(), data, rounds=2, **args)
    turned = toy_federation(**dict(reversed(data.given.items())))
    resumed = run("cut", FedAvg(), toy_module(), turned, "last", rounds=8, **args)
    assert [line["clients"] for line in history(resumed)] == [line["clients"] for line in history(whole)]
    assert results(resumed) == results(whole)


def test_what_was_fitted_is_not_mistaken_for_something_else(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any
) -> None:
    """Another test, or a fit that could not begin, takes the place of its clients."""
    model, data = toy_module(), toy_federation(6, 8)
    trainer = federate(FedAvg(), rounds=2)
    trainer.fit(model, data)
    fitted = trainer.test()
    assert trainer.test(toy_module(), toy_federation(9)).keys() == {"A"}
    for given in ((), (model, data)):
        with pytest.raises(InputError, match="`ckpt_path` to be given, since the clients of the last fit have made"):
            trainer.test(*given)
    assert trainer.test(ckpt_path="last") == fitted
    trainer.fit(model, data)
    with pytest.raises(InputError, match=r"`data"):
        trainer.fit(toy_module(), toy_federation(7, 8), ckpt_path="last")
    with pytest.raises(InputError, match="`ckpt_path` to be given"):
        trainer.test()


def test_what_describes_data_is_plain(toy_federation: Callable[..., Any], toy_module: Any, run: Run) -> None:
    """Or else the first round would be lost with its checkpoint."""
    data = toy_federation(6)
    data.given["A"].settings = {"classes": np.int64(2)}
    with pytest.raises(InputError, match=r"`classes` of the data of client `A` to be a plain value.* got 'int64 2'"):
        run("cut", FedAvg(), toy_module(), data)


def test_loaders_of_workers_resume(
    toy_federation: Callable[..., Any], toy_module: Any, toy_data: Any, run: Run, assert_same_run: Same
) -> None:
    """A loader with a generator of its own, seeded per pass from torch's, is as good as any."""

    class Own(type(toy_data())):  # type: ignore[misc]
        def train_dataloader(self) -> Any:
            sampler = torch.utils.data.RandomSampler(range(len(self.x)))
            return DataLoader(torch.utils.data.TensorDataset(self.x, self.y), 2, sampler=sampler)

    given = toy_data(6)
    data = toy_federation(A=Own(given.x, given.y), B=toy_data(4))
    model = toy_module(dropout=0.5)
    whole = run("whole", FedAvg(), model, data, rounds=4)
    run("cut", FedAvg(), model, toy_federation(A=Own(given.x, given.y), B=toy_data(4)), rounds=2)
    fresh = toy_federation(A=Own(given.x, given.y), B=toy_data(4))
    assert_same_run(run("cut", FedAvg(), model, fresh, "last", rounds=4), whole)


def test_numpy_numbers_resume(
    toy_federation: Callable[..., Any], toy_module: Any, run: Run, assert_same_run: Same
) -> None:
    """As a sweep with ``np.logspace`` has them: in a module's fields, its optimizer and its schedule."""

    class Swept(toy_module):  # type: ignore[misc]
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=np.logspace(-3, -1, 3)[1])
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: np.cos(epoch / 9))]

    whole = run("whole", FedAvg(), Swept(), toy_federation(6, 8), rounds=4)
    run("cut", FedAvg(), Swept(), toy_federation(6, 8), rounds=2)
    resumed = run("cut", FedAvg(), Swept(), toy_federation(6, 8), "last", rounds=4)
    assert_same_run(resumed, whole)
    assert resumed.run_dir is not None
    file = resumed.run_dir / "checkpoints" / "last" / "clients" / "A.ckpt"
    assert torch.load(file, weights_only=True)["optimizer_states"][0]["param_groups"][0]["initial_lr"] == 0.01


def test_a_state_that_could_not_be_read_is_refused(
    toy_federation: Callable[..., Any], toy_module: Any, run: Run
) -> None:
    """When the first checkpoint is due, and not when somebody goes on with the run."""

    class Seen(FedAvg):
        client_attributes = ("seen",)
        seen = np.zeros(1)

    with pytest.raises(InputError, match=r"`state\.A\.callbacks\..*Seen\.seen` to be tensors, .* but got ndarray"):
        run("cut", Seen(), toy_module(), toy_federation(6))

    class Sparse(FedAvg):
        server_attributes = ("graph",)
        graph = torch.eye(3).to_sparse()

    with pytest.raises(InputError, match=r"graph` to be a dense tensor but got torch\.sparse_coo"):
        run("sparse", Sparse(), toy_module(), toy_federation(6))


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_weights_of_any_precision_resume(
    precision: str, toy_federation: Callable[..., Any], run: Run, assert_same_run: Same, toy_module: Any
) -> None:
    settings: dict[str, Any] = {"precision": precision}
    for rows, others in (((6, 8), {}), ((6, 8, 5, 7), {"client_fraction": 0.25, "evaluate_every": 10})):
        data, name = toy_federation(*rows), str(len(rows))
        whole = run(f"whole{name}", FedAvg(), toy_module(), data, rounds=4, **settings, **others)
        run(f"cut{name}", FedAvg(), toy_module(), data, rounds=2, **settings, **others)
        resumed = run(f"cut{name}", FedAvg(), toy_module(), data, "last", rounds=4, **settings, **others)
        if not others:
            assert_same_run(resumed, whole)
        for client, own in whole.engine.clients.items():  # type: ignore[attr-defined]
            theirs = resumed.engine.clients[client].module  # type: ignore[attr-defined]
            assert all(map(torch.equal, own.module.parameters(), theirs.parameters()))


@pytest.mark.parametrize("whose", ["loader", "sampler", "batch sampler", "one of a list", "one of several"])
def test_loaders_with_a_generator_resume(
    whose: str, toy_federation: Callable[..., Any], toy_module: Any, toy_data: Any, run: Run, assert_same_run: Same
) -> None:
    """It is seeded with each turn, as the others are."""

    class First(toy_module):  # type: ignore[misc]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            first = batch["a"] if isinstance(batch, dict) else batch if len(batch) == 2 else batch[0]
            return super().training_step(first, batch_idx)

    class Own(type(toy_data())):  # type: ignore[misc]
        def train_dataloader(self) -> Any:
            rows, own = torch.utils.data.TensorDataset(self.x, self.y), torch.Generator().manual_seed(3)
            drawn = torch.utils.data.RandomSampler(rows, generator=own)
            if whose == "sampler":
                return DataLoader(rows, 2, sampler=drawn)
            if whose == "batch sampler":
                return DataLoader(rows, batch_sampler=torch.utils.data.BatchSampler(drawn, 2, False))
            loader = DataLoader(rows, 2, shuffle=True, generator=own)
            several = {"one of a list": [loader], "one of several": CombinedLoader({"a": loader})}
            return several.get(whose, loader)

    def data() -> Any:
        given = toy_data(6)
        return toy_federation(A=Own(given.x, given.y), B=toy_data(4))

    whole = run("whole", FedAvg(), First(), data(), rounds=4)
    run("cut", FedAvg(), First(), data(), rounds=2)
    assert_same_run(run("cut", FedAvg(), First(), data(), "last", rounds=4), whole)
