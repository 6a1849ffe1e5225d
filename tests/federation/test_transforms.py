"""Transforms one by one: numbers by hand, what travels, and what a bad client sends in its place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
import torch
from scipy import stats
from torch import Tensor

from flgraph.callbacks import FedAvg
from flgraph.errors import InputError
from flgraph.federation import (
    Clip,
    GaussianNoise,
    HalfPrecision,
    Payload,
    Policy,
    PolicyError,
    Quantise,
    Tolerance,
    TopK,
    Transform,
)
from flgraph.federation.secure.settings import SecureSums
from flgraph.federation.transforms import Draw, Pipeline, draw_key
from flgraph.runs.history import read_records
from flgraph.runs.ledger_reader import read_ledger


class Half:
    """As much of an algorithm as transforms look at: weights, gradients and data."""

    upload_kind = "weights"
    extra_tensors: ClassVar[Mapping[str, Any]] = {"gradient/*": "gradient", "rows/*": "data"}
    initial_weights = "first"


class Weights(Half):
    """The same without data."""

    extra_tensors: ClassVar[Mapping[str, Any]] = {}


SENT = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([1.0]), "steps": torch.tensor(10)}
FORMS = {"w": "2x2 float32", "b": "1 float32", "steps": "scalar int64"}
UPLOAD = {
    "w": SENT["w"] + torch.tensor([[3.0, 0.0], [0.0, 0.0]]),
    "b": SENT["b"] + 4.0,
    "steps": torch.tensor(20),
    "rows": {"x": torch.ones(3)},
}


def draw(name: Any = "") -> Draw:
    return Draw(draw_key(True, str(type(name) if isinstance(name, Transform) else name)))


def through(*transforms: Transform, upload: Any = UPLOAD, change: Callable[[dict[str, Tensor]], Any] = id) -> Payload:
    """An upload after its way to the server, where a bad client changes what travels."""
    made, sent = Pipeline(list(transforms), Half()), Payload(SENT)
    wire = dict(made.encode(Payload(upload, {"num_samples": 3}), sent, False, draw).tensors)
    change(wire)
    arrived = Payload.from_bytes(Payload(wire, {"num_samples": 3}).to_bytes())
    read = made.decode(arrived, sent, FORMS, False, "upload")
    return made.receive({"A": read}, {"A": sent}, lambda client, name: draw(name))["A"]


# ----------------------------------------------------------------------------------------------------------- clipping
def test_clipping_by_hand() -> None:
    """The update (3, 0, 0, 0, 4) is of length 5, and one of 2.5 is half as long; so are ten steps."""
    found = through(Clip(2.5, leave=["rows/*"]))
    assert found.tensors["w"].tolist() == [[2.5, 2.0], [3.0, 4.0]]
    assert found.tensors["b"].tolist() == [3.0]
    assert int(found.tensors["steps"]) == 15
    assert found.tensors["rows/x"].tolist() == [1.0, 1.0, 1.0]
    assert found.scalars == {"num_samples": 3}
    each = through(Clip(3.5, per="tensor", leave=["rows/*"]))
    assert each.tensors["w"].tolist() == UPLOAD["w"].tolist()
    assert each.tensors["b"].tolist() == [4.5]


def test_a_bound_that_follows_the_lengths() -> None:
    """By hand for an exchange; after many, half of the updates (1, 2, 3, 4 long) are shorter."""
    server, client = (Pipeline([Clip(10.0, quantile=0.5, step=0.3)], Weights()) for _ in "ab")
    bounds = []
    for _ in range(60):
        sent = server.accompanied(Payload({"w": torch.zeros(2)}))
        bounds.append(sent.scalars["transforms/norm"])
        updates = {str(n): Payload({"w": torch.tensor([0.0, float(n)])}) for n in (1, 2, 3, 4)}
        wire = {name: client.encode(own, sent, False, draw) for name, own in updates.items()}
        lengths = [float(own.tensors["w"].norm()) for own in wire.values()]
        assert lengths == pytest.approx([min(n, bounds[-1]) for n in (1, 2, 3, 4)])
        server.receive(wire, dict.fromkeys(wire, sent), lambda client, own: draw(own))
    shares = [sum(n < bound for n in (1, 2, 3, 4)) / 4 for bound in bounds]
    steps = [after / before for before, after in itertools.pairwise(bounds)]
    assert steps == pytest.approx([math.exp(-0.3 * (share - 0.5)) for share in shares[:-1]])
    assert 2 < bounds[-1] <= 3
    other = Pipeline([Clip(10.0, quantile=0.5, step=0.3)], Weights())
    other.load_state_dict(server.state_dict())
    assert other.download_scalars() == server.download_scalars()
    for bad in (float("nan"), float("inf"), 0.0, -1.0, True, "1"):
        with pytest.raises(InputError, match="`transforms/norm` to be a finite number above 0"):
            client.encode(updates["1"], Payload({"w": torch.zeros(2)}, {"transforms/norm": bad}), False, draw)


@pytest.mark.parametrize(("length", "quantile"), [(0.0, 0.1), (1e30, 0.9)])
def test_a_bound_that_follows_stays_a_number(length: float, quantile: float) -> None:
    clip = Clip(1.0, quantile=quantile, step=10.0)
    for _ in range(40):
        clip.read(clip.download_scalars())
        clip.receive({"w": torch.full((1,), length, dtype=torch.float64)}, draw(clip), 1)
        clip.end_exchange()
    assert 0 < clip.download_scalars()["transforms/norm"] <= 1e30


def test_a_bound_that_follows_is_told_and_kept(federate: Any, toy_federation: Any, toy_module: Any) -> None:
    def run(rounds: int, name: str, **kwargs: Any) -> Any:
        trainer = federate(FedAvg(), rounds=rounds, name=name, transforms=[Clip(2.0, quantile=0.5)])
        trainer.fit(toy_module(), toy_federation(6, 8, 7), **kwargs)
        return trainer

    whole = run(4, "whole")
    bounds = [record["server"]["transforms/norm"] for record in read_records(whole.run_dir / "history.jsonl")]
    assert len(set(bounds)) == 4
    assert bounds[0] == pytest.approx(2.0 * math.exp(-0.2 * 0.5))  # all updates were shorter
    run(2, "half")
    again = run(4, "half", ckpt_path="last")
    assert [record["server"]["transforms/norm"] for record in read_records(again.run_dir / "history.jsonl")] == bounds
    states = [trainer.engine.clients["A"].module.state_dict() for trainer in (whole, again)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_bound_that_follows_needs_single_uploads(federate: Any) -> None:
    with pytest.raises(InputError, match=r"`trainer.secure_sums` to be null with a Clip whose bound follows"):
        federate(FedAvg("uniform"), rounds=1, secure_sums=SecureSums(), transforms=[Clip(2.0, quantile=0.5)])


def test_the_server_clips_whoever_did_not() -> None:
    def cheat(wire: dict[str, Tensor]) -> None:
        wire["w"], wire["b"] = SENT["w"].clone(), SENT["b"] + 1e6

    found = through(Clip(2.5, leave=["rows/*"]), change=cheat)
    assert found.tensors["b"].tolist() == [3.5]


def test_gradients_are_relative_to_zero() -> None:
    found = through(Clip(1.0, leave=["rows/*"]), upload={"gradient": {"w": torch.tensor([[3.0, 0.0], [0.0, 4.0]])}})
    torch.testing.assert_close(found.tensors["gradient/w"], torch.tensor([[0.6, 0.0], [0.0, 0.8]]))


def test_without_effect_tensors_are_the_same() -> None:
    made = Pipeline([Clip(5.0, leave=["rows/*"])], Half())
    upload = Payload(UPLOAD)
    same = made.encode(upload, Payload(SENT), False, draw)
    assert all(same.tensors[name] is tensor for name, tensor in upload.tensors.items())


# ------------------------------------------------------------------------------------------------------------ coding
def test_quantised_numbers_are_right_on_average() -> None:
    values = torch.tensor([0.0, 0.3, -1.0, 0.77])
    for bits, levels in ((8, 127), (4, 7)):
        codes = Quantise(bits)
        drawn = draw(f"{bits}")
        rows = [codes.decode(codes.encode({"w": values.double()}, drawn), {"w": 4}, "upload")["w"] for _ in range(3000)]
        mean, spread = torch.stack(rows).mean(0), 1 / levels / math.sqrt(3000)
        torch.testing.assert_close(mean, values.double(), rtol=0, atol=4 * spread)
        assert float((torch.stack(rows) - values).abs().max()) <= 1 / levels + 1e-6
        assert {float(row[2]) for row in rows} == {-1.0}  # what is on the grid stays


@pytest.mark.parametrize(("bits", "count", "size"), [(8, 5, 5), (4, 5, 3), (4, 4, 2), (4, 1, 1), (4, 0, 0)])
def test_bytes_of_quantised_numbers(bits: Any, count: int, size: int) -> None:
    codes, values = Quantise(bits), torch.linspace(-1, 1, count).double()
    wire = codes.encode({"w": values}, draw())
    assert wire["w"].numel() == size
    assert wire["w"].dtype == torch.uint8
    torch.testing.assert_close(codes.decode(wire, {"w": count}, "upload")["w"], values, rtol=0, atol=0.15)


def test_what_is_not_finite_spoils_no_later_update() -> None:
    """A client that failed once is back in the next round; what is kept for it must be numbers."""
    top, draw = TopK(0.25), Draw(draw_key(True, 1))
    top.encode({"w": torch.tensor([math.nan, math.inf, -math.inf, 1.0], dtype=torch.float64)}, draw)
    assert top.encode({"w": torch.zeros(4, dtype=torch.float64)}, draw)["w"].tolist() == [1.0]


def test_top_k_keeps_what_it_does_not_send() -> None:
    """After some rounds of the same update, what was sent and what is kept are all of it."""
    top, update = TopK(0.25), torch.tensor([4.0, -3.0, 2.0, 1.0], dtype=torch.float64)
    total, places = torch.zeros(4, dtype=torch.float64), []
    for _ in range(8):
        wire = top.encode({"w": update}, draw())
        assert wire["w"].numel() == 1
        places.append(int(wire["transforms/index"]))
        total += top.decode(wire, {"w": 4}, "upload")["w"]
        torch.testing.assert_close(total + top.state_dict()["w"], update * len(places))
    assert places[:2] == [0, 1]
    assert set(places) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("transforms", "tolerance"),
    [
        ([TopK(1.0)], 1e-6),
        ([HalfPrecision()], 0.02),
        ([Quantise(8)], 0.05),
        ([Quantise(4)], 0.7),
        ([TopK(1.0), Quantise(8)], 0.05),
        ([TopK(1.0), HalfPrecision()], 0.02),
    ],
)
def test_what_arrives_is_near_what_was_sent(transforms: list[Any], tolerance: float) -> None:
    transforms[0].leave = ["rows/*"]
    found = through(*transforms)
    for name in ("w", "b"):
        assert found.tensors[name].dtype == torch.float32
        torch.testing.assert_close(found.tensors[name], UPLOAD[name], rtol=0, atol=tolerance)
    assert int(found.tensors["steps"]) == 20
    assert found.tensors["rows/x"].tolist() == [1.0, 1.0, 1.0]


def test_only_the_largest_change_arrives() -> None:
    found = through(TopK(0.25, leave=["rows/*"]))
    assert found.tensors["w"].tolist() == UPLOAD["w"].tolist()
    assert found.tensors["b"].tolist() == UPLOAD["b"].tolist()  # at least one of every tensor


def put(name: str, value: Tensor | None) -> Callable[[dict[str, Tensor]], Any]:
    return lambda wire: wire.pop(name) if value is None else wire.update({name: value})


BOTH = (TopK(0.5), Quantise(8))
BAD: list[tuple[tuple[Any, ...], Any, str]] = [
    (BOTH, put("transforms/index", None), "with `transforms/index` of 3"),
    (BOTH, put("transforms/index", torch.tensor([0, 2, 2], dtype=torch.int32)), "ascending places"),
    (BOTH, put("transforms/index", torch.tensor([0, -1, 2], dtype=torch.int32)), "ascending places"),
    (BOTH, put("transforms/index", torch.tensor([0, 1, 99], dtype=torch.int32)), "ascending places"),
    (BOTH, put("transforms/index", torch.tensor([0, 1, 2])), "with `transforms/index` of 3 torch.int32"),
    (BOTH, put("transforms/scale", torch.tensor([1.0])), "with `transforms/scale` of 2"),
    (BOTH, put("transforms/scale", torch.tensor([1.0, float("nan")])), "finite scales"),
    (BOTH, put("transforms/scale", torch.tensor([-1.0, 1.0])), "finite scales"),
    (BOTH, put("w", torch.zeros(7, dtype=torch.uint8)), "with `w` of 2 torch.uint8"),
    (BOTH, put("w", torch.full((2,), 255, dtype=torch.uint8)), "with codes of `w`"),
    (BOTH, put("w", torch.zeros(2, 2)), "with `w` of 2 torch.uint8"),
    (BOTH, put("transforms/more", torch.zeros(2)), "without `transforms` that nobody reads"),
    (BOTH, put("elsewhere", torch.zeros(2)), "of tensors that the client was sent"),
    ((HalfPrecision(),), put("w", torch.zeros(3, dtype=torch.bfloat16)), "of 4 numbers of `w`"),
    ((HalfPrecision(),), put("w", torch.zeros(4, dtype=torch.int64)), "of 4 numbers of `w`"),
    ((TopK(0.5),), put("w", torch.zeros(1)), "with 2 numbers of `w`"),
]


@pytest.mark.parametrize("form", ["3 save", f"{10**15}x{10**15} float32", "9999999x99999 float32"])
@pytest.mark.parametrize(
    "transform", [TopK(0.5, leave=["rows/*"]), Quantise(8, leave=["rows/*"]), HalfPrecision(leave=["rows/*"])]
)
def test_forms_that_clients_made_up_cost_nothing(transform: Transform, form: str) -> None:
    """Of tensors that it alone has; gradients are relative to zeros of their forms."""
    made = Pipeline([transform], Half())
    wire = Payload({"gradient/x": torch.ones(3), "transforms/index": torch.zeros(3, dtype=torch.int32)})
    with pytest.raises(InputError, match=r"^Expected `upload`"):
        made.decode(wire, Payload(), {"x": form}, False, "upload")


@pytest.mark.parametrize(("transforms", "change", "sentence"), BAD)
def test_what_cannot_be_decoded_is_refused(transforms: Any, change: Any, sentence: str) -> None:
    upload = {name: UPLOAD[name] for name in ("w", "b", "steps")}
    made = [type(own)(**{**vars_of(own), "leave": ["rows/*"]}) for own in transforms]
    with pytest.raises(InputError, match=sentence):
        through(*made, upload=upload, change=change)


def vars_of(transform: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(transform).items() if not name.startswith("_")}


# ------------------------------------------------------------------------------------------------------------- drawing
def test_draws_are_uniform_and_normal() -> None:
    assert stats.kstest(draw("u").uniform(20_000).numpy(), "uniform").pvalue > 0.01
    assert stats.kstest(draw("n").normal(20_000).numpy(), "norm").pvalue > 0.01
    assert torch.equal(draw("n").normal(5), draw("n").normal(5))
    assert not torch.equal(draw("n").normal(5), draw("m").normal(5))


def test_keys_of_sites_are_never_the_same() -> None:
    assert draw_key(True, 1, "A") == draw_key(True, 1, "A") != draw_key(True, 1, "B")
    assert draw_key(False, 1, "A") != draw_key(False, 1, "A")
    assert {len(draw_key(True)), len(draw_key(False))} == {32}


# ---------------------------------------------------------------------------------------------------------------- runs
def test_what_travels_is_what_is_counted(
    federate: Any, toy_federation: Any, toy_module: Any, recorder: Any, tmp_path: Any
) -> None:
    """4 x 50 + 50 + 50 x 2 + 2 = 352 weights: a byte for each of the largest half, and four for its place."""
    transforms = [TopK(0.5), Quantise(8)]
    trainer = federate(FedAvg("uniform"), rounds=2, engine=recorder, transforms=transforms, enable_checkpointing=True)
    trainer.fit(toy_module(hidden=50), toy_federation(6, 8))
    sent = recorder.uploads()
    assert all(sum(own.nbytes for own in upload.tensors.values()) == 176 * 5 + 4 * 4 for _, upload in sent)
    records = read_records(trainer.run_dir / "history.jsonl")
    assert records[0]["bytes_up"] == sum(upload.nbytes for _, upload in sent[:2])
    lines = [line for line in read_ledger(trainer.run_dir / "ledger.jsonl") if line.exchange == "train"]
    up = [line for line in lines if line.direction == "up"]
    assert sum(line.bytes for line in up) == sum(upload.nbytes for _, upload in sent)
    assert up[0].tensors["first.weight"] == "100 uint8"


def test_a_run_goes_on_with_the_same_transforms_only(federate: Any, toy_federation: Any, toy_module: Any) -> None:
    data = toy_federation(6, 8)
    federate(FedAvg(), rounds=1, transforms=[TopK(0.5)], name="run").fit(toy_module(), data)
    with pytest.raises(InputError, match=r"`trainer.transforms.1.share` to be 0.5 as in checkpoint"):
        federate(FedAvg(), rounds=2, transforms=[TopK(0.4)], name="run").fit(toy_module(), data, ckpt_path="last")
    with pytest.raises(InputError, match=r"`trainer.transforms"):
        federate(FedAvg(), rounds=2, name="run").fit(toy_module(), data, ckpt_path="last")
    federate(FedAvg(), rounds=2, transforms=[TopK(0.5)], name="run").fit(toy_module(), data, ckpt_path="last")


def test_a_policy_has_to_let_out_what_is_added(federate: Any, toy_federation: Any, toy_module: Any) -> None:
    policy = Policy(tensors=("first.*", "last.*"))
    trainer = federate(FedAvg(), rounds=1, transforms=[Quantise()], policy=policy)
    with pytest.raises(PolicyError, match=r"`transforms/\*` to be of tensors that the policy lets out"):
        trainer.fit(toy_module(), toy_federation(6, 8))


def test_a_client_that_clips_nothing_loses_nothing_but_its_weight(
    federate: Any, toy_federation: Any, toy_module: Any, recorder: Any
) -> None:
    class Broken(Transform):
        """Codes as nobody can read."""

        stage, codes = 5, True

        def encode(self, update: Any, draw: Any) -> Any:
            return {name: tensor[..., :0] for name, tensor in update.items()}

    trainer = federate(FedAvg(), rounds=1, transforms=[Broken()], tolerance=Tolerance(on_bad_upload="drop"))
    with pytest.raises(Exception, match="Only 0 of at least 1 clients"):
        trainer.fit(toy_module(), toy_federation(6, 8))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Clip(-1.0), "Expected `Clip.norm` to be a finite number, 0 or more but got -1.0"),
        (lambda: Clip(float("nan")), "Clip.norm"),
        (lambda: Clip(1.0, per="row"), "Clip.per"),
        (lambda: Clip(1.0, quantile=1.0), "Expected `Clip.quantile` to be above 0 and below 1, or null but got 1.0"),
        (lambda: Clip(0.0, quantile=0.5), "Expected `Clip.norm` to be above 0 with a quantile"),
        (lambda: Clip(1.0, "tensor", quantile=0.5), "Expected `Clip.per` to be client with a quantile"),
        (lambda: Clip(1.0, quantile=0.5, step=0.0), "Clip.step"),
        (lambda: Clip(1.0, quantile=0.5, step=11.0), "Expected `Clip.step` to be above 0 and at most 10 but got 11.0"),
        (lambda: Pipeline([Clip(1.0, quantile=0.5), GaussianNoise(1.0, 1.0)], Weights()), "with GaussianNoise"),
        (lambda: Pipeline([Clip(1.0, quantile=0.5), Quantise()], Weights()), "`Clip.quantile` to be null with what"),
        (lambda: TopK(0.0), "Expected `TopK.share` to be above 0 and at most 1 but got 0.0"),
        (lambda: Quantise(5), "Expected `Quantise.bits` to be 8 or 4 but got 5"),
        (lambda: Clip(1.0, leave="rows/*"), "Expected `Clip.leave` to be a list of patterns"),
        (lambda: Pipeline([Quantise(), TopK()], Half()), "in the order clip, noise, selection, coding, one of each"),
        (lambda: Pipeline([Quantise(), HalfPrecision()], Half()), "HalfPrecision after Quantise"),
        (lambda: Pipeline([Clip(1.0)], Half()), r"Expected `rows/\*` to be named in `leave` of a transform"),
        (lambda: Pipeline(["clip"], Half()), "Expected `trainer.transforms` to be a list of transforms but got 'str'"),
    ],
)
def test_arguments_that_cannot_be(make: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


def test_a_pattern_of_nothing_is_refused(federate: Any, toy_federation: Any, toy_module: Any) -> None:
    with pytest.raises(InputError, match=r"`transforms.leave` to be patterns of tensors of client `A` but got 'none'"):
        federate(FedAvg(), rounds=1, transforms=[Clip(1.0, leave=["none"])]).fit(toy_module(), toy_federation(6, 8))


def test_noise_at_the_server_clips_what_came_too_long() -> None:
    """Whatever a client sent; what is no number counts as zero."""
    noise = GaussianNoise(1.0, 1e-9, at="server")
    long = noise.receive({"w": torch.full((4,), 100.0).double()}, Draw(bytes(32)), 1)["w"]
    assert float(long.norm()) == pytest.approx(1.0, abs=1e-3)
    found = noise.receive({"w": torch.tensor([math.nan, 0.0]).double()}, Draw(bytes(32)), 1)["w"]
    assert bool(found.isfinite().all())


def test_noise_of_secure_sums_covers_their_rounding() -> None:
    """A thousandth more noise, for which a sum's steps have to be fine enough; at clients nothing is rounded."""
    noise, zero = GaussianNoise(1.0, 1.0, at="server"), {"w": torch.zeros(200_000).double()}
    assert noise.receive_mean(zero, Draw(bytes(32)), 1.0)["w"].equal(Draw(bytes(32)).normal(200_000) * 1.001)
    with pytest.raises(InputError, match="fraction_bits"):
        noise.expect_fine(10**6, 18)
    GaussianNoise(1.0, 1.0).expect_fine(10**6, 1)


def test_an_update_is_of_the_shape_that_was_sent() -> None:
    pipeline = Pipeline([Clip(1.0)], FedAvg())
    with pytest.raises(InputError, match="was sent"):
        pipeline.encode(
            Payload({"w": torch.ones(2, 2)}), Payload({"w": torch.ones(2)}), False, lambda transform: Draw(bytes(32))
        )


def test_whole_numbers_are_rounded_not_cut() -> None:
    """Both are scaled by 0.53; seven become 3.85, and so four."""
    update = {"k": torch.tensor([7]), "w": torch.tensor([2.0]).double()}
    assert Clip(1.0).encode(update, Draw(bytes(32)))["k"].tolist() == [4]
