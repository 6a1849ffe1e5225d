"""The base class of algorithms: what it can carry besides those that are there."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flgraph.callbacks import GCFL, DFedGNN, FedAvg, GraphFL, Local
from flgraph.errors import InputError
from flgraph.federation import (
    Aggregator,
    Client,
    Combine,
    FederatedTrainer,
    Payload,
    Request,
    Route,
    WeightedMean,
    collected,
    personal,
    shared,
)
from flgraph.federation.seeding import derive_seed

Fit = Callable[..., FederatedTrainer]
EMPTY = Payload().to_bytes()


@pytest.fixture
def fit(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any, recorder: Any
) -> Fit:
    """Runs a federation of three clients; all that crosses is in ``trainer.engine.crossed``."""

    def run(aggregator: Aggregator, rounds: int = 3, clients: int = 3, ckpt: str | None = None, **kwargs: Any) -> Any:
        given = {"engine": recorder, "enable_checkpointing": False, "rounds": rounds, **kwargs}
        trainer = federate(aggregator, **given)
        trainer.fit(toy_module(), toy_federation(*[6, 8, 9, 5, 7, 6][:clients]), ckpt_path=ckpt)
        return trainer

    return run


def turns(trainer: Any) -> list[tuple[str, int, str]]:
    """Client, round and name of every exchange."""
    return [
        (name, turn.round, turn.exchange)
        for name, turn, _ in trainer.engine.crossed
        if turn.request is Request.EXCHANGE
    ]


# ---------------------------------------------------------------------------------------------------- who takes part
@pytest.mark.parametrize(("fraction", "count"), [(1.0, 6), (0.5, 3), (0.34, 2), (0.01, 1)])
def test_a_fraction_of_the_clients_takes_part(fit: Fit, fraction: float, count: int) -> None:
    trainer = fit(FedAvg(), rounds=3, clients=6, client_fraction=fraction)
    for round in (1, 2, 3):
        asked = [name for name, number, _ in turns(trainer) if number == round]
        assert len(asked) == len(set(asked)) == count
        assert asked == sorted(asked) == trainer.server.participants(round)


def test_participants_depend_on_seed_and_round_alone(fit: Fit) -> None:
    def drawn(**kwargs: Any) -> list[list[str]]:
        server = fit(Local(), rounds=1, clients=6, client_fraction=0.5, **kwargs).server
        return [server.participants(round) for round in range(1, 9)]

    first = drawn()
    assert drawn(local_epochs=2) == first
    assert drawn(seed=1) != first
    assert len({tuple(names) for names in first}) > 4, "another draw in each round"


def test_every_client_is_drawn_about_as_often(fit: Fit) -> None:
    """900 rounds of 2 of 6: 300 each, standard deviation sqrt(900 / 3 * 2 / 3) = 14."""
    server = fit(Local(), rounds=1, clients=6, client_fraction=0.34).server
    counts = dict.fromkeys("ABCDEF", 0)
    for round in range(1, 901):
        for name in server.participants(round):
            counts[name] += 1
    assert all(abs(count - 300) < 5 * 14 for count in counts.values()), counts


def test_only_participants_count(fit: Fit) -> None:
    """The mean over those who took part replaces the shared weights; the others get it all the same."""
    trainer: Any = fit(FedAvg(), rounds=1, clients=6, client_fraction=0.34)
    uploads = dict(trainer.engine.uploads())
    assert sorted(uploads) == trainer.server.participants(1)
    rows = dict(zip("ABCDEF", (6, 8, 9, 5, 7, 6), strict=True))
    total = sum(rows[name] for name in uploads)
    mean = sum(rows[name] / total * upload.tensors["last.weight"].double() for name, upload in uploads.items())
    for client in trainer.engine.clients.values():
        torch.testing.assert_close(client.module.last.weight.double(), mean, rtol=0, atol=1e-7)


def test_only_participants_tell_of_training(fit: Fit) -> None:
    """What somebody else logged in an earlier round says nothing of this one."""
    for rounds in (3, 4):
        trainer = fit(FedAvg(), rounds=rounds, clients=6, client_fraction=0.34, evaluate_every=3)
        last = trainer.history.last
        own = {name: of["train/loss"] for name, of in last["clients"].items() if "train/loss" in of}
        assert list(own) == trainer.server.participants(rounds)
        assert last["mean"]["train/loss"] == pytest.approx(sum(own.values()) / 2)


# ------------------------------------------------------------------------------------------------------------ the start
def test_trained_models_are_evaluated_before_the_aggregate_arrives(
    fit: Fit, toy_module: Any, toy_federation: Any, recorder: Any
) -> None:
    data = toy_federation(6, 8, 9)

    class Trained(FedAvg):
        evaluated_model = "trained"

    trainer: Any = fit(Trained(), rounds=2)
    uploads = dict(recorder.uploads()[-3:])
    evaluations = [turn.download for _, turn, _ in recorder.crossed if turn.splits]
    assert evaluations == [None] * 6
    for name, metrics in trainer.history.last["clients"].items():
        own = toy_module(in_features=4)
        own.load_state_dict(uploads[name].tensors)
        loss = torch.nn.functional.cross_entropy(own(data.client(name).x), data.client(name).y)
        assert metrics["test/loss"] == pytest.approx(loss.item(), rel=1e-5)
    recorder.crossed.clear()
    fit(FedAvg(), rounds=2)
    for name, upload in recorder.uploads()[-3:]:  # what is learnt stays the same
        assert all(torch.equal(tensor, uploads[name].tensors[key]) for key, tensor in upload.tensors.items())


def test_all_clients_begin_with_the_mean_of_their_own_weights(fit: Fit, recorder: Any) -> None:
    class FromMean(FedAvg):
        initial_weights = "mean"

    trainer: Any = fit(FromMean(), rounds=1)
    own = [answer.tensors for _, answer in recorder.uploads("agree")]
    assert len(own) == 3
    assert not torch.equal(own[0]["first.weight"], own[1]["first.weight"])
    _, _, sent = recorder.downloads()[0]
    assert sent.tensors.keys() == own[0].keys()
    for name, tensor in sent.tensors.items():
        torch.testing.assert_close(tensor.double(), sum(one[name].double() for one in own) / 3, rtol=0, atol=1e-7)
    assert trainer.server.setup_record.bytes_up > sum(t.nbytes for one in own for t in one.values())


def test_clients_may_begin_with_weights_of_their_own(fit: Fit, recorder: Any) -> None:
    """The server asks for none, and sends none before it has aggregated some."""

    class Own(FedAvg):
        initial_weights = "own"

    trainer: Any = fit(Own(), rounds=2, client_fraction=0.34)
    assert not any(answer for _, turn, answer in recorder.crossed if turn.request is Request.AGREE and answer != EMPTY)
    assert {turn.round for _, turn, _ in recorder.downloads()} == {1, 2}
    assert trainer.server.aggregator.shared.keys() == set(trainer.engine.clients["A"].routing.shared)


def test_all_clients_begin_with_the_first_owners_weights(fit: Fit, toy_module: Any) -> None:
    class Idle(FedAvg):
        def local_update(self, client: Client, round: int, exchange: str) -> None: ...

    trainer: Any = fit(Idle(), rounds=1)
    torch.manual_seed(derive_seed(0, "A", "initial weights"))
    first = toy_module(in_features=4)
    for client in trainer.engine.clients.values():
        assert torch.equal(client.module.first.weight, first.first.weight)


def test_nothing_is_sent_twice(fit: Fit) -> None:
    """An evaluation brings the aggregate; the next round's training need not bring it again."""
    trainer: Any = fit(FedAvg(), rounds=3)
    received = [(name, turn.round, turn.name) for name, turn, _ in trainer.engine.downloads()]
    assert received == [(name, round, "evaluate") for round in range(4) for name in "ABC"]
    seldom: Any = fit(FedAvg(), rounds=3, evaluate_every=3, engine=type(trainer.engine)())
    received = [(name, turn.round, turn.name) for name, turn, _ in seldom.engine.downloads()]
    expected = [(0, "evaluate"), (2, "train"), (3, "train"), (3, "evaluate")]
    assert received == [(name, *when) for when in expected for name in "ABC"]


