"""Clients on several processes of one owner: a machine's cores, its GPUs, a cluster."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.plugins.environments import LightningEnvironment

from flgraph.errors import EngineError, InputError, expect
from flgraph.federation.client import Client
from flgraph.federation.engines.base import ClientError
from flgraph.federation.engines.distributed.environment import Place, alone, device_of
from flgraph.federation.engines.distributed.schedule import deal, deal_again
from flgraph.federation.engines.distributed.transport import Message, Watch, Wire
from flgraph.federation.engines.sequential import Sequential
from flgraph.federation.messages import Predictions, Request, Turn
from flgraph.runs.checkpoint import load_bytes, state_bytes, state_name

DEAL_AFTER = (2, 5)
"""After so many rounds clients may move. The first round is not measured, because much happens for the first time."""


class ProcessGroup(Sequential):
    """Deals the clients to processes, each of which keeps its share for the whole run.

    ``flgraph fit --trainer.engine ProcessGroup --trainer.engine.processes 4`` starts the processes itself. Under
    ``torchrun`` it uses those that are there, on several machines too; a script of one's own is started so. All of them
    run the same program; the server, logs, checkpoints and progress are process 0's. Every process writes its clients'
    files of a checkpoint, so the run folder must lie on a file system that all of them see.

    The results are the same bits as those of :class:`Sequential`, on the same kind of machine with the same number of
    threads per process.

    Args:
        processes: how many; when ``None``, those that torchrun started, else one per GPU, else one per core.
        threads: of torch in each process; when ``None``, ``OMP_NUM_THREADS`` (torchrun sets it to 1), else an even
            share of the machine's cores.
        patience: seconds after which a process that gives no sign of life, or stands still in a client's turn without
            using its processor, ends the run.

    Raises:
        InputError: a number is out of range, or contradicts torchrun.
    """

    def __init__(self, processes: int | None = None, threads: int | None = None, patience: float = 20.0) -> None:
        super().__init__()
        self.place = Place.here()
        for field, count in (("processes", processes), ("threads", threads)):
            fits = count is None or (isinstance(count, int) and count >= 1)
            expect(fits, f"trainer.engine.{field}", "a whole number of 1 or more", count)
        expect(patience > 0, "trainer.engine.patience", "above 0", patience)
        if self.place.launched:
            same = processes in (None, self.place.world)
            expect(same, "trainer.engine.processes", f"{self.place.world}, as were started, or left out,", processes)
        self.processes, self.threads, self.patience = processes, threads, patience
        self.owners: dict[str, int] = {}
        """Client to process; known in process 0."""
        self.seconds: dict[str, float] = {}
        """What a round of each client took when last measured; known in process 0."""
        self._wire: Wire | None = None
        self._build: Callable[[str], Client] | None = None
        self._release: Callable[[str], None] | None = None
        self._clock: dict[str, float] = {}  # client to seconds of its turn in this exchange
        self._stale: set[str] = set()  # clients whose seconds are those of an earlier round
        self._round, self._rounds_done, self._exchange = 0, 0, ""

    # ---------------------------------------------------------------------------------------------------- the process
    @property
    def leads(self) -> bool:
        return self.place.rank == 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        with alone():
            yield

    def lightning(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """With this process's GPU, and no cluster but itself (Slurm's variables are there as well)."""
        own = {**arguments, "plugins": [LightningEnvironment()]}
        if arguments.get("accelerator", "auto") in ("auto", "gpu", "cuda") and torch.cuda.is_available():
            device = device_of(self.place, arguments.get("devices", "auto"), torch.cuda.device_count())
            own["devices"] = arguments.get("devices", "auto") if device is None else device
        return own

    @contextmanager
    def session(self) -> Iterator[None]:
        if not self.place.launched:
            count = self.processes or 1
            how = "1 where nothing started more (`flgraph fit` does, and `torchrun --nproc-per-node N SCRIPT`)"
            expect(count == 1, "trainer.engine.processes", how, count)
        threads = torch.get_num_threads()
        torch.set_num_threads(self._num_threads())
        try:
            if self.place.world == 1:
                with self.alone():
                    yield
                return
            self._wire = Wire.here(self.place)
            with self._wire.session(self.patience) as watch, self.alone():
                watch.call, watch.doing = self._call, self._doing
                if not self.leads:
                    yield
                    return
                why = "Process 0 ended the run"
                try:
                    yield
                    why = ""
                except EngineError as error:
                    why = str(error)
                    raise
                finally:
                    self._end(why)
        finally:
            torch.set_num_threads(threads)

    def _num_threads(self) -> int:
        if self.threads is not None:
            return self.threads
        if "OMP_NUM_THREADS" in os.environ or not self.place.launched:
            return torch.get_num_threads()
        return max(1, num_cores() // self.place.local_world)

    def _end(self, why: str) -> None:
        """Lets the others go. After a failure they may be busy or gone; they notice when this process ends.

        They hear why: one of them may end first, and then it is what that one says that is read.
        """
        assert self._wire is not None
        with suppress(RuntimeError) if why else nullcontext():
            self._wire.post({rank: Message({"do": "end", "why": why}) for rank in self._others})
            self._wire.flush(seconds=1 if why else None)

    @contextmanager
    def first_here(self) -> Iterator[bool]:
        if self._wire is None:
            yield True
            return
        with self._wire.first_here() as first:
            yield first

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.place.world) if rank != self.place.rank]

    def _call(self, rank: int) -> str:
        names = [name for name, owner in self.owners.items() if owner == rank]
        if rank == self.place.rank:
            names = list(self.clients)
        if not names:
            return f"Process {rank}"
        some = ", ".join(f"`{name}`" for name in names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        return f"Process {rank} (client{'s' if names[1:] else ''} {some})"

    def _doing(self) -> str:
        return f" in round {self._round} ({self._exchange})" if self._exchange else ""

    # ------------------------------------------------------------------------------------------ what the leader calls
    def setup(
        self, build: Callable[[str], Client], names: Sequence[str], release: Callable[[str], None] | None = None
    ) -> None:
        """Makes this process's clients; process 0 waits for the others'."""
        self._build, self._release = build, release
        self.owners = deal(dict.fromkeys(names, 1.0), self.place.world)
        self.seconds, self._rounds_done, self._round, self._exchange = {}, 0, 0, ""
        super().setup(build, [name for name, owner in self.owners.items() if owner == self.place.rank], release)
        if self.leads:
            self._answers(self._others)

    def run(self, turns: Mapping[str, Turn]) -> dict[str, bytes]:
        self._at(turns)
        shares: dict[int, dict[str, Turn]] = {}
        for name, turn in turns.items():
            shares.setdefault(self.owners[name], {})[name] = turn
        own = shares.pop(self.place.rank, {})
        if shares:
            self._ask({rank: _order(share) for rank, share in shares.items()})
        self._clock = {}
        uploads, failures = self._turns(own)
        self._measured(self._clock)
        for answer in self._answers(list(shares)).values():
            uploads.update(zip(answer.header["names"], answer.pieces, strict=True))
            self._measured(answer.header["seconds"])
            failures.update({name: _error(told) for name, told in answer.header["failures"].items()})
        for name in turns:  # of several failures the one that would have come first in one process
            if name in failures:
                raise failures[name]
        return {name: uploads[name] for name in turns}

    def save(self, folder: Path, previous: Path | None) -> None:
        order = {"do": "save", "folder": str(folder.absolute()), "previous": previous and str(previous.absolute())}
        self._ask(dict.fromkeys(self._others, Message(order)))
        try:
            super().save(folder, previous)
        finally:
            self._answers(self._others)
        missing = [name for name in self.owners if not (folder / state_name(name)).is_file()]
        everywhere = "on a file system that all processes see"
        expect(not missing, "trainer.default_root_dir", everywhere, f"no file of `{missing[0]}`" if missing else "")

    def load(self, folder: Path) -> Collection[str]:
        self._ask(dict.fromkeys(self._others, Message({"do": "load", "folder": str(folder.absolute())})))
        try:
            super().load(folder)
        finally:
            self._answers(self._others)
        return ()

    def about(self) -> dict[str, dict[str, Any]]:
        self._ask(dict.fromkeys(self._others, Message({"do": "about"})))
        told = super().about()
        for answer in self._answers(self._others).values():
            told.update(answer.header["about"])
        return {name: told[name] for name in self.owners}

    def predict(self) -> Iterator[tuple[str, Predictions]]:
        for name, owner in self.owners.items():
            if owner == self.place.rank:
                yield name, self.clients[name].predict()
                continue
            self._ask({owner: Message({"do": "predict", "client": name})})
            (piece,) = self._answers([owner])[owner].pieces
            yield name, Predictions(**load_bytes(piece, f"predictions of client `{name}`"))

    # --------------------------------------------------------------------------------------------------------- dealing
    def _at(self, turns: Mapping[str, Turn]) -> None:
        """Notes where the run is; between two rounds clients may move."""
        turn = next(iter(turns.values()), None)
        if turn is None:
            return
        self._exchange = turn.name
        if turn.round == self._round:
            return
        began, self._round = self._round, turn.round
        self._rounds_done += began > 0
        if self._rounds_done == 1:
            self.seconds = {}
        if self._rounds_done in DEAL_AFTER and self.place.world > 1:
            known = [seconds for seconds in self.seconds.values() if seconds]
            typical = sum(known) / len(known) if known else 1.0  # for those who did not take part yet
            costs = {name: self.seconds.get(name, typical) for name in self.owners}
            self._move(deal_again(costs, self.owners, self.place.world))
        self._stale = set(self.owners)

    def _measured(self, seconds: Mapping[str, float]) -> None:
        """Adds up a round's turns; those of a new round replace the old ones."""
        for name, value in seconds.items():
            if name in self._stale:
                self._stale.discard(name)
                self.seconds[name] = 0.0
            self.seconds[name] = self.seconds.get(name, 0.0) + value

    def _move(self, owners: Mapping[str, int]) -> None:
        """Brings clients to their new processes, through this one, as their checkpoints would."""
        for name, target in owners.items():
            source = self.owners[name]
            if source == target:
                continue
            if source == self.place.rank:
                state = self._give(name)
            else:
                self._ask({source: Message({"do": "give", "client": name})})
                (state,) = self._answers([source])[source].pieces
            if target == self.place.rank:
                self._take(name, state)
            else:
                self._ask({target: Message({"do": "take", "client": name}, [state])})
                self._answers([target])
            self.owners[name] = target

    def _give(self, name: str) -> bytes:
        state = state_bytes(self.clients.pop(name).state())
        if self._release is not None:
            self._release(name)
        return state

    def _take(self, name: str, state: bytes) -> None:
        assert self._build is not None
        client = self._build(name)
        client.load_state(load_bytes(state, f"state of client `{name}`"))
        self.clients[name] = client

    # ------------------------------------------------------------------------------------------------- the other side
    def serve(self, prepare: Callable[[], None] | None = None) -> None:
        """Raises EngineError if the leading process failed or is gone."""
        if prepare is not None:
            self._answer(lambda order: (prepare(), Message({}))[1], Message({}))
        while True:
            assert self._wire is not None
            order = self._wire.collect([0])[0]
            if order.header["do"] == "end":
                if order.header["why"]:
                    raise EngineError(order.header["why"])
                return
            self._answer(self._obey, order)

    def _answer(self, work: Callable[[Message], Message], order: Message) -> None:
        assert self._wire is not None
        try:
            answer = work(order)
        except Exception as error:
            answer = Message({"error": _told(error)})
        self._wire.post({0: answer})
        self._wire.flush()

    def _obey(self, order: Message) -> Message:
        header = order.header
        match header["do"]:
            case "run":
                self._clock = {}
                uploads, failures = self._turns(_turns(order))
                failed = {name: _told(error) for name, error in failures.items()}
                told = {"names": list(uploads), "seconds": self._clock, "failures": failed}
                return Message(told, list(uploads.values()))
            case "save":
                super().save(Path(header["folder"]), header["previous"] and Path(header["previous"]))
            case "load":
                super().load(Path(header["folder"]))
            case "about":
                return Message({"about": super().about()})
            case "predict":
                return Message({}, [state_bytes(vars(self.clients[header["client"]].predict()))])
            case "give":
                return Message({}, [self._give(header["client"])])
            case "take":
                self._take(header["client"], order.pieces[0])
        return Message({})

    def _turns(self, turns: Mapping[str, Turn]) -> tuple[dict[str, bytes], dict[str, Exception]]:
        """Uploads, and the failure that cut them short, if there was one, by client."""
        uploads: dict[str, bytes] = {}
        for name, turn in turns.items():
            watch = self._watch
            began = time.perf_counter()
            try:
                if watch is not None:
                    watch.turn = f"in round {turn.round} ({turn.name}) of client `{name}`"
                uploads[name] = self._turn(name, turn)
            except Exception as error:
                return uploads, {name: error}
            finally:
                if watch is not None:
                    watch.turn = ""
            self._clock[name] = time.perf_counter() - began
        return uploads, {}

    @property
    def _watch(self) -> Watch | None:
        return None if self._wire is None else self._wire.watch

    # -------------------------------------------------------------------------------------------------------- messages
    def _ask(self, messages: Mapping[int, Message]) -> None:
        if messages:
            assert self._wire is not None
            self._wire.post(messages)

    def _answers(self, ranks: Sequence[int]) -> dict[int, Message]:
        """What these processes answer to what they were asked.

        Raises:
            EngineError: one of them is gone, or could not do it (InputError if that is why).
        """
        if not ranks:
            return {}
        assert self._wire is not None
        answers = self._wire.collect(ranks)
        self._wire.flush()
        for answer in answers.values():
            if answer.header.get("error"):
                raise _error(answer.header["error"])
        return answers


