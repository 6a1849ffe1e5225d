"""What happens to uploads between an algorithm and the doors."""

from __future__ import annotations

import hashlib
import math
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

from flgraph.errors import InputError, expect
from flgraph.federation.halves import AlgorithmHalf
from flgraph.federation.payload import Payload, Scalar
from flgraph.federation.routes import UploadKind, matches, parsed_form

Update = Mapping[str, Tensor]
"""What a client's upload adds to what it was sent: name to float64, or int64 where the tensor is of whole numbers."""

GROUP = "transforms"
"""The group of what transforms add to an upload."""


_MOST = 2**40
"""Numbers of a tensor."""


class Draw:
    """Random numbers from ChaCha20's key stream.

    Args:
        key: 32 bytes; who knows them knows the numbers.
    """

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def integers(self, count: int) -> NDArray[np.uint64]:
        """``[count]`` whole numbers below 2^64."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")

    def uniform(self, count: int) -> Tensor:
        """``[count]`` float64 between 0 and 1, neither of them among it."""
        return torch.from_numpy(((self.integers(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)

    def normal(self, count: int) -> Tensor:
        """``[count]`` float64 of the standard normal distribution, by the inverse of its distribution function."""
        normal: Tensor = torch.special.ndtri(self.uniform(count))
        return normal


def draw_key(again: bool, *purpose: str | int) -> bytes:
    """A key for :class:`Draw`.

    Args:
        again: whether it is to follow from ``purpose``, so that a run can be repeated; or else it is another one at
            every call, from the operating system.
        purpose: what it is for, and a seed.
    """
    text = "\x1f".join(["transforms", *map(str, purpose)])
    return hashlib.sha256(text.encode()).digest() if again else secrets.token_bytes(32)


class Transform(ABC):
    """Changes what clients upload, whatever the algorithm.

    It sees an upload as what it adds to the client's last download; updates and gradients (``upload_kind``,
    ``extra_tensors``) as they are. Whole numbers, such as counts of batches, are differences, too.

    Args:
        leave: patterns of tensors that leave as they are. Data, such as ``rows/*``, has to be named here, or the
            algorithm is refused.

    Raises:
        InputError: ``leave`` is no list of patterns.
    """

    stage: ClassVar[int] = 0
    """A list of transforms is in ascending order of these, with no two alike."""

    codes: ClassVar[bool] = False
    """Whether it changes the form in which an upload travels."""

    protects: ClassVar[bool] = False
    """Whether what it draws hides something, and must so be drawn once only where nothing is simulated."""

    def __init__(self, leave: Sequence[str] = ()) -> None:
        listed = isinstance(leave, list | tuple) and all(isinstance(pattern, str) for pattern in leave)
        expect(listed, f"{type(self).__name__}.leave", "a list of patterns", leave)
        self.leave = list(leave)

    @abstractmethod
    def encode(self, update: Update, draw: Draw) -> Update:
        """At the client. What stays as it is must be the same object; what is added is in the group ``transforms``."""

    def left(self, count: int) -> int:
        """How many of so many numbers of a tensor :meth:`encode` leaves."""
        return count

    def decode(self, update: Update, counts: Mapping[str, int], field: str) -> Update:
        """At the server, the opposite of :meth:`encode`, in reverse order; only of those that code.

        Args:
            update: what arrived, from a client that may have sent anything.
            counts: numbers of every tensor before :meth:`encode`.
            field: see :class:`~flgraph.errors.InputError`.

        Raises:
            InputError: it cannot be read.
        """
        return update

    def receive(self, update: Update, draw: Draw, count: int) -> Update:
        """At the server, in order, once the uploads of an exchange are decoded and checked.

        Args:
            update: of a client.
            draw: random numbers.
            count: how many clients' uploads are used, of that of its tensors which fewest clients hold.
        """
        return update

    def download_scalars(self) -> Mapping[str, float]:
        """At the server: what goes with every download, in the group ``transforms``; told in the history, too."""
        return {}

    def read(self, scalars: Mapping[str, Scalar]) -> None:
        """At both sides, before an update is encoded or received: what went with the client's last download.

        Raises:
            InputError: it cannot be used.
        """

    def end_exchange(self) -> None:
        """At the server, once all uploads of an exchange are received."""

    def receive_mean(self, update: Update, draw: Draw, weight: float) -> Update:
        """At the server, in place of :meth:`receive`, where it knows uploads' mean and added-up ``weight`` alone."""
        return update

    def state_dict(self) -> dict[str, Any]:
        """What it remembers at its side: nested dictionaries and lists of tensors and plain values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state_dict` returned."""


class Pipeline:
    """The transforms of a run, at one side.

    Args:
        transforms: in the order in which a client applies them.
        aggregator: that side's half of the algorithm.

    Raises:
        InputError: they are in another order than they can be, or the algorithm sends what they cannot change.
    """

    def __init__(self, transforms: Sequence[Transform], aggregator: AlgorithmHalf) -> None:
        self.transforms, self._half = list(transforms), aggregator
        check_order(self.transforms)
        if not self.transforms:
            return
        sends_own = aggregator.initial_weights == "own" and aggregator.upload_kind == "weights"
        wanted = "first or mean with transforms, which take what a client was sent for the start of its update,"
        expect(not sends_own, "aggregator.initial_weights", wanted, aggregator.initial_weights)
        for pattern, kind in aggregator.extra_tensors.items():
            if kind == "data" and not self.leaves(pattern):
                wanted = f"named in `leave` of a transform with {type(aggregator).__name__}, as it is data,"
                raise InputError(pattern, wanted, "not")

    def __bool__(self) -> bool:
        return bool(self.transforms)

    @property
    def codes(self) -> bool:
        """Whether uploads travel in another form than the algorithm's."""
        return any(transform.codes for transform in self.transforms)

    @property
    def extra(self) -> dict[str, UploadKind]:
        """Patterns of tensors that are added to uploads, see :attr:`Aggregator.extra_tensors`."""
        return {f"{GROUP}/*": "data"} if self.codes else {}

    @property
    def leave(self) -> list[str]:
        """Patterns of tensors that leave as they are: what one transform leaves, none changes."""
        return list(dict.fromkeys(pattern for transform in self.transforms for pattern in transform.leave))

    def leaves(self, name: str) -> bool:
        """Whether a tensor leaves as it is."""
        return matches(name, self.leave)

    def check_names(self, names: Collection[str], client: str) -> None:
        """Refuses patterns of ``leave`` that match neither ``names``, of a client's model, nor extra tensors."""
        known = [*names, *self._half.extra_tensors]
        for pattern in self.leave:
            found = any(fnmatchcase(name, pattern) for name in known)
            expect(found, "transforms.leave", f"patterns of tensors of client `{client}`", pattern)

    @property
    def receives(self) -> bool:
        """Whether the server changes uploads, and so has to hold them all."""
        return any(type(transform).receive is not Transform.receive for transform in self.transforms)

    # ------------------------------------------------------------------------------------------------------- client
    def encode(
        self, upload: Payload, reference: Payload, initial: bool, draw_of: Callable[[Transform], Draw]
    ) -> Payload:
        """What travels in place of an upload.

        Args:
            upload: the algorithm's.
            reference: the client's last download.
            initial: whether it has not trained yet: weights of which it was sent none are its initial ones then.
            draw_of: random numbers for a transform.

        Raises:
            InputError: a tensor has nothing that it is relative to.
        """
        bases: dict[str, Tensor] = {}
        for name, tensor in upload.tensors.items():
            if not self.leaves(name) and (not initial or self._kind(name) != "weights" or name in reference.tensors):
                bases[name] = self._base(name, tensor, reference)
        before = _differences(upload.tensors, bases)
        update: Update = dict(before)
        for transform in self.transforms:
            transform.read(reference.scalars)
            update = transform.encode(update, draw_of(transform))
        tensors = dict(upload.tensors)
        for name, changed in update.items():
            if name in bases and not (self.codes and before[name].is_floating_point()):
                if changed is not before[name]:
                    tensors[name] = _added(bases[name], changed, upload.tensors[name].dtype)
            else:  # as it was coded; in the tensor's own type where nothing was but its start
                wide = name in bases and changed.dtype == torch.float64
                tensors[name] = changed.to(upload.tensors[name].dtype) if wide else changed
        return Payload(tensors, upload.scalars)

    # ------------------------------------------------------------------------------------------------------- server
    def decode(self, wire: Payload, reference: Payload, forms: Mapping[str, str], initial: bool, field: str) -> Payload:
        """The upload that a client encoded.

        Args:
            wire: what arrived.
            reference: what the client was sent last.
            forms: shape and type, in words, of the tensors of its model.
            initial: whether clients have not trained yet.
            field: see :class:`~flgraph.errors.InputError`.

        Raises:
            InputError: it cannot be read.
        """
        if not self.codes:
            return wire
        bases, further = dict[str, Tensor](), dict[str, Tensor]()
        for name, tensor in wire.tensors.items():
            if name.startswith(f"{GROUP}/"):
                further[name] = tensor
            elif not self.leaves(name):
                base = reference.tensors.get(name) if self._kind(name) == "weights" else _zeros(name, forms)
                if base is None and not initial:
                    raise InputError(field, "of tensors that the client was sent, or shares", name[:60])
                if base is not None and base.is_floating_point():
                    bases[name] = base
        counts = {name: base.numel() for name, base in bases.items()}
        stages = [counts]
        for transform in self.transforms:
            stages.append({name: transform.left(count) for name, count in stages[-1].items()})
        update: Update = {**{name: wire.tensors[name] for name in bases}, **further}
        for transform, before in zip(reversed(self.transforms), reversed(stages[:-1]), strict=True):
            if transform.codes:
                update = transform.decode(update, before, field)
        left = update.keys() - bases.keys()
        expect(not left, field, f"without `{GROUP}` that nobody reads", f"{len(left)}")
        tensors = {name: tensor for name, tensor in wire.tensors.items() if name not in further}
        for name, base in bases.items():
            values = update[name]
            fits = values.is_floating_point() and values.numel() == base.numel()
            expect(fits, field, f"of {base.numel()} numbers of `{name[:60]}`", f"{values.numel()} {values.dtype}")
            tensors[name] = _added(base, values.double().view(base.shape), base.dtype)
        return Payload(tensors, wire.scalars)

    def receive(
        self,
        uploads: Mapping[str, Payload],
        references: Mapping[str, Payload],
        draw_of: Callable[[str, Transform], Draw],
    ) -> dict[str, Payload]:
        """Uploads as they are used.

        Args:
            uploads: client to upload.
            references: client to what it was sent last.
            draw_of: random numbers for a client and a transform.
        """
        received = {}
        holders = Counter(name for upload in uploads.values() for name in upload.tensors)
        for client, upload in uploads.items():
            reference = references.get(client, Payload())
            bases = {
                name: self._base(name, tensor, reference)
                for name, tensor in upload.tensors.items()
                if not self.leaves(name) and (self._kind(name) != "weights" or name in reference.tensors)
            }
            before = _differences(upload.tensors, bases)
            update: Update = dict(before)
            fewest = min((holders[name] for name in bases), default=len(uploads))
            for transform in self.transforms:
                transform.read(reference.scalars)
                update = transform.receive(update, draw_of(client, transform), fewest)
            new = {n: _added(bases[n], t, upload.tensors[n].dtype) for n, t in update.items() if t is not before[n]}
            received[client] = Payload({**upload.tensors, **new}, upload.scalars) if new else upload
        for transform in self.transforms:
            transform.end_exchange()
        return received

    def accompanied(self, download: Payload) -> Payload:
        """A download with what transforms send along."""
        further = self.download_scalars()
        return Payload(download.tensors, {**download.scalars, **further}) if further else download

    def download_scalars(self) -> dict[str, float]:
        """What goes with every download."""
        return {name: value for own in self.transforms for name, value in own.download_scalars().items()}

    def receive_mean(
        self, mean: Mapping[str, Tensor], weight: float, draw_of: Callable[[Transform], Draw]
    ) -> dict[str, Tensor]:
        """The mean of uploads as it is used, where the server knows none of these.

        Args:
            mean: name to tensor.
            weight: what the weights of these add up to.
            draw_of: random numbers for a transform.
        """
        before = {name: mean[name].double() for name in sorted(mean) if mean[name].is_floating_point()}
        before = {name: tensor for name, tensor in before.items() if not self.leaves(name)}
        update: Update = dict(before)
        for transform in self.transforms:
            update = transform.receive_mean(update, draw_of(transform), weight)
        return {**mean, **{name: t.to(mean[name].dtype) for name, t in update.items() if t is not before[name]}}

    # --------------------------------------------------------------------------------------------------------- both
    def _kind(self, name: str) -> UploadKind:
        extra = self._half.extra_tensors.items()
        return next((kind for pattern, kind in extra if fnmatchcase(name, pattern)), self._half.upload_kind)

    def _base(self, name: str, tensor: Tensor, reference: Payload) -> Tensor:
        """What a tensor is relative to."""
        expect(not tensor.is_complex(), name, "of real numbers for transforms", str(tensor.dtype))
        if self._kind(name) != "weights":
            return torch.zeros_like(tensor, device="cpu")
        base = reference.tensors.get(name)
        if base is None or base.shape != tensor.shape:
            raise InputError(name, "of a tensor that the client was sent, or named in `leave` of a transform,", "not")
        return base

    def state_dict(self) -> dict[str, Any]:
        """What transforms remember, by their class names."""
        return {type(own).__name__: state for own in self.transforms if (state := own.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state_dict` returned."""
        for own in self.transforms:
            own.load_state_dict(state.get(type(own).__name__, {}))


def check_order(transforms: Sequence[Any]) -> None:
    """Refuses transforms that cannot follow on each other.

    Raises:
        InputError: names the first.
    """
    for transform in transforms:
        expect(isinstance(transform, Transform), "trainer.transforms", "a list of transforms", type(transform).__name__)
    if any(getattr(own, "quantile", None) is not None for own in transforms):
        others = [type(own).__name__ for own in transforms if own.codes or own.protects]
        wanted = "null with what hides or changes lengths, by which the bound is found,"
        expect(not others, "Clip.quantile", wanted, f"one with {', '.join(others)}")
    for one, other in pairwise(transforms):
        wanted = "in the order clip, noise, selection, coding, one of each,"
        found = f"{type(other).__name__} after {type(one).__name__}"
        expect(one.stage < other.stage, "trainer.transforms", wanted, found)


def _differences(tensors: Update, bases: Update) -> dict[str, Tensor]:
    """What tensors add to others, in the order of their names: a norm is a sum, whose bits depend on it."""
    found = {}
    for name in sorted(bases):
        wide = torch.float64 if tensors[name].is_floating_point() else torch.int64
        found[name] = tensors[name].detach().cpu().to(wide) - bases[name].to(wide)
    return found


def _added(base: Tensor, update: Tensor, dtype: torch.dtype) -> Tensor:
    return (base.to(update.dtype) + update).to(dtype)


def _zeros(name: str, forms: Mapping[str, str]) -> Tensor | None:
    """Of an extra tensor that has the form of one of the model."""
    form = forms.get(name.partition("/")[2])
    if form is None:
        return None
    sizes, known = parsed_form(form)
    if known is None or math.prod(sizes) > _MOST:  # what clients told of themselves
        return None
    return torch.zeros((), dtype=known).expand(sizes)  # of no size before as many numbers came
