"""Uploads of a client that sends anything: what the server lets in never breaks it, nor what the others share.

Records a tiny run of every algorithm, changes one client's uploads at random, and lets the server half go on::

    python tests/attacks/fuzz.py --count 100000 [--seed N] [ALGORITHM ...]
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flgraph.callbacks import FedAvg
from flgraph.errors import InputError
from flgraph.federation import Aggregator, FederatedTrainer, Payload, Request, Sequential, Turn
from flgraph.federation.door import ServerDoor
from flgraph.federation.lightning import flushing_denormals
from flgraph.federation.seeding import seed_all

TESTS = Path(__file__).resolve().parents[1]


# ------------------------------------------------------------------------------------------------------- honest runs
@dataclass
class Step:
    """An exchange of an honest run: the server half before it, and what clients sent."""

    server: Aggregator
    round: int
    exchange: str
    uploads: dict[str, bytes]


@dataclass
class Recording:
    """A run's exchanges, and what its clients told of their models at the start."""

    steps: list[Step] = field(default_factory=list)
    described: dict[str, bytes] = field(default_factory=dict)


def record(make: Any, rounds: int = 2) -> Recording:
    """Runs an algorithm honestly.

    Args:
        make: makes aggregator, model and data.
        rounds: of the run.
    """
    aggregator, model, data = make()
    recording, kind = Recording(), type(aggregator)

    def spy(self: Any, uploads: Mapping[str, Payload], round: int, exchange: str) -> Mapping[str, Tensor]:
        twin = copy.deepcopy(self)
        twin.__class__ = kind
        sent = {client: upload.to_bytes() for client, upload in uploads.items()}
        recording.steps.append(Step(twin, round, exchange, sent))
        result: Mapping[str, Tensor] = kind.aggregate(self, uploads, round, exchange)
        return result

    class Noting(Sequential):
        def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
            answers = super().run(turns)
            told = {name: answers[name] for name, turn in turns.items() if turn.request == Request.DESCRIBE}
            recording.described |= {name: answer for name, answer in told.items() if isinstance(answer, bytes)}
            return answers

    aggregator.__class__ = type(
        f"Watched{kind.__name__}", (kind,), {"aggregate": spy}
    )  # the trainer makes a copy of the object
    monitor = {"monitor": "val/loss", "monitor_mode": "min"} if type(model).__name__ == "FCLG" else {}
    with tempfile.TemporaryDirectory() as folder, flushing_denormals():
        quiet = {"enable_progress_bar": False, "logger": False, "accelerator": "cpu", "enable_checkpointing": False}
        trainer = FederatedTrainer(
            aggregator, rounds=rounds, engine=Noting(), default_root_dir=folder, **quiet, **monitor
        )
        trainer.fit(model, data)
    return recording


# -------------------------------------------------------------------------------------------------------------- door
class Door:
    """The server's door, as it is once clients have agreed.

    Args:
        server: the server half.
        recording: of the honest run, for what clients said at the start.
    """

    def __init__(self, server: Aggregator, recording: Recording) -> None:
        self.door = ServerDoor(server)
        for client, answer in recording.described.items():
            shared = self.door.describe(client, answer)
            self.door.agree(client, shared, server.owners[client])

    def admit_all(self, uploads: Mapping[str, bytes], round: int, exchange: str) -> dict[str, Payload]:
        """What may come in of all clients."""
        admitted = {}
        for client, data in uploads.items():
            with suppress(InputError):
                admitted[client] = self.door.upload(client, data, round, exchange)
        refused = self.door.compare(admitted)
        return {client: upload for client, upload in admitted.items() if client not in refused}


# --------------------------------------------------------------------------------------------------------- mutations
NUMBERS = [float("nan"), float("inf"), 1e38, 1e18, -1e18, 1e-45, -1.0, 0.0, 1e9]
INTEGERS = [-1, -(2**31), 2**31 - 1, 100_000, 0, 1, 7]
SCALARS = [None, True, -1, 0, 1, 2**62, 2**200, 10**9, 0.5, "nan", "", "x" * 20_000, "[]", "{}", "[1000000, 1000000]"]
DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.float32]


