"""Loaders, partitioners and batching; knows no algorithm."""

from flgraph.data.graphs.batching import GraphLoader
from flgraph.data.graphs.container import FlatGraphs
from flgraph.data.graphs.datamodule import GraphDataModule, GraphFederation, TUFederation
from flgraph.data.graphs.diffusion import Diffusion, diffused
from flgraph.data.graphs.partition import emd_shards, label_emd, weighted_emd
from flgraph.data.graphs.partitioned import DealtGraphFederation, ViewDataModule
from flgraph.data.graphs.readers import read_tu
from flgraph.data.graphs.synthetic import SyntheticFederation
from flgraph.data.graphs.weighted import WeightedEdges
from flgraph.data.hetero.container import HeteroGraph
from flgraph.data.hetero.datamodule import HeteroClients, HeteroDataModule, HeteroFederation, HeteroLoader
from flgraph.data.hetero.links import HeteroLinkDataModule, LinkLoader
from flgraph.data.hetero.partition import (
    HeteroPartition,
    hetero_statistics,
    partition_of,
    random_edge_types,
    random_edges,
)
from flgraph.data.hetero.readers import read_hetero, read_hetero_clients
from flgraph.data.nodes.batching import EgoLoader, sample_ego_graphs
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.datamodule import NodeDataModule, NodeFederation
from flgraph.data.nodes.partition import (
    ClientNodes,
    NodePartition,
    dirichlet,
    label_skew,
    louvain,
    metis,
    partition_statistics,
)
from flgraph.data.nodes.readers import read_nodes
from flgraph.data.nodes.whole_graph import WholeGraphDataModule, WholeGraphFederation, WholeGraphLoader
from flgraph.data.splits import dirichlet_shards, shards, stratified_split
from flgraph.nn.batches import EgoBatch, HeteroBatch, LinkBatch, WholeGraph
from flgraph.reproduce.fedego.published import authors_label_skew
from flgraph.reproduce.fedhgn.published import authors_partition

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
    "sample_ego_graphs",
    "shards",
    "stratified_split",
    "weighted_emd",
]
