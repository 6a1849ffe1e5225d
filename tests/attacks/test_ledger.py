"""Who changes a ledger is found out, and what the other side chose steers no terminal and fills no disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flgraph.cli import main as cli
from flgraph.errors import InputError
from flgraph.runs.ledger import LEDGER, Ledger
from flgraph.runs.ledger_reader import compare, read_ledger


def message(round: int, **fields: Any) -> dict[str, Any]:
    place = {"round": round, "client": "north", "request": "exchange", "exchange": "train", "direction": "up"}
    return {**place, "data": b"%d" % round, "tensors": {"w": "2 float32"}, "verdict": "accepted", **fields}


def write(file: Path, *messages: dict[str, Any]) -> Path:
    ledger = Ledger(file)
    for fields in messages:
        ledger.add(**fields)
    ledger.close()
    return file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / LEDGER, *(message(round) for round in range(1, 6)))


def chained(line: dict[str, Any]) -> bytes:
    """A line with the right hash, as who can write the file can make one."""
    body = json.dumps({name: value for name, value in line.items() if name != "hash"}, separators=(",", ":")).encode()
    return body[:-1] + b',"hash":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def sentence(file: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_ledger(file)
    return str(caught.value).replace(str(file), "FILE")


Lines = list[bytes]


def forged(lines: Lines, **changes: Any) -> bytes:
    last = json.loads(lines[-1])
    return chained({**last, "n": len(lines) + 1, "previous": last["hash"], **changes})


def altered(text: bytes) -> bytes:
    return chained(json.loads(text) | {"client": "south"})


MOVED = "what came after the line before but got another one: lines were removed, inserted or moved."


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: [*lines[:2], lines[2].replace(b"north", b"south"), *lines[3:]], "line 3` to be what its hash"),
        (lambda lines: [*lines[:2], lines[2].replace(b'"n":3', b'"n":03'), *lines[3:]], "line 3` to be a JSON object"),
        (lambda lines: [*lines[:2], *lines[3:]], f"line 3` to be {MOVED}"),
        (lambda lines: lines[1:], f"line 1` to be {MOVED}"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], f"line 2` to be {MOVED}"),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], f"line 3` to be {MOVED}"),
        (
            lambda lines: [*lines[:2], altered(lines[2]), *lines[3:]],
            f"line 4` to be {MOVED}",
        ),
        (lambda lines: [*lines, b'{"n":6,"event":"resumed"}'], "line 6` to be with the field time"),
        (lambda lines: [*lines, lines[-1][:-4] + b'00"}'], "line 6` to be what its hash"),
        (lambda lines: [*lines, chained(json.loads(lines[-1]))], f"line 6` to be {MOVED}"),
        (lambda lines: [*lines, b""], "line 6` to be a JSON object but got 0 bytes that are none."),
        (lambda lines: [*lines, b"[" * 100_000], "line 6` to be a JSON object"),
        (lambda lines: [*lines, b"\xff\xfe"], "line 6` to be a JSON object"),
        (lambda lines: [*lines, b"\x1b[2J[]"], "line 6` to be a JSON object"),
        (lambda lines: [*lines, forged(lines, bytes=-1)], "line 6, bytes` to be of a ledger but got 'int'."),
        (lambda lines: [*lines, forged(lines, round=True)], "line 6, round` to be of a ledger but got 'bool'."),
        (lambda lines: [*lines, forged(lines, tensors=6)], "line 6, tensors` to be written out in an earlier line"),
        (lambda lines: [*lines, forged(lines, tensors=3)], "line 6, tensors` to be written out in an earlier line"),
        (lambda lines: [*lines, forged(lines, tensors={"w": {"\x1b[2J": 1}})], "line 6, tensors` to be of texts"),
        (lambda lines: [*lines, forged(lines, direction="sideways")], "line 6, direction` to be up or down"),
        (lambda lines: [*lines, forged(lines, n=1e300)], "line 6` to be what its hash"),
    ],
    ids=[
        *("byte", "no JSON", "removed", "first removed", "swapped", "inserted", "made anew", "no hash", "wrong hash"),
        *("another chain", "empty", "deep", "no text", "escape", "negative", "bool", "own", "reference", "nested"),
        *("sideways", "number"),
    ],
)
def test_a_change_is_found(file: Path, change: Callable[[Lines], Lines], told: str) -> None:
    file.write_bytes(b"\n".join(change(file.read_bytes().splitlines())) + b"\n")
    found = sentence(file)
    assert found.startswith(f"Expected `FILE, {told}")
    assert found.isprintable()


def test_half_a_line_is_found(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])
    assert sentence(file) == "Expected `FILE, line 5` to be whole but got half a line."


def test_every_byte_counts(file: Path) -> None:
    content = file.read_bytes()
    for position in range(content.index(b"\n") + 1):
        file.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(InputError):
            read_ledger(file)


def test_lines_cut_off_are_found_by_the_sites_ledger(file: Path, tmp_path: Path) -> None:
    site = read_ledger(write(tmp_path / "site.jsonl", *(message(round) for round in range(1, 6))))
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-2]))
    told = compare(read_ledger(file), site)  # the chain is whole
    assert [line.round for line in told.only_site] == [4, 5]


def test_a_ledger_made_anew_is_found_by_the_sites(tmp_path: Path) -> None:
    site = read_ledger(write(tmp_path / "site.jsonl", message(1), message(2, direction="down")))
    server = read_ledger(write(tmp_path / LEDGER, message(1, data=b"invented"), message(2), message(3)))
    told = compare(server, site)
    assert [(one.round, other.round) for one, other in told.differing] == [(1, 1)]
    assert [line.round for line in told.only_server] == [2, 3]
    assert [(line.round, line.direction) for line in told.only_site] == [(2, "down")]


def test_a_run_does_not_go_on_after_a_changed_line(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20] + b"0" * 17 + b'"}\n')
    with pytest.raises(InputError, match="last line` to be what its hash was made of"):
        Ledger(file)


def test_a_ledger_that_got_shorter_while_it_is_written(file: Path) -> None:
    ledger = Ledger(file)
    size = file.stat().st_size
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-2]))
    with pytest.raises(InputError, match=f"to be {size} bytes or more"):
        ledger.add(**message(6))


def test_a_file_that_others_could_read(tmp_path: Path) -> None:
    file = tmp_path / LEDGER
    file.touch(mode=0o666)
    Ledger(file)
    assert file.stat().st_mode & 0o777 == 0o600


def test_long_names_and_many_of_them_fill_no_disk(tmp_path: Path) -> None:
    file = tmp_path / LEDGER
    ledger = Ledger(file)
    ledger.add(**message(1, tensors={f"{n}" + "x" * 100_000: "y" * 100_000 for n in range(30)}, verdict="z" * 10**6))
    ledger.add(**message(2, scalars=[f"metric {number}" for number in range(100_000)]))
    assert file.stat().st_size < 100_000
    assert read_ledger(file)[1].scalars[-1] == "99000 more"


def test_names_that_never_repeat_fill_no_memory(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / LEDGER)
    for number in range(1000):
        ledger.add(**message(number, scalars=[f"metric {number}"]))
    assert len(ledger._written["scalars"]) < 100
    assert [line.scalars for line in read_ledger(tmp_path / LEDGER)] == [[f"metric {number}"] for number in range(1000)]


HOSTILE = "\x1b[2J\x1b]0;title\x07[bold red]x[/] [link=http://a.b]y[/link] :smiley: \u202e\x9b31m\r\n"


def test_names_steer_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"client": HOSTILE, "exchange": HOSTILE, "tensors": {HOSTILE: HOSTILE}, "scalars": [HOSTILE]}
    further = {"verdict": HOSTILE, "policy": HOSTILE}
    event = {"event": HOSTILE, "run": HOSTILE, HOSTILE: -1}
    server = write(tmp_path / LEDGER, message(1, **fields, **further), event)
    site = write(tmp_path / "\x1b[2J.jsonl", message(1, **fields, **further, data=b"other"), message(2, **fields))
    other = write(tmp_path / "\x1b[1m.jsonl", {"event": "opened"})
    for file in (server, site, other):
        assert all(" " <= sign <= "~" for line in file.read_text().split("\n") for sign in line)  # for `cat`, too
    sites = tmp_path / "sites"
    sites.mkdir()
    for ledger in (site, other):
        ledger.rename(sites / ledger.name)
    with pytest.raises(SystemExit):
        cli.main(["ledger", str(server), "--site", str(sites)])
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines() if line)
    assert {"\x1b", "\x9b", "\r", "\u202e"}.isdisjoint(out)
    for shown in ("[bold red]x[/]", ":smiley:", "\\x1b[2J.jsonl", "\\x1b[1m.jsonl"):
        assert shown in out.replace("\n", "")


def test_a_ledger_of_one_job_at_a_time(tmp_path: Path) -> None:
    """Who opened it last writes, and nobody before; half a line of its own does not keep it from going on."""
    file = tmp_path / "ledger.jsonl"
    first, second = Ledger(), Ledger()
    first.open(file, alone=True)
    first.add(event="first")
    second.open(file, alone=True)
    first.add(event="nothing came between")
    second.open(file, alone=True)
    second.add(event="second")
    for _ in range(2):
        with pytest.raises(InputError, match="to be written by the newest job of a run only but got"):
            first.add(event="too late")
    with open(file, "ab") as stream:
        stream.write(b'{"n": 4, "half')
    second.add(event="goes on")
    events = [line.event for line in read_ledger(file)]
    assert events == ["first", "nothing came between", "second", "repaired", "goes on"]
