"""What one client can do to a run by what it sends: cost itself its place, and nothing else.

The comparison is with a run in which the client sends nothing in the same exchanges, or, where it is left out before
round 1, with a federation that never had it. In both all other clients take part in every round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flgraph.callbacks import SCAFFOLD, EarlyStopping, FedAvg, FedNova, FedPer, Stragglers
from flgraph.errors import InputError
from flgraph.federation import (
    Aggregator,
    ClientError,
    FederatedTrainer,
    Payload,
    Request,
    Sequential,
    Tolerance,
    Turn,
    shared,
)
from flgraph.federation.aggregation import Sums
from flgraph.federation.door import ServerDoor
from flgraph.federation.summing import Group, Summing
from flgraph.runs.history import read_records
from flgraph.runs.ledger_reader import read_ledger

BAD = "C"
Lie = Callable[[Payload, Turn], bytes | None]


class Rogue(Sequential):
    """Clients in this process, one of which sends something else in answer to some requests.

    Args:
        lie: what it sends, or ``None`` for nothing, given its honest answer.
        requests: to which.
        client: which one.
    """

    def __init__(self, lie: Lie, *requests: Request, client: str = BAD) -> None:
        super().__init__()
        self.lie, self.requests, self.client = lie, requests or (Request.EXCHANGE,), client

    def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
        answers = dict(super().run(turns))
        turn, honest = turns.get(self.client), answers.get(self.client)
        if turn is not None and turn.request in self.requests and isinstance(honest, bytes):
            lie = self.lie(Payload.from_bytes(honest) if honest else Payload(), turn)
            answers.pop(self.client)
            if lie is not None:
                answers[self.client] = lie
        return answers


@pytest.fixture
def fit(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any
) -> Callable[..., FederatedTrainer]:
    """Runs a federation of clients A to D on an engine."""

    def run(engine: Sequential, *, without: str = "", **kwargs: Any) -> FederatedTrainer:
        data = toy_federation(6, 8, 9, 7)
        data.given.pop(without, None)
        resume = {"ckpt_path": kwargs.pop("ckpt_path")} if "ckpt_path" in kwargs else {}
        own = {"aggregator": FedAvg(), "rounds": 2, "tolerance": Tolerance(on_bad_upload="drop"), **kwargs}
        trainer = federate(own.pop("aggregator"), engine=engine, **own)
        trainer.fit(toy_module(dropout=0.5, norm=True), data, **resume)
        return trainer

    return run


def weights(trainer: FederatedTrainer, bad: str = BAD) -> dict[str, dict[str, Tensor]]:
    """Of the honest clients."""
    clients = trainer.engine.clients
    return {name: client.module.state_dict() for name, client in clients.items() if name != bad}


def changed(change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> Lie:
    """A lie that changes the honest answer's tensors or scalars."""

    def lie(honest: Payload, turn: Turn) -> bytes:
        tensors, scalars = {name: tensor.clone() for name, tensor in honest.tensors.items()}, dict(honest.scalars)
        change(tensors, scalars)
        return Payload(tensors, scalars).to_bytes()

    return lie


def filled(value: float, name: str = "first.weight") -> Lie:
    """One number of a tensor."""
    return changed(lambda tensors, scalars: tensors[name].view(-1)[:1].fill_(value))


def scaled(factor: float) -> Lie:
    return changed(
        lambda tensors, scalars: tensors.update({n: t * factor for n, t in tensors.items() if t.is_floating_point()})
    )


def samples(value: Any) -> Lie:
    return changed(lambda tensors, scalars: scalars.update(num_samples=value))


def with_head(text: str) -> Lie:
    """Bytes of another header, with no tensors."""
    return lambda honest, turn: len(text.encode()).to_bytes(8, "little") + text.encode()


def scalars_in_json(text: str) -> Lie:
    return with_head(json.dumps({"__metadata__": {"scalars": text}}))


