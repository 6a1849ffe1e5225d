"""Where clients run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from flgraph.federation.client import Client
from flgraph.federation.messages import Predictions, Turn
from flgraph.federation.summing import Group
from flgraph.runs.files import Digest


class Engine(ABC):
    """Runs the turns of clients, somewhere; algorithms, models and data know nothing of it.

    The trainer opens a :meth:`session`, calls :meth:`setup` once per run, then :meth:`run` for every exchange. Requests
    and answers are bytes of payloads. Where several processes run the same program, one of them leads: the server is
    there, and it alone calls :meth:`run` and what follows it; the others call :meth:`serve`.
    """

    trusted: ClassVar[bool] = True
    """Whether all clients are of one owner."""

    launched: ClassVar[bool] = False
    """Whether several processes run the program, which the command line starts, or torchrun."""

    keep_going: bool = False
    """Whether the other clients work on when one has failed; set by the server."""

    batch: int | None = None
    """How many turns :meth:`run` is to be asked for at a time, since it holds their answers; all when ``None``."""

    unable: Collection[str] = ()
    """Clients that :meth:`load` could not put into their states, where the engine is to keep going."""

    @property
    def leads(self) -> bool:
        """Whether the server is in this process."""
        return True

    @property
    def saves_first(self) -> bool:
        """Whether there is to be a checkpoint before round 1, because clients may be away at that of a later round."""
        return False

    def alone(self) -> AbstractContextManager[None]:
        """Inside, Lightning sees a process of its own, whatever processes there are."""
        return nullcontext()

    def session(self) -> AbstractContextManager[None]:
        """Inside, the other methods may be called; :meth:`alone` is part of it."""
        return nullcontext()

    def first_here(self) -> AbstractContextManager[bool]:
        """Lets one process per machine go first, the others after it; yields whether this is that one."""
        return nullcontext(True)

    def lightning(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of Lightning's Trainer as they are to be in this process."""
        return dict(arguments)

    @abstractmethod
    def setup(
        self, build: Callable[[str], Client], names: Sequence[str], release: Callable[[str], None] | None = None
    ) -> None:
        """Makes the clients ``names`` with ``build``, wherever they are to live.

        Args:
            build: makes a client, and loads its data.
            names: all clients of the federation.
            release: lets go of what ``build`` loaded for a client that has moved elsewhere.
        """

    def serve(self, prepare: Callable[[], None] | None = None) -> None:
        """Answers the leading process until it ends the session.

        Args:
            prepare: calls :meth:`setup`, where the leading process does so, too; its errors are raised there.
        """
        raise NotImplementedError("only engines of several processes have some that serve")

    @abstractmethod
    def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
        """Client to answer for every client in ``turns``, or for those that answered in time.

        The answer of a client whose turn failed is an error where the engine is to keep going.

        Raises:
            ClientError: a client's turn failed.
            InputError: it refused, or because of something that the user gave.
            EngineError: clients are gone.
        """

    def run_summed(
        self, turns: Mapping[str, Turn], counts: Mapping[str, int]
    ) -> tuple[Mapping[str, bytes | Exception], list[Group]]:
        """As :meth:`run`, where sums of uploads are enough: some may have been added up where the clients are.

        Args:
            turns: client to turn.
            counts: client to the number of samples that it told, where it told one.

        Returns:
            Answers of clients, and groups of those whose uploads were added up.
        """
        return self.run(turns), []

    def leave_out(self, clients: Collection[str]) -> None:
        """Nothing more is asked of these clients, not even their states."""

    @abstractmethod
    def save(self, folder: Path, previous: Path | None) -> Mapping[str, Digest]:
        """Writes every client's state to ``folder`` as ``NAME.ckpt``, for :meth:`load`.

        Args:
            folder: an existing folder.
            previous: an earlier such folder; files of clients that did not change since may be linked from there.

        Returns:
            Digests of files that were just written, by name, where they are known.
        """

    @abstractmethod
    def load(self, folder: Path) -> Collection[str]:
        """Puts the clients into the states that :meth:`save` wrote.

        Returns:
            Clients whose states are older than the checkpoint, because they were away when it was written.
        """

    @abstractmethod
    def predict(self) -> Iterator[tuple[str, Predictions]]:
        """Client and its predictions, one client after another."""

    @abstractmethod
    def about(self) -> dict[str, dict[str, Any]]:
        """By name :attr:`Client.about`; of clients of another owner :attr:`Client.disclosed`."""
