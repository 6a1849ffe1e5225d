"""What files and arguments come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flgraph.cli.main import main
from flgraph.errors import InputError
from flgraph.reproduce import list_studies, load_study
from flgraph.reproduce.settings import _WITHOUT_EFFECT, _flat, digest, resolve

FILE = """
data: {class_path: flgraph.data.SyntheticFederation, init_args: {num_graphs: 30, batch_size: 8}}
model: {class_path: flgraph.models.GNN, init_args: {lr: 1.0e-3}}
trainer: {rounds: 3, aggregator: {class_path: flgraph.callbacks.FedAvg}}
"""


@pytest.fixture
def of(tmp_path: Path) -> Callable[..., str]:
    """The digest of arguments after a file."""

    def digest_of(*args: str, text: str = FILE) -> str:
        (tmp_path / "one.yaml").write_text(text)
        return digest(resolve(["-c", str(tmp_path / "one.yaml"), *args]))

    return digest_of


def test_the_source_of_ones_own_classes_counts(
    of: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a changed algorithm would have the results of the one before."""
    monkeypatch.chdir(tmp_path)
    own = ["--trainer.aggregator=mine.Own"]
    before = of(*own)
    (tmp_path / "mine.py").write_text("class Own: pass")
    first = of(*own)
    (tmp_path / "mine.py").write_text("class Own: x = 1")
    assert len({before, first, of(*own)}) == 3
    assert of() == of("--trainer.aggregator=FedAvg")


@pytest.mark.parametrize(
    "args",
    [
        ["--data.num_graphs=30"],
        ["--data.init_args.num_graphs", "30"],
        ["--model=GNN", "--model.lr=1e-3"],
        ["--model.class_path", "flgraph.models.GNN"],
        ["--trainer.aggregator", "FedAvg"],
        ["--trainer.aggregator=Local", "--trainer.aggregator=FedAvg"],
        ["--data.num_graphs=30.0"],
        ["--trainer.rounds=200", "--trainer.checkpoint_every=7", "--data.name=mine", "--seed_everything=3"],
        ["--trainer.logger=false", "--trainer.logger.save_dir=x", "--data.root=elsewhere"],
    ],
    ids=" ".join,
)
def test_what_makes_no_difference(of: Callable[..., str], args: list[str]) -> None:
    assert of(*args) == of()


@pytest.mark.parametrize(
    "args",
    [
        ["--data.num_graphs=31"],
        ["--data.shards=2"],
        ["--model=GCN"],
        ["--trainer.aggregator=FedProx"],
        ["--trainer.aggregator.weighting=uniform"],
        ["--trainer.local_epochs=2"],
        ["--trainer.callbacks=EarlyStopping"],
        ["--model.lr=null"],
        ["--model.lr=true"],
    ],
    ids=" ".join,
)
def test_what_makes_a_difference(of: Callable[..., str], args: list[str]) -> None:
    assert of(*args) != of()


@pytest.mark.parametrize("field", ["root", "name"])
def test_where_own_data_lies_says_which_it_is(of: Callable[..., str], field: str) -> None:
    for own in (["--data=mine.Sets"], ["--data=NodeClients", "--data.graphs.north=north"]):
        assert of(*own, f"--data.{field}=may") != of(*own, f"--data.{field}=june")


def test_how_settings_are_spread_over_files_makes_no_difference(of: Callable[..., str], tmp_path: Path) -> None:
    parts = yaml.safe_load(FILE)
    for name, content in reversed(parts.items()):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({name: content}))
    assert digest(resolve([f"--config={tmp_path / name}.yaml" for name in reversed(parts)])) == of()
    later = "data: {class_path: flgraph.data.SyntheticFederation, init_args: {batch_size: 9}}"
    (tmp_path / "later.yaml").write_text(later)
    assert of("-c", str(tmp_path / "later.yaml")) == of("--data.batch_size=9")


def test_another_class_keeps_arguments_and_callbacks_are_a_list() -> None:
    args = ["--data=A", "--data.x=[1, 2]", "--data=own.B", "--trainer.callbacks=C", "--trainer.callbacks.y={a: 1}"]
    args += ["--trainer.callbacks+=D", "--trainer.callbacks.z", "5e-4"]
    first = {"class_path": "flgraph.callbacks.C", "init_args": {"y": {"a": 1}}}
    assert resolve(args) == {
        "data": {"class_path": "own.B", "init_args": {"x": [1, 2]}},
        "trainer": {"callbacks": [first, {"class_path": "flgraph.callbacks.D", "init_args": {"z": "5e-4"}}]},
    }


def test_as_the_command_line_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A run's effective configuration comes to the very settings, beside arguments that are as they are by default."""
    run = load_study("fedego/table2").run("DBLP", "FedGCN (own edges)", 1027)
    with pytest.raises(SystemExit):
        main(["fit", *run.args, "--print_config"])
    shown = yaml.safe_load(capsys.readouterr().out)

    def within(part: Any, whole: Any) -> None:
        if isinstance(part, dict):
            for key in part.keys() - {"isolated", "eval_seed"}:  # of the class before
                within(part[key], whole[key])
        else:
            assert float(part) == whole if isinstance(whole, float) else part == whole

    within(resolve(run.args), shown)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for text in ("a: [b\n  c: {", None):
        file = tmp_path / "broken.yaml"
        file.unlink(missing_ok=True) if text is None else file.write_text(text)
        with pytest.raises(InputError, match=r"broken\.yaml` to be a YAML file but got one that cannot be read"):
            resolve(["-c", str(file)])


def test_no_two_runs_of_a_paper_have_one_digest_by_chance() -> None:
    found: dict[tuple[str, str], set[tuple[str, Any]]] = {}
    for name in list_studies():
        study = load_study(name)
        for run in study.cut(seeds=study.seeds[:1]).runs():
            flat = {item for item in _flat(resolve(run.args)) if not _WITHOUT_EFFECT.fullmatch(item[0])}
            assert found.setdefault((study.paper_name, run.digest), flat) == flat
