from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from federations import renamed
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks import FedAvg, FedHGN
from flgraph.data import HeteroClients, HeteroFederation, HeteroGraph
from flgraph.data.hetero.schema import reordered, with_reverse
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.models import RGCN, HeteroGAT

NAMES = ("writes", "cites", "treats", "owes")
KINDS = ("surgeon", "patient")
Federate = Callable[..., FederatedTrainer]


def graph(names: tuple[str, ...] = NAMES, kinds: tuple[str, str] = KINDS) -> HeteroGraph:
    generator = torch.Generator().manual_seed(0)
    a, b = kinds
    ends = [(a, b), (b, a), (a, a), (b, b)]
    given = {
        (source, name, target): torch.randint(0, 30, (2, 60), generator=generator).unique(dim=1)
        for name, (source, target) in zip(names, ends, strict=True)
    }
    y = torch.arange(30) % 3
    return HeteroGraph.from_edges(
        {a: 30, b: 30}, given, a, y, torch.arange(0, 20), None, torch.arange(20, 30), name="Toy"
    )


def data(clients: int = 3, **kwargs: Any) -> HeteroFederation:
    return HeteroFederation(graph(**kwargs), num_clients=clients, partition="random_edges", partition_seed=3)


class Alone:
    """One client of a federation, by itself."""

    name = "alone"

    def __init__(self) -> None:
        self.whole = data()

    @property
    def clients(self) -> list[str]:
        return self.whole.clients[:1]

    def client(self, name: str) -> Any:
        return self.whole.client(name)

    def prepare_data(self) -> None: ...

    def setup(self, stage: str) -> None:
        self.whole.setup(stage)


def net(**kwargs: Any) -> RGCN:
    return RGCN(**{"hidden_channels": 6, "num_bases": 3, **kwargs})


def states(trainer: Any) -> list[dict[str, Tensor]]:
    return [client.module.state_dict() for client in trainer.engine.clients.values()]


def literal_loss(own: Tensor, others: Tensor) -> Tensor:
    """Eq. 3, row by row."""
    total = own.new_zeros(())
    for row in own:
        total = total + torch.stack([(row - other).square().sum() for other in others]).min()
    return total


