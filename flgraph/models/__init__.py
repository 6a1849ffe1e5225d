"""LightningModules, one paper's model per file; no federation."""

from flgraph.models.classifier import GraphClassifier, OptimizerName
from flgraph.models.fedstar import FedStar
from flgraph.models.gnn import GNN

__all__ = ["GNN", "FedStar", "GraphClassifier", "OptimizerName"]
