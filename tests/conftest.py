"""What every test can count on: few threads, a cache of its own, and an environment that nobody has changed."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flgraph.importing import without_collections

with without_collections():
    import pytorch_lightning as pl
    import torch
    import torch_geometric.loader
    from federations import toy_graphs
    from hypothesis import settings
    from pytorch_lightning.plugins.precision import MixedPrecision
    from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultMetric
    from torch import Tensor
    from torch.nn import functional as F
    from torch.utils.data import BatchSampler, DataLoader, TensorDataset
    from torch_geometric.data import Data

    import flgraph
    from flgraph.data import EgoLoader, GraphFederation, NodeGraph
    from flgraph.federation import Aggregator, FederatedTrainer, Payload, Request, Sequential, Turn, loop
    from flgraph.runs.history import read_records

# The same examples in every run: what fails for one fails for everybody.
settings.register_profile("flgraph", derandomize=True)
settings.load_profile("flgraph")

# Variables that libraries and pytest itself set in passing. Anything else that a test leaves behind fails it.
PASSING = {
    "PYTEST_CURRENT_TEST",
    "PYTEST_VERSION",
    "PL_GLOBAL_SEED",  # pytorch_lightning.seed_everything
    "PL_SEED_WORKERS",
    "TF_CPP_MIN_LOG_LEVEL",  # tensorboard
    "GOMP_SPINCOUNT",  # flgraph.cli.main
    "KMP_INIT_AT_FORK",  # torch
    "KMP_DUPLICATE_LIB_OK",
    "CUDA_DEVICE_ORDER",  # pytorch_lightning, with a GPU
}


SLOW = ("docs", "flare", "parity", "reproduce", "faults", "golden", "examples", "cli", "callbacks", "report")
SLOW += ("test_process_group", "test_remote", "test_remote_states", "test_resume")
"""Folders and files whose tests start processes, train or draw for long; `make check` leaves them out."""


def pytest_configure() -> None:
    """Tests write to memory where there is much of it: some disks take milliseconds to remove a folder."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 8 * 2**30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks slow tests; they come first, so that no worker is left with them (make passes --no-loadscope-reorder)."""
    order = {}
    for item in items:
        found = [SLOW.index(name) for name in (item.path.parent.name, item.path.stem) if name in SLOW]
        order[item] = min(found, default=len(SLOW))
        if found:
            item.add_marker("slow")
    items.sort(key=order.__getitem__)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All tests at sites go to one worker: a second one would start the sites a second time."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/flare" if nodeid.startswith("tests/flare/") else str(super()._split_scope(nodeid))

    return Scheduling(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(scope="session", autouse=True)
def threads() -> Iterator[None]:
    """At most two threads for torch, so that timings and parallel tests (pytest -n) stay sane on large machines.

    Whoever sets their number has clients in one process, too, where tests can change what these do.
    """
    torch.set_num_threads(min(2, torch.get_num_threads()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
        yield


@pytest.fixture(scope="session", autouse=True)
def garbage() -> Iterator[None]:
    """Garbage is collected more seldom, and not before each run: libraries alone are half a million objects."""
    gc.set_threshold(10_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "gc", SimpleNamespace(collect=lambda: 0, freeze=gc.freeze, unfreeze=gc.unfreeze))
        yield


@pytest.fixture(scope="session", autouse=True)
def disk() -> Iterator[None]:
    """Nobody waits for the disk, but programs that tests start: this process does not outlive a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which refuses what is no open file, too
        yield


@pytest.fixture(scope="session", autouse=True)
def logged_where_it_is() -> Iterator[None]:
    """What a model logs stays on its device: Lightning looks through all of it each time, a tenth of a short run."""
    moved = _ResultMetric.to

    def to(self: _ResultMetric, device: torch.device | str, **kwargs: Any) -> _ResultMetric:
        there = self.is_tensor and self.value.device == torch.device(device)
        return self if there else moved(self, device, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ResultMetric, "to", to)
        yield


_LOADERS = {
    (kind, name): getattr(kind, name)
    for kind in (DataLoader, BatchSampler, torch_geometric.loader.DataLoader)
    for name in ("__init__", "__setattr__", "__delattr__")
    if name in vars(kind)
}


@pytest.fixture(autouse=True)
def loaders_as_they_were() -> Iterator[None]:
    """Lightning replaces their methods for a moment, and two threads that do so at once may leave them replaced."""
    yield
    for (kind, name), own in _LOADERS.items():
        if vars(kind)[name] is not own:
            setattr(kind, name, own)


@pytest.fixture(autouse=True)
def default_type() -> Iterator[None]:
    """torch's default type is one for the whole process: a test that leaves it changed breaks others."""
    yield
    found = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    assert found == torch.float32


@pytest.fixture(autouse=True)
def form_of_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line prints warnings its own way; pytest's summary says where they are from."""
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)


@pytest.fixture(scope="session", autouse=True)
def cache() -> Iterator[Path]:
    """An empty FLGRAPH_CACHE, gone after the session."""
    with tempfile.TemporaryDirectory(prefix="flgraph-cache-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLGRAPH_CACHE", folder)
        yield Path(folder)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A FLGRAPH_CACHE of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FLGRAPH_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real datasets named by FLGRAPH_DATA; the test is skipped where there is none."""
    folder = os.environ.get("FLGRAPH_DATA", "")
    if not folder:
        pytest.skip("needs real data: FLGRAPH_DATA names no folder")
    if not Path(folder).is_dir():
        pytest.fail(f"FLGRAPH_DATA is {folder!r}, which is not a folder")
    return Path(folder)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Restores the environment after each test, and fails the test that changed it (monkeypatch undoes its own)."""
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    for name in changed - {"PYTEST_CURRENT_TEST"}:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    leaked = sorted(changed - PASSING)
    assert not leaked, f"the test left environment variables changed: {', '.join(leaked)}"


# ------------------------------------------------------------------------------------------------------ federations
STATE = ("state_dict", "optimizer_states", "client")


class ToyData:
    """A client's rows and classes, in batches; the same rows for training, validation and test."""

    def __init__(self, x: Tensor, y: Tensor, batch_size: int | None = None, shuffle: bool = False) -> None:
        self.x, self.y, self.shuffle = x, y, shuffle
        self.batch_size = len(x) if batch_size is None else batch_size
        self.settings = {"batch_size": self.batch_size}

    @property
    def num_train_samples(self) -> int:
        return len(self.x)

    @property
    def model_args(self) -> dict[str, int]:
        return {"in_features": self.x.size(1)}

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(self.x, self.y), self.batch_size, shuffle=self.shuffle)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(self.x, self.y), len(self.x))

    test_dataloader = predict_dataloader = val_dataloader