UPLOADS: dict[str, Lie] = {
    "nan": filled(math.nan),
    "inf": filled(math.inf),
    "-inf": filled(-math.inf),
    "1e38": filled(1e38),
    "-1e38": filled(-1e38),
    "a million times": scaled(1e6),
    "an integer buffer beyond all": filled(2**62, "norm.num_batches_tracked"),
    "negative integers": filled(-(2**62), "norm.num_batches_tracked"),
    "samples nan": samples(math.nan),
    "samples inf": samples(math.inf),
    "samples negative": samples(-9),
    "samples 1e18": samples(10**18),
    "samples as float": samples(9.0),
    "samples true": samples(True),
    "samples of 38 digits": samples(10**37),
    "samples of 400 digits": scalars_in_json('{"num_samples": 1' + "0" * 400 + "}"),
    "samples of 5000 digits": scalars_in_json('{"num_samples": 1' + "0" * 5000 + "}"),
    "samples as text": samples("nine"),
    "samples missing": changed(lambda tensors, scalars: scalars.pop("num_samples")),
    "samples other than before": samples(10),
    "undeclared tensor": changed(lambda tensors, scalars: tensors.update(secret=torch.ones(3))),
    "undeclared group": changed(lambda tensors, scalars: tensors.update({"control/first.weight": torch.ones(3)})),
    "undeclared scalar": changed(lambda tensors, scalars: scalars.update(weight=3.0)),
    "other shape": changed(lambda tensors, scalars: tensors.update({"first.weight": tensors["first.weight"].T})),
    "flat": changed(lambda tensors, scalars: tensors.update({"first.weight": tensors["first.weight"].flatten()})),
    "one row more": changed(lambda tensors, scalars: tensors.update({"first.bias": torch.zeros(4)})),
    "integers": changed(lambda tensors, scalars: tensors.update({"first.weight": tensors["first.weight"].int()})),
    "floats": changed(lambda tensors, scalars: tensors.update({"norm.num_batches_tracked": torch.tensor(1.0)})),
    "complex": changed(lambda tensors, scalars: tensors.update({"first.weight": tensors["first.weight"] + 0j})),
    "a tensor missing": changed(lambda tensors, scalars: tensors.pop("first.weight")),
    "truncated": lambda honest, turn: honest.to_bytes()[:-7],
    "eight bytes": lambda honest, turn: honest.to_bytes()[:8],
    "empty": lambda honest, turn: b"",
    "an empty payload": lambda honest, turn: Payload().to_bytes(),
    "no payload": lambda honest, turn: b"\xff" * 1000,
    "what an evaluation answers": lambda honest, turn: Payload(scalars={"val/loss": 0.1}).to_bytes(),
    "nested head": with_head("[" * 100_000),
    "scalars that nest": scalars_in_json('{"num_samples": ' + "[" * 100_000),
}


@pytest.fixture(scope="module")
def made_once() -> Callable[..., Any]:
    """Gives what a function makes, and the same again for the next test that has the same name for it."""
    made: dict[str, Any] = {}

    def get(name: str, make: Callable[[], Any]) -> Any:
        if name not in made:
            made[name] = make()
        return made[name]

    return get


@pytest.mark.parametrize("lie", UPLOADS.values(), ids=UPLOADS.keys())
def test_a_bad_upload_costs_its_sender_the_round(
    fit: Callable[..., Any], lie: Lie, made_once: Callable[..., Any], assert_same: Callable[..., None]
) -> None:
    trainer = fit(Rogue(lie), name="attacked")
    silent = made_once("silent", lambda: weights(fit(Rogue(lambda honest, turn: None), name="silent")))
    assert_same(weights(trainer), silent)
    assert all(bool(t.isfinite().all()) for own in weights(trainer).values() for t in own.values())
    records = read_records(trainer.run_dir / "history.jsonl")
    assert [record["clients"] for record in records] == [["A", "B", "D"]] * 2
    assert [list(record["dropped"]) for record in records] == [[BAD]] * 2
    assert all(len(record["dropped"][BAD]) < 500 and record["dropped"][BAD].isprintable() for record in records)
    results = json.loads((trainer.run_dir / "results.json").read_text())
    assert results["dropped"] == {BAD: {"times": 2, "excluded": False}}
    verdicts = [
        line.verdict
        for line in read_ledger(trainer.run_dir / "ledger.jsonl")
        if line.client == BAD and line.request == "exchange" and line.direction == "up"
    ]
    if lie is not UPLOADS["empty"]:  # nothing came, so that there is nothing to note
        assert len(verdicts) == 2
        assert all(verdict.startswith("dropped: Expected `") for verdict in verdicts)


