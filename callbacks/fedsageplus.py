"""FedSage+: Zhang et al., "Subgraph Federated Learning with Missing Neighbor Generation", NeurIPS 2021."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.fedavg import FedAvg
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import (
    Shape,
    expect_between,
    expect_count,
    expect_group,
    expect_tensor,
    most_common,
    shapes_of,
)
from flgraph.federation.routes import Route, UploadKind, collected, personal, shared
from flgraph.models.nodes.sage import NeighGenSAGE
from flgraph.nn import FeatureGenerator
from flgraph.nn.neighgen import feature_loss, first_ones, nearest_of_all

_FGEN = "generator.fgen."
_MOST_FEATURES = 10_000_000


class FedSagePlus(FedAvg):
    r"""FedAvg on graphs that each client mends first, with a generator of missing neighbours that learns from all.

    Before the first round (Section 4 and Algorithm 1 of the paper),

    - ``"generate"``: clients train generator and classifier together on their own graph with some of its nodes hidden
      (:class:`flgraph.models.NeighGenSAGE`), and send the weights of the generator of features (fGen) and its input:
      noisy representations of the nodes with hidden neighbours.
    - ``"compare k"``, ``"refine k"``, as often as ``generator_rounds`` says: everyone gets all fGen with their
      input, and answers for each other one with the gradient of
      :math:`\sum_v \sum_{p \le n_v} \min_{u \in V_j} \lVert \tilde x_v^p - x_u \rVert_2^2`, where :math:`V_j` are the
      nodes that it holds; then each client takes a step along its own gradient and
      :math:`\alpha \lambda^f / |\bar V|` times the sum of these.

    Then clients mend their graphs, and the classifier is trained as in :class:`FedAvg`, from its first weights. With
    ``generator_rounds=0`` no generator learns from other clients.

    What leaks: the server can solve a client's gradient for the features of the nodes that were nearest, exactly where
    fewer neighbours are compared than the last hidden layer of fGen has columns; so can, with two clients, the other.
    Clients see the others' fGen with its input, which is a model of hidden neighbours' features, and how many of each
    node were hidden. The noise is drawn once, see :meth:`Client.private_seed`, as its mean over many draws is none.

    Goes with :class:`flgraph.models.NeighGenSAGE` and data whose batches are whole graphs, such as
    :class:`flgraph.data.WholeGraphFederation`.

    Args:
        pretrain_epochs: epochs of generator and classifier at each client alone.
        generator_rounds: steps of the generators with gradients from the other clients.
        alpha: weight of these gradients.
        weighting: see :class:`FedAvg`.
        optimizer_state: see :class:`FedAvg`; ``"reset"`` also begins every step of the generators anew.
    """

    network: ClassVar[str] = "NeighGenSAGE"
    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {"input/*": "data", "gradient/*": "gradient"}
    upload_scalars = ("num_samples", "num_features")
    common_scalars = ("num_features",)

    def __init__(
        self, pretrain_epochs: int = 20, generator_rounds: int = 20, alpha: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        expect(pretrain_epochs >= 0, "aggregator.pretrain_epochs", "0 or more", pretrain_epochs)
        expect(generator_rounds >= 0, "aggregator.generator_rounds", "0 or more", generator_rounds)
        expect(0 <= alpha < float("inf"), "aggregator.alpha", "a finite number, 0 or more", alpha)
        self.pretrain_epochs, self.generator_rounds, self.alpha = pretrain_epochs, generator_rounds, alpha
        self._answers: dict[str, Payload] = {}  # what each client is sent before the first round
        self._forms: dict[str, Shape] = {}  # shapes of the generator that most clients have, without prefixes
        self._handed_round: list[str] = []  # the clients whose generators the others compare
        self._gradients: dict[str, Tensor] = {}  # the client half's: sums of theirs, until the next step
        self._visible = 0  # the client half's: nodes that are not hidden

    def routes(self) -> list[Route]:
        return [*collected(_FGEN + "*"), *personal("generator.*"), *shared("*", on_mismatch="personal")]

    @property
    def reveals(self) -> str:
        return (
            "The server can work out the features of single nodes from gradients, with two clients each can work out "
            "the other's; other clients get noisy representations of single nodes."
        )

    def exchanges(self, round: int) -> Sequence[str]:
        if round:
            return ("train",)
        steps = range(1, self.generator_rounds + 1)
        return ("generate", *(f"{step} {number}" for number in steps for step in ("compare", "refine")))

    # ----------------------------------------------------------------------------------------------- server half
    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        if round or exchange is None:  # at the end of round 0, too: the classifier's first weights
            return super().download(client, round, exchange)
        return self._answers.get(client)

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Weights; a generator whose layers fit together, with its input; or a gradient of each other one's."""
        if round:
            return self.check_shared(client, upload)
        field = f"upload` of client `{client}"
        if exchange.startswith("compare"):
            others = [other for other in self._handed_round if other != client]
            shapes = {f"{other}/{name}": shape for other in others for name, shape in self._forms.items()}
            expect_group(upload.group("gradient"), shapes, field)
        elif exchange != self.exchanges(0)[-1]:
            features = expect_count(upload, "num_features", 1, _MOST_FEATURES, field)
            _check_generator(_generator(upload), upload.group("input"), features, field)
        return None

    def sums_suffice(self, round: int, exchange: str) -> bool:
        return round > 0

    def take_mean(self, mean: Mapping[str, Tensor], round: int, exchange: str) -> Mapping[str, Tensor]:
        self._answers = {}
        return mean

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        if round:
            return super().aggregate(uploads, round, exchange)
        self._answers = {}
        if exchange.startswith("compare"):
            self._answers = {client: Payload({"gradient": _summed(uploads, client)}) for client in uploads}
        elif exchange != self.exchanges(0)[-1] and uploads:
            self._hand_round(uploads)
        return {}

    def _hand_round(self, uploads: Mapping[str, Payload]) -> None:
        """Gives every client the same: all generators, without those of another form than most have."""
        columns = {client: upload.scalars["num_features"] for client, upload in uploads.items()}
        expect(len(set(columns.values())) <= 1, "data", "of as many features at all clients for FedSage+", columns)
        forms = {client: tuple(shapes_of(_generator(upload)).items()) for client, upload in uploads.items()}
        common = most_common(forms[client] for client in sorted(forms))
        self._forms = dict(common)
        self._handed_round = [client for client, form in forms.items() if form == common]
        generators = {n: {**uploads[n].group(), **uploads[n].group("input")} for n in self._handed_round}
        # One message for all, a client's own generator included: ten clients with 15 million weights each would
        # otherwise wait for 5.5 GB of messages that differ by what each leaves out.
        self._answers = dict.fromkeys(uploads, Payload({"generator": generators}))

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        super().install(client, download)
        gradients, field = download.group("gradient"), f"download` of client `{client.name}"
        if gradients:
            module = _module(client)
            ready = self._visible > 0 and not module.generator_frozen
            expect(ready, field, "without gradients but for a generator that learns", "some")
            expect_group(gradients, shapes_of(dict(module.generator.fgen.named_parameters())), field)
        self._gradients = gradients

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Training of the generator; comparing others' generated neighbours with one's own nodes; local training."""
        if exchange == "generate":
            self._begin(client)
            client.fit(self.pretrain_epochs)
        elif exchange.startswith("refine"):
            client.fit(1)
        elif round:
            self._settle(client)
            super().local_update(client, round, exchange)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        if round:
            return super().upload(client, round, exchange)
        if exchange.startswith("compare"):
            return self._compare(client)
        if exchange == self.exchanges(0)[-1]:
            return None
        module, batch = _module(client), _batch(client)
        z, counts = module.anchors(batch)
        self._visible = module.impaired(batch).visible.numel()
        fgen = {_FGEN + name: tensor for name, tensor in module.generator.fgen.state_dict().items()}
        return Payload({**fgen, "input": {"z": z, "counts": counts.int()}}, {"num_features": module.in_channels})

    def _begin(self, client: Client) -> None:
        _module(client).draw_from(client.private_seed("neighgen"))

    def _settle(self, client: Client) -> None:
        if not _module(client).generator_frozen:
            _module(client).freeze_generator()
            client.swap_optimizers({})  # their moments are of another loss and, for the classifier, other weights

    def _compare(self, client: Client) -> Payload:
        module, x = _module(client), _batch(client).x
        fgen, gradients = copy.deepcopy(module.generator.fgen).eval(), {}
        generators, own = client.last_download, shapes_of(fgen.state_dict())
        most = 10_000 + 100 * x.size(0)
        for other in sorted({name.partition("/")[0] for name in generators.group("generator")} - {client.name}):
            part = {name: tensor.to(module.device) for name, tensor in generators.group(f"generator/{other}").items()}
            field = f"download` of client `{client.name}"
            z, counts = part.pop("z", torch.zeros(())), part.pop("counts", torch.zeros(()))
            expect_group(part, {_FGEN + name: shape for name, shape in own.items()}, field)
            _check_input({"z": z, "counts": counts}, own["layers.0.weight"][1], fgen.max_neighbours, field)
            expect(len(z) <= most, field, f"with generators for at most {most} nodes", len(z))
            fgen.load_state_dict({name.removeprefix(_FGEN): tensor for name, tensor in part.items()})
            gradients[other] = foreign_gradients(fgen, z.to(next(fgen.parameters())), counts, x)
        return Payload({"gradient": gradients})

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Adds the gradient that other clients gave, once."""
        if not self._gradients:
            return
        assert isinstance(pl_module, NeighGenSAGE)
        weight = self.alpha * pl_module.feature_weight / self._visible
        for name, parameter in pl_module.generator.fgen.named_parameters():
            gradient = self._gradients[name].to(parameter) * weight
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._gradients = {}