class Steps(pl.Callback):
    """Notes every gradient as the optimizer gets it, with weights, batch, and the rows that were received."""

    seen: list[Any] = []  # noqa: RUF012

    def __deepcopy__(self, memo: dict[int, Any]) -> Steps:
        return self

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batch, self.weights = batch, {n: p.detach().clone() for n, p in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        aggregator = next(c for c in trainer.callbacks if isinstance(c, FedHGN))
        gradients = {n: p.grad.detach().clone() for n, p in pl_module.named_parameters()}
        self.seen.append((pl_module, self.weights, gradients, self.batch, dict(aggregator._received)))


def test_the_gradient_is_that_of_the_aligned_loss(federate: Federate) -> None:
    steps = Steps()
    steps.seen.clear()
    federate(FedHGN(alignment=0.7), rounds=2, local_epochs=2, callbacks=[steps]).fit(net(), data())
    assert len(steps.seen) == 2 * 2 * 3
    for module, weights, gradients, batch, others in steps.seen:
        leaves = {name: tensor.requires_grad_() for name, tensor in weights.items()}
        logits = torch.func.functional_call(module, leaves, (batch,))
        aligned = literal_loss(leaves["convs.1.coefficients"], others["convs.1"])
        expected = torch.autograd.grad(F.cross_entropy(logits, batch.y) + 0.7 * aligned, list(leaves.values()))
        for name, gradient in zip(leaves, expected, strict=True):
            torch.testing.assert_close(gradients[name], gradient, atol=1e-5, rtol=1e-4, msg=name)
    first = steps.seen[0][4]["convs.1"]
    assert torch.equal(first, torch.zeros(1, 3))  # nobody has sent any yet


def test_no_name_crosses_and_rows_are_the_others_in_the_order_of_values(federate: Federate, recorder: Any) -> None:
    trainer: Any = federate(FedHGN(), rounds=2, engine=recorder)
    trainer.fit(net(), data())
    for _, turn, answer in recorder.crossed:
        for name in (*NAMES, *KINDS, "rev_"):
            assert name.encode() not in answer
            assert name.encode() not in (turn.download or b"")
    uploads = recorder.uploads()
    names = {name for _, upload in uploads for name in upload.tensors}
    assert names == {
        "convs.0.bias",
        "convs.1.bases",
        "convs.1.bias",
        "classifier.weight",
        "classifier.bias",
        "rows/convs.1",
    }
    last = dict(uploads[-3:])
    received = {name: payload for name, turn, payload in recorder.downloads() if turn.round == 2}
    for client, payload in received.items():
        others = torch.cat([last[other].tensors["rows/convs.1"] for other in sorted(last) if other != client])
        got = payload.tensors["rows/convs.1"]
        assert got.tolist() == sorted(others.tolist())
        assert not torch.equal(got, others)
    # Nor are a client's own rows in the order of its relations, nor in one that anybody could draw again.
    own = trainer.engine.clients["client-1"].module.state_dict()["convs.1.coefficients"]
    sent = last["client-1"].tensors["rows/convs.1"]
    assert sent.tolist() == sorted(own.tolist())
    assert not torch.equal(sent, own)


def test_coefficients_of_bases_that_are_not_shared_stay(federate: Federate, recorder: Any) -> None:
    trainer: Any = federate(FedHGN(bases=["classifier.*", "convs.1.bias"]), rounds=1, engine=recorder)
    with pytest.raises(InputError, match=r"`model` to be one with coefficients .* of shared bases for FedHGN"):
        trainer.fit(net(), data())


def own_graph(seed: int, links: int) -> HeteroGraph:
    """Three types, `links` relations between all pairs of them, features on one type."""
    generator, kinds = torch.Generator().manual_seed(seed), {"ward": 20, "drug": 12, "lab": 12}
    pairs = [(a, b) for a in kinds for b in kinds][:links]
    edges = {}
    for number, (a, b) in enumerate(pairs):
        ends = [torch.randint(0, kinds[end], (40,), generator=generator) for end in (a, b)]
        edges[a, f"link{number}", b] = torch.stack(ends)
    x = {"drug": torch.randn(12, 3, generator=generator)}
    splits = torch.arange(12), torch.arange(12, 15), torch.arange(15, 20)
    return with_reverse(HeteroGraph.from_edges(kinds, edges, "ward", torch.arange(20) % 2, *splits, x=x))


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("order", [True, False])
def test_neither_names_nor_order_of_types_have_an_influence(
    names: bool, order: bool, federate: Federate, assert_same: Callable[..., None]
) -> None:
    """One client names and lists its types otherwise: every bit of the run stays, in this and all other clients."""
    graphs = {"x": own_graph(0, 9), "y": own_graph(1, 7), "z": own_graph(2, 5)}
    first = federate(FedHGN(), rounds=3, local_epochs=2).fit(net(), HeteroClients(graphs))
    known: Any = federate(FedHGN(), rounds=3, local_epochs=2)
    known.fit(net(), HeteroClients(graphs))
    changed = graphs["y"]
    if names:
        relations = {kind[1] for kind in changed.edge_types}
        other = {name: f"r{hash_of(name)}" for name in relations}
        changed = renamed(changed, {"ward": "a", "lab": "b", "drug": "zz"}, other)
    if order:
        rng = random.Random(5)
        places = [rng.sample(range(n), n) for n in (len(changed.node_types), len(changed.edge_types))]
        assert all(place != sorted(place) for place in places)
        changed = reordered(changed, *places)
    trainer: Any = federate(FedHGN(), rounds=3, local_epochs=2)
    second = trainer.fit(net(), HeteroClients({**graphs, "y": changed}))
    assert first["final"] == second["final"]
    assert_same(states(trainer), states(known))
    assert trainer.server.state({}) == known.server.state({})


def hash_of(name: str) -> int:
    """Some number that has another order than the names."""
    return zlib.crc32(name.encode())


def test_coefficients_that_stay(federate: Federate, recorder: Any) -> None:
    """No rows leave of layers whose coefficients whoever runs it keeps at the clients."""
    trainer: Any = federate(FedHGN(), rounds=2, engine=recorder, personal=["convs.1.coefficients"])
    assert not trainer.fit(net(num_layers=3), data())["dropped"]
    rows = [upload.group("rows") for _, upload in recorder.uploads()]
    assert all(len(sent["convs.1"]) == 0 < len(sent["convs.2"]) for sent in rows)


def test_without_alignment_it_averages_bases_and_sends_no_rows(federate: Federate, recorder: Any) -> None:
    trainer: Any = federate(FedHGN(alignment=0.0), rounds=2, engine=recorder)
    trainer.fit(net(), data())
    assert not any("rows" in name for _, upload in recorder.uploads() for name in upload.tensors)
    one, other, _ = states(trainer)
    assert torch.equal(one["convs.1.bases"], other["convs.1.bases"])
    assert not torch.equal(one["convs.1.coefficients"], other["convs.1.coefficients"])


def test_one_client_has_nobody_to_align_with(federate: Federate, assert_same: Callable[..., None]) -> None:
    runs = []
    for aggregator in (FedHGN(alignment=0.5), FedHGN(alignment=0.0), FedAvg()):
        trainer: Any = federate(aggregator, rounds=2)
        trainer.fit(net(), Alone())
        runs.append(states(trainer))
    assert_same(runs[0], runs[1])
    assert_same(runs[0], runs[2])


def test_bad_input(federate: Federate) -> None:
    with pytest.raises(InputError, match=r"`aggregator.alignment` to be a finite number, 0 or more but got -1"):
        FedHGN(alignment=-1.0)
    with pytest.raises(InputError, match=r"`aggregator.alignment` to be a finite number, 0 or more but got inf"):
        FedHGN(alignment=float("inf"))
    with pytest.raises(InputError, match=r"`model` to be RGCN with bases, .* but got one without `\*\.coefficients`"):
        federate(FedHGN(), rounds=1).fit(net(num_bases=0), data())


def test_sampled_clients(federate: Federate, recorder: Any) -> None:
    """Means are of who took part; others are present with the rows they sent last, with zeros until they have."""
    trainer: Any = federate(FedHGN(), rounds=6, engine=recorder, client_fraction=0.5, seed=4)
    trainer.fit(net(), data())
    sent: dict[str, Tensor] = {}
    silent = set()
    for number in range(1, 7):
        ups = {name: Payload.from_bytes(a) for name, t, a in recorder.crossed if (t.round, t.name) == (number, "train")}
        assert len(ups) == 2
        for name, upload in ups.items():
            sent[name] = upload.tensors["rows/convs.1"]
        counts = {name: float(upload.scalars["num_samples"]) for name, upload in ups.items()}
        mean = sum(ups[name].tensors["convs.1.bases"] * count for name, count in counts.items()) / sum(counts.values())
        # What the aggregation gave is installed with the evaluation that follows it.
        downs = {name: p for name, t, p in recorder.downloads() if (t.round, t.name) == (number, "evaluate")}
        assert set(downs) == set(trainer.engine.clients)
        for name, down in downs.items():
            torch.testing.assert_close(down.tensors["convs.1.bases"], mean)
            others = [sent[other] for other in downs if other != name and other in sent]
            silent.add(2 - len(others))
            if len(others) < 2:
                others.append(torch.zeros(1, 3))
            assert down.tensors["rows/convs.1"].tolist() == sorted(torch.cat(others).tolist())
    assert silent == {0, 1}  # in the end all have sent some


def test_who_is_left_out_has_no_rows() -> None:
    """Neither zeros, where it has not sent any, nor those that it sent."""
    server = FedHGN()
    server.owners = dict.fromkeys("ABC", ("convs.1.bases",))
    server.start({"convs.1.bases": torch.ones(1, 2, 3)}, list("ABC"))
    one, five = torch.ones(1, 1), torch.full((1, 1), 5.0)
    server._rows = {"A": {"convs.1": one}, "B": {"convs.1": five}}

    def received() -> list[list[float]]:
        download = server.download("A", 2, "train")
        assert download is not None
        rows: list[list[float]] = download.group("rows")["convs.1"].tolist()
        return rows

    assert received() == [[0], [5]]
    server.excluded = {"C"}
    assert received() == [[5]]
    server.excluded = {"B", "C"}
    assert received() == []


def odd(**changes: Any) -> HeteroGraph:
    given: dict[str, Any] = {
        "num_nodes": {"a": 4, "b": 3},
        "edges": {("a", "r", "b"): torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0]])},
        "target": "a",
        "y": torch.tensor([0, 1, 0, 1]),
        "train": torch.tensor([0, 1]),
        "test": torch.tensor([2, 3]),
        "name": "odd",
    }
    return HeteroGraph.from_edges(**{**given, **changes})


