from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from flgraph.callbacks import FedProto, Local
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload, Policy, PolicyError
from flgraph.models import GNN

Federate = Callable[..., FederatedTrainer]


def net(**kwargs: Any) -> GNN:
    return GNN(**{"hidden_channels": 4, "num_layers": 1, "optimizer": "sgd", "lr": 0.05, **kwargs})


def test_lambda_of_zero_is_local(
    federate: Federate, graph_federation: Callable[..., Any], assert_same: Callable[..., None]
) -> None:
    """Bit for bit, dropout and Adam included; otherwise it is not."""
    states = []
    for half in (Local(), FedProto(lam=0.0), FedProto()):
        trainer: Any = federate(half, rounds=3, local_epochs=2, name="run")
        trainer.fit(net(optimizer="adam"), graph_federation(features=(3, 4, 5)))
        states.append({name: client.module.state_dict() for name, client in trainer.engine.clients.items()})
    assert_same(states[0], states[1])
    with pytest.raises(AssertionError):
        assert_same(states[0], states[2])


def upload(rows: list[list[float]], counts: list[float]) -> Payload:
    tensors = {"prototypes/mean": torch.tensor(rows).float(), "prototypes/count": torch.tensor(counts).float()}
    return Payload(tensors, {"num_classes": len(rows), "columns": len(rows[0]), "num_samples": 5})


def test_prototypes_by_hand() -> None:
    """A class that nobody has is not told; one that nobody has any more stays."""
    half = FedProto()
    uploads = {"A": upload([[1, 2], [5, 5], [0, 0]], [1, 2, 0]), "B": upload([[5, 2], [0, 0], [0, 0]], [3, 0, 0])}
    for client, sent in uploads.items():
        half.check_upload(client, sent, 1, "train")
    assert half.download("A", 1, None) is None
    half.accept(half.aggregate(uploads, 1, "train"))
    sent = half.download("A", 1, None)
    assert sent is not None
    assert sent.tensors["prototypes/mean"].tolist() == [[4, 2], [5, 5], [0, 0]]
    assert sent.tensors["prototypes/found"].tolist() == [True, True, False]
    half.accept(half.aggregate({"B": upload([[6, 0], [0, 0], [1, 1]], [3, 0, 2])}, 2, "train"))
    later = half.download("A", 2, None)
    assert later is not None
    assert later.tensors["prototypes/mean"].tolist() == [[6, 0], [5, 5], [1, 1]]
    assert sent.tensors["prototypes/mean"].tolist() == [[4, 2], [5, 5], [0, 0]]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_what_is_sent_and_how_it_is_used(
    weighting: Any, federate: Federate, graph_federation: Callable[..., Any], recorder: Any
) -> None:
    """A full-batch step of the second round is autograd's; what follows is sent."""
    lam, lr = 3.0, 0.05
    data = graph_federation(batch_size=64)
    half = FedProto(lam=lam, weighting=weighting)
    trainer: Any = federate(half, rounds=1, name="one")
    trainer.fit(net(dropout=0.0), data)
    before = {name: client.module.state_dict() for name, client in trainer.engine.clients.items()}
    before = {name: {key: tensor.clone() for key, tensor in state.items()} for name, state in before.items()}
    trainer = federate(half, rounds=2, name="two", engine=recorder)
    trainer.fit(net(dropout=0.0), data)
    sent = {name: download.group("prototypes") for name, turn, download in recorder.downloads() if turn.round == 1}
    for name, client in trainer.engine.clients.items():
        module = net(in_channels=4, num_classes=2, dropout=0.0)
        module.load_state_dict(before[name])
        (batch,) = client.data.train_dataloader()
        rows = module.represent(batch)
        toward = sent[name]["mean"][batch.y]
        (F.cross_entropy(module(batch), batch.y) + lam * (rows - toward).square().mean()).backward()
        with torch.no_grad():
            for key, parameter in module.named_parameters():
                parameter -= lr * (parameter.grad + 5e-4 * parameter)
                torch.testing.assert_close(client.module.state_dict()[key], parameter, rtol=1e-4, atol=1e-6)
        upload = dict(recorder.uploads()[-3:])[name].group("prototypes")
        rows = module.represent(batch)
        for number in (0, 1):
            own = batch.y == number
            torch.testing.assert_close(upload["mean"][number], rows[own].mean(0), rtol=1e-4, atol=1e-5)
            assert upload["count"][number] == (own.sum() if weighting == "samples" else 1)


