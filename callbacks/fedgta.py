"""FedGTA: Li et al., "FedGTA: Topology-aware Averaging for Federated Graph Learning", VLDB 2024."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks.gcfl import cosine_similarity
from flgraph.errors import expect
from flgraph.federation.aggregator import Aggregator
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_between, expect_tensor
from flgraph.federation.routes import Route, UploadKind, shared
from flgraph.nn import gcn_matrix
from flgraph.nn.propagation import MomentKind, column_moments, smoothing_confidence, spread_labels

_MOMENTS = "topology"
"""Group of the tensor that is no part of the model."""

_MOST = 2.0**53
_MOST_CLASSES = 100_000


class FedGTA(Aggregator):
    r"""Every client gets a mean of its own: over those whose labels spread alike, weighed by how sure these are.

    After its training a client predicts classes of all of its nodes, puts the true ones of training nodes in their
    place, and spreads them over its graph (:func:`~flgraph.nn.propagation.spread_labels`). Of the result's softmax
    :math:`S` (training nodes keep their one-hots) it sends the moments of each class, :math:`M`, and the local
    smoothing confidence :math:`H = \sum_i d_i \sum_c (e^{-1} + s_{ic} \log s_{ic})` of a softmax at a temperature,
    where :math:`d_i` is a node's number of neighbours. The server averages for client :math:`i`

    .. math::
        \bar w_i = \frac{\sum_{j \in \mathcal{I}_i} H_j w_j}{\sum_{j \in \mathcal{I}_i} H_j}, \qquad
        \mathcal{I}_i = \{ j : \cos(M_i, M_j) > \varepsilon \} \cup \{ i \}.

    The formulas are those of the published code (github xkLi-Allen/FedGTA), whose number and kind of moments and
    threshold differ between data sets; defaults are OpenFGL's. OpenFGL spreads the labels of training nodes alone.
    A client that sat a round out keeps the mean that it had. Where none of those who count has an edge, they count
    alike.

    What is sent beside weights are means over a client's nodes. As many raw moments as a client has nodes determine
    its soft labels, up to their order.

    Goes with models of classes of nodes, such as :class:`flgraph.models.NodeGCN`, and data with ``graph``, a
    :class:`~flgraph.data.NodeGraph`, and ``train``, such as :class:`flgraph.data.WholeGraphFederation`.

    Args:
        threshold: :math:`\varepsilon`; 1 lets everyone count for itself only, -1 all for everyone.
        num_moments: highest order.
        moments: ``"raw"``, ``"central"`` or ``"hybrid"``, both.
        steps: of spreading labels.
        alpha: share of the neighbours in a step.
        temperature: of the softmax by which clients are sure.
        kwargs: see :class:`~flgraph.federation.Aggregator`.
    """

    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {f"{_MOMENTS}/moments": "data"}
    upload_scalars = ("confidence",)
    needs_classes = True
    server_attributes: Sequence[str] = ("_models", "_counted")

    def __init__(
        self,
        threshold: float = 0.5,
        num_moments: int = 10,
        moments: MomentKind = "hybrid",
        steps: int = 5,
        alpha: float = 0.5,
        temperature: float = 20.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect(-1 <= threshold <= 1, "aggregator.threshold", "from -1 to 1", threshold)
        expect(num_moments >= 1, "aggregator.num_moments", "1 or more", num_moments)
        kinds = get_args(MomentKind)
        expect(moments in kinds, "aggregator.moments", f"one of {', '.join(kinds)}", moments)
        expect(steps >= 0, "aggregator.steps", "0 or more", steps)
        expect(0 <= alpha <= 1, "aggregator.alpha", "from 0 to 1", alpha)
        expect(0 < temperature < math.inf, "aggregator.temperature", "a positive, finite number", temperature)
        self.threshold, self.num_moments, self.moments = threshold, num_moments, moments
        self.steps, self.alpha, self.temperature = steps, alpha, temperature
        self._models: dict[str, Mapping[str, Tensor]] = {}  # what each client is sent
        self._counted: dict[str, list[str]] = {}  # whose mean that is

    def routes(self) -> list[Route]:
        return shared("*", on_mismatch="personal")

    # ----------------------------------------------------------------------------------------------- server half
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        self._models = dict.fromkeys(clients, initial)

    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        model = self._models[client]
        return self.payload((str(id(model)),), lambda: model) if model else None  # those with the same mean share it

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Weights, moments that can be compared, and a confidence that can be weighed by."""
        self.check_shared(client, upload)
        field = f"upload` of client `{client}"
        rows = self.num_moments * (2 if self.moments == "hybrid" else 1)
        moments = expect_tensor(upload.group(_MOMENTS), "moments", (rows, None), field, torch.float32)
        wanted = f"one with moments of 1 to {_MOST_CLASSES} classes"
        expect(1 <= moments.size(1) <= _MOST_CLASSES, field, wanted, moments.size(1))
        expect_between(moments, -1.001, 1.001, "moments", field)
        sure = upload.scalars.get("confidence")
        known = isinstance(sure, float) and 0 <= sure <= _MOST
        expect(known, field, "one with `confidence`, a number of 0 or more,", "something else")

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        tensors = {client: upload.group() for client, upload in uploads.items()}
        sure = {client: float(upload.scalars["confidence"]) for client, upload in uploads.items()}
        moments = {client: upload.group(_MOMENTS)["moments"].flatten() for client, upload in uploads.items()}
        means: dict[tuple[str, ...], Mapping[str, Tensor]] = {}
        for client in uploads:
            counted = self._alike(client, moments)
            weights = {other: sure[other] for other in counted}
            if not any(weights.values()):
                weights = dict.fromkeys(counted, 1.0)
            mean = partial(self.combine, {other: tensors[other] for other in counted}, weights)
            key = tuple(counted)
            means[key] = means[key] if key in means else mean()
            self._models[client], self._counted[client] = means[key], counted
        return {}  # nobody has a model of all

    def _alike(self, client: str, moments: Mapping[str, Tensor]) -> list[str]:
        """Who counts for a client; those with another number of classes do not."""
        own = moments[client]
        others = [other for other in sorted(moments) if moments[other].shape == own.shape]
        cosine = cosine_similarity([moments[other] for other in others])[others.index(client)]
        return [other for other, value in zip(others, cosine, strict=True) if value > self.threshold or other == client]

    def log_scalars(self) -> Mapping[str, float]:
        return {f"alike/{client}": float(len(counted)) for client, counted in self._counted.items()}

    def summary(self) -> dict[str, Any]:
        return {"alike": self._counted}

    # ----------------------------------------------------------------------------------------------- client half
    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        moments, sure = self.describe(client)
        return Payload({**client.shared_tensors(), _MOMENTS: {"moments": moments}}, {"confidence": sure})

    def describe(self, client: Client) -> tuple[Tensor, float]:
        """The moments ``[P, C]`` float32 and the confidence of a client's labels, as its model spreads them."""
        data: Any = client.data
        fits = all(hasattr(data, name) for name in ("graph", "train"))
        expect(fits, "data", "of nodes, such as flgraph.data.WholeGraphFederation,", type(data).__name__)
        soft = torch.cat(client.predict().batches).double().to(data.graph.y.device)
        known, classes = data.train, soft.size(1)
        truth = F.one_hot(data.graph.y[known], classes).double()
        soft[known] = truth
        spread = spread_labels(gcn_matrix(data.graph.adj), soft, known, self.steps, self.alpha)
        plain, warm = spread.softmax(dim=1), (spread / self.temperature).softmax(dim=1)
        plain[known] = warm[known] = truth
        degree = data.graph.degree
        return column_moments(plain, self.num_moments, self.moments).float(), smoothing_confidence(warm, degree)