def mutated(data: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """One to three changes of an upload.

    Args:
        data: what the client would have sent.
        others: further uploads, of other clients and exchanges.
        draw: generator.
    """
    kind = draw.random()
    if kind < 0.1:
        return _bytes_changed(data, draw)
    if kind < 0.2:
        return _header_changed(data, draw)
    if kind < 0.25:
        return draw.choice(others)
    payload = Payload.from_bytes(data) if data else Payload()
    tensors, scalars = dict(payload.tensors), dict(payload.scalars)
    for _ in range(draw.randint(1, 3)):
        if tensors and draw.random() < 0.85:
            _tensor_changed(tensors, draw)
        else:
            _scalar_changed(scalars, draw)
    try:
        return Payload(tensors, scalars).to_bytes()
    except InputError:
        return b"no payload at all"


def _bytes_changed(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    start = draw.randrange(len(changed))
    match draw.randrange(4):
        case 0:
            changed[start] ^= 1 << draw.randrange(8)
        case 1:
            del changed[start:]
        case 2:
            changed[start:start] = changed[start : start + draw.randint(1, 64)]
        case _:
            changed[start : start + 8] = draw.randbytes(8)
    return bytes(changed)


def _header_changed(data: bytes, draw: random.Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + size] or b"{}"), data[8 + size :]
    names = [name for name in header if name != "__metadata__"]
    entry = header[draw.choice(names)] if names else {}
    match draw.randrange(6):
        case 0:
            entry["dtype"] = draw.choice(["F64", "I8", "F8_E4M3", "I32", "I64", "F32", "BOOL", 3])
        case 1:
            entry["shape"] = draw.choice([[], [-1], [2**62], [0, 2**62], [2**31, 2**31], [1] * 80, "x", [True]])
        case 2:
            entry["data_offsets"] = draw.choice([[0, 0], [0, 2**63], [-4, 0], [8, 4], [0]])
        case 3:
            header["__metadata__"] = draw.choice([None, {}, {"scalars": "[" * 5000}, {"scalars": '{"n": [1]}'}, []])
        case 4:
            old = json.loads(header["__metadata__"]["scalars"])
            header["__metadata__"]["scalars"] = json.dumps(old)[:-1] + ', "a\\ud800": 1e999}'
        case _:
            header["x" * draw.choice([1, 600])] = dict(entry)
    text = json.dumps(header).encode()
    if draw.random() < 0.2:
        text = text[:-1] + b"," + text[1:]  # every name twice
    return len(text).to_bytes(8, "little") + text + rest


def _tensor_changed(tensors: dict[str, Tensor], draw: random.Random) -> None:
    name = draw.choice(list(tensors))
    tensor, other = tensors[name].clone(), draw.choice(list(tensors))
    match draw.randrange(14):
        case 0:
            del tensors[name]
            return
        case 1:
            del tensors[name]
            name = draw.choice([f"{name}x", name.rpartition("/")[0] + "/../x", name.partition("/")[2], f"a/{other}"])
        case 2:
            name = draw.choice([f"{name}/more", f"{name.partition('/')[0]}/A/x", "\n" + name, "", name + "|b|c"])
        case 3:
            tensors[other], tensor = tensor, tensors[other]
        case 4:
            tensor = draw.choice([tensor.flatten(), tensor.unsqueeze(0), tensor.T if tensor.dim() == 2 else tensor[:0]])
        case 5 if tensor.dim():
            tensor = draw.choice([tensor[:0], tensor[:-1], torch.cat([tensor, tensor]), torch.cat([tensor[:1]] * 300)])
        case 6:
            tensor = tensor.to(draw.choice(DTYPES))
        case 7 if tensor.numel():
            tensor = tensor.flatten()[torch.randperm(tensor.numel())].view(tensor.shape)
        case _ if tensor.numel():
            values = NUMBERS if tensor.is_floating_point() or tensor.is_complex() else INTEGERS
            value = draw.choice(values)
            value = bool(value) if tensor.dtype == torch.bool else value
            value = max(0, min(255, int(value))) if tensor.dtype == torch.uint8 else value
            flat = tensor.contiguous().view(-1)
            flat[draw.randrange(flat.numel()) if draw.random() < 0.6 else slice(None)] = value
            tensor = flat.view(tensor.shape)
    tensors[name] = tensor


def _scalar_changed(scalars: dict[str, Any], draw: random.Random) -> None:
    name = draw.choice([*scalars, "num_samples", "num_classes", "fanouts", "extra"])
    value = draw.choice(SCALARS)
    text = scalars.get(name)
    if isinstance(text, str) and text.startswith("{") and draw.random() < 0.8:
        inner = json.loads(text)
        inner[draw.choice([*inner, "extra"])] = draw.choice([*SCALARS, 1e300, [1], float("nan"), "sgd", 100])
        value = json.dumps(inner)
    scalars.pop(name, None)
    if value is not None:
        scalars[name] = value


# -------------------------------------------------------------------------------------------------------------- fuzz
def attack(recording: Recording, draw: random.Random) -> str:
    """One client sends something else in one exchange, and the run goes on to the end of the round.

    Returns:
        ``refused``, ``accepted``, or ``stopped`` where the server half stopped the run with an InputError.

    Raises:
        Exception: the server half breaks.
        AssertionError: what clients share is not finite; or, where what was sent is refused, not the same bits as
            without its sender.
    """
    first = draw.randrange(len(recording.steps))
    step = recording.steps[first]
    server, client = copy.deepcopy(step.server), draw.choice(list(step.uploads))
    others = [data for some in recording.steps for data in some.uploads.values()]
    torch.manual_seed(draw.randrange(2**31))
    bad = mutated(step.uploads[client], others, draw)
    steps = [following for following in recording.steps[first:] if following.round == step.round]
    try:
        refused = _go_on(server, recording, steps, client, bad)
        if refused:
            without = copy.deepcopy(step.server)
            _go_on(without, recording, steps, client, None)
            assert server.shared.keys() == without.shared.keys()
            for name, tensor in server.shared.items():
                assert torch.equal(tensor, without.shared[name]), f"`{name}` is not what it is without {client}"
    except InputError:
        return "stopped"
    return "refused" if refused else "accepted"


def _go_on(server: Aggregator, recording: Recording, steps: list[Step], client: str, data: bytes | None) -> bool:
    """A round to its end, with what ``client`` sends first or without it; whether that was refused."""
    door, gone, refused = Door(server, recording), set[str](), False
    for number, step in enumerate(steps):
        uploads = {name: upload for name, upload in step.uploads.items() if name not in gone}
        if number == 0:
            uploads = {name: data if name == client else upload for name, upload in uploads.items()}
        uploads = {name: upload for name, upload in uploads.items() if upload is not None}
        admitted = door.admit_all(uploads, step.round, step.exchange)
        refused = refused or (number == 0 and client not in admitted)
        gone |= step.uploads.keys() - admitted.keys()
        seed_all(0)
        server.accept(server.aggregate(admitted, step.round, step.exchange))
        _check(server, list(admitted), step)
    return refused


def _check(server: Aggregator, clients: list[str], step: Step) -> None:
    """All that the server has and sends is finite."""
    tensors = dict(server.shared)
    for client in clients:
        download = server.download(client, step.round, None if step.round else step.exchange)
        if download is not None:
            tensors |= Payload.from_bytes(download.to_bytes()).tensors
    for name, tensor in tensors.items():
        assert not tensor.is_floating_point() or bool(tensor.isfinite().all()), f"{name} is not finite"


def algorithms() -> dict[str, tuple[Any, Any, Any]]:
    """Name to what makes aggregator, model and data: those of ``tests/callbacks``."""
    sys.path[:0] = [str(TESTS / "callbacks"), str(TESTS / "parity")]
    try:
        import federations
        import test_all_algorithms
    finally:
        del sys.path[:2]
    found = dict(test_all_algorithms.ALGORITHMS)
    found["FedAvg-uniform"] = (lambda: FedAvg(weighting="uniform"), *found["FedAvg"][1:])
    return {name: (aggregator, model, getattr(federations, data)) for name, (aggregator, model, data) in found.items()}


def makes(names: list[str] | None = None) -> dict[str, Any]:
    """Name to what makes all three."""
    found = algorithms()
    return {name: lambda parts=found[name]: tuple(make() for make in parts) for name in names or found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithms", nargs="*")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    given = makes(args.algorithms)
    for name, make in given.items():
        recording, outcomes = record(make), Counter[str]()
        for number in range(args.seed, args.seed + -(-args.count // len(given))):
            try:
                outcomes[attack(recording, random.Random(number))] += 1
            except Exception as error:
                outcomes["broken"] += 1
                print(f"{name} {number}: {type(error).__name__}: {error}", flush=True)
        print(f"{name:24}", *(f"{kind} {outcomes[kind]}" for kind in ("refused", "accepted", "stopped", "broken")))
