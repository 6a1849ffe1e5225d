from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.data import Data

from flgraph.callbacks import FedPUB
from flgraph.callbacks.fedpub import random_graph
from flgraph.data import NodeGraph, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.models import MaskedGCN, NodeGCN

Federate = Callable[..., FederatedTrainer]


@pytest.fixture
def clients() -> WholeGraphFederation:
    generator = torch.Generator().manual_seed(0)
    x, edges = torch.rand(60, 5, generator=generator), torch.randint(60, (2, 150), generator=generator)
    graph = NodeGraph.from_pyg(Data(x=x, edge_index=edges, y=torch.arange(60) % 3))
    cut = {"num_clients": 3, "partition": "dirichlet", "alpha": 5.0, "global_fraction": 0.0}
    return WholeGraphFederation(graph, epoch_fraction=1.0, **cut)


def sent(model: float, embedding: list[float], count: int) -> Payload:
    told = {"embedding": torch.tensor(embedding)}
    return Payload({"w": torch.tensor([model]), "function": told}, {"num_samples": count})


def begun(**kwargs: Any) -> FedPUB:
    server = FedPUB(**kwargs)
    server.owners = dict.fromkeys("ABC", ("w",))
    server.start({"w": torch.zeros(1)}, list("ABC"))
    return server


def models(server: FedPUB) -> list[float]:
    downloads = [server.download(client, 1, "train") for client in "ABC"]
    return [float(download.tensors["w"]) for download in downloads if download is not None]


def test_means_weighed_by_similarity() -> None:
    """A and B are at an angle whose cosine is 0.6; temperature 2. C takes no part: it gets the mean by samples."""
    server = begun(temperature=2.0)
    server.accept(server.aggregate({"A": sent(1.0, [2.0, 0.0], 1), "B": sent(5.0, [0.6, 0.8], 3)}, 1, "train"))
    one, other = math.exp(2.0), math.exp(1.2)
    own = one / (one + other)
    assert models(server) == pytest.approx([own + 5 * (1 - own), 5 * own + (1 - own), 4.0])
    assert server.log_scalars() == {"own_weight/A": pytest.approx(own), "own_weight/B": pytest.approx(own)}
    server.accept(server.aggregate({"C": sent(7.0, [1.0, 0.0], 1)}, 2, "train"))
    assert models(server) == pytest.approx([own + 5 * (1 - own), 5 * own + (1 - own), 7.0])  # A and B keep theirs


def test_temperature_0_lets_all_count_alike() -> None:
    server = begun(temperature=0.0)
    uploads = {"A": sent(1.0, [1.0], 9), "B": sent(4.0, [-1.0], 1), "C": sent(9.0, [1.0, 1.0], 1)}
    server.accept(server.aggregate(uploads, 1, "train"))
    assert models(server) == pytest.approx([2.5, 2.5, 9.0])  # C's embedding has another length


def test_masks_stay_and_models_differ(clients: WholeGraphFederation, federate: Federate) -> None:
    trainer: Any = federate(FedPUB(), rounds=2, local_epochs=2)
    trainer.fit(MaskedGCN(hidden_channels=4, lr=0.05), clients)
    every = list(trainer.engine.clients.values())
    sent_names = {"convs.0.weight", "convs.0.bias", "convs.1.weight", "convs.1.bias"}
    sent_names |= {"classifier.weight", "classifier.bias"}
    assert set(every[0].shared_tensors()) == sent_names
    masks = [client.module.convs[0].mask for client in every]
    assert not bool((masks[0] == 1).all())
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(every[0].module.convs[0].weight, every[1].module.convs[0].weight)
    weights = json.loads((trainer.run_dir / "results.json").read_text())["aggregator"]["weights"]
    assert all(sum(row.values()) == pytest.approx(1.0) for row in weights.values())
    download = every[0].last_download
    assert isinstance(download.scalars["graph"], int)


