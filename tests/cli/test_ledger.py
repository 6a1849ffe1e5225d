"""``flgraph ledger``."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from flgraph.runs.ledger import LEDGER, Ledger

Call = Callable[..., Any]  # see conftest.py

TENSORS = {f"conv{number}.weight": "64x32 float32" for number in range(5)}


def message(round: int, client: str = "north", direction: str = "up", **fields: Any) -> dict[str, Any]:
    place = {"round": round, "client": client, "request": "exchange", "exchange": "train", "direction": direction}
    return {"data": b"weights", "verdict": "accepted", **place, **fields}


def write(file: Path, *messages: dict[str, Any]) -> str:
    ledger = Ledger(file)
    for fields in messages:
        ledger.add(**fields)
    ledger.close()
    return ledger.head


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two clients and two rounds, in which one was asked again."""
    sent = [message(round, client, "down") for round in (1, 2) for client in ("north", "south")]
    first = message(1, tensors=TENSORS, scalars=["num_samples"], policy="clipped")
    answered = [first, message(2), message(2), message(1, "south", verdict="dropped: not finite")]
    folder = tmp_path / "runs" / "fedavg" / "version_0"
    write(folder / LEDGER, {"event": "opened", "run": "abc"}, *sent, *answered)
    return folder


def row(out: str, client: str, title: str) -> list[str]:
    table = out[out.index(title) :]
    line = next(line for line in table.splitlines() if line.startswith(f"│ {client}"))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_who_got_what(done: Call, run: Path) -> None:
    head = write(run / LEDGER)
    out = done("ledger", str(run)).out
    assert row(out, "north, south", "What the server sent") == ["north, south", "train", "2", "14 bytes"]
    up = "What each client sent"
    north = row(out, "north", up)
    assert north[:5] == ["north", "train", "3", "once", "-"]
    assert north[5].startswith("21")
    assert north[7:] == ["num_samples", "clipped (1)"]
    assert "2 more" in out
    assert row(out, "south", up)[:5] == ["south", "train", "1", "-", "1"]
    assert ": opened, run abc\n" in out
    assert out.endswith(f"chain whole: 9 lines, head {head}\n")


def test_the_run_may_be_below_or_the_file_itself(done: Call, run: Path, tmp_path: Path) -> None:
    outs = {done("ledger", str(path)).out for path in (run, tmp_path / "runs", run / LEDGER)}
    assert len(outs) == 1


def test_an_empty_ledger(done: Call, tmp_path: Path) -> None:
    (tmp_path / LEDGER).touch()
    assert done("ledger", str(tmp_path)).out == f"chain whole: 0 lines, head {'0' * 64}\n"


@pytest.mark.parametrize("where", ["{kit}", "{kit}/flgraph/ledger", "{kit}/flgraph/ledger/fedavg.jsonl"])
def test_a_site_that_agrees(done: Call, run: Path, tmp_path: Path, where: str) -> None:
    kit = tmp_path / "kits" / "north"
    ledger = kit / "flgraph" / "ledger" / "fedavg.jsonl"
    both = [message(round, direction="down") for round in (1, 2)]
    head = write(ledger, {"event": "opened", "run": "abc"}, *both, message(1), message(2), message(2))
    out = done("ledger", str(run), "--site", where.format(kit=kit)).out
    assert out.endswith(f"{ledger}: 5 messages are the same at both sides; chain whole: 6 lines, head {head}\n")


def test_sites_that_differ(call: Call, run: Path, tmp_path: Path) -> None:
    north = [message(1, direction="down"), message(1, data=b"other"), message(3), message(2), message(2)]
    write(tmp_path / "north.jsonl", *north)
    write(tmp_path / "old.jsonl", {"event": "opened", "run": "xyz"}, message(1))
    south = [message(round, "south", "down") for round in (1, 2)]
    write(tmp_path / "south.jsonl", *south, message(1, "south"), *(message(9, "south") for _ in range(25)))
    result = call("ledger", str(run), "--site", str(tmp_path))
    assert result.code == 1
    assert result.err == ""
    told = result.out[result.out.index("chain whole") :].splitlines()[1:]
    assert told[0].startswith(f"{tmp_path}/north.jsonl: 3 messages are the same at both sides; chain whole: 5 lines")
    assert told[1].startswith(
        f"  differs: north, round 1, train, up, 7 bytes, sha256 {sha256(b'weights').hexdigest()[:12]}"
    )
    assert told[1].endswith(f"(line 6); at the site 5 bytes, sha256 {sha256(b'other').hexdigest()[:12]} (line 2)")
    assert told[2].startswith("  only at the server: north, round 2, train, down, 7 bytes")
    assert told[2].endswith("(line 4); may have been lost on the way")
    assert told[3].startswith("  only at the site: north, round 3, train, up, 7 bytes")
    assert told[3].endswith("(line 3); may have been lost on the way")
    assert told[4] == f"{tmp_path}/old.jsonl: left out, as it has no message of this run"
    assert told[-1] == "  only at the site: 5 more"


def test_what_cannot_be_used(call: Call, run: Path, tmp_path: Path) -> None:
    assert call("ledger", str(tmp_path / "none")).sentence.endswith(
        "to be a readable file but got No such file or directory."
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    wanted = f"Expected `RUN` to be a ledger, or a folder with one {LEDGER} in it or below but got "
    assert call("ledger", str(empty)).sentence == f"{wanted}'{empty}'."
    write(tmp_path / "runs" / "second" / LEDGER, message(1))
    assert call("ledger", str(tmp_path / "runs")).sentence == f"{wanted}'{run}, {tmp_path}/runs/second'."
    site = call("ledger", str(run), "--site", str(empty)).sentence
    assert site == f"Expected `--site` to be a ledger, a folder with some, or the kit of a site but got '{empty}'."
    write(tmp_path / "north.jsonl", {"event": "opened", "run": "xyz"}, message(1))
    site = call("ledger", str(run), "--site", str(tmp_path / "north.jsonl")).sentence
    assert site == f"Expected `--site` to be a ledger with messages of this run but got '{tmp_path}/north.jsonl'."


@pytest.mark.parametrize("which", ["run", "site"])
def test_a_broken_chain(call: Call, run: Path, tmp_path: Path, which: str) -> None:
    site = tmp_path / "north.jsonl"
    write(site, *(message(round) for round in range(1, 5)))
    broken = {"run": run / LEDGER, "site": site}[which]
    lines = broken.read_bytes().splitlines(keepends=True)
    broken.write_bytes(b"".join([*lines[:1], *lines[2:]]))
    sentence = call("ledger", str(run), "--site", str(site)).sentence
    assert sentence.startswith(f"Expected `{broken}, line 2` to be what came after the line before but got")
