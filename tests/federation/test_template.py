from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from flgraph.callbacks import FedAvg
from flgraph.errors import InputError
from flgraph.federation import Client, FederatedTrainer, Payload
from flgraph.federation.template import client_module
from flgraph.models import GNN


class Data:
    def __init__(self, **sizes: int) -> None:
        self.model_args = sizes
        self.num_train_samples = 1


class Plain(pl.LightningModule):
    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, width)


class Saved(Plain):
    def __init__(self, width: int = 2, in_features: int | None = None, loss: Callable[..., Any] | None = None) -> None:
        super().__init__(width)
        self.save_hyperparameters(ignore=["loss"])
        self.loss = loss


def make(model: Any, seed: int = 0, name: str = "A", **sizes: int) -> Any:
    return client_module(model, Data(**sizes), seed, name)  # type: ignore[arg-type]


def test_open_sizes_are_those_of_the_data() -> None:
    module = make(GNN(hidden_channels=4), in_channels=7, num_classes=3, structure_channels=5)
    assert (module.hparams["in_channels"], module.hparams["num_classes"], module.hparams["hidden_channels"]) == (
        7,
        3,
        4,
    )
    assert module.hparams["structure_channels"] == 0, "0 says: without"
    assert make(GNN(structure_channels=-1), in_channels=7, num_classes=3, structure_channels=5).structure_channels == 5


def test_a_size_that_contradicts_the_data_is_refused() -> None:
    with pytest.raises(InputError, match=r"`model\.in_channels` to be 7, as in the data of client `A`, but got 6"):
        make(GNN(in_channels=6), in_channels=7, num_classes=2)
    assert make(GNN(in_channels=7), in_channels=7, num_classes=2).in_channels == 7


def test_sizes_that_wait_for_a_batch_are_refused() -> None:
    """Neither routes nor averages can be made of them."""

    def lazy(data: Data) -> pl.LightningModule:
        module = Plain()
        module.layer = torch.nn.LazyLinear(2)
        return module

    with pytest.raises(InputError, match=r"`model` to be of sizes .* client `A` .* but got 'Plain with `layer.weight`"):
        make(lazy)


def test_a_model_that_nobody_gave_its_size_is_refused() -> None:
    class Unsized(pl.LightningModule):
        def __init__(self, width: int = -1) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(width, 2) if width > 0 else None

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    with pytest.raises(InputError, match=r"sizes that its saved hyper-.* got 'Unsized without parameters'"):
        make(Unsized(), width=3)


def test_initial_weights_depend_on_seed_and_client_alone() -> None:
    def weights(seed: int, name: str) -> list[float]:
        torch.rand(seed + 1)  # whatever happened before
        return [float(p.detach().sum()) for p in make(GNN(), seed, name, in_channels=2, num_classes=2).parameters()]

    assert weights(0, "A") == weights(0, "A")
    assert weights(0, "A") != weights(0, "B")
    assert weights(0, "A") != weights(1, "A")


def test_a_module_without_hyperparameters_is_copied_with_its_weights() -> None:
    given = Plain(3)
    module = make(given, in_features=9)
    assert module is not given
    assert torch.equal(module.layer.weight, given.layer.weight)
    assert module.layer.weight.data_ptr() != given.layer.weight.data_ptr()


def test_what_was_not_saved_is_not_lost() -> None:
    """An argument left out of the hyper-parameters cannot be given again: made anew, the module would be without it."""
    given = Saved(loss=torch.nn.functional.mse_loss)
    assert make(given).loss is torch.nn.functional.mse_loss


def test_a_subclass_that_passes_everything_on_is_made_anew() -> None:
    class Passing(GNN):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    assert make(Passing(hidden_channels=4), in_channels=7, num_classes=3).readout.weight.shape == (3, 4)


def test_a_subclass_with_fewer_arguments_is_made_anew() -> None:
    """Its base class saved what the subclass decides itself."""

    class Narrow(GNN):
        def __init__(self, in_channels: int = -1, num_classes: int = -1) -> None:
            super().__init__(in_channels, num_classes, hidden_channels=5)
            self.save_hyperparameters()

    assert make(Narrow(), in_channels=7, num_classes=3).readout.weight.shape == (3, 5)


def test_a_function_is_called_with_the_data_and_seeded() -> None:
    first, second = (make(lambda data: Plain(data.model_args["width"]), width=4) for _ in range(2))
    assert first.layer.weight.shape == (4, 4)
    assert torch.equal(first.layer.weight, second.layer.weight)


class Drawn(FedAvg):
    """The server half makes a model like the clients', of widths that they tell, and adds its weights to the mean's."""

    upload_scalars = ("num_samples", "in_features")
    common_scalars = ("in_features",)

    def upload(self, client: Client, round: int, exchange: str) -> Payload:
        own = super().upload(client, round, exchange)
        assert own is not None
        return Payload(own.tensors, {**own.scalars, "in_features": client.data.model_args["in_features"]})

    def aggregate(self, uploads: Any, round: int, exchange: str) -> Any:
        made = self.make_model({"in_features": next(iter(uploads.values())).scalars["in_features"]}).state_dict()
        mean = super().aggregate(uploads, round, exchange)
        return {name: tensor + made[name] for name, tensor in mean.items()}


def test_the_server_half_has_the_template(
    federate: Callable[..., FederatedTrainer],
    toy_federation: Callable[..., Any],
    toy_module: type[Any],
) -> None:
    """The same one whenever it is made, after a restart, too; clients have none."""

    def run(rounds: int, name: str, ckpt: str | None = None) -> Any:
        trainer: Any = federate(Drawn(), rounds=rounds, name=name)
        trainer.fit(toy_module(), toy_federation(4, 6), ckpt_path=ckpt)
        return trainer

    whole = run(2, "whole")
    run(1, "cut")
    resumed = run(2, "cut", "last")
    for name, client in whole.engine.clients.items():
        assert client.aggregator.template is None
        for key, tensor in client.module.state_dict().items():
            assert torch.equal(tensor, resumed.engine.clients[name].module.state_dict()[key])
    made = [whole.server.aggregator.make_model({"in_features": 4}).state_dict() for _ in range(2)]
    assert all(torch.equal(tensor, made[1][name]) for name, tensor in made[0].items())
    whole.server.aggregator.template = toy_module(4)
    with pytest.raises(InputError, match=r"`model\.in_features` to be 5, as in what clients tell, but got 4"):
        whole.server.aggregator.make_model({"in_features": 5})


def test_a_function_of_clients_data_is_no_template(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: type[Any]
) -> None:
    with pytest.raises(InputError, match="`model` to be a LightningModule, as this algorithm's server half uses it"):
        federate(Drawn(), rounds=1).fit(lambda data: toy_module(4), toy_federation(4, 6))
