"""What an algorithm is: two halves side by side, and the routes between them."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, Literal, get_args

import pytorch_lightning as pl
from torch import Tensor

from flgraph.errors import expect, expect_kind
from flgraph.federation.aggregation import Combine, WeightedMean
from flgraph.federation.callback import FederatedCallback
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload
from flgraph.federation.routes import Route, UploadKind
from flgraph.federation.template import Model, server_module
from flgraph.federation.values import largest_values
from flgraph.runs.compatibility import plain_values

InitialWeights = Literal["first", "mean", "own"]
EvaluatedModel = Literal["aggregated", "trained"]
_INITIAL, _EVALUATED = get_args(InitialWeights), get_args(EvaluatedModel)


class Aggregator(FederatedCallback):
    """Base class of federated algorithms.

    The object given to the trainer is the server half. Every client holds a copy of its own, made before the first
    message, that acts as the client half and as a Lightning callback in that client's Trainer; the two never share
    memory, so what the client half knows it knows from its data and its downloads.

    A round is one or more exchanges (:meth:`exchanges`). In each, for every participating client,

    1. server: :meth:`download`; nothing is sent if the client has already installed what the server has to give,
    2. client: :meth:`install`, :meth:`local_update`, :meth:`upload`,
    3. server: :meth:`aggregate` with all uploads, which returns the new shared tensors.

    The framework keeps the shared tensors, sends them, and has them in checkpoints; what else the halves remember they
    declare in :attr:`server_attributes` and :attr:`client_attributes`.

    Args:
        optimizer_state: whether a client's optimizers and schedulers are kept over rounds or made anew in each.
        combine: makes one tensor of those of several clients; their weighted mean when ``None``.
        evaluated_model: see the attribute; as the class has it when ``None``.
    """

    network: str = ""
    """The class of :mod:`flgraph.models` whose tensors the routes name, in words; empty where they fit any model."""

    upload_kind: UploadKind = "weights"
    """What uploaded tensors of the model are, and so what they are relative to."""

    extra_tensors: ClassVar[Mapping[str, UploadKind]] = {}
    """Patterns of uploaded tensors that are no part of the model, and what they are; nothing else leaves a client."""

    upload_scalars: Sequence[str] = ("num_samples",)
    """Names of the scalars that may leave a client."""

    common_scalars: Sequence[str] = ()
    """Those of them in which all clients have to agree; an upload that differs from most is refused."""

    reported_scalars: Sequence[str] = ()
    """Patterns of further metrics that the client half reports with evaluations (:meth:`Client.report`)."""

    server_attributes: Sequence[str] = ()
    """Attributes of the server half that checkpoints hold: nested dicts and lists of tensors and plain values."""

    client_attributes: Sequence[str] = ()
    """The same of the client half. What it was sent last it need not keep: :attr:`Client.last_download`."""

    further_epochs: int = 0
    """How many epochs of a round are not among the run's ``local_epochs``; schedulers of a fixed length count them."""

    setup_epochs: int = 0
    """How many epochs there are before the first round, if there are any; schedulers begin anew after these."""

    needs_classes: bool = False
    """Whether it has no meaning for models that learn several labels or numbers; these are refused then."""

    initial_weights: InitialWeights = "first"
    """Which values shared tensors begin with at all clients: those of the first client that has them; the mean over the
    clients' own, which is smaller by the square root of their number where these are independent draws; or each client
    with its own, so that the server knows none."""

    evaluated_model: EvaluatedModel = "aggregated"
    """Which model of a client is evaluated after a round: the one that it would use, with the newest aggregate
    installed; or the one that its last local training left, which some published code evaluates."""

    seed: int = 0
    """The run's seed; set before the first call. Global random generators are seeded for every :meth:`aggregate`; what
    is drawn elsewhere on the server derives from it (``derive_seed``)."""

    owners: Mapping[str, Sequence[str]] = {}
    """Client to the names of the tensors that it shares; set on the server half before :meth:`start`."""

    excluded: Collection[str] = ()
    """Clients that are left out for the rest of the run; set on the server half as soon as they are."""

    template: Model | None = None
    """The run's model as the trainer got it, sizes that data decides still open; set on the server half before
    :meth:`start`, and before :meth:`load_server_state`."""

    def __init__(
        self,
        optimizer_state: Literal["keep", "reset"] = "keep",
        combine: Combine | None = None,
        evaluated_model: EvaluatedModel | None = None,
    ) -> None:
        expect(optimizer_state in ("keep", "reset"), "aggregator.optimizer_state", "keep or reset", optimizer_state)
        known = (None, *_EVALUATED)
        expect(evaluated_model in known, "aggregator.evaluated_model", "aggregated or trained", evaluated_model)
        for name in (*self.server_attributes, *self.client_attributes):
            if isinstance(value := getattr(type(self), name, None), dict | list | set):
                setattr(self, name, copy.deepcopy(value))  # else all clients, and all runs, would have the class's
        self.evaluated_model = evaluated_model or type(self).evaluated_model
        self.optimizer_state: Literal["keep", "reset"] = optimizer_state
        self.combine = combine or WeightedMean()
        self.shared: dict[str, Tensor] = {}
        """The server half's newest shared tensors by name."""
        self._payloads: dict[tuple[str, ...], Payload] = {}

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

    @property
    def reveals(self) -> str:
        """What the server or other clients can read of single records, or of a schema's names, as a sentence.

        Empty where uploads are sums or means over a client's records, as weights are. A site whose policy does not name
        an algorithm refuses it where this says something.
        """
        return ""

    def exchanges(self, round: int) -> Sequence[str]:
        """Names of the exchanges of a round, in order. Round 0 stands for the time before the first round."""
        return ("train",) if round else ()

    # ----------------------------------------------------------------------------------------------- server half
    def start(self, initial: Mapping[str, Tensor], clients: Sequence[str]) -> None:
        """Called once, with the initial value of every shared tensor (:attr:`initial_weights`) and all clients' names.

        It takes the values as :attr:`shared`.
        """
        self.accept(initial)

    def download(self, client: str, round: int, exchange: str | None) -> Payload | None:
        """What ``client`` is sent now: by default the newest of the tensors that it shares; ``None`` for nothing.

        Must not depend on which other clients were asked before, nor on ``exchange`` where a round has only one: what
        an aggregation gave is often sent with the evaluation that follows it (``exchange`` is then ``None``).
        Called at most once per client between two calls of :meth:`aggregate`.
        """
        names = tuple(name for name in self.owners[client] if name in self.shared)
        return self.payload(names, lambda: {name: self.shared[name] for name in names}) if names else None

    def payload(self, key: tuple[str, ...], tensors: Callable[[], Mapping[str, Tensor]]) -> Payload:
        """One payload for all clients that are sent the same until the next :meth:`aggregate`: it is made once."""
        if key not in self._payloads:
            self._payloads[key] = Payload(tensors())
        return self._payloads[key]

    def check_upload(self, client: str, upload: Payload, round: int, exchange: str) -> None:
        """Refuses an upload that :meth:`aggregate` could not use; whoever sent it is then left out.

        Called for every upload before :meth:`aggregate`, when it is known that it holds nothing undeclared, that
        tensors of the model have their agreed shapes and dtypes, and that all values are finite. By default all that
        :meth:`upload` sends by default must be there, and nothing is looked at where that is overridden: an algorithm
        with uploads of its own, which may index, size or read by what it receives, says here what it relies on.

        Raises:
            InputError: names what is wrong.
        """
        if type(self).upload is not Aggregator.upload:
            return
        self.check_shared(client, upload)
        field = f"upload` of client `{client}"
        for name in self.upload_scalars:
            expect(name in upload.scalars, field, f"with the scalar `{name}`", None)

    def check_shared(self, client: str, upload: Payload) -> None:
        """Refuses an upload of which no mean can be taken: all of the client's shared tensors must be there.

        Raises:
            InputError: names what is wrong.
        """
        for name in self.owners.get(client, ()):
            found = name in upload.tensors
            expect(found, f"upload` of client `{client}", f"with the shared tensor `{name}`", "none")

    def aggregate(self, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        """Makes new shared tensors of the uploads of one exchange, by default :meth:`take_mean` of their weighted mean.

        Called in the server's process, after all uploads arrived; not where :func:`needs_only_sums`.

        Args:
            uploads: client to upload, of those that answered.
            round: counts from 1; 0 before the first round.
            exchange: see :meth:`exchanges`.

        Returns:
            The new values of shared tensors; those that it leaves out stay as they are.
        """
        tensors = {client: upload.group() for client, upload in uploads.items()}
        wanted = "a mapping of clients to numbers"
        weights = expect_kind(self.client_weights(uploads), dict, f"client_weights of {type(self).__name__}", wanted)
        return self.take_mean(self.combine(tensors, weights), round, exchange)

    def take_mean(self, mean: Mapping[str, Tensor], round: int, exchange: str) -> Mapping[str, Tensor]:
        """Makes new shared tensors of the clients' weighted mean of these; by default they are the mean."""
        return mean

    def sums_suffice(self, round: int, exchange: str) -> bool:
        """Whether :meth:`aggregate` of this exchange does what the base class does.

        The server then adds uploads up as they come, or receives sums, and calls :meth:`take_mean` alone; see
        :func:`needs_only_sums`. To be overridden where ``aggregate`` is overridden for other exchanges, or
        :meth:`check_upload` is: that may get uploads without numbers then, whose tensors are on the meta device.
        """
        return True

    def client_weight(self, upload: Payload) -> float:
        """How much a client counts where it is combined with others; not normalised, 1 by default."""
        return 1.0

    def client_weights(self, uploads: Mapping[str, Payload]) -> dict[str, float]:
        """:meth:`client_weight` of each; to be overridden where it depends on the others' uploads."""
        return {client: self.client_weight(upload) for client, upload in uploads.items()}

    def accept(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes new values of shared tensors; called with what :meth:`aggregate` returned.

        Raises:
            InputError: they are no mapping of tensors, not finite, or not of the names and shapes of those that are
                shared.
        """
        field = f"result of {type(self).__name__}.aggregate"
        expect(isinstance(tensors, Mapping), field, "the new shared tensors by name", type(tensors).__name__)
        agreed = {name for names in self.owners.values() for name in names}
        for name, tensor in tensors.items():
            expect(name in agreed, field, "of tensors that clients share", name)
            expect(isinstance(tensor, Tensor), field, f"a tensor for `{name}`", type(tensor).__name__)
            before = self.shared.get(name, tensor)
            shape, kind = list(before.shape), f"a {str(before.dtype).removeprefix('torch.')} tensor for `{name}`"
            expect(tensor.shape == before.shape, field, f"of shape {shape} for `{name}`", list(tensor.shape))
            expect(tensor.is_floating_point() == before.is_floating_point(), field, kind, tensor.dtype)
        largest_values(tensors, field)
        self.shared = {**self.shared, **tensors}
        self._payloads = {}

    def make_model(self, sizes: Mapping[str, Any]) -> pl.LightningModule:
        """A model like the clients', made of :attr:`template`, for the server half to use or train.

        Its first weights depend on the run's seed alone. To train it, see
        :class:`~flgraph.federation.server_model.ServerModel`.

        Args:
            sizes: hyper-parameters that data decides (``in_channels``, ``num_classes``). The server has no data: they
                come from the shapes of what clients share, or clients tell them as :attr:`upload_scalars`, from
                ``client.data.model_args``.

        Raises:
            InputError: the run has a function in place of a template, or its hyper-parameters contradict ``sizes``.
        """
        return server_module(self.template, sizes, self.seed)

    def log_scalars(self) -> Mapping[str, float]:
        """What the server half reports of the round just aggregated, such as the number of clusters.

        Goes to ``history.jsonl``, TensorBoard and other loggers. A tag ``GROUP/NAME`` is shown in its group, one
        without a slash in the group ``server``; one value per client is ``GROUP/CLIENT``.
        """
        return {}

    def summary(self) -> dict[str, Any]:
        """What the server half reports of the whole run, in values that JSON can hold, for ``results.json``."""
        return {}

    def server_state(self) -> dict[str, Any]:
        """Everything the server half needs to continue after a restart, beside the shared tensors."""
        return self._attributes("server_attributes")

    def load_server_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`server_state` returned."""
        vars(self).update(state)

    # ----------------------------------------------------------------------------------------------- client half
    def install(self, client: Client, download: Payload) -> None:
        """Puts a download into the client; by default the tensors of the model replace those of the same name."""
        client.load_shared(download.group())

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """The client's work in an exchange; by default it trains for its local epochs."""
        client.fit()

    def upload(self, client: Client, round: int, exchange: str) -> Payload | None:
        """What the client sends (nothing if ``None``); by default its shared tensors and :meth:`sample_count`."""
        return Payload(client.shared_tensors(), self.sample_count(client))

    def sample_count(self, client: Client) -> dict[str, int]:
        """The scalar ``num_samples``, where :attr:`upload_scalars` has it."""
        return {"num_samples": client.num_samples} if "num_samples" in self.upload_scalars else {}

    def state_dict(self) -> dict[str, Any]:
        """The client half's :attr:`client_attributes`, for its checkpoint."""
        return self._attributes("client_attributes")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Puts back what :meth:`state_dict` returned."""
        vars(self).update(state_dict)

    def _attributes(self, field: str) -> dict[str, Any]:
        names = getattr(self, field)
        for name in names:
            expect(hasattr(self, name), f"{field} of {type(self).__name__}", "names of attributes that it has", name)
        return {name: getattr(self, name) for name in names}


def check_made(aggregator: Aggregator) -> None:
    """Refuses an algorithm that is not fit to begin.

    Raises:
        InputError: its constructor did not call that of its base, or what it declares is of another form.
    """
    name = type(aggregator).__name__
    expect("_payloads" in vars(aggregator), "trainer.aggregator", "one whose __init__ calls super().__init__()", name)
    for field in ("upload_scalars", "common_scalars", "reported_scalars", "server_attributes", "client_attributes"):
        value = getattr(aggregator, field)
        expect(not isinstance(value, str), f"{field} of {name}", "a tuple of names", value)
    for field, known in (("initial_weights", _INITIAL), ("evaluated_model", _EVALUATED)):
        value = getattr(aggregator, field)
        expect(value in known, f"{field} of {name}", " or ".join(known), value)
    extra: Any = aggregator.extra_tensors
    expect(isinstance(extra, Mapping), f"extra_tensors of {name}", "a mapping of patterns to what they are", extra)
    for kind in extra.values():
        expect(kind in get_args(UploadKind), f"extra_tensors of {name}", " or ".join(get_args(UploadKind)), kind)
    for round in (0, 1):
        exchanges = aggregator.exchanges(round)
        listed = isinstance(exchanges, list | tuple) and all(isinstance(exchange, str) for exchange in exchanges)
        expect(listed, f"exchanges of {name}", "a list of names", exchanges)


def scalars_of(aggregator: Aggregator) -> dict[str, float]:
    """What the server half reports of a round.

    Raises:
        InputError: something else than numbers.
    """
    field = f"log_scalars of {type(aggregator).__name__}"
    own = expect_kind(aggregator.log_scalars(), dict, field, "a mapping of names to numbers")
    single = (name for name, value in own.items() if isinstance(value, Tensor) and value.numel() == 1)
    own |= {name: own[name].item() for name in single}
    for name, value in own.items():
        expect(isinstance(value, Real), field, f"numbers, as `{name}` is to be,", type(value).__name__)
    return own


def summary_of(aggregator: Aggregator) -> dict[str, Any]:
    """What the server half reports of a run.

    Raises:
        InputError: JSON cannot hold it.
    """
    field = f"summary of {type(aggregator).__name__}"
    own = expect_kind(aggregator.summary(), dict, field, "a mapping of names to values")
    for name in own.keys() - plain_values(own).keys():
        expect(False, field, f"values that JSON can hold, as `{name}` is to be,", type(own[name]).__name__)
    return own


def needs_only_sums(aggregator: Aggregator, round: int, exchange: str) -> bool:
    """Whether all that becomes of an exchange's uploads is the weighted mean of their tensors of the model.

    So it is where nothing else than :meth:`Aggregator.aggregate` and the exact mean makes the new tensors, and each
    client's weight is a function of its own upload. Where a class overrides one of these, or the check of uploads, it
    must say itself for which exchanges :meth:`~Aggregator.sums_suffice`.
    """
    kind = type(aggregator)
    said = _defining(kind, "sums_suffice")
    parts = ("aggregate", "client_weights", "check_upload")
    last_word = all(issubclass(said, _defining(kind, name)) for name in parts)
    return last_word and type(aggregator.combine) is WeightedMean and aggregator.sums_suffice(round, exchange)


def _defining(kind: type, name: str) -> type:
    return next(own for own in kind.__mro__ if name in vars(own))
