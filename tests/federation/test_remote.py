"""Clients at sites that answer late or never; the sites are objects here, and bytes and plain values cross."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from flgraph.callbacks import EarlyStopping, FedAvg, FedPer
from flgraph.errors import InputError
from flgraph.federation import (
    ClientError,
    Clip,
    EngineError,
    FederatedTrainer,
    GaussianNoise,
    Quantise,
    Tolerance,
    TopK,
)
from flgraph.federation.engines.host import Message, SiteHost, turns_of
from flgraph.federation.engines.remote import Remote
from flgraph.federation.privacy import spent
from flgraph.flare.gather import gather
from flgraph.runs.checkpoint import CheckpointStore, load_file
from flgraph.runs.keys import derive_key
from flgraph.runs.site_states import SiteStates, is_complete, state_file

PERSONAL = {"base": ["first.*"]}

SECRETS = {name: bytes([number]) * 32 for number, name in enumerate(("server", "one", "two"))}


class Office:
    """Carries messages to sites in this process; ``rule`` says which answers get lost, or requests with them."""

    def __init__(self, hosts: Mapping[str, SiteHost]) -> None:
        self.hosts = dict(hosts)
        self.rule: Callable[[str, Message], str] = lambda site, message: "deliver"
        self.sent: list[tuple[str, str]] = []
        self.downloads: dict[str, list[bytes | None]] = {}
        self._turn = threading.Lock()  # clients in one process share torch's generator

    def send(self, site: str, message: Message, timeout: float) -> Message | None:
        self.sent.append((site, message.header["do"]))
        for name, turn in turns_of(message).items() if message.header["do"] == "run" else ():
            self.downloads.setdefault(name, []).append(turn.download)
        fate = self.rule(site, message)
        if fate == "lose":
            return None
        with self._turn:
            answer = self.hosts[site].answer(Message.from_bytes(message.to_bytes()))
        return Message.from_bytes(answer.to_bytes()) if fate == "deliver" else None


def round_of(message: Message, *, evaluated: bool = False) -> int:
    """The round that a request is about; 0 for what is of none, and for evaluations unless these are meant."""
    turns = list(message.header.get("turns", {}).values())
    return int(turns[0]["round"]) if turns and (turns[0]["request"] == "evaluate") == evaluated else 0


@pytest.fixture
def remote(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any, tmp_path: Path
) -> Callable[..., Any]:
    """Makes a trainer whose clients A, B and C are at two sites, and the office between them."""

    def make(
        aggregator: Any = None,
        folder: str = "sites",
        deadline: float = 1.0,
        accept_states: bool = False,
        signs: bool = True,
        **kwargs: Any,
    ) -> Any:
        aggregator = aggregator or FedPer(**PERSONAL)
        module, data = toy_module(dropout=0.5), toy_federation(6, 8, 9)
        hosts = {}
        for site, names in (("one", ["A", "B"]), ("two", ["C"])):
            there = federate(aggregator, enable_checkpointing=False, transforms=kwargs.get("transforms", ()))
            clients, run = there.host(module, data, names), kwargs.get("name", f"{aggregator.name}-{data.name}")
            hosts[site] = SiteHost(clients, tmp_path / folder / site, run, SECRETS[site], accept_states=accept_states)
        office = Office(hosts)
        sites = {
            site: {name: client.disclosed(host.key) for name, client in host.clients.items()}
            for site, host in hosts.items()
        }
        min_clients = kwargs.pop("min_clients", 1)
        tolerance = Tolerance(min_clients, kwargs.pop("on_bad_upload", None))
        trainer = federate(aggregator, engine=Remote(office, sites, deadline, 0.0), tolerance=tolerance, **kwargs)
        trainer.checkpoint_key = derive_key(SECRETS["server"], "checkpoints") if signs else None
        return trainer, office, (module, data)

    return make


def weights(office: Office) -> dict[str, dict[str, Any]]:
    """Whole states of all clients."""
    return {name: client.state() for host in office.hosts.values() for name, client in host.clients.items()}


def history(trainer: FederatedTrainer) -> list[dict[str, Any]]:
    assert trainer.run_dir is not None
    lines = [json.loads(line) for line in (trainer.run_dir / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def states_at_turns(office: Office, site: str, name: str) -> list[Any]:
    """Filled with a client's state before each of its turns; everything is delivered."""
    states: list[Any] = []

    def rule(to: str, message: Message) -> str:
        if to == site and message.header["do"] == "run":
            states.append(copy.deepcopy(office.hosts[site].clients[name].state()))
        return "deliver"

    office.rule = rule
    return states