# ----------------------------------------------------------------------------------------- other shapes of algorithms
class TwoExchanges(Aggregator):
    """A round of two exchanges and a download of its own for each client: the ring of D-FedGNN, with a first look."""

    extra_tensors = {"first/*": "data"}  # noqa: RUF012
    upload_scalars = ("num_samples", "rows")
    server_attributes = ("_tensors", "_rows")
    client_attributes = ("_total",)

    def __init__(self) -> None:
        super().__init__()
        self._tensors: dict[str, Mapping[str, Tensor]] = {}
        self._rows: dict[str, int] = {}

    def routes(self) -> list[Route]:
        return [*shared("last.*"), *personal("*")]

    def exchanges(self, round: int) -> Sequence[str]:
        return ("look", "train") if round else ()

    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        self._tensors = {client: initial for client in clients}

    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        names = list(self._tensors)
        neighbour = names[names.index(client) - 1]
        return Payload(self._tensors[neighbour], {"total": sum(self._rows.values())})

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        if exchange == "look":
            assert all(upload.group("first")["norm"].shape == (1,) for upload in uploads.values())
            self._rows = {name: int(upload.scalars["rows"]) for name, upload in uploads.items()}
        else:
            self._tensors |= {name: upload.group() for name, upload in uploads.items()}
        return {}

    def install(self, client: Client, download: Payload) -> None:
        super().install(client, download)
        self._total = download.scalars["total"]

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        if exchange == "train":
            assert self._total == 6 + 8 + 9
            client.fit()

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        if exchange == "look":
            return Payload({"first": {"norm": torch.ones(1)}}, {"rows": client.num_samples})
        return super().upload(client, round, exchange)


