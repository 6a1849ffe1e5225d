"""Clients at sites that answer late or never; the sites are objects here, and bytes and plain values cross."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from offices import PERSONAL, Office, history, round_of, weights

from flgraph.callbacks import FedAvg, FedPer
from flgraph.errors import InputError
from flgraph.federation import (
    ClientError,
    Clip,
    EngineError,
    GaussianNoise,
    Quantise,
    Tolerance,
    TopK,
)
from flgraph.federation.engines.host import Message
from flgraph.federation.engines.remote import Remote
from flgraph.federation.privacy import spent


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


def test_noise_that_came_before_an_exchange_broke_off_counts(remote: Callable[..., Any], federate: Any) -> None:
    kept = {"transforms": [GaussianNoise(norm=1.0, multiplier=10.0)], "name": "run", "keep_checkpoints": 5}
    trainer, office, fitted = remote(FedAvg("uniform"), rounds=3, on_bad_upload="end", **kept)
    module, calls = office.hosts["two"].clients["C"].module, count()
    step = module.training_step
    module.training_step = lambda *args: step(*args) if next(calls) != 1 else 1 / 0
    with pytest.raises(ClientError):  # in round 2, which has A's and B's uploads then
        trainer.fit(*fitted)
    again = federate(FedAvg("uniform"), rounds=3, engine=trainer.engine, **kept)
    again.checkpoint_key = trainer.checkpoint_key
    results = again.fit(*fitted, ckpt_path="last")
    assert again.server.account.uploads == dict.fromkeys("ABC", 4)
    assert results["privacy"]["epsilon"] == spent(10.0, 3, ((3, 4),), 1e-5)


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


def test_too_few_answers_end_the_run(remote: Callable[..., Any]) -> None:
    trainer, office, fitted = remote(rounds=3, min_clients=3)
    office.rule = lambda site, message: "lose" if site == "two" and round_of(message) == 2 else "deliver"
    with pytest.raises(EngineError, match=r"Only 2 of at least 3 clients answered in time; missing: C\."):
        trainer.fit(*fitted)
    resumed, _, fitted = remote(rounds=3)
    resumed.fit(*fitted, ckpt_path="last")
    assert [line["round"] for line in history(resumed)] == [1, 2, 3]


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
