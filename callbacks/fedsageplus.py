"""FedSage+: Zhang et al., "Subgraph Federated Learning with Missing Neighbor Generation", NeurIPS 2021."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks.fedavg import FedAvg
from flgraph.callbacks.gradients import add_gradient, stepped
from flgraph.errors import expect, expect_kind
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_between, expect_count, expect_group, expect_tensor
from flgraph.federation.routes import Route, UploadKind, personal, shared
from flgraph.models.nodes.sage import NeighGenSAGE
from flgraph.nn import at_least_float32
from flgraph.nn.neighgen import feature_loss, nearest_of_all

_FEATURES = "features"
_MOST_FEATURES = 10_000_000


class FedSagePlus(FedAvg):
    r"""FedAvg on graphs that each client mends first, with a generator of missing neighbours that learns from all.

    Before the first round (Section 4 and Algorithm 1 of the paper),

    - ``"generate"``: clients train generator and classifier together on their own graph with some of its nodes hidden
      (:class:`flgraph.models.NeighGenSAGE`), and send the neighbours that the generator of features (fGen) makes of
      noisy representations of the nodes with hidden neighbours.
    - ``"compare k"``, ``"refine k"``, as often as ``generator_rounds`` says: everyone gets all generated neighbours
      :math:`\tilde x`, and answers for each other client's with the gradient of
      :math:`\sum_v \sum_{p \le n_v} \min_{u \in V_j} \lVert \tilde x_v^p - x_u \rVert_2^2` with respect to them, where
      :math:`V_j` are the nodes that it holds; then each client takes a step along its own gradient and
      :math:`\alpha \lambda^f / |\bar V|` times the sum of these, carried on to the weights of fGen.

    In the paper fGen itself and its input travel, and gradients of its weights come back. By the chain rule the step is
    the same. Less travels here, and nobody gets another client's generator.

    Then clients mend their graphs, and the classifier is trained as in :class:`FedAvg`, from its first weights. With
    ``generator_rounds=0`` no generator learns from other clients.

    What leaks: the server reads of a client's gradient the features of the nodes that were nearest; so does, with two
    clients, the other. Clients see what the others' generators take hidden neighbours for. The noise in that is drawn
    once, see :meth:`Client.private_seed`, as its mean over many draws is none.

    Goes with :class:`flgraph.models.NeighGenSAGE` and data whose batches are whole graphs, such as
    :class:`flgraph.data.WholeGraphFederation`.

    Args:
        pretrain_epochs: epochs of generator and classifier at each client alone.
        generator_rounds: steps of the generators with gradients from the other clients.
        alpha: weight of these gradients.
        weighting: see :class:`FedAvg`.
        optimizer_state: see :class:`FedAvg`; ``"reset"`` also begins every step of the generators anew.
    """

    network = "NeighGenSAGE"
    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {"generated/*": "data", "gradient/*": "data"}
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
        self.setup_epochs = pretrain_epochs + generator_rounds
        self._answers: dict[str, Payload] = {}  # what each client is sent before the first round
        self._sizes: dict[str, tuple[int, int]] = {}  # of the neighbours that each client generated
        self._gradients: dict[str, Tensor] = {}  # the client half's: of its fGen's weights, until the next step

    def routes(self) -> list[Route]:
        return [*personal("generator.*"), *shared("*", on_mismatch="personal")]

    @property
    def reveals(self) -> str:
        return (
            "The server can work out the features of single nodes from gradients, with two clients each can work out "
            "the other's; other clients get a generator's guesses of single nodes' features."
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
        """Weights; generated neighbours; or a gradient of each other client's."""
        if round:
            return self.check_shared(client, upload)
        field = f"upload` of client `{client}"
        if exchange.startswith("compare"):
            sent, others = upload.group("gradient"), {other: s for other, s in self._sizes.items() if other != client}
            expect_group(sent, {other: (None, columns) for other, (_, columns) in others.items()}, field)
            for other, rows in sent.items():
                most = others[other][0]
                expect(len(rows) <= most, field, f"of {most} rows at most for what `{other}` generated", len(rows))
        elif exchange != self.exchanges(0)[-1]:
            features = expect_count(upload, "num_features", 1, _MOST_FEATURES, field)
            expect(len(upload.tensors) == 1, field, "with generated neighbours alone", "other tensors")
            _check_generated(upload.group("generated"), _FEATURES, features, field)
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
            sums = {client: _summed(uploads, client, self._sizes[client]) for client in uploads}
            self._answers = {
                client: Payload({"gradient": {_FEATURES: own}}) for client, own in sums.items() if own is not None
            }
        elif exchange != self.exchanges(0)[-1] and uploads:
            generated = {client: upload.group("generated")[_FEATURES] for client, upload in uploads.items()}
            self._sizes = {client: (rows.size(0), rows.size(1)) for client, rows in generated.items()}
            self._answers = dict.fromkeys(uploads, Payload({"generated": generated}))  # one message for all
        return {}

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        super().install(client, download)
        self._gradients = {}
        if sums := download.group("gradient"):
            self._gradients = self._of_weights(client, sums)

    def _of_weights(self, client: Client, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradients of fGen's weights from the sum of those of what it generated."""
        module, field = _module(client), f"download` of client `{client.name}"
        with torch.random.fork_rng(devices=()):  # the loader draws, and so does the training that follows
            batch = _batch(client)
        expect(not module.generator_frozen, field, "without gradients but for a generator that learns", "some")
        with torch.enable_grad():
            generated = module.generated(batch)
        expect_group(sums, {_FEATURES: generated.shape}, field)
        weight = self.alpha * module.feature_weight / module.impaired(batch).visible.numel()
        names, parameters = zip(*module.generator.fgen.named_parameters(), strict=True)
        outer = (sums[_FEATURES].to(module.device) * weight).to(generated)
        return dict(zip(names, torch.autograd.grad(generated, parameters, outer), strict=True))

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Training of the generator; comparing others' generated neighbours with one's own nodes; local training."""
        if exchange == "generate":
            _module(client).draw_from(client.private_seed("neighgen"))
            client.fit(self.pretrain_epochs)
        elif exchange.startswith("refine"):
            client.fit(1)
        elif round:
            if not _module(client).generator_frozen:
                _module(client).freeze_generator()
                client.swap_optimizers({})  # their moments are of another loss and, for the classifier, other weights
            super().local_update(client, round, exchange)

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        if round:
            return super().upload(client, round, exchange)
        if exchange.startswith("compare"):
            return self._compare(client)
        if exchange == self.exchanges(0)[-1]:
            return None
        module = _module(client)
        with torch.no_grad():
            generated = module.generated(_batch(client))
        return Payload({"generated": {_FEATURES: generated}}, {"num_features": module.in_channels})

    def _compare(self, client: Client) -> Payload:
        module, x, field = _module(client), _batch(client).x, f"download` of client `{client.name}"
        generated = client.last_download.group("generated")
        most, gradients = module.generator.fgen.max_neighbours * (10_000 + 100 * x.size(0)), dict[str, Tensor]()
        for other in sorted(generated.keys() - {client.name}):
            rows = _check_generated(generated, other, x.size(1), field)
            # One client's could be any number; those beyond cost no work, and get no gradient.
            gradients[other] = gradient_of_generated(rows[:most].to(x.device), x)
        return Payload({"gradient": gradients})

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Adds the gradient that other clients gave, once."""
        if not (self._gradients and stepped(pl_module, optimizer)):
            return
        assert isinstance(pl_module, NeighGenSAGE)
        for name, parameter in pl_module.generator.fgen.named_parameters():
            add_gradient(parameter, self._gradients[name])
        self._gradients = {}


def gradient_of_generated(rows: Tensor, x: Tensor) -> Tensor:
    r"""Gradient of :math:`\sum_p \min_u \lVert \tilde x^p - x_u \rVert_2^2` with respect to generated neighbours.

    Args:
        rows: features of the generated :math:`\tilde x` ``[m, F]``.
        x: features of the nodes that are held here ``[N, F]``, dense or sparse CSR.

    Returns:
        ``[m, F]``, float32 at least.
    """
    rows = at_least_float32(rows).detach().requires_grad_()
    with torch.enable_grad():
        loss = feature_loss(rows, x, nearest_of_all(rows.detach(), x))
    return torch.autograd.grad(loss, rows)[0]


def _check_generated(tensors: Mapping[str, Tensor], name: str, features: int, field: str) -> Tensor:
    """What a generator whose last step is a tanh can have made ``[m, features]``."""
    rows = expect_tensor(tensors, name, (None, features), field)
    expect_between(rows, -1, 1, "features", field)
    return rows


def _summed(uploads: Mapping[str, Payload], client: str, size: tuple[int, int]) -> Tensor | None:
    """What the other clients answered to one, added up in the order of their names; beyond their last rows zeros."""
    name = f"gradient/{client}"
    given = [uploads[other].tensors[name] for other in sorted(uploads) if name in uploads[other].tensors]
    if not given:
        return None
    total = torch.zeros(size, dtype=torch.float64)
    for gradient in given:
        total[: len(gradient)].add_(gradient)
    return total.to(given[0].dtype)


def _module(client: Client) -> NeighGenSAGE:
    return expect_kind(client.module, NeighGenSAGE, "model", "flgraph.models.NeighGenSAGE for FedSage+")


def _batch(client: Client) -> Any:
    """The client's whole graph, on the device and in the precision of its training."""
    batch = client.trainer.precision_plugin.convert_input(next(iter(client.data.train_dataloader())))
    return client.module.transfer_batch_to_device(batch, client.module.device, 0)
