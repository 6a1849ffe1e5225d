"""Downloads and agreements that are wrong are refused, and leave the client as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from asking import Server, agreement, state_of

from flgraph.callbacks import APFL, Ditto, FedAvg
from flgraph.federation import Payload, Policy, Request, Turn
from flgraph.federation.engines.host import Message

FIRST = {"first.weight": torch.ones(3, 4), "first.bias": torch.ones(3)}
DOWNLOADS: dict[str, bytes] = {
    "nan": Payload({**FIRST, "first.bias": torch.tensor([1.0, math.nan, 1.0])}).to_bytes(),
    "inf": Payload({**FIRST, "first.bias": torch.tensor([1.0, math.inf, 1.0])}).to_bytes(),
    "1e38": Payload({**FIRST, "first.bias": torch.full((3,), 1e38)}).to_bytes(),
    "wrong shape": Payload({**FIRST, "first.bias": torch.ones(4)}).to_bytes(),
    "integers": Payload({**FIRST, "first.bias": torch.ones(3).int()}).to_bytes(),
    "complex": Payload({**FIRST, "first.bias": torch.ones(3) + 0j}).to_bytes(),
    "unknown tensor": Payload({**FIRST, "secret": torch.ones(3)}).to_bytes(),
    "personal tensor": Payload({**FIRST, "last.bias": torch.ones(2)}).to_bytes(),
    "garbage": b"\xff" * 99,
    "truncated": Payload(FIRST).to_bytes()[:-3],
    "empty": b"",
}


@pytest.mark.parametrize("download", DOWNLOADS.values(), ids=DOWNLOADS.keys())
@pytest.mark.parametrize("kind", [Request.EXCHANGE, Request.EVALUATE])
def test_a_wrong_download_changes_nothing(
    site: Callable[..., Server], download: bytes, kind: Request, assert_same: Callable[..., None]
) -> None:
    server = site()
    server.begin()
    before = state_of(server.host.clients["A"])
    turn = Turn(1, kind, "train" if kind == Request.EXCHANGE else "", download=download, splits=("val",))
    assert server.ask(turn) == "refused"
    assert state_of(server.host.clients["A"]) == before
    good = server.ask(Turn(1, Request.EXCHANGE, "train", download=Payload(FIRST).to_bytes()))
    assert isinstance(good, Payload)
    assert sorted(good.tensors) == ["first.bias", "first.weight"]


@pytest.mark.parametrize("algorithm", [APFL, Ditto])
def test_a_download_of_a_part_gets_no_personal_model(site: Callable[..., Server], algorithm: Any) -> None:
    """Where the download has nothing, the personal model would be trained, and uploaded, as the common one."""
    server = site(aggregator=algorithm(weighting="uniform"))
    server.begin()
    whole = {name: torch.ones_like(tensor) for name, tensor in server.weights().items()}
    assert isinstance(server.ask(Turn(1, Request.EXCHANGE, "train", download=Payload(whole).to_bytes())), Payload)
    for part in ({}, {name: whole[name] for name in sorted(whole)[1:]}):
        server.ask(Turn(1, Request.EVALUATE, download=Payload(part).to_bytes(), splits=("val",)))
        assert server.ask(Turn(2, Request.EXCHANGE, "train", download=Payload(part).to_bytes())) == "refused"
    assert isinstance(server.ask(Turn(2, Request.EXCHANGE, "train", download=Payload(whole).to_bytes())), Payload)


@pytest.mark.parametrize(
    "turn",
    [
        agreement("first.weight", "first.bias", initial=("last.weight",)),
        agreement("first.weight", "first.bias", "last.weight", initial=("last.weight",)),
        agreement("first.weight", initial=("first.bias",)),
        Turn(0, Request.AGREE, download=b"\xff" * 99),
    ],
)
def test_agreements_on_personal_tensors(site: Callable[..., Server], turn: Turn) -> None:
    server = site()
    server.begin()
    assert server.ask(turn) == "refused"
    assert server.host.clients["A"].routing.shared == ["first.weight", "first.bias"]


def test_no_agreement_in_the_middle_of_a_run(site: Callable[..., Server]) -> None:
    """It would send weights past whatever the algorithm does to its uploads, noise for one."""
    server = site(Policy(accept_states=True))
    forms = server.begin()
    assert isinstance(server.ask(agreement(*forms, initial=("first.weight",))), Payload)  # as often as it likes, before
    state = state_of(server.host.clients["A"])
    server.ask(Turn(1, Request.EXCHANGE, "train"))
    for turn in (agreement(*forms, initial=("first.weight",)), agreement(), Turn(0, Request.DESCRIBE)):
        assert server.ask(turn) == "refused"
    assert server.send(Message({"do": "load", "labels": {}}, {"A": state})) == Message()
    server.done["A"] = 0
    assert server.ask(agreement(*forms, initial=("first.weight",))) == "refused"
    fresh = site(Policy(accept_states=True), ledger="other.jsonl")  # the state of a run that went on elsewhere
    assert fresh.send(Message({"do": "load", "labels": {}}, {"A": state})) == Message()
    assert fresh.ask(agreement(*forms, initial=("first.weight",))) == "refused"
    assert fresh.ask(agreement(*forms, initial=("first.weight",), round=1)) == "refused"


def test_where_each_begins_is_not_told_if_the_algorithm_says_so(site: Callable[..., Server]) -> None:
    class Own(FedAvg):
        initial_weights = "own"

    server = site(Policy(algorithms=["Own"]), Own())
    forms = server.begin()
    assert server.ask(agreement(*forms, initial=("first.weight",))) == "refused"
