from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from flgraph.callbacks import FedAvg, Local
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.federation.seeding import derive_seed
from flgraph.models import GNN


def exact_gnn(data: Any) -> GNN:
    """A network without randomness, in float64, trained by plain gradient descent."""
    sizes = data.model_args
    return GNN(
        sizes["in_channels"],
        sizes["num_classes"],
        hidden_channels=4,
        num_layers=2,
        dropout=0.0,
        lr=0.05,
        weight_decay=0.0,
        optimizer="sgd",
    ).double()


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_one_full_batch_step_is_centralised_gradient_descent(
    weighting: Any, graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer]
) -> None:
    """On the union of all training graphs, which is sum_m n_m / N grad_m; with equal weights, on their mean loss."""
    data = graph_federation(batch_size=1000)
    trainer: Any = federate(FedAvg(weighting=weighting), rounds=5, evaluate_every=5, enable_checkpointing=False)
    trainer.fit(exact_gnn, data)

    torch.manual_seed(derive_seed(0, "A", "initial weights"))
    module = exact_gnn(data.client("A"))
    counts = [data.client(name).num_train_samples for name in "ABC"]
    assert len(set(counts)) > 1
    for _ in range(5):
        losses = []
        for name in "ABC":
            batch = data.client(name).graphs.batch(data.client(name).train)
            losses.append(F.cross_entropy(module(batch), batch.y))
        weights = [count / sum(counts) for count in counts] if weighting == "samples" else 3 * [1 / 3]
        gradients = torch.autograd.grad(
            sum(weight * loss for weight, loss in zip(weights, losses, strict=True)), list(module.parameters())
        )
        with torch.no_grad():
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter.sub_(0.05 * gradient)
    for name, tensor in trainer.engine.clients["B"].module.state_dict().items():
        torch.testing.assert_close(tensor, module.state_dict()[name], rtol=0, atol=1e-12)


def test_identical_clients_are_one_client(
    toy_federation: Callable[..., Any],
    toy_data: Callable[..., Any],
    toy_module: Any,
    federate: Callable[..., FederatedTrainer],
    assert_same: Callable[..., None],
) -> None:
    """Same data, no randomness: the mean of equal bits is those bits."""

    def run(*names: str) -> Any:
        trainer = federate(FedAvg(), rounds=4, local_epochs=2, enable_checkpointing=False)
        trainer.fit(toy_module(optimizer="adam"), toy_federation(**{name: toy_data(7, batch_size=3) for name in names}))
        return trainer

    one, many = run("A"), run("A", "B", "C")
    for name in "ABC":
        client = many.engine.clients[name]
        assert_same(client.module.state_dict(), one.engine.clients["A"].module.state_dict())
        assert_same(client.state()["optimizer_states"], one.engine.clients["A"].state()["optimizer_states"])
    assert many.history.last["mean"] == one.history.last["mean"]


def test_one_client_is_local_training(
    toy_federation: Callable[..., Any], toy_module: Any, federate: Callable[..., FederatedTrainer], assert_same: Any
) -> None:
    """A mean over one changes no bit."""
    states = []
    for aggregator in (FedAvg(), Local()):
        trainer: Any = federate(aggregator, rounds=3, enable_checkpointing=False)
        trainer.fit(toy_module(dropout=0.5, norm=True, optimizer="adam"), toy_federation(8, batch_size=3))
        states.append(trainer.engine.clients["A"].module.state_dict())
    assert_same(*states)


def test_data_sets_of_different_widths_share_what_has_one_shape(
    graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer], recorder: Any
) -> None:
    """3, 5 and 7 features: all but the input layer's weight is averaged; that one never leaves."""
    trainer: Any = federate(FedAvg(), rounds=2, engine=recorder, enable_checkpointing=False)
    trainer.fit(GNN(hidden_channels=4, num_layers=1), graph_federation(features=(3, 5, 7)))
    modules = {name: client.module.state_dict() for name, client in recorder.clients.items()}
    same = [name for name in modules["A"] if len({modules[client][name].shape for client in "ABC"}) == 1]
    assert set(modules["A"]) - set(same) == {"pre.weight"}
    for _, upload in recorder.uploads() + recorder.uploads("agree"):
        assert upload.tensors.keys() in ({*same}, set())
    for name in same:
        assert torch.equal(modules["A"][name], modules["C"][name])


def test_bytes_are_parameters_and_stated_headers(
    graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer], recorder: Any
) -> None:
    trainer: Any = federate(FedAvg(), rounds=2, engine=recorder, enable_checkpointing=False)
    results = trainer.fit(GNN(hidden_channels=8, num_layers=1), graph_federation())
    # pre 8x4 + 8; one GIN layer of two 8x8 + 8; post 8x8 + 8; readout 2x8 + 2
    parameters = (32 + 8) + 2 * (64 + 8) + (64 + 8) + (16 + 2)
    assert parameters == sum(p.numel() for p in recorder.clients["A"].module.parameters())
    up, down = recorder.uploads()[0][1], recorder.downloads()[0][2]
    for payload in (up, down):
        assert sum(tensor.nbytes for tensor in payload.tensors.values()) == 4 * parameters
        assert 0 < payload.nbytes - 4 * parameters < 1500
    assert results["bytes_per_round"] == {
        "up": sum(upload.nbytes for _, upload in recorder.uploads()) / 2,
        "down": 3 * down.nbytes,
    }
    # Before the first round each client is told what all share, and gets the initial values.
    told = results["setup_bytes"]["down"] - 3 * down.nbytes
    assert 0 < told < 3 * 1000


def test_weights_of_the_mean(toy_federation: Any, toy_module: Any, federate: Any, recorder: Any) -> None:
    """6 and 9 rows: 0.4 and 0.6 by samples, 0.5 each when uniform."""
    for weighting, share in (("samples", 0.4), ("uniform", 0.5)):
        engine = type(recorder)()
        federate(FedAvg(weighting=weighting), rounds=1, engine=engine).fit(toy_module(), toy_federation(6, 9))
        uploads = dict(engine.uploads())
        a, b = (uploads[name].tensors["last.weight"].double() for name in "AB")
        result = engine.clients["A"].module.last.weight.double()
        torch.testing.assert_close(result, share * a + (1 - share) * b, rtol=0, atol=1e-7)


def test_refuses_what_it_does_not_know() -> None:
    with pytest.raises(InputError, match=r"`aggregator\.weighting` to be samples or uniform but got 'size'"):
        FedAvg(weighting="size")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"`aggregator\.optimizer_state` to be keep or reset but got 'drop'"):
        FedAvg(optimizer_state="drop")  # type: ignore[arg-type]
