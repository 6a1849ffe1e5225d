"""What one side could do to the other by numbers, indices, names and shapes of its choice; and what noise hides."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import fuzz
import pytest
import torch
from torch import Tensor

from flgraph import callbacks
from flgraph.callbacks.gcfl import cosine_similarity, minimum_cut
from flgraph.errors import ClientError, InputError
from flgraph.federation import Aggregator, FederatedTrainer, Payload, Request, Sequential, Tolerance, Turn
from flgraph.federation.aggregation import weighted_mean
from flgraph.runs.checkpoint import load_bytes, state_bytes

Change = Callable[[dict[str, Tensor], dict[str, Any]], Any]


def of(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    """Changes one tensor, of which a copy is given."""

    def apply(tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
        (found,) = [key for key in tensors if key == name] or [next(key for key in tensors if key.endswith(name))]
        tensors[found] = change(tensors[found].clone())

    return apply


def at(name: str, index: Any, value: float) -> Change:
    """Sets a value of a tensor."""

    def put(tensor: Tensor) -> Tensor:
        tensor[index] = value
        return tensor

    return of(name, put)


def scalar(name: str, value: Any) -> Change:
    return lambda tensors, scalars: scalars.update({name: value})


def without(name: str) -> Change:
    return lambda tensors, scalars: tensors.pop(next(key for key in tensors if key.endswith(name)))


def further(name: str, tensor: Tensor) -> Change:
    return lambda tensors, scalars: tensors.update({name: tensor})


def first_twice(tensor: Tensor) -> Tensor:
    return torch.cat([tensor[:1], tensor[:-1]])


def overflowing(rowptr: Tensor) -> Tensor:
    """Differences that are not negative in 32 bits, whatever the numbers are."""
    rowptr[1:4] = torch.tensor([2**30, 2**31 - 1, -(2**31)])
    return rowptr


UPLOADS: list[tuple[str, str, Change]] = [
    ("FedGCN", "nodes", at("setup/nodes", 0, -1)),
    ("FedGCN", "nodes", of("setup/nodes", first_twice)),
    ("FedGCN", "nodes", of("setup/nodes", Tensor.long)),
    ("FedGCN", "nodes", of("setup/nodes", lambda nodes: nodes.unsqueeze(0))),
    ("FedGCN", "nodes", of("setup/nodes", lambda nodes: nodes[:0])),
    ("FedGCN", "nodes", without("setup/nodes")),
    ("FedGCN", "nodes", scalar("num_features", 0)),
    ("FedGCN", "nodes", scalar("num_features", 2**40)),
    ("FedGCN", "nodes", scalar("num_features", True)),
    ("FedGCN", "nodes", scalar("cross_edges", 1)),
    ("FedGCN", "degrees", at("setup/degree", 0, -1)),
    ("FedGCN", "degrees", at("setup/degree", 0, 2**31 - 1)),
    ("FedGCN", "degrees", of("setup/degree", lambda degree: degree[:-1])),
    ("FedGCN", "degrees", of("setup/outside", first_twice)),
    ("FedGCN", "degrees", at("setup/outside", 0, -5)),
    ("FedGCN", "neighbours", at("setup/col", 0, 100_000)),
    ("FedGCN", "neighbours", at("setup/col", 0, -1)),
    ("FedGCN", "neighbours", of("setup/col", lambda col: col * 0)),
    ("FedGCN", "neighbours", at("setup/rowptr", 0, 1)),
    ("FedGCN", "neighbours", at("setup/rowptr", 1, 2**31 - 1)),
    ("FedGCN", "neighbours", at("setup/rowptr", -1, 2**31 - 1)),
    ("FedGCN", "neighbours", of("setup/rowptr", lambda rowptr: rowptr[1:])),
    ("FedGCN", "neighbours", of("setup/rowptr", overflowing)),
    ("FedGCN", "neighbours", of("setup/value", lambda value: value[1:])),
    ("FedGCN", "neighbours", scalar("num_features", 7)),
    ("FedGTA", "train", without("topology/moments")),
    ("FedGTA", "train", of("topology/moments", lambda moments: moments[1:])),
    ("FedGTA", "train", of("topology/moments", lambda moments: moments[:, :0])),
    ("FedGTA", "train", at("topology/moments", (0, 0), 2.0)),
    ("FedGTA", "train", scalar("confidence", -1.0)),
    ("FedGTA", "train", scalar("confidence", 1e300)),
    ("FedGTA", "train", scalar("confidence", True)),
    ("FedPUB", "train", without("function/embedding")),
    ("FedPUB", "train", of("function/embedding", lambda embedding: embedding.unsqueeze(0))),
    ("FedPUB", "train", of("function/embedding", Tensor.double)),
    ("FedSSP", "train", without("consensus/mean")),
    ("FedSSP", "train", of("consensus/mean", lambda mean: mean[1:])),
    ("FedSSP", "train", scalar("columns", 0)),
    ("FedSSP", "train", scalar("columns", 2**40)),
    ("FGGP", "train", without("prototypes/found")),
    ("FGGP", "train", at("prototypes/found", 0, 2.0)),
    ("FGGP", "train", of("prototypes/mean", lambda mean: mean[:, 1:])),
    ("FGGP", "train", scalar("columns", 3)),
    ("FGGP", "train", scalar("num_classes", 2**40)),
    ("FedTAD", "train", without("reliability/classes")),
    ("FedTAD", "train", at("reliability/classes", 0, -1.0)),
    ("FedTAD", "train", of("reliability/classes", lambda trust: trust[1:])),
    ("FedTAD", "train", scalar("num_classes", 0)),
    ("FedTAD", "train", scalar("in_channels", 2**40)),
    ("FedSagePlus", "generate", at("generated/features", 0, 1.5)),
    ("FedSagePlus", "generate", of("generated/features", lambda features: features[:, 1:])),
    ("FedSagePlus", "generate", of("generated/features", Tensor.int)),
    ("FedSagePlus", "generate", without("generated/features")),
    ("FedSagePlus", "generate", further("generated/further", torch.ones(1))),
    ("FedSagePlus", "generate", scalar("num_features", 0)),
    ("FedSagePlus", "compare 1", further("gradient/nobody", torch.ones(1))),
    ("FedSagePlus", "compare 1", of("gradient/client-1", lambda gradient: gradient[:, 1:])),
    ("FedSagePlus", "compare 1", without("gradient/client-1")),
    ("FedEgo", "train", scalar("num_classes", 2**40)),
    ("FedEgo", "train", scalar("num_classes", 0)),
    ("FedEgo", "train", scalar("num_classes", 7)),
    ("FedEgo", "train", scalar("num_classes", "3")),
    ("FedEgo", "train", scalar("fanouts", "[2]")),
    ("FedEgo", "train", scalar("fanouts", "[2, -2]")),
    ("FedEgo", "train", scalar("fanouts", "[9999, 9999, 9999]")),
    ("FedEgo", "train", scalar("fanouts", "3")),
    ("FedEgo", "train", of("embedding", lambda embedding: embedding[:, 1:])),
    ("FedEgo", "train", of("embedding", lambda embedding: embedding[:0])),
    ("FedEgo", "train", of("label", lambda label: label[:, :, 1:])),
    ("FedEgo", "train", of("label", lambda label: label * 2)),
    ("FedEgo", "train", of("label", lambda label: label * 0)),
    ("FedEgo", "train", at("label", (0, 0, 0), -1)),
    ("FedHGN", "train", of("rows/convs.1", lambda rows: rows[:, 1:])),
    ("FedHGN", "train", of("rows/convs.1", lambda rows: rows[:1].expand(10_001, -1))),
    ("FedHGN", "train", of("rows/convs.1", Tensor.long)),
    ("FedHGN", "train", further("rows/convs.7", torch.ones(1, 3))),
    ("FedHGN", "train", without("rows/convs.1")),
    ("SchemaFedAvg", "schema", further("relations/convs.1.weight/a\x1b[2Jb", torch.ones(4, 4))),
    ("SchemaFedAvg", "schema", further("relations/elsewhere/a|b|c", torch.ones(4, 4))),
    ("SchemaFedAvg", "schema", further("relations/convs.1.weight/", torch.ones(4, 4))),
    ("SchemaFedAvg", "train", further("relations/convs.1.weight/a|b|c", torch.ones(4, 4))),
    ("SchemaFedAvg", "train", of("a|treats|a", lambda row: row[:1])),
    ("GraphFL", "meta", further("gradient/elsewhere", torch.ones(1))),
    ("GraphFL", "meta", of("gradient/reduction.layers.0.weight", lambda gradient: gradient[:1])),
    ("GraphFL", "meta", of("gradient/reduction.layers.0.weight", Tensor.long)),
    ("GraphFL", "meta", scalar("num_samples", -5)),
    ("FedAvg", "train", scalar("num_samples", 0)),
    ("FedAvg", "train", scalar("num_samples", 2**63)),
    ("FedAvg", "train", scalar("num_samples", 1.5)),
    ("FedAvg", "train", without("pre.weight")),
    ("SCAFFOLD", "train", further("control/elsewhere", torch.ones(1))),
    ("SCAFFOLD", "train", of("control/post.weight", lambda control: control[:1])),
    ("SCAFFOLD", "train", of("control/post.weight", Tensor.long)),
    ("SCAFFOLD", "train", lambda tensors, scalars: tensors.pop("post.weight")),
    ("FedNova", "train", scalar("steps", 0.5)),
    ("FedNova", "train", scalar("steps", -1.0)),
    ("FedNova", "train", scalar("steps", 1e300)),
    ("FedNova", "train", scalar("steps", "3")),
    ("FedNova", "train", scalar("num_samples", 0)),
    ("Ditto", "train", without("post.weight")),
    ("APFL", "train", without("post.weight")),
    ("APFL", "train", scalar("num_samples", 0)),
    ("FedProto", "train", scalar("num_classes", 2**40)),
    ("FedProto", "train", scalar("columns", 3)),
    ("FedProto", "train", of("prototypes/mean", lambda mean: mean[:, 1:])),
    ("FedProto", "train", of("prototypes/mean", Tensor.long)),
    ("FedProto", "train", at("prototypes/count", 0, -1)),
    ("FedProto", "train", at("prototypes/count", 0, 1e3)),  # a client has some ten records
    ("FedProto", "train", without("prototypes/count")),
]


def changed(data: bytes | Payload, change: Change) -> Payload:
    payload = Payload.from_bytes(data) if isinstance(data, bytes) else data
    tensors, scalars = dict(payload.tensors), dict(payload.scalars)
    change(tensors, scalars)
    return Payload(tensors, scalars)


@pytest.mark.parametrize(("name", "exchange", "change"), UPLOADS)
def test_uploads_are_refused(name: str, exchange: str, change: Change, recorded: Any) -> None:
    step = next(step for step in recorded(name).steps if step.exchange == exchange)
    client = list(step.uploads)[1]
    data = step.uploads[client]
    step.server.check_upload(client, Payload.from_bytes(data), step.round, exchange)
    with pytest.raises(InputError, match=f"upload` of client `{client}`|`payload` to be of names that can be printed"):
        step.server.check_upload(client, changed(data, change), step.round, exchange)


def test_a_large_node_number_takes_no_memory(recorded: Any) -> None:
    """744 bytes asked for 8.6 GB: a row for every number up to the largest."""
    nodes, degrees, neighbours = recorded("FedGCN").steps[:3]
    server, client = copy.deepcopy(nodes.server), next(iter(nodes.uploads))
    largest = {**nodes.uploads, client: changed(nodes.uploads[client], at("setup/nodes", 0, 2**31 - 1)).to_bytes()}
    for step, uploads in ((nodes, largest), (degrees, degrees.uploads)):
        there = {name: Payload.from_bytes(data) for name, data in uploads.items()}
        server.check_upload(client, there[client], 0, step.exchange)
        server.aggregate(there, 0, step.exchange)
    assert server._positions()[1] < 200
    assert neighbours.exchange == "neighbours"


def test_many_columns_take_no_memory() -> None:
    """A product of sparse matrices takes memory for each of them."""
    from scipy import sparse

    from flgraph.callbacks.fedgcn import _placed

    part = sparse.csr_matrix(([1.0, 2.0], [5, 2**31 - 2], [0, 1, 2]), (2, 2**31 - 1))
    placed = _placed(part, torch.tensor([2, 0]).numpy(), 3)
    assert placed[0, 2**31 - 2] == 2
    assert placed[2, 5] == 1
    assert placed.nnz == 2


class Failing(Sequential):
    """A client fails in an exchange."""

    def __init__(self, client: str, exchange: str) -> None:
        super().__init__()
        self.client, self.exchange = client, exchange

    def run(self, turns: Any) -> dict[str, Any]:
        answers = dict(super().run(turns))
        if self.client in turns and turns[self.client].exchange == self.exchange:
            answers[self.client] = ClientError("it failed")
        return answers


@pytest.mark.parametrize("exchange", ["nodes", "degrees", "neighbours"])
@pytest.mark.parametrize("client", ["client-1", "client-3"])
def test_fedgcn_goes_on_without_a_client(exchange: str, client: str, made: Any, federate: Any) -> None:
    aggregator, model, data = made["FedGCN"]()
    engine, tolerance = Failing(client, exchange), Tolerance(on_bad_upload="drop")
    trainer = federate(aggregator, rounds=2, engine=engine, tolerance=tolerance, enable_checkpointing=False)
    results = trainer.fit(model, data)
    others = [name for name in data.clients if name != client]
    assert list(results["final"]["clients"]) == others
    for name in others:
        assert engine.clients[name].module.sums is not None
        assert results["final"]["clients"][name]["val/loss"] < 100


def test_a_client_cannot_take_a_relation_from_the_others(recorded: Any) -> None:
    """It named one in another shape, and all others' uploads of it could no longer be averaged."""
    schema, train = recorded("SchemaFedAvg").steps[:2]
    server, (odd, *rest) = copy.deepcopy(schema.server), list(schema.uploads)
    there = {name: Payload.from_bytes(data) for name, data in schema.uploads.items()}
    there[odd] = Payload({name: tensor[:1] for name, tensor in there[odd].tensors.items()}, there[odd].scalars)
    server.check_upload(odd, there[odd], 0, "schema")
    server.aggregate(there, 0, "schema")
    later = {name: Payload.from_bytes(train.uploads[name]) for name in rest}
    for name, upload in later.items():
        server.check_upload(name, upload, 1, "train")
    server.aggregate(later, 1, "train")
    assert not server.download(odd, 1, None).group("relations")