@pytest.mark.parametrize("aggregator", [FedAvg(), FedPer(**PERSONAL)], ids=["fedavg", "fedper"])
def test_sites_compute_what_one_process_does(
    remote: Callable[..., Any], federate: Any, aggregator: Any, assert_same: Callable[..., None]
) -> None:
    trainer, office, fitted = remote(aggregator, rounds=3)
    trainer.fit(*fitted)
    whole = federate(aggregator, rounds=3)
    whole.fit(*fitted)
    assert history(trainer) == history(whole)
    for name, client in whole.engine.clients.items():
        assert_same(weights(office)[name], client.state())


def smaller() -> list[Any]:
    """Transforms, one of which remembers what it did not send."""
    return [Clip(0.5), TopK(0.4), Quantise(4)]


def test_transforms_at_sites_are_those_of_one_process(
    remote: Callable[..., Any], federate: Any, assert_same: Callable[..., None]
) -> None:
    trainer, office, fitted = remote(FedAvg(), rounds=3, transforms=smaller())
    trainer.fit(*fitted)
    whole = federate(FedAvg(), rounds=3, transforms=smaller())
    whole.fit(*fitted)
    assert history(trainer) == history(whole)
    for name, client in whole.engine.clients.items():
        assert_same(weights(office)[name], client.state())


def test_noise_at_sites_is_new_whenever_a_round_is_done_again_and_counts_again(
    remote: Callable[..., Any], federate: Any
) -> None:
    noise = GaussianNoise(norm=1.0, multiplier=10.0)
    kept = {"transforms": [noise], "name": "run", "keep_checkpoints": 5}
    trainer, _, fitted = remote(FedAvg("uniform"), rounds=2, **kept)
    results = trainer.fit(*fitted)
    assert results["privacy"]["epsilon"] == spent(10.0, 3, ((3, 2),), 1e-5)
    assert results["privacy"]["noise_drawn"] == "from the operating system"
    before = {name: tensor.clone() for name, tensor in trainer.server.aggregator.shared.items()}
    again = federate(FedAvg("uniform"), rounds=2, engine=trainer.engine, **kept)
    again.checkpoint_key = trainer.checkpoint_key
    results = again.fit(*fitted, ckpt_path=str(trainer.run_dir / "checkpoints" / "round-00001"))
    assert any(not torch.equal(tensor, before[name]) for name, tensor in again.server.aggregator.shared.items())
    assert results["privacy"]["epsilon"] == spent(10.0, 3, ((3, 3),), 1e-5)


@pytest.mark.parametrize("fate", ["lose", "answer late"])
@pytest.mark.parametrize("transformed", [False, True])
def test_a_site_that_misses_a_deadline_is_left_out_and_comes_back(
    remote: Callable[..., Any], fate: str, transformed: bool, assert_same: Callable[..., None]
) -> None:
    """Whether it never got the request or answered too late, it ends in the same bits: transforms remember the same."""
    runs = []
    kept = {"aggregator": FedAvg(), "transforms": smaller()} if transformed else {}
    for number, what in enumerate(("lose", fate)):
        trainer, office, fitted = remote(rounds=4, folder=f"sites-{number}", **copy.deepcopy(kept))
        office.rule = lambda site, message, what=what: what if site == "two" and round_of(message) == 2 else "deliver"
        trainer.fit(*fitted)
        runs.append((trainer, office))
    (one, first), (other, second) = runs
    took_part = [line["clients"] for line in history(other)]
    assert took_part == [["A", "B", "C"], ["A", "B"], ["A", "B", "C"], ["A", "B", "C"]]
    assert not any(line["dropped"] for line in history(other))
    assert history(one) == history(other)
    assert_same(weights(first), weights(second))
    assert ("two", "ping") in second.sent


def test_a_site_that_is_away_is_not_waited_for(remote: Callable[..., Any]) -> None:
    trainer, office, fitted = remote(rounds=3)
    office.rule = lambda site, message: "lose" if site == "two" and office.sent.count(("two", "run")) > 5 else "deliver"
    trainer.fit(*fitted)
    before = office.sent.index(("two", "ping"))
    assert {kind for site, kind in office.sent[before:] if site == "two"} == {"ping"}
    assert sorted(trainer.history.last["clients"]) == ["A", "B"]


