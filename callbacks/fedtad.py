"""FedTAD: Zhu et al., "Topology-aware Data-free Knowledge Distillation for Subgraph Federated Learning", IJCAI 2024."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from scipy import sparse
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from flgraph.callbacks.fedavg import FedAvg
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_between, expect_count, expect_tensor
from flgraph.federation.routes import UploadKind
from flgraph.federation.seeding import derive_seed, seed_all
from flgraph.federation.server_model import optimizer_state, restored_optimizer
from flgraph.federation.template import as_template
from flgraph.federation.values import LARGEST_INTEGER
from flgraph.nn import random_walk_return
from flgraph.nn.batches import WholeGraph
from flgraph.nn.distillation import NodeGenerator, diversity_loss, nearest_graph

_RELIABILITY = "reliability"
"""Group of the tensor that is no part of the model."""

_MOST = 1_000_000
_NOISE = 32

Tensors = Mapping[str, Tensor]


class FedTAD(FedAvg):
    r"""FedAvg whose mean then learns from each client's model what that client knows well, on graphs made up for it.

    A client :math:`k` sends, beside weights, how reliable its knowledge of each class :math:`c` is,

    .. math::
        \Phi_{kc} = \sum_{i \in \mathrm{train}_k, y_i = c} \frac{1}{|\mathcal{N}_i| + 1}
        \sum_{j \in \mathcal{N}_i \cup \{i\}} \cos(e_i, e_j),

    where :math:`e_i` are a node's features and its probabilities to be back after random walks of 1 to ``walk_length``
    steps. The server divides by the sum over clients, and after the average (:math:`\theta`) does ``epochs`` times

    - a step of a generator, which makes ``num_nodes`` nodes of noise :math:`z` and classes :math:`y` and joins each
      with the nearest of them, along
      :math:`\lambda_1 L_{\mathrm{sem}} - L_{\mathrm{div}} + \lambda_2 K L_{\mathrm{dvs}}`, so that clients' models see
      the classes (:math:`L_{\mathrm{sem}}`), the mean sees something else (:math:`L_{\mathrm{div}}`), and nodes
      differ (:func:`~flgraph.nn.distillation.diversity_loss`, for each of :math:`K` clients);
    - ``steps`` steps of the mean along :math:`L_{\mathrm{div}}` on such a graph,

    with :math:`L_{\mathrm{sem}} = \sum_k \sum_c \Phi_{kc} \frac{1}{n_c} \sum_{y_i = c} \mathrm{CE}(f_k(i), c)` and
    :math:`L_{\mathrm{div}} = \sum_k \sum_c \Phi_{kc} \frac{1}{n_c} \sum_{y_i = c} \lvert f_\theta(i) - f_k(i) \rvert`,
    means over logits. Generator and both optimizers (Adam) go on over rounds. Formulas are the published code's, but
    for the random walks: there the numbers of the nodes that walks visit are appended to features, which depend on how
    nodes are numbered, and the walks see no edge. Where a round's distillation gives something that is not finite, the
    mean stays as it was.

    What is sent beside weights tells about how many training nodes of each class a client has.

    Goes with models that take whole graphs and whose every tensor is shared, such as :class:`flgraph.models.NodeGCN`,
    and data such as :class:`flgraph.data.WholeGraphFederation`.

    Args:
        epochs: turns of generator and mean in a round.
        steps: of the mean in each.
        num_nodes: that the generator makes.
        neighbours: nearest nodes that each is joined with, itself among them.
        semantic: :math:`\lambda_1`.
        diversity: :math:`\lambda_2`.
        generator_lr: learning rate of the generator.
        server_lr: learning rate of the mean.
        weight_decay: of both.
        walk_length: of random walks.
        kwargs: see :class:`FedAvg`.
    """

    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {f"{_RELIABILITY}/classes": "data"}
    upload_scalars = ("num_samples", "in_channels", "num_classes")
    common_scalars = ("in_channels", "num_classes")
    needs_classes = True
    server_attributes: Sequence[str] = ("_learned", "_losses")

    def __init__(
        self,
        epochs: int = 5,
        steps: int = 5,
        num_nodes: int = 100,
        neighbours: int = 5,
        semantic: float = 1.0,
        diversity: float = 1.0,
        generator_lr: float = 1e-3,
        server_lr: float = 1e-3,
        weight_decay: float = 5e-4,
        walk_length: int = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        counts = {"epochs": epochs, "steps": steps, "num_nodes": num_nodes, "walk_length": walk_length}
        for name, count in counts.items():
            expect(count >= 1, f"aggregator.{name}", "1 or more", count)
        expect(1 <= neighbours <= num_nodes, "aggregator.neighbours", f"from 1 to {num_nodes}", neighbours)
        numbers = {"semantic": semantic, "diversity": diversity, "generator_lr": generator_lr}
        for name, value in {**numbers, "server_lr": server_lr, "weight_decay": weight_decay}.items():
            expect(0 <= value < math.inf, f"aggregator.{name}", "a finite number, 0 or more", value)
        self.epochs, self.steps, self.num_nodes, self.neighbours = epochs, steps, num_nodes, neighbours
        self.semantic, self.diversity, self.walk_length = semantic, diversity, walk_length
        self.generator_lr, self.server_lr, self.weight_decay = generator_lr, server_lr, weight_decay
        self._learned: dict[str, Any] = {}  # the generator and the states of both optimizers, after the first round
        self._losses: dict[str, float] = {}
        self._reliability: Tensor | None = None  # the client half's, once it was worked out

    # ----------------------------------------------------------------------------------------------- server half
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        super().start(initial, clients)
        as_template(self.template)  # or else a mistake shows after the first round

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Weights, sizes that a model can be made of, and a number for each class."""
        self.check_shared(client, upload)
        field = f"upload` of client `{client}"
        for name in self.common_scalars:
            expect_count(upload, name, 1, _MOST, field)
        classes = int(upload.scalars["num_classes"])
        with torch.random.fork_rng(devices=()), torch.device("meta"):  # what it draws is for nothing
            made = self.make_model({name: int(upload.scalars[name]) for name in self.common_scalars}).state_dict()
        strange = [name for name, own in self.shared.items() if name in made and made[name].shape != own.shape]
        wanted = "with the `in_channels` and `num_classes` that the shared weights have"
        expect(not strange, field, wanted, f"others, of another `{''.join(strange[:1])}`")
        told = expect_tensor(upload.group(_RELIABILITY), "classes", (classes,), field, torch.float32)
        expect_between(told, 0, LARGEST_INTEGER, "reliability", field)

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        mean = super().aggregate(uploads, round, exchange)
        if not uploads:
            return mean
        told = next(iter(uploads.values())).scalars
        model = self.make_model({name: told[name] for name in self.common_scalars})
        differing = sorted(model.state_dict().keys() ^ mean.keys())
        wanted = "one without features of edges whose every tensor all clients share, for FedTAD,"
        expect(not differing, "model", wanted, differing[:5])
        trust = torch.stack([uploads[client].group(_RELIABILITY)["classes"] for client in sorted(uploads)])
        trust = trust / trust.sum(dim=0).clamp(min=1e-12)
        like = model.state_dict()  # float32, whatever the precision at the clients
        sent = [uploads[client].group() for client in sorted(uploads)]
        own = [{name: each[name].to(like[name].dtype) for name in like if name in each} for each in sent]
        return self._distil(model, mean, own, trust, round)

    def _distil(
        self, model: pl.LightningModule, mean: Tensors, own: Sequence[Tensors], trust: Tensor, round: int
    ) -> Tensors:
        """The mean after it learned from the clients' models; as it was where that gives something not finite.

        Args:
            model: any model of theirs.
            mean: the average of their tensors.
            own: their tensors.
            trust: how much each counts for each class ``[clients, num_classes]``.
            round: for the seed of what is drawn.
        """
        model.load_state_dict(dict(mean))
        features, classes = int(model.hparams["in_channels"]), trust.size(1)
        seed_all(derive_seed(self.seed, "distillation", round))
        generator = NodeGenerator(_NOISE, classes, features)
        learners = {
            "generator": torch.optim.Adam(generator.parameters(), self.generator_lr, weight_decay=self.weight_decay),
            "mean": torch.optim.Adam(model.parameters(), self.server_lr, weight_decay=self.weight_decay),
        }
        if self._learned:
            generator.load_state_dict(self._learned["weights"])
            for name, optimizer in learners.items():
                optimizer.load_state_dict(copy.deepcopy(restored_optimizer(self._learned[name])))  # it writes to it
        y = torch.arange(self.num_nodes).remainder(classes).sort().values
        share = trust[:, y] / torch.bincount(y, minlength=classes)[y]  # [clients, nodes]
        with torch.enable_grad():
            for _ in range(self.epochs):
                noise = torch.randn(self.num_nodes, _NOISE)
                self._teach_generator(generator, learners["generator"], noise, y, share, model, own)
                with torch.no_grad():
                    graph = self._graph(generator(noise, y), y)
                    targets = [_logits(model.eval(), tensors, graph) for tensors in own]
                model.train()
                for _ in range(self.steps):
                    apart = _disagreement(model(graph), targets, share)
                    _step(learners["mean"], apart)
                    self._losses["distillation_loss"] = float(apart.detach())
        weights = {name: tensor.detach().clone() for name, tensor in generator.state_dict().items()}
        distilled = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        moments = [moment for own in learners.values() for state in own.state.values() for moment in state.values()]
        if not all(bool(tensor.isfinite().all()) for tensor in (*weights.values(), *distilled.values(), *moments)):
            return mean
        states = {name: optimizer_state(optimizer) for name, optimizer in learners.items()}
        self._learned = {"weights": weights, **states}
        return distilled

    def _teach_generator(
        self,
        generator: NodeGenerator,
        optimizer: torch.optim.Optimizer,
        noise: Tensor,
        y: Tensor,
        share: Tensor,
        model: pl.LightningModule,
        own: Sequence[Tensors],
    ) -> None:
        model.eval()
        x = generator(noise, y)
        graph = self._graph(x, y)
        seen = [_logits(model, tensors, graph) for tensors in own]
        logits: Any = zip(share, seen, strict=True)
        semantic = torch.stack([(row * F.cross_entropy(out, y, reduction="none")).sum() for row, out in logits]).sum()
        apart = _disagreement(model(graph), [out.detach() for out in seen], share)
        diverse = len(own) * diversity_loss(noise, x)
        loss = self.semantic * semantic - apart + self.diversity * diverse
        _step(optimizer, loss)
        self._losses["generator_loss"] = float(loss.detach())

    def _graph(self, x: Tensor, y: Tensor) -> WholeGraph:
        nodes = torch.arange(len(x))
        return WholeGraph(x, nearest_graph(x, self.neighbours), nodes, nodes, y)

    def log_scalars(self) -> Mapping[str, float]:
        return {name: value for name, value in self._losses.items() if math.isfinite(value)}

    # ----------------------------------------------------------------------------------------------- client half
    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        own, sizes = super().upload(client, round, exchange), client.data.model_args
        assert own is not None
        if self._reliability is None:
            self._reliability = class_reliability(client.data, self.walk_length)
        told = {name: sizes[name] for name in self.common_scalars}
        return Payload({**own.tensors, _RELIABILITY: {"classes": self._reliability}}, {**own.scalars, **told})


