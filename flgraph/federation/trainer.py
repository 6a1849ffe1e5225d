"""The federated loop, on top of Lightning's Trainer."""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from rich.console import Console

from flgraph.errors import EngineError, expect
from flgraph.federation.aggregator import Aggregator
from flgraph.federation.arguments import WHERE, check_processes, expect_counts, refused_by_lightning
from flgraph.federation.callback import FederatedCallback, acts_in_clients
from flgraph.federation.client import Client
from flgraph.federation.data import FederatedData, client_names, is_file_name
from flgraph.federation.display import (
    ExchangeLines,
    MetricsTable,
    RoundProgress,
    final_table,
    quiet_lightning,
    routes_table,
)
from flgraph.federation.engines import Engine, Sequential
from flgraph.federation.memory import quick_garbage_collection
from flgraph.federation.routes import describe_routes
from flgraph.federation.run_log import RunLog
from flgraph.federation.server import EvaluatedModel, InitialWeights, Server
from flgraph.federation.signals import stop_on_signals
from flgraph.federation.template import Model, client_module, model_settings
from flgraph.runs.checkpoint import CLIENTS, SERVER, CheckpointStore, find_checkpoint, read_manifest
from flgraph.runs.compatibility import check_settings, default_arguments
from flgraph.runs.files import write_json, write_text, writing
from flgraph.runs.history import History, Metrics, RoundRecord, truncate_records
from flgraph.runs.results import discard_results, new_version, versions

SPLITS = ("train", "val", "test")