def test_float64_is_no_attack(
    fit: Callable[..., Any], made_once: Callable[..., Any], assert_same: Callable[..., None]
) -> None:
    """Owners have precisions of their own."""
    wide = changed(
        lambda tensors, scalars: tensors.update({n: t.double() for n, t in tensors.items() if t.is_floating_point()})
    )
    attacked = fit(Rogue(wide), name="attacked")
    assert_same(weights(attacked), made_once("honest", lambda: weights(fit(Sequential(), name="honest"))))
    assert attacked.server.dropped == {}


def test_strikes(fit: Callable[..., Any], assert_same: Callable[..., None]) -> None:
    """After three, the client is asked nothing more; that it answered well in between does not take one away."""
    asked: list[int] = []

    def lie(honest: Payload, turn: Turn) -> bytes:
        asked.append(turn.round)
        return honest.to_bytes() if turn.round == 2 else b"x"

    trainer = fit(Rogue(lie), rounds=6, name="attacked")
    assert asked == [1, 2, 3, 4]
    assert trainer.server.dropped == {BAD: {"times": 3, "excluded": True}}
    assert BAD not in trainer.history.last["clients"]
    records = read_records(trainer.run_dir / "history.jsonl")
    assert [BAD in record["clients"] for record in records] == [False, True, False, False, False, False]
    silent = fit(Rogue(lambda honest, turn: honest.to_bytes() if turn.round == 2 else None), rounds=6, name="silent")
    assert_same(weights(trainer), weights(silent))


def test_strikes_survive_a_stop(fit: Callable[..., Any], assert_same: Callable[..., None]) -> None:
    whole = fit(Rogue(filled(math.nan)), rounds=5, name="whole")
    fit(Rogue(filled(math.nan)), rounds=2, name="cut")
    asked: list[int] = []

    def lie(honest: Payload, turn: Turn) -> bytes:
        asked.append(turn.round)
        return filled(math.nan)(honest, turn)

    resumed = fit(Rogue(lie), rounds=4, name="cut", ckpt_path="last")
    assert asked == [3]
    resumed = fit(Rogue(lie), rounds=5, name="cut", ckpt_path="last")
    assert asked == [3]
    assert resumed.server.dropped == whole.server.dropped == {BAD: {"times": 3, "excluded": True}}
    assert_same(weights(resumed), weights(whole))


# --------------------------------------------------------------------------------------------------- before round 1
def described(change: Callable[[dict[str, str]], Any]) -> Lie:
    """A lie about names and forms."""

    def lie(honest: Payload, turn: Turn) -> bytes:
        forms = json.loads(str(honest.scalars["shared"]))
        found = change(forms)
        return Payload(scalars={**honest.scalars, "shared": json.dumps(forms if found is None else found)}).to_bytes()

    return lie


def told(**scalars: Any) -> Lie:
    return lambda honest, turn: Payload(scalars={**honest.scalars, **scalars}).to_bytes()


DESCRIPTIONS: dict[str, Lie] = {
    "empty": lambda honest, turn: b"",
    "no payload": lambda honest, turn: b"{}" * 50,
    "bad json": told(shared='{"first.weight": '),
    "nested json": told(shared="[" * 100_000),
    "a list": described(lambda forms: list(forms)),
    "a number": told(shared=3),
    "a million names": lambda honest, turn: told(
        shared=json.dumps({str(number): "1 float32" for number in range(1_000_000)})
    )(honest, turn),
    "many names": described(lambda forms: forms.update({f"x{number}": "1 float32" for number in range(1000)})),
    "forms that are none": described(lambda forms: forms.update({"first.weight": "large"})),
    "forms that are numbers": described(lambda forms: forms.update({"first.weight": 12})),
    "other shape": described(lambda forms: forms.update({"first.weight": "4x3 float32"})),
    "other dtype": described(lambda forms: forms.update({"first.weight": "3x4 int64"})),
    "a tensor missing": described(lambda forms: forms.pop("first.weight") and None),
    "none at all": described(lambda forms: forms.clear()),
    "a name that no route has": described(lambda forms: forms.update({"secret": "3 float32"})),
    "a personal name": described(lambda forms: forms.update({"last.weight": "2x3 float32"})),
    "steers a terminal": described(lambda forms: forms.update({"first.\x1b[2J": "3 float32"})),
    "further scalar": told(more="x"),
    "tensors": lambda honest, turn: Payload({"first.weight": torch.ones(3, 4)}, honest.scalars).to_bytes(),
    **{f"samples {value!r:.10}": told(num_samples=value) for value in (math.nan, -1, 2**60, "9", True, 9.0)},
    "samples missing": lambda honest, turn: Payload(
        scalars={key: value for key, value in honest.scalars.items() if key != "num_samples"}
    ).to_bytes(),
}


