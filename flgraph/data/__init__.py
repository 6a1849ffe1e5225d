"""Loaders, partitioners and batching; knows no algorithm."""

from flgraph.data.datamodule import GraphDataModule, GraphFederation, TUFederation
from flgraph.data.dealt import DealtGraphFederation, ViewDataModule
from flgraph.data.diffusion import Diffusion, diffused
from flgraph.data.ego import EgoBatch, EgoLoader, sample_egos
from flgraph.data.emd import emd_shards, label_emd, weighted_emd
from flgraph.data.flat import FlatGraphs
from flgraph.data.hetero import HeteroBatch, HeteroClients, HeteroDataModule, HeteroFederation, HeteroLoader
from flgraph.data.hetero_datasets import read_hetero, read_hetero_clients
from flgraph.data.hetero_graph import HeteroGraph
from flgraph.data.hetero_links import HeteroLinkDataModule, LinkBatch, LinkLoader
from flgraph.data.hetero_partition import (
    HeteroPartition,
    hetero_statistics,
    partition_of,
    random_edge_types,
    random_edges,
)
from flgraph.data.hetero_replay import authors_partition
from flgraph.data.loader import GraphLoader
from flgraph.data.node_datasets import read_nodes
from flgraph.data.node_graph import NodeGraph
from flgraph.data.node_partition import (
    ClientNodes,
    NodePartition,
    dirichlet,
    label_skew,
    louvain,
    metis,
    partition_statistics,
)
from flgraph.data.node_replay import authors_label_skew
from flgraph.data.nodes import NodeDataModule, NodeFederation
from flgraph.data.partition import dirichlet_shards, shards, stratified_split
from flgraph.data.synthetic import SyntheticFederation
from flgraph.data.tu import read_tu
from flgraph.data.weighted import WeightedEdges
from flgraph.data.whole_graph import WholeGraph, WholeGraphDataModule, WholeGraphFederation, WholeGraphLoader

__all__ = [
    "ClientNodes",
    "DealtGraphFederation",
    "Diffusion",
    "EgoBatch",
    "EgoLoader",
    "FlatGraphs",
    "GraphDataModule",
    "GraphFederation",
    "GraphLoader",
    "HeteroBatch",
    "HeteroClients",
    "HeteroDataModule",
    "HeteroFederation",
    "HeteroGraph",
    "HeteroLinkDataModule",
    "HeteroLoader",
    "HeteroPartition",
    "LinkBatch",
    "LinkLoader",
    "NodeDataModule",
    "NodeFederation",
    "NodeGraph",
    "NodePartition",
    "SyntheticFederation",
    "TUFederation",
    "ViewDataModule",
    "WeightedEdges",
    "WholeGraph",
    "WholeGraphDataModule",
    "WholeGraphFederation",
    "WholeGraphLoader",
    "authors_label_skew",
    "authors_partition",
    "diffused",
    "dirichlet",
    "dirichlet_shards",
    "emd_shards",
    "hetero_statistics",
    "label_emd",
    "label_skew",
    "louvain",
    "metis",
    "partition_of",
    "partition_statistics",
    "random_edge_types",
    "random_edges",
    "read_hetero",
    "read_hetero_clients",
    "read_nodes",
    "read_tu",
    "sample_egos",
    "shards",
    "stratified_split",
    "weighted_emd",
]
