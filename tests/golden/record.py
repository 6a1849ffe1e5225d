"""Writes ``digests.json`` anew.

``python tests/golden/record.py`` records all pairs and drops those that are no longer listed;
``python tests/golden/record.py fedego/citeseer`` only those named. Needs ``FLGRAPH_DATA`` and
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
    recorded = read() if names else {"pairs": {}}
    here = {"machine": machine(), "versions": versions()}
    if any(recorded.get(key, value) != value for key, value in here.items()):
        raise SystemExit(f"{DIGESTS} is of another processor or other versions: record all pairs")
    os.chdir(Path(__file__).parents[2])
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flgraph-golden-") as folder:
        os.environ["FLGRAPH_CACHE"] = f"{folder}/cache"
        for name in names or PAIRS:
            recorded["pairs"][name] = run(PAIRS[name], Path(folder) / "runs").as_dict()
            print(f"{time.perf_counter() - began:6.1f} s  {name}", flush=True)
    write({**recorded, **here})


if __name__ == "__main__":
    main(sys.argv[1:])
