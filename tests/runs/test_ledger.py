"""The ledger as it is written and read."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flgraph.errors import InputError
from flgraph.runs import ledger as module
from flgraph.runs.ledger import LEDGER, NOTHING, Ledger
from flgraph.runs.ledger_reader import Line, compare, lost_sums, read_ledger, totals

TENSORS = {"conv.weight": "64x32 float32", "conv.bias": "64 float32"}


def message(round: int = 1, client: str = "north", direction: str = "up", **fields: Any) -> dict[str, Any]:
    place = {"round": round, "client": client, "request": "exchange", "exchange": "train", "direction": direction}
    return {"data": b"weights", "verdict": "accepted", **place, **fields}


def write(file: Path, *messages: dict[str, Any]) -> Path:
    ledger = Ledger(file)
    for fields in messages:
        ledger.add(**fields)
    ledger.close()
    return file


def test_a_line(tmp_path: Path) -> None:
    file = tmp_path / "new" / LEDGER
    ledger = Ledger(file)
    ledger.add(**message(0, tensors=TENSORS, scalars=["num_samples"], policy=""))
    (text,) = file.read_bytes().splitlines()  # there at once: a process that is killed loses nothing
    body, _, rest = text.rpartition(b',"hash":"')
    written = json.loads(text)
    assert list(written)[:2] == ["n", "time"]
    assert rest.decode() == f'{ledger.head}"}}'
    assert ledger.head == hashlib.sha256(body + b"}").hexdigest()
    assert written.pop("hash") == ledger.head
    assert written.pop("time").endswith("Z")
    assert written == {
        "n": 1,
        "round": 0,
        "client": "north",
        "request": "exchange",
        "exchange": "train",
        "direction": "up",
        "tensors": TENSORS,
        "scalars": ["num_samples"],
        "verdict": "accepted",
        "bytes": 7,
        "sha256": hashlib.sha256(b"weights").hexdigest(),
        "previous": NOTHING,
    }
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    file = write(
        tmp_path / LEDGER,
        {"event": "opened", "run": "first", "version": 3},
        message(1, tensors=TENSORS, scalars=["num_samples"], policy="clipped"),
        message(2, tensors=TENSORS, scalars=["num_samples", "loss"], policy="clipped"),
        message(2, direction="down", data=b""),
    )
    opened, first, second, empty = read_ledger(file)
    assert (opened.event, opened.run, opened.further) == ("opened", "first", {"version": 3})
    assert (first.run, first.round, first.bytes, first.policy) == ("first", 1, 7, "clipped")
    assert first.tensors == second.tensors == TENSORS
    assert (first.scalars, second.scalars) == (["num_samples"], ["num_samples", "loss"])
    assert second.policy == "clipped"
    assert second.previous == first.hash
    assert (empty.bytes, empty.sha256) == (0, "")
    texts = [json.loads(line) for line in file.read_text().splitlines()]
    assert (texts[2]["tensors"], texts[2]["policy"]) == (2, 2)  # the line that has them


def test_it_goes_on_in_a_file_and_names_are_written_out_again(tmp_path: Path) -> None:
    file = write(tmp_path / LEDGER, message(1, tensors=TENSORS), message(2, tensors=TENSORS, exchange="x" * 300))
    ledger = Ledger(file)
    assert ledger.head == read_ledger(file)[-1].hash
    ledger.add(event="resumed", round=1)
    ledger.add(**message(2, tensors=TENSORS))
    lines = read_ledger(file)
    assert [line.n for line in lines] == [1, 2, 3, 4]
    assert lines[-1].tensors == TENSORS
    assert lines[-1].hash == ledger.head


@pytest.mark.parametrize("longest", [10, 4096, 100_000])
def test_the_last_line_is_found_however_long_it_is(tmp_path: Path, longest: int) -> None:
    names = {f"layer.{number:020}": "1 float32" for number in range(longest // 40)}
    file = write(tmp_path / LEDGER, message(), message(tensors=names))
    assert Ledger(file).head == read_ledger(file)[-1].hash


def test_without_a_file_lines_wait(tmp_path: Path) -> None:
    ledger = Ledger(None)
    ledger.add(**message(0))
    ledger.flush()
    assert ledger.head == NOTHING
    file = write(tmp_path / LEDGER, message(7))
    ledger.open(file)
    ledger.add(**message(1))
    ledger.close()
    assert [line.round for line in read_ledger(file)] == [7, 0, 1]
    ledger.add(**message(2))
    ledger.open(tmp_path / "other.jsonl")
    assert [line.round for line in read_ledger(tmp_path / "other.jsonl")] == [2]


@pytest.mark.parametrize("cut", [1, 30])
def test_half_a_line_is_moved_away(tmp_path: Path, cut: int) -> None:
    file = write(tmp_path / LEDGER, message(1), message(2))
    whole = file.read_bytes()
    file.write_bytes(whole[:-cut])
    ledger = Ledger(file)
    ledger.add(**message(2))
    first, repaired, second = read_ledger(file)
    assert (first.round, repaired.event, second.round) == (1, "repaired", 2)
    half = whole.splitlines(keepends=True)[1][:-cut]
    assert (repaired.bytes, repaired.sha256) == (len(half), hashlib.sha256(half).hexdigest())
    assert (tmp_path / f"{LEDGER}.half").read_bytes() == half + b"\n"


def test_half_a_line_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / LEDGER
    file.write_bytes(b'{"n": 1')
    Ledger(file)
    assert [line.event for line in read_ledger(file)] == ["repaired"]


def test_a_full_disk_is_said_and_costs_one_line(tmp_path: Path) -> None:
    """In a process of its own, which may write only so much."""
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom flgraph.runs.ledger import Ledger\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
        "ledger.add(event='first')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))\n"
        "try:\n    ledger.add(event='second', text='x' * 299)\n"
        "except ValueError as error:\n    print(error)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "ledger.add(event='third')\n"
    )
    file = tmp_path / LEDGER
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout == f"Expected `{file}` to be writable but got File too large.\n"
    assert [line.event for line in read_ledger(file)] == ["first", "repaired", "third"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="to be writable but got"):
        Ledger(tmp_path / "file" / LEDGER)


def test_several_writers_share_a_file(tmp_path: Path) -> None:
    """As where a job comes again before the one before it has ended."""
    file = tmp_path / LEDGER

    def run(client: str) -> None:
        ledger = Ledger(file)
        for round in range(20):
            ledger.add(**message(round, client, tensors=TENSORS))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, ("north", "east", "west")))
    lines = read_ledger(file)
    assert len(lines) == 60
    for client in ("north", "east", "west"):
        assert [line.round for line in lines if line.client == client] == list(range(20))


def test_a_download_to_many_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    class Counting:
        def sha256(self, data: bytes) -> Any:
            hashed.append(data)
            return hashlib.sha256(data)

    monkeypatch.setattr(module, "hashlib", Counting())
    ledger = Ledger(tmp_path / LEDGER)
    data = b"weights" * 100
    for client in ("north", "east"):
        ledger.add(**message(client=client, data=data))
    assert hashed.count(data) == 1
    ledger.flush()
    ledger.add(**message(data=data))
    assert hashed.count(data) == 2
    assert len({line.sha256 for line in read_ledger(tmp_path / LEDGER)}) == 1


def test_it_stays_small(tmp_path: Path) -> None:
    """Seven clients, thirty tensors, four messages a round: 200 rounds of it are to be below 2.5 MB."""
    tensors = {f"convs.{number}.weight": "64x64 float32" for number in range(30)}
    metrics = [f"{split}/{name}" for split in ("train", "val", "test") for name in ("accuracy", "loss", "samples")]
    file, ledger = tmp_path / LEDGER, Ledger(tmp_path / LEDGER)
    for round in range(1, 21):
        for direction in ("down", "up"):
            for client in range(7):
                data = f"{round}{direction}{client}".encode()
                ledger.add(**message(round, f"client-{client}", direction, data=data, tensors=tensors))
                answer = {"request": "evaluate", "exchange": "", "scalars": metrics}
                ledger.add(**message(round, f"client-{client}", direction, data=data, **answer))
    assert len(read_ledger(file)) == 560
    assert 10 * file.stat().st_size < 2_500_000


# ------------------------------------------------------------------------------------------------------------- compare


def test_both_sides_say_the_same(tmp_path: Path) -> None:
    """In another order, with messages of other clients, and with events of their own."""
    own = [message(1, direction="down"), message(1, data=b"a"), message(1, data=b"a"), message(2, data=b"b")]
    server = read_ledger(write(tmp_path / "a", *own, message(1, "south"), {"event": "resumed", "round": 1}))
    withheld = message(3, data=b"", verdict="withheld")
    site = read_ledger(write(tmp_path / "b", {"event": "opened"}, *own[::-1], withheld))
    told = compare(server, site)
    assert told.agrees
    assert (told.same, told.clients) == (4, {"north"})


def test_what_differs(tmp_path: Path) -> None:
    server = [message(1, data=b"a"), message(2, data=b"other"), message(3, direction="down")]
    site = [message(1, data=b"a"), message(2, data=b"b"), message(4), message(1, data=b"a")]
    told = compare(read_ledger(write(tmp_path / "a", *server)), read_ledger(write(tmp_path / "b", *site)))
    assert not told.agrees
    assert told.same == 1
    assert [(one.n, other.n) for one, other in told.differing] == [(2, 2)]
    assert [line.n for line in told.only_server] == [3]
    assert [line.n for line in told.only_site] == [3, 4]  # lost, and answered twice


def test_a_sites_other_runs_are_left_out(tmp_path: Path) -> None:
    server = [message(0, data=b"before the folder"), {"event": "opened", "run": "second"}, message(1)]
    other = [{"event": "opened", "run": "first"}, message(1, data=b"a"), message(2)]
    this = [{"event": "opened", "run": "second"}, message(0, data=b"before the folder"), message(1)]
    lines = read_ledger(write(tmp_path / "a", *server))
    assert compare(lines, read_ledger(write(tmp_path / "b", *other, *this))).agrees
    assert not compare(lines, read_ledger(write(tmp_path / "c", *other))).clients


def test_totals(tmp_path: Path) -> None:
    first = message(1, tensors=TENSORS, policy="clipped")
    dropped = message(2, scalars=["loss"], verdict="dropped: not finite")
    rows = totals(read_ledger(write(tmp_path / "a", {"event": "opened"}, first, first, dropped, message(1, "south"))))
    north, south = rows
    assert (north.client, north.direction, north.request, north.exchange) == ("north", "up", "exchange", "train")
    assert (north.times, north.again, north.dropped, north.bytes) == (3, 1, 1, 21)
    assert (north.tensors, list(north.scalars), north.policies) == (TENSORS, ["loss"], {"clipped": 2})
    assert (south.client, south.times, south.again) == ("south", 1, 0)


def test_lines_added_together_take_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, taken = Ledger(tmp_path / LEDGER), []
    before = Ledger._alone

    def counted(self: Ledger) -> Any:
        taken.append(1)
        return before(self)

    monkeypatch.setattr(Ledger, "_alone", counted)
    with ledger.together():
        for number in range(5):
            ledger.add(**message(number))
    assert len(taken) == 1
    ledger.add(**message(5))
    assert len(taken) == 2
    ledger.close()
    assert [line.round for line in read_ledger(tmp_path / LEDGER)] == list(range(6))
    with Ledger().together() as nothing:
        assert nothing is None


def test_sums_that_are_lost() -> None:
    """Those of rounds after the last whole one, of clients whose upload was taken; a job that is opened begins anew."""

    def up(number: int, request: str, verdict: str = "accepted") -> Line:
        known = {"direction": "up", "request": request, "exchange": "train", "round": 2, "verdict": verdict}
        return Line(number, "", "", "", client="A", **known)

    opened = Line(2, "", "", "", client="A", event="opened")
    assert lost_sums([up(1, "exchange"), up(2, "confirm")], 2) == {}
    assert lost_sums([up(1, "exchange", "dropped: x"), up(2, "confirm")], 1) == {(2, "train"): set()}
    assert lost_sums([up(1, "exchange"), opened, up(3, "confirm")], 1) == {(2, "train"): set()}
