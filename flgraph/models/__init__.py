"""LightningModules, one paper's model per file; no federation."""

from flgraph.models.base import OptimizerName
from flgraph.models.classifier import Classifier
from flgraph.models.graphs.classifier import GraphClassifier
from flgraph.models.graphs.fedssp import FedSSP
from flgraph.models.graphs.fedstar import FedStar
from flgraph.models.graphs.fedstar_wl import FedStarWL
from flgraph.models.graphs.gnn import GNN
from flgraph.models.hetero.gat import HeteroGAT
from flgraph.models.hetero.links import LinkPredictor
from flgraph.models.hetero.rgcn import RGCN
from flgraph.models.hetero.spread import SpreadRGCN
from flgraph.models.nodes.adafgl import AdaFGL, Knowledge
from flgraph.models.nodes.dgi import DGI
from flgraph.models.nodes.fedego import EgoHead, FedEgo, MashedEgoGraphs
from flgraph.models.nodes.fggp import FGGP
from flgraph.models.nodes.gcn import NeighbourSums, NodeGCN
from flgraph.models.nodes.gnn import NodeGNN
from flgraph.models.nodes.links import NodeLinks
from flgraph.models.nodes.masked import MaskedGCN
from flgraph.models.nodes.sage import NeighGenSAGE, NodeSAGE
from flgraph.models.unsupervised.base import Encoded, GraphEmbedding
from flgraph.models.unsupervised.fclg import FCLG
from flgraph.models.unsupervised.infograph import InfoGraph
from flgraph.models.unsupervised.mvgrl import MVGRL

__all__ = [
    "DGI",
    "FCLG",
    "FGGP",
    "GNN",
    "MVGRL",
    "RGCN",
    "AdaFGL",
    "Classifier",
    "EgoHead",
    "Encoded",
    "FedEgo",
    "FedSSP",
    "FedStar",
    "FedStarWL",
    "GraphClassifier",
    "GraphEmbedding",
    "HeteroGAT",
    "InfoGraph",
    "Knowledge",
    "LinkPredictor",
    "MashedEgoGraphs",
    "MaskedGCN",
    "NeighGenSAGE",
    "NeighbourSums",
    "NodeGCN",
    "NodeGNN",
    "NodeLinks",
    "NodeSAGE",
    "OptimizerName",
    "SpreadRGCN",
]