class FederatedTrainer(pl.Trainer):
    """Trains one model per client, round by round.

    Lightning's own fields (``accelerator``, ``devices``, ``precision``, gradient clipping, ...) mean what they always
    mean and hold for every client's Trainer.

    Args:
        aggregator: the federated algorithm.
        rounds: communication rounds.
        local_epochs: epochs that a client trains per round.
        client_fraction: share of the clients that take part in a round, drawn anew for each (at least one).
        engine: where clients run; in this process when ``None``.
        evaluate_every: rounds between evaluations of all clients; the last round is always evaluated.
        evaluate_model: with which model. ``"aggregated"`` is the one that a client would use: the newest aggregate
            installed, its personal part as it is. ``"trained"`` is the client's own as its last local training left it,
            before it gets the aggregate, which some published code evaluates (FedEgo's, for FedAvg and FedProx).
        initial_weights: which values shared tensors begin with at all clients. ``"first"``: those of the first client
            that holds them. ``"mean"``: the mean over the clients' own, as some published code begins (FedEgo's); where
            these are independent draws, it is smaller by the square root of the number of clients.
        monitor: metric whose mean over clients decides the best round.
        monitor_mode: whether more of it is better.
        seed: all randomness derives from it.
        default_root_dir: where run folders go.
        name: name of the run's folder; algorithm and data (``fedstar-chem``) when ``None``.
        logger: ``True`` for TensorBoard in the run folder, ``False`` for none, or Lightning loggers.
        callbacks: federated callbacks, and Lightning callbacks for the clients' Trainers. These have no logger and
            write no checkpoints of their own, so LearningRateMonitor and ModelCheckpoint have no place there.
        max_logged_clients: in larger federations only means over clients are logged to TensorBoard.
        enable_checkpointing: whether to write checkpoints.
        checkpoint_every: rounds between checkpoints; the last round and the best so far always have one.
        keep_checkpoints: how many of the newest checkpoints stay; the best validation round's stays as well.
        enable_progress_bar: whether to show progress, the routing table and the final table.
        accelerator: see :class:`pytorch_lightning.Trainer`, as for all that follow; they hold per client.
        devices: see there.
        strategy: see there. One of several processes, such as ``"ddp"``, needs torchrun, which starts them, and the
            sequential engine: every process then runs the whole federation, and each client's Trainer spans them all.
        precision: see there. Aggregation is done in float64 whatever the precision.
        gradient_clip_val: see there.
        gradient_clip_algorithm: see there.
        accumulate_grad_batches: see there.
        deterministic: see there.
        limit_train_batches: see there.
        limit_val_batches: see there.
        limit_test_batches: see there.
        detect_anomaly: see there.

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
        evaluate_model: EvaluatedModel = "aggregated",
        initial_weights: InitialWeights = "first",
        monitor: str = "val/accuracy",
        monitor_mode: Literal["max", "min"] = "max",
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
        expect_counts(rounds=rounds, local_epochs=local_epochs, evaluate_every=evaluate_every)
        expect_counts(checkpoint_every=checkpoint_every, keep_checkpoints=keep_checkpoints)
        expect(0 < client_fraction <= 1, "trainer.client_fraction", "above 0 and at most 1", client_fraction)
        kinds = get_args(EvaluatedModel)
        expect(evaluate_model in kinds, "trainer.evaluate_model", " or ".join(kinds), evaluate_model)
        starts = get_args(InitialWeights)
        expect(initial_weights in starts, "trainer.initial_weights", " or ".join(starts), initial_weights)
        expect(monitor_mode in ("max", "min"), "trainer.monitor_mode", "max or min", monitor_mode)
        expect(name is None or is_file_name(name), "trainer.name", "the name of a folder, without /", name)
        expect(isinstance(aggregator, Aggregator), "trainer.aggregator", "an Aggregator", type(aggregator).__name__)
        self.engine = engine or Sequential()
        given: dict[str, Any] = {
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
        self._client_args = self.engine.lightning(given)
        expect(accumulate_grad_batches >= 1, "trainer.accumulate_grad_batches", "1 or more", accumulate_grad_batches)
        clips = gradient_clip_val is None or gradient_clip_val >= 0
        expect(clips, "trainer.gradient_clip_val", "0 or more", gradient_clip_val)
        with quiet_lightning(), self.engine.alone():
            try:
                super().__init__(
                    **self._client_args,
                    max_epochs=rounds,
                    default_root_dir=default_root_dir,
                    logger=False,
                    callbacks=callbacks,
                    enable_checkpointing=False,
                    enable_progress_bar=False,
                    enable_model_summary=False,
                )
            except (MisconfigurationException, ValueError, TypeError, RuntimeError) as error:
                raise refused_by_lightning(given, error) from error
        check_processes(self.engine, self.world_size, devices)
        self.aggregator = aggregator
        self.rounds, self.local_epochs, self.client_fraction = rounds, local_epochs, client_fraction
        self.evaluate_every, self.evaluate_model = evaluate_every, evaluate_model
        self.initial_weights = initial_weights
        self.monitor, self.monitor_mode = monitor, monitor_mode
        self.seed, self.name, self.max_logged_clients = seed, name, max_logged_clients
        self.write_checkpoints, self.checkpoint_every = enable_checkpointing, checkpoint_every
        self.writes = self.engine.leads and self.is_global_zero
        """Whether this process is the one that writes files and prints."""
        shows = enable_progress_bar and self.writes
        self.keep_checkpoints, self.console = keep_checkpoints, Console(quiet=not shows)
        self.given_callbacks: list[pl.Callback] = list(self.callbacks)  # type: ignore[attr-defined]
        self.round_callbacks = [c for c in self.given_callbacks if isinstance(c, FederatedCallback)]
        self.round_callbacks.append(RoundProgress(self.console))
        self._logger_choice = logger
        self.config: dict[str, Any] = {}
        """What the command line was given, for ``results.json``."""
        self.config_text = ""
        """The same as YAML, for ``config.yaml``."""
        self.run_dir: Path | None = None
        self.prediction_rows: dict[str, dict[str, list[Any]]] = {}
        """Of each client, what the rows of the last predictions are of, see :class:`ClientData`; empty before them."""
        self.run_log: RunLog | None = None
        self.server: Server | None = None
        self.history = History(monitor, monitor_mode)
        self.current_round = 0
        self.record = RoundRecord(0)
        self._settings: dict[str, Any] = {}
        self._fitted: tuple[Model, FederatedData] | None = None
        self._holds_fitted = False  # or else the clients are those of a later test, or of a fit that was not begun
        self._ended = False  # whether the last round was done as such

    @property
    def federated_data(self) -> FederatedData | None:
        """The data of the run; ``None`` before the first."""
        return None if self._fitted is None else self._fitted[1]

    # ------------------------------------------------------------------------------------------------- entry points
    def fit(  # type: ignore[override]
        self, model: Model, datamodule: FederatedData, ckpt_path: str | None = None
    ) -> dict[str, Any]:
        """Runs the federation.

        Args:
            model: a template whose hyper-parameters every client's model shares, the ones that the data decides filled
                in per client; or a function from a client's data to its model.
            datamodule: the clients and their data.
            ckpt_path: continue a stopped run: ``last`` or ``best`` (of the newest run of this name), or the folder of a
                run or of one of its checkpoints. The run goes on in its own folder, and its result is the same bits as
                if it had never stopped; checkpoints and records of later rounds are removed.

        Returns:
            The contents of ``results.json``.

        Raises:
            InputError: data, model, routes, or checkpoint cannot be used.
            ClientError: a client's turn failed; the run can be resumed from the last whole round.
            EngineError: a process that runs clients is gone; the same holds.
        """
        with self._session():
            self._holds_fitted = False
            if not self.engine.leads:
                self._serve(model, datamodule, "fit")
                self._fitted, self._holds_fitted = (model, datamodule), True
                return {}
            status = "failed"
            try:
                server = self._prepare(model, datamodule, ckpt_path, "fit")
                self._fitted, self._holds_fitted = (model, datamodule), True
                results = self._loop(server, datamodule, resumed=ckpt_path is not None)
                status = "success"
                return results
            except BaseException as error:
                if isinstance(error, EngineError):
                    self._explain(error)
                self._call("on_federation_exception", error)
                raise
            finally:
                if self.run_log is not None:
                    self.run_log.finish(status)

    def validate(  # type: ignore[override]
        self, model: Model | None = None, datamodule: FederatedData | None = None, ckpt_path: str | None = None
    ) -> Metrics:
        """Validation metrics of every client; arguments as for :meth:`fit`, none of them needed after it."""
        return self._evaluate_only("val", model, datamodule, ckpt_path)

    def test(  # type: ignore[override]
        self, model: Model | None = None, datamodule: FederatedData | None = None, ckpt_path: str | None = None
    ) -> Metrics:
        """Test metrics of every client; arguments as for :meth:`fit`, none of them needed after it."""
        return self._evaluate_only("test", model, datamodule, ckpt_path)

    def predict(  # type: ignore[override]
        self, model: Model | None = None, datamodule: FederatedData | None = None, ckpt_path: str | None = None
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
            told = dict(self.engine.predict())
        self.prediction_rows = {name: predictions.rows for name, predictions in told.items()}
        return {name: predictions.batches for name, predictions in told.items()}

    def host(
        self, model: Model, datamodule: FederatedData, clients: Sequence[str] | None = None, seed: int | None = None
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
        engine = Sequential()
        self.engine = engine
        with quiet_lightning(), engine.session():
            names = self._names(datamodule, "fit")
            for name in clients or ():
                expect(name in names, "clients", f"among those of the data, {', '.join(names)},", name)
            self._make_clients(model, datamodule, clients or names, "fit", seed)
        return engine.clients

    def _evaluate_only(
        self, split: str, model: Model | None, datamodule: FederatedData | None, ckpt_path: str | None
    ) -> Metrics:
        with self._session():
            server = self._ready(model, datamodule, ckpt_path, "validate" if split == "val" else "test")
            if server is None:
                return {}
            metrics = server.evaluate(self.current_round, (split,), RoundRecord(self.current_round))
        self.console.print(MetricsTable(metrics, f"{split}, round {self.current_round}"))
        return metrics

    def _ready(
        self, model: Model | None, datamodule: FederatedData | None, ckpt_path: str | None, stage: str
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
        with stop_on_signals(), quiet_lightning(), self.engine.session():
            yield

    # ---------------------------------------------------------------------------------------------------- preparing
    def _serve(self, model: Model | None, datamodule: FederatedData, stage: str) -> None:
        """What a process does that does not lead; without a model its clients are there."""

        def prepare() -> None:
            assert model is not None
            self._make_clients(model, datamodule, self._names(datamodule, stage), stage)

        self.engine.serve(None if model is None else prepare)

    def _prepare(self, model: Model, datamodule: FederatedData, ckpt_path: str | None, stage: str) -> Server:
        """Makes clients and server, in the state of the checkpoint if there is one."""
        names = self._names(datamodule, stage)
        runs = Path(self.default_root_dir) / (self.name or f"{self.aggregator.name}-{datamodule.name}")
        checkpoint = None if ckpt_path is None else find_checkpoint(ckpt_path, runs)
        manifest = None if checkpoint is None else read_manifest(checkpoint)
        self._make_clients(model, datamodule, names, stage)
        self._settings = self._describe(model)
        self.history, self.current_round, self.should_stop = History(self.monitor, self.monitor_mode), 0, False
        self._ended = False
        server = self.server = Server(
            copy.deepcopy(self.aggregator),
            self.engine,
            names,
            seed=self.seed,
            client_fraction=self.client_fraction,
            evaluate_model=self.evaluate_model,
            initial_weights=self.initial_weights,
        )
        if checkpoint is None or manifest is None:
            self.run_dir = runs
        else:
            defaults = default_arguments(type(self), "trainer")
            defaults |= default_arguments(type(self.aggregator), "trainer.aggregator")
            check_settings(manifest["settings"], self._settings, defaults, checkpoint)
            self.run_dir = checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint
            behind = self.engine.load(checkpoint / CLIENTS)
            saved = server.load_state((checkpoint / SERVER).read_bytes())
            for name in behind:
                server.installed.pop(name, None)
            self.current_round = saved["round"]
            self.history.load_state(saved["history"])
            self._ended = saved.get("ended", True)  # earlier versions did not tell
            for callback in self.round_callbacks:
                if callback.state_key in saved["callbacks"]:
                    callback.load_state_dict(saved["callbacks"][callback.state_key])
        return server

    def _names(self, datamodule: FederatedData, stage: str) -> list[str]:
        """The clients' names, once the data is there."""
        with self.engine.first_here() as first:
            if first:
                datamodule.prepare_data()
        datamodule.setup(stage)
        return client_names(datamodule)

    def _make_clients(
        self, model: Model, datamodule: FederatedData, names: Sequence[str], stage: str, seed: int | None = None
    ) -> None:
        """Has the engine make the clients; it may make some of them later, which must be like the others."""
        own = self.seed if seed is None else seed
        callbacks = copy.deepcopy([callback for callback in self.given_callbacks if acts_in_clients(callback)])

        def build(name: str) -> Client:
            data = datamodule.client(name)
            if isinstance(data, pl.LightningDataModule):
                data.prepare_data()
                data.setup(stage)
            return Client(
                name,
                client_module(model, data, own, name),
                data,
                self.aggregator,
                callbacks,
                seed=own,
                local_epochs=self.local_epochs,
                trainer_args=self._client_args,
                device=self.strategy.root_device,
            )

        self.engine.setup(build, names, getattr(datamodule, "release", None))

    def _describe(self, model: Model) -> dict[str, Any]:
        """What a run must share to continue from its checkpoints, under the names that users know."""
        aggregator = {"class": type(self.aggregator).__name__, **self.aggregator.hyperparameters()}
        trainer = {
            "aggregator": aggregator,
            "local_epochs": self.local_epochs,
            "client_fraction": self.client_fraction,
            "evaluate_model": self.evaluate_model,
            "initial_weights": self.initial_weights,
            "monitor": self.monitor,
            "monitor_mode": self.monitor_mode,
            **{key: value for key, value in self._client_args.items() if key not in WHERE},
        }
        data = {name: about["data"] for name, about in self.engine.about().items()}
        return {"seed": self.seed, "trainer": trainer, "model": model_settings(model), "data": data}

    # ------------------------------------------------------------------------------------------------------ the loop
    def _loop(self, server: Server, datamodule: FederatedData, resumed: bool) -> dict[str, Any]:
        assert self.run_dir is not None
        if resumed:
            whole = (self.run_dir / "checkpoints").is_dir()
            expect(whole, "ckpt_path", "in the folder of its run, RUN/checkpoints, to go on from it", self.run_dir)
            expect(
                self.rounds >= self.current_round,
                "trainer.rounds",
                f"{self.current_round} or more, as done",
                self.rounds,
            )
            if self.writes:
                with writing(self.run_dir):
                    self._store.discard_after(self.current_round)
                    truncate_records(self.run_dir / "history.jsonl", self.current_round)
                    discard_results(self.run_dir, self.current_round)
            self.console.print(
                f"continuing {self.run_dir} after round {self.current_round}", soft_wrap=True, markup=False
            )
        else:
            server.begin()
        about = self.engine.about()
        routes = describe_routes(client["routes"] for client in about.values())
        if self.writes:
            self._begin_folder(datamodule, routes, resumed)
        self.console.print(routes_table(routes))
        self._call("on_federation_start")
        if not resumed:
            server.prepare(ExchangeLines(self.console))
            if self.engine.saves_first and self.write_checkpoints and self.writes:
                self._checkpoint(server)
        with quick_garbage_collection():
            while self.current_round < self.rounds and not self.should_stop:
                self._round(server)
            if not self._ended and self.current_round:
                self._end(server)
        results = {
            **self.history.results(),
            "stopped_early": self.should_stop,
            "setup_bytes": {"up": server.setup_record.bytes_up, "down": server.setup_record.bytes_down},
            "aggregator": server.aggregator.summary(),
            "parameters": {name: client["parameters"] for name, client in about.items()},
            "data": self._settings["data"],
            **({"partition": datamodule.statistics} if hasattr(datamodule, "statistics") else {}),
            "seed": self.seed,
            "versions": versions(),
            "config": self.config or self._settings,
        }
        if self.writes:
            with writing(self.run_dir):
                write_json(results, self.run_dir / "results.json")
        self.strategy.barrier()  # where Lightning has several processes, none goes on before the files are written
        self._call("on_federation_end")
        if final := self.history.final or self.history.last:
            self.console.print(final_table(final, self.history.best, self.monitor))
        self.console.print(f"results in {self.run_dir}", soft_wrap=True, markup=False)
        return results

    def _begin_folder(self, datamodule: FederatedData, routes: list[tuple[str, str, str]], resumed: bool) -> None:
        """Makes the run folder, if it is a new one, and begins to log."""
        assert self.run_dir is not None
        if not resumed:
            with writing(self.run_dir):
                self.run_dir = new_version(self.run_dir)
        with writing(self.run_dir):
            if self.config_text:
                write_text(self.config_text, self.run_dir / "config.yaml")
            self.run_log = RunLog(self.run_dir, self._logger_choice, self.current_round, self.max_logged_clients)
            self.loggers = self.run_log.loggers
            figures = datamodule.figures() if hasattr(datamodule, "figures") else {}
            self.run_log.describe(routes, self.config_text or str(self._settings), figures)

    def _round(self, server: Server) -> None:
        began = time.perf_counter()
        self._ended = False
        self.current_round += 1
        self.record = RoundRecord(self.current_round)
        self._call("on_round_start")
        server.round(self.current_round, self.record)
        self.record.server = dict(server.aggregator.log_scalars())
        last = self.current_round == self.rounds
        if last or self.current_round % self.evaluate_every == 0:
            self._evaluate(server)
        self._call("on_round_end")
        last = last or self.should_stop
        if last and not self.record.metrics:  # a callback made it the last round
            self._evaluate(server)
        self.record.seconds = time.perf_counter() - began
        self.history.add(self.record)
        if self.run_log is not None:
            self.run_log.add(self.record)
        if last:
            self._call("on_last_round_end")
            self._ended = True
        best = self.history.best.get("round") == self.current_round
        due = last or best or self.current_round % self.checkpoint_every == 0
        if self.write_checkpoints and self.writes and due:
            self._checkpoint(server)

    def _end(self, server: Server) -> None:
        """Ends a run that goes on with no round left to do: when it was stopped, its last round was not the last."""
        further = RoundRecord(self.current_round)
        self.record = further
        if self.history.last.get("round") == self.current_round:
            further.metrics = self.history.last["clients"]
        else:
            self._evaluate(server)
            self.history.add(further)
            if self.run_log is not None:
                self.run_log.add_evaluation(further)
        self._call("on_last_round_end")
        self._ended = True
        if self.write_checkpoints and self.writes:
            self._checkpoint(server)

    def _check_monitor(self, metrics: list[str]) -> None:
        """A misspelt metric would make the last round pass for the best one."""
        # Clients that hold nothing back for validation have no best round.
        unmeasured = self.monitor.startswith("val/") and not any(name.startswith("val/") for name in metrics)
        known = not metrics or unmeasured or self.monitor in metrics
        expect(known, "trainer.monitor", f"one of {', '.join(metrics)}", self.monitor)

    def _explain(self, error: EngineError) -> None:
        """Keeps the traceback, which the command line leaves out, and says how to go on."""
        if not self.writes or self.run_dir is None or not self.run_dir.is_dir():
            return
        file = self.run_dir / "error.txt"
        write_text("".join(traceback.format_exception(error)), file)
        error.add_note(f"its traceback is in {file}")
        if self._store.last() is not None:
            error.add_note("continue with --ckpt_path last")

    def _evaluate(self, server: Server) -> None:
        self.record.metrics = server.evaluate(self.current_round, SPLITS, self.record)
        self._check_monitor(list(self.record.mean))

    def _checkpoint(self, server: Server) -> None:
        assert self.run_log is not None
        callbacks = {c.state_key: own for c in self.round_callbacks if (own := c.state_dict())}
        loop = {"round": self.current_round, "ended": self._ended, "history": self.history.state()}
        state = server.state({**loop, "callbacks": callbacks})
        best = self.history.best.get("round")
        if best == self.current_round and (final := self.history.final) and final != self.history.last:
            best = None  # clients went back to the round that is best by something else
        self.run_log.save()
        self._store.save(self.current_round, state, self.engine.save, self._settings, best)

    @property
    def _store(self) -> CheckpointStore:
        assert self.run_dir is not None
        return CheckpointStore(self.run_dir / "checkpoints", self.keep_checkpoints)

    def _call(self, hook: str, *args: Any) -> None:
        for callback in self.round_callbacks:
            getattr(callback, hook)(self, *args)