def test_two_exchanges_and_downloads_of_ones_own(fit: Fit) -> None:
    trainer: Any = fit(TwoExchanges(), rounds=2)
    expected = [(name, round, exchange) for round in (1, 2) for exchange in ("look", "train") for name in "ABC"]
    assert turns(trainer) == expected
    last = {name: upload for name, upload in trainer.engine.uploads()[-3:]}
    for name, neighbour in (("A", "C"), ("B", "A"), ("C", "B")):
        own = trainer.engine.clients[name].module.last.weight
        assert torch.equal(own, last[neighbour].tensors["last.weight"])
        assert not torch.equal(own, last[name].tensors["last.weight"])


def test_two_exchanges_resume(fit: Fit, assert_same: Callable[..., None], tmp_path: Any) -> None:
    whole: Any = fit(TwoExchanges(), rounds=4, engine=None)
    cut = {"engine": None, "enable_checkpointing": True, "default_root_dir": str(tmp_path / "cut")}
    fit(TwoExchanges(), rounds=2, **cut)
    resumed: Any = fit(TwoExchanges(), rounds=4, ckpt="last", **cut)
    for name in "ABC":
        assert_same(resumed.engine.clients[name].state(), whole.engine.clients[name].state())


def test_undeclared_scalars_stay(fit: Fit) -> None:
    class Undeclared(TwoExchanges):
        upload_scalars = ("num_samples",)

    with pytest.raises(InputError, match=r"one with scalars among \['num_samples'\] but got 'rows'"):
        fit(Undeclared())


def test_undeclared_tensors_stay(fit: Fit) -> None:
    class Undeclared(TwoExchanges):
        extra_tensors = {}  # noqa: RUF012

    with pytest.raises(InputError, match="what the routes or `extra_tensors` name but got `first/norm`"):
        fit(Undeclared())