class EgoData:
    """A client's graph in which every node is a training, validation and test node, with ego-graphs of 1 + 2 + 4."""

    def __init__(self, graph: NodeGraph, train: Tensor, batch_size: int = 4) -> None:
        self.graph, self.train, self.batch_size = graph, train, batch_size
        self.settings = {"batch_size": batch_size}

    @property
    def num_train_samples(self) -> int:
        return self.train.numel()

    @property
    def model_args(self) -> dict[str, int]:
        return {"in_channels": self.graph.num_features, "num_classes": self.graph.num_classes}

    @property
    def train_labels(self) -> Tensor:
        return self.graph.y[self.train]

    def train_dataloader(self) -> EgoLoader:
        return EgoLoader(self.graph, self.train, self.batch_size, (2, 2), shuffle=True)

    def mixup_dataloader(self) -> EgoLoader:
        return EgoLoader(self.graph, self.train, self.batch_size, (2, 2))

    def val_dataloader(self) -> EgoLoader:
        return EgoLoader(self.graph, self.train, 64, (2, 2), fixed=True)

    def test_dataloader(self) -> list[EgoLoader]:
        return [self.val_dataloader(), EgoLoader(self.graph, self.train[:3], 64, (2, 2), fixed=True)]


class ToyFederation:
    """Clients by name, for a trainer."""

    name = "toy"

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = dict(given)

    @property
    def clients(self) -> list[str]:
        return list(self.given)

    def client(self, name: str) -> Any:
        return self.given[name]

    def prepare_data(self) -> None: ...

    def setup(self, stage: str) -> None: ...


