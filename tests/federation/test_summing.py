"""Uploads that are added up as they come: the same bits as of those that are held, whoever is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from flgraph.callbacks import FedAvg, FedOpt
from flgraph.errors import EngineError, InputError
from flgraph.federation import (
    Clip,
    FederatedTrainer,
    GaussianNoise,
    Payload,
    Sequential,
    Sums,
    Tolerance,
    Turn,
    weighted_mean,
)
from flgraph.federation.door import ServerDoor
from flgraph.federation.engines.host import SUMS, Message, run_request
from flgraph.federation.engines.remote import summed
from flgraph.federation.summing import Group, Summing, forms_of
from flgraph.runs.history import read_records
from flgraph.runs.ledger_reader import read_ledger

BAD = "C"


class Shares(Sequential):
    """Clients in this process that answer as those of several processes do."""

    def __init__(self, shares: int) -> None:
        super().__init__()
        self.batch, self.shares, self.whole = None, shares, 0

    def run_summed(self, turns: Mapping[str, Turn], counts: Mapping[str, int]) -> Any:
        answers: dict[str, Any] = {}
        groups = []
        for share in range(self.shares):
            own = {name: turn for number, (name, turn) in enumerate(turns.items()) if number % self.shares == share}
            answer = self.host.answer(run_request(own, keep_going=True, counts=counts))
            for number, told in enumerate(answer.header.get("groups", ())):
                groups.append(Group.of(told, answer.pieces.pop(f"{SUMS}/{number}"), f"process {share}"))
            answers |= answer.pieces
        self.whole += len(answers)
        return answers, groups


class Odd(FedAvg):
    """One client sends something else than the others."""

    def __init__(self, what: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.what = what

    def upload(self, client: Any, round: int, exchange: str) -> Payload | None:
        upload = super().upload(client, round, exchange)
        assert upload is not None
        if client.name != BAD or round != 2 or not self.what:
            return upload
        tensors, scalars = dict(upload.tensors), dict(upload.scalars)
        name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
        if self.what == "lacks":
            del tensors[name]
        elif self.what == "count":
            scalars["num_samples"] = 1
        else:
            tensors[name] = tensors[name] + float(self.what)
        return Payload(tensors, scalars)


class Whole(Odd):
    """The same, with all uploads at hand."""

    def aggregate(self, uploads: Any, round: int, exchange: str) -> Any:
        return super().aggregate(uploads, round, exchange)


@pytest.fixture
def fit(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any
) -> Callable[..., FederatedTrainer]:
    def run(engine: Sequential, aggregator: FedAvg, **kwargs: Any) -> FederatedTrainer:
        tolerance = Tolerance(on_bad_upload="drop")
        trainer = federate(aggregator, engine=engine, rounds=3, tolerance=tolerance, name="run", **kwargs)
        trainer.fit(toy_module(dropout=0.5, norm=True), toy_federation(6, 8, 9, 7, 5))
        return trainer

    return run


@pytest.mark.parametrize(
    ("what", "refused"),
    [("", 0), ("lacks", 1), ("count", 1), ("nan", 1), ("1e6", 1), ("2000", 1), ("5", 0)],
)
def test_the_same_bits_whoever_is_refused(
    what: str, refused: int, fit: Callable[..., Any], assert_same: Callable[..., None]
) -> None:
    """By the server, by a process, by what they lack, or by how far they are from the others'."""
    held = fit(Sequential(), Whole(what))
    lines = [line for line in read_ledger(held.run_dir / "ledger.jsonl") if line.direction == "up"]
    for engine in (Sequential(), Shares(2), Shares(5)):
        trainer = fit(engine, Odd(what))
        assert trainer.server.dropped == held.server.dropped
        assert list(trainer.server.dropped) == [BAD] * refused
        assert_same(trainer.server.aggregator.shared, held.server.aggregator.shared)
        own = read_ledger(trainer.run_dir / "ledger.jsonl")
        shown = [(line.client, line.request, line.sha256, line.bytes, line.verdict) for line in lines]
        told = [line for line in own if line.direction == "up"]
        assert [(line.client, line.request, line.sha256, line.bytes, line.verdict) for line in told] == shown
        sums = [line for line in own if line.event == "sum"]
        if isinstance(engine, Shares):
            assert 3 * engine.shares - 1 <= len(sums) <= 3 * engine.shares + 1  # a group more, or a share with none
            assert engine.whole == (refused and what != "lacks")
        else:
            assert not sums
        bytes_up = [record["bytes_up"] for record in read_records(trainer.run_dir / "history.jsonl")]
        assert bytes_up == [record["bytes_up"] for record in read_records(held.run_dir / "history.jsonl")]


