"""Algorithms of every kind give the same bits at sites as in one process, also when a run goes from here to there.

The sites are objects in this process; bytes cross, as FLARE would carry them (``test_federation.py``).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import methods
import pytest

from flgraph.cli.flare import configuration
from flgraph.flare.gather import adopt, gather
from flgraph.flare.run import serve
from flgraph.flare.settings import read_settings
from flgraph.runs.history import read_records

METHODS = (
    *("fedstar", "fedego", "fedhgn", "fclg", "scaffold", "apfl", "fedssp"),
    "fedstar@32-true+secure",
)

POLICY = {"algorithms": ["*"], "metrics": {"*": None}, "accept_states": True}
"""As in one process: nothing is held back."""

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:LightningCLI's args")]


@pytest.fixture(scope="module", autouse=True)
def no_arguments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv[:1])
        yield


WITHOUT_NUMBERS = ("fedego", "fedssp")
"""Methods whose servers are told no numbers of samples."""


@pytest.mark.parametrize("method", METHODS)
def test_same_bits(
    method: str,
    in_memory: Any,
    measured: Callable[[Path], dict[str, Any]],
    as_sites_tell: Callable[..., Any],
    assert_same: Callable[..., None],
    tmp_path: Path,
) -> None:
    """A run that began at sites ends in one process, too: its last round is done once more there."""
    methods.run(method, tmp_path / "one", methods.ROUNDS, *methods.KEEP)
    begun = tmp_path / "one" / method / "version_0"
    expected = measured(begun)
    config = configuration([*methods.settings(method, methods.ROUNDS), *methods.KEEP])

    kits, *names = tmp_path / "kits", *expected["results"]["final"]["clients"]
    data = {"class_path": f"federations.{methods.kind(method).__name__}"}
    sites = {"north": {"clients": names[:-1]}, "east": {"clients": names[-1:]}}
    common = {"data": data, "seed": 0, "policy": POLICY}  # the run's own seed
    sites = {site: {**own, **common} for site, own in sites.items()}
    (kits / "server" / "local").mkdir(parents=True)

    def run_at_sites(name: str) -> Path:
        transport = in_memory(kits, sites)
        settings = read_settings(kits / "server")
        opened = transport.open(config, name)
        serve(config, name, transport, opened, settings, {"deadline": 60.0})
        return gather(name, kits, tmp_path)

    there = run_at_sites("began-at-sites")
    withheld = "+secure" in method or method in WITHOUT_NUMBERS
    of_sites = {**expected, "results": as_sites_tell(expected["results"], kits, withheld)}
    assert_same(measured(there), of_sites)
    earlier = there / "checkpoints" / f"round-{methods.ROUNDS - 1:05d}"
    methods.run(method, tmp_path, methods.ROUNDS, ckpt_path=str(earlier))
    assert_same(measured(there), expected)

    here = tmp_path / "copied" / "began-here" / "version_0"
    shutil.copytree(begun, here, symlinks=True)
    for number in range(methods.CUT + 1, methods.ROUNDS + 1):  # as if it had been stopped before these
        shutil.rmtree(here / "checkpoints" / f"round-{number:05d}")
    further = adopt(here.parent, kits / "server")
    assert further == kits / "server" / "flgraph" / "began-here" / "version_0"
    assert_same(measured(run_at_sites("began-here")), of_sites)
    assert (
        read_records(further / "history.jsonl")[: methods.CUT] == read_records(begun / "history.jsonl")[: methods.CUT]
    )