class ToyModule(pl.LightningModule):
    """Two classes from rows, in a few matrix products: as much of Lightning as possible, as little time as possible."""

    def __init__(
        self,
        in_features: int = -1,
        hidden: int = 3,
        dropout: float = 0.0,
        norm: bool = False,
        lr: float = 0.1,
        optimizer: str = "sgd",
        decay_every: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if in_features == -1:
            return
        self.first = torch.nn.Linear(in_features, hidden)
        self.norm = torch.nn.BatchNorm1d(hidden) if norm else torch.nn.Identity()
        self.dropout = torch.nn.Dropout(dropout)
        self.last = torch.nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.dropout(torch.tanh(self.norm(self.first(x)))))
        return logits

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self._report(batch, "val")

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self._report(batch, "test")

    def _report(self, batch: list[Tensor], split: str) -> None:
        logits = self(batch[0])
        self.log(f"{split}/loss", F.cross_entropy(logits, batch[1]))
        self.log(f"{split}/accuracy", (logits.argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[self.hparams["optimizer"]]
        optimizer = kind(self.parameters(), lr=self.hparams["lr"])
        if not self.hparams["decay_every"]:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, self.hparams["decay_every"], gamma=0.5)]


class Recorder(Sequential):
    """Clients in this process, and everything that crossed the door: (client, turn, answer)."""

    def __init__(self) -> None:
        super().__init__()
        self.crossed: list[tuple[str, Turn, bytes]] = []

    def run(self, turns: Mapping[str, Turn]) -> dict[str, bytes]:
        answers = super().run(turns)
        self.crossed += [(name, turn, answers[name]) for name, turn in turns.items()]
        return answers

    def uploads(self, exchange: str = "train", some: bool = True) -> list[tuple[str, Payload]]:
        """What clients sent in exchanges or requests of that name, which must be something unless told otherwise."""
        found = [
            (name, Payload.from_bytes(answer))
            for name, turn, answer in self.crossed
            if turn.name == exchange and answer
        ]
        assert found or not some, f"nothing was sent in `{exchange}`"
        return found

    def downloads(self) -> list[tuple[str, Turn, Payload]]:
        """What the server sent once clients had agreed on what is shared."""
        return [
            (name, turn, Payload.from_bytes(turn.download))
            for name, turn, _ in self.crossed
            if turn.download is not None and turn.request is not Request.AGREE
        ]


@pytest.fixture
def toy_module() -> type[ToyModule]:
    """A small LightningModule class with ``save_hyperparameters``."""
    return ToyModule


@pytest.fixture
def toy_data() -> Callable[..., ToyData]:
    """Makes a client's data: ``toy_data(rows, features=4, seed=0, batch_size=None, shuffle=False)``."""

    def make(rows: int = 6, features: int = 4, seed: int = 0, **kwargs: Any) -> ToyData:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, features, generator=generator)
        return ToyData(x, torch.arange(rows) % 2, **kwargs)

    return make


@pytest.fixture
def toy_federation(toy_data: Callable[..., ToyData]) -> Callable[..., ToyFederation]:
    """Makes a federation of clients ``A``, ``B``, ... with so many rows each, or of given data."""

    def make(*rows: int, **kwargs: Any) -> ToyFederation:
        if not rows:
            return ToyFederation(kwargs)
        return ToyFederation(
            {chr(65 + number): toy_data(count, seed=number, **kwargs) for number, count in enumerate(rows)}
        )

    return make


