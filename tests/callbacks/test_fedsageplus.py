"""FedSage+: what crosses, the gradients that clients give each other against a loop, and resumption."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.callbacks import FedAvg, FedSagePlus
from flgraph.data import NodeGraph, WholeGraphDataModule
from flgraph.errors import InputError
from flgraph.federation import ClientError, FederatedTrainer, Payload, Request, Turn
from flgraph.models import GNN, NeighGenSAGE, NodeSAGE
from flgraph.runs.checkpoint import load_bytes, state_bytes

Federate = Callable[..., FederatedTrainer]
NODES = 30


def parts(count: int = 3, sparse: bool = True) -> dict[str, WholeGraphDataModule]:
    """Clients with disjoint thirds of a random graph; every node is used for everything."""
    random = torch.Generator().manual_seed(0)
    x = torch.rand(NODES, 7, generator=random) * (torch.rand(NODES, 7, generator=random) < 0.4)
    edges = torch.randint(0, NODES, (2, 160), generator=random)
    whole = NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(NODES) % 3))
    whole = whole if sparse else NodeGraph(x, whole.edge_index, whole.y, 3)
    given = {}
    for number, nodes in enumerate(torch.arange(NODES).chunk(count)):
        every = torch.arange(nodes.numel())
        given[chr(65 + number)] = WholeGraphDataModule(whole.subgraph(nodes), every, every, every)
    return given


def net(**kwargs: Any) -> NeighGenSAGE:
    plain = {"hidden_channels": 4, "fgen_channels": (5,), "max_neighbours": 2, "dropout": 0.0, "lr": 0.02}
    return NeighGenSAGE(**{**plain, **kwargs})


def test_what_crosses(federate: Federate, recorder: Any) -> None:
    trainer: Any = federate(FedSagePlus(pretrain_epochs=2, generator_rounds=2), rounds=2, engine=recorder)
    trainer.fit(net(), parts())
    sizes = {}
    for name, upload in recorder.uploads("generate"):
        assert set(upload.tensors) == {"generated/features"}
        sizes[name] = upload.tensors["generated/features"].shape
        assert sizes[name][0] > 0
        assert sizes[name][1] == 7
    for name, upload in recorder.uploads("compare 1"):
        assert {key: gradient.shape for key, gradient in upload.tensors.items()} == {
            f"gradient/{other}": sizes[other] for other in {"A", "B", "C"} - {name}
        }
    assert [name for name, _ in recorder.uploads("refine 1")] == ["A", "B", "C"]
    assert recorder.uploads("refine 2", some=False) == []
    for _, upload in recorder.uploads("train"):
        assert set(upload.tensors) == {f"convs.{n}.{part}" for n in (0, 1) for part in ("weight", "bias")}
    turns = {(turn.round, turn.name) for _, turn, _ in recorder.downloads()}
    before = {"compare 1", "refine 1", "compare 2", "refine 2", "evaluate"}
    assert {exchange for round, exchange in turns if not round} == before


def test_gradients_from_others_equal_a_loop(federate: Federate) -> None:
    """One step of SGD with and without them differs by the gradient of fGen's weights, as the paper sends it."""
    settings = {"rounds": 1, "enable_checkpointing": False, "precision": "64-true"}

    def modules(**kwargs: Any) -> dict[str, Any]:
        trainer: Any = federate(FedSagePlus(pretrain_epochs=1, **kwargs), **settings)
        trainer.fit(net(optimizer="sgd", generator_lr=0.1, feature_weight=2.0), parts())
        return {name: client.module for name, client in trainer.engine.clients.items()}

    before = modules(generator_rounds=0)  # and so as they are when they are compared
    alone, together = (modules(generator_rounds=1, alpha=alpha) for alpha in (0.0, 0.5))
    batches = {name: part.graph.batch(torch.arange(10)) for name, part in parts().items()}
    data = {name: part.graph.x.to_dense().double() for name, part in parts().items()}
    for name, module in before.items():
        graph, generator = module.impaired(batches[name]), module.generator
        noise = torch.randn(len(graph.visible), 4, generator=torch.Generator().manual_seed(module.draw_seed))
        z = (generator(data[name][graph.visible], graph.adj)[0] + noise).detach()
        first, second = generator.fgen.requires_grad_().layers
        total = torch.zeros((), dtype=torch.float64)
        for one, count in zip(z, graph.missing, strict=True):
            made = torch.tanh(second.weight @ torch.relu(first.weight @ one + first.bias) + second.bias).view(2, 7)
            for p in range(min(int(count), 2)):
                for other in data.keys() - {name}:
                    total = total + torch.stack([(made[p] - row).square().sum() for row in data[other]]).min()
        parameters = dict(generator.fgen.named_parameters())
        for key, gradient in zip(parameters, torch.autograd.grad(total, list(parameters.values())), strict=True):
            steps = [dict(run[name].generator.fgen.named_parameters())[key] for run in (alone, together)]
            expected = -0.1 * 0.5 * 2.0 / len(graph.visible) * gradient
            torch.testing.assert_close(steps[1] - steps[0], expected, rtol=1e-9, atol=1e-12)
            assert gradient.abs().sum() > 0


