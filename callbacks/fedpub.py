"""FED-PUB: Baek et al., "Personalized Subgraph Federated Learning", ICML 2023."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.fedprox import FedProx
from flgraph.callbacks.gcfl import cosine_similarity
from flgraph.callbacks.gradients import stepped
from flgraph.errors import expect, expect_kind
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_count, expect_tensor
from flgraph.federation.routes import Route, UploadKind, personal, shared
from flgraph.federation.seeding import derive_seed
from flgraph.models.nodes.masked import MaskedGCN
from flgraph.nn import Adjacency
from flgraph.nn.batches import WholeGraph
from flgraph.nn.modes import evaluating

_FUNCTION = "function"
"""Group of the tensor that is no part of the model."""

_MOST_BLOCKS = 1000


class FedPUB(FedProx):
    r"""Every client gets a mean of its own, over models that do alike on a random graph, and masks what it gets.

    Clients train weights :math:`\theta_i` and, at home, masks :math:`\mu_i`; layers use :math:`\theta_i \odot \mu_i`.
    They minimise :math:`L + \lambda \lVert \mu_i \rVert_1 + \frac{\mu}{2} \lVert \theta_i - \bar\theta_i \rVert_2^2`,
    where :math:`\bar\theta_i` is what the client was sent last. All run their models on one random graph
    :math:`\tilde G` and send the mean over its nodes of the second convolution's output, :math:`\tilde h_i`, beside
    their weights. The server averages for client :math:`i`

    .. math::
        \bar\theta_i = \sum_j \alpha_{ij} \theta_j, \qquad
        \alpha_{ij} = \frac{\exp(\tau \cos(\tilde h_i, \tilde h_j))}{\sum_k \exp(\tau \cos(\tilde h_i, \tilde h_k))}.

    :math:`\tilde G` has blocks of 100 nodes, of which any two in a block are joined with probability 0.1, and normally
    distributed features, as in the published code. Clients draw it from a seed that the server sends; the code sends
    the graph. A client that sat a round out keeps the mean that it had; one that never took part gets the mean over all
    by numbers of samples.

    In the published code the last two terms have no gradient, as they are made of detached tensors:
    ``sparsity=0, mu=0`` does the same. It has the norms themselves there, not the squared one.

    Goes with :class:`flgraph.models.MaskedGCN` and data whose batches are whole graphs, such as
    :class:`flgraph.data.WholeGraphFederation`.

    Args:
        temperature: :math:`\tau`; 0 lets all count alike. The published code has 3 and 10.
        sparsity: :math:`\lambda`, weight of the masks' length.
        mu: weight of the distance from what was sent; twice the paper's :math:`\lambda_2`.
        blocks: of the random graph.
        weighting: see :class:`FedAvg`; of the mean over all.
        kwargs: see :class:`FedAvg`.
    """

    network = "MaskedGCN"
    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {f"{_FUNCTION}/embedding": "data"}
    server_attributes: Sequence[str] = ("_models", "_weights")

    def __init__(
        self, temperature: float = 10.0, sparsity: float = 1e-3, mu: float = 2e-3, blocks: int = 5, **kwargs: Any
    ) -> None:
        super().__init__(mu, **kwargs)
        expect(0 <= temperature <= 100, "aggregator.temperature", "from 0 to 100", temperature)
        expect(0 <= sparsity < math.inf, "aggregator.sparsity", "a finite number, 0 or more", sparsity)
        expect(1 <= blocks <= _MOST_BLOCKS, "aggregator.blocks", f"from 1 to {_MOST_BLOCKS}", blocks)
        self.temperature, self.sparsity, self.blocks = temperature, sparsity, blocks
        self._models: dict[str, Mapping[str, Tensor]] = {}  # what each client is sent, once it has taken part
        self._weights: dict[str, dict[str, float]] = {}  # how much each of the others counts in it

    def routes(self) -> list[Route]:
        return [*personal("*.mask"), *shared("*", on_mismatch="personal")]

    # ----------------------------------------------------------------------------------------------- server half
    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        names = [name for name in self.owners[client] if name in self.shared]
        model = self._models.get(client) or {name: self.shared[name] for name in names}
        # Of 53 bits: scalars travel as JSON.
        return Payload(model, {"graph": derive_seed(self.seed, "random graph") % 2**53})

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Weights, the number of samples, and an embedding that can be compared."""
        self.check_shared(client, upload)
        expect_tensor(upload.group(_FUNCTION), "embedding", (None,), f"upload` of client `{client}", torch.float32)

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        tensors = {client: upload.group() for client, upload in uploads.items()}
        embeddings = {client: upload.group(_FUNCTION)["embedding"] for client, upload in uploads.items()}
        for client in uploads:
            weights = self._alike(client, embeddings)
            self._models[client] = self.combine({other: tensors[other] for other in weights}, weights)
            self._weights[client] = weights
        return super().aggregate(uploads, round, exchange) if uploads else {}

    def _alike(self, client: str, embeddings: Mapping[str, Tensor]) -> dict[str, float]:
        """How much others count for a client; those with embeddings of another length do not."""
        length = embeddings[client].numel()
        others = [other for other in sorted(embeddings) if embeddings[other].numel() == length]
        cosine = cosine_similarity([embeddings[other] for other in others])[others.index(client)]
        return dict(zip(others, (self.temperature * cosine).softmax(dim=0).tolist(), strict=True))

    def log_scalars(self) -> Mapping[str, float]:
        return {f"own_weight/{client}": weights[client] for client, weights in self._weights.items()}

    def summary(self) -> dict[str, Any]:
        return {"weights": self._weights}

    # ----------------------------------------------------------------------------------------------- client half
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Adds the gradients of both further terms."""
        super().on_before_optimizer_step(trainer, pl_module, optimizer)
        for name, parameter in stepped(pl_module, optimizer).items():
            if self.sparsity and name.endswith(".mask") and parameter.grad is not None:
                parameter.grad.add_(parameter.detach().sign(), alpha=self.sparsity)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        own = super().upload(client, round, exchange)
        assert own is not None
        return Payload({**own.tensors, _FUNCTION: {"embedding": self.function(client)}}, own.scalars)

    def function(self, client: Client) -> Tensor:
        """The mean of what the client's model makes of the random graph's nodes ``[hidden_channels]``, float32."""
        module = expect_kind(client.module, MaskedGCN, "model", "flgraph.models.MaskedGCN for FED-PUB")
        seed = expect_count(client.last_download, "graph", 0, 2**53, f"download` of client `{client.name}")
        batch = client.trainer.precision_plugin.convert_input(random_graph(self.blocks, module.in_channels, seed))
        with evaluating(module):
            return module.convolve(batch.to(module.device)).mean(dim=0).float()


def random_graph(blocks: int, in_channels: int, seed: int) -> WholeGraph:
    """Random graphs side by side, with normally distributed features; see :class:`FedPUB`.

    Args:
        blocks: how many.
        in_channels: columns of the features.
        seed: of all draws.
    """
    generator, size = torch.Generator().manual_seed(seed), 100
    count = blocks * size
    upper = (torch.rand(blocks, size, size, generator=generator) < 0.1).triu(1)
    block, source, target = (upper | upper.transpose(1, 2)).nonzero().t()
    edges = torch.stack([source, target]) + block * size
    x, nodes = torch.randn(count, in_channels, generator=generator), torch.arange(count)
    return WholeGraph(x, Adjacency.from_sorted(edges, count, symmetric=True), nodes, nodes, torch.zeros_like(nodes))
