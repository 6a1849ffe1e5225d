"""What secure sums cost: seconds and bytes of one exchange of 60,000 parameters, and a round of FedStar on CHEM.

Processor time, one thread. All clients of an exchange are played here, one after another; a tenth of them drops
out after the keys where ``gone`` says so. ``--chem`` runs FedStar with and without secure sums by turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from timing import Rounds

from flgraph.callbacks import FedStar
from flgraph.configs import tu_settings
from flgraph.data import TUFederation
from flgraph.federation import FederatedTrainer, Payload, Request, SecureSums, Turn
from flgraph.federation.secure.client import MaskedUploads
from flgraph.federation.secure.server import MaskedSum
from flgraph.models import FedStar as FedStarNet

LAYOUT = [("w", (60_000,))]
CASES = ((7, None), (100, None), (100, 30), (1000, 30))
NOW = time.process_time


def exchange(count: int, neighbours: int | None, gone: int) -> dict[str, float]:
    """Seconds of a client and of the server, and bytes of a client, for a sum of so many; checks it."""
    settings = SecureSums(neighbours=neighbours)
    names = [f"client-{number:04d}" for number in range(count)]
    halves = {name: MaskedUploads(name, settings) for name in names}
    update = {"w": torch.randn(60_000, generator=torch.Generator().manual_seed(0))}
    clients, sent = defaultdict[str, float](float), defaultdict[str, list[int]](lambda: [0, 0])
    total = MaskedSum(settings, 1, "train", LAYOUT)
    inside = 0.0

    def ask(request: Request, told: Mapping[str, Payload | None], read: Any) -> list[str]:
        nonlocal inside
        there = [name for name in told if request != Request.EXCHANGE or name not in names[:gone]]
        for name in there:
            turn, payload = Turn(1, request, "train"), told[name]
            began = NOW()
            if request == Request.EXCHANGE:
                answer: Payload | None = halves[name].mask(turn, update, 1.0)
            else:
                answer = halves[name].answer(turn, payload or Payload(), LAYOUT)
            answer = answer or Payload()
            data = answer.to_bytes()
            clients[name] += NOW() - began
            inside += NOW() - began
            sent[name][0] += len(data) if answer.tensors else 0
            sent[name][1] += payload.nbytes if payload is not None else 0
            read(name, answer)
        return there

    began = NOW()
    total.run(names, ask)
    mean = total.mean({"w": torch.float64})["w"]
    server = NOW() - began - inside
    assert float((mean - update["w"].double()).abs().max()) <= 2.0**-31
    stayed = names[gone:]
    return {
        "client": median(clients[name] for name in stayed),
        "server": server,
        "up": median(sent[name][0] for name in stayed) / 1000,
        "down": median(sent[name][1] for name in stayed) / 1000,
    }


def chem(rounds: int) -> None:
    """Prints rounds with and without, by turns."""
    found = defaultdict[str, list[float]](list)
    size = dict[str, float]()
    for _ in range(2):
        for what, secure in (("plain", None), ("secure sums", SecureSums())):
            clock = Rounds()
            with tempfile.TemporaryDirectory() as folder:
                quiet: dict[str, Any] = {"default_root_dir": folder, "enable_progress_bar": False, "accelerator": "cpu"}
                trainer = FederatedTrainer(FedStar(), rounds=rounds, callbacks=[clock], secure_sums=secure, **quiet)
                results = trainer.fit(FedStarNet(), TUFederation(tu_settings()["chem"]))
            found[what] += [busy for _, busy in clock.seconds[1:]]
            size[what] = results["bytes_per_round"]["up"] / 1000
    for what, seconds in found.items():
        print(f"{what:12} {median(seconds):.3f} s, {size[what]:.0f} kB up in a round (median of {len(seconds)})")
    print(f"overhead     {100 * (median(found['secure sums']) / median(found['plain']) - 1):.1f} %")


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chem", type=int, metavar="ROUNDS", help="of FedStar, in each of four runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.chem:
        chem(args.chem)
        return
    print(f"{'clients':>7} {'neighbours':>10} {'gone':>5} {'client s':>9} {'server s':>9} {'up kB':>7} {'down kB':>8}")
    for count, neighbours in CASES:
        for gone in (0, max(1, count // 10)):
            found = exchange(count, neighbours, gone)
            print(
                f"{count:7} {neighbours or 'all':>10} {gone:5} {found['client']:9.3f} {found['server']:9.2f} "
                f"{found['up']:7.0f} {found['down']:8.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
