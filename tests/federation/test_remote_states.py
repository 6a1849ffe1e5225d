"""States of clients at sites: they stay there, go on, and are gathered."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from offices import PERSONAL, SECRETS, Office, history, round_of, weights

from flgraph.callbacks import EarlyStopping, FedPer
from flgraph.errors import InputError
from flgraph.federation import EngineError, FederatedTrainer
from flgraph.federation.engines.host import Message
from flgraph.flare.gather import gather
from flgraph.runs.checkpoint import CheckpointStore, load_file
from flgraph.runs.site_states import SiteStates, is_complete, state_file


def states_at_turns(office: Office, site: str, name: str) -> list[Any]:
    """Filled with a client's state before each of its turns; everything is delivered."""
    states: list[Any] = []

    def rule(to: str, message: Message) -> str:
        if to == site and message.header["do"] == "run":
            states.append(copy.deepcopy(office.hosts[site].clients[name].state()))
        return "deliver"

    office.rule = rule
    return states


def request_of(message: Message) -> str:
    """What clients are asked to do; empty where no client is asked."""
    return next((str(turn["request"]) for turn in message.header.get("turns", {}).values()), "")


def label_of_c(checkpoint: Path) -> str:
    """Under which label site ``two`` has the state that a checkpoint of the server stands for."""
    return str(json.loads((checkpoint / "clients" / "C.json").read_text())["label"])


def test_a_site_may_be_away_at_the_first_checkpoint(remote: Callable[..., Any]) -> None:
    """It is lost in the last request of round 1, and back when the run goes on."""
    trainer, office, fitted = remote(rounds=2, name="cut", keep_checkpoints=3)
    lost = False

    def rule(site: str, message: Message) -> str:
        nonlocal lost
        lost = lost or (site == "two" and round_of(message, evaluated=True) == 1)
        return "lose" if lost and site == "two" else "deliver"

    office.rule = rule
    trainer.fit(*fitted)
    assert [line["clients"] for line in history(trainer)] == [["A", "B", "C"], ["A", "B"]]
    store = CheckpointStore(trainer.run_dir / "checkpoints")
    assert store.rounds() == [0, 1, 2]
    assert [label_of_c(store.path(number)) for number in range(3)] == ["cut.version_0.00000"] * 3
    resumed, office, fitted = remote(rounds=3, name="cut")
    resumed.fit(*fitted, ckpt_path="last")
    assert history(resumed)[-1]["clients"] == ["A", "B", "C"]


def test_a_run_that_ends_in_its_first_round_goes_on_from_before_it(
    remote: Callable[..., Any], assert_same: Callable[..., None]
) -> None:
    whole, other, fitted = remote(rounds=3, folder="whole", name="whole")
    whole.fit(*fitted)
    cut, office, fitted = remote(rounds=3, name="cut", min_clients=3)
    office.rule = lambda site, message: "lose" if site == "two" and round_of(message) == 1 else "deliver"
    with pytest.raises(EngineError, match="missing: C"):
        cut.fit(*fitted)
    resumed, office, fitted = remote(rounds=3, name="cut")
    resumed.fit(*fitted, ckpt_path="last")
    assert resumed.run_dir == cut.run_dir
    assert_same(weights(office), weights(other))
    assert history(resumed) == history(whole)


@pytest.mark.parametrize("request_", ["snapshot", "restore"])
def test_a_client_that_does_not_hear_of_the_best_round_ends_the_run(
    remote: Callable[..., Any], assert_same: Callable[..., None], request_: str
) -> None:
    """Else it would not go back to the models that are reported; the next job does."""

    def make(name: str) -> Any:
        callbacks = [EarlyStopping("val/loss", "min", average="clients")]
        return remote(rounds=3, folder=name, name=name, callbacks=callbacks)

    whole, other, fitted = make("whole")
    whole.fit(*fitted)
    cut, office, fitted = make("cut")
    number = 2 if request_ == "snapshot" else 3

    def rule(site: str, message: Message) -> str:
        lost = site == "two" and request_of(message) == request_ and round_of(message) == number
        return "answer late" if lost else "deliver"

    office.rule = rule
    with pytest.raises(EngineError, match=rf"in time in round {number} \({request_}\); missing: `C`\."):
        cut.fit(*fitted)
    resumed, office, fitted = make("cut")
    resumed.fit(*fitted, ckpt_path="last")
    assert resumed.history.final == whole.history.final
    assert history(resumed) == history(whole)
    assert_same(weights(office), weights(other))


def test_resumed_equals_uninterrupted_and_states_stay_at_the_sites(
    remote: Callable[..., Any], assert_same: Callable[..., None], tmp_path: Path
) -> None:
    whole, other, fitted = remote(rounds=5, folder="whole", name="whole")
    whole.fit(*fitted)
    cut, _, fitted = remote(rounds=3, name="cut")
    cut.fit(*fitted)
    resumed, office, fitted = remote(rounds=5, name="cut")
    resumed.fit(*fitted, ckpt_path="last")
    assert_same(weights(office), weights(other))
    assert history(resumed) == history(whole)
    assert resumed.run_dir is not None
    assert not list(resumed.run_dir.rglob("*.ckpt"))
    kept = {path.stem for path in (tmp_path / "sites").rglob("*.ckpt")}
    pointed = {json.loads(path.read_text())["label"] for path in resumed.run_dir.glob("checkpoints/round-*/clients/*")}
    assert pointed <= kept
    assert len(kept) <= 4  # two, the best round's, and one that was needed until the last was written