def test_embeddings_too_large_to_learn_from_leave_the_model_as_it_was(recorded: Any) -> None:
    step = recorded("FedEgo").steps[1]
    server, client = copy.deepcopy(step.server), next(iter(step.uploads))
    server.server_fraction = 1.0
    for group in server._model.module.parameters():
        group.data.fill_(float(torch.finfo(torch.float32).max))  # what some steps of this would make of it
    before = server._model.tensors()
    there = {name: Payload.from_bytes(data) for name, data in step.uploads.items()}
    there[client] = changed(there[client], of("embedding", lambda embedding: embedding.fill_(1e18)))
    server.check_upload(client, there[client], step.round, "train")
    server.aggregate(there, step.round, "train")
    after = server._model.tensors()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


# ----------------------------------------------------------------------------------------------------- at the client
DOWNLOADS: list[tuple[str, str, Change]] = [
    ("FedGCN", "degrees", of("setup/earlier", lambda earlier: earlier[1:])),
    ("FedGCN", "degrees", of("setup/earlier", lambda earlier: earlier.int())),
    ("FedGCN", "neighbours", at("setup/degree", 0, -1)),
    ("FedGCN", "neighbours", at("setup/degree", 0, 0)),
    ("FedGCN", "neighbours", of("setup/degree", lambda degree: degree[1:])),
    ("FedGCN", "train", at("setup/col", 0, 100_000)),
    ("FedGCN", "train", at("setup/col", 0, -1)),
    ("FedGCN", "train", at("setup/rowptr", 1, 2**31 - 1)),
    ("FedGCN", "train", of("setup/rowptr", lambda rowptr: rowptr[:-1])),
    ("FedSagePlus", "compare 1", of("generated/client-1", lambda rows: rows + 2)),
    ("FedSagePlus", "compare 1", of("generated/client-1", lambda rows: rows[:, 1:])),
    ("FedSagePlus", "compare 1", further("generated/nobody", torch.ones(1))),
    ("FedSagePlus", "refine 1", further("gradient/elsewhere", torch.ones(1))),
    ("FedSagePlus", "refine 1", of("gradient/features", lambda gradient: gradient[:, 1:])),
    ("FedEgo", "train", of("labels/global", lambda labels: labels[1:])),
    ("FedEgo", "train", of("labels/global", lambda labels: labels * 50)),
    ("FedEgo", "train", of("labels/global", lambda labels: labels - 1)),
    ("FedEgo", "train", without("labels/global")),
    ("FedEgo", "train", without("classifier.weight")),
    ("FedEgo", "train", at("global/personalization.classifier.weight", 0, float("nan"))),
    ("FedEgo", "train", further("global/reduction.layers.0.bias", torch.ones(4))),
    ("FedHGN", "train", of("rows/convs.1", lambda rows: rows[:, 1:])),
    ("FedHGN", "train", further("rows/elsewhere", torch.ones(1, 3))),
    ("SchemaFedAvg", "train", of("a|treats|a", lambda row: row[:1, :1])),
    ("SchemaFedAvg", "train", further("relations/convs.1.weight/a|b|c", torch.ones(4, 4))),
    ("SCAFFOLD", "train", of("control/pre.weight", lambda control: control[:1, :1])),
    ("SCAFFOLD", "train", further("control/elsewhere", torch.ones(1))),
    ("FedProto", "train", of("prototypes/mean", lambda mean: mean[1:])),
    ("FedProto", "train", of("prototypes/mean", lambda mean: mean[:, 1:])),
    ("FedProto", "train", of("prototypes/mean", lambda mean: mean * float("inf"))),
    ("FedProto", "train", of("prototypes/found", Tensor.long)),
    ("FedProto", "train", without("prototypes/found")),
    ("FedSSP", "train", of("consensus/mean", lambda mean: mean[1:])),
    ("FedSSP", "train", of("consensus/mean", lambda mean: mean * float("nan"))),
    ("FedSSP", "train", further("consensus/elsewhere", torch.ones(1))),
    ("FGGP", "train", of("prototypes/mean", lambda mean: mean[1:])),
    ("FGGP", "train", of("prototypes/mean", lambda mean: mean * float("inf"))),
    ("FGGP", "train", at("prototypes/class", 0, 7)),
    ("FGGP", "train", at("prototypes/class", 0, -1)),
    ("FGGP", "train", of("prototypes/class", lambda classes: classes.double())),
    ("FGGP", "train", without("prototypes/class")),
]


