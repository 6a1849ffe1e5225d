"""Runs with secure sums: the same results, lost clients, what is refused, and what is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from flgraph.callbacks import GCFL, SCAFFOLD, DFedGNN, FedAvg, FedEgo, FedOpt
from flgraph.errors import EngineError, InputError
from flgraph.federation import (
    Clip,
    FederatedCallback,
    GaussianNoise,
    Median,
    Payload,
    Policy,
    PolicyError,
    Quantise,
    Request,
    SecureSums,
    Tolerance,
    Turn,
)
from flgraph.federation.secure.server import check_method, layout_of
from flgraph.runs.history import read_records
from flgraph.runs.ledger_reader import read_ledger, spent
from flgraph.testing import check_algorithm


@pytest.fixture
def run(federate: Any, toy_federation: Any, toy_module: Any) -> Any:
    """A run of five clients; keyword arguments are the trainer's."""

    def make(aggregator: Any = None, ckpt_path: str | None = None, module: Any = None, **kwargs: Any) -> Any:
        trainer = federate(aggregator or FedAvg(), name="run", **{"rounds": 3, **kwargs})
        trainer.fit(module or toy_module(), toy_federation(6, 7, 8, 9, 10), ckpt_path=ckpt_path)
        return trainer

    return make


@pytest.mark.parametrize(
    "make", [FedAvg, lambda: FedAvg("uniform"), lambda: FedOpt(server_lr=0.1)], ids=["fedavg", "uniform", "fedopt"]
)
def test_a_run_is_the_same_to_the_resolution(make: Any, run: Any, toy_module: Any) -> None:
    module = toy_module(norm=True)
    plain_run = run(make(), module=module).server.aggregator.shared
    secure = run(make(), module=module, secure_sums=SecureSums(fraction_bits=40)).server.aggregator.shared
    for name, tensor in plain_run.items():
        assert secure[name].dtype == tensor.dtype
        assert torch.allclose(secure[name].double(), tensor.double(), rtol=2**-20, atol=2**-24), name


def test_the_server_gets_nothing_else(run: Any, recorder: Any) -> None:
    trainer = run(engine=recorder, secure_sums=SecureSums(), rounds=2)
    for _, upload in recorder.uploads():
        assert list(upload.tensors) == ["masked"]
        assert not upload.scalars
        assert upload.tensors["masked"].shape == (24,)  # 4x3 + 3 + 3x2 + 2 weights, and how much they count
    described = [Payload.from_bytes(answer) for _, turn, answer in recorder.crossed if turn.request == Request.DESCRIBE]
    assert all("num_samples" not in payload.scalars for payload in described)
    lines = read_ledger(trainer.run_dir / "ledger.jsonl")
    assert {line.request for line in lines if line.round == 1} >= {
        "keys",
        "shares",
        "hold",
        "exchange",
        "confirm",
        "unmask",
    }
    assert spent(lines)["A"]["turns"] == 2 + 2  # what is said of masks is no work
    told = json.loads((trainer.run_dir / "results.json").read_text())["secure_sums"]
    assert told["threshold"] == 0.66
    assert told["masks_drawn"].startswith("from the operating system")


@pytest.mark.parametrize("request_", [Request.KEYS, Request.EXCHANGE, Request.CONFIRM, Request.UNMASK])
def test_a_client_that_fails_is_left_out_and_the_others_go_on(request_: Request, run: Any, recorder: Any) -> None:
    ask = recorder.run

    def failing(turns: Mapping[str, Turn]) -> Any:
        turn = next(iter(turns.values()))
        if turn.round != 2 or turn.request != request_:
            return ask(turns)
        rest = {name: turn for name, turn in turns.items() if name != "B"}
        return {**ask(rest), "B": InputError("data", "there", "nothing")}

    recorder.run = failing
    trainer = run(engine=recorder, secure_sums=SecureSums(), tolerance=Tolerance(on_bad_upload="drop"))
    records = read_records(trainer.run_dir / "history.jsonl")
    assert list(records[1]["dropped"]) == ["B"]
    assert ("B" in records[1]["clients"]) == (request_ in (Request.CONFIRM, Request.UNMASK))
    assert len(records[2]["clients"]) == 5


def test_below_the_threshold_a_run_ends_and_goes_on_from_its_last_round(run: Any, recorder: Any) -> None:
    whole = run(secure_sums=SecureSums())
    ask = recorder.run

    def failing(turns: Mapping[str, Turn]) -> Any:
        turn = next(iter(turns.values()))
        if turn.round != 3 or turn.request != Request.EXCHANGE:
            return ask(turns)
        rest = {name: turn for name, turn in turns.items() if name not in "AB"}
        return {**ask(rest), **dict.fromkeys("AB", InputError("data", "there", "nothing"))}

    recorder.run = failing
    tolerant = {"secure_sums": SecureSums(), "tolerance": Tolerance(on_bad_upload="drop")}
    with pytest.raises(EngineError, match=r"Only 3 of at least 4 clients stayed for the secure sum of round 3"):
        run(engine=recorder, **tolerant)
    again = run(ckpt_path="last", **tolerant)
    for name, tensor in whole.server.aggregator.shared.items():
        assert torch.equal(again.server.aggregator.shared[name], tensor)


def test_stopped_runs_and_clients_made_anew_give_the_same_bits(toy_federation: Any, toy_module: Any) -> None:
    """Masks are others each time, and leave no trace."""
    check_algorithm(lambda: (FedAvg(), toy_module(), toy_federation(6, 7, 8)), rounds=2, secure_sums=SecureSums())


