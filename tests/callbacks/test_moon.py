from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from flgraph.callbacks import MOON, FedAvg
from flgraph.data import NodeGraph, WholeGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN, NodeGCN

Federate = Callable[..., FederatedTrainer]


def whole() -> WholeGraphFederation:
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(60, (2, 150), generator=generator)
    edges = torch.cat([ends, ends.flip(0)], dim=1)
    edges = edges[:, edges[0] != edges[1]].unique(dim=1)
    graph = NodeGraph(torch.randn(60, 5, generator=generator), edges, torch.arange(60) % 3, 3, "toy")
    return WholeGraphFederation(graph, num_clients=2, partition="dirichlet", alpha=9.0, epoch_fraction=1.0)


@pytest.mark.parametrize("rounds", [1, 3])
def test_mu_of_zero_and_the_first_round_are_fedavg(
    rounds: int, graph_federation: Callable[..., Any], assert_equal_runs: Callable[..., None]
) -> None:
    method, model = MOON(mu=0.0 if rounds > 1 else 1.0), partial(GNN, hidden_channels=4, num_layers=1)
    kept = ("state_dict", "optimizer_states")
    assert_equal_runs(FedAvg(), method, model, graph_federation, kept, rounds=rounds, local_epochs=2)


def test_a_step_equals_autograd_s(federate: Federate, recorder: Any) -> None:
    """Steps of rounds 1 to 3 from what was sent, with models made anew."""
    mu, tau, lr = 2.0, 0.7, 0.3
    template = NodeGCN(hidden_channels=4, dropout=0.0, optimizer="sgd", lr=lr)
    trainer: Any = federate(MOON(mu=mu, temperature=tau), rounds=3, engine=recorder)
    trainer.fit(template, whole())
    sent = {(name, turn.round): download.group() for name, turn, download in recorder.downloads()}
    uploads = dict[tuple[str, int], Any]()
    for name, upload in recorder.uploads():
        uploads[name, 1 + sum(key[0] == name for key in uploads)] = upload.group()
    felt = 0
    for client, held in trainer.engine.clients.items():
        batch = next(iter(held.data.train_dataloader()))
        for round in (1, 2, 3):
            own, toward, away = (NodeGCN(5, 3, 4, dropout=0.0) for _ in range(3))
            own.load_state_dict(sent[client, round - 1])
            toward.load_state_dict(sent[client, round - 1])
            loss = F.cross_entropy(own(batch), batch.y)
            if round > 1:
                away.load_state_dict(uploads[client, round - 1])
                z, near, far = (net.encode(batch)[batch.index] for net in (own, toward, away))
                logits = torch.stack([F.cosine_similarity(z, other.detach()) for other in (near, far)], dim=1) / tau
                added = mu * F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long))
                felt += (
                    float(sum(g.norm() for g in torch.autograd.grad(added, own.convs[0].weight, retain_graph=True)))
                    > 1e-4
                )
                loss = loss + added
            loss.backward()
            for name, parameter in own.named_parameters():
                stepped = parameter.detach() - lr * parameter.grad
                torch.testing.assert_close(uploads[client, round][name], stepped, rtol=1e-4, atol=1e-6)
    assert felt == 4


def test_bad_settings() -> None:
    for settings, sentence in (
        ({"mu": -1.0}, "`aggregator.mu` to be a finite number, 0 or more"),
        ({"temperature": 0.0}, "`aggregator.temperature` to be a positive, finite number"),
    ):
        with pytest.raises(InputError, match=sentence):
            MOON(**settings)


def test_a_model_that_is_no_classifier_is_refused_in_the_first_round(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Federate
) -> None:
    """There is nothing to compare with yet: a whole round would be done before."""
    trainer = federate(MOON(), rounds=2)
    with pytest.raises(InputError, match="`model` to be a classifier for MOON"):
        trainer.fit(toy_module(), toy_federation(6, 9))
    assert not trainer.history.last