def clients_of(name: str, made: Any, **kwargs: Any) -> dict[str, Any]:
    aggregator, model, data = made[name]()
    trainer = FederatedTrainer(aggregator, rounds=2, enable_progress_bar=False, logger=False, accelerator="cpu")
    return trainer.host(model, data, **kwargs)


@pytest.mark.parametrize(("name", "exchange", "change"), DOWNLOADS)
def test_downloads_are_refused(name: str, exchange: str, change: Change, made: Any, recorded: Any) -> None:
    """All of them passed the client's door, which knows names, shapes and dtypes of the model's tensors only."""
    steps = recorded(name).steps
    clients = clients_of(name, made)
    client = next(client for who, client in clients.items() if who == list(steps[0].uploads)[1])
    several = [number for number, step in enumerate(steps) if step.exchange == exchange]
    last = several[0 if name == "FedGCN" else -1]
    for number, step in enumerate(steps[: last + 1]):
        server: Aggregator = copy.deepcopy(step.server)
        # Sums are sent at the end of round 0, before the first exchange of round 1.
        ends = bool(number) and step.round == 1 and steps[number - 1].round == 0
        payload = server.download(client.name, 0 if ends else step.round, None if ends else step.exchange)
        if number == last:
            assert payload is not None
            bad = Turn(step.round, Request.EXCHANGE, step.exchange, changed(payload, change).to_bytes())
            with pytest.raises(InputError):
                client.turn(bad)
            return
        client.turn(Turn(step.round, Request.EXCHANGE, step.exchange, None if payload is None else payload.to_bytes()))


