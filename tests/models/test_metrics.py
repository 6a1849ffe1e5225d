from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch.nn import functional as F
from torchmetrics.functional import classification

from flgraph.callbacks import FedAvg
from flgraph.cli.main import main
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN, NodeGCN
from flgraph.models.metrics import METRICS, class_metrics, label_metrics


def drawn(classes: int, shown: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(classes)
    target = torch.randint(shown, (60,), generator=generator)
    return torch.randn(60, classes, generator=generator) + F.one_hot(target, classes), target


@pytest.mark.parametrize(("classes", "shown"), [(2, 2), (4, 4), (5, 3)])
def test_equal_to_scikit_learn(classes: int, shown: int) -> None:
    """Of five classes two occur neither as labels nor, here, as predictions."""
    logits, y = drawn(classes, shown)
    if shown < classes:
        logits[:, shown:] = -9
    found = {name: float(value) for name, value in class_metrics(METRICS["multiclass"], logits, y).items()}
    guess, truth, scores = logits.argmax(1).numpy(), y.numpy(), logits.softmax(1).numpy()
    macro: dict[str, Any] = {"average": "macro", "zero_division": 0, "labels": list(range(shown))}
    one_hot = np.eye(classes)[truth]
    each = [1] if classes == 2 else range(shown)
    matrices = reference.multilabel_confusion_matrix(truth, guess, labels=list(range(shown)))
    expected = {
        "accuracy": reference.accuracy_score(truth, guess),
        "balanced_accuracy": reference.balanced_accuracy_score(truth, guess),
        "f1": reference.f1_score(truth, guess, **macro),
        "precision": reference.precision_score(truth, guess, **macro),
        "recall": reference.recall_score(truth, guess, **macro),
        "specificity": np.mean([m[0, 0] / m[0].sum() for m in matrices]),
        "cohen_kappa": reference.cohen_kappa_score(truth, guess),
        "matthews_corrcoef": reference.matthews_corrcoef(truth, guess),
        "auroc": np.mean([reference.roc_auc_score(one_hot[:, c], scores[:, c]) for c in each]),
        "average_precision": np.mean([reference.average_precision_score(one_hot[:, c], scores[:, c]) for c in each]),
    }
    assert list(found) == list(METRICS["multiclass"])
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("classes", "shown"), [(2, 1), (2, 2), (5, 3), (40, 11)])
def test_bits_of_torchmetrics(classes: int, shown: int) -> None:
    """Of what is computed here, since torchmetrics takes as long for it as a small model for a layer."""
    logits, y = drawn(classes, shown)
    found = class_metrics(["accuracy", "f1"], logits, y)
    for name, average in (("accuracy", "micro"), ("f1", "macro")):
        metric = {"accuracy": classification.multiclass_accuracy, "f1": classification.multiclass_f1_score}[name]
        assert torch.equal(found[name], metric(logits, y, num_classes=classes, average=average))


def test_what_has_no_meaning_is_left_out() -> None:
    logits, _ = drawn(3, 3)
    found = class_metrics(METRICS["multiclass"], logits, torch.zeros(60, dtype=torch.long))
    assert list(found) == ["accuracy", "balanced_accuracy", "f1", "precision", "recall"]


@pytest.mark.parametrize("measure", [class_metrics, label_metrics])
def test_the_order_of_scores_does_not_depend_on_their_size(measure: Callable[..., Any]) -> None:
    """As float32, probabilities of large logits are 1, and would all be equal."""
    logits, y = drawn(2, 2)
    target = F.one_hot(y).float() if measure is label_metrics else y
    names = ["auroc", "average_precision"]
    small, large = (measure(names, logits * factor, target) for factor in (1, 64))
    assert small == large
    logits[0, 0] = math.nan
    assert all(math.isnan(value) for value in measure(names, logits, target).values())


