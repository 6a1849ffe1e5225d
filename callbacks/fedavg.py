"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017."""

from __future__ import annotations

from typing import Any, Literal

from flgraph.errors import expect
from flgraph.federation.aggregator import Aggregator
from flgraph.federation.payload import Payload
from flgraph.federation.received import expect_count
from flgraph.federation.routes import Route, shared
from flgraph.federation.values import LARGEST_INTEGER


class FedAvg(Aggregator):
    r"""Averages what clients have in common: :math:`\bar w = \sum_m \frac{|D_m|}{N} w_m` (FedStar, Eq. 4).

    By default every parameter and buffer that all clients hold in the same shape is shared; across data sets with
    different features and classes, input and output layers so stay with the client.

    Args:
        weighting: ``"samples"`` weighs clients by their number of training samples, ``"uniform"`` alike; the number
            then does not leave them.
        kwargs: see :class:`~flgraph.federation.Aggregator`.
    """

    def __init__(self, weighting: Literal["samples", "uniform"] = "samples", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        expect(weighting in ("samples", "uniform"), "aggregator.weighting", "samples or uniform", weighting)
        self.weighting = weighting
        if weighting == "uniform":
            self.upload_scalars = tuple(name for name in self.upload_scalars if name != "num_samples")

    def routes(self) -> list[Route]:
        return shared("*", on_mismatch="personal")

    # ----------------------------------------------------------------------------------------------- server half
    def check_shared(self, client: str, upload: Payload) -> None:
        """Asks for the number of samples besides, where clients count by it."""
        super().check_shared(client, upload)
        self.check_samples(client, upload)

    def check_samples(self, client: str, upload: Payload) -> None:
        """Refuses numbers of samples by which no mean can be weighed."""
        if self.weighting == "samples":
            expect_count(upload, "num_samples", 1, LARGEST_INTEGER, f"upload` of client `{client}")

    def client_weight(self, upload: Payload) -> float:
        """How much a client counts, by ``weighting``; not normalised."""
        if self.weighting == "uniform":
            return 1.0
        counted = "num_samples" in upload.scalars
        expect(counted, "upload", "with the scalar `num_samples`, by which clients are weighted,", "none")
        return float(upload.scalars["num_samples"])