# ------------------------------------------------------------------------------------------------------------- noise
@pytest.mark.parametrize("simulated", [True, False])
def test_noise_at_a_site_is_never_drawn_again(simulated: bool, made: Any, recorded: Any) -> None:
    """The difference of two uploads of one turn was the difference of what the noise hides."""
    first = recorded("FedEgo").steps[0]
    client = clients_of("FedEgo", made, seed=3)["client-1"]
    client.simulated, client.aggregator.noise = simulated, 2.0
    state, sent = state_bytes(client.state()), []
    for _ in range(12):
        client.load_state(load_bytes(state, "client"))
        download = first.server.download("client-1", 1, "train").to_bytes()
        sent.append(Payload.from_bytes(client.turn(Turn(1, Request.EXCHANGE, "train", download))).tensors)
    draws = torch.stack([tensors["ego_graphs/embedding"] for tensors in sent])
    same = [torch.equal(one, other) for one, other in pairwise(draws)]
    assert all(same) if simulated else not any(same)
    assert simulated or 1.7 < float(draws.std(0).square().mean().sqrt()) < 2.3
    assert all(torch.equal(sent[0][name], sent[1][name]) for name in sent[0] if name != "ego_graphs/embedding")


def test_noise_does_not_follow_from_32_bits() -> None:
    """Which is all that torch takes of a seed."""
    site, drawn = type("Site", (), {"simulated": False})(), []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(callbacks.fedego._noise(site, torch.Size([4])))
    assert not torch.equal(*drawn)