@pytest.mark.parametrize("lie", DESCRIPTIONS.values(), ids=DESCRIPTIONS.keys())
def test_a_bad_description_leaves_its_sender_out(
    fit: Callable[..., Any], lie: Lie, made_once: Callable[..., Any], assert_same: Callable[..., None]
) -> None:
    def algorithm() -> FedPer:
        return FedPer(base=["first.*", "norm.*"])

    def without() -> Any:
        return weights(fit(Sequential(), aggregator=algorithm(), without=BAD, name="without"))

    trainer = fit(Rogue(lie, Request.DESCRIBE), aggregator=algorithm(), name="attacked")
    assert_same(weights(trainer), made_once("without", without))
    assert trainer.server.dropped == {BAD: {"times": 1, "excluded": True}}
    results = json.loads((trainer.run_dir / "results.json").read_text())
    assert results["dropped"] == {BAD: {"times": 1, "excluded": True}}
    assert list(results["final"]["clients"]) == ["A", "B", "D"]


INITIAL = {key: UPLOADS[key] for key in ("nan", "1e38", "a million times", "an integer buffer beyond all")}
INITIAL |= {key: UPLOADS[key] for key in ("undeclared tensor", "other shape", "integers", "a tensor missing", "empty")}


@pytest.mark.parametrize("lie", INITIAL.values(), ids=INITIAL.keys())
def test_bad_initial_weights_leave_their_sender_out(fit: Callable[..., Any], lie: Lie) -> None:
    """Those of the first client are everybody's, so a run cannot begin without them; another one is left out."""
    trainer = fit(Rogue(lie, Request.AGREE), aggregator=_FedAvgFromMean(), name="attacked")
    assert trainer.server.dropped == {BAD: {"times": 1, "excluded": True}}
    assert all(bool(t.isfinite().all()) for own in weights(trainer).values() for t in own.values())


@pytest.mark.parametrize("lie", INITIAL.values(), ids=INITIAL.keys())
def test_bad_initial_weights_of_the_first_client(
    fit: Callable[..., Any], lie: Lie, made_once: Callable[..., Any], assert_same: Callable[..., None]
) -> None:
    """The next one's are taken in their place."""
    trainer = fit(Rogue(lie, Request.AGREE, client="A"), name="attacked")
    assert trainer.server.dropped == {"A": {"times": 1, "excluded": True}}
    without = made_once("without the first", lambda: weights(fit(Sequential(), without="A", name="without"), "A"))
    assert_same(weights(trainer, "A"), without)


class _FedAvgFromMean(FedAvg):
    initial_weights = "mean"


# ---------------------------------------------------------------------------------------------------------- metrics
def metric(name: str, value: Any) -> Lie:
    return lambda honest, turn: Payload(scalars={**honest.scalars, name: value}).to_bytes()


METRICS: dict[str, Lie] = {
    "text": metric("val/loss", "low"),
    "inf": metric("val/loss", math.inf),
    "1e400": scalars_in_json('{"val/loss": 1e400}'),
    "of 5000 digits": scalars_in_json('{"val/loss": 1' + "0" * 5000 + "}"),
    "100,000 entries": lambda honest, turn: Payload(scalars={f"val/{n}": 0.1 for n in range(100_000)}).to_bytes(),
    "tensors": lambda honest, turn: Payload({"val/loss": torch.ones(3)}, honest.scalars).to_bytes(),
    "no payload": lambda honest, turn: b"0" * 99,
    "steers a terminal": metric("val/\x1b[2J", 0.1),
    "a long name": metric("val/" + "x" * 300, 0.1),
    "no samples": metric("val/samples", -3.0),
    "samples nan": metric("val/samples", math.nan),
}


