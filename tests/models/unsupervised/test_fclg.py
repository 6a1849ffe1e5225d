from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_add_pool

from flgraph.data import Diffusion, FlatGraphs, NodeDataModule, NodeGraph, ViewDataModule, diffused
from flgraph.errors import InputError
from flgraph.models import FCLG
from flgraph.models.unsupervised.clustering import clustering_metrics, joined
from flgraph.nn import instance_contrast


def flat(given: list[Data]) -> FlatGraphs:
    graphs = FlatGraphs.from_pyg(given)
    return graphs.with_views({"diffused": diffused(graphs, Diffusion())})


class Reference(nn.Module):
    """The encoder in PyG's layers; the diffused view by dense products."""

    def __init__(self, net: FCLG) -> None:
        super().__init__()
        self.convs, self.norms = nn.ModuleList(), copy.deepcopy(net.encoder.norms)
        self.apart = net.hparams["norm"] == "batch_per_view"
        for conv in net.encoder.convs:
            first, second = nn.Linear(conv.in_channels, conv.hidden_channels), nn.Linear(conv.hidden_channels, 5)
            self.convs.append(GINConv(nn.Sequential(first, nn.ReLU(), second)))  # which draws new weights
            first.load_state_dict(conv.lin1.state_dict())
            second.load_state_dict(conv.lin2.state_dict())

    def forward(self, batch: Batch, dense: Tensor) -> list[Tensor]:
        """Embeddings of both views; batch normalisation sees them together, or one after the other."""
        views, layers = [batch.x, batch.x], []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            views = [conv(views[0], batch.edge_index).relu(), conv.nn(views[1] + dense @ views[1]).relu()]
            views = [norm(view) for view in views] if self.apart else list(norm(torch.cat(views)).chunk(2))
            layers.append(views)
        return [global_add_pool(torch.cat(view, dim=1), batch.batch) for view in zip(*layers, strict=True)]