def test_a_run_that_one_process_began_goes_on_at_sites(
    remote: Callable[..., Any], federate: Any, assert_same: Callable[..., None]
) -> None:
    whole, other, fitted = remote(rounds=4, folder="whole", name="whole")
    whole.fit(*fitted)
    federate(FedPer(**PERSONAL), rounds=2, name="cut").fit(*fitted)
    resumed, office, fitted = remote(rounds=4, name="cut", accept_states=True, signs=False)
    resumed.fit(*fitted, ckpt_path="last")
    assert_same(weights(office), weights(other))
    assert history(resumed) == history(whole)


def test_a_site_that_is_away_keeps_the_state_that_one_process_wrote(
    remote: Callable[..., Any], federate: Any, assert_same: Callable[..., None]
) -> None:
    trainer, _, fitted = remote(rounds=2, name="cut", keep_checkpoints=4)
    federate(FedPer(**PERSONAL), rounds=2, name="cut").fit(*fitted)
    there = {"accept_states": True, "signs": False}
    trainer, office, fitted = remote(rounds=4, name="cut", keep_checkpoints=4, **there)
    office.rule = lambda site, message: (
        "deliver" if site == "one" or message.header["do"] in ("about", "load") else "lose"
    )
    trainer.fit(*fitted, ckpt_path="last")
    store = CheckpointStore(trainer.run_dir / "checkpoints")
    wrote = load_file(store.path(2) / "clients" / "C.ckpt")
    for number in (3, 4):
        assert label_of_c(store.path(number)) == "cut.version_0.00002"
        assert_same(load_file(store.path(number) / "clients" / "C.ckpt"), wrote)
        assert not is_complete(store.path(number) / "clients")
    resumed, office, fitted = remote(rounds=5, name="cut", **there)
    began = states_at_turns(office, "two", "C")
    resumed.fit(*fitted, ckpt_path="last")
    assert_same(began[0], wrote)
    assert office.downloads["C"][0] is not None
    assert label_of_c(store.path(5)) == "cut.version_0.00005"
    assert not (store.path(5) / "clients" / "C.ckpt").exists()


def test_one_process_needs_the_states_of_sites(remote: Callable[..., Any], federate: Any) -> None:
    trainer, _, fitted = remote(rounds=2, name="cut")
    trainer.fit(*fitted)
    with pytest.raises(InputError, match=r"`ckpt_path` to be a checkpoint with the state of every client \(`flgraph"):
        federate(FedPer(**PERSONAL), rounds=3, name="cut").fit(*fitted, ckpt_path="last")


def gather_from(trainer: FederatedTrainer, folder: Path, out: Path) -> Path:
    """What ``flgraph flare gather`` does with kits whose server ran this."""
    assert trainer.run_dir is not None
    runs, name = trainer.run_dir.parents[1], trainer.run_dir.parent.name
    kits = folder / "kits"
    for kit, own in {"server": runs, "one": folder / "one", "two": folder / "two"}.items():
        (kits / kit / "local").mkdir(parents=True)
        place = own if kit == "server" else own.parent / f"{kit}-settings"
        (kits / kit / "local" / "flgraph.yaml").write_text(json.dumps({"folder": str(place)}))
        if kit != "server":
            place.mkdir()
            (place / "clients").symlink_to(own)
        (place / "secret").write_text(SECRETS[kit].hex())
    return gather(name, kits, out)


def test_gathered_states_go_on_in_one_process(
    remote: Callable[..., Any], federate: Any, assert_same: Callable[..., None], tmp_path: Path
) -> None:
    trainer, _, fitted = remote(rounds=2, name="cut")
    trainer.fit(*fitted)
    run = gather_from(trainer, tmp_path / "sites", tmp_path / "gathered")
    one = federate(FedPer(**PERSONAL), rounds=4, default_root_dir=tmp_path / "gathered", name="cut")
    one.fit(*fitted, ckpt_path="last")
    whole = federate(FedPer(**PERSONAL), rounds=4, name="whole")
    whole.fit(*fitted)
    assert one.run_dir == run
    assert history(one) == history(whole)
    for name, client in whole.engine.clients.items():
        assert_same(one.engine.clients[name].state(), client.state())


