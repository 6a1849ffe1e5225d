"""One client that sends anything, or nothing, costs itself its place and nothing else: see ``fuzz.py``."""

from __future__ import annotations

import copy
import random
from typing import Any

import fuzz
import pytest

from flgraph.federation.seeding import seed_all

COUNT = 15
"""Attacks on each algorithm; ``python tests/attacks/fuzz.py --count N`` does more."""

NAMES = list(fuzz.algorithms())


@pytest.mark.parametrize("name", NAMES)
def test_no_upload_breaks_the_server(name: str, recorded: Any) -> None:
    recording = recorded(name)
    outcomes = [fuzz.attack(recording, random.Random(number)) for number in range(COUNT)]
    assert "stopped" not in outcomes
    assert outcomes.count("refused") > COUNT / 4


@pytest.mark.parametrize("name", NAMES)
def test_honest_uploads_come_in(name: str, recorded: Any) -> None:
    for step in recorded(name).steps:
        server = copy.deepcopy(step.server)
        assert fuzz.Door(server, recorded(name)).admit_all(step.uploads, step.round, step.exchange).keys() == (
            step.uploads.keys()
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_others_go_on_without_a_client(name: str, recorded: Any) -> None:
    """One that is left out of any exchange, which is for good before the first round; or of all of them."""
    steps = recorded(name).steps
    for first in range(len(steps)):
        server = copy.deepcopy(steps[first].server)
        gone = list(steps[first].uploads)[1]
        for step in steps[first:] if first == 0 else [s for s in steps[first:] if s.round == steps[first].round]:
            there = {client: data for client, data in step.uploads.items() if client != gone}
            door = fuzz.Door(server, recorded(name))
            admitted = door.admit_all(there, step.round, step.exchange)
            if name not in ("FedGCN", "FedSagePlus") or step.round:  # what the others sent was of a run with it
                assert admitted.keys() == there.keys()
            seed_all(0)
            server.accept(server.aggregate(admitted, step.round, step.exchange))
            fuzz._check(server, list(there), step)