def _after_round_0(lie: Lie) -> Lie:
    return lambda honest, turn: lie(honest, turn) if turn.round else honest.to_bytes()


@pytest.mark.parametrize("lie", METRICS.values(), ids=METRICS.keys())
def test_bad_metrics(
    fit: Callable[..., Any], lie: Lie, made_once: Callable[..., Any], assert_same: Callable[..., None]
) -> None:
    trainer = fit(Rogue(_after_round_0(lie), Request.EVALUATE), name="attacked")
    assert trainer.server.dropped == {BAD: {"times": 2, "excluded": False}}
    assert list(trainer.history.last["clients"]) == ["A", "B", "D"]
    assert_same(weights(trainer), made_once("honest", lambda: weights(fit(Sequential(), name="honest"))))
    for record in read_records(trainer.run_dir / "history.jsonl"):
        assert list(record["dropped"]) == [BAD]


def test_names_of_metrics_are_no_markup(fit: Callable[..., Any]) -> None:
    """Where nobody else tells a metric of validation, one client's name decides what is printed."""

    def lie(honest: Payload, turn: Turn) -> bytes:
        return Payload(scalars={"val/[/x]": 0.5, "val/samples": 3}).to_bytes()

    trainer = fit(Rogue(_after_round_0(lie), Request.EVALUATE), name="attacked", monitor="val/[/x]")
    assert trainer.history.rounds == 2


@pytest.mark.parametrize("aggregator", [SCAFFOLD(server_lr=0.5), FedAvg()], ids=["SCAFFOLD", "FedAvg"])
def test_one_client_s_precision_is_not_all_others(fit: Callable[..., Any], aggregator: Any) -> None:
    """What is added to float32 at the server, or comes back to clients, stays float32."""
    double = changed(
        lambda tensors, scalars: tensors.update({n: t.double() for n, t in tensors.items() if t.is_floating_point()})
    )
    trainer = fit(Rogue(double), name="attacked", aggregator=aggregator)
    assert trainer.server.dropped == {}
    shared = trainer.server.aggregator.shared.values()
    assert {tensor.dtype for tensor in shared if tensor.is_floating_point()} == {torch.float32}


def test_names_of_metrics_make_no_checkpoint_unreadable(fit: Callable[..., Any]) -> None:
    def lie(honest: Payload, turn: Turn) -> bytes:
        return Payload(scalars={**honest.scalars, "$tensor": 1.0, "$tuple": 2.0}).to_bytes()

    rogue = Rogue(_after_round_0(lie), Request.EVALUATE)
    fit(rogue, name="cut", rounds=2)
    resumed = fit(rogue, name="cut", rounds=3, ckpt_path="last")
    assert resumed.history.rounds == 3
    assert resumed.history.last["clients"][BAD]["$tensor"] == 1.0


@pytest.mark.parametrize("value", [1e308, -1e308, math.nan])
def test_extreme_metrics_break_no_mean(fit: Callable[..., Any], value: float) -> None:
    """They are numbers; what a client says of itself cannot be checked."""

    def lie(honest: Payload, turn: Turn) -> bytes:
        return Payload(scalars={**honest.scalars, "val/loss": value, "val/accuracy": value}).to_bytes()

    stop = EarlyStopping("val/loss", "min", average="clients")
    trainer = fit(Rogue(_after_round_0(lie), Request.EVALUATE), name="attacked", callbacks=[stop])
    assert trainer.history.rounds == 2
    json.loads((trainer.run_dir / "results.json").read_text())


# ------------------------------------------------------------------------------------------------ how many must stay
def test_min_clients(fit: Callable[..., Any]) -> None:
    tolerance = Tolerance(min_clients=4, on_bad_upload="drop")
    with pytest.raises(ClientError, match=r"Only 3 of at least 4 clients answered in time; missing: C \(Expected"):
        fit(Rogue(filled(math.nan)), tolerance=tolerance)


def test_who_is_left_out_counts_among_those_that_must_answer(fit: Callable[..., Any]) -> None:
    """A mean over fewer clients than agreed on is never made, however many have been left out before."""
    tolerance = Tolerance(min_clients=4, on_bad_upload="drop")
    with pytest.raises(ClientError, match=r"Only 3 of at least 4 clients"):
        fit(Rogue(lambda honest, turn: b"", Request.DESCRIBE), tolerance=tolerance)


