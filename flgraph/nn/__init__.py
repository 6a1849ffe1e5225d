"""Layers and functions that the models are made of; plain torch, no federation."""

from flgraph.nn.batch_norm import BatchNorm
from flgraph.nn.conv import ConvName, check_conv, make_conv
from flgraph.nn.conv.ego import EgoSAGEConv, children_mean
from flgraph.nn.conv.gcn import DiffusedConv, GCNConv, SparseGCNConv
from flgraph.nn.conv.gin import GINConv
from flgraph.nn.conv.rgcn import BasisRGCNConv, RelationMean, RGCNConv, basis_product
from flgraph.nn.conv.sage import SAGEConv, SparseSAGEConv
from flgraph.nn.conv.typed import BasisWeights, TypedAttentionConv, typed_linear
from flgraph.nn.dropout import Dropout, dropout, relu_dropout
from flgraph.nn.encoders import GCNEncoder, GINEncoder, NormName, Projection
from flgraph.nn.kernels import leave_one_out_ridge, wl_kernel
from flgraph.nn.linear import ConcatLinear, OneHot, SparseLinear, concat_linear, fold
from flgraph.nn.losses import (
    Similarity,
    instance_contrast,
    jsd_contrast,
    model_contrast,
    softmax_distillation,
    squared_distillation,
)
from flgraph.nn.neighgen import FeatureGenerator, ImpairedGraph, NeighGen
from flgraph.nn.pool import PoolName, graph_pool
from flgraph.nn.precision import at_least_float32
from flgraph.nn.sparse.adjacency import Adjacency
from flgraph.nn.sparse.csr import sparse_matmul, transpose_csr
from flgraph.nn.sparse.norm import gcn_matrix, gcn_norm, inverse_sqrt
from flgraph.nn.sparse.relations import Relations
from flgraph.nn.sparse.twins import TwinAdjacency
from flgraph.nn.sparse.weighted import WeightedAdjacency
from flgraph.nn.structure import degree_one_hot, random_walk_return, structure_embedding
from flgraph.nn.tanh import tanh

__all__ = [
    "Adjacency",
    "BasisRGCNConv",
    "BasisWeights",
    "BatchNorm",
    "ConcatLinear",
    "ConvName",
    "DiffusedConv",
    "Dropout",
    "EgoSAGEConv",
    "FeatureGenerator",
    "GCNConv",
    "GCNEncoder",
    "GINConv",
    "GINEncoder",
    "ImpairedGraph",
    "NeighGen",
    "NormName",
    "OneHot",
    "PoolName",
    "Projection",
    "RGCNConv",
    "RelationMean",
    "Relations",
    "SAGEConv",
    "Similarity",
    "SparseGCNConv",
    "SparseLinear",
    "SparseSAGEConv",
    "TwinAdjacency",
    "TypedAttentionConv",
    "WeightedAdjacency",
    "at_least_float32",
    "basis_product",
    "check_conv",
    "children_mean",
    "concat_linear",
    "degree_one_hot",
    "dropout",
    "fold",
    "gcn_matrix",
    "gcn_norm",
    "graph_pool",
    "instance_contrast",
    "inverse_sqrt",
    "jsd_contrast",
    "leave_one_out_ridge",
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
    "wl_kernel",
]