def test_the_random_graph() -> None:
    batch = random_graph(3, 4, seed=5)
    assert batch.x.shape == (300, 4)
    source = torch.repeat_interleave(batch.adj.rowptr.diff())
    assert bool((source // 100 == batch.adj.col // 100).all())  # none between blocks
    assert 0.09 < batch.adj.col.numel() / (3 * 100 * 99) < 0.11
    assert bool((source != batch.adj.col).all())
    again = random_graph(3, 4, seed=5)
    assert torch.equal(batch.x, again.x)
    assert torch.equal(batch.adj.col, again.adj.col)
    assert not torch.equal(batch.x, random_graph(3, 4, seed=6).x)


def test_what_a_client_tells_of_its_function(clients: WholeGraphFederation, federate: Federate) -> None:
    """The mean over nodes of the second convolution, with the masks, without dropout; dense."""
    trainer: Any = federate(FedPUB(blocks=1), rounds=1, local_epochs=3, enable_checkpointing=False)
    trainer.fit(MaskedGCN(hidden_channels=4, prune=0.99), clients)
    client = trainer.engine.clients["client-2"]
    seed = client.last_download.scalars["graph"]
    batch = random_graph(1, 5, seed)
    dense = torch.zeros(100, 100)
    dense[torch.repeat_interleave(batch.adj.rowptr.diff()), batch.adj.col] = 1
    looped = dense + torch.eye(100)
    hat = looped.sum(1).rsqrt().unsqueeze(1) * looped * looped.sum(1).rsqrt()
    hidden = batch.x
    for number, conv in enumerate(client.module.convs):
        mask = conv.mask.masked_fill(conv.mask.abs() < 0.99, 0.0)
        hidden = hat @ hidden @ (conv.weight * mask) + conv.bias
        hidden = hidden.relu() if number == 0 else hidden
    found = client.aggregator.function(client)
    assert client.module.training
    assert torch.allclose(found, hidden.mean(dim=0), atol=1e-5)
    assert 0 < int((client.module.convs[0].mask.abs() < 0.99).sum()) < client.module.convs[0].mask.numel()


class TwoOptimizers(MaskedGCN):
    """One for the masks, which steps last, one for the rest."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        self.manual_backward(F.cross_entropy(self(batch), batch.y))
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        masks = [parameter for name, parameter in self.named_parameters() if name.endswith("mask")]
        others = [parameter for name, parameter in self.named_parameters() if not name.endswith("mask")]
        return [torch.optim.SGD(part, lr=0.1) for part in (others, masks)]


@pytest.mark.parametrize("kind", [MaskedGCN, TwoOptimizers])
def test_gradients_are_those_of_the_whole_loss(
    clients: WholeGraphFederation, federate: Federate, kind: type[MaskedGCN]
) -> None:
    """One step of SGD, against automatic differentiation of the sum."""
    trainer: Any = federate(FedPUB(sparsity=0.5, mu=2.0), rounds=1, enable_checkpointing=False)
    trainer.fit(kind(hidden_channels=4, dropout=0.0, optimizer="sgd", lr=0.1), clients)
    client = trainer.engine.clients["client-1"]
    sent_now, module = client.last_download.group(), client.module
    with torch.no_grad():
        module.convs[0].weight.add_(0.3)  # away from what was sent
        module.convs[0].mask.mul_(-1)
    twin = MaskedGCN(in_channels=5, num_classes=3, hidden_channels=4, dropout=0.0)
    twin.load_state_dict(module.state_dict())
    batch = next(iter(client.data.train_dataloader()))
    loss = F.cross_entropy(twin(batch), batch.y)
    for name, parameter in twin.named_parameters():
        if name.endswith("mask"):
            loss = loss + 0.5 * parameter.abs().sum()
        else:
            loss = loss + (parameter - sent_now[name]).square().sum()
    loss.backward()
    client.aggregator.local_update(client, 2, "train")
    for name, parameter in twin.named_parameters():
        assert parameter.grad is not None
        expected = parameter.detach() - 0.1 * parameter.grad
        assert torch.allclose(dict(module.named_parameters())[name], expected, atol=1e-6), name


@pytest.mark.parametrize(
    "changes", [{"temperature": -1.0}, {"temperature": 1e9}, {"sparsity": -1.0}, {"mu": -1.0}, {"blocks": 0}]
)
def test_bad_arguments(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"`aggregator.{next(iter(changes))}`"):
        FedPUB(**changes)


def test_other_models_are_refused(clients: WholeGraphFederation, federate: Federate) -> None:
    with pytest.raises(InputError, match=r"`model` to be MaskedGCN, .* but got one without `\*\.mask`"):
        federate(FedPUB(), rounds=1).fit(NodeGCN(hidden_channels=4), clients)