def class_reliability(data: Any, walk_length: int) -> Tensor:
    """How reliable knowledge of each class is: the client's row of Phi, not below 0, ``[num_classes]`` float32.

    Args:
        data: with ``graph``, a :class:`~flgraph.data.NodeGraph`, and ``train``.
        walk_length: of random walks.

    Raises:
        InputError: the data is of another kind.
    """
    from sklearn.preprocessing import normalize  # loads slowly

    fits = all(hasattr(data, name) for name in ("graph", "train"))
    expect(fits, "data", "of nodes, such as flgraph.data.WholeGraphFederation,", type(data).__name__)
    graph, train = data.graph.to("cpu"), data.train.cpu()
    n = graph.num_nodes
    ends = torch.tensor([0, n]), torch.tensor([0, graph.edge_index.size(1)])
    walks = random_walk_return(graph.edge_index, *ends, walk_length)
    x = graph.x
    if graph.is_sparse:
        x = sparse.csr_matrix((x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy()), x.shape)
    rows = normalize(sparse.hstack([sparse.csr_matrix(x), sparse.csr_matrix(walks.numpy())], format="csr"))
    ones = torch.ones(graph.col.numel())
    adjacency = sparse.csr_matrix((ones.numpy(), graph.col.numpy(), graph.rowptr.numpy()), (n, n))
    index = train.numpy()
    cosines = torch.from_numpy((adjacency[index] @ rows).multiply(rows[index]).sum(axis=1)).flatten()
    each = (cosines + 1) / (graph.degree[train] + 1)  # a node is like itself
    sums = torch.zeros(graph.num_classes, dtype=torch.float64).index_add_(0, graph.y[train], each.double())
    return sums.clamp(min=0).float()


def _logits(model: pl.LightningModule, tensors: Tensors, graph: WholeGraph) -> Tensor:
    """What a client's model makes of a graph."""
    call: Callable[..., Tensor] = functional_call
    return call(model, dict(tensors), (graph,))


def _disagreement(logits: Tensor, others: Sequence[Tensor], share: Tensor) -> Tensor:
    """The weighted mean over nodes, summed over clients, of mean absolute differences of logits."""
    return torch.stack([row @ (logits - out).abs().mean(dim=1) for row, out in zip(share, others, strict=True)]).sum()


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
