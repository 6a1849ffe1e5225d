"""How a table was made: commands, versions, checksums of the data, seconds."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flgraph.reproduce.index import MANY_CLIENTS
from flgraph.reproduce.runner import command
from flgraph.reproduce.study import Study


def provenance(study: Study, done: Mapping[tuple[str, str], Sequence[dict[str, Any]]], runs: Path) -> Iterator[str]:
    """The lines of Markdown below a table."""
    yield from ("## How it was made", "", "```", shlex.join(_study_command(study)), "```", "")
    (setting, method), results = next(iter(done.items()))
    example = shlex.join(["flgraph", *command(study, study.run(setting, method, results[0]["seed"]), runs)])
    yield from ("which runs, for each cell and seed, with one thread, for example", "", "```", example, "```", "")
    versions = [result["versions"] for several in done.values() for result in several]
    yield "Versions:"
    yield ""
    for package in dict.fromkeys(name for version in versions for name in version):
        yield f"- {package}: {', '.join(sorted({str(version.get(package, '-')) for version in versions}))}"
    yield from _data(done)
    yield ""
    seconds = {cell: statistics.fmean(r["seconds_per_round"] for r in results) for cell, results in done.items()}
    shown = ", ".join(f"{setting} {method} {value:.2f}" for (setting, method), value in seconds.items())
    yield f"Seconds a round (one thread a run; other runs may have shared the machine): {shown}."


def _study_command(study: Study) -> list[str]:
    seeds = ",".join(map(str, study.seeds))
    parts = ["flgraph", "reproduce", study.source or study.name, "--settings", ",".join(study.settings)]
    parts += ["--methods", ",".join(study.methods), "--seeds", seeds]
    # Only where they are not the study's own: the option is for all methods, and keeps checkpoints.
    return [*parts, "--rounds", str(study.rounds)] if study.cut_short else parts


def _data(done: Mapping[tuple[str, str], Sequence[dict[str, Any]]]) -> Iterator[str]:
    """Checksums of features, edges, labels and splits, as the clients held them."""
    known: dict[str, set[str]] = {}
    for results in done.values():
        for name, settings in (item for result in results for item in result.get("data", {}).items()):
            if "content" in settings:
                known.setdefault(name, set()).add(settings["content"])
    if not known:
        return
    if len(known) > MANY_CLIENTS:
        yield from ("", f"Data: {len(known)} clients; checksums are in each run's `results.json`.")
        return
    yield from ("", "Data (SHA-256 of features, edges, labels and splits, first 16 digits):", "")
    yield from (f"- {name}: {', '.join(sorted(digests))}" for name, digests in known.items())
