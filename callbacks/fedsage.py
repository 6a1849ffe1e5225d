"""FedSage as graph classification papers use the name: GraphSAGE under FedAvg (FedStar, appendix A.2)."""

from __future__ import annotations

import pytorch_lightning as pl

from flgraph.callbacks.fedavg import FedAvg
from flgraph.errors import InputError
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload


class FedSage(FedAvg):
    """FedAvg for models of GraphSAGE layers; refuses any other model.

    This is the baseline of the FedStar and GCFL papers. The missing-neighbour generator of Zhang et al. (NeurIPS 2021)
    has no place in graph classification, where no edges are cut.

    Args:
        weighting: see :class:`FedAvg`.
        optimizer_state: see :class:`FedAvg`.
    """

    def install(self, client: Client, download: Payload) -> None:
        _check_layers(client.module)
        super().install(client, download)


def _check_layers(module: pl.LightningModule) -> None:
    conv = module.hparams.get("conv")
    if conv != "sage":
        raise InputError(f"Expected `model.conv` to be 'sage' for FedSage but got {conv!r}.")