def test_neighbours_without_number_cost_no_work(federate: Federate) -> None:
    """A client that says to have generated any number costs the others nothing: those beyond get no gradient."""
    trainer: Any = federate(FedSagePlus(pretrain_epochs=1, generator_rounds=1), rounds=1)
    trainer.fit(net(), parts())
    client = trainer.engine.clients["A"]
    most = 2 * (10_000 + 100 * 10)
    rows = torch.rand(most + 50, 7)
    client._download = Payload({"generated": {"B": rows, "C": rows[:3]}}).to_bytes()
    sent = client.aggregator._compare(client).group("gradient")
    assert [tuple(gradient.shape) for gradient in sent.values()] == [(most, 7), (3, 7)]
    torch.testing.assert_close(sent["B"][:3], sent["C"])
    assert sent["B"].abs().sum(1).all()
    server = FedSagePlus(pretrain_epochs=1, generator_rounds=1)
    server._sizes = {"A": (10, 7), "B": (most + 50, 7), "C": (3, 7)}
    answer = Payload({"gradient": sent})
    server.check_upload("A", answer, 0, "compare 1")
    server.aggregate(dict.fromkeys("AB", answer), 0, "compare 1")
    summed = next(iter(server._answers["B"].group("gradient").values()))
    torch.testing.assert_close(summed[:most], 2 * sent["B"])
    assert len(summed) == most + 50
    assert not summed[most:].any()
    server._sizes["B"] = (most - 1, 7)
    with pytest.raises(InputError, match="of 21999 rows at most for what `B` generated but got"):
        server.check_upload("A", answer, 0, "compare 1")


def test_schedulers_count_epochs_before_the_first_round(federate: Federate) -> None:
    class Cycle(NeighGenSAGE):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            steps = int(self.trainer.estimated_stepping_batches)
            made = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": made, "interval": "step"}}

    trainer: Any = federate(FedSagePlus(pretrain_epochs=3, generator_rounds=3), rounds=2)
    trainer.fit(Cycle(hidden_channels=4, fgen_channels=(5,), max_neighbours=2), parts())
    assert trainer.current_round == 2


def test_the_classifier_starts_from_the_first_weights(federate: Federate, recorder: Any) -> None:
    """What the generator's training did to it is forgotten, its optimizer's moments included; then it is FedAvg."""
    trainer: Any = federate(FedSagePlus(pretrain_epochs=3, generator_rounds=1), rounds=1, engine=recorder)
    trainer.fit(net(), parts())
    first = [payload for _, turn, payload in recorder.downloads() if (turn.round, turn.name) == (0, "evaluate")]
    plain: Any = federate(FedAvg(), rounds=1, engine=type(recorder)())
    plain.fit(net(), parts())
    start = next(payload for _, turn, payload in plain.engine.downloads())
    assert len(first) == 3
    for payload in first:
        assert set(payload.tensors) == {f"convs.{n}.{part}" for n in (0, 1) for part in ("weight", "bias")}
        for name, tensor in payload.tensors.items():
            assert torch.equal(tensor, start.tensors[name])
    for client in trainer.engine.clients.values():
        (state,) = client._optimizers.optimizers
        assert {int(entry["step"]) for entry in state["state"].values()} == {1}
        assert client.module.generator_frozen


def test_without_other_clients(federate: Federate) -> None:
    """No rounds of the generators, or nobody else: each learns from its own graph."""
    for count, rounds in ((3, 0), (1, 2)):
        trainer: Any = federate(FedSagePlus(pretrain_epochs=1, generator_rounds=rounds), rounds=2)
        results = trainer.fit(net(), parts(count))
        assert len(results["final"]["clients"]) == count


def test_it_learns(federate: Federate) -> None:
    results = federate(FedSagePlus(pretrain_epochs=5, generator_rounds=3), rounds=40).fit(net(lr=0.05), parts())
    assert results["final"]["mean"]["train/loss"] < 0.8
    assert results["final"]["mean"]["test/accuracy"] > 0.6


@pytest.mark.parametrize("cut", [1, 2])
def test_resumed_equals_uninterrupted(federate: Federate, tmp_path: Any, assert_same: Any, cut: int) -> None:
    """Clients that took no part yet included: their generator is not frozen before they do."""

    def run(folder: str, rounds: int, ckpt: str | None = None) -> Any:
        settings = {"default_root_dir": str(tmp_path / folder), "client_fraction": 0.4, "local_epochs": 2}
        trainer = federate(FedSagePlus(pretrain_epochs=2, generator_rounds=1), rounds=rounds, **settings)
        return trainer, trainer.fit(net(dropout=0.5), parts(), ckpt_path=ckpt)["final"]

    (whole, final), _, (resumed, again) = run("whole", 4), run("cut", cut), run("cut", 4, "last")
    assert again == final
    for name, client in whole.engine.clients.items():
        assert_same(client.state(), resumed.engine.clients[name].state())
        assert client.module.generator_frozen == resumed.engine.clients[name].module.generator_frozen
    assert whole.server.state({}) == resumed.server.state({})


