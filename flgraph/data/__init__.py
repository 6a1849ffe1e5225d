"""Loaders, partitioners and batching; knows no algorithm."""

from flgraph.data.datamodule import GraphDataModule, GraphFederation, TUFederation
from flgraph.data.flat import FlatGraphs
from flgraph.data.loader import GraphLoader
from flgraph.data.partition import dirichlet_shards, shards, stratified_split
from flgraph.data.synthetic import SyntheticFederation
from flgraph.data.tu import read_tu

__all__ = [
    "FlatGraphs",
    "GraphDataModule",
    "GraphFederation",
    "GraphLoader",
    "SyntheticFederation",
    "TUFederation",
    "dirichlet_shards",
    "read_tu",
    "shards",
    "stratified_split",
]
