"""Every algorithm of the package keeps what every algorithm has to keep: see :mod:`flgraph.testing`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import federations
import pytest
import pytorch_lightning as pl

from flgraph import callbacks, models
from flgraph.federation import Aggregator
from flgraph.reproduce.fedego import published as fedego
from flgraph.reproduce.fedhgn import published as fedhgn
from flgraph.testing import check_algorithm

SMALL = {"hidden_channels": 4, "num_layers": 2}
EARLY_SPLIT = {"eps1": 100.0, "eps2": 0.0, "warmup": 0, "min_clients": 2}
FEDEGO = {"server_accelerator": "cpu", "server_epochs": 1}

Make = Callable[[], Any]
ALGORITHMS: dict[str, tuple[Make, Make, str]] = {
    "Local": (callbacks.Local, lambda: models.GNN(**SMALL), "Graphs"),
    "FedAvg": (callbacks.FedAvg, lambda: models.GNN(**SMALL), "Graphs"),
    "FedProx": (lambda: callbacks.FedProx(0.5), lambda: models.GNN(**SMALL), "Graphs"),
    "FedProxAdaptive": (lambda: callbacks.FedProxAdaptive(patience=1), lambda: models.GNN(**SMALL), "Graphs"),
    "FedPer": (callbacks.FedPer, lambda: models.GNN(**SMALL), "Graphs"),
    "FedSage": (callbacks.FedSage, lambda: models.GNN(conv="sage", **SMALL), "Graphs"),
    "FedStar": (callbacks.FedStar, lambda: models.FedStar(**SMALL), "Graphs"),
    "FedSSP": (callbacks.FedSSP, lambda: models.FedSSP(heads=2, **SMALL), "Graphs"),
    "GCFL": (lambda: callbacks.GCFL(**EARLY_SPLIT), lambda: models.GNN(**SMALL), "Graphs"),
    "GCFLPlus": (
        lambda: callbacks.GCFLPlus(sequence_length=2, **EARLY_SPLIT),
        lambda: models.GNN(**SMALL),
        "Graphs",
    ),
    "FCLG": (callbacks.FCLG, lambda: models.FCLG(**SMALL), "Views"),
    "FedEgo": (lambda: callbacks.FedEgo(**FEDEGO), lambda: models.FedEgo(hidden_channels=4), "Nodes"),
    "DFedGNN": (callbacks.DFedGNN, lambda: models.FedEgo(hidden_channels=4), "Nodes"),
    "GraphFL": (
        lambda: callbacks.GraphFL(num_nodes=4, meta_optimizer="adam"),
        lambda: models.FedEgo(hidden_channels=4),
        "Nodes",
    ),
    "FedGCN": (lambda: callbacks.FedGCN(2), lambda: models.NodeGCN(hidden_channels=4), "Whole"),
    "FedGTA": (lambda: callbacks.FedGTA(0.9), lambda: models.NodeGCN(hidden_channels=4), "Whole"),
    "FedPUB": (lambda: callbacks.FedPUB(blocks=1), lambda: models.MaskedGCN(hidden_channels=4), "Whole"),
    "FedTAD": (
        lambda: callbacks.FedTAD(epochs=2, steps=1, num_nodes=6, neighbours=2),
        lambda: models.NodeGCN(hidden_channels=4),
        "Whole",
    ),
    "FedThin": (callbacks.FedThin, lambda: models.NodeGCN(hidden_channels=4), "Whole"),
    "FGGP": (callbacks.FGGP, lambda: models.FGGP(hidden_channels=4), "Whole"),
    "AdaFGL": (lambda: callbacks.AdaFGL(federated_rounds=1), lambda: models.AdaFGL(hidden_channels=4), "Whole"),
    "FedSagePlus": (
        lambda: callbacks.FedSagePlus(pretrain_epochs=1, generator_rounds=1),
        lambda: models.NeighGenSAGE(hidden_channels=4),
        "Whole",
    ),
    "FedHGN": (callbacks.FedHGN, lambda: models.RGCN(hidden_channels=4, num_bases=3), "Relations"),
    "SchemaFedAvg": (
        lambda: callbacks.SchemaFedAvg(0.5),
        lambda: models.RGCN(hidden_channels=4, num_bases=0),
        "Relations",
    ),
    "SCAFFOLD": (callbacks.SCAFFOLD, lambda: models.GNN(optimizer="sgd", lr=0.05, **SMALL), "Graphs"),
    "FedOpt": (callbacks.FedOpt, lambda: models.GNN(**SMALL), "Graphs"),
    "FedNova": (callbacks.FedNova, lambda: models.GNN(**SMALL), "Graphs"),
    "Ditto": (callbacks.Ditto, lambda: models.GNN(**SMALL), "Graphs"),
    "MOON": (callbacks.MOON, lambda: models.NodeGCN(hidden_channels=4), "Whole"),
    "FedProto": (lambda: callbacks.FedProto(inference="prototypes"), lambda: models.GNN(**SMALL), "Graphs"),
    "FedRep": (callbacks.FedRep, lambda: models.GNN(**SMALL), "Graphs"),
    "APFL": (callbacks.APFL, lambda: models.GNN(**SMALL), "Graphs"),
    "PublishedFedAvg": (fedego.PublishedFedAvg, lambda: models.GNN(**SMALL), "Graphs"),
    "PublishedFedProx": (fedego.PublishedFedProx, lambda: models.GNN(**SMALL), "Graphs"),
    "PublishedDFedGNN": (fedego.PublishedDFedGNN, lambda: models.FedEgo(hidden_channels=4), "Nodes"),
    "GraphFLFromMean": (
        lambda: fedego.GraphFLFromMean(num_nodes=4),
        lambda: models.FedEgo(hidden_channels=4),
        "Nodes",
    ),
    "PublishedGraphFL": (
        lambda: fedego.PublishedGraphFL(num_nodes=4),
        lambda: models.FedEgo(hidden_channels=4),
        "Nodes",
    ),
    "PublishedFedEgo": (lambda: fedego.PublishedFedEgo(**FEDEGO), lambda: models.FedEgo(hidden_channels=4), "Nodes"),
    "PublishedSchemaFedAvg": (
        lambda: fedhgn.PublishedSchemaFedAvg(0.5),
        lambda: models.RGCN(hidden_channels=4, num_bases=0),
        "Relations",
    ),
}

VARIANTS: dict[str, tuple[Make, Make, dict[str, Any]]] = {
    "FedYogi": (lambda: callbacks.FedOpt("yogi"), lambda: models.GNN(**SMALL), {}),
    "FedAdagrad": (lambda: callbacks.FedOpt("adagrad"), lambda: models.GNN(**SMALL), {}),
    "FedBN": (callbacks.FedAvg, lambda: models.GNN(norm="batch", **SMALL), {"personal": ["*norms*"]}),
}
"""Methods that are settings of others."""

CHANGES_NOTHING = {"PublishedFedGCN"}
"""The published code computes its average and never sends it."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_keeps_the_promises(name: str) -> None:
    aggregator, model, data = ALGORITHMS[name]

    def setup() -> tuple[Aggregator, pl.LightningModule, Any]:
        return aggregator(), model(), getattr(federations, data)()

    monitor = {"monitor": "val/loss", "monitor_mode": "min"} if data == "Views" else {}
    check_algorithm(setup, rounds=3 if name.startswith("GCFL") else 2, local_epochs=2, client_fraction=0.8, **monitor)


@pytest.mark.parametrize("name", VARIANTS)
def test_so_do_methods_that_are_settings_of_others(name: str) -> None:
    aggregator, model, settings = VARIANTS[name]
    check_algorithm(
        lambda: (aggregator(), model(), federations.Graphs()), rounds=2, local_epochs=2, client_fraction=0.8, **settings
    )


def test_none_is_missing() -> None:
    found = {
        name
        for module in (callbacks, fedego, fedhgn)
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Aggregator) and not inspect.isabstract(kind)
    }
    assert found == ALGORITHMS.keys() | CHANGES_NOTHING
