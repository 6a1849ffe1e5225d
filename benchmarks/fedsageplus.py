"""FedSage+ with OpenFGL's sizes on its ten Louvain clients of Cora: processor seconds, bytes and accuracy.

See README.md beside this file.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence

import torch

from flgraph import callbacks, models
from flgraph.data import WholeGraphFederation
from flgraph.federation import FederatedCallback, FederatedTrainer
from flgraph.federation.callback import Run


class Watch(FederatedCallback):
    """Processor seconds before round 1, which are spent on the generators, and of all rounds."""

    def on_federation_start(self, trainer: Run) -> None:
        self.began, self.generators, self.best = time.process_time(), 0.0, (0.0, 0.0)

    def on_round_start(self, trainer: Run) -> None:
        self.generators = self.generators or time.process_time() - self.began

    def on_round_end(self, trainer: Run) -> None:
        means = trainer.record.weighted_mean
        self.last = means.get("test/accuracy", 0.0)
        self.best = max(self.best, (means.get("val/accuracy", 0.0), self.last))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--generator-rounds", type=int, default=10)
    parser.add_argument("--pretrain-epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    watch, method = Watch(), callbacks.FedSagePlus(options.pretrain_epochs, options.generator_rounds)
    method.evaluated_model = "trained"  # as OpenFGL evaluates
    model = models.NeighGenSAGE(
        hidden_channels=128, fgen_channels=(256, 2048), lr=0.01, weight_decay=5e-4, generator_lr=0.001
    )
    data = WholeGraphFederation(
        "Cora", partition=f"openfgl/louvain10-cora-{options.seed}.npz", cross_edges=False, epoch_fraction=1.0
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            method,
            rounds=options.rounds,
            local_epochs=3,
            seed=options.seed,
            default_root_dir=folder,
            callbacks=[watch],
            accelerator="cpu",
            enable_progress_bar=False,
            enable_checkpointing=False,
        )
        results = trainer.fit(model, data)
    whole, up = time.process_time() - watch.began, results["setup_bytes"]["up"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"$ python benchmarks/fedsageplus.py {' '.join(sys.argv[1:])}")
    print(f"torch {torch.__version__}, one thread; ten clients, seed {options.seed}")
    print(f"generators: processors {watch.generators:.0f} s, {up / 1e6:.1f} MB up")
    print(f"{options.rounds} rounds: processors {whole - watch.generators:.0f} s; in all {whole:.0f} s, {peak:.1f} GB")
    print(f"test accuracy, best validation {100 * watch.best[1]:.1f}, last round {100 * watch.last:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
