"""Layers and functions that the models are made of; plain torch, no federation."""

from flgraph.nn.adjacency import Adjacency
from flgraph.nn.contrast import (
    Similarity,
    instance_contrast,
    jsd_contrast,
    model_contrast,
    softmax_distillation,
    squared_distillation,
)
from flgraph.nn.conv import ConvName, check_conv, make_conv
from flgraph.nn.dropout import Dropout, dropout, relu_dropout
from flgraph.nn.ego import EgoSAGEConv, children_mean
from flgraph.nn.gcn import GCNConv, gcn_norm
from flgraph.nn.gin import GINConv
from flgraph.nn.gin_encoder import GINEncoder, NormName
from flgraph.nn.linear import ConcatLinear, OneHot, concat_linear, fold
from flgraph.nn.neighgen import FeatureGenerator, ImpairedGraph, NeighGen
from flgraph.nn.pool import Pool, PoolName, graph_max, graph_mean, graph_pool, graph_sum
from flgraph.nn.relations import Relations
from flgraph.nn.rgcn import BasisRGCNConv, RelationMean, RGCNConv, basis_product
from flgraph.nn.sage import SAGEConv, SparseSAGEConv
from flgraph.nn.sparse import SparseLinear, sparse_matmul, transpose_csr
from flgraph.nn.structure import degree_one_hot, random_walk_return, structure_embedding
from flgraph.nn.tanh import tanh
from flgraph.nn.twins import TwinAdjacency
from flgraph.nn.typed import BasisWeights, TypedAttentionConv, typed_linear
from flgraph.nn.weighted import WeightedAdjacency

__all__ = [
    "Adjacency",
    "BasisRGCNConv",
    "BasisWeights",
    "ConcatLinear",
    "ConvName",
    "Dropout",
    "EgoSAGEConv",
    "FeatureGenerator",
    "GCNConv",
    "GINConv",
    "GINEncoder",
    "ImpairedGraph",
    "NeighGen",
    "NormName",
    "OneHot",
    "Pool",
    "PoolName",
    "RGCNConv",
    "RelationMean",
    "Relations",
    "SAGEConv",
    "Similarity",
    "SparseLinear",
    "SparseSAGEConv",
    "TwinAdjacency",
    "TypedAttentionConv",
    "WeightedAdjacency",
    "basis_product",
    "check_conv",
    "children_mean",
    "concat_linear",
    "degree_one_hot",
    "dropout",
    "fold",
    "gcn_norm",
    "graph_max",
    "graph_mean",
    "graph_pool",
    "graph_sum",
    "instance_contrast",
    "jsd_contrast",
    "make_conv",
    "model_contrast",
    "random_walk_return",
    "relu_dropout",
    "softmax_distillation",
    "sparse_matmul",
    "squared_distillation",
    "structure_embedding",
    "tanh",
    "transpose_csr",
    "typed_linear",
]