def test_few_records_of_a_class_are_not_told(
    federate: Federate, graph_federation: Callable[..., Any], recorder: Any
) -> None:
    data = graph_federation()  # 24 graphs to train on at most
    federate(FedProto(min_samples=20), rounds=1, engine=recorder).fit(net(), data)
    for _, sent in recorder.uploads():
        assert not any(tensor.any() for tensor in sent.tensors.values())
    assert FedProto(min_samples=1).reveals.startswith("The server gets the representation of a record")
    assert not FedProto().reveals


def test_numbers_of_records_are_what_the_policy_makes_of_them(
    federate: Federate, graph_federation: Callable[..., Any], recorder: Any
) -> None:
    federate(FedProto(), rounds=1, engine=recorder, policy=Policy(num_samples=10)).fit(net(), graph_federation())
    for _, sent in recorder.uploads():
        assert set(sent.tensors["prototypes/count"].tolist()) <= {0, 10, 20}
        assert sent.scalars["num_samples"] % 10 == 0
    with pytest.raises(PolicyError, match="without `num_samples`"):
        federate(FedProto(), rounds=1, policy=Policy(num_samples=None), name="b").fit(net(), graph_federation())
    uniform = FedProto(weighting="uniform")
    federate(uniform, rounds=1, policy=Policy(num_samples=None), name="c").fit(net(), graph_federation())


def test_prototypes_may_classify(federate: Federate, graph_federation: Callable[..., Any]) -> None:
    """As the nearest one says; the module itself is left as it was."""
    data = graph_federation()
    trainer: Any = federate(FedProto(inference="prototypes"), rounds=2)
    results = trainer.fit(net(), data)
    for name, client in trainer.engine.clients.items():
        module, means = client.module.eval(), client.aggregator._received["mean"]
        right, count = 0, 0
        for batch in client.data.test_dataloader():
            nearest = torch.cdist(module.represent(batch), means).argmin(dim=1)
            right, count = right + int((nearest == batch.y).sum()), count + batch.y.numel()
        assert results["final"]["clients"][name]["test/accuracy"] == pytest.approx(right / count)
        assert "head" not in vars(module)


def test_bad_settings() -> None:
    for settings, sentence in (
        ({"lam": -1.0}, "`aggregator.lam` to be a finite number, 0 or more"),
        ({"min_samples": 0}, "`aggregator.min_samples` to be 1 or more"),
        ({"weighting": "all"}, "`aggregator.weighting` to be samples or uniform"),
        ({"inference": "both"}, "`aggregator.inference` to be head or prototypes"),
    ):
        with pytest.raises(InputError, match=sentence):
            FedProto(**settings)  # type: ignore[arg-type]


def test_the_nearest_of_the_prototypes_that_there_are() -> None:
    """However long representations are, and however many are asked of at once."""
    half = FedProto(inference="prototypes")
    half._received = {
        "mean": torch.tensor([[0.0, 0.0], [500.0, 0.0], [0.0, 0.0]]),
        "found": torch.tensor([True, True, False]),
    }
    votes = half.votes(net(), torch.tensor([[2000.0, 0.0], [1.0, 0.0]]))
    assert votes.argmax(dim=1).tolist() == [1, 0]
    assert bool(votes.isfinite().all())
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(3, 16, generator=generator) * 0.05 + 300
    rows = means[torch.arange(60) % 3] + torch.randn(60, 16, generator=generator) * 0.05
    half._received = {"mean": means, "found": torch.ones(3, dtype=torch.bool)}
    exact = -(rows.double()[:, None] - means.double()).square().sum(dim=2)
    torch.testing.assert_close(half.votes(net(), rows).double(), exact, rtol=1e-5, atol=1e-6)
