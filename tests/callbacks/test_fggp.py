from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.neighbors import kneighbors_graph
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph import models
from flgraph.callbacks import FGGP, FedAvg, FedThin
from flgraph.data import NodeGraph, SyntheticFederation, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.models import GNN, NodeGCN
from flgraph.models.nodes.fggp import edge_loss

Federate = Callable[..., FederatedTrainer]
CLASSES = 3


def clients(undirected: bool = True) -> WholeGraphFederation:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(60, 5, generator=generator)
    edges = torch.randint(60, (2, 400), generator=generator)
    whole = NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(60) % CLASSES), undirected=undirected)
    return WholeGraphFederation(whole, num_clients=3, partition="dirichlet", alpha=5.0, global_fraction=0.0)


def net(**kwargs: Any) -> models.FGGP:
    return models.FGGP(**{"hidden_channels": 4, "lr": 0.02, "dropout": 0.0, **kwargs})


def sent(weight: float, rows: list[list[float]], found: list[float]) -> Payload:
    told = {"mean": torch.tensor(rows).float(), "found": torch.tensor(found).float()}
    scalars = {"num_samples": 2, "num_classes": len(rows), "columns": len(rows[0])}
    return Payload({"w": torch.tensor([weight]), "prototypes": told}, scalars)


def test_the_server_by_hand() -> None:
    """A and B say alike of the first class, C and D something else; of the second there is one, of the third none."""
    server = FGGP(memory=1)
    server.owners = dict.fromkeys("ABCD", ("w",))
    server.start({"w": torch.zeros(1)}, list("ABCD"))
    uploads = {
        "A": sent(1.0, [[1, 0.0], [3, 3], [0, 0]], [1, 1, 0]),
        "B": sent(2.0, [[3, 0.2], [0, 0], [0, 0]], [1, 0, 0]),
        "C": sent(3.0, [[0.1, 1], [0, 0], [0, 0]], [1, 0, 0]),
        "D": sent(6.0, [[0.1, 3], [0, 0], [0, 0]], [1, 0, 0]),
    }
    for client, upload in uploads.items():
        server.check_upload(client, upload, 1, "train")
    server.accept(server.aggregate(uploads, 1, "train"))
    first = server.download("A", 1, "train")
    assert first is not None
    assert server.download("B", 1, "train") is first
    assert first.tensors["w"].tolist() == [3.0]
    rows = first.group("prototypes")
    assert torch.allclose(rows["mean"], torch.tensor([[2.0, 0.1], [0.1, 2.0], [3.0, 3.0]]))
    assert rows["class"].tolist() == [0, 0, 1]
    server.accept(server.aggregate({"A": sent(1.0, [[7.0, 7], [0, 0], [8, 9]], [1, 0, 1])}, 2, "train"))
    later = server.download("A", 2, "train")
    assert later is not None  # the newest three
    assert later.group("prototypes")["mean"].tolist() == [[3, 3], [7, 7], [8, 9]]
    assert later.group("prototypes")["class"].tolist() == [1, 0, 2]
    assert server.log_scalars() == {"prototypes": 3.0}
    with pytest.raises(InputError, match="`columns` of 2"):
        server.check_upload("A", sent(1.0, [[1.0]], [1]), 3, "train")
    server = FGGP()
    server.owners = {"A": ("convs.1.bias", "w")}
    server.start({"convs.1.bias": torch.zeros(3), "w": torch.zeros(1)}, ["A"])  # the common model has three classes
    lie = sent(1.0, [[1.0, 0.0]] * 4, [1] * 4)
    with pytest.raises(InputError, match="`num_classes` of 3 but got 4"):
        server.check_upload("A", Payload({**lie.tensors, "convs.1.bias": torch.zeros(3)}, lie.scalars), 1, "train")


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 5.0]])
def test_a_step_is_that_of_the_equations(weights: list[float] | None) -> None:
    """The loss, dense and loop by loop as the published code has it; the view is drawn with the same numbers."""
    data = clients()
    data.setup()
    client = data.client("client-1")
    graph, train = client.graph, client.train
    module = net(in_channels=5, num_classes=CLASSES, class_weights=weights)
    n = graph.num_nodes
    edges = torch.eye(n)
    edges[graph.edge_index[0], graph.edge_index[1]] = 1
    edges[0, n - 1] = edges[n - 1, 0] = 1
    module.use_view(edges)
    torch.manual_seed(7)
    loss = module.training_step(graph.batch(train))

    def normal(matrix: torch.Tensor) -> torch.Tensor:
        half = torch.diag(matrix.sum(1).pow(-0.5))
        return half @ matrix @ half

    x = graph.x.to_dense() if graph.x.layout == torch.sparse_csr else graph.x
    first, second = module.convs
    own = torch.eye(n)
    own[graph.edge_index[0], graph.edge_index[1]] = 1
    hidden = (normal(own) @ x @ first.weight + first.bias).relu()
    logits = normal(own) @ hidden @ second.weight + second.bias
    one, two = module.augment
    z = (normal(edges) @ (normal(edges) @ x @ one.weight + one.bias) @ two.weight + two.bias).relu()
    likeness = z @ z.t()
    share = 0.5 * likeness / (likeness.max() + 1e-6) + 0.5 * edges
    torch.manual_seed(7)
    drawn = torch.distributions.RelaxedBernoulli(torch.tensor(1.0), probs=share).rsample().round().triu(1)
    view = normal(drawn + drawn.t() + torch.eye(n))
    seen = (view @ x @ first.weight + first.bias).relu()
    other = view @ seen @ second.weight + second.bias
    sure, guess = logits.softmax(1).max(1)
    guess[train], sure[train] = graph.y[train], 1.0

    def prototypes(rows: torch.Tensor) -> torch.Tensor:
        there = [guess == number for number in guess.unique()]
        return F.normalize(torch.stack([(rows[at] * sure[at, None]).sum(0) / sure[at].sum() for at in there]), dim=1)

    pair, contrast = (prototypes(hidden), prototypes(seen)), torch.tensor(0.0)
    for mine, its in (pair, pair[::-1]):
        for c in range(len(mine)):
            rest = [row for d in range(len(mine)) if d != c for row in (mine[d], its[d])]
            scores = torch.stack([mine[c] @ row for row in (its[c], *rest)]) / 0.5
            contrast = contrast - scores.log_softmax(0)[0] / (2 * len(mine))
    apart = n**2 - edges.sum()
    joined = n**2 / (apart * 2) * F.binary_cross_entropy_with_logits(likeness, edges, pos_weight=apart / edges.sum())
    counts = None if weights is None else torch.tensor(weights)
    parts = [F.cross_entropy(rows[train], graph.y[train], counts) for rows in (logits, other)]
    assert torch.allclose(loss, sum(parts) + contrast + joined, atol=1e-5)
    assert torch.allclose(edge_loss(likeness, edges), joined)
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in module.parameters())
    assert one.weight.grad.any()  # type: ignore[union-attr]  # also through what was drawn


