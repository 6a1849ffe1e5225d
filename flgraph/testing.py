"""Checks for whoever writes an algorithm: what the framework promises of every one of them."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from flgraph.errors import InputError
from flgraph.federation import Aggregator, FederatedTrainer, Payload, ProcessGroup, Request, Sequential, Turn
from flgraph.federation.data import FederatedData
from flgraph.federation.payload import unpack
from flgraph.federation.template import Model
from flgraph.runs.checkpoint import CLIENTS, SERVER, load_bytes, load_file, state_bytes
from flgraph.runs.history import read_records
from flgraph.runs.reader import read_results

Setup = Callable[[], tuple[Aggregator, Model, FederatedData]]
"""Makes an algorithm, a model and clients' data, the same ones at every call."""


def check_algorithm(setup: Setup, rounds: int = 3, processes: int = 1, **trainer_args: Any) -> None:
    """Runs an algorithm a few times, and checks what every algorithm has to keep.

    - Uploads hold what the routes name and nothing else.
    - The server changes something: who uploads tensors is sent others than before.
    - From one round to the next neither half remembers anything that it does not declare. A run gives the same bits
      that is stopped after any of its rounds and goes on, and whose clients were until then made anew from their saved
      states before every round, as when they move to another process: at the clients and at the server, where
      ``log_scalars`` and ``summary`` are the same, too.
    - So does one on several processes, where ``processes`` is above 1. This starts processes, which takes seconds, and
      needs a ``setup`` that they can import, and in a script a call below ``if __name__ == "__main__":``.

    Args:
        setup: a function without arguments; what it makes must not depend on how often it was called.
        rounds: of each run, 2 or more.
        processes: see above.
        trainer_args: further arguments of :class:`FederatedTrainer`.

    Raises:
        AssertionError: says which promise is broken.
        InputError: an upload is refused, or ``setup`` is no function that other processes can import.

    >>> from flgraph.callbacks import FedAvg
    >>> from flgraph.data import SyntheticFederation
    >>> from flgraph.models import GNN
    >>> def setup():
    ...     return FedAvg(), GNN(hidden_channels=4), SyntheticFederation(["trees", "rings"], num_graphs=12)
    >>> check_algorithm(setup, rounds=2)
    """
    assert rounds >= 2, "a run of one round cannot be stopped before its end"
    if processes > 1:
        try:
            pickle.dumps(setup)
        except Exception as error:  # as many as there are ways to be no such function
            raise InputError("setup", "a function that other processes can import", error) from error
    with tempfile.TemporaryDirectory(prefix="flgraph-check-") as folder:

        def run(name: str, count: int = rounds, engine: Sequential | None = None, **resume: Any) -> dict[str, Any]:
            return _run(setup, Path(folder) / name, count, engine or Sequential(), trainer_args, **resume)

        watched = Watched()
        expected = run("whole", engine=watched)
        watched.check()
        for stop in range(1, rounds):
            run(f"stopped-{stop}", stop, Moved())
            found = run(f"stopped-{stop}", ckpt_path="last")
            _same(found, expected, f"after clients were made anew and it was stopped in round {stop} and went on")
        if processes > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            where = Path(folder) / "processes"
            spawn(_process, (processes, port, setup, where, rounds, trainer_args), nprocs=processes)
            _same(_states(where), expected, f"on {processes} processes")


class Watched(Sequential):
    """All clients in this process; remembers what they sent and were sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = False
        self.downloads: dict[str, set[bytes]] = {}

    def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
        answers = super().run(turns)
        for name, turn in turns.items():
            answer = answers[name]
            assert isinstance(answer, bytes)
            self.sent = self.sent or bool(turn.exchange and answer and Payload.from_bytes(answer).tensors)
            if turn.download is not None and turn.request != Request.AGREE:
                payload = Payload.from_bytes(turn.download)
                weights = Payload(payload.group() or payload.tensors).to_bytes()
                self.downloads.setdefault(name, set()).add(weights)
        return answers

    def check(self) -> None:
        """Fails if clients sent tensors and were sent nothing new in return."""
        news = any(len(downloads) > 1 for downloads in self.downloads.values())
        assert news or not self.sent, "clients upload tensors, but what the server sends never changes: see `aggregate`"


class Moved(Sequential):
    """All clients in this process, each made anew from its saved state at the beginning of every round."""

    def setup(self, build: Any, names: Any, release: Any = None) -> None:
        super().setup(build, names, release)
        self.build, self.rounds = build, dict.fromkeys(names, 0)

    def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
        for name, turn in turns.items():
            if turn.round == self.rounds[name]:
                continue
            self.rounds[name] = turn.round
            state = state_bytes(self.clients[name].state())
            self.clients[name] = self.build(name)
            self.clients[name].load_state(load_bytes(state, f"state of client `{name}`"))
        return super().run(turns)


def _run(
    setup: Setup, folder: Path, rounds: int, engine: Sequential, trainer_args: Mapping[str, Any], **resume: Any
) -> dict[str, Any]:
    aggregator, model, datamodule = setup()
    quiet = {"enable_progress_bar": False, "logger": False, "name": "run", "accelerator": "cpu"}
    arguments = {**quiet, **trainer_args, "rounds": rounds, "engine": engine, "default_root_dir": str(folder)}
    FederatedTrainer(aggregator, **arguments).fit(model, datamodule, **resume)
    return _states(folder)


def _states(folder: Path) -> dict[str, Any]:
    """What the server half holds and reports, and every client's weights and client half, at the end of a run."""
    version = folder / "run" / "version_0"
    last = version / "checkpoints" / "last"
    told = {
        "summary": read_results(version / "results.json")["aggregator"],
        "log_scalars": [record["server"] for record in read_records(version / "history.jsonl")],
    }
    server = (last / SERVER).read_bytes()
    states = {file.stem: load_file(file) for file in sorted((last / CLIENTS).iterdir())}
    found = {name: {key: state[key] for key in ("state_dict", "callbacks", "client")} for name, state in states.items()}
    return {"server": {**unpack(Payload.from_bytes(server, max_header=len(server)))["algorithm"], **told}, **found}


def _process(
    rank: int, world: int, port: int, setup: Setup, folder: Path, rounds: int, trainer_args: Mapping[str, Any]
) -> None:
    here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in here.items()} | {"MASTER_ADDR": "127.0.0.1"})
    torch.set_num_threads(1)
    _run(setup, folder, rounds, ProcessGroup(), trainer_args)


def _same(found: Any, expected: Any, when: str, path: str = "") -> None:
    """Fails at the first value that differs, and names it."""
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys(), f"{path} is not the same {when}: {sorted(found)}, {sorted(expected)}"
        for key, value in expected.items():
            _same(found[key], value, when, f"{path}.{key}" if path else str(key))
    elif isinstance(expected, Tensor):
        alike = found.layout == expected.layout and torch.equal(found.to_dense(), expected.to_dense())
        assert alike, f"{path} is not the same {when}"
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), f"{path} is not the same {when}: {found}, {expected}"
        for number, value in enumerate(expected):
            _same(found[number], value, when, f"{path}[{number}]")
    else:
        assert found == expected or found != found, f"{path} is not the same {when}: {found}, {expected}"