class Before(FedAvg):
    """Adds up the clients' features once, before the first round, and tells everybody: FedGCN's first step."""

    extra_tensors = {"sum/*": "data"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._total = torch.zeros(4)

    def exchanges(self, round: int) -> Sequence[str]:
        return ("train",) if round else ("features",)

    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        weights = super().download(client, round, exchange)
        assert weights is not None
        return Payload({**weights.tensors, "sum": {"features": self._total}})

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        if exchange != "features":
            return super().aggregate(uploads, round, exchange)
        self._total = torch.stack([upload.group("sum")["features"] for upload in uploads.values()]).sum(dim=0)
        return {}

    def install(self, client: Client, download: Payload) -> None:
        client.module.received = download.group("sum")["features"]
        super().install(client, download)

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        if exchange == "train":
            super().local_update(client, round, exchange)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        if exchange == "features":
            return Payload({"sum": {"features": client.data.x.sum(dim=0)}})  # type: ignore[attr-defined]
        return super().upload(client, round, exchange)


def test_an_exchange_before_the_first_round(fit: Fit) -> None:
    trainer: Any = fit(Before(), rounds=2, client_fraction=0.3)
    assert [turn for turn in turns(trainer) if turn[1] == 0] == [(name, 0, "features") for name in "ABC"]
    clients = trainer.engine.clients
    expected = sum(client.data.x.sum(dim=0) for client in clients.values())
    for client in clients.values():
        torch.testing.assert_close(client.module.received, expected)
    setup = trainer.server.setup_record
    assert setup.bytes_up > 3 * 4 * 4
    assert [upload.tensors.keys() for _, upload in trainer.engine.uploads("features")] == 3 * [{"sum/features"}]


class Embeddings(Local):
    """Collects embeddings with soft labels, and trains a network of the server's on them: FedEgo's second half."""

    extra_tensors = {"ego_graphs/*": "data"}  # noqa: RUF012
    upload_scalars = ("num_samples",)

    def __init__(self) -> None:
        super().__init__()
        self._net = torch.nn.Linear(3, 2)
        self.losses: list[Any] = []

    def routes(self) -> list[Route]:
        return [*collected("first.bias"), *shared("last.*"), *personal("*")]

    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        super().start(initial, clients)
        self._net.weight.data, self._net.bias.data = initial["last.weight"].clone(), initial["last.bias"].clone()

    def upload(self, client: Client, round: int, exchange: str) -> Payload:
        with torch.no_grad():
            hidden = torch.tanh(client.module.first(client.data.x))  # type: ignore[attr-defined]
        labels = torch.nn.functional.one_hot(client.data.y, 2).float()  # type: ignore[attr-defined]
        return Payload({"ego_graphs": {"hidden": hidden, "labels": labels}, "first.bias": client.module.first.bias})

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        parts = [upload.group("ego_graphs") for upload in uploads.values()]
        hidden, labels = (torch.cat([part[name] for part in parts]) for name in ("hidden", "labels"))
        optimizer = torch.optim.SGD(self._net.parameters(), lr=0.5)
        for _ in range(5):
            loss = torch.nn.functional.cross_entropy(self._net(hidden), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.losses.append(loss.item())
        return {f"last.{name}": tensor.detach().clone() for name, tensor in self._net.named_parameters()}


def test_a_server_that_trains(fit: Fit) -> None:
    """And a client half that uploads what is collected, beside the model and of it."""
    trainer: Any = fit(Embeddings(), rounds=2)
    server = trainer.server.aggregator
    assert server.losses[0] > server.losses[-1]
    for client in trainer.engine.clients.values():
        assert torch.equal(client.module.last.weight, server._net.weight)
        assert client.aggregator.losses == [], "the client half shares no memory with the server half"
    assert trainer.aggregator.losses == [], "nor does either with what the user gave"
    names = {name for _, upload in trainer.engine.uploads() for name in upload.tensors}
    assert names == {"ego_graphs/hidden", "ego_graphs/labels", "first.bias"}


def test_owners_share_what_only_some_have(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any, recorder: Any
) -> None:
    """FedHGN's case: a relation that one bank knows and another does not. Who lacks it is sent none of it."""

    class Owners(FedAvg):
        def routes(self) -> list[Route]:
            return [*shared("norm.*", on_mismatch="owners"), *shared("*")]

    trainer: Any = federate(Owners(), rounds=1, enable_checkpointing=False, engine=recorder)
    trainer.fit(lambda data: toy_module(4, norm=len(data.x) != 9), toy_federation(6, 8, 9))
    modules = {name: client.module for name, client in trainer.engine.clients.items()}
    assert torch.equal(modules["A"].norm.weight, modules["B"].norm.weight)
    assert torch.equal(modules["A"].last.weight, modules["C"].last.weight)
    assert "norm.weight" not in dict(recorder.uploads())["C"].tensors
    sent = {name: set(payload.tensors) for name, _, payload in recorder.downloads()}
    assert sent["A"] - sent["C"] == {name for name in sent["A"] if name.startswith("norm.")} != set()


# ----------------------------------------------------------------------------------------------- what aggregate returns
class Median(FedAvg):
    """The override that comes to mind first."""

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        names = next(iter(uploads.values())).group()
        return {name: torch.stack([u.tensors[name] for u in uploads.values()]).median(dim=0).values for name in names}


class MedianOfAll(Combine):
    """The same for every algorithm that averages."""

    def __call__(self, tensors: Mapping[str, Mapping[str, Tensor]], weights: Mapping[str, float]) -> dict[str, Tensor]:
        assert list(weights) == list(tensors)
        return {n: torch.stack([own[n] for own in tensors.values()]).median(dim=0).values for n in tensors["A"]}


@pytest.mark.parametrize("aggregator", [Median(), FedAvg(combine=MedianOfAll())], ids=["aggregate", "combine"])
def test_a_median_is_what_clients_get_and_resumes(
    aggregator: Aggregator, fit: Fit, assert_same: Callable[..., None], recorder: Any, tmp_path: Any
) -> None:
    whole: Any = fit(aggregator, rounds=3)
    sent = [upload.tensors for _, upload in recorder.uploads()[-3:]]
    for name, tensor in whole.server.aggregator.shared.items():
        median = torch.stack([tensors[name] for tensors in sent]).median(dim=0).values
        assert torch.equal(tensor, median)
        assert all(torch.equal(c.module.state_dict()[name], median) for c in whole.engine.clients.values())
    cut = {"engine": None, "enable_checkpointing": True, "default_root_dir": str(tmp_path / "cut")}
    fit(aggregator, rounds=1, **cut)
    resumed: Any = fit(aggregator, rounds=3, ckpt="last", **cut)
    for name in "ABC":
        assert_same(resumed.engine.clients[name].state(), whole.engine.clients[name].state())


@pytest.mark.parametrize("aggregator", [GraphFL(num_nodes=2), DFedGNN(), GCFL(base=["first.*"])], ids=lambda a: a.name)
def test_every_algorithm_that_averages_takes_another_mean(aggregator: Aggregator, fit: Fit) -> None:
    calls = []

    class Spy(WeightedMean):
        def __call__(self, *args: Any) -> dict[str, Tensor]:
            calls.append(args)
            return super().__call__(*args)

    aggregator.combine = Spy()
    Spy.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]
    fit(aggregator, rounds=1)
    assert calls


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "to be the new shared tensors by name but got 'NoneType'"),
        (Payload(), "to be the new shared tensors by name but got 'Payload'"),
        ({"last.bias": [0.0, 0.0]}, "to be a tensor for `last.bias` but got 'list'"),
        ({"first.bias": torch.zeros(3)}, "to be of tensors that clients share but got 'first.bias'"),
        ({"last.bias": torch.zeros(3)}, r"to be of shape \[2\] for `last.bias` but got \[3\]"),
    ],
    ids=["None", "Payload", "no tensor", "unknown", "shape"],
)
def test_what_aggregate_must_not_return(returned: Any, message: str, fit: Fit) -> None:
    class Wrong(FedAvg):
        def routes(self) -> list[Route]:
            return [*shared("last.*"), *personal("*")]

        def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Any:
            return returned

    with pytest.raises(InputError, match=rf"^Expected `result of Wrong\.aggregate` {message}\.$"):
        fit(Wrong())


