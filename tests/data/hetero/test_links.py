from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import renamed
from torch import Tensor
from torch_geometric.data import HeteroData

from flgraph.callbacks import EarlyStopping, FedHGN
from flgraph.data import HeteroClients, HeteroFederation, HeteroGraph, HeteroLinkDataModule, HeteroPartition, LinkBatch
from flgraph.data.hetero.schema import canonical, with_reverse
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import LinkPredictor
from flgraph.models.links import area_under_roc, mean_reciprocal_rank

COUNTS = {"user": 40, "film": 30, "genre": 5}


def hetero_data(seed: int = 0, noise: bool = False) -> HeteroData:
    """Users like the films whose number leaves the same rest as theirs; no labels anywhere."""
    generator, data = torch.Generator().manual_seed(seed), HeteroData()
    for kind, count in COUNTS.items():
        data[kind].num_nodes = count
    data["genre"].x = torch.eye(5)
    users, films = torch.cartesian_prod(torch.arange(40), torch.arange(30)).t()
    likes = (users % 5 == films % 5) & (torch.rand(1200, generator=generator) < 0.7)
    data["user", "likes", "film"].edge_index = torch.stack([users[likes], films[likes]])
    data["film", "of", "genre"].edge_index = torch.stack([torch.arange(30), torch.arange(30) % 5])
    if noise:
        data["user", "knows", "user"].edge_index = torch.randint(0, 40, (2, 50), generator=generator)
    return data


def graph(seed: int = 0, noise: bool = False) -> HeteroGraph:
    return HeteroGraph.from_pyg(hetero_data(seed, noise), None, name="films")


def pairs(batch: LinkBatch) -> set[tuple[int, int, int]]:
    return set(zip(batch.row.tolist(), batch.source.tolist(), batch.target.tolist(), strict=True))


def test_predictions_name_the_links() -> None:
    data = HeteroLinkDataModule(graph(noise=True), test_fraction=0.2, num_negatives=7)
    rows, (test,) = data.prediction_rows, data.predict_dataloader()
    start = dict(zip(data.graph.node_types, data.graph.node_ptr.tolist(), strict=False))
    assert set(rows["relation"]) == {"likes", "of", "knows"}
    told = zip(*(rows[heading] for heading in ("source_type", "relation", "target_type")), strict=True)
    assert [data.weight_rows.index(kind) for kind in told] == test.row.tolist()
    for end, numbers in (("source", test.source), ("target", test.target)):
        there = [start[kind] + node for kind, node in zip(rows[f"{end}_type"], rows[end], strict=True)]
        assert there == numbers.tolist()


def test_no_held_back_link_is_in_the_graph_either_way() -> None:
    whole = graph(noise=True)
    data = HeteroLinkDataModule(with_reverse(whole), val_fraction=0.2, test_fraction=0.1, num_negatives=7)
    (train,), (val,), (test,) = data.train_dataloader(), data.val_dataloader(), data.test_dataloader()
    rows = {kind: number for number, kind in enumerate(data.weight_rows)}
    assert data.weight_rows == [*whole.edge_types, *((t, f"rev_{name}", s) for s, name, t in whole.edge_types)]
    held = pairs(val) | pairs(test)
    counts = whole.edge_ptr.diff().tolist()
    for number, count in enumerate(counts):
        assert int((val.row == number).sum()) == round(0.2 * count)
        assert int((test.row == number).sum()) == round(0.1 * count)
    # What messages take is what is trained on, and its reverse.
    taken = list(
        zip(train.relations.row.tolist(), train.relations.source.tolist(), train.relations.target.tolist(), strict=True)
    )
    ways = len(counts)
    assert {link for link in taken if link[0] < ways} == pairs(train)
    assert {(row - ways, t, s) for row, s, t in taken if row >= ways} == pairs(train)
    assert not pairs(train) & held
    knows = rows["user", "knows", "user"]
    assert not {(row, t, s) for row, s, t in pairs(train) if row == knows} & held
    every = pairs(train) | held
    for batch in (val, test):
        assert batch.negatives is not None
        assert batch.negatives.shape == (batch.target.numel(), 7)
        for row, source, first, count, others in zip(
            *(part.tolist() for part in (batch.row, batch.source, batch.first, batch.count, batch.negatives)),
            strict=True,
        ):
            assert all(first <= other < first + count for other in others)
            assert not any((row, source, other) in every for other in others)
            assert source not in others
    again = HeteroLinkDataModule(whole, val_fraction=0.2, test_fraction=0.1, num_negatives=7)
    (other,) = again.val_dataloader()
    assert torch.equal(other.target, val.target)
    assert torch.equal(other.negatives, val.negatives)
    assert val.to("cpu").negatives is val.negatives


