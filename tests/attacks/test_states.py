"""What a server, or somebody at a site's disk, tries with the states that the site keeps."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flgraph.callbacks import FedAvg, FedPer
from flgraph.errors import InputError
from flgraph.federation import Aggregator
from flgraph.federation.engines.host import Host, Message, SiteHost
from flgraph.federation.settings import algorithm_digest
from flgraph.runs import site_states
from flgraph.runs.checkpoint import load_bytes, state_bytes
from flgraph.runs.site_states import SiteStates, read_locations, write_location

SECRET, LABEL = b"1" * 32, "first.version_0.00001"


@pytest.fixture
def site(federate: Any, toy_federation: Any, toy_module: Any, tmp_path: Path) -> Callable[..., SiteHost]:
    """Makes a site's host of clients A and B for a run."""

    def make(
        run: str = "first", aggregator: Aggregator | None = None, key: bytes = SECRET, seed: int = 0, **kwargs: Any
    ) -> SiteHost:
        trainer = federate(aggregator or FedPer(base=["first.*"]), enable_checkpointing=False, seed=seed)
        return SiteHost(trainer.host(toy_module(), toy_federation(6, 8)), tmp_path / "site", run, key, **kwargs)

    return make


# `Host.answer` and not the site's own, of whose errors only codes come back.
def save(host: SiteHost, label: str = LABEL, **further: Any) -> Message:
    common = {"do": "save", "label": label, "needed": [label], "bases": {"A": 0, "B": 0}, "number": 0}
    return Host.answer(host, Message({**common, **further}))


def load(host: SiteHost, label: str = LABEL, name: str = "A") -> Exception | None:
    return Host.answer(host, Message({"do": "load", "labels": {name: label}})).error


def kept(folder: Path, name: str = "A") -> list[str]:
    return sorted(file.name for file in (folder / "site" / name).iterdir())


def test_a_state_is_loaded_into_its_own_run_and_algorithm_only(site: Any, tmp_path: Path) -> None:
    """A job that shares everything read out what an algorithm had kept personal."""
    assert save(site()).error is None
    own = site(seed=5)
    before = state_bytes(own.clients["A"].state())
    assert load(own) is None
    assert state_bytes(own.clients["A"].state()) != before
    for host in (site("first", FedAvg()), site("first", FedPer(base=["last.*"])), site(key=b"2" * 32)):
        host.clients["A"].module.first.weight.data.fill_(7.0)
        error = load(host)
        assert isinstance(error, InputError)
        assert str(tmp_path) not in str(error)
        assert bool((host.clients["A"].module.first.weight == 7.0).all())
    error = load(site("second"))
    assert "`label` to be `second.` and up to 200 letters" in str(error)


def test_a_state_of_another_client_or_round_is_refused(site: Any, tmp_path: Path) -> None:
    host = site()
    save(host)
    newer = "first.version_0.00002"
    save(host, newer, needed=[LABEL])
    for kind in (".ckpt", ".json"):
        shutil.copy(tmp_path / "site" / "A" / f"{LABEL}{kind}", tmp_path / "site" / "A" / f"{newer}{kind}")
        shutil.copy(tmp_path / "site" / "A" / f"{LABEL}{kind}", tmp_path / "site" / "B" / f"{LABEL}{kind}")
    for label, name in ((newer, "A"), (LABEL, "B")):
        assert "for this run, algorithm and routes but got 'one of others'" in str(load(host, label, name))
    assert load(host) is None


def test_no_bit_of_a_state_can_be_changed(site: Any, tmp_path: Path) -> None:
    """Of 300 flips 26 were accepted, with other weights."""
    host = site()
    save(host)
    draw = random.Random(0)
    for number in range(300):
        file = tmp_path / "site" / "A" / f"{LABEL}{'.json' if number % 10 == 0 else '.ckpt'}"
        whole = file.read_bytes()
        bit = draw.randrange(8 * len(whole))
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        assert "to be a checkpoint whose state of client `A` this site wrote" in str(load(host))
        file.write_bytes(whole)
    assert load(host) is None


@pytest.mark.parametrize("content", ["", "[]", "3", "null", '{"hmac": 3}', '{"run": "first"}', "[" * 100_000])
def test_a_broken_signature_is_refused_in_one_sentence(site: Any, tmp_path: Path, content: str) -> None:
    host = site()
    save(host)
    (tmp_path / "site" / "A" / f"{LABEL}.json").write_text(content)
    assert "this site wrote but got 'one that was altered'." in str(load(host))
    (tmp_path / "site" / "A" / f"{LABEL}.json").unlink()  # as an earlier version left it
    assert f"is at its site, with a signature but got {LABEL}." in str(load(host))