@pytest.mark.parametrize("simulated", [True, False])
def test_hidden_nodes_and_noise_of_generators_are_drawn_anew_at_a_site(simulated: bool, made: Any) -> None:
    seeds = set()
    for _ in range(2):
        client = clients_of("FedSagePlus", made, seed=3)["client-1"]
        client.simulated = simulated
        client.turn(Turn(0, Request.EXCHANGE, "generate"))
        seeds.add(client.module.draw_seed)
    assert len(seeds) == (1 if simulated else 2)


# --------------------------------------------------------------------------------------------- what is told of records
def test_algorithms_of_which_single_records_or_names_can_be_read(made: Any) -> None:
    telling = {name for name, make in made.items() if make()[0].reveals}
    few = {"GraphFL", "GraphFLFromMean", "PublishedGraphFL"}  # gradients of four nodes here
    assert telling == {"FedGCN", "FedSagePlus", "FedSSP", "SchemaFedAvg", "PublishedSchemaFedAvg", *few}
    assert not callbacks.GraphFL().reveals
    assert callbacks.FedEgo(mixup=False).reveals
    assert callbacks.FedGCN().reveals.startswith("The server reads which nodes a client holds")


# ------------------------------------------------------------------------------------------------------------- weights
@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_of_a_mean(weight: float) -> None:
    tensors = {"A": {"w": torch.ones(1)}, "B": {"w": torch.ones(1)}}
    with pytest.raises(InputError, match="`weight` of client `B` to be a finite number, 0 or more"):
        weighted_mean(tensors, {"A": 2.0, "B": weight})


@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "GCFL", "GraphFL", "FedGCN", "FedHGN", "FedSagePlus"])
def test_a_mean_without_weights_needs_no_number_of_samples(name: str, made: Any) -> None:
    def uniform() -> Any:
        aggregator, model, data = made[name]()
        return type(aggregator)(weighting="uniform"), model, data

    steps = fuzz.record(uniform).steps
    assert steps
    for step in steps:
        for data in step.uploads.values():
            assert not data or "num_samples" not in Payload.from_bytes(data).scalars


def test_clients_that_stand_still_can_be_divided() -> None:
    still = cosine_similarity([torch.zeros(3), torch.zeros(3), torch.ones(3), -torch.ones(3)]).clamp(min=0)
    first, second = minimum_cut(list("ABCD"), still)
    assert sorted(first + second) == list("ABCD")
    assert first
    assert second