@pytest.mark.parametrize("precision", ["bf16-true", "64-true", "bf16-mixed"])
def test_dense_features_in_any_precision(federate: Federate, precision: str) -> None:
    method = FedSagePlus(pretrain_epochs=1, generator_rounds=1)
    results = federate(method, rounds=1, precision=precision).fit(net(), parts(sparse=False))
    assert len(results["final"]["clients"]) == 3


def test_the_noise_is_drawn_once(federate: Federate, recorder: Any) -> None:
    """Else the mean over many uploads would be without it. A learning rate of zero leaves the generator as it is."""
    trainer: Any = federate(FedSagePlus(pretrain_epochs=1, generator_rounds=2), rounds=1, engine=recorder)
    trainer.fit(net(lr=0.0, generator_lr=0.0), parts())
    first, second = (dict(recorder.uploads(exchange)) for exchange in ("generate", "refine 1"))
    for name, upload in first.items():
        assert torch.equal(upload.tensors["generated/features"], second[name].tensors["generated/features"])


def test_noise_and_hidden_nodes_follow_from_the_site_s_seed(federate: Federate) -> None:
    """Not from the run's, which those know who get the noisy representations."""
    data, drawn = parts(), set()
    for seed in (1, 2):
        clients = federate(FedSagePlus(pretrain_epochs=1), rounds=1).host(net(), data, seed=seed)
        for client in clients.values():
            client.turn(Turn(0, Request.EXCHANGE, "generate"))
            module: Any = client.module
            drawn.add(module.draw_seed)
    assert len(drawn) == 2 * len(data)


def test_going_back_over_the_turn_that_settles(federate: Federate, assert_same: Any) -> None:
    """A site that is asked again for the first turn of training computes the same."""
    trainer: Any = federate(FedSagePlus(pretrain_epochs=2, generator_rounds=1), rounds=1, client_fraction=0.4)
    trainer.fit(net(), parts())
    name, client = next((n, c) for n, c in trainer.engine.clients.items() if not c.module.generator_frozen)
    before = state_bytes(client.state())
    turn = Turn(2, Request.EXCHANGE, "train", trainer.server.aggregator.download(name, 2, "train").to_bytes())
    first, state = client.turn(turn), copy.deepcopy(client.state())
    assert client.module.generator_frozen
    client.load_state(load_bytes(before, name))
    assert not client.module.generator_frozen
    assert all(parameter.requires_grad for parameter in client.module.generator.parameters())
    assert client.turn(turn) == first
    assert_same(client.state(), state)


def test_refusals(federate: Federate, graph_federation: Callable[..., Any]) -> None:
    for name, value in (("pretrain_epochs", -1), ("generator_rounds", -1), ("alpha", float("nan"))):
        with pytest.raises(InputError, match=rf"`aggregator\.{name}` to be .* but got {re.escape(str(value))}"):
            FedSagePlus(**{name: value})
    with pytest.raises(InputError, match=r"generator\.\*"):
        federate(FedSagePlus(), rounds=1).fit(NodeSAGE(), parts())
    with pytest.raises(InputError, match=r"generator\.\*"):
        federate(FedSagePlus(), rounds=1).fit(GNN(hidden_channels=4, num_layers=1), graph_federation())
    other = parts()
    graph = other["B"].graph
    wide = NodeGraph(torch.rand(graph.num_nodes, 8), graph.edge_index, graph.y, 3)
    other["B"] = WholeGraphDataModule(wide, *[torch.arange(graph.num_nodes)] * 3)
    with pytest.raises(InputError, match=r"`num_features` of client `B` to be 7, as of most clients, but got 8"):
        federate(FedSagePlus(generator_rounds=1), rounds=1).fit(net(), other)


def test_before_round_1(
    federate: Federate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What may leave a client is shown first; what fails then leaves its traceback, too."""

    def training_step(self: NeighGenSAGE, batch: Any, batch_idx: int = 0) -> Tensor:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(NeighGenSAGE, "training_step", training_step)
    trainer = federate(FedSagePlus(pretrain_epochs=1, generator_rounds=3), rounds=1, enable_progress_bar=True)
    with pytest.raises(ClientError, match=r"Client `A` failed in round 0 \(generate\): RuntimeError: out of luck"):
        trainer.fit(net(), parts())
    printed = capsys.readouterr().out
    assert 0 <= printed.index("What may leave a client") < printed.index("before round 1: generate (1/7)")
    (error,) = tmp_path.glob("runs/*/version_0/error.txt")
    assert "in training_step" in error.read_text()