def test_absent_sites_are_asked_now_and_then(remote: Callable[..., Any]) -> None:
    trainer, office, fitted = remote(rounds=4)
    trainer.engine.ask_every = 1000.0
    office.rule = lambda site, message: "lose" if site == "two" and round_of(message) == 1 else "deliver"
    trainer.fit(*fitted)
    assert office.sent.count(("two", "ping")) == 1  # it said that it was there
    office.rule = lambda site, _: "lose" if site == "two" else "deliver"
    trainer.test()
    trainer.test()
    assert office.sent.count(("two", "ping")) == 1


def test_a_busy_site_is_left_out(remote: Callable[..., Any]) -> None:
    trainer, office, fitted = remote(rounds=2)
    trainer.fit(*fitted)
    host = office.hosts["two"]
    with host._lock:
        assert host.answer(Message({"do": "ping"})) == Message({"busy": True})
        office.hosts["one"].answer(Message({"do": "ping"}))
        assert sorted(trainer.test()) == ["A", "B"]
    assert sorted(trainer.test()) == ["A", "B", "C"]


def request_of(message: Message) -> str:
    """What clients are asked to do; empty where no client is asked."""
    return next((str(turn["request"]) for turn in message.header.get("turns", {}).values()), "")


def label_of_c(checkpoint: Path) -> str:
    """Under which label site ``two`` has the state that a checkpoint of the server stands for."""
    return str(json.loads((checkpoint / "clients" / "C.json").read_text())["label"])


