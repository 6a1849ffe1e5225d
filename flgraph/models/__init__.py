"""LightningModules, one paper's model per file; no federation."""

from flgraph.models.classifier import Classifier, OptimizerName
from flgraph.models.fedego import EgoHead, FedEgo, MashedEgos
from flgraph.models.fedhgn import RGCN
from flgraph.models.fedstar import FedStar
from flgraph.models.gcn_node import KnownNeighbours, NodeGCN
from flgraph.models.gnn import GNN
from flgraph.models.graph_classifier import GraphClassifier

__all__ = [
    "GNN",
    "RGCN",
    "Classifier",
    "EgoHead",
    "FedEgo",
    "FedStar",
    "GraphClassifier",
    "KnownNeighbours",
    "MashedEgos",
    "NodeGCN",
    "OptimizerName",
]
