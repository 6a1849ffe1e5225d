from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.data import Batch, Data

from flgraph import models
from flgraph.callbacks import FedSSP
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer, Payload
from flgraph.models import GNN

Federate = Callable[..., FederatedTrainer]


def net(**kwargs: Any) -> models.FedSSP:
    return models.FedSSP(**{"hidden_channels": 4, "heads": 2, "num_layers": 1, "dropout": 0.0, **kwargs})


def sent(weight: float, mean: list[float]) -> Payload:
    tensors = {"w": torch.tensor([weight]), "consensus": {"mean": torch.tensor(mean)}}
    return Payload(tensors, {"columns": len(mean)})


def test_the_server_by_hand() -> None:
    server = FedSSP()
    server.owners = dict.fromkeys("AB", ("w",))
    server.start({"w": torch.zeros(1)}, list("AB"))
    first = server.download("A", 1, "train")
    assert first is not None
    assert set(first.tensors) == {"w"}
    uploads = {"A": sent(1.0, [1.0, 2.0]), "B": sent(4.0, [3.0, 0.0])}
    for client, upload in uploads.items():
        server.check_upload(client, upload, 1, "train")
    server.accept(server.aggregate(uploads, 1, "train"))
    later = server.download("B", 2, "train")
    assert later is not None
    assert later.tensors["w"].tolist() == [2.5]
    assert later.tensors["consensus/mean"].tolist() == [2.0, 1.0]
    for wrong in (torch.ones(3), torch.ones(2, dtype=torch.float64)):
        upload = Payload({"w": torch.zeros(1), "consensus": {"mean": wrong}}, {"columns": wrong.numel()})
        with pytest.raises(InputError, match=r"`mean` of torch.float32 2"):
            server.check_upload("A", upload, 2, "train")


def test_the_network_is_that_of_the_published_code() -> None:
    """Its steps on dense matrices, graph by graph."""
    torch.manual_seed(0)
    module = net(in_channels=3, num_classes=2, num_layers=2).eval()
    torch.nn.init.normal_(module.preference)
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]), torch.tensor([[0, 1, 0, 2], [1, 0, 2, 0]])
    graphs = [Data(x=torch.rand(n, 3), edge_index=edge) for n, edge in zip((4, 3), edges, strict=True)]
    expected = []
    for graph in graphs:
        n = graph.x.size(0)
        dense = torch.zeros(n, n)
        dense[graph.edge_index[0], graph.edge_index[1]] = 1
        e, u = torch.linalg.eigh(dense.sum(1).diag() - dense)
        eig = module.eigen(e.unsqueeze(0))
        layer = module.attention
        normed = layer.norm1(eig)
        eig = eig + layer.self_attn(normed, normed, normed)[0]
        eig = eig + layer.linear2(F.gelu(layer.linear1(layer.norm2(eig))))
        new = module.decode(eig)[0]
        bases = torch.stack([torch.eye(n), *((u * new[:, head]) @ u.t() for head in range(2))], dim=-1)
        x = module.pre(graph.x).relu()
        source, target = graph.edge_index
        weights = module.filters(bases[source, target])
        share = torch.cat(
            [weights[[at]].exp() / weights[target == target[at]].exp().sum(0) for at in range(len(source))]
        )
        for conv in module.convs:
            got = torch.zeros_like(x)
            for at in range(len(source)):
                got[target[at]] += F.gelu(conv.message(x[source[at]])) * share[at]
            x = x + got
            x = x + conv.ffn(x)
        expected.append(module.readout(x.mean(0) + module.preference))
    assert torch.allclose(module(Batch.from_data_list(graphs)), torch.stack(expected), atol=1e-4)


def test_a_step_and_what_is_told(
    federate: Federate, graph_federation: Callable[..., Any], recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one full batch; the second round's further loss is the distance from the mean of what all told."""
    seen: list[tuple[torch.Tensor, float]] = []
    plain = FedSSP.further_loss

    def noting(self: Any, batch: Any, encoded: torch.Tensor) -> torch.Tensor:
        loss = plain(self, batch, encoded)
        seen.append((encoded.detach().mean(0), float(loss.detach())))
        return loss

    monkeypatch.setattr(FedSSP, "further_loss", noting)
    trainer: Any = federate(FedSSP(tau=3.0, momentum=0.25), rounds=2, engine=recorder)
    trainer.fit(net(lr=0.01), graph_federation(batch_size=64))
    uploads = [upload for _, upload in recorder.uploads()]
    told = [upload.group("consensus")["mean"] for upload in uploads]
    assert all(torch.allclose(mean, 0.25 * rows, atol=1e-6) for mean, (rows, _) in zip(told, seen, strict=True))
    consensus = torch.stack(told[:3]).mean(0)
    for rows, loss in seen[3:]:
        assert loss == pytest.approx(float(1.5 * (0.25 * rows - consensus).square().mean()), rel=1e-4)
    assert [loss for _, loss in seen[:3]] == [0.0] * 3
    shared = {name for name in uploads[0].tensors if "/" not in name}
    assert shared == {
        name
        for name, _ in net(in_channels=4, num_classes=2).named_parameters()
        if name.startswith(("eigen.", "filters."))
    }
    preferences = [client.module.preference for client in trainer.engine.clients.values()]
    assert not torch.equal(preferences[0], preferences[1])


def test_means_are_followed_over_batches() -> None:
    half = FedSSP(momentum=0.5)
    half._mean, half._consensus = torch.zeros(1), torch.tensor([1.0])
    half.further_loss(None, torch.tensor([[2.0], [4.0]]))  # 1.5
    loss = half.further_loss(None, torch.tensor([[1.0]]))  # 0.75 + 0.5
    assert half._mean.tolist() == [1.25]
    assert float(loss) == pytest.approx(100 * 0.5 * 0.25**2)


def test_bad_input(federate: Federate, graph_federation: Callable[..., Any]) -> None:
    for changes in ({"tau": -1.0}, {"momentum": 0.0}, {"momentum": 1.5}):
        with pytest.raises(InputError, match=f"`aggregator.{next(iter(changes))}`"):
            FedSSP(**changes)
    for heads in (0, 3):
        with pytest.raises(InputError, match=r"`model.heads`"):
            net(heads=heads)
    with pytest.raises(InputError, match="`model` to be FedSSP"):
        federate(FedSSP(), rounds=1).fit(GNN(hidden_channels=4, num_layers=1), graph_federation())
