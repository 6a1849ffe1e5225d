"""An optimizer's step once some weights have had no gradient for long, as words that a client does not have any more.

Weights have the shapes of FedEgo's on DBLP. All get a gradient in the first step, then some of the first layer's rows
get none. Their mean gradients shrink by a tenth a step, and are below a float's usual range after 800 steps or so.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch

from flgraph.federation.lightning import flushing_denormals
from flgraph.models import FedEgo


def step_times(share: float, steps: int, hidden: int) -> list[float]:
    """Seconds of every step.

    Args:
        share: of the first layer's rows that get no gradient after the first step.
        steps: number of steps.
        hidden: columns of all hidden layers.
    """
    torch.manual_seed(0)
    model = FedEgo(in_channels=1639, num_classes=4, hidden_channels=hidden)
    optimizer = model.configure_optimizers()
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    layers: Any = model.reduction.layers
    words = layers[0].weight.grad
    assert words is not None
    seconds = []
    for number in range(steps):
        if number == 1:
            words[: round(share * len(words))] = 0
        begin = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    """Prints a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=0.25, help="of the words, that get no gradient")
    parser.add_argument("--steps", type=int, default=1200, help="more than 900, to reach these numbers")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("milliseconds a step (median of 100): the first | the last")
    for name, way in (("as they are", nullcontext), ("as zero", flushing_denormals)):
        with way():
            seconds = step_times(args.share, args.steps, 512)
        print(f"{name:12} {1000 * median(seconds[:100]):6.2f} | {1000 * median(seconds[-100:]):6.2f}", flush=True)


if __name__ == "__main__":
    main()
