"""Noise on single graphs: against automatic differentiation, published numbers, and who guesses."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn import functional as F

from flgraph.callbacks import (
    FedAvg,
    FedProto,
    FedProx,
    FedProxAdaptive,
    Local,
    RecordNoise,
    Stragglers,
    record_noise,
)
from flgraph.data import SyntheticFederation
from flgraph.errors import InputError, PolicyError
from flgraph.federation import Client, FederatedTrainer, Policy
from flgraph.federation.accountant import spent_on_records
from flgraph.federation.lightning import flushing_denormals
from flgraph.federation.transforms import Draw, draw_key
from flgraph.models import GNN
from flgraph.runs.history import read_records

DATA: dict[str, Any] = {"domains": ["trees", "rings"], "num_graphs": 10, "batch_size": 100}


@pytest.fixture(scope="module")
def data() -> SyntheticFederation:
    return SyntheticFederation(**DATA)


def network(lr: float = 1.0) -> GNN:
    return GNN(hidden_channels=4, num_layers=1, dropout=0.0, optimizer="sgd", lr=lr, weight_decay=0.0)


@pytest.fixture
def run(federate: Any, data: Any) -> Any:
    """A run of two clients with plain gradient steps; keyword arguments are the trainer's."""

    def make(*noise: Any, aggregator: Any = None, model: Any = None, ckpt_path: Any = None, **kwargs: Any) -> Any:
        arguments = {"rounds": 1, "callbacks": list(noise), "name": "run", **kwargs}
        trainer = federate(aggregator or FedAvg(), **arguments)
        trainer.fit(model or network(), data, ckpt_path=ckpt_path)
        return trainer

    return make


def weights(trainer: Any) -> Tensor:
    """Of the first client, as its training left them."""
    return torch.cat([p.detach().flatten() for p in trainer.engine.clients["trees"].module.parameters()])


def apart(one: Any, other: Any) -> float:
    return float((weights(one) - weights(other)).abs().max())


def test_without_clipping_and_noise_it_is_the_full_batch(run: Any) -> None:
    """The mean over graphs of their gradients is that of the mean of their losses."""
    plain, all_drawn = (
        run(*noise, aggregator=Local(), local_epochs=2) for noise in ((), (RecordNoise(99, 1e-9, 1.0),))
    )
    assert apart(plain, all_drawn) < 2e-5
    metrics = [trainer.history.last["clients"]["trees"]["train/loss"] for trainer in (plain, all_drawn)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-5)


def test_every_graph_is_clipped_on_its_own(run: Any) -> None:
    """Against gradients that are taken one by one."""
    norm = 2.0
    stepped = run(RecordNoise(norm, 1e-9, 1.0), aggregator=Local())
    still = run(RecordNoise(norm, 1e-9, 1.0), aggregator=Local(), model=network(lr=1e-12))
    client = still.engine.clients["trees"]
    loader, parameters = client.data.train_dataloader(), list(client.module.parameters())
    total = torch.zeros_like(weights(still))
    lengths = []
    for number in loader.index:
        batch = loader.graphs.batch(number.view(1))
        loss = F.cross_entropy(client.module(batch), batch.y)
        own = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        lengths.append(float(own.norm()))
        total += own * min(1.0, norm / lengths[-1])
    assert min(lengths) < norm < max(lengths)
    torch.testing.assert_close(weights(stepped), weights(still) - total / len(lengths), atol=1e-5, rtol=1e-4)


def test_noise_has_the_deviation_that_is_counted(run: Any) -> None:
    """Of gradients that are clipped to almost nothing, two steps leave noise only."""
    still, noisy = (run(RecordNoise(1e-6, noise, 0.5), aggregator=Local()) for noise in (1e-3, 3e6))
    found = weights(noisy) - weights(still)
    deviation = 3.0 * math.sqrt(2) / (0.5 * noisy.engine.clients["trees"].data.num_train_samples)
    assert found.numel() > 50
    assert float(found.std()) == pytest.approx(deviation, rel=0.3)


def test_what_is_added_to_the_gradient_stays(run: Any) -> None:
    noise = RecordNoise(1.0, 1.0, 0.5)
    assert apart(run(noise, aggregator=FedProx(mu=0.0)), run(noise, aggregator=FedAvg())) == 0
    assert apart(run(noise, aggregator=FedProx(mu=0.5)), run(noise, aggregator=FedAvg())) > 1e-3


