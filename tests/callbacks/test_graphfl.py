from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks import FedAvg, GraphFL
from flgraph.callbacks.graphfl import meta_gradients
from flgraph.data import EgoBatch, EgoLoader, NodeGraph
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.federation.payload import pack, unpack
from flgraph.models import FedEgo as FedEgoNet
from flgraph.models import FedStar as FedStarNet
from flgraph.models import NodeGCN

Federate = Callable[..., FederatedTrainer]


# ------------------------------------------------------------------------------------------------------ the gradient
class Quadratic(pl.LightningModule):
    """Loss ``(w - b)' A (w - b) / 2`` of a batch ``(A, b)``: its gradient and Hessian are known."""

    def __init__(self, size: int = 4, as_dict: bool = False) -> None:
        super().__init__()
        self.as_dict = as_dict
        self.w = torch.nn.Parameter(torch.linspace(-1, 1, size, dtype=torch.float64))
        self.unused = torch.nn.Parameter(torch.ones(2))
        self.frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("calls", torch.zeros(1))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Any:
        matrix, b = batch
        self.calls += 1
        loss = (self.w - b) @ matrix @ (self.w - b) / 2
        self.log("train/loss", loss)
        return {"loss": loss} if self.as_dict else loss


def quadratic(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    return root @ root.t(), torch.randn(4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.filterwarnings("ignore:You are trying to `self.log")
def test_of_a_quadratic_by_hand(as_dict: bool) -> None:
    """(I - alpha A) g(w - alpha A (w - b)); twice the bracket for two steps; none for the first order."""
    module, support, query, lr = Quadratic(as_dict=as_dict), quadratic(1), quadratic(2), 0.05
    w, (matrix, b), (other, c) = module.w.detach().clone(), support, query
    bracket = torch.eye(4, dtype=torch.float64) - lr * matrix
    adapted = w
    for steps in (1, 2):
        adapted = adapted - lr * matrix @ (adapted - b)
        expected = other @ (adapted - c)
        found = meta_gradients(module, support, query, lr, steps, first_order=True)
        torch.testing.assert_close(found["w"], expected)
        found = meta_gradients(module, support, query, lr, steps)
        torch.testing.assert_close(found["w"], torch.linalg.matrix_power(bracket, steps) @ expected)
        assert set(found) == {"w", "unused"}
        assert torch.equal(found["unused"], torch.zeros(2))
    assert torch.equal(module.w, w)
    assert module.w.grad is None
    assert module.calls == 0


def egos(seed: int = 0, nodes: int = 30) -> tuple[NodeGraph, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(nodes, 7, generator=generator) < 0.3).float()
    ring = torch.arange(nodes)
    edges = torch.stack([torch.cat([ring, ring.roll(-1)]), torch.cat([ring.roll(-1), ring])])
    edges = edges[:, (edges[0] * nodes + edges[1]).argsort()]
    return NodeGraph(x.to_sparse_csr(), edges, ring % 3, 3), ring


def dense_loss(weights: dict[str, Tensor], batch: EgoBatch) -> Tensor:
    """FedEgo's network without dropout in dense products, for ego-graphs of fanouts (2, 2)."""
    p = "personalization"
    h = torch.relu(batch.x @ weights["reduction.layers.0.weight"] + weights["reduction.layers.0.bias"])
    p0, p1, p2 = h[batch.index].split([1, 2, 4], dim=1)
    for layer in (0, 1):
        own, sent, bias = (
            weights[f"{p}.layers.{layer}.{name}"]
            for name in ("lin_self.weight", "lin_neighbour.weight", "lin_neighbour.bias")
        )
        step = lambda at, below: torch.relu(at @ own.t() + below.unflatten(1, (-1, 2)).mean(2) @ sent.t() + bias)  # noqa: B023, E731
        p0, p1 = (step(p0, p1), step(p1, p2)) if layer == 0 else (step(p0, p1), p1)
    return F.cross_entropy(p0[:, 0] @ weights[f"{p}.classifier.weight"].t(), batch.y)


def test_of_fedegos_network_against_dense_products() -> None:
    """In float64, with sparse features; the reference takes the Hessian as a matrix."""
    torch.manual_seed(0)
    graph, every = egos()
    module = FedEgoNet(7, 3, hidden_channels=3, dropout=0.0).double()
    support, query = EgoLoader(graph, every, 15, (2, 2), fixed=True)
    weights = {name: parameter.detach() for name, parameter in module.named_parameters()}
    shapes = [weight.shape for weight in weights.values()]

    def loss(flat: Tensor, batch: EgoBatch) -> Tensor:
        parts = flat.split([shape.numel() for shape in shapes])
        named = {name: part.view(shape) for name, part, shape in zip(weights, parts, shapes, strict=True)}
        return dense_loss(named, batch)

    flat = torch.cat([weight.flatten() for weight in weights.values()])
    dense, other = (replace(batch, x=batch.x.to_dense().double()) for batch in (support, query))
    torch.testing.assert_close(loss(flat, dense), module.training_step(support).detach())
    gradient = torch.func.grad(loss)
    lr = 0.5
    last = gradient(flat - lr * gradient(flat, dense), other)
    hessian = torch.func.hessian(loss)(flat, dense)
    assert hessian.abs().max() > 1e-3
    for first_order, expected in ((True, last), (False, last - lr * hessian @ last)):
        found = meta_gradients(module, support, query, lr, first_order=first_order)
        torch.testing.assert_close(torch.cat([found[name].flatten() for name in weights]), expected)


@pytest.mark.parametrize("kind", ["ego", "gcn"])
def test_dropout_has_second_derivatives_too(kind: str) -> None:
    """Against finite differences along a direction, with the same masks, seed for seed."""
    graph, every = egos()
    module: Any = FedEgoNet(7, 3, hidden_channels=4, dropout=0.5).double()
    support, query = EgoLoader(graph, every, 15, (2, 2), fixed=True)
    if kind == "gcn":
        module = NodeGCN(7, 3, hidden_channels=4, dropout=0.5).double()
        support, query = (graph.batch(part) for part in every.split(15))  # type: ignore[assignment]
    torch.manual_seed(5)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)  # biases as well: a node without words would lie in the ReLU's corner
    direction = {name: torch.randn_like(p) for name, p in module.named_parameters()}
    torch.manual_seed(5)
    found = meta_gradients(module, support, query, 0.3)

    def after(shift: float) -> float:
        moved = type(module)(**module.hparams).double()
        moved.load_state_dict({name: p + shift * direction[name] for name, p in module.state_dict().items()})
        torch.manual_seed(5)
        gradients = torch.autograd.grad(moved.training_step(support), list(moved.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(moved.parameters(), gradients, strict=True):
                parameter -= 0.3 * gradient
            return float(moved.training_step(query))

    slope = (after(1e-6) - after(-1e-6)) / 2e-6
    assert slope == pytest.approx(sum(float((found[n] * d).sum()) for n, d in direction.items()), rel=1e-5)


# --------------------------------------------------------------------------------------------------------- the server
def sent(values: dict[str, float], samples: int = 1) -> dict[str, Payload]:
    return {c: Payload({"w": torch.tensor([value])}, {"num_samples": samples}) for c, value in values.items()}


def weights_of(server: GraphFL) -> float:
    download = server.download("A", 1, "train")
    assert download is not None
    return float(download.tensors["w"])


def aggregate(server: GraphFL, uploads: dict[str, Payload], round: int, exchange: str) -> None:
    if exchange == "meta":
        uploads = {client: Payload({"gradient": upload.tensors}, upload.scalars) for client, upload in uploads.items()}
    server.accept(server.aggregate(uploads, round, exchange))


def begun(**kwargs: Any) -> GraphFL:
    server = GraphFL(**kwargs)
    server.owners = {"A": ["w", "mean"], "B": ["w", "mean"]}
    server.start({"w": torch.tensor([1.0]), "mean": torch.tensor([7.0])}, ["A", "B"])
    return server


def test_the_meta_step_goes_along_the_weighted_mean() -> None:
    server = begun(meta_lr=0.5)
    aggregate(server, sent({"A": 2.0}) | sent({"B": 6.0}, samples=3), 1, "meta")
    assert weights_of(server) == 1 - 0.5 * 5
    download = server.download("A", 1, "train")
    assert download is not None
    assert download.tensors["mean"] == 7, "buffers have no gradient"
    aggregate(server, sent({"A": 2.0}) | sent({"B": 6.0}, samples=3), 1, "train")
    assert weights_of(server) == 5
    assert begun().exchanges(3) == ("meta", "train")
    assert begun().exchanges(0) == ()


def test_adam_keeps_its_moments_through_averages_and_checkpoints() -> None:
    one, reference = begun(meta_lr=0.1, meta_optimizer="adam"), torch.nn.Parameter(torch.tensor([1.0]))
    adam = torch.optim.Adam([reference], lr=0.1)
    for number, (gradient, average) in enumerate([(2.0, 0.5), (-1.0, 3.0), (4.0, 2.0)], start=1):
        reference.grad = torch.tensor([gradient])
        adam.step()
        aggregate(one, sent({"A": gradient}), number, "meta")
        assert weights_of(one) == reference.item()
        aggregate(one, sent({"A": average}), number, "train")
        reference.data.fill_(average)
        other = begun(meta_lr=0.1, meta_optimizer="adam")
        other.load_server_state(unpack(pack(one.server_state())))
        other.accept(one.shared)
        assert pack(other.server_state()).to_bytes() == pack(one.server_state()).to_bytes()
        one = other


def test_adam_goes_with_types_that_change() -> None:
    """Clients of another precision have changed the weights since; in float16 Adam's eps would be 0."""
    server = begun(meta_lr=0.1, meta_optimizer="adam")
    for number, kind in enumerate((torch.float16, torch.float64, torch.float32), start=1):
        server.accept({"w": torch.tensor([1.0], dtype=kind)})
        aggregate(server, sent({"A": 0.0 if kind == torch.float16 else 2.0}), number, "meta")
        assert server.shared["w"].dtype == kind
        assert server.shared["w"].isfinite()


# --------------------------------------------------------------------------------------------------------- whole runs
class MetaData:
    """A client's ego-graphs, with support and query sets by the hook."""

    def __init__(self, graph: NodeGraph, train: Tensor) -> None:
        self.graph, self.train, self.asked, self.settings = graph, train, [], {}  # type: ignore[var-annotated]

    num_train_samples = property(lambda self: self.train.numel())
    model_args = property(lambda self: {"in_channels": self.graph.num_features, "num_classes": 3})

    def train_dataloader(self) -> EgoLoader:
        return EgoLoader(self.graph, self.train, 8, (2, 2), shuffle=True)

    def val_dataloader(self) -> EgoLoader:
        return EgoLoader(self.graph, self.train, 64, (2, 2), fixed=True)

    test_dataloader = val_dataloader

    def support_query(self, num_nodes: int) -> tuple[EgoBatch, EgoBatch]:
        order = self.train[torch.randperm(self.train.numel())]
        size = min(num_nodes, order.numel() // 2)
        sets = [next(iter(EgoLoader(self.graph, part, size, (2, 2)))) for part in (order[:size], order[-size:])]
        self.asked.append((num_nodes, [part.y.numel() for part in sets]))
        return sets[0], sets[1]


def test_two_exchanges_and_what_crosses(federate: Federate, toy_federation: Callable[..., Any], recorder: Any) -> None:
    data = toy_federation(**{chr(65 + n): MetaData(*egos(n, 12 + 2 * n)) for n in range(3)})
    trainer: Any = federate(GraphFL(num_nodes=7), rounds=2, engine=recorder)
    trainer.fit(FedEgoNet(hidden_channels=4), data)
    assert [name for name, _ in recorder.uploads("meta")] == ["A", "B", "C"] * 2
    module = trainer.engine.clients["A"].module
    for exchange in ("meta", "train"):
        for _, upload in recorder.uploads(exchange):
            assert {n: t.shape for n, t in upload.group("gradient" if exchange == "meta" else "").items()} == {
                n: t.shape for n, t in module.state_dict().items()
            }
            assert all(name.startswith("gradient/") == (exchange == "meta") for name in upload.tensors)
            assert dict(upload.scalars) == {"num_samples": upload.scalars["num_samples"]}
    asked = [data.client(name).asked for name in "ABC"]
    assert asked == [[(7, [size] * 2)] * 2 for size in (6, 7, 7)]
    # The first download after the meta exchange is one plain step from the initial weights.
    first = {name: upload for name, upload in recorder.uploads("meta")[:3]}
    total = sum(upload.scalars["num_samples"] for upload in first.values())
    down = [(turn, payload) for name, turn, payload in recorder.downloads() if name == "A" and turn.round <= 1]
    (start,) = [payload for turn, payload in down if turn.round == 0]
    (stepped,) = [payload for turn, payload in down if turn.name == "train"]
    for name, weight in start.tensors.items():
        mean = sum(u.group("gradient")[name].double() * u.scalars["num_samples"] for u in first.values()) / total
        torch.testing.assert_close(stepped.tensors[name], (weight - 0.01 * mean).float())


def test_without_a_meta_step_it_is_fedavg(
    toy_federation: Callable[..., Any], toy_module: Any, assert_equal_runs: Callable[..., None]
) -> None:
    """The meta exchange leaves weights, buffers (batch norm's), optimizers, and logged metrics alone."""
    model, data = partial(toy_module, dropout=0.5, norm=True, optimizer="adam"), partial(toy_federation, 6, 8)
    assert_equal_runs(FedAvg(), GraphFL(meta_lr=0.0, inner_lr=0.5), model, partial(data, batch_size=4), rounds=3)


@pytest.mark.parametrize("batch_size", [4, 8])
def test_without_the_hook_batches_are_the_loader_s(
    batch_size: int, toy_federation: Callable[..., Any], toy_module: Any, federate: Federate, recorder: Any
) -> None:
    """The first two; the same one twice where there is only one."""
    trainer: Any = federate(GraphFL(inner_lr=0.7), rounds=1, engine=recorder)
    data = toy_federation(8, batch_size=batch_size)
    trainer.fit(toy_module(), data)
    (upload,) = [upload for _, upload in recorder.uploads("meta")]
    (start,) = [payload for _, turn, payload in recorder.downloads() if turn.round == 0]
    x, y = data.client("A").x, data.client("A").y

    def loss(weights: dict[str, Tensor], rows: slice) -> Tensor:
        module = toy_module(in_features=4)
        return F.cross_entropy(torch.func.functional_call(module, weights, x[rows]), y[rows])

    support, query = slice(0, batch_size), slice(8 - batch_size, 8)

    def after(weights: dict[str, Tensor]) -> Tensor:
        along = torch.func.grad(loss)(weights, support)
        return loss({name: w - 0.7 * along[name] for name, w in weights.items()}, query)

    torch.testing.assert_close(upload.group("gradient"), torch.func.grad(after)(dict(start.tensors)))


def test_personal_layers_are_adapted_but_not_sent(
    toy_federation: Callable[..., Any],
    toy_data: Callable[..., Any],
    toy_module: Any,
    federate: Federate,
    recorder: Any,
) -> None:
    data = toy_federation(A=toy_data(6, 3), B=toy_data(6, 4))
    federate(GraphFL(), rounds=2, engine=recorder).fit(toy_module(), data)
    for _, upload in recorder.uploads("meta"):
        assert set(upload.tensors) == {"gradient/first.bias", "gradient/last.weight", "gradient/last.bias"}


def test_layers_with_one_derivative_need_the_first_order(
    graph_federation: Callable[..., Any], federate: Federate
) -> None:
    with pytest.raises(InputError, match="first_order` to be true for a model with layers that"):
        federate(GraphFL(), rounds=1).fit(FedStarNet(hidden_channels=4, num_layers=1), graph_federation())
    federate(GraphFL(first_order=True), rounds=1).fit(FedStarNet(hidden_channels=4, num_layers=1), graph_federation())


def test_manual_optimization_is_refused(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Federate
) -> None:
    class Manual(toy_module):  # type: ignore[misc]
        automatic_optimization = False

    with pytest.raises(InputError, match="to be a module with automatic optimization for GraphFL"):
        federate(GraphFL(), rounds=1).fit(lambda data: Manual(in_features=4), toy_federation(6))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_nodes": 0}, "`aggregator.num_nodes` to be 1 or more but got 0"),
        ({"inner_steps": 0}, "`aggregator.inner_steps` to be 1 or more but got 0"),
        ({"inner_lr": -1.0}, "`aggregator.inner_lr` to be a finite number, 0 or more but got -1"),
        ({"meta_lr": float("inf")}, "`aggregator.meta_lr` to be a finite number, 0 or more but got inf"),
        ({"meta_optimizer": "lbfgs"}, "`aggregator.meta_optimizer` to be sgd or adam but got 'lbfgs'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        GraphFL(**settings)