class AllBad(Sequential):
    """Of all clients but those named here uploads cannot be read."""

    def __init__(self, *good: str) -> None:
        super().__init__()
        self.good = good

    def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
        exchange = {name for name, turn in turns.items() if turn.request == Request.EXCHANGE}
        return {n: b"" if n in exchange - set(self.good) else a for n, a in super().run(turns).items()}


def test_a_run_ends_when_all_are_left_out(fit: Callable[..., Any]) -> None:
    tolerance = Tolerance(on_bad_upload="drop", strikes=1)
    with pytest.raises(ClientError, match=r"Only 0 of at least 1 clients answered"):
        fit(AllBad(), tolerance=tolerance, client_fraction=0.25, rounds=30)


@pytest.mark.parametrize("algorithm", [FedAvg, SCAFFOLD, FedNova])
def test_a_client_that_is_drawn_alone_ends_no_run(fit: Callable[..., Any], algorithm: Any) -> None:
    """Its rounds change nothing, until it is left out; the others' go on."""
    settings: dict[str, Any] = {"client_fraction": 0.25, "rounds": 12, "evaluate_every": 1, "aggregator": algorithm()}
    trainer = fit(Rogue(lambda honest, turn: b""), name="attacked", **settings)
    assert trainer.server.dropped == {BAD: {"times": 3, "excluded": True}}
    records = read_records(trainer.run_dir / "history.jsonl")
    bad = [record["round"] for record in records if BAD in record["dropped"]]
    drawn = [sorted(trainer.server._drawn(number)) for number in range(1, 13)]
    assert [number for number, names in enumerate(drawn, start=1) if names == [BAD]][:3] == bad
    assert [record["clients"] for record in records] == [[] if names == [BAD] else names for names in drawn]


def test_a_round_that_was_lost_leaves_the_mean(fit: Callable[..., Any]) -> None:
    """With fewer good answers than a mean is to be of, none is made, and the run goes on while there are enough."""
    tolerance = Tolerance(min_clients=2, on_bad_upload="drop")
    settings: dict[str, Any] = {"client_fraction": 0.5, "rounds": 12, "tolerance": tolerance, "aggregator": FedAvg()}
    trainer = fit(AllBad("A", "B"), name="attacked", **settings)
    assert {name for name, own in trainer.server.dropped.items() if own["excluded"]} == {"C", "D"}
    records = read_records(trainer.run_dir / "history.jsonl")
    assert {tuple(record["clients"]) for record in records} == {(), ("A", "B")}
    made = [bool(record["clients"]) for record in records].index(True)
    assert [record["metrics"]["A"]["val/loss"] for record in records[:made]] == [
        records[0]["metrics"]["A"]["val/loss"]
    ] * made
    assert records[made]["metrics"]["A"]["val/loss"] != records[0]["metrics"]["A"]["val/loss"]
    with pytest.raises(ClientError, match=r"Only [01] of at least 2 clients"):
        fit(AllBad("A"), name="ended", **settings)


def test_the_end_in_one_sentence(fit: Callable[..., Any]) -> None:
    for tolerance in (Tolerance(on_bad_upload="end"), None):
        with pytest.raises(
            InputError,
            match=r"^Expected `upload` of client `C` to be finite and up to 1e\+18 in .* in round 1 \(train\)\.$",
        ):
            fit(Rogue(filled(math.nan)), tolerance=tolerance)


def test_a_client_that_fails_at_a_snapshot_is_left_out(fit: Callable[..., Any]) -> None:
    """Early stopping has clients keep copies of their models; one that cannot must not end the run."""

    class Failing(Sequential):
        def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes | Exception]:
            answers = dict(super().run(turns))
            return {
                name: ClientError("no") if name == BAD and turns[name].request == Request.SNAPSHOT else answer
                for name, answer in answers.items()
            }

    stop = EarlyStopping("val/loss", "min", average="clients")
    trainer = fit(Failing(), callbacks=[stop], rounds=3)
    assert trainer.server.dropped == {BAD: {"times": 1, "excluded": True}}
    assert trainer.history.rounds == 3


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"min_clients": 0}, "min_clients"),
        ({"min_clients": True}, "min_clients"),
        ({"min_clients": 1.5}, "min_clients"),
        ({"strikes": 0}, "strikes"),
        ({"strikes": "3"}, "strikes"),
        ({"on_bad_upload": "maybe"}, "on_bad_upload"),
        ({"on_bad_upload": []}, "on_bad_upload"),
    ],
)
def test_bad_tolerance(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=rf"^Expected `trainer\.tolerance\.{field}` to be .* but got .*\.$"):
        replace(Tolerance(), **fields)