def test_without_a_view_it_is_a_gcn() -> None:
    data = clients()
    data.setup()
    batch = data.client("client-1").graph.batch(data.client("client-1").train)
    module, plain = net(in_channels=5, num_classes=3), NodeGCN(in_channels=5, num_classes=3, hidden_channels=4)
    plain.load_state_dict(module.state_dict(), strict=False)
    assert torch.equal(module.eval()(batch), plain.eval()(batch))


@pytest.mark.parametrize("undirected", [True, False])
def test_what_a_client_does(
    undirected: bool, federate: Federate, monkeypatch: pytest.MonkeyPatch, recorder: Any
) -> None:
    """Nearest nodes are scikit-learn's, prototypes means by loop; the nearest ones classify."""
    given: list[torch.Tensor] = []

    def keep(self: Any, edges: torch.Tensor | None) -> None:
        given.extend([] if edges is None else [edges])
        self.edges = edges

    monkeypatch.setattr(models.FGGP, "use_view", keep)
    trainer: Any = federate(FGGP(neighbours=2, k=4), rounds=2, engine=recorder)
    results = trainer.fit(net(hidden_channels=16), clients(undirected))
    asked = {name: got for name, turn, got in recorder.downloads() if turn.round == 1}
    uploads = dict(recorder.uploads()[-3:])
    for number, (name, client) in enumerate(trainer.engine.clients.items()):
        graph, module = client.data.graph, net(in_channels=5, num_classes=CLASSES, hidden_channels=16).eval()
        everything = graph.batch(torch.arange(graph.num_nodes))
        module.load_state_dict(asked[name].group())
        rows = module.encode(everything).detach()
        near = torch.from_numpy(kneighbors_graph(rows.numpy(), 2, metric="cosine").toarray()).float()
        own = torch.eye(graph.num_nodes)
        own[graph.edge_index[0], graph.edge_index[1]] = 1
        assert torch.equal(given[3 + number], ((near + near.t() + own + own.t()) > 0).float())

        module.load_state_dict(uploads[name].group())
        encoded = module.encode(everything)
        sure, guess = module(everything).softmax(1).max(1)
        guess[client.data.train], sure[client.data.train] = graph.y[client.data.train], 1.0
        told = uploads[name].group("prototypes")
        for c in range(CLASSES):
            at = guess == c
            assert bool(told["found"][c]) == (int(at.sum()) > 1)
            if told["found"][c]:
                mean = (encoded[at] * sure[at, None]).sum(0) / sure[at].sum()
                assert torch.allclose(told["mean"][c], mean, atol=1e-5)

        memory = client.aggregator._received
        test = client.data.test
        cosines = F.normalize(client.module.eval().encode(everything)[test], dim=1) @ F.normalize(memory["mean"]).t()
        best, where = cosines.topk(min(4, cosines.size(1)), dim=1)
        votes = torch.zeros(len(test), CLASSES)
        votes.scatter_add_(1, memory["class"][where], (best / 0.1).softmax(1).detach())
        right = float((votes.argmax(1) == graph.y[test]).float().mean())
        assert results["final"]["clients"][name]["test/accuracy"] == pytest.approx(right)
        assert "head" not in vars(client.module)


