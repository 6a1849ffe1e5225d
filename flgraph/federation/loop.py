"""The federated loop: rounds, and how a run begins, goes on and ends."""

from __future__ import annotations

import copy
import gc
import math
import re
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from operator import index
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_warn

from flgraph.console import Console
from flgraph.errors import InputError, expect
from flgraph.federation.aggregator import Aggregator, scalars_of, summary_of
from flgraph.federation.callback import FederatedCallback, acts_in_clients
from flgraph.federation.client import Client
from flgraph.federation.data import FederatedData, check_client_data, client_names
from flgraph.federation.display import ExchangeLines, final_table, routes_table
from flgraph.federation.engines import Engine
from flgraph.federation.lightning import WHERE
from flgraph.federation.messages import Predictions, Request
from flgraph.federation.policy import Policy
from flgraph.federation.privacy import Privacy, PrivacyBudget, account_of
from flgraph.federation.routes import describe_routes
from flgraph.federation.run_log import RunLog
from flgraph.federation.secure.identity import Authority
from flgraph.federation.secure.server import check_round
from flgraph.federation.secure.settings import SecureSums
from flgraph.federation.server import Server, clients_per_round
from flgraph.federation.settings import describe, describe_run
from flgraph.federation.template import Model, check_monitors, client_module
from flgraph.federation.tolerance import Tolerance
from flgraph.federation.transforms import Transform
from flgraph.runs.checkpoint import CLIENTS, SERVER, CheckpointStore, find_checkpoint, read_manifest, reading
from flgraph.runs.compatibility import check_settings, comparable, flatten
from flgraph.runs.files import only_writer, write_json, write_text, writing
from flgraph.runs.history import History, RoundRecord, default_monitor, mode_of, truncate_records
from flgraph.runs.ledger import LEDGER, Ledger
from flgraph.runs.ledger_reader import lost_sums, read_ledger
from flgraph.runs.results import discard_results, new_version, versions

SPLITS = ("train", "val", "test")


