"""A model of flgraph in an ordinary Lightning Trainer: no federation, one client's data.

Run it with::

    python examples/train_alone.py [FOLDER] [--epochs N]

FOLDER (``runs``) is where Lightning puts its logs and checkpoint.
"""

from __future__ import annotations

import argparse

import pytorch_lightning as pl

from flgraph.data import GraphDataModule, SyntheticFederation
from flgraph.models import FedStar


def graphs() -> GraphDataModule:
    """The graphs of one domain: a LightningDataModule like any other."""
    data = SyntheticFederation(domains=["blocks"], batch_size=32)
    data.setup()
    return data.client("blocks")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default="runs")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()

    pl.seed_everything(0)
    datamodule = graphs()
    model = FedStar(**datamodule.model_args, lr=2e-3)
    trainer = pl.Trainer(max_epochs=args.epochs, default_root_dir=args.folder, accelerator="cpu", log_every_n_steps=10)
    trainer.fit(model, datamodule)
    trainer.test(model, datamodule)
