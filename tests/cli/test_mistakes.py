"""Mistakes that everybody makes once: a sentence that helps, exit code 2, and no wait for torch where it can be."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pytorch_lightning.callbacks import ModelCheckpoint

import flgraph
import flgraph.callbacks
import flgraph.data
import flgraph.models
from flgraph.callbacks import FedAvg
from flgraph.cli import main as cli
from flgraph.cli import typos
from flgraph.cli.outline import exported, outline
from flgraph.data import GraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.models import GNN

Call = Callable[..., Any]  # see conftest.py
METHOD = ("-c", "configs/method/fedavg.yaml")
CHEM = ("-c", "configs/data/chem.yaml")

AT_ONCE = {
    "no command": ([], "`command` to be one of fit, validate, test, predict, new,"),
    "command": (["trian"], "but got 'trian'"),
    "no data": (["fit", *METHOD], "Expected `data` to be given by -c files (configs/data/chem.yaml,"),
    "file": (["fit", *METHOD, "-c", "configs/data/chme.yaml"], "(did you mean configs/data/chem.yaml?)"),
    "option": (["fit", *METHOD, *CHEM, "--round", "3"], "unrecognized arguments: --round 3"),
    "trainer's field": (["fit", *METHOD, *CHEM, "--trainer.epochs", "3"], "(did you mean --trainer.local_epochs?)"),
    "model's field": (["fit", *METHOD, *CHEM, "--model.hidden", "3"], "(did you mean `hidden_channels`?)"),
    "data's field": (["fit", *METHOD, *CHEM, "--data.batchsize", "3"], "(did you mean `batch_size`?)"),
    "method": (["fit", *METHOD, *CHEM, "--trainer.aggregator", "FedAgv"], "'FedAgv' (did you mean FedAvg?)"),
    "method's case": (["fit", *METHOD, *CHEM, "--trainer.aggregator", "Scaffold"], "(did you mean SCAFFOLD?)"),
    "model": (["fit", *METHOD, *CHEM, "--model", "flgraph.models.GMN"], "(did you mean GNN?)"),
    "number": (["fit", *METHOD, *CHEM, "--trainer.rounds", "ten"], "`trainer.rounds` to be of type int but got ten."),
    "list": (["fit", *METHOD, "--data.datasets", "MUTAG"], "`data.datasets` to be of type list but got MUTAG."),
    "choice": (["fit", *METHOD, *CHEM, "--model.conv", "gatt"], "`model.conv` to be one of 'gcn', 'gin', 'sage'"),
    "graphs for a graph": (
        ["fit", "-c", "configs/method/fedego.yaml", *CHEM],
        "one large graph (configs/data/cora.yaml), as FedEgo needs, but got many graphs (TUFederation): try ",
    ),
    "a graph for graphs": (
        ["fit", "-c", "configs/method/fedstar.yaml", "-c", "configs/data/cora.yaml"],
        "many graphs (configs/data/chem.yaml), as FedStar needs, but got one large graph (NodeFederation): try ",
    ),
    "types": (
        ["fit", "-c", "configs/method/fedhgn.yaml", *CHEM],
        "a graph with types of nodes and edges (configs/data/aifb.yaml), as RGCN needs, but got many graphs",
    ),
    "a method behind own data": (
        ["fit", "-c", "data: {class_path: flgraph.data.NodeClients}", "-c", "configs/method/fedgcn.yaml"],
        "fedgcn.yaml` to be before your own file, whose class of data it would replace (-c METHOD -c YOURS), but",
    ),
    "beside a class": (
        ["fit", *METHOD, "-c", "data: {class_path: SyntheticFederation, init_arg: {num_graphs: 20}}"],
        "below `init_args`, the fields of the class, but got `init_arg` beside it (did you mean `init_args`?)",
    ),
    "an unnamed class": (
        ["fit", *METHOD, *CHEM, "--trainer.callbacks", "[{classpath: EarlyStopping}]"],
        "a list of classes, each with its `class_path`, but got `classpath` without (did you mean `class_path`?)",
    ),
    "beside a class in a list": (
        ["fit", *METHOD, *CHEM, "--trainer.callbacks", "[{class_path: EarlyStopping, init_arg: {patience: 3}}]"],
        "but got `init_arg` beside it (did you mean `init_args`?)",
    ),
    "several methods": (
        ["fit", *METHOD, *CHEM, "--trainer.aggregator", "[FedAvg]"],
        "to be one class but got 'a list'",
    ),
    "null for a model": (["fit", *METHOD, *CHEM, "--model", "null"], "but got no model for flgraph fit"),
    "a file left out": (["fit", *METHOD, "-c"], "`-c` to be followed by a file"),
    "no mapping": (["fit", *METHOD, "-c", "trainer: 3"], "Expected `trainer` in `-c` to be a mapping of its fields"),
    "a key again": (
        ["fit", *METHOD, "-c", "trainer: {rounds: 1,\n rounds: 2}"],
        "Expected `line 2` to be of a key that was not given before but got one that was in -c.",
    ),
    "folder in a file": (["new", f"{__file__}/project"], "to be writable but got Not a directory"),
    "option of a report": (["report", "runs", "--ouy", "x.html"], "--ouy x.html (did you mean --out?)"),
    "no run": (["ledger", "nowhere"], "nowhere"),
}
LATER = {
    "zero": (["fit", *METHOD, "--data.datasets", "[ALPHA]", "--trainer.rounds", "0"], "a whole number of 1 or more"),
    "no checkpoint": (
        ["test", *METHOD, "--data.datasets", "[ALPHA]"],
        "Expected `ckpt_path` to be the last checkpoint",
    ),
    "no class": (
        ["fit", *METHOD, "--data.datasets", "[ALPHA]", "--trainer.secure_sums", "true"],
        "`trainer.secure_sums` to be the name of a class but got 'true'.",
    ),
    "a class's field alone": (
        ["fit", *METHOD, "--data.datasets", "[ALPHA]", "--trainer.engine.processes", "2"],
        "Expected `trainer.engine` to be a class, and then its fields but got its `processes` alone.",
    ),
    "Lightning's": (
        ["fit", *METHOD, "--data.datasets", "[ALPHA]", "--trainer.callbacks", "ModelCheckpoint"],
        "none that write checkpoints, since the trainer does",
    ),
    "not installed": (
        ["fit", *METHOD, "--data.datasets", "[ALPHA]", "--trainer.logger", "CometLogger"],
        "Expected `CometLogger` to be given what it needs but got Requirement 'comet-ml",
    ),
    "no data set": (
        ["fit", *METHOD, "--data.datasets", "[ALPAH]"],
        "Expected `data.root` or `FLGRAPH_DATA` to be a folder with ALPAH.zip",
    ),
}


@pytest.mark.parametrize("mistake", [*AT_ONCE, *LATER])
def test_mistakes(call: Call, tu_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    monkeypatch.setenv("FLGRAPH_DATA", str(tu_root))
    monkeypatch.chdir(tmp_path)
    args, told = {**AT_ONCE, **LATER}[mistake]
    sentence = call(*args).sentence
    assert told in sentence
    assert len(sentence) < 330
    assert not (tmp_path / "runs").exists()


def test_a_module_that_another_hides(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("statistics", "mine"):
        (tmp_path / f"{name}.py").write_text("from flgraph.callbacks import FedAvg\n\nclass Own(FedAvg): pass\n")
    told = call("fit", *METHOD, *CHEM, "--trainer.aggregator", "statistics.Own").sentence
    assert "got statistics.py, in whose place " in told
    assert told.endswith("statistics.py is imported: rename it.")
    assert (
        "'mine.Owm' (module 'mine' has no attribute 'Owm') (did you mean Own?)"
        in call("fit", *METHOD, *CHEM, "--trainer.aggregator", "mine.Owm").sentence
    )


def test_mistakes_are_told_before_torch_is_imported(tmp_path: Path) -> None:
    """And so is all help; a process takes a tenth of the time."""
    code = (
        "import io, sys, contextlib\n"
        "from flgraph.cli.main import main\n"
        "for line in sys.argv[1:]:\n"
        "    err = io.StringIO()\n"
        "    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):\n"
        "        try:\n"
        "            main(line.split())\n"
        "            code = 0\n"
        "        except SystemExit as exit:\n"
        "            code = exit.code or 0\n"
        "    asked = line.endswith(('--help', '--version', '.help', 'FedProx'))\n"
        "    assert code == (0 if asked else 2), (line, code)\n"
        "    assert not {'torch', 'matplotlib', 'sklearn'} & set(sys.modules), line\n"
    )
    lines = [" ".join(args) for args, _ in AT_ONCE.values() if args]
    commands = (*cli.TRAINING, *cli.OTHERS)
    lines += ["--help", "--version", *(f"{command} --help" for command in commands)]
    lines += ["fit --model.help", "fit --trainer.aggregator.help FedProx"]
    folder = Path(flgraph.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, *lines],
        cwd=tmp_path,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def own_graphs(graph_list: Callable[..., Any]) -> GraphFederation:
    return GraphFederation({"one": graph_list(12), "two": graph_list(12)}, structure="none")


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (
            lambda data: FederatedTrainer(FedAvg),
            "an Aggregator but got the class FedAvg, which is not called yet.",
        ),
        (lambda data: FederatedTrainer("FedAvg"), "`trainer.aggregator` to be an Aggregator but got str."),
        (lambda data: FederatedTrainer(FedAvg(), callbacks=[ModelCheckpoint()]), "`checkpoint_every`"),
        (lambda data: FederatedTrainer(FedAvg()).fit(data, GNN()), "`model` to be a LightningModule, or a function"),
        (lambda data: FederatedTrainer(FedAvg()).fit(GNN, data), "but got the class GNN, which is not called yet."),
        (lambda data: FederatedTrainer(FedAvg()).fit(GNN(), [data]), "`datamodule` to be a federated datamodule or {"),
        (lambda data: FederatedTrainer(FedAvg()).test(), "`model` to be given with a datamodule, or fit before"),
        (lambda data: FederatedTrainer(FedAvg(), monitor_mode="up"), "`trainer.monitor_mode` to be max or min"),
    ],
)
def test_mistakes_in_python(
    graph_list: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mistake: Callable[[Any], Any],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        mistake(own_graphs(graph_list))
    assert told in str(refused.value)


# ------------------------------------------------------------------------------------------- what is read from source
@pytest.mark.parametrize("module", [flgraph.models, flgraph.callbacks, flgraph.data])
def test_outlines_have_the_fields_of_the_classes(module: Any) -> None:
    """Read from the source, they are those that the parser finds by importing the class."""
    found = 0
    for name in exported(module.__name__):
        known, cls = outline(f"{module.__name__}.{name}"), getattr(module, name)
        assert known is not None
        assert known.path == f"{cls.__module__}.{cls.__qualname__}"
        parameters = inspect.signature(cls).parameters.values()
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                field = known.fields.get(parameter.name)
                if field is None:  # of a base class from elsewhere
                    assert not known.complete
                    continue
                assert (field.default is None) == (parameter.default is parameter.empty)
                found += 1
    assert found > 30


def test_the_trainers_fields() -> None:
    known = set(inspect.signature(FederatedTrainer).parameters)
    assert set(typos.trainer_fields()) == known - {"seed"}


@pytest.mark.parametrize(
    "method", sorted(Path(flgraph.__file__).parent.glob("configs/method/*.yaml")), ids=lambda p: p.stem
)
def test_no_configuration_of_the_package_is_refused(method: Path) -> None:
    model = yaml.safe_load(method.read_text())["model"]["class_path"]
    folder = outline(model).path.split(".")[2]  # type: ignore[union-attr]
    data = {"graphs": "chem", "nodes": "cora", "hetero": "aifb", "unsupervised": "proteins"}[folder]
    args = ["-c", str(method.parents[1] / "data" / f"{data}.yaml"), "-c", str(method)]
    typos.check("fit", args)
    with pytest.raises(InputError, match=r"trainer\.roundz"):  # it was looked at
        typos.check("fit", [*args, "--trainer.roundz", "3"])


@pytest.mark.parametrize(
    "args",
    [
        ["-c", "{model: GNN, data: TUFederation, trainer: {aggregator: FedAvg}}"],
        [*METHOD, *CHEM, "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.patience", "3"],
        [*METHOD, *CHEM, "--trainer.callbacks", '[{"class_path": "own.Callback"}]', "--model", "Mine"],
        [*METHOD, *CHEM, "--trainer.precision", "bf16-mixed", "--trainer.limit_train_batches", "0.5"],
        [*METHOD, *CHEM, "--trainer.aggregator.init_args.weighting=uniform", "--model.lr", "1e-3"],
        [*CHEM, "--model", "GNN", "--trainer", "{rounds: 3, aggregator: FedAvg}"],
        ["--print_config", "--data", "own.Data"],
        [*METHOD, *CHEM, "--trainer.callbacks", "[Timer, {class_path: EarlyStopping, init_args: {patience: 3}}]"],
    ],
)
def test_what_the_parser_takes_is_not_refused_before(args: list[str]) -> None:
    typos.check("fit", args)
    with pytest.raises(InputError, match=r"trainer\.roundz"):  # it was looked at
        typos.check("fit", [*args, "--trainer.roundz", "3"])


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def wide(:", SyntaxError),
        ("import nowhere", ModuleNotFoundError),
        ("class Wide(GNN):\n    def __init__(self) -> None:\n        super().__init__()\n        {}['size']", KeyError),
        ("class Wide(GNN):\n    def __init__(self) -> None:\n        raise ValueError('narrow')", ValueError),
    ],
)
def test_mistakes_in_users_own_code_end_with_a_traceback(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, error: type[Exception]
) -> None:
    """The line that is wrong is what they look for."""
    name = f"wide_{error.__name__}"
    (tmp_path / f"{name}.py").write_text(f"from flgraph.models import GNN\n{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error) as caught:
        cli.main(["fit", *METHOD, *small, "--model", f"{name}.Wide"])
    file = caught.value.filename if isinstance(caught.value, SyntaxError) else str(caught.traceback[-1].path)
    assert file == str(tmp_path / f"{name}.py")


def test_classes_of_the_current_folder(
    call: Call, small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under ``python -m``."""
    (tmp_path / "wide.py").write_text("from flgraph.models import GNN\n\n\nclass Wide(GNN):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    done = call("fit", *METHOD, *small, "--model", "wide.Wide", "--trainer.rounds", "1")
    assert done.code == 0, done
    assert str(tmp_path) == sys.path[-1]
