"""What doors, policy, ledger and transforms take of a round of FedStar on CHEM, measured inside of the run itself.

Everything that either side checks, decides or notes is timed where it is called, in the rounds of one run. The client's
ledger, which only sites keep, is kept here, too. With ``--transforms`` uploads are clipped, get noise, are cut to their
largest tenth and coded in eight bits, and processor time is told instead of the clock's.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import pytorch_lightning as pl
import torch

from flgraph.callbacks import FedStar
from flgraph.configs import tu_settings
from flgraph.data import TUFederation
from flgraph.federation import (
    FederatedCallback,
    FederatedTrainer,
    GaussianNoise,
    Policy,
    Quantise,
    Sequential,
    Sums,
    TopK,
    client_door,
    door,
    server,
)
from flgraph.federation.routes import RoutingTable
from flgraph.federation.summing import Summing
from flgraph.federation.transforms import Pipeline
from flgraph.models import FedStar as FedStarNet
from flgraph.runs.ledger import Ledger

PARTS: dict[str, list[tuple[Any, str]]] = {
    "server's door": [
        (door.ServerDoor, "_check_forms"),
        (door, "largest_values"),
        (FedStar, "check_upload"),
        (door.ServerDoor, "compare"),
        (door.ServerDoor, "metrics"),
    ],
    "client's door": [
        (client_door.ClientDoor, "_count"),
        (client_door.ClientDoor, "_check"),
        (client_door, "largest_values"),
        (RoutingTable, "check_upload"),
    ],
    "mean": [(Summing, "add"), (Summing, "total"), (Sums, "mean")],
    "policy": [(Policy, "tell")],
    "transforms": [(Pipeline, "encode"), (Pipeline, "decode"), (Pipeline, "receive")],
    "ledger": [(server, "note_message"), (client_door, "note_message"), (Ledger, "flush")],
}
"""What is timed; of calls inside of each other the outermost."""

NOW: Callable[[], float] = time.perf_counter
TRANSFORMS = [GaussianNoise(norm=10.0, multiplier=1e-4), TopK(0.1), Quantise(8)]


class Clock(FederatedCallback):
    """Notes how long rounds take, and what of it each part."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.rounds: list[dict[str, float]] = []
        self.spent: dict[str, float] = defaultdict(float)
        self._inside = False
        self._began = 0.0

    def on_federation_start(self, trainer: Any) -> None:
        ledger = Ledger(self.folder / "sites.jsonl")
        for client in trainer.engine.clients.values():
            client.door.ledger = ledger

    def on_round_start(self, trainer: Any) -> None:
        self.spent.clear()
        self._began = NOW()

    def on_round_end(self, trainer: Any) -> None:
        self.rounds.append({"round": NOW() - self._began, **self.spent})

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the parts are timed."""
        with ExitStack() as stack:
            for part, places in PARTS.items():
                for owner, name in places:
                    timed = self._timed(part, getattr(owner, name))
                    stack.enter_context(mock.patch.object(owner, name, timed))
            yield

    def _timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return work(*args, **kwargs)
            self._inside, began = True, NOW()
            try:
                return work(*args, **kwargs)
            finally:
                self.spent[part] += NOW() - began
                self._inside = False

        return timed


def measure(model: pl.LightningModule, data: Any, rounds: int, transforms: list[Any]) -> list[dict[str, float]]:
    """Seconds of every round and of each part in it.

    Args:
        model: a FedStar network.
        data: the clients'.
        rounds: of the run.
        transforms: of uploads.
    """
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(Path(folder))
        trainer = FederatedTrainer(
            FedStar(),
            rounds=rounds,
            engine=Sequential(),
            policy=Policy(),
            transforms=transforms,
            callbacks=[clock],
            default_root_dir=folder,
            enable_progress_bar=False,
            accelerator="cpu",
        )
        with clock.running():
            trainer.fit(model, data)
    return clock.rounds


def main() -> None:
    """Prints a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="the first two are not counted")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--transforms", action="store_true")
    args = parser.parse_args()
    if args.transforms:
        global NOW
        NOW = time.process_time
    torch.set_num_threads(args.threads)
    transforms = TRANSFORMS if args.transforms else []
    rounds = measure(FedStarNet(), TUFederation(tu_settings()["chem"]), args.rounds, transforms)[2:]
    whole = median(one["round"] for one in rounds)
    kind = "processor time" if args.transforms else "median"
    print(f"FedStar on CHEM, {args.threads} thread(s): {len(rounds)} rounds of {whole:.3f} s ({kind})")
    total = 0.0
    for part in PARTS:
        spent = median(one.get(part, 0.0) for one in rounds)
        total += spent
        print(f"{part:14} {1000 * spent:7.2f} ms  {100 * spent / whole:5.2f} %")
    print(f"{'together':14} {1000 * total:7.2f} ms  {100 * total / whole:5.2f} %")


if __name__ == "__main__":
    main()