class FederatedLoop(pl.Trainer):
    """A Trainer that runs rounds; :class:`FederatedTrainer` gives it its arguments, and ways to begin."""

    aggregator: Aggregator
    engine: Engine
    rounds: int
    local_epochs: int
    client_fraction: float
    personal: list[str]
    transforms: list[Transform]
    secure_sums: SecureSums | None
    privacy: Privacy
    evaluate_every: int
    monitor: str
    """Empty until it is known: with the first evaluation, where it was not given."""
    monitor_mode: Literal["max", "min"] | None
    policy: Policy | None
    tolerance: Tolerance
    seed: int
    name: str | None
    max_logged_clients: int
    write_checkpoints: bool
    checkpoint_every: int
    keep_checkpoints: int
    writes: bool
    """Whether this process is the one that writes files and prints."""
    console: Console
    given_callbacks: list[pl.Callback]
    round_callbacks: list[FederatedCallback]
    config: dict[str, Any]
    """What the command line was given, for ``results.json``."""
    config_text: str
    """The same as YAML, for ``config.yaml``."""
    run_dir: Path | None
    checkpoint_key: bytes | None = None
    """Signs manifests of checkpoints; those without such a signature are refused then."""
    job: str = ""
    """Digest of what sites are told to do."""
    authority: Authority | None = None
    """By which sites sign."""
    run_log: RunLog | None
    server: Server | None
    history: History
    current_round: int
    record: RoundRecord
    _client_args: dict[str, Any]
    _logger_choice: bool | Logger | list[Logger]
    _given_monitor: tuple[str | None, Literal["max", "min"] | None]
    _settings: dict[str, Any]
    _defaults: dict[str, Any]
    _writing: ExitStack  # has the lock of the run folder
    _store: CheckpointStore
    _budget: list[PrivacyBudget]  # ends the run before it costs too much
    _ended: bool  # whether the last round was done as such

    # -------------------------------------------------------------------------------------------------- for callbacks
    @property
    def simulated(self) -> bool:
        """Whether all clients are of one owner, and what they draw follows from the run's seed."""
        return self.engine.trusted

    @property
    def shares(self) -> bool:
        """Whether anything but metrics leaves a client."""
        assert self.server is not None
        aggregator = self.server.aggregator
        return any(aggregator.owners.values()) or bool(aggregator.extra_tensors)

    def install(self) -> None:
        """Lets all clients install what is new, as an evaluation does."""
        assert self.server is not None
        self.server.evaluate(self.current_round, (), self.record)

    def predictions(self) -> Iterator[tuple[str, Predictions]]:
        """Client and its predictions with the model that it holds, one client after another."""
        return self.engine.predict()

    def snapshot(self, clients: Collection[str]) -> None:
        """Lets clients keep a copy of their models as they are, in place of an earlier one."""
        assert self.server is not None
        self.server.request(Request.SNAPSHOT, clients, self.record)

    def restore(self, clients: Collection[str]) -> None:
        """Lets clients exchange their models and the copies that :meth:`snapshot` made."""
        assert self.server is not None
        self.server.request(Request.RESTORE, clients, self.record)

    def retire(self, clients: Collection[str]) -> None:
        """Lets clients take part in no more rounds; they are evaluated all the same."""
        assert self.server is not None
        self.server.retired |= self._known("retire", clients)

    @property
    def participants(self) -> list[str]:
        """The clients drawn for the round that is about to begin, but those that a callback has skipped by now."""
        assert self.server is not None
        return [name for name in self.server.participants(self.current_round) if name not in self.server.skipped]

    def skip(self, clients: Collection[str]) -> None:
        """Leaves clients out of the round that is about to begin; they are evaluated all the same."""
        assert self.server is not None
        self.server.skipped |= self._known("skip", clients)

    def _known(self, method: str, clients: Collection[str]) -> set[str]:
        assert self.server is not None
        known = set(self.server.clients)
        fits = not isinstance(clients, str) and set(clients) <= known
        expect(fits, f"clients` of `trainer.{method}", f"a list of clients, among {', '.join(sorted(known))},", clients)
        return set(clients)

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
        if self.secure_sums is not None and stage == "fit":
            check_round(clients_per_round(len(names), self.client_fraction))
        runs = Path(self.default_root_dir) / (self.name or f"{self.aggregator.name}-{datamodule.name}")
        checkpoint = None if ckpt_path is None else find_checkpoint(ckpt_path, runs)
        manifest = None if checkpoint is None else read_manifest(checkpoint, self.checkpoint_key)
        self._make_clients(model, datamodule, names, stage)
        self._watch(None if manifest is None else manifest["settings"].get("trainer", {}).get("monitor"))
        trainer = {
            "local_epochs": self.local_epochs,
            "client_fraction": self.client_fraction,
            "personal": self.personal,
            "monitor": self.monitor or None,
            "monitor_mode": self.monitor_mode,
            "transforms": {str(n): describe(own)[0] for n, own in enumerate(self.transforms, start=1)},
            **({} if self.secure_sums is None else {"secure_sums": asdict(self.secure_sums)}),
            **{key: value for key, value in self._client_args.items() if key not in WHERE},
        }
        self._settings, self._defaults = describe_run(
            self.seed, trainer, self.aggregator, self.given_callbacks, model, datamodule
        )
        self._settings["data"] = {name: about["data"] for name, about in self.engine.about().items()}
        self.current_round, self.should_stop = 0, False
        self._diverged: set[str] = set()
        self._ended = False
        server = self.server = Server(
            copy.deepcopy(self.aggregator),
            self.engine,
            names,
            seed=self.seed,
            client_fraction=self.client_fraction,
            personal=self.personal,
            transforms=self.transforms,
            tolerance=self.tolerance,
            secure_sums=self.secure_sums,
            ledger=Ledger() if self.writes else None,
        )
        server.aggregator.template, server.job, server.authority = model, self.job, self.authority
        trusted, sums_only = self.engine.trusted, self.secure_sums is not None
        drawn = clients_per_round(len(names), self.client_fraction)
        server.account = account_of(
            server.transforms, self.privacy, server.aggregator, names, trusted, sums_only, drawn
        )
        self._budget = [] if server.account is None else [PrivacyBudget(server.account)]
        if checkpoint is None or manifest is None:
            self.run_dir = runs
        else:
            settings = comparable(manifest["settings"], self._settings)
            check_settings(*settings, flatten(self._defaults), checkpoint)
            for name in manifest["settings"].get("callbacks", {}) if stage == "fit" else ():
                if name not in self._settings["callbacks"]:
                    rank_zero_warn(f"The run goes on without {name}, a callback of the checkpoint: not as before.")
            self.run_dir = checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint
            with reading(str(checkpoint / SERVER)):
                saved = server.load_state((checkpoint / SERVER).read_bytes())
                self.current_round = index(saved["round"])
                self.history.load_state(saved["history"])
                self._ended = saved["ended"]
                for callback in self.round_callbacks:
                    if callback.state_key in saved["callbacks"]:
                        callback.load_state_dict(saved["callbacks"][callback.state_key])
            for name in self.engine.load(checkpoint / CLIENTS):
                server.installed.pop(name, None)
            server.exclude(self.engine.unable)
        return server

    def _names(self, datamodule: FederatedData, stage: str) -> list[str]:
        """The clients' names, once the data is there."""
        with self.engine.first_here() as first:
            if first:
                datamodule.prepare_data()
        datamodule.setup(stage)
        return client_names(datamodule)

    def _make_clients(
        self,
        model: Model,
        datamodule: FederatedData,
        names: Sequence[str],
        stage: str,
        seed: int | None = None,
        simulated: bool = True,
    ) -> None:
        """Has the engine make the clients; it may make some of them later, which must be like the others."""
        own = self.seed if seed is None else seed
        callbacks = copy.deepcopy([callback for callback in self.given_callbacks if acts_in_clients(callback)])
        monitors = {"trainer.monitor": self._given_monitor[0]}
        monitors |= {f"{type(own).__name__}.monitor": getattr(own, "monitor", None) for own in self.round_callbacks}

        def build(name: str) -> Client:
            data = datamodule.client(name)
            check_client_data(data, name)
            if isinstance(data, pl.LightningDataModule):
                data.prepare_data()
                data.setup(stage)
            for callback in self.round_callbacks:
                changes = type(callback).client_data is not FederatedCallback.client_data
                wanted = "without those that change clients' data, at a site,"
                expect(simulated or not changes, "trainer.callbacks", wanted, type(callback).__name__)
                data = callback.client_data(name, data)
            module = client_module(model, data, own, name)
            if simulated and not callbacks:  # which may log what they like
                check_monitors(monitors, module)
            return Client(
                name,
                module,
                data,
                self.aggregator,
                callbacks,
                seed=own,
                simulated=simulated,
                policy=self.policy,
                rounds=self.rounds,
                local_epochs=self.local_epochs,
                personal=self.personal,
                transforms=self.transforms,
                secure_sums=self.secure_sums,
                job=self.job,
                trainer_args=self._client_args,
                device=self.strategy.root_device,
            )

        self.engine.setup(build, names, getattr(datamodule, "release", None))

    # ------------------------------------------------------------------------------------------------------ the loop
    def _loop(self, server: Server, datamodule: FederatedData, resumed: bool) -> dict[str, Any]:
        with ExitStack() as self._writing:
            return self._all_rounds(server, datamodule, resumed)

    def _all_rounds(self, server: Server, datamodule: FederatedData, resumed: bool) -> dict[str, Any]:
        assert self.run_dir is not None
        if resumed:
            whole = (self.run_dir / "checkpoints").is_dir()
            expect(whole, "ckpt_path", "in the folder of its run, RUN/checkpoints, to go on from it", self.run_dir)
            enough = self.rounds >= self.current_round
            expect(enough, "trainer.rounds", f"{self.current_round} or more, as done", self.rounds)
            if self.writes:
                self._writing.enter_context(only_writer(self.run_dir))
                with writing(self.run_dir):
                    self._open_store().discard_after(self.current_round)
                    truncate_records(self.run_dir / "history.jsonl", self.current_round)
                    discard_results(self.run_dir, self.current_round)
            line = f"continuing {self.run_dir} after round {self.current_round}"
            self.console.print(line, soft_wrap=True)
        else:
            server.begin()
        idle = self.transforms and not self.shares
        expect(not idle, "trainer.transforms", "none with an algorithm that uploads nothing", self.aggregator.name)
        about = self.engine.about()
        routes = describe_routes(client["routes"] for client in about.values())
        if self.writes:
            self._begin_folder(datamodule, routes, resumed, server.ledger)
            if resumed and self.secure_sums is not None:
                server.lost = lost_sums(read_ledger(self.run_dir / LEDGER), self.current_round)
        self.console.print(routes_table(routes))
        self._call("on_federation_start")
        if not resumed:
            server.prepare(ExchangeLines(self.console))
            if self.engine.saves_first and self.write_checkpoints and self.writes:
                self._checkpoint(server)
        with _idle_objects_frozen():
            while self.current_round < self.rounds and not self.should_stop:
                self._round(server)
            if not self._ended and self.current_round:
                self._end(server)
        if self.writes:
            self._store.wait()
        run: Any = self
        results = {
            **self.history.results(),
            "stopped_early": self.should_stop,
            "dropped": server.dropped,
            "setup_bytes": {"up": server.setup_record.bytes_up, "down": server.setup_record.bytes_down},
            "aggregator": summary_of(server.aggregator),
            **({} if self.secure_sums is None else {"secure_sums": self.secure_sums.summary()}),
            **({} if server.account is None else {"privacy": server.account.summary()}),
            "parameters": {name: client["parameters"] for name, client in about.items()},
            "data": self._settings["data"],
            "data_name": datamodule.name,
            **({"partition": datamodule.statistics} if hasattr(datamodule, "statistics") else {}),
            "seed": self.seed,
            "monitor": self.monitor,
            **{key: own for callback in self.round_callbacks for key, own in callback.results(run).items()},
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
        self.console.print(f"newest line of the ledger: {server.ledger.head[:16] if server.ledger else 'none'}")
        self.console.print(f"results in {self.run_dir}", soft_wrap=True)
        return results

    def _begin_folder(
        self, datamodule: FederatedData, routes: list[tuple[str, str, str]], resumed: bool, ledger: Ledger | None
    ) -> None:
        """Makes the run folder, if it is a new one, and begins to log."""
        assert self.run_dir is not None
        if not resumed:
            with writing(self.run_dir):
                self.run_dir = new_version(self.run_dir)
            self._writing.enter_context(only_writer(self.run_dir))
        # Ends before the folder's lock is given back.
        self._store = self._open_store(self._writing.enter_context(ThreadPoolExecutor(1, "checkpoint")))
        with writing(self.run_dir):
            if self.config_text:
                write_text(self.config_text, self.run_dir / "config.yaml")
            if ledger is not None:
                ledger.open(self.run_dir / LEDGER)
                self._writing.push(partial(_close, ledger))
                ledger.add(event="opened", run=self.run_dir.parent.name, round=self.current_round)
            self.run_log = RunLog(self.run_dir, self._logger_choice, self.current_round, self.max_logged_clients)
            self.loggers = self.run_log.loggers
            self.run_log.describe(routes, self.config_text, self._settings, datamodule)

    def _round(self, server: Server) -> None:
        began = time.perf_counter()
        self._ended = False
        self.current_round += 1
        self.record = RoundRecord(self.current_round)
        self._call("on_round_start")
        server.round(self.current_round, self.record)
        if self.current_round == 1:
            summary_of(server.aggregator)  # what JSON cannot hold would be found after the last round
        self.record.server = {**scalars_of(server.aggregator), **server.transforms.download_scalars()}
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

    def _watch(self, default: str | None = None) -> None:
        """Lets a metric decide the best round of a history that begins: the given one, or else the default."""
        given, mode = self._given_monitor
        self.monitor = given or default or ""
        self.monitor_mode = mode or (mode_of(self.monitor) if self.monitor else None)
        self.history = History(self.monitor, self.monitor_mode or "max")

    def _check_monitor(self, metrics: list[str]) -> None:
        """A misspelt metric would make the last round pass for the best one."""
        # Clients that hold nothing back for validation have no best round.
        unmeasured = self.monitor.startswith("val/") and not any(name.startswith("val/") for name in metrics)
        known = not metrics or unmeasured or self.monitor in metrics
        if known or self.simulated:
            expect(known, "trainer.monitor", f"one of {', '.join(metrics)}", self.monitor)
        else:  # sites may withhold it, and tell others
            rank_zero_warn(f"No client tells `{self.monitor}`, by which the best round is chosen.")

    def _evaluate(self, server: Server) -> None:
        self.record.metrics = server.evaluate(self.current_round, SPLITS, self.record)
        if not self.monitor and self.record.metrics:
            before = self.history.state()
            self._watch(default_monitor(self.record.metrics))
            if bare := [name for name in self.record.mean if re.fullmatch(rf"({'|'.join(SPLITS)})_[^/]+", name)]:
                called = f"call it `{bare[0].replace('_', '/', 1)}`"
                rank_zero_warn(f"No table has `{bare[0]}`, and it decides nothing: {called}.")
            self.history.load_state(before)
            self._settings["trainer"] |= {"monitor": self.monitor, "monitor_mode": self.monitor_mode}
        self._check_monitor(list(self.record.mean))
        self._warn_of_nan()

    def _warn_of_nan(self) -> None:
        """Once for each client: a model of NaN still predicts the first class, and may look well by its accuracy."""
        for client, metrics in self.record.metrics.items():
            missing = [name for name, value in metrics.items() if math.isnan(value)]
            found = [name for name in missing if name == self.monitor or name.endswith("loss")]
            if found and client not in self._diverged:
                self._diverged.add(client)
                what = f"{', '.join(found)} of client `{client}` is NaN in round {self.current_round}"
                rank_zero_warn(f"{what}: its training diverged, or this cannot be measured on its data.")

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

    def _open_store(self, thread: Executor | None = None) -> CheckpointStore:
        assert self.run_dir is not None
        return CheckpointStore(self.run_dir / "checkpoints", self.keep_checkpoints, self.checkpoint_key, thread)

    def _call(self, hook: str, *args: Any) -> None:
        for callback in (*self._budget, *self.round_callbacks):
            getattr(callback, hook)(self, *args)


def _close(ledger: Ledger, failed: type[BaseException] | None, *error: object) -> None:
    """After an error, such as a full disk, no other takes its place."""
    with suppress(InputError) if failed else nullcontext():
        ledger.close()


@contextmanager
def _idle_objects_frozen() -> Iterator[None]:
    """Keeps what exists now out of garbage collections: libraries and idle clients are many, and they stay."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