def test_some_relations_may_be_predicted_alone() -> None:
    data = HeteroLinkDataModule(graph(noise=True), predicted=["likes"], val_fraction=0.5)
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        (batch,) = loader
        assert set(batch.row.tolist()) == {data.weight_rows.index(("user", "likes", "film"))}
    (train,) = data.train_dataloader()
    draws = train.draw_negatives(40)
    assert draws.min() >= 40
    assert draws.max() < 70
    assert len(draws.unique()) == 30
    tied = HeteroLinkDataModule(graph(noise=True), predicted=[("film", "of", "genre")], tie_names=True)
    assert tied.weight_rows == ["likes", "of", "knows", "rev_likes", "rev_of", "rev_knows"]


def by_hand(links: list[float], others: list[list[float]]) -> float:
    ranks = [
        1 + sum(o > own for o in row) + sum(o == own for o in row) / 2 for own, row in zip(links, others, strict=True)
    ]
    return sum(1 / rank for rank in ranks) / len(ranks)


def test_mean_reciprocal_rank() -> None:
    links, others = [3.0, 1.0, 0.5], [[1.0, 2.0], [2.0, 3.0], [0.5, 0.1]]
    expected = (1 + 1 / 3 + 1 / 1.5) / 3
    assert by_hand(links, others) == pytest.approx(expected)
    assert float(mean_reciprocal_rank(torch.tensor(links).unsqueeze(1), torch.tensor(others))) == pytest.approx(
        expected
    )


@pytest.mark.parametrize("encoder", ["rgcn", "gat"])
@pytest.mark.parametrize("decoder", ["distmult", "dot"])
def test_scores_loss_and_metrics_link_by_link(
    encoder: Any, decoder: Any, federate: Callable[..., FederatedTrainer]
) -> None:
    torch.manual_seed(0)
    data = HeteroLinkDataModule(graph(), num_negatives=5)
    net = LinkPredictor(**data.model_args, encoder=encoder, decoder=decoder, hidden_channels=8, num_bases=3, heads=2)
    (batch,) = data.val_dataloader()
    with torch.no_grad():
        h = net.encode(batch)

        def score(source: int, row: int, target: int) -> float:
            way = torch.ones(8) if net.decoder is None else net.decoder.coefficients[row] @ net.decoder.bases[:, 0]
            return float(sum(h[source] * way * h[target]))

        ends = list(zip(batch.source.tolist(), batch.row.tolist(), strict=True))
        links = [score(*end, target) for end, target in zip(ends, batch.target.tolist(), strict=True)]
        others = [
            [score(*end, other) for other in row] for end, row in zip(ends, batch.negatives.tolist(), strict=True)
        ]
        torch.testing.assert_close(net(batch), torch.tensor(links), rtol=1e-4, atol=1e-4)
    flat = [(own, other) for own, row in zip(links, others, strict=True) for other in row]
    wins = [(own > other) + (own == other) / 2 for own in links for row in others for other in row]
    logged: dict[str, Tensor] = {}
    net.log_dict = lambda values, **_: logged.update(values)  # type: ignore[method-assign,assignment]
    net.log = lambda name, value, **_: logged.update({name: value})  # type: ignore[method-assign,assignment]
    net.validation_step(batch)
    assert float(logged["val/loss"]) == pytest.approx(sum(max(0.0, 1 - a + b) for a, b in flat) / len(flat), rel=1e-4)
    assert float(logged["val/mrr"]) == pytest.approx(by_hand(links, others), rel=1e-4)
    assert float(logged["val/auc"]) == pytest.approx(sum(wins) / len(wins), abs=1e-4)
    assert logged["val/samples"] == len(links)


