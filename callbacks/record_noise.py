"""Noise that hides a single graph of a client: record-level differential privacy, with opacus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Batch

from flgraph.callbacks.gradients import scaler_of
from flgraph.data.graphs.batching import GraphLoader
from flgraph.errors import InputError, expect
from flgraph.federation.accountant import spent_on_records
from flgraph.federation.budget import Event, Unit
from flgraph.federation.callback import FederatedCallback, Run
from flgraph.federation.client import Client
from flgraph.federation.halves import AlgorithmHalf
from flgraph.federation.policy import NUM_SAMPLES
from flgraph.federation.privacy import noise_drawn
from flgraph.federation.transforms import Draw, draw_key
from flgraph.models.graphs.classifier import GraphClassifier
from flgraph.runs.history import EPSILON

_unseen = pl.Callback.on_before_backward

_DRAWN = "drawn_graphs"
"""Of a batch: numbers of its graphs among the client's."""


class RecordNoise(FederatedCallback):
    r"""Clips the gradient of every single graph and adds Gaussian noise to their sum: DP-SGD in every client.

    For each step every training graph is drawn with the chance :math:`q`, the ``sample_rate``. With :math:`g_i` the
    gradient of the loss of the drawn graph :math:`i`, a step follows

    .. math:: \frac{1}{q n} \Big( \sum_i g_i \cdot \min(1, c / \lVert g_i \rVert_2) + z c \, \mathcal N(0, I) \Big)

    with :math:`c` the ``norm``, :math:`z` the ``multiplier``, and :math:`n` the number of training graphs (Abadi et
    al., "Deep Learning with Differential Privacy", CCS 2016). ``opacus`` clips. Who is drawn, and noise, come from
    ChaCha20 (:class:`~flgraph.federation.transforms.Draw`), at sites with keys of the operating system: torch's
    generators have 32 bits of a seed, which can be tried. An epoch has :math:`1 / q` steps. What follows of a
    gradient, such as FedProx's part of it, costs nothing more.

    What a client has spent is its metric ``train/epsilon``; ``results.json`` has the last that each told. Two data sets
    of a client are neighbours if one graph is there or not; how many there are counts as known.

    Goes with graph classifiers whose graphs do not see each other: nothing that normalises over a batch.

    Args:
        norm: the longest that a graph's gradient may be, above 0.
        multiplier: standard deviation of the noise in units of ``norm``, above 0.
        sample_rate: the chance of each graph to be drawn, above 0 and at most 1.
        delta: see :class:`~flgraph.federation.privacy.Privacy`.

    Raises:
        InputError: an argument is out of range.
    """

    unit: ClassVar[Unit] = "record"
    local: ClassVar[bool] = True

    def __init__(self, norm: float, multiplier: float, sample_rate: float = 0.05, delta: float = 1e-5) -> None:
        for name, value in (("norm", norm), ("multiplier", multiplier)):
            expect(0 < value < float("inf"), f"RecordNoise.{name}", "a finite number above 0", value)
        expect(0 < sample_rate <= 1, "RecordNoise.sample_rate", "above 0 and at most 1", sample_rate)
        expect(0 < delta < 1, "RecordNoise.delta", "above 0 and below 1", delta)
        self.norm, self.multiplier, self.sample_rate, self.delta = norm, multiplier, sample_rate, delta
        self.steps = 0
        """Of a client's copy: how many it has made in the run."""
        self._client: Client | None = None
        self._optimizer: Any = None
        self._batch: Any = None
        self._draw: Any = None  # of the training that goes on
        self._told: dict[str, float] = {}  # at the server: what clients have spent

    # --------------------------------------------------------------------------------------------- a client's copy
    def train_loader(self, client: Client, loader: Any) -> PoissonLoader:
        self._client = client
        return PoissonLoader(loader, self.sample_rate)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuses what noise would not cover, and counts the steps that are about to be made."""
        assert self._client is not None
        _check_model(pl_module)
        filled = getattr(self._client.data, "settings", {}).get("missing")
        rule = "refuse or zero with RecordNoise, as a mean is of all graphs,"
        expect(filled != "mean", "data.missing", rule, filled)
        half = self._client.aggregator
        wanted = "one whose uploads hold no more than trained weights and numbers of graphs with RecordNoise,"
        found = f"{type(half).__name__} with {', '.join(self.uncovered(half))}"
        expect(not self.uncovered(half), "trainer.aggregator", wanted, found)
        scaled = scaler_of(trainer) is not None  # Lightning would divide the noise, too
        expect(not scaled, "trainer.precision", "another than 16-mixed with RecordNoise, such as bf16-mixed,", "that")
        _expect_each_batch(trainer)
        epochs = (trainer.fit_loop.max_epochs or 0) - trainer.current_epoch
        self._client.door.spend(self.event, epochs * _steps(self.sample_rate))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Makes opacus' optimizer around the fit's own, which does the steps."""
        optimizers = _opacus().optimizers
        expect(len(trainer.optimizers) == 1, "model", "one with one optimizer for RecordNoise", len(trainer.optimizers))
        assert self._client is not None
        loader: Any = trainer.train_dataloader
        follows = any(config.monitor for config in trainer.lr_scheduler_configs)
        expect(not follows, "model", "without schedulers that follow metrics, which have no noise,", "one with such")
        again, seed = self._client.simulated, (self._client.seed, self._client.name, self.steps)
        loader.draw, self._draw = (Draw(draw_key(again, what, *seed)) for what in ("records", "record noise"))
        self._optimizer = optimizers.DPOptimizer(
            trainer.optimizers[0],
            noise_multiplier=0.0,  # it is added here
            max_grad_norm=self.norm,
            expected_batch_size=self.sample_rate * loader.index.numel(),
        )

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, idx: int) -> None:
        _expect_each_batch(trainer)  # again: a GradientAccumulationScheduler changes it later
        self._batch = batch

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Puts the noisy gradient in place of the batch's, before any other hook sees that."""
        loader: Any = trainer.train_dataloader
        module: Any = pl_module
        wanted = "one whose optimizer takes one gradient of each batch with RecordNoise,"
        expect(self._batch is not None, "model", wanted, "one that takes more, such as LBFGS")
        parameters, drawn, self._batch = self._optimizer.params, getattr(self._batch, _DRAWN), None
        module.collect = _ignore  # the batch's own pass is what metrics are of
        rows = [_gradients(trainer, module, loader.graphs.batch(one), parameters) for one in drawn.view(-1, 1)]
        del module.collect
        for parameter, own in zip(parameters, zip(*rows, strict=True) if rows else (), strict=False):
            parameter.grad_sample = torch.stack(own).nan_to_num(0, 0, 0)  # which no length bounds
        for parameter in parameters:
            if not rows:
                parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)
        self._optimizer.pre_step()
        deviation = self.multiplier * self.norm / self._optimizer.expected_batch_size
        for parameter in parameters:
            noise = (self._draw.normal(parameter.numel()) * deviation).view(parameter.shape)
            # Rounded once they are one number: noise alone could be too small for the parameter's type.
            parameter.grad = (parameter.grad.double() + noise.to(parameter.device)).to(parameter.dtype)
            parameter.grad_sample = parameter.summed_grad = None
        self.steps += 1

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert self._client is not None
        self._client.report("train/epsilon", self._epsilon())
        self._optimizer = self._batch = self._draw = None

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps} if self.client else {"told": self._told}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self._told = state_dict.get("steps", 0), dict(state_dict.get("told", {}))

    def uncovered(self, half: AlgorithmHalf, leave: Sequence[str] = ()) -> list[str]:
        """What of uploads it does not cover.

        That is data, gradients, what an algorithm makes of losses without noise, and numbers but that of graphs, which
        counts as known.
        """
        further = [pattern for pattern, kind in half.extra_tensors.items() if kind != "weights"]
        if getattr(type(half), "on_before_backward", _unseen) is not _unseen:
            further.append("what follows of losses")
        return [*further, *(name for name in half.upload_scalars if name != NUM_SAMPLES)]

    @property
    def event(self) -> Event:
        """A step, as it is counted."""
        return Event("record", self.multiplier, self.sample_rate)

    def _epsilon(self) -> float:
        assert self._client is not None
        if not self._client.simulated:  # over all runs, and with what was lost and done again
            return self._client.door.spending.epsilon("record", self.delta)
        return spent_on_records(((self.multiplier, self.sample_rate, self.steps),), self.delta)

    # ----------------------------------------------------------------------------------------------------- the server
    def on_federation_start(self, trainer: Run) -> None:
        if trainer.current_round == 0:  # the trainer may have done other runs before
            self._told = {}

    def on_round_end(self, trainer: Run) -> None:
        """Keeps what was told, also by clients that are left out later."""
        metrics = trainer.record.metrics.items()
        self._told |= {client: own["train/epsilon"] for client, own in metrics if "train/epsilon" in own}
        if self._told:
            trainer.record.server[EPSILON] = max(self._told.values())

    def results(self, trainer: Run) -> Mapping[str, Any]:
        told = self._told
        worst = max(told.values(), default=None)
        claim = "none: no client told its `train/epsilon`"
        if worst is not None:
            whose = f"every graph of the {len(told)} clients that told `train/epsilon`"
            claim = f"({worst:.3g}, {self.delta:g})-differential privacy of {whose}, towards whoever gets uploads"
        return {
            "privacy": {
                "unit": "record",
                "clip": self.norm,
                "noise_multiplier": self.multiplier,
                "sample_rate": self.sample_rate,
                "delta": self.delta,
                "noise_drawn": noise_drawn(trainer.simulated),
                "neighbours": "a client's training graphs with one of them there or not; their number counts as known",
                "outside_of_the_guarantee": ["metrics", "graphs for validation and tests", "who took part"],
                "epsilon": worst,
                "epsilon_of_clients": told,
                "claim": claim,
            }
        }


