"""Federated algorithms, one per file, and whatever else listens to rounds; installed as ``flgraph.callbacks``."""

from flgraph.callbacks.adafgl import AdaFGL
from flgraph.callbacks.apfl import APFL
from flgraph.callbacks.bad_clients import BadClients
from flgraph.callbacks.dfedgnn import DFedGNN
from flgraph.callbacks.ditto import Ditto
from flgraph.callbacks.early_stopping import EarlyStopping
from flgraph.callbacks.embeddings import EmbeddingPictures
from flgraph.callbacks.fclg import FCLG
from flgraph.callbacks.fedavg import FedAvg
from flgraph.callbacks.fedego import FedEgo
from flgraph.callbacks.fedgcn import FedGCN
from flgraph.callbacks.fedgta import FedGTA
from flgraph.callbacks.fedhgn import FedHGN
from flgraph.callbacks.fednova import FedNova
from flgraph.callbacks.fedopt import FedOpt
from flgraph.callbacks.fedper import FedPer
from flgraph.callbacks.fedproto import FedProto
from flgraph.callbacks.fedprox import FedProx
from flgraph.callbacks.fedprox_adaptive import FedProxAdaptive
from flgraph.callbacks.fedpub import FedPUB
from flgraph.callbacks.fedrep import FedRep
from flgraph.callbacks.fedsage import FedSage
from flgraph.callbacks.fedsageplus import FedSagePlus
from flgraph.callbacks.fedssp import FedSSP
from flgraph.callbacks.fedstar import FedStar
from flgraph.callbacks.fedtad import FedTAD
from flgraph.callbacks.fedthin import FedThin
from flgraph.callbacks.fggp import FGGP
from flgraph.callbacks.gcfl import GCFL
from flgraph.callbacks.gcflplus import GCFLPlus
from flgraph.callbacks.graphfl import GraphFL
from flgraph.callbacks.local import Local
from flgraph.callbacks.moon import MOON
from flgraph.callbacks.noisy_clients import NoisyClients
from flgraph.callbacks.predicted_labels import PredictedLabels
from flgraph.callbacks.record_noise import RecordNoise
from flgraph.callbacks.scaffold import SCAFFOLD
from flgraph.callbacks.schemafedavg import SchemaFedAvg
from flgraph.callbacks.stragglers import Stragglers

__all__ = [
    "APFL",
    "FCLG",
    "FGGP",
    "GCFL",
    "MOON",
    "SCAFFOLD",
    "AdaFGL",
    "BadClients",
    "DFedGNN",
    "Ditto",
    "EarlyStopping",
    "EmbeddingPictures",
    "FedAvg",
    "FedEgo",
    "FedGCN",
    "FedGTA",
    "FedHGN",
    "FedNova",
    "FedOpt",
    "FedPUB",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedProxAdaptive",
    "FedRep",
    "FedSSP",
    "FedSage",
    "FedSagePlus",
    "FedStar",
    "FedTAD",
    "FedThin",
    "GCFLPlus",
    "GraphFL",
    "Local",
    "NoisyClients",
    "PredictedLabels",
    "RecordNoise",
    "SchemaFedAvg",
    "Stragglers",
]
