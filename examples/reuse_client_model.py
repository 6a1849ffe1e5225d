"""A client's model after a federated run: loaded and used where no federation is in sight.

A checkpoint holds a file per client that ``load_from_checkpoint`` reads. Do a run first (``make demo``), then::

    python examples/reuse_client_model.py [CHECKPOINT]

CHECKPOINT is ``runs/fedstar-synthetic/version_0/checkpoints/last/clients/blocks.ckpt`` where none is given.
"""

from __future__ import annotations

import argparse

import pytorch_lightning as pl
import torch

from flgraph.data import SyntheticFederation
from flgraph.models import FedStar

CHECKPOINT = "runs/fedstar-synthetic/version_0/checkpoints/last/clients/blocks.ckpt"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", nargs="?", default=CHECKPOINT)
    args = parser.parse_args()

    model = FedStar.load_from_checkpoint(args.checkpoint, map_location="cpu")

    # Graphs of the same domain, drawn with another seed: the model has seen none of them.
    data = SyntheticFederation(domains=["blocks"], num_graphs=200, seed=1)
    data.setup()
    new = data.client("blocks")

    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    probabilities = torch.cat(trainer.predict(model, new))
    accuracy = (probabilities.argmax(dim=1) == new.graphs.y).float().mean()
    print(f"{len(probabilities)} new graphs, {accuracy:.1%} of them classified correctly")