class PoissonLoader:
    """Batches in which every graph is with the same chance, whatever the others.

    Where none was drawn, the batch is of the first graph, whose gradient is not used.

    Args:
        loader: of a client's training graphs.
        sample_rate: the chance.

    Raises:
        InputError: the client's records are no graphs.
    """

    def __init__(self, loader: Any, sample_rate: float) -> None:
        if not isinstance(loader, GraphLoader):
            wanted = "of graphs with RecordNoise (nodes of one graph see each other; GaussianNoise hides a client),"
            raise InputError("data", wanted, f"batches of {type(loader).__name__}")
        self.graphs, self.index, self.sample_rate = loader.graphs, loader.index, sample_rate
        self.draw: Draw | None = None
        """Of the training that goes on."""

    def __len__(self) -> int:
        return _steps(self.sample_rate)

    def __iter__(self) -> Iterator[Batch]:
        assert self.draw is not None
        for _ in range(len(self)):
            places = (self.draw.uniform(self.index.numel()) < self.sample_rate).nonzero().flatten()
            drawn = self.index[places.to(self.index.device)]
            batch = self.graphs.batch(drawn if drawn.numel() else self.index[:1])
            setattr(batch, _DRAWN, drawn)
            yield batch


def _ignore(stage: str, part: Any) -> None:
    """In place of :meth:`~flgraph.models.base.SizedModule.collect`."""