@pytest.mark.parametrize(
    "header",
    [
        {"do": "predict", "client": "A"},
        {"do": "give", "client": "A"},
        {"do": "nothing"},
        {"do": "save", "label": "../a", "needed": [], "bases": {"A": 0}, "number": 0},
        {"do": "load", "labels": {"A": "../../a"}},
        {"do": "save", "folder": "/", "previous": None},
        {"do": "run", "turns": {"A": {}}},
        {"do": "load", "labels": {"Z": "a"}},
    ],
)
def test_a_site_hands_over_no_states_and_answers_what_it_refuses(
    remote: Callable[..., Any], header: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Predictions and states stay; and so do tracebacks, in the site's log."""
    host = remote(rounds=1)[1].hosts["one"]
    answer = host.answer(Message(header))
    assert answer.header["error"] in ("refused", "failed")
    assert answer.pieces == {}
    assert len(json.dumps(answer.header)) < 30
    assert "Traceback" in caplog.text
    assert host.answer(Message({"do": "ping"})) == Message()


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


def test_too_few_answers_end_the_run(remote: Callable[..., Any]) -> None:
    trainer, office, fitted = remote(rounds=3, min_clients=3)
    office.rule = lambda site, message: "lose" if site == "two" and round_of(message) == 2 else "deliver"
    with pytest.raises(EngineError, match=r"Only 2 of at least 3 clients answered in time; missing: C\."):
        trainer.fit(*fitted)
    resumed, _, fitted = remote(rounds=3)
    resumed.fit(*fitted, ckpt_path="last")
    assert [line["round"] for line in history(resumed)] == [1, 2, 3]


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


def fails(office: Office) -> None:
    """Client C's training fails from now on."""
    client = office.hosts["two"].clients["C"]
    client.data.x = torch.full_like(client.data.x, 2.0)
    client.module.training_step = lambda *_: 1 / 0


def test_a_failing_client_ends_a_run_that_is_to_end(remote: Callable[..., Any], caplog: Any) -> None:
    """The server hears that it failed; why, only the site knows."""
    trainer, office, fitted = remote(rounds=2, on_bad_upload="end")
    fails(office)
    with pytest.raises(ClientError, match=r"^Client `C` at site `two` failed; its own log says why"):
        trainer.fit(*fitted)
    assert "ZeroDivisionError" in caplog.text


def test_a_failing_client_costs_itself_its_place(
    remote: Callable[..., Any], assert_same: Callable[..., None], caplog: Any
) -> None:
    """Round 1 is done without it, and after three strikes the run; a failed turn leaves it as it was before."""
    trainer, office, fitted = remote(rounds=5)
    fails(office)
    before = copy.deepcopy(office.hosts["two"].clients["C"].state()["state_dict"])
    trainer.fit(*fitted)
    lines = history(trainer)
    assert [line["clients"] for line in lines] == [["A", "B"]] * 5
    assert [list(line["dropped"]) for line in lines] == [["C"]] * 3 + [[]] * 2
    assert [sorted(line["metrics"]) for line in lines] == [["A", "B", "C"]] * 2 + [["A", "B"]] * 3
    assert trainer.server.dropped == {"C": {"times": 3, "excluded": True}}
    personal = {name: tensor for name, tensor in before.items() if name.startswith("last")}
    after = office.hosts["two"].clients["C"].state()["state_dict"]
    assert_same({name: after[name] for name in personal}, personal)
    assert "left out of round 3 (train), and for the rest of the run" in caplog.text


def test_a_turn_that_could_not_be_undone_is_undone_before_the_next(
    remote: Callable[..., Any], assert_same: Callable[..., None]
) -> None:
    """As where a class has a state that cannot be loaded: the client does not go on from what is half done."""
    last = []
    for undone in (True, False):
        trainer, office, fitted = remote(rounds=2)
        client = office.hosts["two"].clients["C"]
        fail_once(client.module, "on_train_batch_end")  # it has made a step
        if undone:
            fail_once(client, "load_state")
        trainer.fit(*fitted)
        assert [line["clients"] for line in history(trainer)] == [["A", "B"], ["A", "B", "C"]]
        last.append(client.state()["state_dict"])
    assert_same(*last)


def fail_once(of: Any, name: str) -> None:
    """The next call of a method fails."""

    def failing(*args: Any, **kwargs: Any) -> None:
        delattr(of, name)
        raise RuntimeError("out of luck")

    vars(of)[name] = failing


def test_a_client_that_is_missing_is_named(remote: Callable[..., Any], federate: Any, toy_federation: Any) -> None:
    federate(FedPer(**PERSONAL), rounds=1, name="cut").fit(remote(rounds=1)[2][0], toy_federation(6, 8, 9))
    module = remote(rounds=1)[2][0]
    with pytest.raises(InputError, match=r"`data\.C` to be there as in checkpoint"):
        federate(FedPer(**PERSONAL), rounds=2, name="cut").fit(module, toy_federation(6, 8), ckpt_path="last")


def test_what_a_site_tells_of_its_clients(federate: Any, toy_federation: Any, toy_module: Any) -> None:
    """Names and shapes of what it shares, and how many samples it has; the rest is told where the data is."""
    clients = federate(FedPer(**PERSONAL), enable_checkpointing=False).host(toy_module(), toy_federation(6, 8))
    client = clients["A"]
    assert {line[2] for line in client.about["routes"]} == {"shared", "personal", "scalar", "metric"}
    told = client.disclosed(b"key")
    personal = [line[0] for line in client.about["routes"] if line not in told["routes"]]
    assert personal == ["last.weight", "last.bias"]
    assert told["parameters"] == {"shared": client.num_parameters["shared"]}
    assert set(told["data"]) == {"num_train_samples", "settings_sha256"}
    assert told["data"] != clients["B"].disclosed(b"key")["data"]


def test_what_turns_out_to_be_personal_is_not_told(remote: Callable[..., Any]) -> None:
    """Tensors that clients hold in different shapes stay with them, which is known once they have agreed."""
    trainer, office, _ = remote(FedAvg(), rounds=1)
    clients = {name: client for host in office.hosts.values() for name, client in host.clients.items()}

    def shared() -> list[str]:
        return [name for name, _, kind in trainer.engine.about()["A"]["routes"] if kind == "shared"]

    clients["A"].routing.agree(["last.weight"])
    assert shared() == ["last.weight"]
    assert trainer.engine.about()["A"]["parameters"] == {"shared": clients["A"].module.last.weight.numel()}
    office.rule = lambda site, message: "lose"
    clients["A"].routing.agree([])
    assert shared() == ["last.weight"]  # what it told last


def test_bad_input(remote: Callable[..., Any], federate: Any, toy_federation: Any, toy_module: Any) -> None:
    trainer, office, _ = remote(rounds=1)
    about = {"A": {}}
    with pytest.raises(InputError, match="`clients` to be of different names, but `A` is at one, too, but got 'two'"):
        Remote(office, {"one": about, "two": about})
    with pytest.raises(InputError, match="`deadline`"):
        Remote(office, {"one": about}, 0.0)
    for field in ("min_clients", "strikes"):
        with pytest.raises(InputError, match=f"`trainer.tolerance.{field}`"):
            Tolerance(**{field: 0})
    with pytest.raises(InputError, match=r"`data\.clients` to be those of the sites, \['A', 'B', 'C'\]"):
        trainer.fit(toy_module(), toy_federation(6, 8))
    with pytest.raises(InputError, match="`clients` to be among those of the data, A, B, but got 'Z'"):
        federate(FedAvg()).host(toy_module(), toy_federation(6, 8), ["Z"])
    with pytest.raises(InputError, match="`predict` to be run by each site"):
        next(trainer.engine.predict())
    with pytest.raises(InputError, match="`ckpt_path` to be a checkpoint of client `A`, too, but got"):
        trainer.engine.load(Path("nowhere"))
