"""Where the processor time of a round goes: what a sample of the stack every few milliseconds shows. See README.md."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from small_models import cora, template

from flgraph import callbacks
from flgraph.cli.fit import FederatedCLI
from flgraph.cli.main import keep_memory
from flgraph.federation import FederatedCallback, FederatedTrainer
from flgraph.federation.callback import Run

ROOT = Path(__file__).resolve().parents[1]
CHEM = ("-c", "configs/data/chem.yaml", "-c", "configs/method/fedstar.yaml")


class Sampler(FederatedCallback):
    """Counts in which functions the processor is, from the second round on."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.inside, self.at = rounds, Counter[str](), Counter[str]()
        self.began = self.seconds = 0.0

    def on_round_start(self, trainer: Run) -> None:
        if trainer.current_round == 2:
            self.began = time.process_time()
            signal.signal(signal.SIGPROF, self._sample)
            signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
        if trainer.current_round == self.rounds:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.seconds = (time.process_time() - self.began) / (self.rounds - 2)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        names = []
        while frame is not None:
            code = frame.f_code
            names.append(f"{_short(code.co_filename)}:{code.co_qualname}")
            frame = frame.f_back
        self.at[names[0]] += 1
        self.inside.update(set(names))

    def report(self, most: int) -> str:
        """Milliseconds of a round by function, with what it calls and without."""
        lines = [f"{1e3 * self.seconds:.0f} ms of processor time a round, {sum(self.at.values())} samples"]
        for title, counts in (("with what is called", self.inside), ("alone", self.at)):
            lines.append(f"\nms a round, {title}")
            for name, count in counts.most_common(most):
                lines.append(f"{1e3 * self.seconds * count / sum(self.at.values()):8.1f} {name}")
        return "\n".join(lines)


def _short(path: str) -> str:
    return path.rpartition("site-packages/")[2].removeprefix(f"{ROOT}/")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("cora", "chem"))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--most", type=int, default=60, help="functions shown")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    keep_memory()
    sampler = Sampler(options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"rounds": options.rounds, "default_root_dir": folder, "accelerator": "cpu"}
        if options.work == "cora":
            method = callbacks.FedAvg()
            trainer = FederatedTrainer(
                method, local_epochs=3, callbacks=[sampler], enable_progress_bar=False, **settings
            )
            trainer.fit(template(0.5), cora())
        else:
            sys.argv = sys.argv[:1]
            given = [f"--trainer.{name}={value}" for name, value in settings.items()]
            cli = FederatedCLI([*CHEM, *given, "--trainer.enable_progress_bar=false"], run=False)
            cli.trainer.round_callbacks.append(sampler)
            cli.trainer.fit(cli.model, cli.datamodule)
    print(sampler.report(options.most))
    return 0


if __name__ == "__main__":
    sys.exit(main())