@pytest.mark.parametrize("transforms", [[Clip(0.5)], [GaussianNoise(0.5, 0.1, at="server")]])
def test_with_transforms(transforms: list[Any], fit: Callable[..., Any], assert_same: Callable[..., None]) -> None:
    """Processes do not know what uploads are relative to, and noise at the server needs their number."""
    shares = Shares(2)
    runs = [fit(engine, FedAvg("uniform"), transforms=transforms) for engine in (shares, Sequential())]
    assert_same(*(run.server.aggregator.shared for run in runs))
    assert shares.whole == 0


def test_a_step_of_the_server(fit: Callable[..., Any], assert_same: Callable[..., None]) -> None:
    runs = [fit(engine, FedOpt(server_lr=0.1)).server.aggregator for engine in (Sequential(), Shares(3))]
    assert_same(runs[0].shared, runs[1].shared)
    assert_same(runs[0]._variance, runs[1]._variance)


def test_few_answers_are_held_at_a_time(fit: Callable[..., Any], assert_same: Callable[..., None]) -> None:
    class Counting(Sequential):
        batch, most = 2, 0

        def run(self, turns: Mapping[str, Turn]) -> Any:
            self.most = max(self.most, len(turns))
            return super().run(turns)

    engine = Counting()
    trainer = fit(engine, FedAvg())
    assert engine.most == 2
    assert_same(trainer.server.aggregator.shared, fit(Sequential(), FedAvg()).server.aggregator.shared)


def uploads() -> dict[str, Payload]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: Payload({"w": torch.randn(2, 3, generator=generator), "n": torch.tensor(4)}, {"num_samples": number})
        for number, name in enumerate("ABCD", start=1)
    }


def test_what_may_strike_is_held_and_the_rest_forgotten() -> None:
    summing = Summing(FedAvg())
    for name, upload in uploads().items():
        summing.add(
            name,
            upload if name != "D" else Payload({**upload.tensors, "w": torch.full((2, 3), 1001.0)}, upload.scalars),
            ["w", "n"],
        )
    assert list(summing.held) == ["D"]
    (group,) = summing.groups.values()
    assert list(group.clients) == ["A", "B", "C"]
    seen = group.clients["B"]
    assert seen.forms == {"w": "2x3 float32", "n": "scalar int64"}
    blank = seen.blank()
    assert blank.tensors["w"].is_meta
    assert blank.tensors["w"].shape == (2, 3)


def test_a_sum_of_which_a_part_is_not_to_be_used_ends_the_run() -> None:
    summing = Summing(FedAvg())
    for name, upload in uploads().items():
        summing.add(name, upload, ["w", "n"])
    with pytest.raises(EngineError, match=r"The uploads of `C` cannot be used, and were added up with others\."):
        summing.total(["A", "B", "D"])


def test_sums_travel() -> None:
    sums = Sums()
    for name, upload in uploads().items():
        sums.add({**upload.group(), "c": torch.complex(upload.tensors["w"], -upload.tensors["w"])}, 0.1, name)
    data = sums.to_payload().to_bytes()
    back = Sums.from_payload(Payload.from_bytes(data), {"c": "2x3 complex64", "n": "scalar int64", "w": "2x3 float32"})
    assert all(torch.equal(back.mean()[name], tensor) for name, tensor in sums.mean().items())


def group_of(*names: str) -> tuple[dict[str, Any], bytes, ServerDoor]:
    """What a site tells of its clients' sum, and the door that it comes to."""
    door, summing = ServerDoor(FedAvg()), Summing(FedAvg())
    for name, upload in uploads().items():
        door.forms[name] = dict(forms_of(upload))
        door.counts[name] = int(upload.scalars["num_samples"])
        if name in names:
            summing.add(name, upload, ["w", "n"], b"bytes")
    door.aggregator.owners = dict.fromkeys(door.forms, ("w", "n"))
    (group,) = summing.groups.values()
    return group.told(), group.sums.to_payload().to_bytes(), door