@pytest.mark.parametrize("encoder", ["rgcn", "gat"])
def test_clients_with_other_schemas_learn(
    encoder: str, federate: Callable[..., FederatedTrainer], recorder: Any
) -> None:
    graphs = {"a": graph(0), "b": renamed(graph(1, noise=True), {"film": "movie"}, {"likes": "rates"})}
    bases = ["convs.*.bases", "convs.*.bias", "decoder.bases", *(["convs.*.attention"] if encoder == "gat" else [])]
    stop = EarlyStopping("val/mrr", patience=100)
    trainer: Any = federate(
        FedHGN(bases=bases), rounds=15, local_epochs=3, monitor="val/mrr", callbacks=[stop], engine=recorder
    )
    data = HeteroClients(graphs, task="links", links={"num_negatives": 10, "val_fraction": 0.15})
    results = trainer.fit(LinkPredictor(hidden_channels=16, num_bases=4, encoder=encoder), data)
    assert results["final"]["weighted_mean"]["test/auc"] > 0.7  # 0.5 by chance, which a third of client b's links are
    assert results["final"]["weighted_mean"]["test/mrr"] > 0.45  # 0.27 by chance
    kinds = {key for _, upload in recorder.uploads() for key in upload.tensors if key.startswith("rows/")}
    layers = (
        {"rows/convs.1"} if encoder == "rgcn" else {f"rows/convs.{n}.{k}" for n in (0, 1) for k in ("nodes", "edges")}
    )
    assert kinds == layers | {"rows/decoder"}
    modules = [client.module for client in recorder.clients.values()]
    assert torch.equal(modules[0].decoder.bases, modules[1].decoder.bases)


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_other_precisions(precision: str, federate: Callable[..., FederatedTrainer]) -> None:
    data = HeteroFederation(graph(noise=True), partition_seed=2, task="links", num_negatives=4)
    trainer = federate(FedHGN(bases=["*.bases", "convs.*.bias"]), rounds=1, monitor="val/mrr", precision=precision)
    final = trainer.fit(LinkPredictor(hidden_channels=4, num_bases=2), data)["final"]["weighted_mean"]
    assert all(math.isfinite(value) for value in final.values())


def test_a_dealt_graph(federate: Callable[..., FederatedTrainer]) -> None:
    data = HeteroFederation(graph(noise=True), partition_seed=2, task="links", num_negatives=4)
    trainer = federate(FedHGN(bases=["*.bases", "convs.*.bias"]), rounds=1, monitor="val/mrr")
    with pytest.warns(UserWarning, match="edges in common: links that are held out .* FedHGN's partitions are such"):
        results = trainer.fit(LinkPredictor(hidden_channels=4, num_bases=2), data)
    assert set(results["final"]["weighted_mean"]) >= {"val/mrr", "test/auc"}
    assert results["data"]["client-1"]["predicted"]


