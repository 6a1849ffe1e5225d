"""Data, settings and checkpoints that cannot be used: exit code 2 and one sentence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from flgraph.callbacks import FedAvg
from flgraph.data import GraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN

Call = Callable[..., Any]  # see conftest.py

FEDPER = ("-c", "configs/method/fedper.yaml")


# ---------------------------------------------------------------------------------------------------------------- data
def test_unknown_data_set(call: Call, small: list[str], tu_root: Path) -> None:
    sentence = call("fit", *FEDPER, *small, "--data.datasets", "[ALPHA, GAMMA]").sentence
    assert sentence.startswith("Expected `data.root` or `FLGRAPH_DATA` to be a folder with GAMMA.zip")
    assert f"but got {tu_root}, which has neither, and the download failed" in sentence
    assert "no route to host" in sentence


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"graph_labels": None}, "`ALPHA_graph_labels.txt` to be a file but got none"),
        ({"A": ["1, 2", "2, 100000"]}, "edges between nodes 1 to 173 but got [2, 100000]"),
        ({"A": ["0, 1"]}, "edges between nodes 1 to 173 but got [0, 1]"),
        ({"A": ["1, 173"]}, "edges between nodes of one graph but got [1, 173]"),
        ({"graph_labels": ["0"] * 39}, "one line for each of 40 graphs but got 39"),
        ({"graph_labels": ["0"] * 39 + ["x"]}, "`ALPHA_graph_labels.txt`"),
        ({"node_attributes": ["0.5"] * 172 + ["nan"]}, "to be finite but got NaN or infinity on line 173"),
        ({"node_attributes": ["0.5"] * 3}, "one line for each of 173 nodes but got 3"),
    ],
    ids=["missing file", "edge beyond", "edge of 0", "edge between", "few labels", "no label", "NaN", "few nodes"],
)
def test_malformed_data_set(
    call: Call, broken: Callable[..., Path], small: list[str], changes: dict[str, list[str] | None], told: str
) -> None:
    root = broken(**changes)
    options = ("--data.datasets", "[ALPHA]", "--data.root", str(root), "--data.features", "auto")
    sentence = call("fit", *FEDPER, *small, *options).sentence
    assert told in sentence
    assert str(root / "ALPHA.zip") in sentence


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--data.datasets", "[ALPHA, ALPHA]"],
            "Expected `data.datasets` to be different data sets but got ['ALPHA', ",
        ),
        (["--data.datasets", "[]"], "Expected `data.datasets` to be at least one data set but got []."),
        (["--data.shards", "0"], "Expected `data.shards` to be 1 or more but got 0."),
        (
            ["--data.shards", "100"],
            "Expected `data.shards` to be at most 40, the number of graphs of ALPHA, but got 100.",
        ),
        (["--data.shards", "30"], "validation set but got [0.8, 0.1, 0.1] of 2 samples in client `ALPHA-1`."),
        (["--data.batch_size", "-1"], "Expected `data.batch_size` to be 1 or more but got -1."),
        (["--data.eval_batch_size", "0"], "Expected `data.eval_batch_size` to be 1 or more but got 0."),
        (["--data.fractions", "[0.5, 0.1, 0.1]"], "sum to 1, the first of them positive, but got [0.5, 0.1, 0.1]"),
        (
            ["--data.fractions", "[0.5, 0.5]"],
            "`data.fractions` to be three numbers of 0 or more that",
        ),
        (["--data.features", "attributes"], "Expected `features` to be one of auto, labels, degree, mvgrl for ALPHA"),
        (["--data.diffusion", "ppr"], "Expected `data.diffusion` to be the name of a class but got 'ppr'."),
        (["--data.diffusion.alpha", "x"], "Expected `data.diffusion.alpha` to be of type float but got x."),
        (["--data.rwse_dim", "0"], "Expected `data.rwse_dim` to be 1 or more but got 0."),
        (["--trainer.rounds", "0"], "Expected `trainer.rounds` to be a whole number of 1 or more but got 0."),
        (["--trainer.local_epochs", "-2"], "Expected `trainer.local_epochs` to be a whole number of 1 or more"),
        (
            ["--trainer.client_fraction", "0"],
            "Expected `trainer.client_fraction` to be above 0 and at most 1 but got 0",
        ),
        (["--trainer.name", "a/b"], "Expected `trainer.name` to be the name of a folder, without / but got 'a/b'."),
        (
            ["--trainer.monitor", "val/acc"],
            "Expected `trainer.monitor` to be one of val/accuracy, val/f1, val/loss but",
        ),
        (
            ["--trainer.accelerator", "cuda"],
            "Expected `trainer.accelerator` to be one that Lightning takes here but got",
        ),
        (["--trainer.accelerator", "abacus"], "but got 'abacus': You selected an invalid accelerator name"),
        (
            ["--trainer.devices", "3"],
            "Expected `trainer.devices` to be one device, which all clients of a process share",
        ),
        (
            ["--trainer.precision", "17"],
            "Expected `trainer.precision` to be one that Lightning takes here but got '17'",
        ),
        (
            ["--trainer.strategy", "nope"],
            "Expected `trainer.strategy` to be one that Lightning takes here but got 'nope'",
        ),
        (["--trainer.limit_train_batches", "2.5"], "Expected `trainer.limit_train_batches` to be one that Lightning"),
        (["--trainer.gradient_clip_val", "-1"], "Expected `trainer.gradient_clip_val` to be 0 or more but got -1.0."),
        (
            ["--trainer.accumulate_grad_batches", "0"],
            "Expected `trainer.accumulate_grad_batches` to be a whole number of 1 or more but",
        ),
        (["--model.lr", "-1"], "Expected `model.lr` to be a finite number, 0 or more but got -1.0."),
        (["--model.dropout", "1"], "Expected `model.dropout` to be at least 0 and less than 1 but got 1.0."),
        (
            ["--trainer.aggregator.combine", "Medain"],
            "`trainer.aggregator.combine` to be the name of a class but got 'Medain' (did you mean Median?).",
        ),
        (
            ["--trainer.callbacks", "[earlystopping]"],
            "`trainer.callbacks` to be the name of a class but got 'earlystopping' (did you mean EarlyStopping?).",
        ),
        (
            ["--trainer.callbacks", "EarlyStopping"],
            "`trainer.callbacks` to be one of pytorch_lightning.callbacks.EarlyStopping, "
            "flgraph.callbacks.EarlyStopping but got 'EarlyStopping', which several have for a name.",
        ),
        (
            ["--trainer.callbacks", "GaussianNoise"],
            "`trainer.callbacks` to be the name of a class but got 'GaussianNoise', a class of another kind.",
        ),
        (["--model.metrics", "f1"], "Expected `model.metrics` to be a list of str or null but got f1."),
        (["--model.class_weights", "[a]"], "`model.class_weights` to be a list of float or null but got ['a']."),
        (["--trainer.monitor_mode", "up"], "`trainer.monitor_mode` to be one of 'max', 'min' or null but got up."),
        (
            ["--model.num_classes", "2"],
            "Expected `model.num_classes` to be 3, as in the data of client `BETA`, but got 2.",
        ),
        (
            ["--trainer.aggregator.base", "[nope.*]"],
            "`route nope.*` to be that of a tensor of client `ALPHA`",
        ),
        (["--trainer.aggregator", "FedSage"], "Expected `model.conv` to be 'sage' for FedSage but got 'gin'."),
        (
            ["--trainer.aggregator", "FedStar"],
            "`model` to be FedStar, the network of this algorithm, but got one without `structure.*`.",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused_values(call: Call, small: list[str], options: list[str], told: str) -> None:
    if options[0] == "--trainer.accelerator" and torch.cuda.is_available() and options[1] == "cuda":
        pytest.skip("this machine has what the test does without")
    assert told in call("fit", *FEDPER, *small, *options).sentence


def make_graphs(labels: list[int], **changes: Any) -> list[Data]:
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graphs = [Data(x=torch.ones(3, 2), edge_index=edges, y=torch.tensor([label])) for label in labels]
    for key, value in changes.items():
        graphs[1][key] = value
    return graphs


@pytest.mark.parametrize(
    ("graphs", "options", "told"),
    [
        (make_graphs([0, 1, 2] * 4), {"num_classes": 2}, "Expected `two.y` to be between 0 and 1 but got 2."),
        (make_graphs([0, -1] * 6), {}, "Expected `two.y` to be 0 or more but got -1."),
        ([], {}, "Expected `two` to be one graph or more but got none."),
        (
            make_graphs([0]),
            {},
            "Expected `data.fractions` to be large enough to leave samples for the training set",
        ),
        (
            make_graphs([0, 1] * 6, x=torch.full((3, 2), float("nan"))),
            {},
            "Expected `two.x` to be finite but got NaN or infinity in graph 1.",
        ),
        (
            make_graphs([0, 1] * 6, edge_index=torch.tensor([[0, 3], [3, 0]])),
            {},
            "Expected `two.edge_index` to be edges between nodes 0 to 2 but got [0, 3] in graph 1.",
        ),
        (
            make_graphs([0, 1] * 6, x=torch.ones(3, 5)),
            {},
            "Expected `two.x` to be of equally many features in all graphs but got [2, 5].",
        ),
    ],
    ids=["classes", "negative", "empty", "one graph", "NaN", "edges", "widths"],
)
def test_refused_graphs(tmp_path: Path, graphs: list[Data], options: dict[str, Any], told: str) -> None:
    """The same from Python, where data may come from anywhere."""
    data = GraphFederation({"one": make_graphs([0, 1] * 6), "two": graphs}, structure="none", **options)
    trainer = FederatedTrainer(FedAvg(), rounds=1, default_root_dir=str(tmp_path), enable_progress_bar=False)
    with pytest.raises(InputError, match=f"^{re.escape(told)}"):
        trainer.fit(GNN(), data)
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------------- run folders
@pytest.mark.parametrize("where", ["", "runs"])
def test_root_is_a_file(call: Call, small: list[str], tmp_path: Path, where: str) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    root = file / where if where else file
    sentence = call("fit", *FEDPER, *small, "--trainer.default_root_dir", str(root)).sentence
    assert sentence == f"Expected `{root}/fedper-alpha-beta` to be writable but got Not a directory."
    assert file.read_text() == "in the way"


def test_name_is_a_file(call: Call, small: list[str], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").write_text("in the way")
    sentence = call("fit", *FEDPER, *small, "--trainer.name", "mine").sentence
    assert sentence == f"Expected `{tmp_path}/runs/mine` to be writable but got File exists."


# --------------------------------------------------------------------------------------------------------- checkpoints
@pytest.fixture
def finished(trained: Callable[[str], Path]) -> Path:
    """A run of two rounds."""
    return trained("fedper")


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
@pytest.mark.parametrize("path", ["last", "best"])
def test_no_run_yet(call: Call, small: list[str], tmp_path: Path, subcommand: str, path: str) -> None:
    sentence = call(subcommand, *FEDPER, *small, "--ckpt_path", path).sentence
    assert sentence == (
        f"Expected `ckpt_path` to be the {path} checkpoint under {tmp_path}/runs/fedper-alpha-beta but got none."
    )
    assert not (tmp_path / "runs").exists()


def test_no_checkpoint_there(call: Call, small: list[str], finished: Path) -> None:
    clients = finished / "checkpoints" / "last" / "clients"
    (finished.parent / "empty").mkdir()
    for path, found in (
        (finished / "nowhere", "nothing"),
        (clients / "ALPHA.ckpt", "a file"),
        (clients, "a folder without one"),
        (finished.parent / "empty", "a folder without one"),
    ):
        sentence = call("test", *FEDPER, *small, "--ckpt_path", str(path)).sentence
        assert sentence == (
            f"Expected `ckpt_path` to be last, best, or the folder of a run or checkpoint but got {path}, "
            f"which is {found}."
        )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--seed_everything", "1"], "Expected `seed` to be 0 as in checkpoint"),
        (["--model.hidden_channels", "32"], "Expected `model.hidden_channels` to be 64 as in checkpoint"),
        (["--model.lr", "0.5"], "Expected `model.lr` to be 0.001 as in checkpoint"),
        (["--trainer.local_epochs", "2"], "Expected `trainer.local_epochs` to be 1 as in checkpoint"),
        (
            ["--trainer.aggregator.weighting", "uniform"],
            "Expected `trainer.aggregator.weighting` to be 'samples' as in",
        ),
        (["--trainer.precision", "bf16-mixed"], "Expected `trainer.precision` to be None as in checkpoint"),
        (["--data.batch_size", "64"], "Expected `data.ALPHA.batch_size` to be 128 as in checkpoint"),
        (["--data.split_seed", "4"], "Expected `data.ALPHA.split_seed` to be 123 as in checkpoint"),
        (["--data.datasets", "[ALPHA]"], "Expected `data.BETA` to be there as in checkpoint"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_checkpoint_of_another_configuration(
    call: Call, small: list[str], finished: Path, options: list[str], told: str
) -> None:
    before = sorted(finished.rglob("*"))
    for subcommand in ("fit", "test"):
        sentence = call(subcommand, *FEDPER, *small, *options, "--ckpt_path", str(finished)).sentence
        assert told in sentence
        assert "round-00002 but got" in sentence
    assert sorted(finished.rglob("*")) == before


@pytest.mark.parametrize("damage", ["cut", "altered", "missing"])
@pytest.mark.parametrize("name", ["manifest.json", "server.safetensors", "clients/ALPHA.ckpt", "clients/BETA.ckpt"])
def test_damaged_checkpoint(call: Call, done: Call, small: list[str], finished: Path, name: str, damage: str) -> None:
    """It is refused before anything is done with it, and the one before it is named, which works."""
    last = (finished / "checkpoints" / "last").resolve()
    file, content = last / name, (last / name).read_bytes()
    file.unlink()  # not in place: an unchanged client's file may be one with that of an earlier round
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "altered":
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    if (name, damage) == ("manifest.json", "altered"):
        file.write_bytes(content.replace(b'"bytes": ', b'"bytes": 1', 1))
    sentence = call("fit", *FEDPER, *small, "--trainer.rounds", "3", "--ckpt_path", "last").sentence
    older = last.with_name("round-00001")
    assert str(last) in sentence
    assert sentence.endswith(f"; an older checkpoint is there: continue with --ckpt_path {older}.")
    assert len((finished / "history.jsonl").read_text().splitlines()) == 2
    if damage == "missing":
        done("fit", *FEDPER, *small, "--trainer.rounds", "3", "--ckpt_path", str(older))
        assert (finished / "checkpoints" / "round-00003").is_dir()


@pytest.mark.parametrize("taken", ["predictions", "predictions/ALPHA.csv"])
def test_predictions_cannot_be_written(call: Call, small: list[str], finished: Path, taken: str) -> None:
    folder, why = finished / "predictions", "File exists"
    if taken == "predictions":
        folder.touch()
    else:
        (finished / taken).mkdir(parents=True)
        why = "Is a directory"
    sentence = call("predict", *FEDPER, *small).sentence
    assert sentence == f"Expected `{folder}` to be writable but got {why}."


def test_no_older_checkpoint(call: Call, small: list[str], finished: Path) -> None:
    checkpoints = finished / "checkpoints"
    last = (checkpoints / "last").resolve()
    shutil.rmtree(checkpoints / "round-00001")
    (last / "manifest.json").write_text("{}")
    sentence = call("test", *FEDPER, *small, "--ckpt_path", str(last)).sentence
    assert sentence == f"Expected `{last / 'manifest.json'}` to be a whole manifest but got one without `round`."
