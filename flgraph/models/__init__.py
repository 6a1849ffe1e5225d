"""LightningModules, one paper's model per file; no federation."""

from flgraph.models.classifier import Classifier, OptimizerName
from flgraph.models.fclg import FCLG
from flgraph.models.fedego import EgoHead, FedEgo, MashedEgos
from flgraph.models.fedhgn import RGCN
from flgraph.models.fedstar import FedStar
from flgraph.models.gcn_node import KnownNeighbours, NodeGCN
from flgraph.models.gnn import GNN
from flgraph.models.graph_classifier import GraphClassifier
from flgraph.models.graph_embedding import Encoded, GraphEmbedding
from flgraph.models.hetero_gat import HeteroGAT
from flgraph.models.hetero_links import LinkPredictor
from flgraph.models.infograph import InfoGraph
from flgraph.models.mvgrl import MVGRL
from flgraph.models.sage_node import NeighGenSAGE, NodeSAGE

__all__ = [
    "FCLG",
    "GNN",
    "MVGRL",
    "RGCN",
    "Classifier",
    "EgoHead",
    "Encoded",
    "FedEgo",
    "FedStar",
    "GraphClassifier",
    "GraphEmbedding",
    "HeteroGAT",
    "InfoGraph",
    "KnownNeighbours",
    "LinkPredictor",
    "MashedEgos",
    "NeighGenSAGE",
    "NodeGCN",
    "NodeSAGE",
    "OptimizerName",
]