def test_settings_are_compared_when_a_run_goes_on(run: Any) -> None:
    run(rounds=1, secure_sums=SecureSums())
    with pytest.raises(InputError, match=r"trainer\.secure_sums"):
        run(rounds=2, ckpt_path="last")
    with pytest.raises(InputError, match=r"trainer\.secure_sums\.fraction_bits"):
        run(rounds=2, ckpt_path="last", secure_sums=SecureSums(fraction_bits=20))


def test_a_round_without_clients_has_no_sum(run: Any) -> None:
    class Holiday(FederatedCallback):
        def on_round_start(self, trainer: Any) -> None:
            if trainer.current_round == 3:
                trainer.skip(trainer.server.clients)

    two, three = (run(rounds=n, callbacks=[Holiday()], secure_sums=SecureSums()).server.aggregator for n in (2, 3))
    for name, tensor in two.shared.items():
        assert torch.equal(three.shared[name], tensor)


def test_rounds_of_two_are_refused_before_the_first(run: Any) -> None:
    with pytest.raises(InputError, match=r"3 clients or more in each round \(`trainer.client_fraction`\), but got 2"):
        run(client_fraction=0.4, secure_sums=SecureSums())


def test_noise_at_the_server_is_added_to_the_sum_once(run: Any) -> None:
    """By hand: the mean of clipped updates, and noise of the deviation z c / n."""
    lengths = []
    for multiplier in (1e-9, 1000.0):
        noise = [GaussianNoise(0.1, multiplier, at="server")]
        trainer = run(FedAvg("uniform"), transforms=noise, secure_sums=SecureSums(), rounds=1)
        lengths.append(torch.cat([t.flatten() for t in trainer.server.aggregator.shared.values()]))
    told = json.loads((trainer.run_dir / "results.json").read_text())["privacy"]
    assert "towards everybody but the server, which sees sums of these without noise" in told["claim"]
    added = (lengths[1] - lengths[0]).double()
    assert float(added.std()) == pytest.approx(0.1 * 1000 / 5, rel=0.4)


def test_clipping_goes_with_it(run: Any) -> None:
    moved = []
    for norm in (0.0, 0.05):
        trainer = run(FedAvg("uniform"), transforms=[Clip(norm)], secure_sums=SecureSums(fraction_bits=40), rounds=1)
        moved.append(torch.cat([t.flatten() for t in trainer.server.aggregator.shared.values()]))
    assert 0 < float((moved[1] - moved[0]).norm()) <= 0.05


# --------------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: SecureSums(threshold=0.5),
            "`trainer.secure_sums.threshold` to be above 0.5 and at most 1",
        ),
        (lambda: SecureSums(threshold=True), "trainer.secure_sums.threshold"),
        (lambda: SecureSums(fraction_bits=0), "`trainer.secure_sums.fraction_bits` to be a whole number from 1 to 52"),
        (
            lambda: SecureSums(neighbours=5),
            "`trainer.secure_sums.neighbours` to be an even number of 4 or more",
        ),
        (lambda: Policy(secure_sums=0), "policy.secure_sums"),
    ],
)
def test_arguments_that_cannot_be(make: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("aggregator", "transforms", "sentence"),
    [
        (GCFL(base=["*"]), [], "null with GCFL .*, whose server needs single uploads in exchange `train`"),
        (FedEgo(), [], "null with FedEgo"),
        (DFedGNN(), [], "null with DFedGNN"),
        (SCAFFOLD(), [], "null with SCAFFOLD"),
        (FedAvg(combine=Median()), [], r"null with FedAvg \(combine: Median\), whose server needs single uploads"),
        (FedAvg(), [Quantise(8)], "null with Quantise, whose codes cannot be added up"),
    ],
)
def test_methods_that_need_single_uploads(aggregator: Any, transforms: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        check_method(aggregator, transforms, rounds=3)


def test_a_run_of_such_a_method_is_refused(run: Any) -> None:
    with pytest.raises(InputError, match=r"`trainer\.secure_sums` to be null with GCFL"):
        run(GCFL(base=["*"]), secure_sums=SecureSums())


def test_clients_that_share_different_tensors() -> None:
    shared = {"a": torch.zeros(2, 3), "b": torch.zeros(())}
    assert layout_of(shared, {"x": ["b", "a"], "y": ["a", "b"]}) == [("a", (2, 3)), ("b", ())]
    with pytest.raises(InputError, match="null where clients share nothing"):
        layout_of({}, {"x": [], "y": []})
    with pytest.raises(InputError, match=r"null where clients share different .* client `y` shares others"):
        layout_of(shared, {"x": ["a", "b"], "y": ["a"]})


def test_a_site_that_wants_secure_sums(run: Any) -> None:
    policy = Policy(secure_sums=4, metrics={"*": None})
    with pytest.raises(PolicyError, match="given: uploads leave in sums over 4 clients or more only"):
        run(policy=policy, rounds=1)
    run(policy=policy, rounds=1, secure_sums=SecureSums())
    with pytest.raises(PolicyError, match="a sum over 6 clients or more, as the policy says, but got 5"):
        run(policy=Policy(secure_sums=6), rounds=1, secure_sums=SecureSums())


def test_numbers_beyond_the_range(run: Any) -> None:
    with pytest.raises(InputError, match="of numbers that are, times the client's weight, up to"):
        run(rounds=1, secure_sums=SecureSums(fraction_bits=52), aggregator=Heavy())


class Heavy(FedAvg):
    def client_weight(self, upload: Payload) -> float:
        return 1e6
