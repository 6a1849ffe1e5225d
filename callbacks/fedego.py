"""FedEgo: Zhang et al., "FedEgo: Privacy-preserving Personalized Federated Graph Learning with Ego-graphs", 2022."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from flgraph.errors import InputError, brief, expect, expect_kind
from flgraph.federation.aggregator import Aggregator
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload, Scalar
from flgraph.federation.received import expect_between, expect_count, expect_group, expect_tensor
from flgraph.federation.routes import Route, UploadKind, personal, shared
from flgraph.federation.seeding import derive_seed, seed_all
from flgraph.federation.server_model import ServerModel, relative_distance, server_trainer
from flgraph.federation.template import as_template
from flgraph.federation.transforms.base import Draw, draw_key
from flgraph.models.nodes.fedego import EgoHead, MashedEgoGraphs
from flgraph.models.nodes.fedego import FedEgo as FedEgoNet
from flgraph.nn.batches import EgoBatch
from flgraph.nn.modes import evaluating

_EGO_GRAPHS = "ego_graphs"

_SETTINGS = ("hidden_channels", "num_layers", "linear", "ego", "dropout", "lr", "weight_decay", "optimizer")
"""Hyper-parameters of the clients' models that the server's layers have, too."""

_MOST_CLASSES = 100_000

_MOST_POSITIONS = 100_000
"""Nodes of an ego-graph."""


class FedEgo(Aggregator):
    r"""Averages reduction layers, and mixes personalization layers with a global model that the server trains (Alg. 1).

    Up go the reduction layers and mashed ego-graphs, one for each batch of a client's training nodes. The server
    averages the former without weights (Eq. 11), trains its own personalization layers on the latter (Eq. 10) and sends
    back both, with the label distribution :math:`P_g` of the mashed ego-graphs. Client :math:`i` mixes (Eq. 13-15)

    .. math::
        \Phi_i \leftarrow \lambda_i \Phi_g + (1 - \lambda_i) \Phi_i, \qquad
        \lambda_i = \Big( \frac{1}{2} \sum_c | P_i(c) - P_g(c) | \Big)^{\gamma},

    from its own weights after its last local training, however often it is evaluated. The client computes
    :math:`\lambda_i`; :math:`P_i` is not sent. **The soft labels of the mashed ego-graphs tell it all the same**: they
    are means over groups of training nodes that together are all of them, so the server can work out how many a client
    has of each class. That is so in the paper's method, and no ``noise`` changes it.

    Reported with evaluations: the coefficient (``mixing/lambda``), the distance it comes from (``mixing/emd``), and the
    weight divergence after mixing (``mixing/divergence``, Definition 4.2).

    Goes with :class:`flgraph.models.FedEgo`. The paper's ablations: ``mixing=0`` is "w/o PL", ``mixing=1``
    "FedEgo-Server", ``average_reduction=False`` "w/o RL", ``mixup=False`` "w/o Mixup"; "w/o EGO" and "Linear" are
    arguments of the model.

    Args:
        gamma: exponent of the adaptive mixing coefficient.
        mixing: a fixed coefficient for all clients; adaptive when ``None``.
        average_reduction: whether the reduction layers are averaged; they never leave the client if not.
        mixup: whether ego-graphs are averaged over a batch; otherwise the first one of each batch is sent as it is,
            which gives a node's embedding away.
        noise: standard deviation of Gaussian noise that clients add to the embeddings they send. It has no privacy
            budget. At a site it is drawn anew whenever something is sent, from the operating system.
        server_epochs: epochs that the server trains per round.
        server_fraction: share of the mashed ego-graphs that one of these epochs visits, drawn anew for each.
        server_batch_size: mashed ego-graphs per batch.
        server_lr: learning rate of the server; the clients' own when ``None``.
        server_accelerator: where the server trains, see :class:`pytorch_lightning.Trainer`.
        kwargs: see :class:`~flgraph.federation.Aggregator`; the server keeps its optimizer's state.
    """

    network = "FedEgo"
    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {f"{_EGO_GRAPHS}/*": "data"}
    server_attributes: Sequence[str] = ("_classes", "_labels", "_loss")
    client_attributes: Sequence[str] = ("_own",)
    upload_scalars = ("num_classes", "fanouts")
    common_scalars = ("num_classes", "fanouts")
    needs_classes = True
    reported_scalars = ("mixing/lambda", "mixing/emd", "mixing/divergence")

    def __init__(
        self,
        gamma: float = 0.5,
        mixing: float | None = None,
        average_reduction: bool = True,
        mixup: bool = True,
        noise: float = 0.0,
        server_epochs: int = 5,
        server_fraction: float = 0.2,
        server_batch_size: int = 32,
        server_lr: float | None = None,
        server_accelerator: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        expect(0 <= gamma < float("inf"), "aggregator.gamma", "a finite number, 0 or more", gamma)
        expect(mixing is None or 0 <= mixing <= 1, "aggregator.mixing", "from 0 to 1, or null for adaptive", mixing)
        expect(0 <= noise < float("inf"), "aggregator.noise", "a finite number, 0 or more", noise)
        for name, count in (("server_epochs", server_epochs), ("server_batch_size", server_batch_size)):
            expect(count >= 1, f"aggregator.{name}", "1 or more", count)
        expect(0 < server_fraction <= 1, "aggregator.server_fraction", "above 0 and at most 1", server_fraction)
        fits = server_lr is None or 0 < server_lr < float("inf")
        expect(fits, "aggregator.server_lr", "a finite number above 0, or null for the model's", server_lr)
        self.gamma, self.mixing, self.noise = gamma, mixing, noise
        self.average_reduction, self.mixup = average_reduction, mixup
        self.server_epochs, self.server_fraction = server_epochs, server_fraction
        self.server_batch_size, self.server_lr = server_batch_size, server_lr
        self.server_accelerator = server_accelerator
        self._classes = 0  # not known yet
        self._model: ServerModel | None = None
        self._labels = torch.zeros(0)
        self._loss = float("nan")
        self._own: dict[str, Tensor] = {}  # the client half's personalization layers after the last local training

    def routes(self) -> list[Route]:
        kept = [*personal("personalization.*"), *personal("*")]
        return [*shared("reduction.*"), *kept] if self.average_reduction else kept[1:]

    @property
    def reveals(self) -> str:
        if self.mixup:
            return ""
        return "The server gets representations and classes of single nodes and of their neighbours."

    # ----------------------------------------------------------------------------------------------- server half
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        super().start(initial, clients)
        server_trainer([], {"accelerator": self.server_accelerator})  # or else a mistake shows after the first round

    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        if self._model is None:
            return super().download(client, round, exchange)
        return Payload({**self.shared, "global": self._model.tensors(), "labels": {"global": self._labels}})

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Reduction layers, and ego-graphs of the shape that the client's settings say, with shares of classes."""
        self.check_shared(client, upload)
        field = f"upload` of client `{client}"
        classes = expect_count(upload, "num_classes", self._classes or 1, self._classes or _MOST_CLASSES, field)
        model = self._clients_model
        fanouts = _read_fanouts(upload.scalars.get("fanouts"), model.num_layers if model.ego else 0, field)
        count = 1 + sum(math.prod(fanouts[:hops]) for hops in range(1, len(fanouts) + 1))
        expect(count <= _MOST_POSITIONS, field, f"one with ego-graphs of at most {_MOST_POSITIONS} nodes", count)
        sent = upload.group(_EGO_GRAPHS)
        embedding = expect_tensor(sent, "embedding", (None, count, model.hidden_channels), field)
        shape = (*embedding.shape[:2], classes)
        expect_group(sent, {"embedding": embedding.shape, "label": shape}, field)
        expect(len(embedding) > 0, field, "one with ego-graphs", "none")
        label = sent["label"].double()
        expect_between(label, 0, 1.001, "shares of classes", field)
        expect_between(label.sum(2), 0, 1.001, "sums of shares", field)
        expect_between(label[:, 0].sum(1), 0.999, 1.001, "sums of the centers' shares", field)

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        if not uploads:
            return {}
        reduction = super().aggregate(uploads, round, exchange)
        ego_graphs = self.collect(uploads)
        self._classes = ego_graphs.label.size(2)
        labels = ego_graphs.label.sum((0, 1))
        self._labels = labels / labels.sum()  # not every position need have a class
        self._model = self._model or self._make_model()
        before = self._model.state()
        batches = _MashedLoader(ego_graphs, self.server_batch_size, self.server_fraction)
        self._loss = self._model.fit(batches, self.server_epochs, round)["train/loss"]
        if not all(bool(tensor.isfinite().all()) for tensor in self._model.tensors().values()):
            self._model.load_state(before)  # embeddings may be finite, and too large to learn from
        return reduction

    def collect(self, uploads: Mapping[str, Payload]) -> MashedEgoGraphs:
        """The mashed ego-graphs of all clients, in the order of their names."""
        order = sorted(uploads)
        fanouts = json.loads(str(uploads[order[0]].scalars["fanouts"]))  # the same for all, as a common scalar
        parts = [uploads[client].group(_EGO_GRAPHS) for client in order]
        embedding, label = (torch.cat([part[name] for part in parts]) for name in ("embedding", "label"))
        return MashedEgoGraphs(embedding, label, tuple(fanouts))

    @property
    def _clients_model(self) -> FedEgoNet:
        return expect_kind(as_template(self.template), FedEgoNet, "model", "flgraph.models.FedEgo for FedEgo")

    def _make_model(self) -> ServerModel:
        settings = {key: self._clients_model.hparams[key] for key in _SETTINGS}
        if self.server_lr is not None:
            settings["lr"] = self.server_lr
        seed_all(derive_seed(self.seed, "server", 0))
        layers = EgoHead(num_classes=self._classes, **settings)
        return ServerModel(layers, self.seed, {"accelerator": self.server_accelerator})

    def log_scalars(self) -> Mapping[str, float]:
        return {"server_loss": self._loss}

    def server_state(self) -> dict[str, Any]:
        return {**super().server_state(), "model": None if self._model is None else self._model.state()}

    def load_server_state(self, state: Mapping[str, Any]) -> None:
        super().load_server_state({name: state[name] for name in self.server_attributes})
        if state["model"] is not None:
            self._model = self._make_model()
            self._model.load_state(state["model"])

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        self.install_reduction(client, download.group())
        received, labels = download.group("global"), download.group("labels")
        if not received:
            return
        field = f"download` of client `{client.name}"
        state = client.module.state_dict()
        own = {name: tensor.shape for name, tensor in state.items() if name.startswith("personalization.")}
        expect_group(received, own, field)
        finite = all(bool(tensor.isfinite().all()) for tensor in received.values())
        expect(finite, field, "one with finite personalization layers", "others")
        shares = expect_tensor(labels, "global", label_distribution(client).shape, field)
        expect_between(shares, 0, 1.001, "shares of classes", field)
        expect_between(shares.double().sum(), 0.999, 1.001, "a sum of shares", field)
        self._mix(client, received, shares)

    def install_reduction(self, client: Client, layers: Mapping[str, Tensor]) -> None:
        """Puts the averaged reduction layers into the client."""
        client.load_shared(layers)

    def _mix(self, client: Client, received: Mapping[str, Tensor], labels: Tensor) -> None:
        emd = float((label_distribution(client) - labels.double()).abs().sum())
        coefficient = (emd / 2) ** self.gamma if self.mixing is None else self.mixing
        own = {name: t for name, t in client.module.state_dict().items() if name in received}
        # Not from what the model holds now: a client that sits rounds out is evaluated, and would mix again each time.
        self._own = self._own or {name: tensor.clone() for name, tensor in own.items()}
        for name, tensor in received.items():
            own[name].copy_(torch.lerp(self._own[name].to(own[name]), tensor.to(own[name]), coefficient))
        client.report("mixing/lambda", coefficient)
        client.report("mixing/emd", emd)
        client.report("mixing/divergence", relative_distance(own, received))

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        module = expect_kind(client.module, FedEgoNet, "model", "flgraph.models.FedEgo for FedEgo")
        batches = _mixup_data(client).mixup_dataloader()
        own = module.state_dict()
        self._own = {name: tensor.clone() for name, tensor in own.items() if name.startswith("personalization.")}
        convert = client.trainer.precision_plugin.convert_input
        with evaluating(module):
            mashed = [self.mash(module, convert(batch).to(module.device)) for batch in batches]
        embedding = torch.cat([part.embedding for part in mashed])
        if self.noise:
            embedding = embedding + self.noise * _noise(client, embedding.shape).to(embedding)
        ego_graphs = {"embedding": embedding, "label": torch.cat([part.label for part in mashed])}
        scalars: dict[str, Scalar] = {"num_classes": module.num_classes, "fanouts": json.dumps(mashed[0].fanouts)}
        return Payload({**client.shared_tensors(), _EGO_GRAPHS: ego_graphs}, scalars)

    def mash(self, module: FedEgoNet, batch: EgoBatch) -> MashedEgoGraphs:
        """One mashed ego-graph of a batch of ego-graphs around training nodes (Eq. 6-8)."""
        return module.mash(batch, self.mixup)

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        _mixup_data(client).mixup_dataloader()  # refuses before the work, not after it
        super().local_update(client, round, exchange)


