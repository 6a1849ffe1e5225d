"""FedAvg and FedProx with schema matching as FedHGN's published code runs them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flgraph.callbacks import SchemaFedAvg


class PublishedSchemaFedAvg(SchemaFedAvg):
    """Clients that lack a relation count with the mean of the round before.

    Every client of the published code has weights for all relations, and sends back untouched those that its graph
    lacks. The fewer have a relation, the slower its mean then moves.
    """

    def relation_means(
        self, relations: Mapping[str, Mapping[str, Tensor]], weights: Mapping[str, float]
    ) -> dict[str, Tensor]:
        means = super().relation_means(relations, weights)
        for name, mean in means.items():
            having = sum(weights[client] for client, own in relations.items() if name in own)
            means[name] = torch.lerp(self._relations[name], mean, having / sum(weights.values()))
        return means
