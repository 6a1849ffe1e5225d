"""Noise and what it is worth: against formulas, published numbers, and somebody who guesses."""

from __future__ import annotations

import json
import math
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from flgraph.callbacks import GCFL, FedAvg, Local, RecordNoise
from flgraph.callbacks.record_noise import PoissonLoader
from flgraph.data.graphs.batching import GraphLoader
from flgraph.errors import InputError
from flgraph.federation import Clip, GaussianNoise, Median, Payload, Privacy, Quantise
from flgraph.federation.accountant import spent, spent_on_records
from flgraph.federation.privacy import Account, PrivacyBudget
from flgraph.federation.transforms import Draw, Pipeline, draw_key
from flgraph.runs.history import read_records
from flgraph.runs.ledger import Ledger


def delta_of(epsilon: float, mu: float) -> float:
    """Of the Gaussian mechanism with sensitivity over deviation mu (Balle and Wang, ICML 2018, Theorem 8)."""
    normal = stats.norm.cdf
    return float(normal(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal(-mu / 2 - epsilon / mu))


# ------------------------------------------------------------------------------------------------------ the accountant
def test_against_a_published_number() -> None:
    """A deviation of 3.7306 sensitivities is (1, 1e-5)-private (Balle and Wang's calibration); ours is two norms."""
    assert spent(2 * 3.730632, 5, ((5, 1),), 1e-5) == pytest.approx(1.0, rel=2e-3)


@pytest.mark.parametrize(("multiplier", "times"), [(1.0, 1), (4.0, 10), (20.0, 100), (3.0, 2)])
def test_against_the_formula_of_gaussian_mechanisms(multiplier: float, times: int) -> None:
    """So many of them are one with the square root of the deviation's inverse; a replaced client moves by two norms."""
    epsilon, mu = spent(multiplier, 7, ((7, times),), 1e-5), 2 * math.sqrt(times) / multiplier
    assert delta_of(epsilon, mu) <= 1e-5
    assert delta_of(0.98 * epsilon - 0.01, mu) > 1e-5


def test_sampling_without_replacement_against_the_general_bound() -> None:
    """The accountant is below Theorem 9 of Wang et al. (AISTATS 2019), which holds for all mechanisms."""
    multiplier, clients, drawn, times, delta = 4.0, 100, 10, 20, 1e-5
    gamma, best = drawn / clients, math.inf
    for alpha in range(2, 65):
        rdp = [j * (2 / multiplier) ** 2 / 2 for j in range(alpha + 1)]
        terms = 1 + gamma**2 * math.comb(alpha, 2) * min(4 * math.expm1(rdp[2]), 2 * math.exp(rdp[2]))
        terms += sum(2 * gamma**j * math.comb(alpha, j) * math.exp((j - 1) * rdp[j]) for j in range(3, alpha + 1))
        best = min(best, times * math.log(terms) / (alpha - 1) + math.log(1 / delta) / (alpha - 1))
    found = spent(multiplier, clients, ((drawn, times),), delta)
    assert 0.5 * best < found <= best
    assert found < 0.5 * spent(multiplier, clients, ((clients, times),), delta)
    assert found > spent(multiplier, clients, ((1, times),), delta)


def test_nothing_costs_nothing() -> None:
    assert spent(1.0, 4, (), 1e-5) == spent(1.0, 4, ((4, 0),), 1e-5) == 0.0


# ---------------------------------------------------------------------------------------------------- somebody guesses
def lower_bound(inside: np.ndarray[Any, Any], outside: np.ndarray[Any, Any], delta: float) -> float:
    """Epsilon that guesses prove with 95 % confidence (Clopper and Pearson; Jagielski et al., NeurIPS 2020).

    The threshold is chosen on the first half of the guesses, and judged on the second.
    """
    half = len(inside) // 2

    def proved(threshold: float, yes: Any, no: Any) -> float:
        false, missed = int((no > threshold).sum()), int((yes <= threshold).sum())
        upper = [stats.beta.ppf(0.975, count + 1, len(no) - count) for count in (false, missed)]
        return max(0.0, math.log(max(1 - upper[1] - delta, 1e-12) / upper[0]))

    choices = np.quantile(np.concatenate([inside, outside]), np.linspace(0.02, 0.98, 60))
    best = max(choices, key=lambda t: proved(float(t), inside[:half], outside[:half]))
    return proved(float(best), inside[half:], outside[half:])


@pytest.mark.parametrize("uploads", [1, 3])
def test_who_guesses_a_canary_proves_less_than_what_is_counted(uploads: int) -> None:
    """A client's update is the canary or its opposite, both longer than may be; all its uploads are seen."""
    noise, delta, trials = GaussianNoise(norm=1.0, multiplier=2.0 * math.sqrt(uploads)), 1e-3, 2000

    class Half:
        upload_kind, extra_tensors, initial_weights = "weights", {}, "first"

    pipeline, sent = Pipeline([noise], Half()), Payload({"w": torch.tensor([0.5, -0.5]), "b": torch.zeros(1)})
    canary = {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}

    def score(sign: int, trial: int) -> float:
        total = 0.0
        update = {name: sent.tensors[name] + sign * tensor for name, tensor in canary.items()}
        for upload in range(uploads):
            draw = Draw(draw_key(True, sign, trial, upload))
            seen = pipeline.encode(Payload(update), sent, False, lambda own, d=draw: d).tensors
            total += float(sum(((seen[n] - sent.tensors[n]) * canary[n]).sum() for n in canary))
        return total

    scores = [np.array([score(sign, trial) for trial in range(trials)]) for sign in (1, -1)]
    counted = spent(noise.multiplier, 3, ((3, uploads),), delta)
    proved = lower_bound(scores[0], scores[1], delta)
    assert 0.25 * counted < proved < counted
    assert lower_bound(scores[0] + 100, scores[1], delta) > counted  # with too little noise it would be found out


def test_who_guesses_a_graph_proves_less_than_what_is_counted() -> None:
    """One of a client's graphs has a gradient far longer than may be, or none; all noisy gradients are seen."""
    norm, multiplier, rate, steps, trials, delta = 0.5, 1.0, 0.5, 3, 1000, 1e-3

    def score(canary: bool, trial: int) -> float:
        noise, weight = RecordNoise(norm, multiplier, rate), torch.nn.Parameter(torch.zeros(3))
        module: Any = SimpleNamespace(training_step=lambda graph, _: (100.0 * canary * (graph == 0) * weight[0]).sum())
        graphs: Any = SimpleNamespace(batch=lambda graph: graph)
        loader = PoissonLoader(GraphLoader(graphs, torch.arange(3), 3), rate)
        plugin = SimpleNamespace(train_step_context=nullcontext)
        trainer: Any = SimpleNamespace(train_dataloader=loader, precision_plugin=plugin, lr_scheduler_configs=[])
        trainer.optimizers = [torch.optim.SGD([weight], lr=1.0)]
        noise._client = SimpleNamespace(simulated=True, seed=trial, name=f"{canary}")  # type: ignore[assignment]
        noise.on_train_start(trainer, module)
        total = 0.0
        for _ in range(steps):
            assert loader.draw is not None
            places = (loader.draw.uniform(3) < rate).nonzero().flatten()
            noise._batch = SimpleNamespace(drawn_graphs=loader.index[places])
            noise.on_after_backward(trainer, module)
            assert weight.grad is not None
            total += float(weight.grad[0])
        return total

    scores = [np.array([score(canary, trial) for trial in range(trials)]) for canary in (True, False)]
    counted = spent_on_records(((multiplier, rate, steps),), delta)
    assert 0.15 * counted < lower_bound(*scores, delta) < counted


# ----------------------------------------------------------------------------------------------------------- the noise
def noisy(noise: GaussianNoise, count: int = 1, **tensors: Tensor) -> list[Tensor]:
    draw = Draw(draw_key(True, "noise"))
    wide = {name: t.double() if t.is_floating_point() else t.long() for name, t in tensors.items()}
    return list(noise.receive(noise.encode(wide, draw), draw, count).values())


def test_deviation_of_noise() -> None:
    zero = torch.zeros(200, 100)
    for noise, count, deviation in (
        (GaussianNoise(2.0, 3.0), 1, 6.0),
        (GaussianNoise(2.0, 3.0), 16, 6.0),
        (GaussianNoise(2.0, 3.0, at="server"), 16, 1.5),
    ):
        (found,) = noisy(noise, count, w=zero)
        assert float(found.std()) == pytest.approx(deviation, rel=0.02)
        assert stats.kstest(found.flatten().numpy() / deviation, "norm").pvalue > 0.01


def test_an_update_is_clipped_before_and_counts_do_not_move() -> None:
    large = torch.full((100,), 1e6)
    found, steps = noisy(GaussianNoise(1.0, 1e-9), w=large, steps=torch.tensor(9))
    assert float(found.norm()) == pytest.approx(1.0, rel=1e-6)
    assert int(steps) == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_what_no_length_bounds_is_not_sent(value: float) -> None:
    (found,) = noisy(GaussianNoise(1.0, 0.01), w=torch.tensor([value, 0.1], dtype=torch.float64))
    assert bool(torch.isfinite(found).all())
    assert float(found.norm()) < 1.2


# --------------------------------------------------------------------------------------------------------------- runs
@pytest.fixture
def run(federate: Any, toy_federation: Any, toy_module: Any) -> Any:
    """A run of four clients with noise; keyword arguments are the trainer's."""

    def make(*transforms: Any, aggregator: Any = None, ckpt_path: str | None = None, **kwargs: Any) -> Any:
        trainer = federate(aggregator or FedAvg("uniform"), transforms=list(transforms), name="run", **kwargs)
        trainer.fit(toy_module(), toy_federation(6, 6, 6, 6), ckpt_path=ckpt_path)
        return trainer

    return make


def privacy_of(trainer: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((trainer.run_dir / "results.json").read_text())["privacy"]
    return found


def test_epsilon_is_told_everywhere(run: Any, capsys: Any) -> None:
    trainer = run(GaussianNoise(1.0, 10.0), rounds=3, enable_progress_bar=True)
    told, mu = privacy_of(trainer), 2 * math.sqrt(3) / 10
    assert delta_of(told["epsilon"], mu) <= 1e-5 < delta_of(0.97 * told["epsilon"], mu)
    assert told["claim"].startswith(f"({told['epsilon']:.3g}, 1e-05)-differential privacy of each client's uploads")
    assert told["noise_drawn"].startswith("from the run's seed: this is a simulation")
    assert told["outside_of_the_guarantee"] == ["metrics of training and of evaluations", "who took part"]
    records = read_records(trainer.run_dir / "history.jsonl")
    values = [record["server"]["privacy/epsilon"] for record in records]
    assert values == sorted(values)
    assert values[-1] == told["epsilon"]
    shown = capsys.readouterr().out
    assert f"epsilon {values[0]:.3g}" in shown
    assert f"privacy: {told['claim']}" in shown


def test_a_run_ends_before_it_costs_too_much_and_goes_on_counting(run: Any) -> None:
    noise, limit = GaussianNoise(1.0, 10.0), spent(10.0, 4, ((4, 3),), 1e-5) + 1e-6
    stopped = run(noise, rounds=10, privacy=Privacy(max_epsilon=limit))
    assert stopped.current_round == 3
    whole = privacy_of(stopped)["epsilon"]
    with pytest.raises(InputError, match=r"`trainer.privacy.max_epsilon` to be .* or more, which round 4 costs"):
        run(noise, rounds=12, privacy=Privacy(max_epsilon=limit), ckpt_path="last")
    again = run(noise, rounds=5, ckpt_path="last")
    assert privacy_of(again)["epsilon"] == spent(10.0, 4, ((4, 5),), 1e-5) > whole


def test_a_limit_below_the_first_round_is_refused(run: Any) -> None:
    with pytest.raises(InputError, match=r"`trainer.privacy.max_epsilon` to be .* or more, which round 1 costs"):
        run(GaussianNoise(1.0, 1.0), rounds=2, privacy=Privacy(max_epsilon=0.1))


def test_with_clients_drawn_the_server_counts_the_draw_and_uploads_the_client_asked_most(run: Any) -> None:
    half = {"rounds": 4, "client_fraction": 0.5}
    central = privacy_of(run(GaussianNoise(1.0, 10.0, at="server"), **half))
    assert central["epsilon"] == spent(10.0, 4, ((2, 4),), 1e-5)
    assert central["claim"].endswith(
        "towards everybody but the server, as long as nobody else learns who took part when"
    )
    local = run(GaussianNoise(1.0, 10.0), **half)
    asked = Counter(name for record in read_records(local.run_dir / "history.jsonl") for name in record["clients"])
    assert privacy_of(local)["epsilon"] == spent(10.0, 4, ((4, max(asked.values())),), 1e-5)


def test_a_draw_counts_once_where_a_round_has_several_exchanges() -> None:
    """All of a round are of the clients that were drawn for it."""

    class Twice(FedAvg):
        def exchanges(self, round: int) -> tuple[str, ...]:
            return ("one", "two") if round else ()

    account = Account(Privacy(), GaussianNoise(1.0, 10.0, at="server"), Twice("uniform"), list("ABCD"), trusted=True)
    for _ in account.aggregator.exchanges(1):
        account.count(["A"], 1)
    assert account.epsilon() == spent(10.0, 4, ((4, 2),), 1e-5)


def test_the_first_round_costs_what_a_draw_costs() -> None:
    """A limit that some rounds of a tenth of the clients keep is not refused before the first."""
    names = [f"c{number}" for number in range(100)]
    for limit, fits in ((1.0, True), (0.1, False)):
        noise, privacy = GaussianNoise(1.0, 4.0, at="server"), Privacy(1e-5, max_epsilon=limit)
        account = Account(privacy, noise, FedAvg("uniform"), names, trusted=True, drawn=10)
        run: Any = SimpleNamespace(run_dir=None, current_round=0, rounds=10)
        first = spent(4.0, 100, ((10, 1),), 1e-5)
        assert account.epsilon(1) == first
        assert fits == (first <= limit)
        with nullcontext() if fits else pytest.raises(InputError, match=f"{first:.4g} or more, which round 1 costs"):
            PrivacyBudget(account).on_federation_start(run)


def test_at_sites_draws_do_not_count_and_lost_rounds_do(tmp_path: Any) -> None:
    account = Account(Privacy(), GaussianNoise(1.0, 5.0, at="server"), FedAvg("uniform"), ["A", "B"], trusted=False)
    for _ in range(3):
        account.count(["A"], 1)
    assert account.epsilon() == spent(5.0, 2, ((2, 3),), 1e-5)
    assert account.summary()["noise_drawn"] == "from the operating system"
    restored = Account(Privacy(), account.noise, FedAvg("uniform"), ["A", "B"], trusted=False)
    restored.load_state(json.loads(json.dumps(account.state())))
    assert restored.epsilon(2) == spent(5.0, 2, ((2, 5),), 1e-5)


def test_lost_rounds_count_as_often_as_they_were_asked_for(tmp_path: Path) -> None:
    """Two jobs, in both of which an exchange broke off before what was asked for came."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for times in (2, 3):
        ledger.add(event="opened", run="r")
        for number in (1, *[2] * times):
            ledger.add(event="asked", client="A", round=number, exchange="train")
        for number in (1, *[2] * (times - 1)):
            ledger.add(direction="up", client="A", round=number, request="exchange", exchange="train")
    ledger.close()
    account = Account(Privacy(), GaussianNoise(1.0, 5.0), FedAvg("uniform"), ["A", "B"], trusted=False)
    account.recount(tmp_path / "ledger.jsonl", 1)
    assert account.uploads == {"A": 5}


def test_nothing_is_claimed_where_something_leaves_without_noise(run: Any) -> None:
    told = privacy_of(run(GaussianNoise(1.0, 10.0), aggregator=FedAvg(), rounds=1))
    assert told["epsilon"] is None
    assert told["claim"] == "none: num_samples leave without noise"
    told = privacy_of(run(GaussianNoise(1.0, 10.0, leave=["last.*"]), rounds=1))
    assert told["claim"] == "none: last.* leave without noise"
    told = privacy_of(run(Clip(9.0, leave=["last.*"]), GaussianNoise(1.0, 10.0), rounds=1))
    assert told["claim"] == "none: last.* leave without noise"  # what one transform leaves, none changes
    with pytest.raises(InputError, match=r"`trainer.privacy.max_epsilon` to be null where uploads hold more"):
        run(GaussianNoise(1.0, 10.0), aggregator=FedAvg(), rounds=1, privacy=Privacy(max_epsilon=5.0))


def test_noise_at_the_server_is_enough_for_tensors_of_few_clients() -> None:
    """Their sum is over fewer uploads, and gets no less noise."""
    rng = torch.Generator().manual_seed(0)
    noise = Pipeline([GaussianNoise(1.0, 3.0, at="server")], FedAvg("uniform"))
    zeros, own = {"all": torch.zeros(20_000)}, {"one": torch.zeros(20_000)}
    sent = {name: Payload({**zeros, **(own if name == "A" else {})}) for name in "ABCD"}
    seeds = {name: int(torch.randint(2**30, (1,), generator=rng)) for name in sent}
    received = noise.receive(sent, sent, lambda client, transform: Draw(draw_key(True, seeds[client])))
    assert received["A"].tensors["one"].std() == pytest.approx(3.0, rel=0.05)
    assert sum(upload.tensors["all"] for upload in received.values()).std() >= 0.95 * 3.0  # type: ignore[union-attr]


def test_a_run_hides_clients_or_records(run: Any) -> None:
    with pytest.raises(InputError, match=r"hides clients, or records, not both, .* 'client and record'"):
        run(GaussianNoise(1.0, 10.0), rounds=1, callbacks=[RecordNoise(1.0, 1.0, 0.5)])


def test_noise_goes_with_what_comes_after_it(run: Any) -> None:
    trainer = run(Clip(0.5), GaussianNoise(0.5, 0.01), Quantise(8), rounds=2)
    assert privacy_of(trainer)["epsilon"] > 100  # so little noise promises nothing


@pytest.mark.parametrize(
    "aggregator", [FedAvg(), FedAvg("uniform", combine=Median()), GCFL(base=["*"], weighting="uniform")]
)
def test_noise_at_the_server_needs_a_plain_mean(aggregator: Any, run: Any) -> None:
    with pytest.raises(InputError, match=r"`GaussianNoise.at` to be client with this algorithm"):
        run(GaussianNoise(1.0, 1.0, at="server"), aggregator=aggregator, rounds=1)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: GaussianNoise(0.0, 1.0), "Expected `GaussianNoise.norm` to be a finite number above 0 but got 0.0"),
        (lambda: GaussianNoise(1.0, 0.0), "Expected `GaussianNoise.multiplier` to be a finite number above 0"),
        (lambda: GaussianNoise(1.0, math.inf), "GaussianNoise.multiplier"),
        (lambda: GaussianNoise(1.0, 1.0, at="sky"), "Expected `GaussianNoise.at` to be client or server but got 'sky'"),
        (lambda: Privacy(delta=1.5), "Expected `trainer.privacy.delta` to be above 0 and below 1 but got 1.5"),
        (lambda: Privacy(delta=0), "trainer.privacy.delta"),
        (
            lambda: Privacy(max_epsilon=0),
            "`trainer.privacy.max_epsilon` to be a finite number above 0, or null",
        ),
        (lambda: Pipeline([GaussianNoise(1.0, 1.0), Clip(1.0)], None), "Clip after GaussianNoise"),
    ],
)
def test_arguments_that_cannot_be(make: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


def test_what_uploads_nothing_goes_with_no_transforms(run: Any) -> None:
    with pytest.raises(InputError, match=r"`trainer.transforms` to be none with an algorithm that uploads nothing"):
        run(Clip(1.0), aggregator=Local(), rounds=1)


def test_settings_that_do_not_go_together(run: Any) -> None:
    with pytest.raises(InputError, match=r"`trainer.privacy` to be null without GaussianNoise"):
        run(rounds=1, privacy=Privacy())
    with pytest.raises(InputError, match=r"`trainer.privacy.delta` to be below 1 / 4, one over the number of clients"):
        run(GaussianNoise(1.0, 1.0), rounds=1, privacy=Privacy(delta=0.3))