def _gradients(
    trainer: pl.Trainer, module: GraphClassifier, batch: Batch, parameters: list[Tensor]
) -> tuple[Tensor, ...]:
    """Of the loss of a single graph."""
    with trainer.precision_plugin.train_step_context():
        loss = module.training_step(batch, 0)
    return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)


def _check_model(module: pl.LightningModule) -> None:
    known = isinstance(module, GraphClassifier)
    expect(known, "model", "a classifier of graphs with RecordNoise", type(module).__name__)
    assert isinstance(module, GraphClassifier)
    weighted = module.class_weights is not None
    expect(not weighted, "model.class_weights", "null with RecordNoise, which takes one graph at a time,", "some")
    problems = _opacus().validators.ModuleValidator.validate(module, strict=False)
    problems = problems or [part for part in module.modules() if isinstance(part, _BatchNorm)]  # it knows no subclasses
    norms = "without batch normalisation with RecordNoise, as it mixes graphs (`--model.norm none`),"
    expect(not problems, "model", norms, f"{len(problems)} such layers")


def _steps(sample_rate: float) -> int:
    """Of an epoch."""
    return max(1, round(1 / sample_rate))


def _opacus() -> Any:
    try:
        import opacus
        import opacus.optimizers
        import opacus.validators
    except ImportError as error:
        wanted = "without RecordNoise where `opacus` is not installed (`pip install 'flgraph[privacy]'`)"
        raise InputError("trainer.callbacks", wanted, "one with it") from error
    return opacus


def _expect_each_batch(trainer: pl.Trainer) -> None:
    each = trainer.accumulate_grad_batches
    expect(each == 1, "trainer.accumulate_grad_batches", "1 with RecordNoise, which is added to every gradient,", each)
