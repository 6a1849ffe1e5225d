"""One client: a module, its data, and one Trainer that lives for the whole run."""

from __future__ import annotations

import copy
import operator
import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from pytorch_lightning.plugins.precision import DoublePrecision
from pytorch_lightning.utilities import rank_zero_warn
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor

from flgraph.errors import InputError, expect, expect_kind
from flgraph.federation.budget import AddsNoise
from flgraph.federation.callback import FederatedCallback, acts_in_clients
from flgraph.federation.client_door import ClientDoor
from flgraph.federation.data import ClientData, Movable, described_of
from flgraph.federation.halves import ClientHalf
from flgraph.federation.lightning import (
    KeepOnDevice,
    OptimizerStates,
    evaluate,
    fit_more,
    is_empty,
    load_counts,
    load_loop,
    persistent_trainer,
)
from flgraph.federation.messages import ABOUT_SUMS, Predictions, Request, Turn
from flgraph.federation.payload import Payload
from flgraph.federation.policy import Policy
from flgraph.federation.routes import RouteKind, RoutingTable, matches
from flgraph.federation.secure.client import MaskedUploads, mask_context
from flgraph.federation.secure.settings import Layout, SecureSums
from flgraph.federation.seeding import derive_seed, seed_all
from flgraph.federation.template import callbacks_of, expect_classes
from flgraph.federation.transforms import Draw, Pipeline, Transform, draw_key
from flgraph.hooks import overrides
from flgraph.nn.modes import keeping_modes
from flgraph.runs.checkpoint import readable, storable
from flgraph.runs.compatibility import plain_values, sealed