def test_the_order_of_large_logits_of_several_classes() -> None:
    logits, y = drawn(4, 4)
    logits *= 64
    ratios = (
        logits.double().unsqueeze(1) - logits.double().unsqueeze(2)
    ).exp()  # [n, c, j]: of probabilities, j's to c's
    others = (ratios * (1 - torch.eye(4))).sum(dim=2)
    areas = [reference.roc_auc_score(y == c, -others[:, c]) for c in range(4)]
    assert float(class_metrics(["auroc"], logits, y)["auroc"]) == pytest.approx(np.mean(areas), rel=1e-6)


@pytest.mark.parametrize("weights", [None, [0.5, 3.0]])
def test_classes_count_as_they_are_weighed(weights: Any, graph_federation: Callable[..., Any]) -> None:
    data = graph_federation()
    data.setup("fit")
    (batch, *_) = data.client("A").train_dataloader()
    model = GNN(4, 2, hidden_channels=4, dropout=0.0, class_weights=weights)
    torch.manual_seed(0)
    losses = F.cross_entropy(model(batch), batch.y, reduction="none")
    share = torch.tensor(weights or [1.0, 1.0])[batch.y]
    torch.testing.assert_close(model.training_step(batch), (losses * share).sum() / share.sum())
    assert "class_weights" not in model.state_dict()
    parts = [(model._weighted_loss(logits, y), logits, y) for logits, y in (drawn(2, 2), drawn(2, 1))]
    parts.append((torch.tensor(math.nan), torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)))
    found = model.epoch_metrics("val", parts)["loss"]
    logits, y = (torch.cat(both) for both in list(zip(*parts, strict=True))[1:])
    torch.testing.assert_close(found, model._weighted_loss(logits, y))  # whatever the size of batches


def test_they_are_logged_and_monitored(
    graph_federation: Callable[..., Any], federate: Callable[..., FederatedTrainer]
) -> None:
    trainer = federate(FedAvg(), rounds=2, monitor="val/auroc")
    results = trainer.fit(GNN(hidden_channels=4, metrics=["auroc", "recall"]), graph_federation())
    names = {name.rpartition("/")[2] for name in results["final"]["clients"]["A"] if name.startswith("test/")}
    assert names == {"loss", "auroc", "recall", "samples"}
    assert trainer.history.best["round"] in (1, 2)


def test_on_the_command_line(tmp_path: Path) -> None:
    args = ["-c=configs/quickstart.yaml", "-c=configs/method/fedavg.yaml"]
    args += ["--model.metrics=[accuracy,average_precision]"]
    sizes = ["--trainer.rounds=1", "--model.hidden_channels=4", "--data.num_graphs=20", "--trainer.logger=false"]
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    quiet += [f"--trainer.default_root_dir={tmp_path}"]
    main(["fit", *args, *sizes, *quiet])
    (file,) = tmp_path.rglob("results.json")
    mean = json.loads(file.read_text())["final"]["mean"]
    assert 0 < mean["test/average_precision"] <= 1
    assert "test/f1" not in mean


def test_bad_settings() -> None:
    for settings, sentence in (
        ({"metrics": ["accuracy", "rmse"]}, r"`model\.metrics` to be names among accuracy, .* but got 'rmse'"),
        ({"metrics": ["f1", "f1"]}, r"`model\.metrics` to be names that differ"),
        ({"class_weights": [1.0]}, r"`model\.class_weights` to be 3 numbers, one for each class, but got \[1\.0\]"),
        ({"class_weights": [1.0, 0.0, 2.0]}, r"`model\.class_weights` to be finite numbers above 0"),
        ({"class_weights": [1.0, math.inf, 2.0]}, r"`model\.class_weights` to be finite numbers above 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            NodeGCN(4, 3, **settings)  # type: ignore[arg-type]


def test_kappa_of_one_class_has_no_meaning() -> None:
    logits = torch.tensor([[2.0, 1.0], [3.0, 1.0]])
    assert set(class_metrics(["cohen_kappa", "accuracy"], logits, torch.tensor([0, 0]))) == {"accuracy"}
    assert set(class_metrics(["cohen_kappa"], logits, torch.tensor([0, 1]))) == {"cohen_kappa"}
