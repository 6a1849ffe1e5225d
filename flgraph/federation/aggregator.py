"""What an algorithm is: two halves side by side, and the routes between them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from flgraph.errors import expect
from flgraph.federation.callback import FederatedCallback
from flgraph.federation.payload import Payload
from flgraph.federation.routes import Route
from flgraph.runs.compatibility import plain_values

if TYPE_CHECKING:
    from flgraph.federation.client import Client


class Aggregator(FederatedCallback):
    """Base class of federated algorithms.

    The object given to the trainer is the server half. Every client holds a copy of its own, made before the first
    message, that acts as the client half and as a Lightning callback in that client's Trainer; the two never share
    memory, so what the client half knows it knows from its data and its downloads.

    A round is one or more exchanges (:meth:`exchanges`). In each, for every participating client,

    1. server: :meth:`download`; nothing is sent if the client has already installed what the server has to give,
    2. client: :meth:`install`, :meth:`local_update`, :meth:`upload`,
    3. server: :meth:`aggregate` with all uploads.

    State that must survive a stopped run: the server half returns its own from :meth:`server_state`; the client half
    uses Lightning's ``state_dict`` and ``load_state_dict``.

    Args:
        optimizer_state: whether a client's optimizers and schedulers are kept over rounds or made anew in each.
    """

    extra_tensors: Sequence[str] = ()
    """Patterns of uploaded tensors that are no part of the model; nothing else may leave a client."""

    upload_scalars: Sequence[str] = ("num_samples",)
    """Names of the scalars that may leave a client."""

    reported_scalars: Sequence[str] = ()
    """Patterns of further metrics that the client half tells with evaluations (:meth:`Client.report`)."""

    seed: int = 0
    """The run's seed; set before the first call. Random numbers of the server half derive from it (``derive_seed``)."""

    holders: Mapping[str, Sequence[str]] = {}
    """Client to the names of the tensors that it shares; set on the server half before :meth:`start`."""

    def __init__(self, optimizer_state: Literal["keep", "reset"] = "keep") -> None:
        expect(optimizer_state in ("keep", "reset"), "aggregator.optimizer_state", "keep or reset", optimizer_state)
        self.optimizer_state = optimizer_state

    @property
    def name(self) -> str:
        """How runs of this algorithm are called."""
        return type(self).__name__.lower()

    # ------------------------------------------------------------------------------------------------ both halves
    @abstractmethod
    def routes(self) -> list[Route]:
        """Rules for every parameter and buffer of the client's model, in order of precedence.

        Called by each client and by the server when the federation starts.
        """

    def exchanges(self, round: int) -> Sequence[str]:
        """Names of the exchanges of a round, in order. Round 0 stands for the time before the first round."""
        return ("train",) if round else ()

    @property
    def wants_initial(self) -> bool:
        """Whether the server half uses the initial values of shared tensors; otherwise nobody sends any."""
        return True

    def hyperparameters(self) -> dict[str, Any]:
        """Plain values that define the algorithm; a run can only be resumed with the same ones."""
        public = {key: value for key, value in vars(self).items() if not key.startswith("_") and key != "holders"}
        return plain_values(public)

    # ----------------------------------------------------------------------------------------------- server half
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        """Called once, with the initial value of every shared tensor and all clients' names.

        That is the first holder's value, or the mean over all holders (``initial_weights`` of the trainer).
        """

    @abstractmethod
    def download(self, client: str, round: int, exchange: str) -> Payload | None:
        """What ``client`` is sent now; ``None`` if the algorithm sends nothing.

        Must not depend on which other clients were asked before, nor on ``exchange`` where a round has only one: what
        an aggregation gave is often sent with the evaluation that follows it (``exchange`` is then ``"evaluate"``).
        Called at most once per client between two calls of :meth:`aggregate`.
        """

    @abstractmethod
    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> None:
        """Takes in the uploads of one exchange; called in the server's process, after all of them arrived."""

    def log_scalars(self) -> Mapping[str, float]:
        """What the server half has to tell of the round just aggregated, such as the number of clusters.

        Goes to ``history.jsonl``, TensorBoard and other loggers. A tag ``GROUP/NAME`` is shown in its group, one
        without a slash in the group ``server``; one value per client is ``GROUP/CLIENT``.
        """
        return {}

    def summary(self) -> dict[str, Any]:
        """What the server half has to tell of the whole run, in values that JSON can hold, for ``results.json``."""
        return {}

    def server_state(self) -> Payload:
        """Everything the server half needs to continue after a restart."""
        return Payload()

    def load_server_state(self, state: Payload) -> None:
        """Puts back what :meth:`server_state` returned."""

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        """Puts a download into the client; by default its tensors replace those of the same name in the model."""
        client.load_shared(download.tensors)

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """The client's work in an exchange; by default it trains for its local epochs."""
        client.fit()

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        """What the client sends (nothing if ``None``); by default its shared tensors and number of training samples."""
        return Payload(client.shared_tensors(), {"num_samples": client.num_samples})
