"""The feature-structure decoupled network of FedStar."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from flgraph.models.base import expect_sizes
from flgraph.models.graphs.classifier import GraphClassifier
from flgraph.nn import ConcatLinear, ConvName, OneHot, check_conv, concat_linear, make_conv


class Channel(torch.nn.Module):
    """The layers of one channel: ``pre`` and, after it, ``convs``.

    Args:
        in_channels: columns of the raw input.
        hidden_channels: columns of every layer's output.
        conv_channels: columns of every convolution's input.
        num_layers: number of convolutions.
        conv: ``gin``, ``gcn`` or ``sage``.
    """

    def __init__(self, in_channels: int, hidden_channels: int, conv_channels: int, num_layers: int, conv: str) -> None:
        super().__init__()
        self.pre = torch.nn.Linear(in_channels, hidden_channels)
        self.convs = torch.nn.ModuleList(make_conv(conv, conv_channels, hidden_channels) for _ in range(num_layers))


class FedStar(GraphClassifier):
    r"""The feature-structure decoupled network of FedStar.

    `"Federated Learning on Non-IID Graphs via Structural Knowledge Sharing" <https://arxiv.org/abs/2211.13009>`_ (AAAI
    2023), Table 9.

    Features :math:`\mathbf{X}` and structure embeddings :math:`\mathbf{S}` go through a channel each. The structure
    channel never sees features, so it can be shared between clients whose features differ; its parameters are all those
    under ``structure.``, and no others.

    .. math::
        \mathbf{X}^{(0)} &= \mathrm{feature.pre}(\mathbf{X}), \qquad
        \mathbf{S}^{(0)} = \mathrm{structure.pre}(\mathbf{S}) \\
        \mathbf{X}^{(l)} &= \mathrm{dropout} \big( \mathrm{ReLU} \big( \mathrm{GIN}_l
        ([\mathbf{X}^{(l-1)} \,\Vert\, \mathbf{S}^{(l-1)}]) \big) \big) \\
        \mathbf{S}^{(l)} &= \tanh \big( \mathrm{GCN}_l (\mathbf{S}^{(l-1)}) \big) \\
        \mathbf{h}_G &= \sum_{i \in G} \mathrm{mix}([\mathbf{x}^{(L)}_i \,\Vert\, \mathbf{s}^{(L)}_i]) \\
        \hat{y} &= \mathrm{readout}(\mathrm{dropout}(\mathrm{ReLU}(\mathrm{post}(\mathbf{h}_G))))

    Args:
        in_channels: columns of the node features; -1: given by the data.
        num_classes: number of classes; -1: given by the data.
        structure_channels: columns of the structure embedding; -1: given by the data.
        feature_conv: convolution of the feature channel: ``gin``, ``gcn`` or ``sage``.
        structure_conv: convolution of the structure channel: ``gcn``, ``gin`` or ``sage``.
        kwargs: see :class:`~flgraph.models.GraphClassifier`; there is no dropout in the structure channel.

    Shapes:
        - **input:** a PyG batch of ``N`` nodes and ``B`` graphs, see :class:`~flgraph.models.GraphClassifier`, with
          ``s [N, structure_channels]``
        - **output:** logits ``[B, num_classes]``

    Raises:
        InputError: a hyper-parameter or a batch cannot be used.
    """

    data_sizes: ClassVar[tuple[str, ...]] = ("in_channels", "num_classes", "structure_channels")

    def __init__(
        self,
        in_channels: int = -1,
        num_classes: int = -1,
        structure_channels: int = -1,
        feature_conv: ConvName = "gin",
        structure_conv: ConvName = "gcn",
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, num_classes, **kwargs)
        expect_sizes(structure_channels=structure_channels)
        check_conv(feature_conv, "model.feature_conv")
        check_conv(structure_conv, "model.structure_conv")
        self.structure_channels = structure_channels
        if self.is_template:
            return
        hidden_channels, num_layers = self.hidden_channels, self.num_layers
        both = 2 * hidden_channels
        self.feature = Channel(in_channels, hidden_channels, both, num_layers, feature_conv)
        self.structure = Channel(structure_channels, hidden_channels, hidden_channels, num_layers, structure_conv)
        self.mix = ConcatLinear(both, hidden_channels)
        self.add_head()

    def encode_graphs(self, batch: Data) -> Tensor:
        """One row per graph ``[B, hidden_channels]``."""
        x: Tensor | OneHot = self.features(batch)
        s = self.node_input(batch, "s", self.structure_channels)
        adj = self.neighbours(batch)
        after = self.dropout.activation
        # The first layer's convolutions take the linear maps before them along.
        feature_pre: tuple[torch.nn.Linear, ...] = (self.feature.pre, self.structure.pre)
        structure_pre: tuple[torch.nn.Linear, ...] = (self.structure.pre,)
        for feature_conv, structure_conv in zip(self.feature.convs, self.structure.convs, strict=True):
            # Both read the structure channel of the layer before.
            h = feature_conv(x, adj, s, before=feature_pre, activation=after)
            h = h if after != "none" else self.dropout(h, rectify=True)
            x, s = h, structure_conv(s, adj, before=structure_pre, activation="tanh")
            feature_pre = structure_pre = ()
        if self.pool == "max":
            return self.pool_nodes(batch, self.mix(h, s))[0]
        # Sums and means commute with `mix`, and there are many more nodes than graphs, so nodes are pooled first. Only
        # the bias needs care: it is added once per node, so it is multiplied by the pooled number one.
        h, s, ones = self.pool_nodes(batch, h, s, h.new_ones(h.size(0), 1))
        return torch.addcmul(concat_linear(h, s, self.mix.weight), ones, self.mix.bias)
