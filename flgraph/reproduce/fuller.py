"""Keeps a table that a smaller one would take the place of: the runs behind it may be gone."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flgraph.reproduce.study import Study
from flgraph.reproduce.tables import Cell
from flgraph.runs.files import write_text

_Held = dict[tuple[str, str, str], tuple[set[str], int, int]]
"""Setting, method and metric to the seeds, their number and the rounds behind a mean; older tables name no seeds."""


def keep_fuller(study: Study, cells: Sequence[Cell], out: Path) -> list[Path]:
    """Puts a table aside, with its pictures, that has cells, seeds or rounds that the new one lacks.

    It becomes ``TABLE.fuller.csv`` and ``.md``; one that was put aside before makes room only for one that has all that
    it has.

    Args:
        study: whose table.
        cells: of the new one.
        out: where tables go.

    Returns:
        The files that were put aside now.
    """
    folder, table = out / study.paper_name, study.name.rpartition("/")[2]
    before = [folder / f"{table}{suffix}" for suffix in (".csv", ".md")]
    if not all(file.is_file() for file in before):
        return []
    had, aside = _held_in(before[0]), folder / f"{table}.fuller.csv"
    if _covers(_held(map(asdict, cells)), had) or (aside.is_file() and not _covers(had, _held_in(aside))):
        return []
    text = before[1].read_text(encoding="utf-8")
    for picture in dict.fromkeys(re.findall(r"!\[[^]]*\]\(([^()/]+)\.png\)", text)):
        if (folder / f"{picture}.png").is_file():
            before.append(folder / f"{picture}.png")
            text = text.replace(f"![{picture}]({picture}.png)", f"![{picture}]({picture}.fuller.png)")
    write_text(text, before[1])
    return [file.replace(file.with_name(f"{file.stem}.fuller{file.suffix}")) for file in before]


def _covers(one: _Held, other: _Held) -> bool:
    """Whether a table has all that another one has."""
    for cell, (seeds, count, rounds) in other.items():
        mine, mine_count, mine_rounds = one.get(cell, (set(), 0, 0))
        if count > mine_count or rounds > mine_rounds or (mine and not seeds <= mine):
            return False
    return True


def _held_in(file: Path) -> _Held:
    with open(file, newline="", encoding="utf-8") as stream:
        return _held(csv.DictReader(stream))


def _held(rows: Iterable[Mapping[str, Any]]) -> _Held:
    return {
        (row.get("setting", ""), row.get("method", ""), row.get("metric", "")): (
            set((row.get("which") or "").split()),
            int(row.get("seeds") or 0),
            int(row.get("rounds") or 0),
        )
        for row in rows
        if row.get("protocol") == "final"
    }
