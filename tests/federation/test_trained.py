"""What a trainer holds after a run."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from rich.console import Console

from flgraph.callbacks import EarlyStopping, FedAvg, Local
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.federation.display import RoundProgress
from flgraph.federation.lightning import copy_of
from flgraph.runs import results as runs_results

Federate = Callable[..., FederatedTrainer]


@pytest.fixture
def data(toy_federation: Callable[..., Any]) -> Any:
    return toy_federation(6, 8)


def test_results_as_frames(federate: Federate, data: Any, toy_module: Any) -> None:
    trainer = federate(FedAvg(), rounds=3, evaluate_every=2)
    results = trainer.fit(toy_module(), data)
    history, clients = results.history, results.clients
    assert list(history.index) == [1, 2, 3]
    assert history["bytes_up"].min() > 0
    assert list(history["test/accuracy"].notna()) == [False, True, True]
    assert history["test/loss"][3] == results["final"]["mean"]["test/loss"]
    assert list(clients.index) == ["A", "B"]
    assert clients["val/loss"].to_dict() == {name: results["final"]["clients"][name]["val/loss"] for name in "AB"}
    assert json.loads(json.dumps(results)) == dict(results)
    text = repr(results)
    assert text.startswith("Results(3 rounds, 2 clients, test/loss ")
    assert text.endswith(f", in {trainer.run_dir})")
    assert len(text.replace(str(trainer.run_dir), "")) < 120


def test_frames_without_pandas(federate: Federate, data: Any, toy_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    results = federate(FedAvg(), rounds=1).fit(toy_module(), data)
    monkeypatch.setattr(runs_results, "import_module", absent)
    for part in ("history", "clients"):
        with pytest.raises(InputError, match=r"^Expected `pandas` to be installed \(`pip install 'flgraph\[data\]'`\)"):
            getattr(results, part)


def test_checkpoints_say_what_they_lack(federate: Federate, data: Any, toy_module: Any) -> None:
    class Activated(toy_module):  # type: ignore[misc]
        def __init__(self, in_features: int = -1, act: Any = torch.nn.ReLU) -> None:
            super().__init__(in_features)
            self.save_hyperparameters()

    with pytest.warns(UserWarning, match="^Checkpoints of clients are without act of Activated, which are no plain"):
        federate(Local(), rounds=1).fit(Activated(act=torch.nn.Tanh), data)


def test_a_test_of_nothing_says_so(federate: Federate, data: Any, toy_module: Any) -> None:
    class Untested(toy_module):  # type: ignore[misc]
        test_step = pl.LightningModule.test_step

    trainer = federate(Local(), rounds=1)
    trainer.fit(Untested(), data)
    with pytest.warns(UserWarning, match="^No client has anything to tell of test, which takes a model with a test_st"):
        assert not any(trainer.test().values())


def test_a_clients_model(federate: Federate, data: Any, toy_module: Any) -> None:
    """It is a copy that a plain Trainer takes, and of which nothing goes back."""
    trainer = federate(Local(), rounds=2)
    trainer.fit(toy_module(), data)
    model = trainer.client_model("B")
    tested = pl.Trainer(logger=False, enable_progress_bar=False, enable_model_summary=False).test(
        model, data.client("B").test_dataloader(), verbose=False
    )
    assert tested[0]["test/loss"] == pytest.approx(trainer.test()["B"]["test/loss"])
    assert not trainer.client_model("B").training
    pickle.dumps(trainer.client_model("B").state_dict())
    with torch.no_grad():
        model.first.weight.zero_()
    assert trainer.client_model("B").first.weight.abs().sum() > 0
    assert trainer.model is None  # each has its own
    with pytest.raises(InputError, match="`client` to be one of those in this process, A, B, but got 'C'"):
        trainer.client_model("C")


def test_a_copy_leaves_the_trainers_of_parts_behind(toy_module: Any) -> None:
    whole, trainer = toy_module(), pl.Trainer(logger=False, enable_progress_bar=False, enable_model_summary=False)
    whole.first = toy_module()
    whole.trainer = trainer
    twin = copy_of(whole)
    assert (twin._trainer, twin.first._trainer) == (None, None)
    assert whole.trainer is whole.first.trainer is trainer


def test_the_common_model_and_its_metrics(federate: Federate, data: Any, toy_module: Any) -> None:
    trainer = federate(FedAvg(), rounds=2)
    assert trainer.model is None
    assert trainer.callback_metrics == {}
    results = trainer.fit(toy_module(), data)
    for name in "AB":
        for own, common in zip(trainer.client_model(name).parameters(), trainer.model.parameters(), strict=True):
            assert torch.equal(own, common)
    assert trainer.callback_metrics["val/accuracy"] == pytest.approx(results["final"]["mean"]["val/accuracy"])


def test_a_second_fit_begins_anew(federate: Federate, data: Any, toy_module: Any) -> None:
    """In a folder of its own, with the same bits, and with callbacks that remember nothing of the first."""
    trainer = federate(
        FedAvg(), rounds=4, callbacks=[EarlyStopping(monitor="val/loss", mode="max", patience=2, average="clients")]
    )
    first = trainer.fit(toy_module(), data)
    folder = trainer.run_dir
    second = trainer.fit(toy_module(), data)
    assert folder is not None
    assert trainer.run_dir == folder.parent / "version_1"
    assert first["stopped_early"]
    measured = ("final", "best_val", "rounds", "stopped_early", "bytes_per_round")
    assert [first[name] for name in measured] == [second[name] for name in measured]


@pytest.mark.parametrize("widgets", [True, False])
def test_notebooks_have_a_bar_where_widgets_are(monkeypatch: pytest.MonkeyPatch, widgets: bool) -> None:
    """Without ipywidgets rich would warn, and draw nothing before the end."""
    monkeypatch.setattr("flgraph.federation.display.find_spec", lambda name: object() if widgets else None)
    monkeypatch.setattr("rich.progress.Progress.start", lambda self: None)
    shown: Any = RoundProgress(Console(force_jupyter=True))
    shown.on_federation_start(type("Run", (), {"current_round": 0, "rounds": 2}))
    assert (shown._progress is not None) == widgets