def test_a_sum_of_its_clients_passes() -> None:
    told, data, door = group_of("A", "B", "D")
    group = Group.of(json.loads(json.dumps(told)), data, "site one")
    door.check_group(group, 1, "train")
    expected = weighted_mean({n: u.group() for n, u in uploads().items() if n != "C"}, {"A": 1, "B": 2, "D": 4})
    assert all(torch.equal(group.sums.mean()[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda told: {}, "of clients"),
        (lambda told: {**told, "D": None}, "told of with what was seen"),
        (lambda told: {**told, "D": {**told["D"], "size": -1}}, "told of with what was seen"),
        (lambda told: {n: {**own, "forms": {"w": "2x3 xfloat32"}} for n, own in told.items()}, "told of with what was"),
        (lambda told: {**told, "D": {**told["D"], "scalars": {"\x1b[2J": 1}}}, "told of with what was seen"),
        (lambda told: {**told, "D": {**told["D"], "sha256": "x"}}, "told of with what was seen"),
        (lambda told: {**told, "D": {**told["D"], "largest": {"w": 1e9}}}, "told of with what was seen"),
        (lambda told: {**told, "D": {**told["D"], "largest": {"w": float("nan")}}}, "told of with what was seen"),
        (lambda told: {**told, "D": {**told["D"], "largest": {"v": 1.0}}}, "told of with the largest values"),
        (lambda told: {**told, "D": {**told["D"], "forms": {"w": "9x9 float32"}}}, "of uploads of the same forms"),
        (lambda told: {n: {**own, "forms": {"w": "9x9 float32"}} for n, own in told.items()}, "of the tensors"),
        (lambda told: {**told, "X": told["D"]}, "of None in `w`"),
        (lambda told: {**told, "C": told["D"]}, "of 3 samples"),
        (lambda told: {**told, "D": {**told["D"], "scalars": {"num_samples": 10**6}}}, "of 4 samples"),
        (lambda told: {**told, "D": {**told["D"], "scalars": {}}}, "with the scalar|num_samples"),
        (lambda told: {n: told[n] for n in "AB"}, "of weight 3"),
        (lambda told: {n: {**own, "largest": {"w": 1e-3}} for n, own in told.items()}, "of a mean up to 0.001 in `w`"),
    ],
)
def test_a_site_cannot_tell_of_other_uploads_than_it_added_up(change: Callable[[Any], Any], wanted: str) -> None:
    told, data, door = group_of("A", "B", "D")
    with pytest.raises(InputError, match=wanted):
        door.check_group(Group.of(change(told), data), 1, "train")


def test_who_was_added_up_with_a_bad_upload_is_left_out_with_it() -> None:
    told, data, _ = group_of("A", "B", "D")
    summing, error = Summing(FedAvg()), InputError("num_features", "5", 6)
    summing.take(Group.of(told, data, "site one"))
    assert summing.spoilt({"C": error}) == {}
    assert summing.spoilt({"B": error}) == dict.fromkeys("AD", error)


def test_a_site_answers_for_its_own_clients_and_each_once() -> None:
    told, data, _ = group_of("A", "B")
    answer = Message({"groups": [told]}, {f"{SUMS}/0": data})
    assert [list(group.clients) for group in summed("one", answer, ["A", "B", "C"])] == [["A", "B"]]
    for bad in (
        Message({"groups": [told]}, {f"{SUMS}/0": b"no payload"}),
        Message({"groups": [told]}, {}),
        Message({"groups": [told, told]}, {f"{SUMS}/0": data, f"{SUMS}/1": data}),
        Message({"groups": [told]}, {f"{SUMS}/0": data, "A": b"and an upload"}),
        Message({"groups": {"0": told}}, {f"{SUMS}/0": data}),
        Message({"groups": ["A"]}, {f"{SUMS}/0": data}),
        Message({}, {}),
    ):
        assert not summed("one", bad, ["A", "B", "C"])
    assert not summed("one", answer, ["A"])


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {**tensors, "0/0/other": torch.zeros(1, dtype=torch.float64)},
        lambda tensors: {**tensors, "0/99/w": torch.zeros(7, dtype=torch.float64)},
        lambda tensors: {**tensors, "7/0/w": torch.zeros(7, dtype=torch.float64)},
        lambda tensors: {**tensors, "0/x/w": torch.zeros(7, dtype=torch.float64)},
        lambda tensors: {**tensors, "w": torch.zeros(7, dtype=torch.float64)},
        lambda tensors: {**tensors, "0/0/w": torch.zeros(6, dtype=torch.float64)},
        lambda tensors: {**tensors, "0/0/w": torch.zeros(7)},
        lambda tensors: {**tensors, "0/0/w": torch.full((7,), float("nan"), dtype=torch.float64)},
        lambda tensors: {**tensors, "0/0/w": torch.full((7,), 2.0**30, dtype=torch.float64)},
        lambda tensors: {**tensors, "0/0/w": torch.full((7,), 2.0**-25, dtype=torch.float64)},
    ],
)
def test_what_is_no_sum_is_refused(change: Callable[[Any], Any]) -> None:
    sums = Sums()
    sums.add({"w": torch.ones(2, 3)}, 1.0)
    payload = sums.to_payload()
    with pytest.raises(InputError, match="Expected `sums` to be limbs of sums by name"):
        Sums.from_payload(Payload(change(payload.tensors), payload.scalars))
    with pytest.raises(InputError, match="Expected `sums` to be of the tensors that were asked for"):
        Sums.from_payload(payload, {"v": "2x3 float32"})
    with pytest.raises(InputError, match="Expected `sums` to be limbs of sums by name"):
        Sums.from_payload(Payload(payload.tensors, {"forms": "[]"}))