class Client:
    """Holds everything that belongs to one client and answers the server's requests.

    Args:
        name: the client's name; seeds are derived from it.
        module: its model.
        data: its data.
        aggregator: the algorithm; a copy is made.
        callbacks: further callbacks; those that override Lightning's hooks are copied into the client's Trainer.
        seed: what the client draws derives from it: the run's seed where a run is simulated, and can so be repeated;
            at a site of its own, one that nobody else knows.
        simulated: whether the client is a part of a simulation; see :meth:`private_seed`.
        policy: what may leave it; all that the algorithm's routes name when ``None``.
        rounds: of the run.
        local_epochs: epochs per training exchange.
        personal: patterns of tensors that stay, whatever the algorithm's routes say.
        transforms: what happens to its uploads behind the algorithm; copies are made.
        secure_sums: how its uploads are masked, if they are.
        job: digest of what it was told to do, at a site; uploads are added up with those of clients that were told so.
        trainer_args: arguments of the client's :class:`pytorch_lightning.Trainer`.
        device: where the client's model stays, unless ``trainer_args`` name a strategy; Lightning decides when
            ``None``.

    Raises:
        InputError: the routes do not fit the model, or the data is described by something that is no plain value.
        PolicyError: the policy does not let the client take part.
    """

    def __init__(
        self,
        name: str,
        module: pl.LightningModule,
        data: ClientData,
        aggregator: ClientHalf,
        callbacks: Sequence[pl.Callback] = (),
        *,
        seed: int = 0,
        simulated: bool = True,
        policy: Policy | None = None,
        rounds: int = 1,
        local_epochs: int = 1,
        personal: Sequence[str] = (),
        transforms: Sequence[Transform] = (),
        secure_sums: SecureSums | None = None,
        job: str = "",
        trainer_args: Mapping[str, Any] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.name, self.module, self.data = name, module, data
        if aggregator.needs_classes:
            expect_classes(module, type(aggregator).__name__)
        described = described_of(data)
        plain = plain_values(described)
        for key, value in described.items():  # or else the first round would be lost with its checkpoint
            what = f"{key}` of the data of client `{name}"
            expect(key in plain, what, "a plain value, such as an int or a list,", f"{type(value).__name__} {value}")
        self.seed, self.local_epochs, self.simulated = seed, local_epochs, simulated
        self.aggregator = copy.deepcopy(aggregator)
        self.aggregator.seed = seed
        self.transforms = Pipeline(copy.deepcopy(list(transforms)), self.aggregator)
        self.routing = RoutingTable(
            self.aggregator.routes(),
            module.state_dict(),
            extra={**self.aggregator.extra_tensors, **self.transforms.extra},
            scalars=self.aggregator.upload_scalars,
            metrics=self.aggregator.reported_scalars,
            first=personal,
            own=getattr(module, "schema_tensors", ()),
            client=name,
            network=self.aggregator.network,
        )
        self.transforms.check_names(self.routing.rows, name)
        noise = [own for own in [*self.transforms.transforms, *callbacks] if isinstance(own, AddsNoise) and own.local]
        samples, leave = data.num_train_samples, self.transforms.leave
        self.door = ClientDoor(
            self.routing, self.aggregator, policy, rounds, local_epochs, samples, secure_sums, noise, leave
        )
        fewest = 0 if policy is None else policy.secure_sums or 0
        self.masked = None if secure_sums is None else MaskedUploads(name, secure_sums, fewest, job)
        """Its half of secure sums, where uploads are masked."""
        self.changed = True  # since it was last written to disk
        self._snapshot: dict[str, Any] = {}
        self._origin = self._snapshot_origin = ""  # digests of the downloads that the model and its copy come from
        self._download: bytes | None = None  # as it came: clients in one process share its memory
        self._train_metrics: dict[str, float] = {}
        self._round = self._trained = 0  # of the turn, and of the last training
        self._reported: dict[str, float] = {}
        self._loaders: dict[str, Any] = {}
        self._optimizers = OptimizerStates(keep=self.aggregator.optimizer_state == "keep")
        configured = callbacks_of(module)
        own = [copy.deepcopy(callback) for callback in callbacks if acts_in_clients(callback)]
        # Those of the model come before others of their kinds, as they do in Lightning.
        own = [callback for callback in own if not any(isinstance(other, type(callback)) for other in configured)]
        own += configured
        self._callbacks = [callback for callback in own if isinstance(callback, FederatedCallback)]
        for callback in self._callbacks:
            callback.client = name
        arguments = dict(trainer_args or {})
        if device is not None and arguments.get("strategy", "auto") == "auto":
            arguments["strategy"] = KeepOnDevice(device)
        half: Any = self.aggregator
        epochs = max(half.setup_epochs, rounds * (local_epochs + half.further_epochs))
        self.trainer = persistent_trainer([self._optimizers, half, *own], arguments, epochs)
        if isinstance(self.trainer.precision_plugin, DoublePrecision):  # or else float32 would round the first download
            self.trainer.precision_plugin.convert_module(self.module)
        self._unfitted = self.trainer.fit_loop.state_dict()
        if isinstance(data, Movable):
            data.to(self.trainer.strategy.root_device)
        if lost := sorted(set(module.hparams) - readable(module.hparams).keys()):
            what = f"{', '.join(lost)} of {type(module).__name__}, which are no plain values"
            rank_zero_warn(f"Checkpoints of clients are without {what}: give them to `load_from_checkpoint` again.")

    # --------------------------------------------------------------------------------------- the server's requests
    def turn(self, turn: Turn) -> bytes:
        """Does what is asked, and returns the answer's bytes (none if nothing is sent).

        Raises:
            InputError: what was sent cannot be used, or the answer holds something that the routes do not name.
            PolicyError: the policy does not allow for it.
        """
        download = self.door.admit(turn)
        if turn.request in ABOUT_SUMS:
            return self._about_sums(turn, download or Payload())
        self._seed(derive_seed(self.seed, self.name, turn.round, turn.name))
        self._round = turn.round
        answer: Payload | None = None
        match turn.request:
            case Request.DESCRIBE:
                return self.door.describe(turn)
            case Request.AGREE:
                answer = self._agree(download or Payload())
            case Request.SNAPSHOT:
                self.snapshot()
            case Request.RESTORE:
                self.restore()
            case Request.EVALUATE:
                self._install(turn, download)
                return self.door.metrics(turn, self.evaluate(turn.splits, turn.round))
            case Request.EXCHANGE:
                if self.masked is not None:
                    self.masked.check_ready(turn)
                self._install(turn, download)
                self.changed = True
                self.aggregator.local_update(self, turn.round, turn.exchange)
                answer = self.aggregator.upload(self, turn.round, turn.exchange)
                if answer is not None:
                    expect_kind(answer, Payload, f"upload of {type(self.aggregator).__name__}", "a Payload or None")
                if self.masked is not None:
                    return self._masked(self.masked, answer or Payload(), turn)
                if answer is not None and self.transforms:
                    self.routing.check_upload(answer)
                    return self.door.upload(turn, self._transformed(answer, turn), self.transforms.codes)
        return b"" if answer is None else self.door.upload(turn, answer)

    def _about_sums(self, turn: Turn, told: Payload) -> bytes:
        if self.masked is None:
            raise InputError(f"request to client `{self.name}", "one of a run with secure sums", str(turn.request))
        layout: Layout = [(name, self.routing.rows[name].shape) for name in sorted(self.routing.shared)]
        answer = self.masked.answer(turn, told, layout)
        over = self.masked.confirmed[turn.round, turn.exchange] if turn.request == Request.CONFIRM else ""
        return self.door.about_sums(turn, answer, over)

    def _masked(self, masked: MaskedUploads, answer: Payload, turn: Turn) -> bytes:
        self.routing.check_upload(answer)
        changed = self._transformed(answer, turn) if self.transforms else answer
        shared = set(changed.tensors) == set(self.routing.shared)
        expect(
            shared, f"upload` of client `{self.name}", "of all shared tensors and no others for secure sums", "others"
        )
        weight = self.aggregator.client_weight(changed)
        # An exchanged copy of the model comes from another download than the one that algorithms go by.
        last = self.last_download.digest if self._download is not None else ""
        origin = self._origin if last in ("", self._origin) else mask_context("", [self._origin, last])
        return self.door.masked(turn, answer, masked.mask(turn, changed.tensors, weight, origin))

    def _transformed(self, answer: Payload, turn: Turn) -> Payload:
        def draw(transform: Transform) -> Draw:
            purpose = (self.seed, self.name, turn.round, turn.exchange, type(transform).__name__)
            return Draw(draw_key(self.simulated or not transform.protects, *purpose))

        initial = turn.round == 0 and self.trainer.global_step == 0
        return self.transforms.encode(answer, self.last_download, initial, draw)

    def _install(self, turn: Turn, download: Payload | None) -> None:
        if download is not None:
            self.changed, before = True, self._download
            self._download = turn.download
            try:
                self.aggregator.install(self, download)
            except InputError:
                self._download = before
                raise
            if self.masked is not None:
                self._origin = download.digest

    def _agree(self, terms: Payload) -> Payload:
        self.routing.agree(_names(terms, "shared"))
        wanted, own = _names(terms, "initial"), self.aggregator.initial_weights == "own"
        shared = set() if own else set(self.routing.shared)  # nobody is to know where each begins
        for name in wanted:
            expect(name in shared, f"request to client `{self.name}", "one for tensors that it shares", name)
        return Payload({name: self._tensor(name) for name in wanted})

    # --------------------------------------------------------------- what the client half of an algorithm uses
    @property
    def num_samples(self) -> int:
        """Number of training samples, as it may be told."""
        return self.door.count(self.data.num_train_samples)

    @property
    def last_download(self) -> Payload:
        """What the client installed last; an empty payload before the first. A client that was stopped has it, too."""
        return Payload() if self._download is None else Payload.from_bytes(self._download)

    @property
    def num_parameters(self) -> dict[str, int]:
        """Numbers in the model's parameters: ``total``, and ``shared``."""
        sizes = {name: parameter.numel() for name, parameter in self.module.named_parameters()}
        return {"total": sum(sizes.values()), "shared": sum(sizes.get(name, 0) for name in self.routing.shared)}

    @property
    def about(self) -> dict[str, Any]:
        """Plain values for results and for comparing runs.

        ``data`` describes the data, ``parameters`` is :attr:`num_parameters`, ``routes`` the routing table's
        lines.
        """
        return {"data": described_of(self.data), "parameters": self.num_parameters, "routes": self.routing.lines}

    def disclosed(self, key: bytes) -> dict[str, Any]:
        """What of :attr:`about` another owner may know: nothing of personal tensors, their names and sizes included.

        Which tensors are personal by the agreement among clients is known after it only; before, the routes decide.

        Args:
            key: of the site, for the digest of its data's settings (:func:`~flgraph.runs.compatibility.sealed`), among
                which are names of relations, sizes of a schema, classes and the like.
        """
        about, data = self.about, sealed(self.about["data"], key)
        if not self.door.tells_samples:
            del data["num_train_samples"]  # the algorithm is told, if need be, as the policy wants it
        return {
            "data": data,
            "parameters": {"shared": about["parameters"]["shared"]},
            "routes": [line for line in about["routes"] if line[2] != RouteKind.PERSONAL],
        }

    def private_seed(self, *purpose: str | int) -> int:
        """A seed for noise that protects.

        In a simulation it derives from the client's seed and ``purpose``, so that runs can be repeated. At a site it
        comes from the operating system and is another one at every call: a server that has a turn done twice would
        otherwise learn what the noise hides.
        """
        return derive_seed(self.seed, self.name, *purpose) if self.simulated else secrets.randbits(63)

    def shared_tensors(self) -> dict[str, Tensor]:
        """The model's shared tensors by name (not copied)."""
        return {name: self._tensor(name) for name in self.routing.shared}

    def load_shared(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies ``tensors`` into the model.

        Raises:
            InputError: one of them is not shared by this client, or has another shape.
        """
        shared = set(self.routing.shared)
        field = f"download` of client `{self.name}"
        for name, tensor in tensors.items():
            if name not in shared:
                raise InputError(field, "one of tensors that it shares", f"`{name}`, which it does not")
            own, found = self._tensor(name), list(tensor.shape)
            expect(own.shape == tensor.shape, field, f"one with `{name}` of shape {list(own.shape)}", found)
            own.copy_(tensor)

    def expect_whole(self, download: Payload) -> None:
        """Refuses a download that lacks a tensor which this client shares.

        Raises:
            InputError: it does.
        """
        missing = sorted(set(self.routing.shared) - download.group().keys())
        field, wanted = f"download` of client `{self.name}", "one with all tensors that it shares"
        expect(not missing, field, wanted, f"one without {''.join(missing[:1])}")

    def _tensor(self, name: str) -> Tensor:
        """A tensor of the model's state, sharing its memory; quicker than a whole ``state_dict``."""
        owner, _, attribute = name.rpartition(".")
        tensor = getattr(self.module.get_submodule(owner), attribute, None)
        return tensor.detach() if isinstance(tensor, Tensor) else self.module.state_dict()[name]

    def fit(self, epochs: int | None = None) -> None:
        """Trains for ``epochs`` (default: the local epochs) more, with the client's own Trainer."""
        epochs = self.local_epochs if epochs is None else epochs
        self.door.check_epochs(epochs)
        made = None if self._trained else _parts(self.module)
        self._train_metrics = fit_more(self.trainer, self.module, self._loader("train"), epochs)
        self._trained = self._round
        if made is not None:
            found = _parts(self.module)
            same = len(made) == len(found) and all(map(operator.is_, made, found))
            wanted = "one that makes its layers in `__init__`, as routes are of these,"
            expect(same, "model", wanted, f"{type(self.module).__name__}, which makes some later")

    def swap_optimizers(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Exchanges the kept states of optimizers and schedulers; with ``{}`` the next training has new ones."""
        return self._optimizers.swap(states)

    def swap_training(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """As :meth:`swap_optimizers`, for another model: it has its own counts of epochs and steps, too."""
        before = {**self.swap_optimizers(states), "loop": self.trainer.fit_loop.state_dict()}
        load_counts(self.trainer, states.get("loop", self._unfitted))
        return before

    def evaluate(self, splits: Sequence[str] = ("train", "val", "test"), round: int = 0) -> dict[str, float]:
        """Metrics as the module logs them; ``train`` gives those of the local training in this round, if there was one.

        A split that the client has no data for, or the module no step, is left out. What data samples for a split
        depends on the seed, the client, the round and the split alone.
        """
        trained = self._train_metrics if self._trained == self._round else {}
        metrics = {**trained, **self._reported} if "train" in splits else {}
        return metrics | evaluate(self.trainer, self.module, self._evaluations(splits, round))

    def _evaluations(self, splits: Sequence[str], round: int) -> Iterator[tuple[str, Any]]:
        for split, step in (("val", "validation_step"), ("test", "test_step")):
            loader = self._loader(split) if split in splits and is_overridden(step, self.module) else None
            if loader is not None and not is_empty(loader):
                self._seed(derive_seed(self.seed, self.name, round, f"{Request.EVALUATE}/{split}"))
                yield split, loader

    def snapshot(self) -> None:
        """Keeps a copy of the model as it is now, and of what its algorithm knows, in place of an earlier one."""
        self.changed = True
        half: Any = self.aggregator
        known = {"state_dict": dict(self.module.state_dict()), "half": half.state_dict()}
        self._snapshot = apply_to_collection(known, Tensor, torch.clone)
        self.module.on_save_checkpoint(self._snapshot)
        self._snapshot_origin = self._origin

    def restore(self) -> None:
        """Exchanges all this and the copy that :meth:`snapshot` made; the optimizer's state stays as it is.

        Done a second time, all is as it was. Nothing happens where there is no copy.
        """
        if self._snapshot:
            half: Any = self.aggregator
            before, origin = self._snapshot, self._snapshot_origin
            self.snapshot()
            self._origin = origin
            self.module.on_load_checkpoint(before)
            self.module.load_state_dict(before["state_dict"])
            half.load_state_dict(before["half"])

    def report(self, name: str, value: float) -> None:
        """Adds a number to the metrics that the client sends with every evaluation; a new value replaces the old.

        Raises:
            InputError: the algorithm does not declare the name in ``reported_scalars``, and it is none of training.
        """
        declared = ("train/*", *self.aggregator.reported_scalars)
        expect(
            matches(name, declared),
            f"report` of client `{self.name}",
            f"among the declared {list(declared)}",
            name,
        )
        self._reported[name] = value

    def predict(self) -> Predictions:
        """What the module says of the client's prediction data.

        Raises:
            InputError: there is none.
        """
        self._seed(derive_seed(self.seed, self.name, 0, "predict"))
        loader = self._loader("predict")
        expect(loader is not None, f"data of client `{self.name}", "with a `predict_dataloader`", "none")
        with keeping_modes(self.module):
            batches = self.trainer.predict(self.module, dataloaders=loader) or []
        predicted = getattr(self.module, "predicted", "probabilities")
        return Predictions(batches, dict(getattr(self.data, "prediction_rows", {})), predicted)

    def _loader(self, split: str) -> Any:
        if split not in self._loaders:
            name = f"{split}_dataloader"
            own = overrides(self.data, pl.LightningDataModule, [name])
            loader = getattr(self.data, name)() if own else None
            for callback in self._callbacks if split == "train" else ():
                loader = callback.train_loader(self, loader)
            self._loaders[split] = loader
            _seed_own(loader)
        return self._loaders[split]

    def _seed(self, seed: int) -> None:
        """Seeds all generators, those that loaders of the client's data bring along among them."""
        seed_all(seed)
        for loader in self._loaders.values():
            _seed_own(loader)

    # ------------------------------------------------------------------------------------------------- persistence
    def state(self) -> dict[str, Any]:
        """A Lightning checkpoint: ``type(module).load_from_checkpoint`` reads it with no federation in sight.

        Raises:
            InputError: something in it is no plain value, and could not be read again.
        """
        callbacks = [callback for callback in self.trainer.callbacks if callback is not self._optimizers]  # type: ignore[attr-defined]
        model = self.module.state_dict()
        state = {
            "state_dict": model,
            "hyper_parameters": readable(self.module.hparams),
            "hparams_name": getattr(self.module, "_hparams_name", None) or "kwargs",
            "pytorch-lightning_version": pl.__version__,
            "epoch": self.trainer.current_epoch,
            "global_step": self.trainer.global_step,
            "loops": {"fit_loop": self.trainer.fit_loop.state_dict()},
            "optimizer_states": self._optimizers.optimizers,
            "lr_schedulers": self._optimizers.schedulers,
            "precision": self.trainer.precision_plugin.state_dict(),
            "callbacks": {callback.state_key: own for callback in callbacks if (own := callback.state_dict())},
            "client": {
                "name": self.name,
                "train_metrics": self._train_metrics,
                "trained": self._trained,
                "reported": self._reported,
                "shared": self.routing.shared,
                "snapshot": self._snapshot,
                **({"origins": [self._origin, self._snapshot_origin]} if self.masked is not None else {}),
                **({"transforms": self.transforms.state_dict()} if self.transforms else {}),
                "download": None if self._download is None else self._stored(self.last_download, model),
            },
        }
        for callback in callbacks:
            callback.on_save_checkpoint(self.trainer, self.module, state)
        self.module.on_save_checkpoint(state)
        return storable(state, f"state.{self.name}")  # type: ignore[no-any-return]

    def _stored(self, download: Payload, model: Mapping[str, Tensor]) -> dict[str, Any]:
        """A download without the tensors that are the model's, too, with the same bits."""
        others = {name: sent for name, sent in download.tensors.items() if not _same(model.get(name), sent)}
        return {"names": list(download.tensors), "others": others, "scalars": dict(download.scalars)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state` returned."""
        self.module.on_load_checkpoint(dict(state))
        self.trainer.precision_plugin.convert_module(self.module)  # before: float32 would round what is float64
        self.module.load_state_dict(state["state_dict"])
        load_loop(self.trainer, state["loops"]["fit_loop"])
        self._optimizers.optimizers = state["optimizer_states"]
        self._optimizers.schedulers = state["lr_schedulers"]
        if state["precision"]:
            self.trainer.precision_plugin.load_state_dict(state["precision"])
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            if callback.state_key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.state_key])
            callback.on_load_checkpoint(self.trainer, self.module, dict(state))
        self._train_metrics = dict(state["client"]["train_metrics"])
        self._round = self._trained = state["client"]["trained"]
        self._reported = dict(state["client"]["reported"])
        self._snapshot = dict(state["client"]["snapshot"])
        self.transforms.load_state_dict(state["client"].get("transforms", {}))
        self._origin, self._snapshot_origin = state["client"].get("origins", ("", ""))
        self._download = None
        if (download := state["client"]["download"]) is not None:
            known = {**state["state_dict"], **download["others"]}
            sent = {name: known[name] for name in download["names"]}
            self._download = Payload(sent, download["scalars"]).to_bytes()
        self.routing.agree(state["client"]["shared"])


def _parts(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Those that have tensors of their own."""
    own = ((part, next(chain(part.parameters(False), part.buffers(False)), None)) for part in module.modules())
    return [part for part, first in own if first is not None]


def _seed_own(loader: Any) -> None:
    """Seeds generators of the loader's own, or of its samplers; of each, where it is a collection of loaders."""
    parts = getattr(loader, "iterables", loader)  # of a CombinedLoader
    if isinstance(parts, Mapping | list | tuple):
        for part in parts.values() if isinstance(parts, Mapping) else parts:
            _seed_own(part)
        return
    batches = getattr(loader, "batch_sampler", None)
    for part in (loader, getattr(loader, "sampler", None), getattr(batches, "sampler", None), batches):
        if isinstance(generator := getattr(part, "generator", None), torch.Generator):
            generator.manual_seed(torch.initial_seed())


def _same(own: Tensor | None, sent: Tensor) -> bool:
    """Whether both have the same bits (0 and -0 have not), and are in the same memory."""
    if own is None or (own.shape, own.dtype, own.device) != (sent.shape, sent.dtype, sent.device):
        return False
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(own.element_size(), torch.uint8)
    return torch.equal(own.view(whole), sent.view(whole))


def _names(terms: Payload, key: str) -> list[str]:
    return [name for name in str(terms.scalars.get(key, "")).split("\n") if name]
