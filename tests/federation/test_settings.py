"""What runs are compared by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from flgraph.callbacks import DFedGNN, EarlyStopping, FedAvg, FedEgo, FedPer, FedProxAdaptive
from flgraph.cli.main import main
from flgraph.errors import InputError
from flgraph.federation import Aggregator, Combine, FederatedCallback, FederatedTrainer, shared
from flgraph.federation.settings import describe
from flgraph.models import FedEgo as FedEgoNet


class Trimmed(Combine):
    """A mean without the largest value, or so it says."""

    def __init__(self, share: float = 0.1, inner: Combine | None = None) -> None:
        self.share, self.inner = share, inner

    def __call__(self, tensors: Any, weights: Any) -> dict[str, Tensor]:
        names = next(iter(tensors.values()))
        return {name: torch.stack([own[name] for own in tensors.values()]).mean(0) for name in names}


class Untrimmed(Trimmed):
    """Another one."""


class Saved(pl.LightningModule):
    def __init__(self, width: int = 2, loss: Any = None, skipped: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["skipped"])


class Plain(pl.Callback):
    def __init__(self) -> None:
        self.every, self.seen, self._hidden = 5, [], 3  # type: ignore[var-annotated]


def make(data: Any) -> Any: ...


def test_algorithms_are_described_by_all_arguments() -> None:
    arguments = {"base": ("convs.*",), "weighting": "samples"}
    usual = {**arguments, "optimizer_state": "keep", "combine": None, "evaluated_model": None}
    assert describe(FedPer()) == ({"class": "FedPer", **usual}, usual)
    told, defaults = describe(FedPer(["a.*"], optimizer_state="reset"))
    assert told == {"class": "FedPer", **usual, "base": ["a.*"], "optimizer_state": "reset"}
    assert defaults == usual
    assert describe(FedProxAdaptive(0.1))[0]["mu"] == 0.1
    assert {"noise", "server_lr", "server_accelerator"} <= describe(FedEgo())[0].keys()


def test_objects_among_the_arguments_are_described_too() -> None:
    told = describe(FedAvg(combine=Trimmed(0.2, Untrimmed())))[0]
    assert told["combine"] == {
        "class": "Trimmed",
        "share": 0.2,
        "inner": {"class": "Untrimmed", "share": 0.1, "inner": None},
    }
    assert describe(Saved(loss=torch.nn.functional.mse_loss, skipped=make))[0] == {
        "class": "Saved",
        "width": 2,
        "loss": {"class": "mse_loss"},
    }


def test_arguments_that_are_no_plain_values_are_described_by_what_was_made_of_them() -> None:
    one, other = (describe(DFedGNN(nx.Graph([("A", name)])))[0] for name in "BC")
    assert (one["topology"], other["topology"]) == ([["A", "B"]], [["A", "C"]])


def test_rules_among_the_attributes_are_no_obstacle() -> None:
    class Rules(FedAvg):
        def __init__(self, table: Any = None) -> None:
            super().__init__()
            self.rules, self.table = shared("*", on_mismatch="personal"), table

    assert describe(Rules({"a": 1}))[0] == {"class": "Rules", "table": {"a": 1}}


def test_models_may_be_functions() -> None:
    assert describe(make) == ({"class": "make"}, {})
    assert describe(partial(make, 3))[0] == {"class": "partial"}


def test_a_description_does_not_change_with_what_it_is_of() -> None:
    callback = Plain()
    told = describe(callback)[0]
    callback.seen.append(torch.ones(1))
    assert told == {"class": "Plain", "every": 5, "seen": []}


class Stateless(FederatedCallback):
    """Does nothing."""

    def __init__(self, after: int, *rest: str, **more: float) -> None:
        self.after = after * 100


def test_arguments_are_noted_as_given() -> None:
    assert Stateless(3, scale=2.0).arguments == {"after": 3, "scale": 2.0}
    assert Stateless(after=3).arguments == {"after": 3}


# --------------------------------------------------------------------------------------------------- runs that go on
Run = Callable[..., FederatedTrainer]


@pytest.fixture
def run(federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any) -> Run:
    """Runs a federation of two clients, or goes on with the last run."""

    def fit(aggregator: Aggregator | None = None, rounds: int = 1, ckpt: str | None = None, **kwargs: Any) -> Any:
        trainer = federate(aggregator or FedAvg(), rounds=rounds, **kwargs)
        trainer.fit(toy_module(), toy_federation(6, 8), ckpt_path=ckpt)
        return trainer

    return fit


def stop(patience: int = 5, **kwargs: Any) -> EarlyStopping:
    return EarlyStopping("val/loss", "min", patience, average="clients", **kwargs)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({}, {"aggregator": FedAvg(combine=Trimmed())}, r"`trainer\.aggregator\.combine"),
        ({"aggregator": FedAvg(combine=Trimmed())}, {}, r"`trainer\.aggregator\.combine"),
        (
            {"aggregator": FedAvg(combine=Trimmed())},
            {"aggregator": FedAvg(combine=Trimmed(0.2))},
            r"`trainer\.aggregator\.combine\.share` to be 0\.1 .* but got 0\.2",
        ),
        (
            {"aggregator": FedAvg(combine=Trimmed())},
            {"aggregator": FedAvg(combine=Untrimmed())},
            r"`trainer\.aggregator\.combine` to be 'Trimmed'",
        ),
        (
            {"aggregator": DFedGNN(nx.Graph([("A", "B")]))},
            {"aggregator": DFedGNN([])},
            r"`trainer\.aggregator\.topology` to be \[\['A', 'B'\]\]",
        ),
        ({"callbacks": [stop()]}, {"callbacks": [stop(6)]}, r"`callbacks\.EarlyStopping\.patience` to be 5 .* got 6"),
        (
            {"callbacks": [Stateless(1), Stateless(2)]},
            {"callbacks": [Stateless(1), Stateless(3)]},
            r"`callbacks\.Stateless 2\.after` to be 2",
        ),
        ({"personal": ["first.*"]}, {}, r"`trainer\.personal` to be \['first\.\*'\]"),
    ],
    ids=["combine", "no combine", "its argument", "its class", "graph", "callback", "second callback", "personal"],
)
def test_what_a_run_must_not_go_on_with(before: dict[str, Any], after: dict[str, Any], message: str, run: Run) -> None:
    run(**before)
    with pytest.raises(InputError, match=message):
        run(rounds=2, ckpt="last", **after)


def test_callbacks_may_come_and_go(run: Run) -> None:
    """As long as one that stays has the same arguments. Whoever tests a checkpoint needs none of them."""
    run(callbacks=[stop()])
    assert run(rounds=2, ckpt="last", callbacks=[Plain()]).current_round == 2
    assert run(rounds=3, ckpt="last", callbacks=[stop()]).current_round == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"noise": 0.5}, r"`trainer\.aggregator\.noise` to be 0\.1 .* but got 0\.5"),
        ({"server_lr": None}, r"`trainer\.aggregator\.server_lr` to be 0\.02 .* but got None"),
        ({"server_lr": 0.03}, r"`trainer\.aggregator\.server_lr` to be 0\.02 .* but got 0\.03"),
        ({"combine": Trimmed()}, r"`trainer\.aggregator\.combine"),
    ],
    ids=["noise", "server_lr left out", "server_lr", "combine"],
)
def test_an_algorithm_s_settings_are_compared_under_their_names(
    changed: dict[str, Any], message: str, federate: Callable[..., Any], ego_federation: Callable[..., Any]
) -> None:
    """Wherever the algorithm keeps them."""
    given: dict[str, Any] = {"noise": 0.1, "server_lr": 0.02}
    model = FedEgoNet(hidden_channels=4)
    federate(FedEgo(**given), rounds=1).fit(model, ego_federation())
    with pytest.raises(InputError, match=message):
        federate(FedEgo(**{**given, **changed}), rounds=2).fit(model, ego_federation(), ckpt_path="last")


def test_where_the_server_computes_is_a_matter_of_the_machine(
    federate: Callable[..., Any], ego_federation: Callable[..., Any]
) -> None:
    given: dict[str, Any] = {"noise": 0.1, "server_lr": 0.02}
    for rounds, ckpt, accelerator in ((1, None, "auto"), (2, "last", "cpu")):
        trainer = federate(FedEgo(**given, server_accelerator=accelerator), rounds=rounds)
        results = trainer.fit(FedEgoNet(hidden_channels=4), ego_federation(), ckpt_path=ckpt)
        assert results["rounds"] == rounds


def test_the_command_line_compares_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trimmed = f"{Trimmed.__module__}.Trimmed"

    def flgraph(*args: str) -> str:
        data = ("--data=SyntheticFederation", "--data.domains=[trees,rings]", "--data.num_graphs=12")
        model = ("--model=GNN", "--model.hidden_channels=4", "--model.num_layers=1")
        where = (
            f"--trainer.default_root_dir={tmp_path}",
            "--trainer.accelerator=cpu",
            "--trainer.logger=false",
            "--trainer.enable_progress_bar=false",
        )
        with suppress(SystemExit):
            main(["fit", *data, *model, *where, *args])
        return capsys.readouterr().err

    aggregator = ("--trainer.aggregator=FedProx", "--trainer.aggregator.mu=0.5")
    combine = (f"--trainer.aggregator.combine={trimmed}", "--trainer.aggregator.combine.share=0.3")
    stopping = ("--trainer.callbacks=flgraph.callbacks.EarlyStopping", "--trainer.callbacks.patience=4")
    last = ("--trainer.rounds=2", "--ckpt_path=last")
    assert flgraph(*aggregator, *combine, *stopping, "--trainer.rounds=1") == ""
    for args, sentence in (
        ((*aggregator, *stopping), "`trainer.aggregator.combine"),
        ((*aggregator, *combine, *stopping, "--trainer.aggregator.combine.share=0.4"), "combine.share` to be 0.3"),
        ((*aggregator, *combine, *stopping, "--trainer.aggregator.mu=0.1"), "`trainer.aggregator.mu` to be 0.5"),
        ((*aggregator, *combine, *stopping, "--trainer.callbacks.patience=5"), "EarlyStopping.patience` to be 4"),
    ):
        assert sentence in flgraph(*args, *last)
    assert flgraph(*aggregator, *combine, *stopping, *last) == ""