@runtime_checkable
class MixupData(Protocol):
    """What FedEgo needs of a client's data, for example :class:`flgraph.data.NodeDataModule`."""

    @property
    def train_labels(self) -> Tensor:
        """Classes of the training nodes ``[n]``."""

    def mixup_dataloader(self) -> Any:
        """Batches of all training nodes; one mashed ego-graph is made of each."""


def _mixup_data(client: Client) -> MixupData:
    data: Any = client.data
    wanted = f"data with `mixup_dataloader` and `train_labels` in client `{client.name}`"
    expect(isinstance(data, MixupData), "data", wanted, type(data).__name__)
    return data


def _noise(client: Client, shape: torch.Size) -> Tensor:
    """Gaussian noise: of the turn's own draws in a simulation, at a site such as nobody can draw again."""
    if client.simulated:
        return torch.randn(shape)
    # torch takes 32 bits of a seed. Where an embedding is 0, as after a ReLU it often is, the noise is seen as it is,
    # and whoever tries all seeds would find the rest of it.
    return Draw(draw_key(again=False)).normal(shape.numel()).view(shape)


def _read_fanouts(text: Any, hops: int, field: str) -> list[int]:
    """Neighbours per node; none where there are centers only."""
    try:
        fanouts = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(field, "one with `fanouts` in JSON", brief(text)) from error
    numbers = isinstance(fanouts, list) and all(type(n) is int and 1 <= n <= 10_000 for n in fanouts)
    fits = numbers and (hops <= len(fanouts) <= 8 if hops else not fanouts)
    if not fits:
        raise InputError(field, f"one with `fanouts` of {hops} hops", brief(fanouts))
    return list(fanouts)


class _MashedLoader:
    """Mashed ego-graphs in batches; each pass visits a random part of them."""

    def __init__(self, ego_graphs: MashedEgoGraphs, batch_size: int, fraction: float) -> None:
        self.ego_graphs, self.batch_size = ego_graphs, batch_size
        self.count = max(1, int(fraction * ego_graphs.label.size(0) + 0.5))

    def __len__(self) -> int:
        return -(-self.count // self.batch_size)

    def __iter__(self) -> Iterator[MashedEgoGraphs]:
        chosen = torch.randperm(self.ego_graphs.label.size(0))[: self.count]
        for part in chosen.split(self.batch_size):
            yield self.ego_graphs.part(part)


def label_distribution(client: Client) -> Tensor:
    """Shares of the classes among a client's training nodes ``[C]``, float64 (Eq. 3)."""
    labels = _mixup_data(client).train_labels
    counts = torch.bincount(labels.cpu(), minlength=int(client.data.model_args["num_classes"]))
    return counts.double() / counts.sum()