def test_checkpoints_without_a_site_are_not_gathered(remote: Callable[..., Any], tmp_path: Path) -> None:
    trainer, office, fitted = remote(rounds=3, name="cut", keep_checkpoints=3)
    office.rule = lambda site, _: "lose" if site == "two" and office.sent.count(("two", "save")) > 3 else "deliver"
    trainer.fit(*fitted)
    run = gather_from(trainer, tmp_path / "sites", tmp_path / "gathered")
    assert CheckpointStore(run / "checkpoints").rounds() == [1, 2]
    with pytest.raises(InputError, match="`--out` to be a folder without this run"):
        gather("cut", tmp_path / "sites" / "kits", tmp_path / "gathered")
    (run.parents[1] / "cut" / "version_old").mkdir()  # somebody's; not looked at
    next((tmp_path / "sites" / "two" / "C").glob("*00002.ckpt")).unlink()
    with pytest.raises(InputError, match="`--kits` to be with the state of client `C`"):
        gather("cut", tmp_path / "sites" / "kits", tmp_path / "again")


def test_what_somebody_altered_is_not_gathered(remote: Callable[..., Any], tmp_path: Path) -> None:
    trainer, _, fitted = remote(rounds=2, name="cut")
    trainer.fit(*fitted)
    gather_from(trainer, tmp_path / "sites", tmp_path / "gathered")
    kits = tmp_path / "sites" / "kits"
    manifest = trainer.run_dir / "checkpoints" / "round-00002" / "manifest.json"
    state = state_file(tmp_path / "sites" / "two", "C", "cut.version_0.00002")
    for file, sentence in ((manifest, "to be signed by this server"), (state, "one that was altered' in site `two`")):
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b'"round": 2', b'"round": 3') if file is manifest else whole[:-1])
        with pytest.raises(InputError, match=sentence):
            gather("cut", kits, tmp_path / "again")
        file.write_bytes(whole)
    assert gather("cut", kits, tmp_path / "again").is_dir()


def test_encrypted_states_are_gathered_in_the_clear(
    remote: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLGRAPH_SITE_KEY", "ab" * 32)
    trainer, office, fitted = remote(rounds=2, name="cut")
    for host in office.hosts.values():
        host.states = SiteStates(host.states.folder, "cut", host.key, bytes.fromhex("ab" * 32))
    trainer.fit(*fitted)
    with pytest.raises(InputError, match="`encrypt` to be true at this site, whose states are encrypted but got"):
        gather_from(trainer, tmp_path / "sites", tmp_path / "gathered")
    for site in ("one", "two"):
        settings = {"folder": str(tmp_path / "sites" / f"{site}-settings"), "encrypt": True}
        (tmp_path / "sites" / "kits" / site / "local" / "flgraph.yaml").write_text(json.dumps(settings))
    run = gather("cut", tmp_path / "sites" / "kits", tmp_path / "gathered")
    assert load_file(run / "checkpoints" / "last" / "clients" / "C.ckpt")["client"]["name"] == "C"
    monkeypatch.setenv("FLGRAPH_SITE_KEY", "cd" * 32)
    with pytest.raises(InputError, match="the site has the key for but got another key in site `"):
        gather("cut", tmp_path / "sites" / "kits", tmp_path / "again")


def test_nothing_is_left_of_a_gathering_that_failed(
    remote: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, _, fitted = remote(rounds=2, name="cut")
    trainer.fit(*fitted)

    def gone(checkpoint: Path, key: bytes) -> None:
        raise FileNotFoundError(checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr("flgraph.flare.gather.read_manifest", gone)
        with pytest.raises(InputError, match="`name` to be a run that has stopped but got cut, which is going on"):
            gather_from(trainer, tmp_path / "sites", tmp_path / "gathered")
    assert list((tmp_path / "gathered" / "cut").iterdir()) == []
    assert gather("cut", tmp_path / "sites" / "kits", tmp_path / "gathered").is_dir()


def test_a_site_that_does_not_save_goes_on_from_an_older_state(
    remote: Callable[..., Any], assert_same: Callable[..., None], tmp_path: Path
) -> None:
    """Killed after such a round and resumed: it has the state that it saved last, and gets what is shared anew."""
    trainer, office, fitted = remote(rounds=2, name="cut")
    office.rule = lambda site, _: "lose" if site == "two" and office.sent.count(("two", "save")) > 2 else "deliver"
    trainer.fit(*fitted)
    assert [line["clients"] for line in history(trainer)] == [["A", "B", "C"]] * 2
    saved = load_file(state_file(tmp_path / "sites" / "two", "C", "cut.version_0.00001"))
    resumed, office, fitted = remote(rounds=3, name="cut")
    began = states_at_turns(office, "two", "C")
    resumed.fit(*fitted, ckpt_path="last")
    assert_same(began[0], saved)
    downloads = office.downloads["C"]
    assert downloads[0] is not None  # what it had installed is not what the server had noted
    assert history(resumed)[-1]["clients"] == ["A", "B", "C"]


def test_a_client_that_is_missing_is_named(remote: Callable[..., Any], federate: Any, toy_federation: Any) -> None:
    federate(FedPer(**PERSONAL), rounds=1, name="cut").fit(remote(rounds=1)[2][0], toy_federation(6, 8, 9))
    module = remote(rounds=1)[2][0]
    with pytest.raises(InputError, match=r"`data\.C` to be there as in checkpoint"):
        federate(FedPer(**PERSONAL), rounds=2, name="cut").fit(module, toy_federation(6, 8), ckpt_path="last")
