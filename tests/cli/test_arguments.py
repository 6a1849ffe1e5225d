"""What the command line takes, shows and refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import flgraph
from flgraph.configs import find_config

Call = Callable[..., Any]  # see conftest.py

FEDPER = ("-c", "configs/method/fedper.yaml")
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
METHODS = sorted(path.stem for path in (CONFIGS / "method").glob("*.yaml"))
DATA = sorted(path.stem for path in (CONFIGS / "data").glob("*.yaml"))


def test_there_are_configs() -> None:
    assert {"fedavg", "fedper", "fedprox", "fedsage", "fedstar", "local"} <= set(METHODS)
    assert {"chem", "biochem", "biochemsn", "biosncv", "cora"} <= set(DATA)


def test_fields_of_data_may_come_before_its_class(done: Call, tmp_path: Path) -> None:
    method, data = ("-c", "configs/method/fedstar_wl.yaml"), ("-c", "configs/data/chem.yaml")
    expected = done("fit", *data, *method, "--print_config").out
    assert "wl_scores: true" in expected
    assert done("fit", *method, *data, "--print_config").out == expected
    small = ("--data.datasets", "[ALPHA]", "--data=TUFederation")
    out = done("fit", *method, *small, "--print_config").out
    assert "- ALPHA" in out
    assert "wl_scores: true" in out


def test_embeddings_are_written(done: Call, tu_root: Path, tmp_path: Path) -> None:
    args = (
        "-c",
        "configs/method/fclg.yaml",
        "--data",
        "flgraph.data.PartitionedGraphFederation",
        "--data.dataset",
        "ALPHA",
    )
    args += ("--data.root", str(tu_root), "--data.num_clients", "2", "--model.hidden_channels", "6")
    args += ("--trainer.default_root_dir", str(tmp_path / "runs"), "--trainer.accelerator", "cpu")
    done("fit", *args, "--trainer.rounds", "1")
    done("predict", *args)
    (folder,) = (tmp_path / "runs").glob("*/version_0/predictions")
    for client in ("client-1", "client-2"):
        lines = (folder / f"{client}.csv").read_text().splitlines()
        assert lines[0] == "graph,split," + ",".join(f"e{number}" for number in range(12))
        assert len(lines) == 1 + 20
        row = [float(value) for value in lines[1].split(",")[2:]]
        assert sum(value**2 for value in row) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("data", DATA)
def test_every_data_config_parses(done: Call, data: str) -> None:
    kind = yaml.safe_load(find_config(f"configs/data/{data}.yaml").read_text())["data"]["class_path"]
    method = {"flgraph.data.NodeFederation": "fedego", "flgraph.data.HeteroFederation": "fedhgn"}.get(kind, "fedper")
    given = ("-c", f"configs/data/{data}.yaml", "-c", f"configs/method/{method}.yaml")
    out = done("fit", *given, "--print_config").out
    shown = yaml.safe_load(out)["data"]
    if "dataset" in shown["init_args"]:
        assert shown["init_args"]["dataset"].lower() == data
    else:
        assert len(shown["init_args"]["datasets"]) >= 7


def test_fields_of_a_data_config_can_be_overridden(done: Call) -> None:
    options = ("--data.datasets", "[MUTAG]", "--data.datasets+", "BZR", "--data.batch_size", "7")
    options += ("--data.init_args.dse_dim=9", "--data.datasets+=[AIDS]")
    out = done("fit", *FEDPER, "-c", "configs/data/chem.yaml", *options, "--print_config").out
    data = yaml.safe_load(out)["data"]["init_args"]
    assert (data["datasets"], data["batch_size"], data["dse_dim"]) == (["MUTAG", "BZR", "AIDS"], 7, 9)


def test_print_config(done: Call, tmp_path: Path) -> None:
    """It shows every field, and can be used as a configuration itself."""
    options = ("--data.datasets", "[ALPHA]", "--model.lr", "0.25")
    out = done("fit", *FEDPER, *options, "--print_config").out
    config = yaml.safe_load(out)
    assert config["model"]["init_args"]["lr"] == 0.25
    assert config["trainer"]["aggregator"]["init_args"]["base"] == ["convs.*"]
    assert config["trainer"]["client_fraction"] == 1.0
    assert config["data"]["init_args"]["batch_size"] == 128
    assert config["seed_everything"] == 0
    file = tmp_path / "all.yaml"
    file.write_text(out)
    assert done("fit", "-c", str(file), "--print_config").out == out


def test_help(done: Call) -> None:
    out = done("--help").out
    for subcommand in ("fit", "validate", "test", "predict"):
        assert f"\n    {subcommand} " in out


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
def test_help_of_a_subcommand(done: Call, subcommand: str) -> None:
    out = " ".join(done(subcommand, "--help").out.split())
    for option in ("--trainer.rounds", "--trainer.aggregator", "--seed_everything", "--ckpt_path", "--print_config"):
        assert option in out
    assert "communication rounds" in out


def test_help_of_a_class(done: Call) -> None:
    out = done("fit", "--trainer.aggregator.help", "FedProx").out
    assert "--trainer.aggregator.mu" in out
    assert "weight of the proximal term" in out


@pytest.mark.parametrize(
    ("field", "some", "others"),
    [
        ("data", ["GraphClients", "WholeGraphFederation"], ["EgoBatch", "GraphDataModule", "NodeGraph"]),
        ("model", ["GNN", "DGI", "RGCN"], ["Classifier", "GraphEmbedding", "Encoded"]),
        ("trainer.aggregator", ["Local", "GCFLPlus"], ["EarlyStopping"]),
        ("trainer.callbacks", ["EarlyStopping", "RecordNoise"], ["FedAvg", "SCAFFOLD"]),
        ("trainer.engine", ["ProcessGroup", "Sequential"], ["Engine", "Krum"]),
    ],
)
def test_help_lists_what_a_field_takes(done: Call, field: str, some: list[str], others: list[str]) -> None:
    listed = {line.split()[0] for line in done("fit", f"--{field}.help").out.splitlines() if line[2:3].strip()}
    assert listed.issuperset(some)
    assert listed.isdisjoint(others)


def test_short_class_names(done: Call) -> None:
    classes = ("--model", "GNN", "--trainer.aggregator", "FedProx", "--trainer.aggregator.mu", "0.5")
    out = done("fit", *classes, "--data.datasets", "[ALPHA]", "--print_config").out
    config = yaml.safe_load(out)
    assert config["model"]["class_path"] == "flgraph.models.GNN"
    assert config["trainer"]["aggregator"]["init_args"]["mu"] == 0.5


def test_packaged_configs(done: Call, small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away from the checkout, what is not there is taken from the package; what is there, from there."""
    monkeypatch.chdir(tmp_path)
    done("fit", "-c", "configs/method/fedstar.yaml", *small, "--trainer.rounds", "1")
    assert (tmp_path / "runs" / "fedstar-alpha-beta" / "version_0" / "results.json").is_file()
    out = done("fit", "--config=configs/method/fedper.yaml", "--config=configs/data/chem.yaml", "--print_config").out
    assert len(yaml.safe_load(out)["data"]["init_args"]["datasets"]) == 7
    assert done("fit", "-c", "configs/method/fedstar.yaml", "--model.help").out.startswith("FedStar: ")
    inline = "trainer: {name: a//b, default_root_dir: " + "x" * 300 + "}"
    out = done("fit", "-c", "configs/method/fedper.yaml", "-c", inline, "--data.datasets=[A]", "--print_config").out
    assert yaml.safe_load(out)["trainer"]["name"] == "a//b"
    own = tmp_path / "configs" / "method" / "fedper.yaml"
    own.parent.mkdir(parents=True)
    own.write_text((CONFIGS / "method" / "fedper.yaml").read_text().replace("rounds: 200", "rounds: 17"))
    out = done("fit", *FEDPER, "--data.datasets", "[ALPHA]", "--print_config").out
    assert yaml.safe_load(out)["trainer"]["rounds"] == 17


