"""``flgraph ledger``: who got what of whom, and whether server and sites say the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import JustifyMethod
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from flgraph.cli.parser import CommandParser
from flgraph.console import Console
from flgraph.errors import InputError
from flgraph.runs.ledger import ASKED, DONE, LEDGER, NOTHING, SUM
from flgraph.runs.ledger_reader import Comparison, Line, Total, compare, printable, read_ledger, totals

_DIFFERS, _SHOWN = 1, 20
_TIMES = {0: "", 1: "once"}
_HEADS = ("client", "message", "times", "asked again", "dropped", "size", "tensors", "scalars", "policy")
_WHOLE = ("message", "times", "size")
_TITLES = {"down": "What the server sent to each client", "up": "What each client sent to the server"}


def main(args: Sequence[str]) -> None:
    """Shows a ledger, and compares it with those of sites.

    Raises:
        InputError: an argument cannot be used, or a ledger was changed after it was written.
        SystemExit: with 1, ledgers of server and sites differ.
    """
    parser = CommandParser(
        prog="flgraph ledger",
        description="Shows what crossed between server and clients, after checking that no line was changed. With "
        "--site also what the server's ledger and the sites' own say differently. Exit codes: 0; 1, they differ; 2, "
        "a ledger cannot be read, or its chain of hashes is broken. Compare the newest hash (the head) with one that "
        "was noted earlier: who can write a ledger could make all of it anew.",
    )
    parser.add_argument(
        "run", type=str, metavar="RUN", help=f"a run folder, a folder with one run below it, or a ledger ({LEDGER})"
    )
    parser.add_argument(
        "--site", type=str, nargs="+", default=[], metavar="PATH", help="ledgers of sites, folders of them, or kits"
    )
    given = parser.parse_args(list(args))
    console = Console(highlight=False, soft_wrap=True)
    lines = read_ledger(_ledger_of(Path(given.run)))
    rows = totals(lines)
    for direction, title in _TITLES.items():
        if those := [row for row in rows if row.direction == direction]:
            console.print(_table(those, title), soft_wrap=False)
    if sums := [line.bytes for line in lines if line.event == SUM]:
        console.print(f"{len(sums)} sums of {sum(sums):,} bytes came in place of the uploads in them")
    for line in lines:
        if line.event and line.event not in (ASKED, DONE, SUM):
            further = [f"{name} {value}" for name, value in line.further.items()]
            place = [f"round {line.round}"] * bool(line.round) + [f"run {line.run}"] * bool(line.run)
            console.print(printable(f"{line.time}: {', '.join([line.event, *place, *further])}"))
    console.print(_chain(lines))
    differ = [not _compare(lines, Path(path), console) for path in given.site]
    if any(differ):
        raise SystemExit(_DIFFERS)


def _compare(server: Sequence[Line], path: Path, console: Console) -> bool:
    """Whether the ledgers at a path agree with the server's; says what differs."""
    files = _ledgers_at(path)
    found = 0
    agrees = True
    for file in files:
        site = read_ledger(file)
        told = compare(server, site)
        if not told.clients:
            console.print(f"{printable(file)}: left out, as it has no message of this run")
            continue
        found += 1
        agrees = agrees and told.agrees
        console.print(f"{printable(file)}: {told.same} messages are the same at both sides; {_chain(site)}")
        for line in _differences(told):
            console.print(f"  {printable(line)}")
    _require(bool(found), "--site", "a ledger with messages of this run", path)
    return agrees


def _differences(told: Comparison) -> Iterator[str]:
    lost = "; may have been lost on the way"
    pairs = [f"differs: {_message(one)}; at the site {_digest(other)}" for one, other in told.differing]
    server = [f"only at the server: {_message(line)}{lost * (line.direction == 'down')}" for line in told.only_server]
    site = [f"only at the site: {_message(line)}{lost * (line.direction == 'up')}" for line in told.only_site]
    for lines in (pairs, server, site):
        yield from lines[:_SHOWN]
        if len(lines) > _SHOWN:
            yield f"{lines[0].partition(':')[0]}: {len(lines) - _SHOWN} more"


def _message(line: Line) -> str:
    return f"{line.client}, round {line.round}, {_what(line)}, {line.direction}, {_digest(line)}"


def _what(row: Line | Total) -> str:
    return row.exchange if row.request == "exchange" else row.request


def _digest(line: Line) -> str:
    return f"{line.bytes} bytes, sha256 {line.sha256[:12]} (line {line.n})"


def _chain(lines: Sequence[Line]) -> str:
    return f"chain whole: {len(lines)} lines, head {lines[-1].hash if lines else NOTHING}"


def _table(rows: Sequence[Total], title: str) -> Table:
    """A row per message, for all clients that it is the same for; columns that would be empty are left out."""
    clients: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        cells = (
            _what(row),
            f"{row.times}",
            _TIMES.get(row.again, f"{row.again} times"),
            f"{row.dropped}" if row.dropped else "",
            decimal(row.bytes),
            _few([f"{name} {form}" for name, form in row.tensors.items()]),
            _few(list(row.scalars)),
            _few([f"{text} ({count})" for text, count in row.policies.items()]),
        )
        clients.setdefault(cells, []).append(row.client)
    lines = [(", ".join(names), *cells) for cells, names in clients.items()]
    table = Table(title=title)
    shown = [column for column in range(len(_HEADS)) if any(line[column] for line in lines)]
    for head in (_HEADS[column] for column in shown):
        justify: JustifyMethod = "right" if head in ("times", "size") else "left"
        table.add_column(head, justify=justify, no_wrap=head in _WHOLE, overflow="fold")
    for line in lines:
        table.add_row(*(Text(printable(line[column] or "-")) for column in shown))
    return table


def _few(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])


def _ledger_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = [path / LEDGER] if (path / LEDGER).is_file() else sorted(path.rglob(LEDGER))
    several = [file.parent for file in found[:4]]
    _require(len(found) == 1, "RUN", f"a ledger, or a folder with one {LEDGER} in it or below", *several or [path])
    return found[0]


def _ledgers_at(path: Path) -> list[Path]:
    """A ledger, those in a folder, or those of a kit."""
    kit = path / "flgraph" / "ledger"
    files = sorted((kit if kit.is_dir() else path).glob("*.jsonl")) if path.is_dir() else [path]
    _require(bool(files), "--site", "a ledger, a folder with some, or the kit of a site", path)
    return files


def _require(condition: bool, field: str, expected: str, *paths: Path) -> None:
    """Raises :class:`InputError` unless ``condition`` holds, with whole paths."""
    if not condition:
        raise InputError(field, expected, f"'{', '.join(map(printable, paths))}'")
