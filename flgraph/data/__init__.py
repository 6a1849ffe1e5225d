"""Graphs, their readers, loaders and partitions, and the data of federations; imports no algorithm."""

from flgraph.data.graphs.batching import GraphLoader
from flgraph.data.graphs.clients import GraphClients
from flgraph.data.graphs.container import FlatGraphs
from flgraph.data.graphs.datamodule import GraphDataModule, ViewDataModule
from flgraph.data.graphs.diffusion import Diffusion, diffused
from flgraph.data.graphs.federation import GraphFederation, TUFederation
from flgraph.data.graphs.partition import (
    dirichlet_shards,
    emd_shards,
    label_emd,
    shards,
    sorted_shards,
    weighted_emd,
)
from flgraph.data.graphs.partitioned import PartitionedGraphFederation
from flgraph.data.graphs.readers import read_tu
from flgraph.data.graphs.synthetic import SyntheticFederation
from flgraph.data.graphs.weighted import WeightedEdges
from flgraph.data.hetero.batching import HeteroLoader, LinkLoader
from flgraph.data.hetero.clients import HeteroClients
from flgraph.data.hetero.container import HeteroGraph
from flgraph.data.hetero.datamodule import HeteroDataModule, HeteroFederation
from flgraph.data.hetero.links import HeteroLinkDataModule
from flgraph.data.hetero.partition import HeteroPartition, random_edge_types, random_edges
from flgraph.data.hetero.readers import read_hetero
from flgraph.data.hetero.schema import reordered, with_reverse, without_reverse
from flgraph.data.nodes.batching import EgoLoader, WholeGraphLoader, sample_ego_graphs
from flgraph.data.nodes.clients import NodeClients
from flgraph.data.nodes.communities import louvain, louvain_balanced, louvain_plus, metis, metis_plus
from flgraph.data.nodes.container import NodeGraph
from flgraph.data.nodes.datamodule import NodeDataModule, NodeFederation
from flgraph.data.nodes.generated import generate_nodes
from flgraph.data.nodes.links import LinkDataModule
from flgraph.data.nodes.partition import ClientNodes, NodePartition, dirichlet, label_skew
from flgraph.data.nodes.readers import read_nodes
from flgraph.data.nodes.sampled import SampledLoader, sample_neighbours
from flgraph.data.nodes.skew import feature_skew, natural, topology_skew
from flgraph.data.nodes.whole_graph import WholeGraphDataModule, WholeGraphFederation
from flgraph.data.splits import stratified_split
from flgraph.data.statistics import hetero_statistics, partition_statistics
from flgraph.nn.batches import EgoBatch, HeteroBatch, LinkBatch, WholeGraph

__all__ = [
    "ClientNodes",
    "Diffusion",
    "EgoBatch",
    "EgoLoader",
    "FlatGraphs",
    "GraphClients",
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
    "LinkDataModule",
    "LinkLoader",
    "NodeClients",
    "NodeDataModule",
    "NodeFederation",
    "NodeGraph",
    "NodePartition",
    "PartitionedGraphFederation",
    "SampledLoader",
    "SyntheticFederation",
    "TUFederation",
    "ViewDataModule",
    "WeightedEdges",
    "WholeGraph",
    "WholeGraphDataModule",
    "WholeGraphFederation",
    "WholeGraphLoader",
    "diffused",
    "dirichlet",
    "dirichlet_shards",
    "emd_shards",
    "feature_skew",
    "generate_nodes",
    "hetero_statistics",
    "label_emd",
    "label_skew",
    "louvain",
    "louvain_balanced",
    "louvain_plus",
    "metis",
    "metis_plus",
    "natural",
    "partition_statistics",
    "random_edge_types",
    "random_edges",
    "read_hetero",
    "read_nodes",
    "read_tu",
    "reordered",
    "sample_ego_graphs",
    "sample_neighbours",
    "shards",
    "sorted_shards",
    "stratified_split",
    "topology_skew",
    "weighted_emd",
    "with_reverse",
    "without_reverse",
]