def test_who_was_left_out_before_round_1_stays_out(fit: Callable[..., Any], assert_same: Callable[..., None]) -> None:
    """The order of the clients, on which it depends who is drawn for a round, is as it was."""
    some = {"client_fraction": 0.5, "name": "cut"}
    whole = fit(Rogue(lambda honest, turn: b"", Request.DESCRIBE), rounds=5, **{**some, "name": "whole"})
    fit(Rogue(lambda honest, turn: b"", Request.DESCRIBE), rounds=2, **some)
    resumed = fit(Sequential(), rounds=5, ckpt_path="last", **some)
    assert_same(weights(resumed), weights(whole))
    drawn = [record["clients"] for record in read_records(resumed.run_dir / "history.jsonl")]
    assert drawn == [record["clients"] for record in read_records(whole.run_dir / "history.jsonl")]
    assert resumed.server.dropped == {BAD: {"times": 1, "excluded": True}}


def test_who_was_left_out_ends_no_round_that_all_others_sit_out(fit: Callable[..., Any]) -> None:
    def gone(honest: Payload, turn: Turn) -> bytes:
        return b""

    away = Stragglers(away={name: [[2, 2]] for name in "ABCD" if name != BAD})
    tolerance = Tolerance(on_bad_upload="drop", strikes=1)
    trainer = fit(Rogue(gone), name="attacked", rounds=3, tolerance=tolerance, callbacks=[away])
    records = read_records(trainer.run_dir / "history.jsonl")
    assert [len(record["clients"]) for record in records] == [3, 0, 3]


def test_a_sum_of_no_weight_has_no_numbers() -> None:
    """Of clients that tell of no samples nothing may be in a mean, as an algorithm of somebody else may weigh them."""

    class Weighted(Aggregator):
        def routes(self) -> Any:
            return shared("*")

        def client_weight(self, upload: Payload) -> float:
            return float(upload.scalars["num_samples"])

    aggregator: Any = Weighted()
    aggregator.owners = {"A": ["w"], "B": ["w"]}
    door = ServerDoor(aggregator)
    for client in "AB":
        door.describe(client, Payload(scalars={"shared": json.dumps({"w": "2 float32"}), "num_samples": 0}).to_bytes())
    summing = Summing(aggregator)
    for client in "AB":
        summing.add(client, Payload({"w": torch.ones(2)}, {"num_samples": 0}), ["w"])
    (group,) = summing.groups.values()
    door.check_group(group, 1, "train")
    sums = Sums()
    sums.add({"w": torch.tensor([1e6, -1e6])}, 1.0)
    parts = sums.to_payload()
    limbs = {name: torch.cat([limb[:-1], limb.new_zeros(1)]) for name, limb in parts.tensors.items()}
    lie = Group(group.clients, Sums.from_payload(Payload(limbs, parts.scalars)))
    assert lie.sums.weights == {0.0}
    with pytest.raises(InputError, match="`sum` to be of nothing, as its weights are 0, but got numbers"):
        door.check_group(lie, 1, "train")


def test_numbers_far_from_the_others() -> None:
    """A million steps made FedNova go thousands of times as far as its clients did."""
    sent = {"A": 3.0, "B": 4.0, "C": 1e6, "D": 10**400}
    uploads = {client: Payload(scalars={"num_samples": 10, "steps": steps}) for client, steps in sent.items()}
    refused = ServerDoor(FedNova()).compare(uploads)
    assert refused.keys() == {"D"}
    assert ServerDoor(FedNova()).compare({name: uploads[name] for name in "ABC"}).keys() == {"C"}
    assert str(refused["D"]).startswith("Expected `upload` of client `D` to be of values up to")