def test_a_relation_without_edges_is_aligned_like_any_other(federate: Federate) -> None:
    empty = {("b", "none", "a"): torch.empty(2, 0, dtype=torch.long)}
    edges = {("a", "r", "b"): torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0]])}
    graphs = {"x": with_reverse(odd(edges={**edges, **empty})), "y": with_reverse(odd(train=torch.tensor([1])))}
    trainer: Any = federate(FedHGN(), rounds=3)
    results = trainer.fit(net(), HeteroClients(graphs))
    assert results["final"]["clients"]["x"]["test/samples"] == 2
    for state in states(trainer):
        assert all(torch.isfinite(tensor).all() for tensor in state.values())


def test_graphs_that_cannot_be_used(federate: Federate) -> None:
    with pytest.raises(InputError, match=r"`target` to be one of a, b but got 'paper'"):
        odd(target="paper")  # a client without the type
    with pytest.raises(
        InputError, match=r"`odd, client-1` to be a graph with nodes of the target type 'a' but got one"
    ):
        odd(num_nodes={"a": 4, "b": 3, "c": 2}, edges={("b", "r", "c"): torch.tensor([[0], [1]])}).cut(
            torch.tensor([0]), "odd, client-1"
        )
    with pytest.raises(InputError, match=r"`odd.node_types` to be strings but got 3"):
        odd(num_nodes={"a": 4, 3: 3}, edges={})
    with pytest.raises(
        InputError, match=r"`odd.edge_types` to be \(source type, name, target type\), three strings, but"
    ):
        odd(edges={("a", 7, "b"): torch.tensor([[0], [0]])})
    with pytest.raises(InputError, match=r"`data.graphs` to be the data of at least one client but got none"):
        HeteroClients({})
    with pytest.raises(InputError, match=r"`num_classes` to be 3 in client `x`, as in the others but got 2"):
        HeteroClients({"x": odd(), "y": odd(num_classes=3)})
    with pytest.raises(InputError, match=r"`aggregator.alignment` to be a finite number, 0 or more but got nan"):
        FedHGN(alignment=float("nan"))