@pytest.fixture
def ego_federation() -> Callable[..., ToyFederation]:
    """Makes a federation with a client per tuple: a ring of nodes with these classes by turns."""

    def make(classes: tuple[tuple[int, ...], ...] = ((0, 0, 1), (1, 2), (0, 1, 2)), nodes: int = 12) -> ToyFederation:
        given = {}
        for number, pattern in enumerate(classes):
            generator = torch.Generator().manual_seed(number)
            y = torch.tensor(pattern).repeat(nodes)[:nodes]
            ring = torch.arange(nodes)
            edges = torch.stack([torch.cat([ring, ring.roll(-1)]), torch.cat([ring.roll(-1), ring])])
            edges = edges[:, (edges[0] * nodes + edges[1]).argsort()]
            x = (torch.rand(nodes, 6, generator=generator) + F.one_hot(y, 6)).floor()
            given[chr(65 + number)] = EgoData(NodeGraph(x.to_sparse_csr(), edges, y, 3), torch.arange(nodes))
        return ToyFederation(given)

    return make


@pytest.fixture
def graph_list() -> Callable[..., list[Data]]:
    """Makes small graphs with features, two classes by turns: ``graph_list(count, features=4, seed=0)``."""
    return toy_graphs


@pytest.fixture
def graph_federation(graph_list: Callable[..., list[Data]]) -> Callable[..., GraphFederation]:
    """Makes a federation of three clients with 20, 30 and 20 graphs: ``graph_federation(features=(4, 4, 4))``."""

    def make(features: tuple[int, ...] = (4, 4, 4), **kwargs: Any) -> GraphFederation:
        given = {
            chr(65 + number): graph_list(30 if number == 1 else 20, width, number)
            for number, width in enumerate(features)
        }
        return GraphFederation(given, **{"batch_size": 8, "dse_dim": 3, "rwse_dim": 3, **kwargs})

    return make


@pytest.fixture
def federate(tmp_path: Path) -> Callable[..., FederatedTrainer]:
    """Makes a silent trainer on the CPU whose runs lie in the test's folder; no logger unless one is asked for."""

    def make(aggregator: Aggregator, **kwargs: Any) -> FederatedTrainer:
        quiet = {"enable_progress_bar": False, "logger": False, "accelerator": "cpu"}
        return FederatedTrainer(aggregator, **{"default_root_dir": str(tmp_path / "runs"), **quiet, **kwargs})

    return make


@pytest.fixture
def assert_equal_runs(
    federate: Callable[..., FederatedTrainer], assert_same: Callable[..., None]
) -> Callable[..., None]:
    """Checks that two algorithms leave clients with the same weights and optimizers, bit for bit.

    ``assert_equal_runs(one, other, model, data, keys=(...), **trainer)`` with functions that make model and data.
    """

    def check(one: Aggregator, other: Aggregator, model: Any, data: Any, keys: Any = STATE, **kwargs: Any) -> None:
        found = []
        for aggregator in (one, other):
            trainer: Any = federate(aggregator, enable_checkpointing=False, **kwargs)
            trainer.fit(model(), data())
            states = [client.state() for client in trainer.engine.clients.values()]
            found.append([{key: state[key] for key in keys} for state in states])
        assert_same(*found)

    return check


@pytest.fixture
def recorder() -> Recorder:
    """An engine that keeps everything that crosses between clients and server."""
    return Recorder()