def test_clients_without_common_edges_are_not_warned_of(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    whole = HeteroFederation(graph(noise=True)).read()
    halves = torch.arange(whole.num_edges).split(whole.num_edges // 2 + 1)
    HeteroPartition(list(halves), whole.content, {"partition": "halves"}).save(tmp_path / "halves.npz")
    HeteroFederation(graph(noise=True), partition=str(tmp_path / "halves.npz"), task="links", num_negatives=4).setup()
    assert not recwarn.list


def test_bad_input() -> None:
    for field, value in (
        ("val_fraction", 1.0),
        ("test_fraction", 0.95),
        ("num_negatives", 0),
        ("predicted", ["hates"]),
    ):
        with pytest.raises(InputError, match=f"`data.links.{field}` to be "):
            HeteroLinkDataModule(graph(), **{field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"`data\.task` to be one of nodes, links but got 'graphs'"):
        HeteroFederation(graph(), task="graphs")  # type: ignore[arg-type]
    for field, value in (
        ("encoder", "mlp"),
        ("decoder", "mlp"),
        ("num_bases", 0),
        ("margin", -1.0),
        ("num_negatives", 0),
    ):
        with pytest.raises(InputError, match=f"`model.{field}` to be .* but got {value!r}"):
            LinkPredictor(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"`model\.num_nodes` to be given before the module is called"):
        LinkPredictor()(next(iter(HeteroLinkDataModule(graph()).train_dataloader())))


def test_an_edge_goes_with_its_mirror_image_and_its_copies() -> None:
    """As ``ToUndirected`` makes them within one type; each is told by the other."""
    data = hetero_data()
    ends = torch.randint(0, 40, (2, 60), generator=torch.Generator().manual_seed(1))
    ends = ends[:, ends[0] != ends[1]]
    data["user", "knows", "user"].edge_index = torch.cat([ends, ends.flip(0), ends[:, :5]], dim=1)
    module = HeteroLinkDataModule(HeteroGraph.from_pyg(data, None), ["knows"], val_fraction=0.3, test_fraction=0.3)
    parts = [
        {frozenset(link[1:]) for link in pairs(batch)}
        for loader in (module.train_dataloader(), module.val_dataloader(), module.test_dataloader())
        for batch in loader
    ]
    assert all(parts)
    assert not parts[0] & (parts[1] | parts[2])
    assert not parts[1] & parts[2]
    assert set.union(*parts) == {frozenset(pair) for pair in ends.t().tolist()}


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("predicted", [None, ["likes"]])
def test_a_relation_of_the_same_edges_tells_nothing(turned: bool, predicted: list[str] | None) -> None:
    """A reverse under a name of its own, or the same under another name."""
    data = hetero_data()
    likes = data["user", "likes", "film"].edge_index
    kind = ("film", "liked by", "user") if turned else ("user", "watched", "film")
    data[kind].edge_index = (likes.flip(0) if turned else likes).flip(1)
    module = HeteroLinkDataModule(HeteroGraph.from_pyg(data, None), predicted, val_fraction=0.2, test_fraction=0.1)
    (train,), (val,), (test,) = module.train_dataloader(), module.val_dataloader(), module.test_dataloader()
    relations = train.relations
    sent = {frozenset(pair) for pair in zip(relations.source.tolist(), relations.target.tolist(), strict=True)}
    rows = {module.weight_rows.index(("user", "likes", "film")), module.weight_rows.index(kind)}
    for batch in (val, test):
        held = {frozenset(link[1:]) for link in pairs(batch) if link[0] in rows}
        assert held
        assert not held & sent
    share = round(0.2 * likes.size(1))
    assert len(val.target) == (share if predicted else 2 * share + round(0.2 * 30))


@pytest.mark.parametrize("predicted", [None, ["likes"]])
def test_no_message_joins_the_nodes_of_a_held_out_link(predicted: list[str] | None) -> None:
    """As where a partition gives a client some edges of a relation, and others of its reverse."""
    data = hetero_data()
    likes = data["user", "likes", "film"].edge_index
    data["film", "liked by", "user"].edge_index = likes.flip(0)[:, ::3]
    data["user", "watched", "film"].edge_index = torch.cat([likes[:, ::2], likes[:, 1::5].flip(0) % 30], dim=1)
    whole = HeteroGraph.from_pyg(data, None)
    module = HeteroLinkDataModule(whole, predicted, val_fraction=0.2, test_fraction=0.2)
    (train,), (val,), (test,) = module.train_dataloader(), module.val_dataloader(), module.test_dataloader()
    ends = [train.relations.source, train.relations.target], [train.source, train.target]
    sent, learned = ({frozenset(pair) for pair in zip(*map(Tensor.tolist, own), strict=True)} for own in ends)
    held = [{frozenset(link[1:]) for link in pairs(batch)} for batch in (val, test)]
    assert all(held)
    assert not (sent | learned) & (held[0] | held[1])
    assert not held[0] & held[1]
    all_pairs = {frozenset(pair) for pair in zip(*module.graph.edge_index.tolist(), strict=True)} | held[0] | held[1]
    assert {frozenset(pair) for pair in whole.edge_index.t().tolist()} == all_pairs


def test_the_order_of_types_means_nothing_without_labels() -> None:
    """Which type is listed first would be the target."""
    whole = graph(noise=True)
    known = HeteroLinkDataModule(canonical(whole))
    data, other = hetero_data(noise=True), HeteroData()
    for kind in ("genre", "film", "user"):
        other[kind].update(data[kind].to_dict())
    for kind in reversed(data.edge_types):
        other[kind].edge_index = data[kind].edge_index
    listed = HeteroGraph.from_pyg(other, None, name="films")
    assert listed.target != whole.target
    assert canonical(listed).content == canonical(whole).content
    assert HeteroLinkDataModule(canonical(listed)).settings == known.settings
    labelled = whole.replace(y=torch.zeros(40, dtype=torch.long), num_classes=1)
    assert labelled.content != whole.content


def test_a_part_without_the_first_type_is_still_a_graph() -> None:
    whole = graph()
    part = whole.cut(whole.relation == whole.edge_types.index(("film", "of", "genre")))
    assert part.node_types == ("film", "genre")
    assert part.target == "film"
    assert not part.labelled


def test_metrics_of_scores_that_are_large_or_none() -> None:
    links, others = torch.tensor([[30.0], [40.0]]), torch.tensor([[20.0], [25.0]])
    assert float(area_under_roc(links, others)) == 1.0
    assert float(area_under_roc(others, links)) == 0.0
    assert float(area_under_roc(links, links)) == 0.5
    mixed = torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0, 0.0], [3.0, -1.0]])
    higher = [(a > b) + 0.5 * (a == b) for a in (1.0, 3.0) for b in (2.0, 0.0, 3.0, -1.0)]
    assert float(area_under_roc(*mixed)) == pytest.approx(sum(higher) / len(higher))
    for metric in (area_under_roc, mean_reciprocal_rank):
        assert math.isnan(float(metric(links, torch.full_like(others, float("nan")))))
        assert math.isnan(float(metric(torch.full_like(links, float("inf")), others)))