@pytest.mark.parametrize("norm", ["none", "batch", "batch_per_view"])
def test_equals_pyg(norm: Any, graph_list: Callable[..., list[Data]]) -> None:
    """Embeddings of both views, the loss, and its gradients."""
    torch.manual_seed(0)
    given = graph_list(7)
    graphs = flat(given)
    net = FCLG(4, 2, hidden_channels=5, num_layers=2, norm=norm, temperature=0.3)
    reference = Reference(net)
    batch, plain = graphs.batch(), Batch.from_data_list(given)
    dense = batch.diffused.matrix(torch.float32).to_dense()
    u, v = reference(plain, dense)
    loss, encoded = net.contrast(batch)
    torch.testing.assert_close(encoded.graphs, u, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(encoded.nodes.size(), torch.Size([plain.num_nodes, 10]))
    expected = instance_contrast(u, v, 0.3)
    torch.testing.assert_close(loss, expected)
    expected.backward()
    loss.backward()
    for own, other in zip(net.encoder.convs, reference.convs, strict=True):
        torch.testing.assert_close(own.lin1.weight.grad, other.nn[0].weight.grad, atol=1e-5, rtol=1e-3)
        torch.testing.assert_close(own.lin2.bias.grad, other.nn[2].bias.grad, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(net.encoder.norms.state_dict(), reference.norms.state_dict())


def test_trains_alone(graph_list: Callable[..., list[Data]], tmp_path: Path) -> None:
    """With an ordinary Trainer: the loss falls, tests cluster, predictions are embeddings."""
    torch.manual_seed(0)
    graphs = flat(graph_list(24))
    everything = torch.arange(24)
    data = ViewDataModule(graphs, (everything, everything[:6], everything), batch_size=8, everywhere=graphs)
    net = FCLG(**data.model_args, hidden_channels=8, num_layers=2, lr=0.01, probe=True)
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    trainer = pl.Trainer(max_epochs=8, default_root_dir=tmp_path, **quiet)
    before = net.contrast(graphs.batch())[0].item()
    trainer.fit(net, datamodule=data)
    assert net.contrast(graphs.batch())[0].item() < before - 0.1
    assert set(trainer.callback_metrics) == {"train/loss", "val/loss"}
    told = {key: value for part in trainer.test(net, datamodule=data, verbose=False) for key, value in part.items()}
    names = ("accuracy", "f1", "nmi", "ari", "silhouette", "probe")
    assert set(told) == {f"{stage}/{name}" for name in names for stage in ("test", "global_test")}
    assert all(told[f"test/{name}"] == told[f"global_test/{name}"] for name in names)  # the same graphs
    embeddings = trainer.predict(net, datamodule=data)
    assert [tuple(part.shape) for part in embeddings or []] == [(24, 16)]  # type: ignore[union-attr]


def test_readout(graph_list: Callable[..., list[Data]], tmp_path: Path) -> None:
    """Of the last two of three tested models, equal ones counted once; a checkpoint brings them along."""
    torch.manual_seed(0)
    graphs = flat(graph_list(24))
    everything = torch.arange(24)
    data = ViewDataModule(graphs, (everything, everything[:6], everything), batch_size=8)
    made = {**data.model_args, "hidden_channels": 4, "num_layers": 2, "norm": "batch_per_view", "readout": 2}
    net, plain = FCLG(**made), FCLG(**{**made, "readout": 0})  # type: ignore[arg-type]
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(default_root_dir=tmp_path, enable_checkpointing=False, accelerator="cpu", **quiet)
    embeddings = []
    for _ in range(3):
        for tensor in net.state_dict().values():
            tensor.add_(torch.rand_like(tensor) if tensor.is_floating_point() else 1)
        plain.load_state_dict(net.state_dict())
        embeddings.append(plain.eval()(graphs.batch()).detach())
        for _ in range(2):
            (told,) = trainer.test(net, datamodule=data, verbose=False)
    nodes = graphs.node_ptr.diff()
    expected = clustering_metrics(joined(torch.cat(embeddings[1:], 1), nodes), graphs.y, net.num_classes)
    size = clustering_metrics(nodes.double().log()[:, None], graphs.y, net.num_classes)
    for name in ("accuracy", "f1"):
        assert told[f"test/readout_{name}"] == pytest.approx(expected[name])
        assert told[f"test/size_{name}"] == pytest.approx(size[name])
    (without,) = trainer.test(plain, datamodule=data, verbose=False)
    assert without == {name: value for name, value in told.items() if "readout_" not in name and "size_" not in name}
    trainer.strategy.connect(net)
    trainer.save_checkpoint(tmp_path / "net.ckpt")
    again = FCLG.load_from_checkpoint(tmp_path / "net.ckpt", weights_only=True)
    assert trainer.test(again, datamodule=data, verbose=False) == [told]
    other = {"tested": [FCLG(4, 2, hidden_channels=5).state_dict()]}
    with pytest.raises(InputError, match="Expected `tested` of the checkpoint` to be models of the same tensors"):
        again.on_load_checkpoint(other)


def test_batches_of_any_order_embed_alike(graph_list: Callable[..., list[Data]]) -> None:
    graphs = flat(graph_list(6))
    net = FCLG(4, 2, hidden_channels=5).eval()
    order = torch.tensor([4, 0, 2])
    torch.testing.assert_close(net(graphs.batch(order)), net(graphs.batch())[order])
    torch.testing.assert_close(net(graphs.batch()).norm(dim=1), torch.ones(6))
    sums = net.encode(graphs.batch()).graphs
    for embedding, expected in (("raw", sums), ("log", (1 + sums).log())):
        other = FCLG(4, 2, hidden_channels=5, embedding=embedding).eval()  # type: ignore[arg-type]
        other.load_state_dict(net.state_dict())
        torch.testing.assert_close(other(graphs.batch()), expected)


def test_a_batch_of_one_graph_has_no_loss(graph_list: Callable[..., list[Data]]) -> None:
    graphs = flat(graph_list(3))
    net = FCLG(4, 2, hidden_channels=5)
    loss, _ = net.contrast(graphs.batch(torch.tensor([1])))
    assert loss == 0


def test_nodes_are_no_graphs() -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    graph = NodeGraph(torch.eye(2), edges, torch.tensor([0, 1]))
    batch: Any = next(iter(NodeDataModule(graph, *[torch.arange(2)] * 3).train_dataloader()))
    with pytest.raises(InputError, match=r"Expected `data` to be one whose batches are graphs, such as .*'batches of"):
        FCLG(2, 2).training_step(batch)


def test_no_second_view(graph_list: Callable[..., list[Data]]) -> None:
    net = FCLG(4, 2)
    with pytest.raises(InputError, match=r"Expected `batch.diffused` to be the second view"):
        net.contrast(Batch.from_data_list(graph_list(3)))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"temperature": 0.0}, "model.temperature"),
        ({"similarity": "none"}, "model.similarity"),
        ({"norm": "layer"}, "model.norm"),
        ({"num_layers": 0}, "model.num_layers"),
        ({"embedding": "rank"}, "model.embedding"),
        ({"readout": -1}, "model.readout"),
        ({"optimizer": "sgdd"}, "model.optimizer"),
    ],
)
def test_refusals(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"Expected `{field}` to be"):
        FCLG(**wrong)
