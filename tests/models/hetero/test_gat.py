from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks import FedHGN
from flgraph.data import HeteroBatch, HeteroClients, HeteroDataModule, HeteroGraph
from flgraph.data.hetero.schema import with_reverse
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import HeteroGAT
from flgraph.nn import BasisWeights, TypedAttentionConv, typed_linear

COUNTS = {"paper": 9, "author": 7, "venue": 3}
KINDS = [
    ("author", "writes", "paper"),
    ("paper", "at", "venue"),
    ("paper", "cites", "paper"),
    ("venue", "of", "author"),
]


def graph(seed: int = 0, kinds: int = 4, features: bool = True, dtype: torch.dtype = torch.float32) -> HeteroGraph:
    generator = torch.Generator().manual_seed(seed)
    given = {
        kind: torch.stack([torch.randint(0, COUNTS[end], (14,), generator=generator) for end in (kind[0], kind[2])])
        for kind in KINDS[:kinds]
    }
    x = {"author": torch.randn(7, 5, generator=generator)} if features else None
    splits = torch.arange(5), torch.arange(5, 7), torch.arange(7, 9)
    made = with_reverse(HeteroGraph.from_edges(COUNTS, given, "paper", torch.arange(9) % 3, *splits, x=x))
    made.x = {kind: part.to(dtype) for kind, part in made.x.items()}
    return made


def batch_of(made: HeteroGraph) -> HeteroBatch:
    (batch,) = HeteroDataModule(made).train_dataloader()
    return batch


def literal_layer(conv: TypedAttentionConv, x: Tensor, kinds: list[int], made: HeteroGraph) -> Tensor:
    """Node by node, head by head, edge by edge."""
    width, rows = conv.channels // conv.heads, []
    weights = torch.einsum("tb,bcd->tcd", conv.nodes.coefficients, conv.nodes.bases)
    vectors = torch.einsum("rb,bhc->rhc", conv.edges.coefficients, conv.edges.bases)
    z = torch.stack([row @ weights[kind] for row, kind in zip(x, kinds, strict=True)]).view(-1, conv.heads, width)
    edges = list(zip(*made.edge_index.tolist(), made.relation.tolist(), strict=True))
    for node in range(made.num_nodes):
        heads = []
        for head in range(conv.heads):
            a, incoming = conv.attention[head], [(s, r) for s, t, r in edges if t == node]
            if not incoming:
                heads.append(x.new_zeros(width))
                continue
            scores = [
                F.leaky_relu(
                    a[:width] @ z[s, head] + a[width : 2 * width] @ z[node, head] + a[2 * width :] @ vectors[r, head],
                    0.2,
                )
                for s, r in incoming
            ]
            shares = torch.stack(scores).softmax(0)
            heads.append(sum(share * z[s, head] for share, (s, _) in zip(shares, incoming, strict=True)))
        rows.append(x[node] + conv.bias + torch.cat(heads))
    return torch.stack(rows)


@pytest.mark.parametrize("features", [True, False])
def test_equals_a_loop_over_nodes_heads_and_edges(features: bool) -> None:
    """Logits and the gradient of every parameter, in float64; the last layer works on the wanted nodes alone."""
    torch.manual_seed(0)
    made = graph(features=features, dtype=torch.float64)
    net = HeteroGAT(
        **HeteroDataModule(made).model_args, hidden_channels=6, num_bases=3, heads=2, edge_channels=4
    ).double()
    for conv in net.convs:
        torch.nn.init.normal_(conv.bias)
    batch, kinds = batch_of(made), net._types_of_nodes(batch_of(made).x).tolist()
    h = net._embed(batch.x)
    for conv in net.convs:
        h = F.elu(literal_layer(conv, h, kinds, made))
    expected = net.classifier(h[made.target_start :][made.train])
    torch.testing.assert_close(net(batch), expected)
    wanted = torch.autograd.grad(expected.square().sum(), list(net.parameters()))
    got = torch.autograd.grad(net(batch).square().sum(), list(net.parameters()))
    torch.testing.assert_close(got, wanted)


def test_weights_of_types() -> None:
    torch.manual_seed(0)
    weights = BasisWeights(200, 20, 40, 30)
    assert float(weights().std()) == pytest.approx(math.sqrt(2 / 70), rel=0.15)  # as one Glorot basis has
    x, kinds = torch.randn(6, 40), torch.tensor([3, 0, 3, 1, 0, 3])
    expected = torch.stack([row @ weights()[kind] for row, kind in zip(x, kinds, strict=True)])
    torch.testing.assert_close(typed_linear(x, kinds, weights()), expected)
    assert str(weights) == "BasisWeights(200 of [40, 30], bases=20)"
    assert str(TypedAttentionConv(8, 2, 3, 4)) == "TypedAttentionConv(8, types=2, relations=3, heads=4)"


BASES = ["convs.*.bases", "convs.*.bias", "convs.*.attention", "classifier.*"]


def test_fedhgn_shares_bases_and_aligns_types_of_both_kinds(
    federate: Callable[..., FederatedTrainer], recorder: Any
) -> None:
    """Schemas differ; rows of node types meet rows of node types, those of edge types meet those of edge types."""
    graphs = {"x": graph(0, 4), "y": graph(1, 2, features=False), "z": graph(2, 3)}
    trainer: Any = federate(FedHGN(bases=BASES), rounds=2, engine=recorder)
    trainer.fit(HeteroGAT(hidden_channels=8, num_bases=3, heads=2), HeteroClients(graphs))
    for name, upload in recorder.uploads():
        relations = len(graphs[name].edge_types)
        rows = {key: list(tensor.shape) for key, tensor in upload.tensors.items() if key.startswith("rows/")}
        layers = [f"rows/convs.{layer}" for layer in (0, 1)]
        assert rows == {f"{at}.nodes": [3, 3] for at in layers} | {f"{at}.edges": [relations, 3] for at in layers}
        assert not any("inputs" in key or "embedding" in key for key in upload.tensors)
    received = {name: payload for name, turn, payload in recorder.downloads() if turn.round == 2}
    assert list(received["x"].tensors["rows/convs.1.nodes"].shape) == [6, 3]
    assert list(received["x"].tensors["rows/convs.1.edges"].shape) == [10, 3]
    words = {word for kind in KINDS for word in kind} | {"rev_"}
    for _, turn, answer in recorder.crossed:
        for word in words - {"of", "at"}:  # too short to be told from chance in random bytes
            assert word.encode() not in answer + (turn.download or b"")
    states = [client.module.state_dict() for client in recorder.clients.values()]
    assert torch.equal(states[0]["convs.0.edges.bases"], states[1]["convs.0.edges.bases"])
    assert torch.equal(states[0]["convs.1.attention"], states[2]["convs.1.attention"])
    assert not torch.equal(states[0]["convs.0.nodes.coefficients"], states[1]["convs.0.nodes.coefficients"])


def test_bad_input() -> None:
    for field, value in (("num_bases", 0), ("heads", 5), ("edge_channels", 0), ("num_layers", 0), ("num_nodes", 3)):
        with pytest.raises(InputError, match=f"`model.{field}` to be .* but got {value}"):
            HeteroGAT(**{field: value})  # type: ignore[arg-type]
    made = graph()
    net = HeteroGAT(**{**HeteroDataModule(made).model_args, "num_relations": 3})
    with pytest.raises(InputError, match=r"`batch.relations` to be between 19 nodes, of 3 types, but got \[19, 8\]"):
        net(batch_of(made))