class RemoteTracebackError(Exception):
    """The traceback of an error in another process, as its text."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _told(error: Exception) -> dict[str, Any]:
    kind = next(
        kind.__name__ for kind in (InputError, OSError, ClientError, EngineError, Exception) if isinstance(error, kind)
    )
    message = str(error) if kind != "Exception" else f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    number = error.errno if isinstance(error, OSError) else None
    return {"kind": kind, "message": message, "trace": trace, "errno": number}


def _error(told: Mapping[str, Any]) -> Exception:
    """The error of another process, as one of this process's."""
    if told["kind"] == "InputError":
        return InputError(told["message"])
    if told["kind"] == "OSError":  # of the disk: who writes checkpoints knows what to say
        return OSError(told["errno"], os.strerror(told["errno"]) if told["errno"] else told["message"])
    kind = ClientError if told["kind"] == "ClientError" else EngineError
    error = kind.__new__(kind)
    RuntimeError.__init__(error, told["message"])
    error.__cause__ = RemoteTracebackError(told["trace"])
    return error


def _order(turns: Mapping[str, Turn]) -> Message:
    """The turns of a process; a download that several clients get travels once."""
    pieces: dict[bytes, int] = {}
    asked = {}
    for name, turn in turns.items():
        piece = None if turn.download is None else pieces.setdefault(turn.download, len(pieces))
        asked[name] = {
            "round": turn.round,
            "exchange": turn.exchange,
            "request": turn.request,
            "splits": turn.splits,
            "piece": piece,
        }
    return Message({"do": "run", "turns": asked}, list(pieces))


def _turns(order: Message) -> dict[str, Turn]:
    return {
        name: Turn(
            asked["round"],
            Request(asked["request"]),
            asked["exchange"],
            None if asked["piece"] is None else order.pieces[asked["piece"]],
            tuple(asked["splits"]),
        )
        for name, asked in order.header["turns"].items()
    }