def test_the_head_may_classify(federate: Federate) -> None:
    accuracies = []
    for inference in ("head", "prototypes"):
        trainer: Any = federate(FGGP(inference=inference), rounds=2, name=inference)  # type: ignore[arg-type]
        accuracies.append(trainer.fit(net(), clients())["final"]["clients"])
    assert accuracies[0] != accuracies[1]


@pytest.mark.parametrize(("method", "model"), [(FGGP(k=4), net()), (FedThin(), models.NodeGCN(hidden_channels=4))])
@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_a_model_is_asked_before_its_first_training(
    method: Any, model: Any, precision: Any, federate: Federate
) -> None:
    """By then it is made in float32, and its client's graph has the run's precision."""
    results = federate(method, rounds=2, precision=precision).fit(model, clients())
    assert 0 < results["final"]["mean"]["train/loss"] < 5


@pytest.mark.parametrize(
    "changes",
    [{"neighbours": 0}, {"k": 0}, {"memory": 0}, {"temperature": 0.0}, {"min_samples": 0}, {"inference": "both"}],
)
def test_bad_arguments(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"`aggregator.{next(iter(changes))}`"):
        FGGP(**changes)


def test_what_it_does_not_go_with(federate: Federate) -> None:
    assert FGGP(min_samples=1).reveals
    assert not FGGP().reveals
    for field, value in (("alpha", 2.0), ("temperature", 0.0)):
        with pytest.raises(InputError, match=f"`model.{field}`"):
            net(**{field: value})
    with pytest.raises(InputError, match=r"to be flgraph.models.FGGP"):
        federate(FGGP(), rounds=1).fit(GNN(hidden_channels=4, num_layers=1), SyntheticFederation(num_graphs=10))
    federate(FedAvg(), rounds=1, name="avg").fit(net(), clients())  # its model goes with others
