"""The federated trainer: its arguments, and what it can be asked to do."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_warn
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor

from flgraph.console import Console
from flgraph.errors import InputError, expect, expect_kind
from flgraph.federation.aggregator import Aggregator, check_made
from flgraph.federation.callback import FederatedCallback
from flgraph.federation.client import Client
from flgraph.federation.data import FederatedData, is_file_name
from flgraph.federation.display import ExchangeLines, MetricsTable, RoundProgress, quiet_lightning
from flgraph.federation.engines import Engine, ProcessGroup, Sequential
from flgraph.federation.engines.distributed.environment import ProcessEnvironment
from flgraph.federation.lightning import copy_of, refused_by_lightning
from flgraph.federation.lightning_callbacks import check_callbacks
from flgraph.federation.loop import FederatedLoop
from flgraph.federation.plain import check_model, federated, what_is
from flgraph.federation.policy import Policy
from flgraph.federation.privacy import Privacy, check_noise
from flgraph.federation.routes import RouteKind
from flgraph.federation.secure.server import check_method
from flgraph.federation.secure.settings import SecureSums
from flgraph.federation.server import Server
from flgraph.federation.signals import stop_on_signals
from flgraph.federation.template import Model
from flgraph.federation.tolerance import Tolerance
from flgraph.federation.transforms import Transform, check_order
from flgraph.runs.files import write_text
from flgraph.runs.history import Metrics, RoundRecord
from flgraph.runs.results import Results

AnyData = FederatedData | Mapping[str, pl.LightningDataModule]
"""A federated datamodule, or a plain LightningDataModule for each client by its name."""


class FederatedTrainer(FederatedLoop):
    """Trains one model per client, round by round.

    Lightning's own fields (``accelerator``, ``devices``, ``precision``, gradient clipping, ...) mean what they always
    mean and hold for every client's Trainer.

    Args:
        aggregator: the federated algorithm.
        rounds: communication rounds.
        local_epochs: epochs that a client trains per round.
        client_fraction: share of the clients that take part in a round, drawn anew for each (at least one).
        engine: where clients run. ``None`` is this process; for ``flgraph fit`` on Linux without a GPU, one process a
            core where ``OMP_NUM_THREADS`` does not say otherwise.
        evaluate_every: rounds between evaluations of all clients; the last round is always evaluated.
        personal: patterns of tensors that never leave a client, whatever the algorithm's routes say:
            ``["*norm*"]`` makes FedBN (Li et al., ICLR 2021) of FedAvg.
        transforms: what happens to clients' uploads behind the algorithm, in this order: clipping, noise, compression.
        secure_sums: how clients mask their uploads, so that the server learns sums only; not at all when ``None``.
        privacy: what the run may cost a client, where ``transforms`` have :class:`GaussianNoise`.
        monitor: metric whose mean over clients decides the best round; when ``None``, ``val/accuracy``, or the first
            metric but the loss that validation reports where there is none. A run that goes on keeps its own.
        monitor_mode: whether more of it is better; when ``None``, as its name says: less of ``loss`` or ``rmse``.
        policy: what may leave a client; all that the algorithm's routes name when ``None``. A site has its own.
        tolerance: what becomes of the run when a client fails, or sends what cannot be used.
        seed: all randomness derives from it.
        default_root_dir: where run folders go.
        name: name of the run's folder; algorithm and data (``fedstar-chem``) when ``None``.
        logger: ``True`` for TensorBoard in the run folder, ``False`` for none, or Lightning loggers.
        callbacks: federated callbacks, and Lightning callbacks for the clients' Trainers; docs/lightning.md says which
            of Lightning's own have no place there.
        max_logged_clients: in larger federations only means over clients are logged to TensorBoard.
        enable_checkpointing: whether to write checkpoints.
        checkpoint_every: rounds between checkpoints; the last round and the best so far always have one.
        keep_checkpoints: how many of the newest checkpoints stay; the best validation round's stays as well.
        enable_progress_bar: whether to show progress, the routing table and the final table.
        accelerator: hardware of every client's Trainer, such as ``cpu`` or ``gpu``; this and all that follow are fields
            of :class:`pytorch_lightning.Trainer`, and hold per client.
        devices: which device, or how many.
        strategy: how a client's Trainer computes. One of several processes, such as ``"ddp"``, needs torchrun, which
            starts them, and the sequential engine: every process then runs the whole federation, and each client's
            Trainer spans them all.
        precision: numbers that models compute with, such as ``32-true`` or ``bf16-mixed``. Aggregation is done in
            float64 whatever the precision.
        gradient_clip_val: largest gradient; gradients are not clipped when ``None``.
        gradient_clip_algorithm: ``norm`` or ``value``.
        accumulate_grad_batches: batches per step of the optimizer.
        deterministic: whether only deterministic operations may be used; ``warn`` says where they are not.
        limit_train_batches: training batches per epoch, a number or a share; all when ``None``.
        limit_val_batches: the same for validation.
        limit_test_batches: the same for tests.
        detect_anomaly: whether to look for gradients that are not numbers, which is slow.

    Raises:
        InputError: a value is out of range.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        rounds: int = 200,
        local_epochs: int = 1,
        client_fraction: float = 1.0,
        engine: Engine | None = None,
        evaluate_every: int = 1,
        personal: Sequence[str] = (),
        transforms: Sequence[Transform] = (),
        secure_sums: SecureSums | None = None,
        privacy: Privacy | None = None,
        monitor: str | None = None,
        monitor_mode: Literal["max", "min"] | None = None,
        policy: Policy | None = None,
        tolerance: Tolerance | None = None,
        seed: int = 0,
        default_root_dir: str = "runs",
        name: str | None = None,
        logger: bool | Logger | list[Logger] = True,
        callbacks: list[pl.Callback] | pl.Callback | None = None,
        max_logged_clients: int = 100,
        enable_checkpointing: bool = True,
        checkpoint_every: int = 1,
        keep_checkpoints: int = 2,
        enable_progress_bar: bool = True,
        accelerator: str = "auto",
        devices: int | str | list[int] = 1,
        strategy: str = "auto",
        precision: str | int | None = None,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
        accumulate_grad_batches: int = 1,
        deterministic: bool | Literal["warn"] | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        detect_anomaly: bool = False,
    ) -> None:
        _expect_counts(rounds=rounds, local_epochs=local_epochs, evaluate_every=evaluate_every)
        _expect_counts(checkpoint_every=checkpoint_every, keep_checkpoints=keep_checkpoints)
        _expect_counts(accumulate_grad_batches=accumulate_grad_batches)
        _expect_kinds(engine=(engine, Engine), policy=(policy, Policy), tolerance=(tolerance, Tolerance))
        _expect_kinds(privacy=(privacy, Privacy), secure_sums=(secure_sums, SecureSums))
        _expect_kinds(monitor=(monitor, str), name=(name, str))
        expect(isinstance(seed, int), "trainer.seed", "a whole number", seed)
        share = isinstance(client_fraction, int | float) and 0 < client_fraction <= 1
        expect(share, "trainer.client_fraction", "above 0 and at most 1", client_fraction)
        expect(not isinstance(personal, str), "trainer.personal", "a list of patterns", personal)
        loggers = logger if isinstance(logger, list | tuple) else [] if isinstance(logger, bool) else [logger]
        known = all(isinstance(own, Logger) for own in loggers)
        expect(known, "trainer.logger", "true, false, or Lightning's loggers", logger)
        expect(monitor_mode in ("max", "min", None), "trainer.monitor_mode", "max or min", monitor_mode)
        expect(name is None or is_file_name(name), "trainer.name", "the name of a folder, without /", name)
        if not isinstance(aggregator, Aggregator):
            raise InputError("trainer.aggregator", "an Aggregator", what_is(aggregator))
        check_made(aggregator)
        check_callbacks(callbacks)
        self.engine = engine or Sequential()
        lightning: dict[str, Any] = {
            "accelerator": accelerator,
            "devices": devices,
            "strategy": strategy,
            "precision": precision,
            "gradient_clip_val": gradient_clip_val,
            "gradient_clip_algorithm": gradient_clip_algorithm,
            "accumulate_grad_batches": accumulate_grad_batches,
            "deterministic": deterministic,
            "limit_train_batches": limit_train_batches,
            "limit_val_batches": limit_val_batches,
            "limit_test_batches": limit_test_batches,
            "detect_anomaly": detect_anomaly,
        }
        self._client_args = self.engine.lightning(lightning)
        clips = gradient_clip_val is None or gradient_clip_val >= 0
        expect(clips, "trainer.gradient_clip_val", "0 or more", gradient_clip_val)
        self._begin_lightning(lightning, max_epochs=rounds, default_root_dir=default_root_dir, callbacks=callbacks)
        _check_processes(self.engine, self.world_size, devices)
        self.aggregator = aggregator
        self.rounds, self.local_epochs, self.client_fraction = rounds, local_epochs, client_fraction
        self.evaluate_every, self.personal = evaluate_every, list(personal)
        check_order(transforms)
        self.transforms, self.privacy, self._budget = list(transforms), privacy or Privacy(), []
        self.secure_sums = secure_sums
        if secure_sums is not None:
            check_method(aggregator, transforms, rounds)
        self._given_monitor = monitor, monitor_mode
        self._watch()
        self.policy, self.tolerance = policy, tolerance or Tolerance()
        self.seed, self.name, self.max_logged_clients = seed, name, max_logged_clients
        self.write_checkpoints, self.checkpoint_every = enable_checkpointing, checkpoint_every
        self.writes = self.engine.leads and self.is_global_zero
        shows = enable_progress_bar and self.writes
        self.keep_checkpoints, self.console = keep_checkpoints, Console(quiet=not shows)
        self.given_callbacks: list[pl.Callback] = list(self.callbacks)  # type: ignore[attr-defined]
        check_noise(privacy, transforms, self.given_callbacks)
        self.round_callbacks = [c for c in self.given_callbacks if isinstance(c, FederatedCallback)]
        self.round_callbacks.append(RoundProgress(self.console))
        self._logger_choice = logger
        self.config, self.config_text = {}, ""
        self.run_dir = None
        self.prediction_rows: dict[str, dict[str, list[Any]]] = {}
        """Of each client, what the rows of the last predictions are of, see :class:`ClientData`; empty before them."""
        self.predicted: dict[str, str] = {}
        """Of each client, what the columns of the last predictions are, see :mod:`flgraph.runs.predictions`."""
        self.run_log = self.server = None
        self.current_round = 0
        self.record = RoundRecord(0)
        self._settings = {}
        self._fitted: tuple[Model, FederatedData] | None = None
        self._holds_fitted = False  # or else the clients are those of a later test, or of a fit that was not begun
        self._ended = False

    def _begin_lightning(self, lightning: dict[str, Any], **further: Any) -> None:
        """Lightning's own constructor; ``lightning`` holds its fields as the user gave them."""
        parts = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        silent: dict[str, Any] = dict.fromkeys(parts, False)
        with quiet_lightning(), self.engine.alone():
            try:
                super().__init__(**self._client_args, **further, **silent)
            except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
                raise refused_by_lightning(lightning, error) from error

    # ------------------------------------------------------------------------------------------------- entry points
    def fit(  # type: ignore[override]
        self, model: Model, datamodule: AnyData, ckpt_path: str | None = None
    ) -> Results:
        """Runs the federation. Called again, it begins anew, in a run folder of its own.

        Args:
            model: a template whose hyper-parameters every client's model shares, the ones that the data decides filled
                in per client; or a function from a client's data to its model.
            datamodule: the clients and their data, or a plain LightningDataModule for each client by its name.
            ckpt_path: continue a stopped run: ``last`` or ``best`` (of the newest run of this name), or the folder of a
                run or of one of its checkpoints. The run goes on in its own folder, and its result is the same bits as
                if it had never stopped; checkpoints and records of later rounds are removed.

        Returns:
            The contents of ``results.json``; see :class:`~flgraph.runs.results.Results`.

        Raises:
            InputError: data, model, routes, or checkpoint cannot be used.
            ClientError: a client's turn failed; the run can be resumed from the last whole round.
            EngineError: a process that runs clients is gone; the same holds.
        """
        model, datamodule = check_model(model), federated(datamodule)
        with self._session():
            self._holds_fitted, self.run_dir, self.run_log = False, None, None
            if not self.engine.leads:
                self._serve(model, datamodule, "fit")
                self._fitted, self._holds_fitted = (model, datamodule), True
                return Results()
            status = "failed"
            try:
                server = self._prepare(model, datamodule, ckpt_path, "fit")
                self._fitted, self._holds_fitted = (model, datamodule), True
                results = Results(self._loop(server, datamodule, resumed=ckpt_path is not None), self.run_dir)
                status = "success"
                return results
            except BaseException as error:
                if isinstance(error, Exception) and not isinstance(error, InputError):
                    self._explain(error)
                self._call("on_federation_exception", error)
                raise
            finally:
                if self.run_log is not None:
                    self.run_log.finish(status, self.history)

    def _explain(self, error: BaseException) -> None:
        """Keeps the traceback, which the command line leaves out, and says how to go on."""
        begun = self.run_dir is not None and self.run_dir.parent != Path(self.default_root_dir)  # else of all versions
        if not self.writes or self.run_dir is None or not begun or not self.run_dir.is_dir():
            return
        file = self.run_dir / "error.txt"
        write_text("".join(traceback.format_exception(error)), file)
        error.add_note(f"its traceback is in {file}")
        if self._open_store().last() is not None:
            error.add_note(f"continue with --ckpt_path {shlex.quote(str(self.run_dir))}")

    def validate(  # type: ignore[override]
        self, model: Model | None = None, datamodule: AnyData | None = None, ckpt_path: str | None = None
    ) -> Metrics:
        """Validation metrics of every client; arguments as for :meth:`fit`, none of them needed after it."""
        return self._evaluate_only("val", model, datamodule, ckpt_path)

    def test(  # type: ignore[override]
        self, model: Model | None = None, datamodule: AnyData | None = None, ckpt_path: str | None = None
    ) -> Metrics:
        """Test metrics of every client; arguments as for :meth:`fit`, none of them needed after it."""
        return self._evaluate_only("test", model, datamodule, ckpt_path)

    def predict(  # type: ignore[override]
        self, model: Model | None = None, datamodule: AnyData | None = None, ckpt_path: str | None = None
    ) -> dict[str, list[Any]]:
        """Every client's predictions, one entry per batch, as its model's ``predict_step`` returns them.

        From another process they come only if they are made of tensors and plain values. What their rows are of is in
        :attr:`prediction_rows` afterwards.
        """
        with self._session():
            server = self._ready(model, datamodule, ckpt_path, "predict")
            if server is None:
                return {}
            # Clients have not installed the aggregate of a round without evaluation yet.
            server.evaluate(self.current_round, (), RoundRecord(self.current_round))
            made = dict(self.engine.predict())
        self.prediction_rows = {name: predictions.rows for name, predictions in made.items()}
        self.predicted = {name: predictions.predicted for name, predictions in made.items()}
        return {name: predictions.batches for name, predictions in made.items()}

    def host(
        self, model: Model, datamodule: AnyData, clients: Sequence[str] | None = None, seed: int | None = None
    ) -> dict[str, Client]:
        """Makes clients in this process, for a server elsewhere.

        Args:
            model: see :meth:`fit`.
            datamodule: see there.
            clients: names of those that are here; all of the datamodule's when ``None``.
            seed: of all that they draw, first weights and noise on uploads included; the run's when ``None``, which the
                server knows.

        Raises:
            InputError: a name is not the datamodule's, or as :meth:`fit`.
        """
        datamodule = federated(datamodule)
        engine = Sequential()
        self.engine = engine
        with quiet_lightning(), engine.session():
            names = self._names(datamodule, "fit")
            for name in clients or ():
                expect(name in names, "clients", f"among those of the data, {', '.join(names)},", name)
            self._make_clients(model, datamodule, clients or names, "fit", seed, simulated=False)
        return engine.clients

    # ------------------------------------------------------------------------------------------------------ after a run
    @property
    def federated_data(self) -> FederatedData | None:
        """The data of the run; ``None`` before the first."""
        return None if self._fitted is None else self._fitted[1]

    def client_model(self, name: str) -> pl.LightningModule:
        """A client's model as it is now: a copy on the CPU, in evaluation mode, with no federation in sight.

        A plain Trainer keeps the mode that it finds: call ``train()`` first where it is to train the model further.

        Args:
            name: of the client.

        Raises:
            InputError: no client of this name is in this process.
        """
        clients = getattr(self.engine, "clients", {})
        here = f"one of those in this process, {', '.join(clients) or 'which has none'},"
        expect(name in clients, "client", here, name)
        module: pl.LightningModule = clients[name].module
        return copy_of(module).cpu().eval()

    @property
    def model(self) -> Any:
        """The model that all clients have in common, a copy; ``None`` before a run, and where each has its own.

        :meth:`client_model` gives those.
        """
        clients = getattr(self.engine, "clients", {})
        kinds = {kind for client in clients.values() for _, _, kind in client.routing.lines}
        one = bool(clients) and (len(clients) == 1 or RouteKind.PERSONAL not in kinds)
        return self.client_model(next(iter(clients))) if one else None

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """Means over clients of the metrics of the run's final evaluation, or of the newest; empty before."""
        evaluated = self.history.final or self.history.last
        return {name: torch.tensor(value) for name, value in evaluated.get("mean", {}).items()}

    # ----------------------------------------------------------------------------------------------------------- inside
    def _evaluate_only(
        self, split: str, model: Model | None, datamodule: AnyData | None, ckpt_path: str | None
    ) -> Metrics:
        with self._session():
            server = self._ready(model, datamodule, ckpt_path, "validate" if split == "val" else "test")
            if server is None:
                return {}
            metrics = server.evaluate(self.current_round, (split,), RoundRecord(self.current_round))
        if not any(metrics.values()):
            needs = f"a {'validation' if split == 'val' else 'test'}_step that logs, and data with such a loader"
            rank_zero_warn(f"No client has anything to tell of {split}, which takes a model with {needs}.")
        self.console.print(MetricsTable(metrics, f"{split}, round {self.current_round}"))
        return metrics

    def _ready(
        self, model: Model | None, datamodule: AnyData | None, ckpt_path: str | None, stage: str
    ) -> Server | None:
        """The server of the last ``fit`` for what was fitted; else a new one, from the checkpoint if given.

        Where another process leads, serves it instead and returns nothing.

        Raises:
            InputError: a model without data or the other way round, or what was fitted is asked for after its clients
                made room for others.
        """
        given = (model is not None) + (datamodule is not None)
        expect(given != 1, "model", "given together with a datamodule, or neither of them", model)
        if model is None or datamodule is None:
            expect(self._fitted is not None, "model", "given with a datamodule, or fit before", model)
            assert self._fitted is not None
            model, datamodule = self._fitted
        model, datamodule = check_model(model), federated(datamodule)
        fitted = ckpt_path is None and self._fitted == (model, datamodule)
        given_path = "given, since the clients of the last fit have made room for others,"
        expect(self._holds_fitted or not fitted, "ckpt_path", given_path, ckpt_path)
        self._holds_fitted = fitted
        if not self.engine.leads:
            self._serve(None if fitted else model, datamodule, stage)
            return None
        if fitted and self.server is not None:
            return self.server
        server = self._prepare(model, datamodule, ckpt_path, stage)
        if ckpt_path is None:
            server.begin()
            server.prepare(ExchangeLines(self.console))
        return server

    @contextmanager
    def _session(self) -> Iterator[None]:
        # What is drawn elsewhere in a program must not follow from the run's seed.
        drawing = isolate_rng(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
        with drawing, stop_on_signals(), quiet_lightning(), self.engine.session():
            yield


def _expect_counts(**values: int) -> None:
    """Raises :class:`InputError` for arguments that are no whole numbers of 1 or more."""
    for field, value in values.items():
        expect(isinstance(value, int) and value >= 1, f"trainer.{field}", "a whole number of 1 or more", value)


def _expect_kinds(**arguments: tuple[object, type]) -> None:
    """Raises :class:`InputError` for arguments that are given and not of the class beside them."""
    for field, (value, kind) in arguments.items():
        if value is not None:
            expect_kind(value, kind, f"trainer.{field}", f"of type {kind.__name__}, or None,")


def _check_processes(engine: Engine, processes: int, devices: Any) -> None:
    """One device per process; several processes belong to the engine, or to Lightning's strategy under torchrun.

    Args:
        engine: where clients run.
        processes: that Lightning's strategy spans.
        devices: as given to the trainer.

    Raises:
        InputError: they do not go together.
    """
    process = ProcessEnvironment.here()
    if isinstance(engine, ProcessGroup) or not process.launched or process.world == 1:
        expect(processes == 1, "trainer.devices", "one device, which all clients of a process share,", devices)
        return
    given = f"{type(engine).__name__} with a strategy of {processes} processes"
    what = f"ProcessGroup, or the strategy to be one of {process.world} processes, as torchrun started,"
    expect(processes == process.world, "trainer.engine", what, given)