def test_configs_are_found_beside_or_in_the_package() -> None:
    package = Path(flgraph.__file__).parent
    assert (package / "configs").is_dir() or (package.parent / "configs").is_dir()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--trainer.round", "3"], "unrecognized arguments: --trainer.round 3"),
        (["--trainer.roundz=3"], "unrecognized arguments: --trainer.roundz 3 (did you mean --trainer.rounds?)"),
        (["--trainer.fast_dev_run", "true"], "unrecognized arguments: --trainer.fast_dev_run true"),
        (["--ckpt", "last"], "unrecognized arguments: --ckpt last"),
        (["--model.hiden", "3"], "Expected `model` to be given only fields of flgraph.models.GNN but got `hiden` (did"),
        (["--data.batchsize", "3"], "Expected `data` to be given only fields of flgraph.data.TUFederation"),
        (
            ["--trainer.aggregator.mu", "3"],
            "Expected `trainer.aggregator` to be given only fields of flgraph.callbacks.Fed",
        ),
        (["--model", "Nope"], "Expected `model` to be the name of a class but got 'Nope'."),
        (["--trainer.aggregator", "Nope"], "Expected `trainer.aggregator` to be the name of a class but got 'Nope'."),
        (["--trainer.callbacks", "Nope"], "Expected `trainer.callbacks` to be the name of a class but got 'Nope'."),
        (["-c", "configs/quickstart.yaml"], "Expected `data` to be chosen before its fields (by --data CLASS or a -c"),
        (["--trainer.rounds", "x"], "Expected `trainer.rounds` to be of type int but got x."),
        (["--data.datasets", "ALPHA"], "Expected `data.datasets` to be of type list but got ALPHA."),
        (
            ["--model.conv", "sagee"],
            "Expected `model.conv` to be one of 'gcn', 'gin', 'sage', 'gine', 'gat', 'pna' but got sagee.",
        ),
        (["--seed_everything", "-1"], "Expected `seed_everything` to be a whole number of 0 or more but got -1."),
        (["--seed_everything", "x"], "Expected `seed_everything` to be a whole number of 0 or more but got 'x'."),
        (["--trainer.rounds", ""], "Expected `trainer.rounds` to be of type int but got nothing."),
        (
            ["--trainer.aggregator", "flgraph.models.GNN"],
            "to be a class of kind Aggregator but got 'flgraph.models.GNN'",
        ),
        (
            ["--model", ".Wide"],
            "Expected `model` to be of type pytorch_lightning.core.module.LightningModule or null but",
        ),
        (["--trainer.aggregator", "nothere.FedAvg"], "but got 'nothere.FedAvg' (No module named 'nothere')"),
        (
            ["--trainer.accelerator", "gpu"],
            "Expected `trainer.accelerator` to be one that Lightning takes here but got",
        ),
        (["further"], "unrecognized arguments: further"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refused_options(call: Call, small: list[str], tmp_path: Path, options: list[str], told: str) -> None:
    sentence = call("fit", *FEDPER, *small, *options).sentence
    assert told in sentence
    assert len(sentence) < 200
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            "trainer:\n  rouns: 3\n",
            "to be fields that there are but got `rouns` (did you mean `rounds`?).",
        ),
        (
            "trainers:\n  rounds: 3\n",
            "model, data, ckpt_path but got `trainers` (did you mean `trainer`?).",
        ),
        (
            "model:\n  class_path: flgraph.models.GNN\n  init_args:\n    hiden_channels: 3\n",
            "to be given only fields of flgraph.models.GNN but got `hiden_channels` (did you mean `hidden_channels`?).",
        ),
        (
            "model:\n  class_path: flgraph.models.GIN\n",
            "Expected `model` to be the name of a class but got 'flgraph.models.GIN' (module 'flgraph.models' has no",
        ),
        (
            "trainer:\n  callbacks:\n  - class_path: nowhere.Callback\n",
            "Expected `trainer.callbacks` to be the name of a class but got 'nowhere.Callback' (No module named",
        ),
        (
            "trainer:\n  aggregator:\n    class_path: flgraph.models.GNN\n",
            "to be a class of kind Aggregator but got 'flgraph.models.GNN'",
        ),
        (
            "model:\n  class_path: tests.cli.own.Needing\n",
            "Expected `model.width` to be given, as tests.cli.own.Needing needs it, but got none.",
        ),
        (
            "trainer:\n  aggregator:\n    class_path: tests.cli.own.Untyped\n",
            "Expected `trainer.aggregator.rate` to be given, as tests.cli.own.Untyped needs it, but got none.",
        ),
        ("trainer: {rounds: 3\n", "to be a YAML file but got one that cannot be read (see line 2)."),
        ("only words\n", "to be a YAML mapping with sections such as `model` and `trainer` but got something else."),
        ("trainer:\n  rounds: many\n", "Expected `trainer.rounds` to be of type int but got many."),
    ],
    ids=[
        "field",
        "section",
        "field of a class",
        "class",
        "module",
        "kind",
        "missing field",
        "missing field without a type",
        "no YAML",
        "words",
        "type",
    ],
)
def test_refused_files(call: Call, small: list[str], tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(content)
    assert told in call("fit", *FEDPER, *small, "-c", str(file)).sentence


@pytest.mark.parametrize("order", ["before", "after"])
def test_missing_file(call: Call, small: list[str], tmp_path: Path, order: str) -> None:
    given = ["-c", str(tmp_path / "nowhere.yaml")]
    args = [*FEDPER, *given, *small] if order == "before" else [*FEDPER, *small, *given]
    assert call("fit", *args).sentence == (f"Expected `-c` to be a file but got '{tmp_path / 'nowhere.yaml'}'.")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "Expected `command` to be one of fit, validate, test, predict, "),
        (["fitt"], "but got 'fitt' (did you mean fit?)."),
        (["fit"], "Expected `model`, `data`, `trainer.aggregator` to be given by -c files"),
        (["fit", *FEDPER], "or your own) or --NAME CLASS, but got no data for flgraph fit."),
        (["test", "-c", "configs/data/chem.yaml"], "but got no model and no trainer.aggregator for flgraph test."),
    ],
    ids=["nothing", "subcommand", "all", "data", "method"],
)
def test_missing_arguments(call: Call, args: list[str], told: str) -> None:
    assert told in call(*args).sentence
