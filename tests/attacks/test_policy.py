"""A site decides: what a server asks beyond the policy is refused, and leaves the client as it was."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from asking import KEY, Server, agreement, evaluation, state_of

from flgraph.callbacks import DFedGNN, FedAvg, FedGCN, FedSagePlus, SchemaFedAvg
from flgraph.cli.main import main
from flgraph.errors import InputError
from flgraph.federation import (
    Client,
    Clip,
    GaussianNoise,
    Payload,
    Policy,
    PolicyError,
    Request,
    Turn,
)
from flgraph.federation.accountant import spent
from flgraph.federation.budget import Event, Spending
from flgraph.federation.client_door import ClientDoor
from flgraph.federation.engines.host import Message, run_request
from flgraph.federation.routes import RoutingTable
from flgraph.flare.run import clients_of
from flgraph.flare.settings import SiteSettings
from flgraph.runs.compatibility import SEALED, check_settings
from flgraph.runs.ledger_reader import read_ledger

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI's args")  # pytest's own are on the command line


# ---------------------------------------------------------------------------------------------- personal tensors
def test_distances_to_weights_that_a_server_chooses_are_not_told(site: Callable[..., Server], made: Any) -> None:
    """Twelve distances to twelve points tell a tensor: they stay, as all that an algorithm reports of its own."""
    for policy, told in (
        (Policy(), set[str]()),
        (Policy(metrics={"mixing/*": 2}), {"mixing/lambda", "mixing/emd", "mixing/divergence"}),
        (Policy(metrics={"mixing/emd": 1}), {"mixing/emd"}),
    ):
        everything = Policy(algorithms=["FedEgo"], metrics=policy.metrics)
        aggregator, model, data = made["FedEgo"]()
        server = site(everything, aggregator, model=model, data=data, ledger=f"{len(told)}.jsonl")
        name, client = next(iter(server.host.clients.items()))
        server.begin(name)
        digits = next(iter(policy.metrics.values()))
        client._reported.update({name: 0.123456789 for name in ("mixing/lambda", "mixing/emd", "mixing/divergence")})
        metrics = server.ask(evaluation(), name)
        assert isinstance(metrics, Payload)
        found = {name: value for name, value in metrics.scalars.items() if name.startswith("mixing/")}
        assert found == dict.fromkeys(told, round(0.123456789, digits or 0))


def test_turns_that_fail_count_in_all_jobs_of_a_run(site: Callable[..., Server]) -> None:
    """That one failed is an answer, too: with weights at the edge of failing, a bit of an upload."""
    turn = Turn(1, Request.EXCHANGE, "train", Payload({"first.bias": torch.full((3,), math.nan)}).to_bytes())
    for codes in (["refused"] * 3, ["refused"] * 2 + ["policy"], ["policy"] * 3):
        server = site(Policy(turns=5))
        assert [server.ask(turn) for _ in range(3)] == codes
        server.host._ledger.close()


def test_turns_without_an_answer_count_in_all_jobs_of_a_run(site: Callable[..., Server]) -> None:
    for codes in ([Payload()] * 3, [Payload()] * 2 + ["policy"], ["policy"] * 3):
        server = site(Policy(turns=5))
        found = [server.ask(Turn(1, Request.SNAPSHOT)) for _ in range(3)]
        assert [isinstance(answer, str) for answer in found] == [isinstance(code, str) for code in codes]
        server.host._ledger.close()


def test_a_server_makes_no_ledger_unreadable(site: Callable[..., Server], tmp_path: Path) -> None:
    server = site()
    turns: list[Any] = [Turn(number) for number in (-1, 1.5, "x", 2**60, True, None)]  # type: ignore[arg-type]
    turns += [Turn(1, exchange="a" * 1000), Turn(1, exchange="a\nb"), Turn(1, exchange=3)]  # type: ignore[arg-type]
    turns += [Turn(1, Request.EVALUATE, splits=({"a": 1},))]  # type: ignore[arg-type]
    for turn in turns:
        assert server.ask(turn) in ("refused", "failed")
    assert isinstance(server.ask(Turn(1, Request.SNAPSHOT)), Payload)
    server.host._ledger.close()
    assert [(line.event, line.request) for line in read_ledger(tmp_path / "ledger.jsonl")][-1:] == [
        ("done", "snapshot")
    ]


def test_patterns_of_tensors_are_held_against_names() -> None:
    """``rows/?`` lets ``rows/*`` through, as a pattern, and not ``rows/somebody``."""

    class Own(FedAvg):
        extra_tensors: Any = {"rows/*": "update"}  # noqa: RUF012

    half = Own()
    table = RoutingTable(half.routes(), {"w": torch.zeros(2)}, extra=half.extra_tensors, scalars=half.upload_scalars)
    door = ClientDoor(table, half, Policy(algorithms=["Own"], tensors=["w", "rows/?"]), 3, 1, 10)
    whole = {"w": torch.zeros(2), "rows/a": torch.zeros(2)}
    assert door.upload(Turn(1, exchange="train"), Payload(whole, {"num_samples": 10}))
    for send in (door.upload, lambda turn, answer: door.masked(turn, answer, Payload())):
        with pytest.raises(
            PolicyError, match=r"`rows/somebody` to be of tensors that the policy lets out \(w, rows/\?"
        ):
            send(Turn(1, exchange="train"), Payload({**whole, "rows/somebody": torch.zeros(2)}, {"num_samples": 10}))


def test_a_large_loss_tells_no_more_digits_than_a_small_one() -> None:
    """The loss of weights that a server makes large is a number of its choice with all digits that float32 has."""
    told = Policy().tell({"val/loss": 123456.789, "val/x": 9.87654321, "val/y": 1e30, "val/z": math.nan}, 10)
    assert told["val/loss"] == 123460.0
    assert told["val/x"] == 9.8765
    assert told["val/y"] == 1e30
    assert math.isnan(float(told["val/z"]))
    assert Policy().tell({"val/loss": math.inf, "val/a": -0.00001234}, 1) == {"val/loss": math.inf, "val/a": -0.0}


@pytest.mark.parametrize("minimum", [6, 7])
def test_metrics_of_few_samples_are_withheld(site: Callable[..., Server], minimum: int) -> None:
    metrics = {"val/loss": 0.5, "val/samples": 6.0, "test/loss": 0.1, "test/samples": 100.0, "train/loss": 1.0}
    told = Policy(min_samples=minimum).tell(metrics, 6)
    assert ("val/loss" in told) == ("val/samples" in told) == ("train/loss" in told) == (minimum == 6)
    assert {"test/loss", "test/samples"} <= told.keys()
    assert "test/samples" not in Policy(num_samples=None).tell(metrics, 6)
    assert Policy(num_samples=10).tell(metrics, 6)["val/samples"] == 10.0


# --------------------------------------------------------------------------------------------------------- limits
class Half:
    """A client half that any number of rounds costs nothing."""

    extra_tensors: Mapping[str, Any] = {}
    upload_scalars = ("num_samples",)
    reveals = ""

    def exchanges(self, round: int) -> tuple[str, ...]:
        return ("train",) if round else ()


@pytest.mark.parametrize("policy", [None, Policy(algorithms=["*"])])
def test_a_billion_rounds_take_no_time(policy: Policy | None) -> None:
    table = RoutingTable(FedAvg().routes(), {"weight": torch.ones(1)})
    began = time.monotonic()
    if policy is None:
        door = ClientDoor(table, Half(), policy, rounds=10**9, local_epochs=1, num_samples=3)
        assert door.job.num_exchanges == 10**9
    else:
        with pytest.raises(PolicyError, match=r"`trainer\.rounds` to be 1000 or fewer, .* but got 1000000000\."):
            ClientDoor(table, Half(), policy, rounds=10**9, local_epochs=1, num_samples=3)
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    ("field", "value"), [("rounds", 1001), ("rounds", 10**9), ("local_epochs", 101), ("local_epochs", 10**12)]
)
def test_long_jobs_are_refused_before_data_is_read(
    field: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flgraph.data.SyntheticFederation.setup", lambda *args: pytest.fail("data was read"))
    data = {"class_path": "flgraph.data.SyntheticFederation", "init_args": {"domains": ["trees"], "num_graphs": 9}}
    trainer = {"aggregator": {"class_path": "flgraph.callbacks.FedAvg"}, field: value}
    job = {"model": {"class_path": "flgraph.models.GNN"}, "trainer": trainer}
    with pytest.raises(PolicyError, match=rf"^Expected `trainer\.{field}` to be \d+ or fewer, as the policy says"):
        clients_of(yaml.safe_dump(job), SiteSettings(data=data, folder=str(tmp_path)), Policy())


def test_epochs_by_another_name(site: Callable[..., Server]) -> None:
    """An algorithm may train for as many epochs as its own arguments say."""

    class Long(FedAvg):
        def local_update(self, client: Client, round: int, exchange: str) -> None:
            client.fit(10**12)

    server = site(Policy(algorithms=["Long"]), Long())
    server.begin()
    before = server.weights()
    assert server.ask(Turn(1, Request.EXCHANGE, "train")) == "policy"
    _assert_equal(server.weights(), before)


def test_evaluations_with_a_constant_classifier(site: Callable[..., Server]) -> None:
    """They tell the shares of classes, and so they are counted."""
    server = site(Policy(evaluations=5))
    forms = server.begin()
    zeros = {name: torch.zeros(3, 4) if form.startswith("3x4") else torch.zeros(3) for name, form in forms.items()}
    answers = [server.ask(evaluation(download=Payload(zeros).to_bytes())) for _ in range(50)]
    assert all(isinstance(answer, Payload) for answer in answers[:5])
    assert answers[5:] == ["policy"] * 45
    assert isinstance(server.ask(Turn(1, Request.EXCHANGE, "train")), Payload)


def test_default_limits(site: Callable[..., Server]) -> None:
    server = site()
    job = server.host.clients["A"].door.job
    assert Policy().most_turns(job) == 50 + 3 * 3
    assert Policy().most_evaluations(job) == 20 + 2 * 3
    answers = [server.ask(evaluation()) for _ in range(27)]
    assert [isinstance(answer, Payload) for answer in answers] == [True] * 26 + [False]
    answers = [server.ask(Turn(0, Request.SNAPSHOT)) for _ in range(60)]
    assert [answer == "policy" for answer in answers] == [False] * 59 + [True]


@pytest.mark.parametrize(
    "turn",
    [
        Turn(4, Request.EXCHANGE, "train"),
        Turn(-1, Request.EXCHANGE, "train"),
        Turn(0, Request.EXCHANGE, "train"),
        Turn(1, Request.EXCHANGE, "secret"),
        Turn(1, Request.EXCHANGE, ""),
        Turn(10**400, Request.EVALUATE),
        Turn(1.5, Request.EXCHANGE, "train"),  # type: ignore[arg-type]
        Turn("1", Request.EXCHANGE, "train"),  # type: ignore[arg-type]
        Turn(1, Request.EXCHANGE, ["train"]),  # type: ignore[arg-type]
        Turn(True, Request.EXCHANGE, "train"),
        Turn(1, Request.EXCHANGE, "train", download="text"),  # type: ignore[arg-type]
        Turn(1, Request.EVALUATE, splits=3),  # type: ignore[arg-type]
    ],
    ids=lambda turn: str(turn)[:60],
)
def test_requests_that_the_job_does_not_have(site: Callable[..., Server], turn: Turn) -> None:
    server = site()
    server.begin()
    before = server.weights()
    assert server.ask(turn) in ("policy", "refused", "failed")
    _assert_equal(server.weights(), before)
    assert isinstance(server.ask(Turn(1, Request.EXCHANGE, "train")), Payload)


def test_turns_that_are_repeated_cost_turns(site: Callable[..., Server], tmp_path: Path) -> None:
    """A server may say that it never got an answer; the client goes back, and what it has spent does not."""
    server = site(Policy(turns=6, accept_states=True))
    server.begin()
    saving = {"do": "save", "label": "run.old", "bases": {"A": server.done["A"]}, "needed": [], "number": server.count}
    server.send(Message(saving))
    base = server.done["A"]
    first = server.ask(Turn(1, Request.EXCHANGE, "train"))
    answers = []
    for _ in range(2):
        server.done["A"] = base
        answers.append(server.ask(Turn(1, Request.EXCHANGE, "train")))
    assert [answer == "policy" for answer in answers] == [False, False]
    assert isinstance(first, Payload)
    assert isinstance(answers[0], Payload)
    _assert_equal(first.tensors, answers[0].tensors)
    assert server.send(Message({"do": "load", "labels": {"A": "run.old"}})) == Message()
    server.done["A"] = 0
    assert isinstance(server.ask(Turn(1, Request.EXCHANGE, "train")), Payload)
    assert server.ask(Turn(1, Request.EXCHANGE, "train")) == "policy"
    again = site(Policy(turns=6))  # the next job of the run
    assert again.ask(Turn(0, Request.DESCRIBE)) == "policy"
    assert site(Policy(turns=6), ledger="other.jsonl").begin()
    verdicts = [line.verdict for line in read_ledger(tmp_path / "ledger.jsonl") if "refused" in line.verdict]
    assert len(verdicts) == 2


def test_a_request_that_comes_after_a_newer_one_undoes_nothing(site: Callable[..., Server]) -> None:
    """A slow download that the server no longer waits for; the client goes on from where it is."""
    server = site(None)
    server.begin()
    late = {"bases": dict(server.done), "numbers": {"A": server.count}}
    saving = {"do": "save", "label": "run.x", "bases": dict(server.done), "needed": [], "number": server.count}
    assert isinstance(server.ask(Turn(1, Request.EXCHANGE, "train")), Payload)
    trained = server.weights()
    answer = server.send(run_request({"A": evaluation()}, keep_going=True, **late))
    assert answer.header["errors"] == {"A": "refused"}
    assert server.send(Message(saving)).header["error"] == "refused"
    _assert_equal(server.weights(), trained)
    assert isinstance(server.ask(evaluation()), Payload)


def test_a_site_counts_what_noise_costs_over_all_runs(site: Callable[..., Server], tmp_path: Path) -> None:
    """Whatever the server says of rounds, states or names of runs: what would pass the limit is not done."""
    noise, most = GaussianNoise(1.0, 10.0), spent(10.0, 1, ((1, 4),), 1e-5) + 1e-6
    arguments: dict[str, Any] = {"aggregator": FedAvg("uniform"), "transforms": [noise]}
    policy = Policy(max_epsilon=most, accept_states=True)
    server = site(policy, **arguments)
    server.begin()
    base = server.done["A"]
    seen = []
    for _ in range(3):  # the same turn again and again: each time with other noise
        server.done["A"] = base
        seen.append(server.ask(Turn(1, Request.EXCHANGE, "train", Payload(server.weights()).to_bytes())))
    assert all(isinstance(answer, Payload) for answer in seen)
    assert not torch.equal(seen[0].tensors["last.weight"], seen[1].tensors["last.weight"])  # type: ignore[union-attr]
    other = site(policy, ledger="another-run.jsonl", **arguments)  # begins anew, and finds what was spent
    other.begin()
    first = Payload(other.weights()).to_bytes()
    assert isinstance(other.ask(Turn(1, Request.EXCHANGE, "train", first)), Payload)
    before = other.weights()
    assert other.ask(Turn(2, Request.EXCHANGE, "train", first)) == "policy"
    _assert_equal(before, other.weights())
    other.begin("B")  # has spent nothing yet
    assert isinstance(other.ask(Turn(1, Request.EXCHANGE, "train", first), "B"), Payload)
    kept = json.loads((tmp_path / "states" / "A" / "privacy.json").read_text())
    assert kept == [["client", 10.0, 1.0, 4]]
    (tmp_path / "states" / "A" / "privacy.json").write_text('[["client", 10.0, 1.0, -3]]')
    with pytest.raises(InputError, match="what this site wrote, or not there where nothing was spent"):
        site(policy, ledger="third-run.jsonl", **arguments)


def test_a_limit_is_for_noise_of_one_kind(tmp_path: Path) -> None:
    """What hides a client and what hides a record do not add up to anything known."""
    spending = Spending(tmp_path / "privacy.json")
    spending.add(Event("client", 10.0, 1.0), 1, 1e-5, 8.0)
    with pytest.raises(PolicyError, match=r"to be noise that hides a client, as what was spent before .* but got"):
        Spending(tmp_path / "privacy.json").add(Event("record", 10.0, 0.1), 1, 1e-5, 8.0)
    assert spending.events == {Event("client", 10.0, 1.0): 1}


@pytest.mark.parametrize(
    ("policy", "noise", "sentence"),
    [
        (
            Policy(min_noise=2),
            [Clip(9.0, leave=["first.*"]), GaussianNoise(1.0, 9.0)],
            "noise does not cover.* but got first",
        ),
        (Policy(min_noise=2), None, "noise before anything leaves the client .* of a multiplier of 2 or more"),
        (Policy(min_noise=2), GaussianNoise(1.0, 1.5), "of a multiplier of 2 or more, as the policy says, but got 1.5"),
        (Policy(min_noise=2), GaussianNoise(1.0, 9.0, at="server"), "but got none"),
        (Policy(min_noise=2), GaussianNoise(1.0, 9.0, leave=["first.*"]), "noise does not cover.* but got first"),
        (Policy(max_epsilon=8), None, "noise before anything leaves the client"),
        (Policy(max_epsilon=8), GaussianNoise(1.0, 9.0), "nothing that noise does not cover.* but got num_samples"),
    ],
)
def test_jobs_without_the_noise_that_a_site_asks_for(
    site: Callable[..., Server], policy: Policy, noise: Any, sentence: str
) -> None:
    with pytest.raises(PolicyError, match=f"`trainer` to be .*{sentence}"):
        site(policy, aggregator=FedAvg(), transforms=noise if isinstance(noise, list) else [noise] if noise else [])


def test_megabytes(site: Callable[..., Server]) -> None:
    server = site(Policy(megabytes=0.003))
    server.begin()
    answers = [server.ask(Turn(1, Request.EXCHANGE, "train")) for _ in range(30)]
    sent = server.host.clients["A"].door.spent["bytes"]
    assert answers[-1] == "policy"
    assert 0 < sum(isinstance(answer, Payload) for answer in answers) * 100 < sent


def test_megabytes_that_a_server_sends_without_being_asked(site: Callable[..., Server]) -> None:
    """They count before they are read, and in the run's next job."""
    much = Turn(1, Request.EXCHANGE, "train", Payload({"further/x": torch.zeros(10_000)}).to_bytes())
    for codes in (["", "policy"], ["policy", "policy"]):
        server = site(Policy(megabytes=0.07))
        answers = [server.ask(much) for _ in codes]
        assert [answer if isinstance(answer, str) else "" for answer in answers] == codes
        server.host._ledger.close()


# ------------------------------------------------------------------------------------------------- parts of policies
@pytest.mark.parametrize(
    ("policy", "aggregator", "sentence"),
    [
        (Policy(), FedGCN(), "`aggregator` to be among the algorithms that the policy allows (those of flgraph that"),
        (Policy(), FedSagePlus(), "`aggregator` to be among the algorithms"),
        (Policy(), SchemaFedAvg(), "`aggregator` to be among the algorithms"),
        (Policy(algorithms=["Local", "GCFL*"]), FedAvg(), "allows (Local, GCFL*) but got FedAvg."),
        (Policy(algorithms=["fedavg"]), FedAvg(), "allows (fedavg) but got FedAvg."),
        (Policy(algorithms=["Fed*"]), FedAvg(), ""),
        (Policy(algorithms=["FedGCN"]), FedGCN(), ""),
        (Policy(tensors=["last.*"]), FedAvg(), "`first.weight` to be of tensors that the policy lets out (last.*)"),
        (Policy(tensors=[]), FedAvg(), "`first.weight` to be of tensors that the policy lets out ()"),
        (Policy(tensors=["first.*", "last.*"]), FedAvg(), ""),
        (Policy(exchanges=["meta"]), FedAvg(), "`exchange` to be among those of the policy, meta, but got train."),
        (Policy(num_samples=None), FedAvg(), "without `num_samples` (such as `weighting: uniform`), which the policy"),
        (Policy(num_samples=None), FedAvg(weighting="uniform"), ""),
        (Policy(num_samples=None), DFedGNN(), ""),
        (Policy(min_samples=7), FedAvg(), "`data` to be of 7 training samples or more but got 6."),
        (Policy(rounds=2), FedAvg(), "`trainer.rounds` to be 2 or fewer"),
    ],
)
def test_who_takes_part(policy: Policy, aggregator: Any, sentence: str) -> None:
    tensors = {"first.weight": torch.ones(2), "last.weight": torch.ones(2)}
    table = RoutingTable(FedAvg().routes(), tensors, extra=aggregator.extra_tensors, scalars=aggregator.upload_scalars)

    def door() -> None:
        ClientDoor(table, aggregator, policy, rounds=3, local_epochs=1, num_samples=6)

    if not sentence:
        door()
        return
    with pytest.raises(PolicyError) as caught:
        door()
    assert sentence in str(caught.value)


def test_algorithms_of_others_are_refused_unless_named(site: Callable[..., Server]) -> None:
    class Own(FedAvg):
        """Says of itself that it reveals nothing, as anybody could."""

    with pytest.raises(PolicyError, match="`aggregator` to be among the algorithms that the policy allows"):
        site(Policy(), Own())
    assert site(Policy(algorithms=["Own"]), Own()).begin()


@pytest.mark.parametrize(
    ("step", "weighting", "told"),
    [(None, "uniform", None), (1, "uniform", None), (1, "samples", 6), (10, "samples", 10), (4, "samples", 8)],
)
def test_numbers_of_samples(site: Callable[..., Server], step: int | None, weighting: Any, told: int | None) -> None:
    """Rounded or withheld everywhere, the description of the data at the opening included."""
    server = site(Policy(num_samples=step), FedAvg(weighting=weighting))
    about = server.host.clients["A"].disclosed(KEY)
    assert about["data"].get("num_train_samples") == (6 if told == 6 else None)
    described = server.ask(Turn(0, Request.DESCRIBE))
    assert isinstance(described, Payload)
    assert described.scalars.get("num_samples") == told
    server.ask(agreement("first.weight", "first.bias", "last.weight", "last.bias"))
    upload = server.ask(Turn(1, Request.EXCHANGE, "train"))
    assert isinstance(upload, Payload)
    assert upload.scalars.get("num_samples") == told


@pytest.mark.parametrize("accepts", [False, True])
def test_states_of_others(site: Callable[..., Server], accepts: bool) -> None:
    server = site(Policy(accept_states=accepts))
    server.begin()
    before = server.weights()
    state = state_of(server.host.clients["B"])
    answer = server.send(Message({"do": "load", "labels": {}}, {"A": state}))
    assert answer == (Message() if accepts else Message({"error": "refused"}))
    _assert_equal(server.weights(), server.weights("B") if accepts else before)


def test_the_policy_of_a_job_loosens_nothing(tmp_path: Path) -> None:
    data = {"class_path": "flgraph.data.SyntheticFederation", "init_args": {"domains": ["trees"], "num_graphs": 9}}
    loose = {"algorithms": ["*"], "num_samples": 1, "rounds": 10**9, "metrics": {"*": None}, "accept_states": True}
    trainer = {"aggregator": {"class_path": "flgraph.callbacks.FedAvg"}, "rounds": 3, "policy": loose}
    job = {"model": {"class_path": "flgraph.models.GNN"}, "trainer": trainer}
    policy = Policy(num_samples=10)
    settings = SiteSettings(data=data, folder=str(tmp_path))
    clients = clients_of(yaml.safe_dump(job), settings, policy)
    assert all(client.door.policy is policy for client in clients.values())
    with pytest.raises(PolicyError, match=r"`trainer\.rounds` to be 2 or fewer"):
        clients_of(yaml.safe_dump(job), settings, Policy(rounds=2))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        *(({name: value}, name) for name in ("min_samples", "rounds", "local_epochs") for value in (None, 0, 1.5)),
        *(({name: value}, name) for name in ("num_samples", "turns", "evaluations") for value in (0, -1, "3", True)),
        *(({"megabytes": value}, "megabytes") for value in (0, -1, math.nan, math.inf, "all", None, True)),
        *(({name: value}, name) for name in ("algorithms", "tensors", "exchanges") for value in ("FedAvg", None, [3])),
        *(({"metrics": value}, "metrics") for value in (None, ["val/*"], "val/*")),
        *(({"metrics": {"val/*": value}}, r"metrics\.val/\*") for value in (-1, 18, 0.5, True, "4")),
        ({"metrics": {3: 4}}, r"metrics\.3"),
        *(({"accept_states": value}, "accept_states") for value in (None, 1, "yes")),
        *(({name: value}, name) for name in ("min_noise", "max_epsilon") for value in (0, -1, math.inf, "8", True)),
        *(({"delta": value}, "delta") for value in (0, 1, 1.5, None, "small")),
        ({"acept_states": True}, "acept_states"),
        ({3: True}, "3"),
    ],
)
def test_bad_policies(given: dict[Any, Any], field: str) -> None:
    with pytest.raises(InputError, match=rf"^Expected `policy\.{field}` to be [^\n]* but got [^\n]*\.$"):
        Policy.of(given)


@pytest.mark.parametrize("given", [3, "strict", ["FedAvg"]])
def test_policies_that_are_none(given: Any) -> None:
    with pytest.raises(InputError, match=r"^Expected `policy` to be a mapping but got "):
        Policy.of(given)


def test_no_policy_is_the_default_one() -> None:
    assert Policy.of(None) == Policy.of({}) == Policy()


def _assert_equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


# ------------------------------------------------------------------------------------------------------ flgraph fit
@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """``flgraph fit`` with a policy in its YAML."""
    data = {"class_path": "flgraph.data.SyntheticFederation", "init_args": {"num_graphs": 12, "domains": ["trees"]}}
    trainer = {
        "aggregator": {"class_path": "flgraph.callbacks.FedAvg"},
        "rounds": 2,
        "policy": {"metrics": {"val/*": 2}, "algorithms": ["FedAvg"]},
        "logger": False,
        "enable_progress_bar": False,
        "accelerator": "cpu",
        "default_root_dir": str(tmp_path / "runs"),
        "name": "run",
    }
    model = {"class_path": "flgraph.models.GNN", "init_args": {"hidden_channels": 4}}
    (tmp_path / "fit.yaml").write_text(yaml.safe_dump({"model": model, "data": data, "trainer": trainer}))
    return ["fit", "-c", str(tmp_path / "fit.yaml")]


def test_a_policy_in_one_process(command: list[str], tmp_path: Path) -> None:
    main([*command, "--trainer.policy.num_samples", "10"])
    results = json.loads((tmp_path / "runs" / "run" / "version_0" / "results.json").read_text())
    (metrics,) = results["final"]["clients"].values()
    assert metrics
    assert all(name.startswith("val/") and round(value, 2) == value for name, value in metrics.items())


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--trainer.policy.rounds", "1"], "Expected `trainer.rounds` to be 1 or fewer, as the policy says, but got 2"),
        (["--trainer.policy.rounds", "0"], "Expected `policy.rounds` to be a whole number of 1 or more but got 0."),
        (["--trainer.policy.algorithms", "[Local]"], "among the algorithms that the policy allows (Local)"),
    ],
)
def test_a_policy_refuses_in_one_sentence(
    command: list[str], args: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, *args])
    assert ended.value.code == 2
    found = capsys.readouterr().err
    assert sentence in found
    assert "Traceback" not in found


def test_a_policy_is_printed(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--trainer.policy.num_samples", "10", "--print_config"])
    printed = yaml.safe_load(capsys.readouterr().out)["trainer"]["policy"]
    assert printed["num_samples"] == 10
    assert printed["metrics"] == {"val/*": 2}
    assert printed["algorithms"] == ["FedAvg"]


def test_a_run_of_one_process_goes_on_where_numbers_of_samples_are_withheld() -> None:
    settings = {"data": {"A": {"num_train_samples": 6, "batch_size": 2}}}
    tells_none = {"data": {"A": {SEALED: "x"}}}
    check_settings(settings, tells_none, {}, Path("checkpoint"))
    check_settings(tells_none, settings, {}, Path("checkpoint"))
    with pytest.raises(InputError, match="num_train_samples"):
        check_settings(settings, {"data": {"A": {SEALED: "x", "num_train_samples": 7}}}, {}, Path("checkpoint"))


def test_jobs_that_share_a_file_know_of_each_other(tmp_path: Path) -> None:
    one, two = (Spending(tmp_path / "privacy.json") for _ in range(2))
    event = Event("client", 5.0, 1.0)
    one.add(event, 3, 1e-5, None)
    two.add(event, 4, 1e-5, None)
    assert Spending(tmp_path / "privacy.json").events == {event: 7}


@pytest.mark.parametrize("row", [["moon", 1.0, 1.0, 1], ["client", 1.0, 1.0, 0], ["client", 1.0, 1.0, -3]])
def test_a_spoiled_file_is_refused(row: list[Any], tmp_path: Path) -> None:
    (tmp_path / "privacy.json").write_text(json.dumps([row]))
    with pytest.raises(InputError, match="what this site wrote"):
        Spending(tmp_path / "privacy.json")


def test_limits_themselves_are_kept() -> None:
    """Exactly as many, or as few, as a policy says are fine."""
    policy = Policy(num_samples=10)
    assert (policy.count(3), policy.count(14), policy.count(15)) == (10, 10, 20)
    assert Policy(min_samples=5).tell({"val/loss": 1.0}, 99) == {}