class Float16(pl.Callback):
    """Lightning's 16-mixed on a CPU, which it offers on a GPU only."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
        trainer.strategy._precision_plugin = MixedPrecision("16-mixed", "cpu", scaler)


@pytest.fixture
def float16() -> Float16:
    """A callback that has clients train in float16."""
    return Float16()


# ------------------------------------------------------------------------------------------------------- processes
class Run:
    """One process of ``flgraph`` or a script, forked from one that has imported everything (``forking.py``)."""

    def __init__(self, server: subprocess.Popen[str], folder: Path, args: list[str], log: str, file_size: int) -> None:
        self.stdout, self.stderr = folder / f"{log}stdout.txt", folder / f"{log}stderr.txt"
        self._server = server
        out = {"stdout": str(self.stdout), "stderr": str(self.stderr)}
        self.pid = self._order({"args": args, "folder": str(folder), "file_size": file_size, **out})

    def signal(self, signum: int) -> None:
        """May be too late, if the process has ended: until :meth:`wait` nobody else can have its number."""
        self.kill(self.pid, signum)

    def kill(self, pid: int, signum: int) -> None:
        """A signal to a process that this one started."""
        with suppress(ProcessLookupError):
            os.kill(pid, signum)

    def pause(self, seconds: float) -> None:
        """Lets it run."""
        time.sleep(seconds)

    def wait(self) -> int:
        """Exit code, negative for a signal."""
        return self._order({"wait": self.pid})

    def wait_for(self, condition: Callable[[], bool], seconds: float = 400.0) -> None:
        """Waits until something holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"nothing happened: {self.stderr.read_text()}"
            time.sleep(0.002)

    def _order(self, order: dict[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


@pytest.fixture(scope="session")
def forking() -> Iterator[subprocess.Popen[str]]:
    """The process from which those of :func:`start` are forked."""
    paths = [Path(flgraph.__file__).parents[1], Path(__file__).parents[1]]  # the package, and what tests give it
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", str(Path(__file__).with_name("forking.py"))]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="session")
def start_in(forking: subprocess.Popen[str]) -> Callable[..., Run]:
    """Begins ``flgraph ARGS``, or ``SCRIPT.py ARGS``, in a process of its own and in the folder that is given."""

    def begin(folder: Path, *args: str, log: str = "", file_size: int = 0) -> Run:
        return Run(forking, folder, list(args), log, file_size)

    return begin


@pytest.fixture
def start(start_in: Callable[..., Run], tmp_path: Path) -> Callable[..., Run]:
    """The same; in a folder of the test's, unless another one is given."""

    def begin(*args: str, folder: Path = tmp_path, **kwargs: Any) -> Run:
        return start_in(folder, *args, **kwargs)

    return begin


def _same(one: Any, other: Any, where: str) -> None:
    if isinstance(one, Tensor):
        assert isinstance(other, Tensor), where
        assert one.dtype == other.dtype, where
        assert one.shape == other.shape, where
        assert one.layout == other.layout, where
        assert torch.equal(*(t if t.layout == torch.strided else t.to_dense() for t in (one, other))), where
    elif isinstance(one, Mapping):
        assert list(one) == list(other), where
        for key in one:
            _same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            _same(a, b, f"{where}[{number}]")
    else:
        assert one == other, where


@pytest.fixture(scope="session")
def measured() -> Any:
    """What must be the same bits: metrics, bytes, history, every client's state, the server's tensors."""

    def measure(run: Path) -> dict[str, Any]:
        results = json.loads((run / "results.json").read_text())
        kept = ("final", "best_val", "rounds", "bytes_per_round", "setup_bytes", "aggregator", "parameters", "data")
        folder = run / "checkpoints" / "last"
        server = (folder / "server.safetensors").read_bytes()
        return {
            "results": {key: results[key] for key in kept},
            "history": [{**record, "seconds": None} for record in read_records(run / "history.jsonl")],
            "clients": {
                f.stem: torch.load(f, "cpu", weights_only=False) for f in sorted(folder.glob("clients/*.ckpt"))
            },
            "server": server[8 + int.from_bytes(server[:8], "little") :],  # the header holds seconds
        }

    return measure


@pytest.fixture
def assert_same() -> Callable[..., None]:
    """Compares nested dictionaries, lists and tensors bit for bit; a failure names the place."""

    def compare(one: Any, other: Any) -> None:
        _same(one, other, "root")

    return compare
