"""Small runs of every method give the bits that they once gave.

``digests.json`` holds digests of the final weights and metrics of each pair in ``pairs.py``, by machine: the digest of
a few fixed computations. A processor and a PyTorch that agree on these must agree on all weights and metrics, bit for
bit. Elsewhere only the lengths of the clients' weights are compared, within one percent.

A change that is meant to change results writes them anew: ``python tests/golden/record.py`` (all pairs, or those named
after it), on each machine. One that only gives things other names must not: it changes the command lines in
``pairs.py``.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from golden import Outcome, machine, read, run, versions
from pairs import PAIRS, needs_files, needs_metis


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found = read()
    if machine() not in found:
        warnings.warn("digests are of other machines: only lengths of weights are compared", stacklevel=1)
    return found


def test_all_pairs_are_recorded(recorded: dict[str, Any]) -> None:
    assert {name for own in recorded.values() for name in own["pairs"]} == PAIRS.keys()


def test_every_method_has_a_pair() -> None:
    methods = {path.stem for path in (Path(__file__).parents[2] / "configs" / "method").glob("*.yaml")}
    assert methods == {Path(word).stem for line in PAIRS.values() for word in line if "configs/method/" in word}


@pytest.mark.parametrize("name", PAIRS)
def test_same_bits(name: str, recorded: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if needs_metis(name):
        pytest.importorskip("pymetis", reason="needs METIS: pip install 'flgraph[metis]'")
    if needs_files(name):
        request.getfixturevalue("data_root")
    found, here = run(PAIRS[name], tmp_path / "runs"), machine()
    for there, own in recorded.items():
        if name in own["pairs"]:
            wanted = Outcome(**own["pairs"][name])
            assert found.norms == pytest.approx(wanted.norms, rel=1e-2)
            told = _differences(wanted, found) if there == here else []
            assert not told, "; ".join([*told, f"recorded with {own['versions']}, here {versions()}"])


def _differences(wanted: Outcome, found: Outcome) -> list[str]:
    """What is not the same bits, in words."""
    told = []
    if found.values != wanted.values:
        lengths = {client: (length, found.norms.get(client)) for client, length in wanted.norms.items()}
        told.append(f"weights have other bits; their lengths, before and now: {lengths}")
    elif found.weights != wanted.weights:
        told.append("weights are the same bits under other names")
    if found.metrics != wanted.metrics:
        names = sorted(wanted.means.keys() | found.means.keys())
        means = {name: (wanted.means.get(name), found.means.get(name)) for name in names}
        other = {name: pair for name, pair in means.items() if pair[0] != pair[1]}
        told.append(f"metrics differ; their means, before and now, where they do: {other}")
    return told