def test_epsilon_is_told_of_every_client_and_a_run_goes_on_counting(run: Any) -> None:
    noise = RecordNoise(1.0, 1.5, 0.25)
    whole = run(noise, rounds=2, local_epochs=2)
    told = json.loads((whole.run_dir / "results.json").read_text())["privacy"]
    assert told["epsilon"] == pytest.approx(spent_on_records(((1.5, 0.25, 16),), 1e-5))
    assert told["epsilon_of_clients"] == pytest.approx(dict.fromkeys(["trees", "rings"], told["epsilon"]))
    claim = f"({told['epsilon']:.3g}, 1e-05)-differential privacy of every graph of the 2 clients that told"
    assert told["claim"].startswith(claim)
    assert told["noise_drawn"].startswith("from the run's seed: this is a simulation")
    half = run(noise, rounds=1, local_epochs=2, name="half")
    again = run(noise, rounds=2, local_epochs=2, name="half", ckpt_path="last")
    assert half.current_round == 1
    assert apart(whole, again) == 0
    assert json.loads((again.run_dir / "results.json").read_text())["privacy"] == told


def test_what_a_client_has_spent_is_told_in_rounds_that_it_sits_out_too(run: Any) -> None:
    away = Stragglers(away={"trees": [[2, 3]], "rings": [[4, 4]]})
    trainer = run(RecordNoise(1.0, 1.5, 0.25), away, rounds=4)
    spent = {name: spent_on_records(((1.5, 0.25, 4 * rounds),), 1e-5) for name, rounds in (("trees", 2), ("rings", 3))}
    told = json.loads((trainer.run_dir / "results.json").read_text())["privacy"]
    assert told["epsilon_of_clients"] == pytest.approx(spent)
    assert told["epsilon"] == pytest.approx(spent["rings"])
    records = read_records(trainer.run_dir / "history.jsonl")
    largest = [record["server"]["privacy/epsilon"] for record in records]
    assert largest == sorted(largest)


def test_a_client_stops_at_what_its_policy_allows(run: Any) -> None:
    most = spent_on_records(((1.5, 0.25, 8),), 1e-5) + 1e-6
    assert run(RecordNoise(1.0, 1.5, 0.25), rounds=2, policy=Policy(max_epsilon=most)).current_round == 2
    with pytest.raises(PolicyError, match="`privacy` to be of at most epsilon"):
        run(RecordNoise(1.0, 1.5, 0.25), rounds=3, policy=Policy(max_epsilon=most))
    with pytest.raises(PolicyError, match="of a multiplier of 2 or more, as the policy says"):
        run(RecordNoise(1.0, 1.5, 0.25), policy=Policy(min_noise=2))


def test_against_a_published_number() -> None:
    """Abadi et al., Section 3.2: q = 0.01, sigma = 4, 10,000 steps and delta = 1e-5 are an epsilon of 1.26."""
    assert spent_on_records(((4.0, 0.01, 10_000),), 1e-5) == pytest.approx(1.26, abs=0.25)
    assert spent_on_records(((4.0, 0.01, 10_000),), 1e-5) < 1.26
    assert spent_on_records((), 1e-5) == 0.0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": GNN(hidden_channels=4, norm="batch")}, "`model` to be without batch normalisation with RecordNoise"),
        ({"model": GNN(hidden_channels=4, class_weights=[1.0, 2.0])}, "`model.class_weights` to be null"),
        ({"aggregator": FedProto()}, "`trainer.aggregator` to be one whose uploads hold no more than"),
        ({"accumulate_grad_batches": 2}, "`trainer.accumulate_grad_batches` to be 1 with RecordNoise"),
    ],
)
def test_what_it_does_not_go_with(run: Any, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        run(RecordNoise(1.0, 1.0), **change)


def test_no_gradient_with_noise_is_thrown_away(run: Any) -> None:
    later = pl.callbacks.GradientAccumulationScheduler({0: 1, 1: 2})
    with pytest.raises(InputError, match=r"`trainer\.accumulate_grad_batches` to be 1 with RecordNoise"):
        run(RecordNoise(1.0, 1.0), later, rounds=2)


def test_float16_is_refused(run: Any, float16: Any) -> None:
    with pytest.raises(InputError, match=r"`trainer\.precision` to be another than 16-mixed with RecordNoise"):
        run(RecordNoise(1.0, 1.0), float16)


def test_nodes_of_one_graph_are_no_records(federate: Any, toy_federation: Any, toy_module: Any) -> None:
    trainer: FederatedTrainer = federate(FedAvg(), callbacks=[RecordNoise(1.0, 1.0)], rounds=1)
    with pytest.raises(InputError, match=r"`data` to be of graphs with RecordNoise \(nodes of one graph"):
        trainer.fit(toy_module(), toy_federation(6, 6))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((0, 1.0), "norm"),
        ((1.0, 0.0), "multiplier"),
        ((1.0, math.inf), "multiplier"),
        ((1.0, 1.0, 0.0), "sample_rate"),
        ((1.0, 1.0, 1.5), "sample_rate"),
        ((1.0, 1.0, 0.5, 1.0), "delta"),
    ],
)
def test_arguments_that_cannot_be(arguments: Any, field: str) -> None:
    with pytest.raises(InputError, match=rf"`RecordNoise.{field}`"):
        RecordNoise(*arguments)