def foreign_gradients(fgen: FeatureGenerator, z: Tensor, counts: Tensor, x: Tensor) -> dict[str, Tensor]:
    r"""Gradient of :math:`\sum_v \sum_{p \le n_v} \min_u \lVert \tilde x_v^p - x_u \rVert_2^2` with respect to fGen.

    Args:
        fgen: another client's generator of features.
        z: its input ``[n, C]``.
        counts: neighbours of each node that count ``[n]``.
        x: features of the nodes that are held here ``[N, F]``, dense or sparse CSR.

    Returns:
        Name of a parameter of ``fgen`` to gradient.
    """
    with torch.enable_grad():
        generated = fgen(z)[first_ones(counts, fgen.max_neighbours)]
        nearest = nearest_of_all(generated.detach(), x)
        loss = feature_loss(generated, x, nearest)
        names, parameters = zip(*fgen.named_parameters(), strict=True)
        return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def _generator(upload: Payload) -> dict[str, Tensor]:
    """The tensors of a client's fGen."""
    return {name.removeprefix(_FGEN): t for name, t in upload.group().items() if name.startswith(_FGEN)}


def _check_generator(fgen: Mapping[str, Tensor], inputs: Mapping[str, Tensor], features: int, field: str) -> None:
    """Refuses layers that do not follow on each other, from the input to neighbours' features."""
    shapes: dict[str, Shape] = {}
    first = expect_tensor(fgen, "layers.0.weight", (None, None), field)
    width = first.size(1)
    for number in range(max(1, len(fgen) // 2)):
        weight = expect_tensor(fgen, f"layers.{number}.weight", (None, width), field)
        width = weight.size(0)
        shapes |= {f"layers.{number}.weight": weight.shape, f"layers.{number}.bias": (width,)}
    expect_group(fgen, shapes, field)
    whole = width >= features and width % features == 0
    expect(whole, field, f"one with {features} features for every neighbour", f"{width} columns")
    _check_input(inputs, first.size(1), width // features, field)


def _check_input(inputs: Mapping[str, Tensor], columns: int, neighbours: int, field: str) -> None:
    z = expect_tensor(inputs, "z", (None, columns), field)
    counts = expect_tensor(inputs, "counts", z.shape[:1], field, torch.int32)
    expect_between(counts, 0, neighbours, "`counts`", field)


def _summed(uploads: Mapping[str, Payload], client: str) -> dict[str, Tensor]:
    """What the other clients answered to one, added up in the order of their names."""
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for other in sorted(uploads):
        for name, tensor in uploads[other].group(f"gradient/{client}").items():
            total = sums.setdefault(name, torch.zeros_like(tensor, dtype=torch.float64))
            total.add_(tensor)
            dtypes[name] = tensor.dtype
    return {name: total.to(dtypes[name]) for name, total in sums.items()}


def _module(client: Client) -> NeighGenSAGE:
    module = client.module
    expect(isinstance(module, NeighGenSAGE), "model", "flgraph.models.NeighGenSAGE for FedSage+", type(module).__name__)
    assert isinstance(module, NeighGenSAGE)
    return module


def _batch(client: Client) -> Any:
    """The client's whole graph, on the device and in the precision of its training."""
    batch = client.trainer.precision_plugin.convert_input(next(iter(client.data.train_dataloader())))
    return client.module.transfer_batch_to_device(batch, client.module.device, 0)