def test_features_and_their_maps_stay(federate: Federate, recorder: Any) -> None:
    """Node types have numbers of their own in each client; which of them have features is not told either."""
    graphs = {"x": own_graph(0, 9), "y": renamed(own_graph(1, 7), {"drug": "pill"}, {})}
    federate(FedHGN(), rounds=2, engine=recorder).fit(net(), HeteroClients(graphs))
    names = {name for _, upload in recorder.uploads() for name in upload.tensors}
    assert not any("inputs" in name or "embedding" in name for name in names)


@pytest.mark.parametrize("network", ["RGCN", "HeteroGAT"])
def test_no_name_of_aifb_crosses(network: str, data_root: Path, federate: Federate, recorder: Any) -> None:
    """All bytes of two rounds on a real graph, looked through for each of its types' names."""
    if not (data_root / "entities" / "aifb.npz").is_file():
        pytest.skip("needs AIFB in entities/")
    federation = HeteroFederation("AIFB", root=str(data_root), num_clients=3, partition="random_edge_types")
    extra = {"bases": ["convs.*.bases", "convs.*.bias", "convs.*.attention", "classifier.*"]}
    aggregator = FedHGN(**(extra if network == "HeteroGAT" else {}))
    model = {"RGCN": RGCN, "HeteroGAT": HeteroGAT}[network](hidden_channels=4, num_bases=2)
    federate(aggregator, rounds=2, engine=recorder).fit(model, federation)
    graphs = [federation.client(name).graph for name in federation.clients]
    words = {word for graph in graphs for kind in graph.edge_types for word in kind}
    words |= {word for graph in graphs for word in graph.node_types}
    assert len(words) > 50
    crossed = [part for _, turn, answer in recorder.crossed for part in (answer, turn.download) if part]
    assert sum(map(len, crossed)) > 10_000
    for word in words:
        assert len(word) >= 4  # too long to be there by chance
        assert not any(word.encode() in part for part in crossed)
