"""Runs a pair, and what is kept of its result."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy
import sklearn
import torch
import torch_geometric
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional as F

from flgraph.cli.arguments import with_data_first, with_packaged_configs
from flgraph.cli.fit import FederatedCLI
from flgraph.federation.lightning import flushing_denormals

DIGESTS = Path(__file__).parent / "digests.json"

MEASURED = ("seconds", "bytes")
"""How metrics end that are no results."""

States = Mapping[str, Mapping[str, Tensor]]
Metrics = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Outcome:
    """What is kept of a run.

    Args:
        weights: digest of the bits of all clients' weights, with their names.
        values: the same without the parameters' names, which tells a renamed parameter from another value.
        metrics: digest of the exact metrics of all clients.
        norms: client to the length of all its weights taken together.
        means: metric to its mean over clients.
    """

    weights: str
    values: str
    metrics: str
    norms: dict[str, float]
    means: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(arguments: Sequence[str], folder: Path) -> Outcome:
    """Runs a pair in this process, on one thread."""
    line = with_data_first(with_packaged_configs(["fit", *arguments, f"--trainer.default_root_dir={folder}"]))
    # Lightning warns of a process that has arguments of its own.
    with one_thread(), flushing_denormals(), patch.object(sys, "argv", sys.argv[:1]):
        cli = FederatedCLI(line[1:], run=False)
        results = cli.trainer.fit(cli.model, cli.datamodule)
    states = {name: client.module.state_dict() for name, client in cli.trainer.engine.clients.items()}
    return outcome(states, results["final"]["clients"])


def outcome(states: States, metrics: Metrics) -> Outcome:
    """What is kept of these weights and metrics."""
    kept = {
        client: {name: float(value) for name, value in own.items() if not name.endswith(MEASURED)}
        for client, own in sorted(metrics.items())
    }
    columns: dict[str, list[float]] = {}
    for own in kept.values():
        for name, value in own.items():
            columns.setdefault(name, []).append(value)
    return Outcome(
        weights=_digest(part for client in sorted(states) for part in _parts(client, states[client])),
        values=_digest(part for client in sorted(states) for part in _nameless(client, states[client])),
        metrics=_digest([json.dumps(kept, sort_keys=True).encode()]),
        norms={client: _norm(state) for client, state in sorted(states.items())},
        means={name: math.fsum(column) / len(column) for name, column in sorted(columns.items())},
    )


def _parts(client: str, state: Mapping[str, Tensor]) -> Iterator[bytes]:
    yield client.encode()
    for name in sorted(state):
        yield name.encode()
        yield _bits(state[name])


def _nameless(client: str, state: Mapping[str, Tensor]) -> Iterator[bytes]:
    yield client.encode()
    yield from sorted(_bits(tensor) for tensor in state.values())


def _bits(tensor: Tensor) -> bytes:
    dense = (tensor.to_dense() if tensor.layout != torch.strided else tensor).detach().cpu().contiguous()
    return f"{dense.dtype} {tuple(dense.shape)} ".encode() + dense.reshape(-1).view(torch.uint8).numpy().tobytes()


def _norm(state: Mapping[str, Tensor]) -> float:
    return math.sqrt(math.fsum(float(t.detach().double().square().sum()) for t in state.values()))


def _digest(parts: Iterator[bytes] | Sequence[bytes]) -> str:
    """SHA-256 of the parts, each after its length."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


@contextmanager
def one_thread() -> Iterator[None]:
    """Within, PyTorch and the libraries below NumPy compute on one thread: how a sum is divided decides its bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@cache
def machine() -> str:
    """Digest of the bits of a few fixed computations: processors and builds of PyTorch that agree here count as one."""
    draw = torch.Generator().manual_seed(0)
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # sparse tensors are a beta, says PyTorch
        return _digest([_bits(tensor) for tensor in (*_products(draw), *_functions(draw), *_training(draw))])


def _products(draw: torch.Generator) -> list[Tensor]:
    results = []
    for rows, inner, columns in ((3, 5, 7), (16, 16, 16), (64, 300, 8), (129, 65, 33), (512, 1433, 16)):
        a, b = torch.randn(rows, inner, generator=draw), torch.randn(inner, columns, generator=draw)
        results += [a @ b, a.double() @ b.double(), (a @ b).t() @ a]
        results.append(F.linear(a, b.t().contiguous(), torch.ones(columns)))
    dense = torch.randn(200, 300, generator=draw)
    sparse = torch.where(dense > 1.5, dense, 0.0).to_sparse_csr()
    square = dense[:40, :40].double().numpy()
    results.append(sparse @ torch.randn(300, 16, generator=draw))
    results.append(torch.from_numpy(np.linalg.inv(square) @ square))
    results.append(torch.from_numpy(np.linalg.eigvalsh(square @ square.T)))
    return results


def _functions(draw: torch.Generator) -> list[Tensor]:
    x = torch.randn(10007, generator=draw)
    rows = x[:10000].reshape(1000, 10)
    index = torch.randint(0, 50, (1000,), generator=draw)
    results = [x.exp(), x.abs().log(), x.tanh(), x.sigmoid(), x.abs().sqrt(), x.sum(), x.double().sum(), x.norm()]
    results += [rows.log_softmax(1), rows.mean(0), rows.var(0), rows.cumsum(0)]
    results += [torch.zeros(50, 10).index_add(0, index, rows), torch.randperm(100, generator=draw)]
    return results


def _training(draw: torch.Generator) -> list[Tensor]:
    x, y = torch.randn(300, 20, generator=draw), torch.randint(0, 4, (300,), generator=draw)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of first weights and dropout
        layers = torch.nn.Linear(20, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout()
        net = torch.nn.Sequential(*layers, torch.nn.Linear(8, 4))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    return list(net.state_dict().values())


def versions() -> dict[str, str]:
    """Of the libraries that compute."""
    libraries = (torch, torch_geometric, np, scipy, sklearn)
    return {library.__name__: str(library.__version__) for library in libraries}


def read() -> dict[str, Any]:
    """The recorded digests: machine to ``versions`` and ``pairs``."""
    found: dict[str, Any] = json.loads(DIGESTS.read_text())
    return found


def write(recorded: Mapping[str, Any]) -> None:
    """Records digests."""
    DIGESTS.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