def test_some_tensors_may_be_left_as_they_are(fit: Fit, recorder: Any) -> None:
    class Bias(FedAvg):
        def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
            means = super().aggregate(uploads, round, exchange)
            return {name: mean for name, mean in means.items() if name.endswith("bias")}

    fit(Bias(), rounds=2)
    first, *_, last = (payload.tensors for name, _, payload in recorder.downloads() if name == "A")
    for name, tensor in first.items():
        assert torch.equal(tensor, last[name]) == name.endswith("weight")


# --------------------------------------------------------------------------------------------- randomness and failures
class Noisy(FedAvg):
    """Draws from the global generators at the server."""

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        drawn = random.random() + float(np.random.rand())
        means = super().aggregate(uploads, round, exchange)
        return {name: mean + 0.1 * drawn * torch.randn(mean.shape) for name, mean in means.items()}


def test_a_server_that_draws_is_seeded_for_every_aggregate(
    fit: Fit, assert_same: Callable[..., None], tmp_path: Any
) -> None:
    """By seed, round and exchange: whatever was drawn before, such as by clients elsewhere, has no influence."""
    whole: Any = fit(Noisy(), rounds=3, seed=1)
    cut = {"engine": None, "enable_checkpointing": True, "default_root_dir": str(tmp_path / "cut"), "seed": 1}
    fit(Noisy(), rounds=1, **cut)
    torch.rand(7), random.random(), np.random.rand()
    resumed: Any = fit(Noisy(), rounds=3, ckpt="last", **cut)
    assert_same(resumed.server.aggregator.shared, whole.server.aggregator.shared)


def test_an_error_in_the_server_half_leaves_its_traceback(fit: Fit, tmp_path: Any) -> None:
    class Broken(FedAvg):
        def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
            if round == 2:
                raise RuntimeError("no memory left")
            return super().aggregate(uploads, round, exchange)

    with pytest.raises(RuntimeError, match="no memory left") as caught:
        fit(Broken(), enable_checkpointing=True)
    (error,) = tmp_path.glob("runs/*/version_0/error.txt")
    assert 'raise RuntimeError("no memory left")' in error.read_text()
    assert caught.value.__notes__ == [f"its traceback is in {error}", f"continue with --ckpt_path {error.parent}"]


def test_an_error_before_the_run_has_a_folder_leaves_earlier_runs_alone(fit: Fit, tmp_path: Any) -> None:
    class Broken(FedAvg):
        broken = False

        def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
            if self.broken:
                raise RuntimeError("no start")
            super().start(initial, clients)

    trainer = fit(Broken(), enable_checkpointing=True)
    Broken.broken = True
    for again in (lambda: fit(Broken(), enable_checkpointing=True), lambda: trainer.fit(*trainer._fitted)):
        with pytest.raises(RuntimeError, match="no start") as caught:
            again()
        assert not hasattr(caught.value, "__notes__")
    assert list(tmp_path.rglob("error.txt")) == []