class Repeats(GNN):
    """Its optimizer takes many gradients of a batch."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


def test_several_gradients_of_a_batch_would_not_be_counted(run: Any) -> None:
    with pytest.raises(InputError, match="one whose optimizer takes one gradient of each batch"):
        run(RecordNoise(1.0, 1.0), model=Repeats(hidden_channels=4, dropout=0.0))


def test_a_mean_over_graphs_in_place_of_gaps(run: Any, data: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(data.client("trees").settings, "missing", "mean")
    with pytest.raises(InputError, match=r"`data\.missing` to be refuse or zero with RecordNoise"):
        run(RecordNoise(1.0, 1.0))


# ------------------------------------------------------------------------------------------------------ attacks
def test_noise_is_not_lost_in_numbers_too_small_for_it(monkeypatch: Any) -> None:
    """A job chooses ``norm``, and a policy bounds the multiplier alone."""
    optimizers = pytest.importorskip("opacus.optimizers")
    monkeypatch.setattr(record_noise, "_gradients", lambda *_: (torch.tensor([0.8, -0.6]),))
    loader = SimpleNamespace(graphs=SimpleNamespace(batch=lambda one: one))

    def sums(norm: float) -> Tensor:
        parameter, noise, count = torch.nn.Parameter(torch.zeros(2)), RecordNoise(norm, 1.5, 1.0), 400
        sgd: Any = torch.optim.SGD([parameter])
        noise._optimizer = optimizers.DPOptimizer(
            sgd, noise_multiplier=0.0, max_grad_norm=norm, expected_batch_size=count
        )
        noise._draw = Draw(draw_key(True, norm))
        each: Any = SimpleNamespace(accumulate_grad_batches=1)
        noise.on_train_batch_start(each, Any, SimpleNamespace(drawn_graphs=torch.arange(count)), 0)
        with flushing_denormals():
            noise.on_after_backward(cast(Any, SimpleNamespace(train_dataloader=loader)), cast(Any, SimpleNamespace()))
        return parameter.grad.double() * count / norm

    for norm in (1.0, 2e-37):
        off = sums(norm) - torch.tensor([320.0, -240.0])
        assert 0.01 < float(off.abs().min()) <= float(off.abs().max()) < 1.5 * 5


@pytest.mark.parametrize("sample_rate", [0.5, 1.0])
def test_at_a_site_nobody_draws_noise_again_who_knows_all_seeds_of_torch(
    run: Any, monkeypatch: Any, sample_rate: float
) -> None:
    """A generator of torch's has 32 bits of a seed, and these can be tried."""
    made = Client.__init__
    monkeypatch.setattr(Client, "__init__", lambda *args, **kwargs: made(*args, **{**kwargs, "simulated": False}))
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)
    noise = RecordNoise(1e-6, 3e6, sample_rate)
    assert apart(run(noise, aggregator=Local()), run(noise, aggregator=Local())) > 0.1


def test_a_graph_that_overflows_is_not_told_by_what_is_not_finite(run: Any, monkeypatch: Any) -> None:
    """Who chooses the weights could have one graph's gradient overflow, and no other's: no length bounds that."""
    honest = record_noise._gradients
    count = []

    def overflows(trainer: Any, model: Any, batch: Any, parameters: Any) -> Any:
        count.append(1)
        found = honest(trainer, model, batch, parameters)
        return tuple(g * (math.inf if len(count) == 1 else 1.0) for g in found)

    monkeypatch.setattr(record_noise, "_gradients", overflows)
    assert bool(weights(run(RecordNoise(1.0, 1.0, 1.0), aggregator=Local())).isfinite().all())


def test_what_an_algorithm_makes_of_losses_has_no_noise(run: Any) -> None:
    with pytest.raises(InputError, match=r"but got .FedProxAdaptive with what follows of losses"):
        run(RecordNoise(1.0, 1.0), aggregator=FedProxAdaptive())


def test_schedulers_that_follow_metrics(run: Any) -> None:
    class Follows(GNN):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "train/loss"}}

    with pytest.raises(InputError, match="`model` to be without schedulers that follow metrics"):
        run(RecordNoise(1.0, 1.0), model=Follows(hidden_channels=4))
