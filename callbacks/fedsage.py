"""FedSage as graph classification papers use the name: GraphSAGE under FedAvg (FedStar, appendix A.2)."""

from __future__ import annotations

from flgraph.callbacks.fedavg import FedAvg
from flgraph.errors import expect
from flgraph.federation.client import Client
from flgraph.federation.payload import Payload


class FedSage(FedAvg):
    """FedAvg for models of GraphSAGE layers; refuses any other model.

    This is the baseline of the FedStar and GCFL papers. The missing-neighbour generator of Zhang et al. (NeurIPS 2021)
    has no place in graph classification, where no edges are cut.

    Args:
        kwargs: see :class:`FedAvg`.
    """

    def install(self, client: Client, download: Payload) -> None:
        made = client.module
        wanted = "GNN for FedSage (for nodes, NodeSAGE with FedAvg)"
        expect("conv" in made.hparams, "model", wanted, type(made).__name__)
        conv = made.hparams["conv"]
        expect(conv == "sage", "model.conv", "'sage' for FedSage", conv)
        super().install(client, download)
