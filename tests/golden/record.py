"""Writes what ``digests.json`` has of this machine anew.

``python tests/golden/record.py`` records all pairs, ``python tests/golden/record.py fedego/citeseer`` only those named.
What is no longer listed is dropped, of all machines. Needs ``FLGRAPH_DATA`` and
``pip install 'flgraph[metis]'``.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from golden import DIGESTS, machine, read, run, versions, write
from pairs import PAIRS


def main(names: Sequence[str]) -> None:
    """Runs the pairs of these names, or all of them, and writes what is kept of them."""
    if unknown := [name for name in names if name not in PAIRS]:
        raise SystemExit(f"no such pairs: {', '.join(unknown)}")
    recorded = read()
    own = recorded.get(machine(), {}) if names else {}
    if own.get("versions", versions()) != versions():
        raise SystemExit(f"{DIGESTS} is of other versions: record all pairs")
    pairs = own.get("pairs", {})
    os.chdir(Path(__file__).parents[2])
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flgraph-golden-") as folder:
        os.environ["FLGRAPH_CACHE"] = f"{folder}/cache"
        for name in names or PAIRS:
            pairs[name] = run(PAIRS[name], Path(folder) / "runs").as_dict()
            print(f"{time.perf_counter() - began:6.1f} s  {name}", flush=True)
    recorded[machine()] = {"versions": versions(), "pairs": pairs}
    for there in recorded.values():
        there["pairs"] = {name: outcome for name, outcome in there["pairs"].items() if name in PAIRS}
    write(recorded)


if __name__ == "__main__":
    main(sys.argv[1:])