def test_a_crash_between_two_files_leaves_nothing_that_loads(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, host = site_states.write_bytes, site()
    for label, again in ((LABEL, False), ("first.version_0.00002", True)):
        if again:
            save(host, label)
            host.clients["A"].module.first.weight.data.fill_(7.0)

        def crash(content: bytes, file: Path, private: bool = False) -> None:
            if file.suffix == ".json":
                raise KeyboardInterrupt
            real(content, file, private)

        with monkeypatch.context() as patch:
            patch.setattr(site_states, "write_bytes", crash)
            with pytest.raises(KeyboardInterrupt):
                save(host, label)
        assert isinstance(load(host, label), InputError)
        assert save(host, label).error is None
        assert load(host, label) is None


@pytest.mark.parametrize(
    "label", ["*", "**", "?", "first.*", "first.version_0.0000[1-9]", "first", "second.x", "", "."]
)
def test_a_label_is_no_pattern(site: Any, tmp_path: Path, label: str) -> None:
    """Saving under the label `*` removed the states of all runs."""
    for run in ("first", "second", "first-again"):
        save(site(run), f"{run}.version_0.00001")
    before = kept(tmp_path)
    assert "`label`" in str(save(site(), label, needed=[]).error)
    assert kept(tmp_path) == before


def test_what_is_needed_is_compared_and_no_pattern(site: Any, tmp_path: Path) -> None:
    host = site()
    save(site("second"), "second.version_0.00001")
    for number in range(3):
        save(host, f"first.version_0.{number:05d}", needed=["first.version_0.00000", "*", "first.*", "../.."])
    assert {name.rpartition(".")[0] for name in kept(tmp_path)} == {
        *("first.version_0.00000", "first.version_0.00002", "second.version_0.00001")
    }


@pytest.mark.parametrize("run", ["", ".", "..", "*", "a/b", "a.b", "a b", "a\n", "\u00e4", "x" * 101, 3, None])
def test_a_run_has_a_plain_name(site: Any, run: Any) -> None:
    with pytest.raises(InputError, match="`run` to be a name of 1 to 100 letters"):
        site(run)


def test_states_from_a_server_are_refused_unless_the_site_accepts_them(site: Any) -> None:
    foreign = state_bytes(site(seed=5).clients["A"].state())
    for accepts in (False, True):
        host = site(accept_states=accepts)
        before = state_bytes(host.clients["A"].state())
        answer = Host.answer(host, Message({"do": "load", "labels": {}}, {"A": foreign}))
        assert (answer.error is None) == accepts
        assert (state_bytes(host.clients["A"].state()) == before) != accepts
        unknown = Host.answer(host, Message({"do": "load", "labels": {}}, {"Z": foreign}))
        assert "`client` to be one of this site's but got 'Z'" in str(unknown.error)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_nobody_else_can_read_states(site: Any, tmp_path: Path) -> None:
    save(site())
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert modes == {0o600}
    folders = [tmp_path / "site", tmp_path / "site" / "A", tmp_path / "site" / "B"]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


def test_encrypted_states_need_their_key(site: Any, tmp_path: Path) -> None:
    host = site(encryption=b"3" * 32)
    save(host)
    content = (tmp_path / "site" / "A" / f"{LABEL}.ckpt").read_bytes()
    assert b"first.weight" not in content
    with pytest.raises(InputError):
        load_bytes(content, "state")
    assert load(host) is None
    assert "`encrypt` to be true at this site" in str(load(site()))
    assert "the site has the key for but got another key." in str(load(site(encryption=b"4" * 32)))
    states = SiteStates(tmp_path / "site", "first", SECRET, b"3" * 32)
    assert "state_dict" in load_bytes(states.load("A", LABEL), "state")


def test_an_algorithm_is_what_it_does_with_tensors(site: Any) -> None:
    """Agreement among clients and arguments of their default value change nothing; any rule does."""

    def of(aggregator: Aggregator) -> str:
        client = site("first", aggregator).clients["A"]
        return algorithm_digest(client.aggregator, client.routing)

    client = site("first", FedPer(base=["first.*"])).clients["A"]
    client.routing.agree([])
    same = algorithm_digest(client.aggregator, client.routing)
    assert same == of(FedPer(base=("first.*",))) == of(FedPer(base=["first.*"], weighting="samples"))
    assert len({same, of(FedPer(base=["last.*"])), of(FedAvg()), of(FedAvg(weighting="uniform"))}) == 4


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"site": "one"}', '{"site": 3, "label": "x"}', "\xff"])
def test_a_place_that_is_none_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "A.json").write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=r"A\.json` to be the place of a client's state, with `site` and `label`,"):
        read_locations(tmp_path)
    write_location(tmp_path, "A", site_states.Location("one", LABEL))
    assert json.loads((tmp_path / "A.json").read_text()) == {"site": "one", "label": LABEL}
    assert read_locations(tmp_path)["A"].label == LABEL
