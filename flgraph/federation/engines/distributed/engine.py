"""Clients on several processes of one owner: a machine's cores, its GPUs, a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from joblib import cpu_count
from pytorch_lightning.plugins.environments import LightningEnvironment

from flgraph.errors import EngineError, decode_error, expect
from flgraph.federation.client import Client
from flgraph.federation.engines.distributed.environment import ProcessEnvironment, alone, device_of
from flgraph.federation.engines.distributed.heartbeat import Heartbeat
from flgraph.federation.engines.distributed.schedule import assign, reassign
from flgraph.federation.engines.distributed.transport import Pipes, Transport
from flgraph.federation.engines.host import SUMS, Host, Message, attempt, run_request
from flgraph.federation.engines.sequential import Sequential
from flgraph.federation.messages import Predictions, Turn
from flgraph.federation.summing import Group
from flgraph.runs.checkpoint import load_bytes, state_name
from flgraph.runs.files import Digest

REASSIGN_AFTER = (2, 5)
"""After so many rounds clients may move. The first round is not measured, because much happens for the first time."""


class ProcessGroup(Sequential):
    """Assigns the clients to processes, each of which has its share for the whole run.

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
        timeout: seconds after which a process that gives no sign of life, or stands still in a client's turn without
            using its processor, ends the run.

    Raises:
        InputError: a number is out of range, or contradicts torchrun.
    """

    launched = True
    batch = None

    def __init__(self, processes: int | None = None, threads: int | None = None, timeout: float = 20.0) -> None:
        super().__init__()
        self.process = ProcessEnvironment.here()
        for field, count in (("processes", processes), ("threads", threads)):
            fits = count is None or (isinstance(count, int) and count >= 1)
            expect(fits, f"trainer.engine.{field}", "a whole number of 1 or more", count)
        expect(timeout > 0, "trainer.engine.timeout", "above 0", timeout)
        if self.process.launched:
            same = processes in (None, self.process.world)
            expect(same, "trainer.engine.processes", f"{self.process.world}, as were started, or left out,", processes)
        self.processes, self.threads, self.timeout = processes, threads, timeout
        self.owners: dict[str, int] = {}
        """Client to process; known in process 0."""
        self.seconds: dict[str, float] = {}
        """What a round of each client took when last measured; known in process 0."""
        self._transport: Transport | Pipes | None = None
        self._clock: dict[str, float] = {}  # the same, of this round so far
        self._round, self._rounds_done, self._exchange = 0, 0, ""

    # ---------------------------------------------------------------------------------------------------- the process
    @property
    def leads(self) -> bool:
        return self.process.rank == 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        with alone():
            yield

    def lightning(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """With this process's GPU, and no cluster but itself (Slurm's variables are there as well)."""
        own = {**arguments, "plugins": [LightningEnvironment()]}
        if arguments.get("accelerator", "auto") in ("auto", "gpu", "cuda") and torch.cuda.is_available():
            device = device_of(self.process, arguments.get("devices", "auto"), torch.cuda.device_count())
            own["devices"] = arguments.get("devices", "auto") if device is None else device
        return own

    @contextmanager
    def session(self) -> Iterator[None]:
        if not self.process.launched:
            count = self.processes or 1
            how = "1 where nothing started more (`flgraph fit` does, and `torchrun --nproc-per-node N SCRIPT`)"
            expect(count == 1, "trainer.engine.processes", how, count)
        threads = torch.get_num_threads()
        torch.set_num_threads(self._num_threads())
        try:
            if self.process.world == 1:
                with self.alone():
                    yield
                return
            transport = self._transport = Transport.here(self.process)
            with transport.session(self.timeout) as heartbeat, self.alone():
                heartbeat.name, heartbeat.when = self._name, self._when
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
                    self._end(transport, why)
        finally:
            torch.set_num_threads(threads)

    def _num_threads(self) -> int:
        if self.threads is not None:
            return self.threads
        if "OMP_NUM_THREADS" in os.environ or not self.process.launched:
            return torch.get_num_threads()
        return max(1, num_cores() // self.process.local_world)

    def _end(self, transport: Transport, why: str) -> None:
        """Lets the others go. After a failure they may be busy or gone; they notice when this process ends.

        They hear why: one of them may end first, and then it is what that one says that is read.
        """
        with suppress(RuntimeError) if why else nullcontext():
            transport.send({rank: Message({"do": "end", "why": why}) for rank in range(1, self.process.world)})
            transport.flush(seconds=1 if why else None)

    @contextmanager
    def first_here(self) -> Iterator[bool]:
        heartbeat, key = self._heartbeat, f"first/{self.process.machine}"
        if heartbeat is not None and self.process.local_rank > 0:
            heartbeat.wait_for(key)
        yield heartbeat is None or self.process.local_rank == 0
        if heartbeat is not None and self.process.local_rank == 0:
            heartbeat.set(key)

    def _name(self, rank: int) -> str:
        names = [name for name, owner in self.owners.items() if owner == rank]
        if rank == self.process.rank:
            names = list(self.clients)
        if not names:
            return f"Process {rank}"
        some = ", ".join(f"`{name}`" for name in names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        return f"Process {rank} (client{'s' if names[1:] else ''} {some})"

    def _when(self) -> str:
        return f" in round {self._round} ({self._exchange})" if self._exchange else ""

    def _during(self, turn: str) -> AbstractContextManager[None]:
        return nullcontext() if self._heartbeat is None else self._heartbeat.during(turn)

    @property
    def _heartbeat(self) -> Heartbeat | None:
        return None if self._transport is None else self._transport.heartbeat

    # ------------------------------------------------------------------------------------------ what the leader calls
    def setup(
        self, build: Callable[[str], Client], names: Sequence[str], release: Callable[[str], None] | None = None
    ) -> None:
        """Makes this process's clients; process 0 waits for the others'."""
        self.owners = assign(dict.fromkeys(names, 1.0), self.process.world)
        self.seconds, self._clock, self._rounds_done, self._round, self._exchange = {}, {}, 0, 0, ""
        here = [name for name, owner in self.owners.items() if owner == self.process.rank]
        self.host = Host({name: build(name) for name in here}, build, release, self._during)
        if self.leads and self._transport is not None:
            _checked(self._transport.receive(range(1, self.process.world)))

    def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
        return self._run(turns)[0]

    def run_summed(
        self, turns: Mapping[str, Turn], counts: Mapping[str, int]
    ) -> tuple[Mapping[str, bytes | Exception], list[Group]]:
        return self._run(turns, counts=counts)

    def _run(self, turns: Mapping[str, Turn], **further: Any) -> tuple[dict[str, bytes | Exception], list[Group]]:
        self._begin(turns)
        shares: dict[int, dict[str, Turn]] = {}
        for name, turn in turns.items():
            shares.setdefault(self.owners[name], {})[name] = turn
        found: dict[str, bytes | Exception] = {}
        requests = {rank: run_request(share, keep_going=self.keep_going, **further) for rank, share in shares.items()}
        groups: list[Group] = []
        for rank, answer in self._ask(requests).items():
            for number, told in enumerate(answer.header.get("groups", ())):
                where = "" if rank == self.process.rank else f"process {rank}"
                groups.append(Group.of(told, answer.pieces.pop(f"{SUMS}/{number}"), where))
            found.update(answer.pieces)
            found.update({name: decode_error(error) for name, error in answer.header["errors"].items()})
            for name, seconds in answer.header["seconds"].items():
                self._clock[name] = self._clock.get(name, 0.0) + seconds
        for name in turns:  # of several failures the one that would have come first in one process
            failure = found.get(name)
            if isinstance(failure, Exception) and not self.keep_going:
                raise failure
        added = {name for group in groups for name in group.clients}
        return {name: found[name] for name in turns if name not in added}, groups

    def save(self, folder: Path, previous: Path | None) -> Mapping[str, Digest]:
        answers = self._ask_all(
            {"do": "save", "folder": str(folder.absolute()), "previous": previous and str(previous.absolute())}
        )
        missing = [name for name in self.owners if not (folder / state_name(name)).is_file()]
        everywhere = "on a file system that all processes see"
        expect(not missing, "trainer.default_root_dir", everywhere, f"no file of `{missing[0]}`" if missing else "")
        return {name: own for answer in answers.values() for name, own in answer.header["digests"].items()}

    def load(self, folder: Path) -> Collection[str]:
        self._ask_all({"do": "load", "folder": str(folder.absolute())})
        return ()

    def about(self) -> dict[str, dict[str, Any]]:
        about: dict[str, Any] = {}
        for answer in self._ask_all({"do": "about"}).values():
            about.update(answer.header["about"])
        return {name: about[name] for name in self.owners}

    def predict(self) -> Iterator[tuple[str, Predictions]]:
        for name, owner in self.owners.items():
            if owner == self.process.rank:
                yield name, self.host.predict(name)
            else:
                piece = self._ask_one(owner, Message({"do": "predict", "client": name})).pieces["predictions"]
                yield name, Predictions(**load_bytes(piece, f"predictions of client `{name}`"))

    def _begin(self, turns: Mapping[str, Turn]) -> None:
        """Notes where the run is; between two rounds clients may move."""
        turn = next(iter(turns.values()), None)
        if turn is None:
            return
        self._exchange = turn.name
        if turn.round == self._round:
            return
        self._rounds_done += self._round > 0
        if self._rounds_done > 1:
            self.seconds.update(self._clock)
        self._round, self._clock = turn.round, {}
        if self._rounds_done in REASSIGN_AFTER:
            typical = sum(self.seconds.values()) / len(self.seconds) if self.seconds else 1.0
            costs = {name: self.seconds.get(name, typical) for name in self.owners}  # some did not take part yet
            self._move(reassign(costs, self.owners, self.process.world))

    def _move(self, owners: Mapping[str, int]) -> None:
        """Brings clients to their new processes, through this one, as their checkpoints would."""
        for name, target in owners.items():
            if target != self.owners[name]:
                given = self._ask_one(self.owners[name], Message({"do": "give", "client": name}))
                self._ask_one(target, Message({"do": "take", "client": name}, given.pieces))
                self.owners[name] = target

    # -------------------------------------------------------------------------------------------------------- messages
    def _ask(self, requests: Mapping[int, Message]) -> dict[int, Message]:
        """Answers of processes, this one's host among them, side by side.

        Raises:
            EngineError: one of them is gone, or could not do it (InputError if that is why).
        """
        others = {rank: request for rank, request in requests.items() if rank != self.process.rank}
        if others:
            assert self._transport is not None
            self._transport.send(others)
        answers = {rank: self.host.answer(request) for rank, request in requests.items() if rank not in others}
        if others:
            assert self._transport is not None
            answers |= self._transport.receive(list(others))
        return _checked(answers)

    def _ask_all(self, header: dict[str, Any]) -> dict[int, Message]:
        return self._ask(dict.fromkeys(range(self.process.world), Message(header)))

    def _ask_one(self, rank: int, request: Message) -> Message:
        return self._ask({rank: request})[rank]

    def serve(self, prepare: Callable[[], None] | None = None) -> None:
        """Raises EngineError if the leading process failed or is gone."""
        assert self._transport is not None
        if prepare is not None:
            self._transport.send({0: attempt(lambda: prepare() or Message())})
        while True:
            request = self._transport.receive([0])[0]
            if request.header["do"] == "end":
                if request.header["why"]:
                    raise EngineError(request.header["why"])
                return
            self._transport.send({0: self.host.answer(request)})


def _checked(answers: dict[int, Message]) -> dict[int, Message]:
    """Raises the first error of an answer."""
    for answer in answers.values():
        if answer.error is not None:
            raise answer.error
    return answers


def num_cores() -> int:
    """Cores that this process may use, as its container and its affinity say."""
    return int(cpu_count())
