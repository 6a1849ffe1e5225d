"""What studies are, and what they may not be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flgraph.cli.typos import check
from flgraph.errors import InputError
from flgraph.reproduce import Study, list_studies, load_study, run_study, runner
from flgraph.reproduce.runner import command, run_folder
from flgraph.reproduce.settings import digest, resolve


@pytest.mark.parametrize("name", list_studies())
def test_studies_are_whole(name: str) -> None:
    """Every cell has the paper's number or none of its row has; files and options of every method are there."""
    study = load_study(name)
    root = Path(__file__).parents[2]
    papers = [study.paper] if isinstance(study.metric, str) else list(study.paper.values())
    assert isinstance(study.metric, str) or study.paper.keys() <= set(study.metrics)
    for paper in papers:
        assert paper.keys() <= study.settings.keys()
        for printed in paper.values():
            assert printed.keys() <= study.methods.keys()
            percent = name not in ("fedhgn/table2", "fedhgn/table5")  # statistics of partitions
            most = 100.0 if percent else 1e6
            assert all(len(numbers) in (1, 2) and 0 < numbers[0] < most for numbers in printed.values())
        whole = len({frozenset(printed) for printed in paper.values()}) <= 1
        assert whole or name == "openfgl/subgraph"  # whose references were run for this project
    for run in study.runs():
        assert [arg for arg in run.args if arg.startswith("configs/")]
        assert all((root / arg).is_file() for arg in run.args if arg.startswith("configs/"))
        assert f"--trainer.rounds={study.rounds_of(run.method)}" in command(study, run, Path("runs"))
    for run in study.cut(settings=list(study.settings)[:1], seeds=study.seeds[:1]).runs():
        check("fit", run.args)


def test_a_paper_may_be_left_out_where_one_study_is_called_so() -> None:
    assert load_study("heterophily") == load_study("synthetic/heterophily")
    with pytest.raises(InputError, match="`study` to be a YAML file or a study that"):
        load_study("table3")


def test_a_line_is_read_as_a_shell_would() -> None:
    """Files need no option before them; the setting's name may stand in a method's arguments."""
    study = Study(
        "p/t", "t", "accuracy", 1, [1, 2], {"X": "a.yaml --x={seed}"}, {"M": "-c b.yml '--m=[a b]' --s {setting}"}
    )
    assert [run.args[:3] for run in study.runs()] == [("-c", "a.yaml", "--x=1"), ("-c", "a.yaml", "--x=2")]
    assert study.run("X", "M", 1).args[3:] == ("-c", "b.yml", "--m=[a b]", "--s", "X")


def test_values_of_settings_and_seeds() -> None:
    values = {"all": "--a={g} --b", "g": {"X": {1: 0.5, "other": 2}, "Y": {1: 3}}, "h": {"X": "5e-4", "other": 1}}
    methods = {"M": "--g={g}", "N": "{all} --h={h}"}
    study = Study("p/t", "t", "accuracy", 1, [1, 2], {"X": "--x", "Y": "--y"}, methods, values=values)
    assert study.run("X", "M", 1).args == ("--x", "--g=0.5")
    assert study.run("X", "N", 9).args == ("--x", "--a=2", "--b", "--h=5e-4")
    assert study.run("Y", "N", 1).args == ("--y", "--a=3", "--b", "--h=1")
    with pytest.raises(InputError, match=r"`values\.g` to be given for Y with seed 2 but got"):
        study.run("Y", "M", 2)


def test_a_run_is_told_apart_by_contents(tmp_path: Path) -> None:
    """And lies where another study put it, whatever that calls it."""
    config = tmp_path / "small.yaml"
    study = Study("p/t", "t", "accuracy", 1, [1], {"A B": f"{config} --trainer.local_epochs=2"}, {"M (x)": "--m"})
    folders = []
    for text in ("model: {class_path: GNN}", "# a remark\nmodel: GNN", "model: GCN"):
        config.write_text(text)
        folders.append(run_folder(study, study.run("A B", "M (x)", 7), tmp_path))
    assert folders[0] == folders[1] == tmp_path / "p" / study_digest(config, "model: GNN") / "A_B-M_x-seed7"
    assert folders[2] != folders[0]
    (folders[0].parent / "other-name-seed7").mkdir(parents=True)
    config.write_text("model: GNN")
    assert run_folder(study, study.run("A B", "M (x)", 7), tmp_path).name == "other-name-seed7"
    assert run_folder(study, study.run("A B", "M (x)", 17), tmp_path).name == "A_B-M_x-seed17"


def study_digest(config: Path, text: str) -> str:
    config.write_text(text)
    return digest(resolve(["-c", str(config), "--trainer.local_epochs=2", "--m"]))


def test_a_study_may_extend_another(tmp_path: Path) -> None:
    base = {"title": "t", "metric": "accuracy", "rounds": 3, "seeds": [1], "settings": {"X": "a", "Y": "b"}}
    paper = {"X": {"M": [1.0], "N": [2.0]}, "Y": {"M": [3.0]}}
    own = {"methods": {"M": "m", "N": "{v}{w}"}, "paper": paper, "values": {"v": 1, "w": 2}}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({**base, **own}))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({"extends": "one", "title": "u", "figure": "convergence"}))
    study = load_study(str(tmp_path / "two.yaml"))
    assert (study.name, study.title, study.figure, study.rounds) == ("two", "u", "convergence", 3)
    assert (list(study.methods), study.paper) == (["M", "N"], paper)
    part = {"extends": "two", "settings": ["X"], "methods": ["N"], "values": {"w": 3}}
    (tmp_path / "part.yaml").write_text(yaml.safe_dump(part))
    study = load_study(str(tmp_path / "part.yaml"))
    assert study.run("X", "N", 1).args == ("a", "13")
    assert study.paper == {"X": {"N": [2.0]}}
    (tmp_path / "far.yaml").write_text("extends: fedego/table2\nsettings: [Cora]\nmethods: [FedEgo]\nbase: FedEgo")
    far = load_study(str(tmp_path / "far.yaml"))
    own = load_study("fedego/table2").run("Cora", "FedEgo", 5)
    assert (far.run("Cora", "FedEgo", 5).args, far.base) == (own.args, "FedEgo")
    for content, sentence in (
        ({"extends": "three"}, "a study beside it"),
        ({"extends": "nobody/table2"}, "a study beside it, or another paper's"),
        ({"extends": "one", "base": "O"}, "`base` to be one of M, N but got 'O'"),
        ({"extends": "one", "figure": "pie"}, "one of convergence, settings"),
        ({"extends": "one", "methods": ["O"]}, "`methods` to be among those of one: M, N but got 'O'"),
        ({**base, "methods": {"a, b": "m"}}, "without a comma"),
        ({**base, "methods": {"lr {lr}": "m"}}, "without `{`: `values` stand in arguments only"),
        (base, "methods"),
    ):
        (tmp_path / "bad.yaml").write_text(yaml.safe_dump(content))
        with pytest.raises(InputError, match=sentence):
            load_study(str(tmp_path / "bad.yaml"))


def test_a_packaged_study_may_be_named_by_its_file() -> None:
    file = Path(runner.__file__).parent / "fedstar" / "table2.yaml"
    assert load_study(str(file)) == load_study("fedstar/table2")


def test_a_seed_counts_once(tiny_study: Callable[..., Study]) -> None:
    with pytest.raises(InputError, match=r"`--seeds` to be different numbers but got \[1, 1\]"):
        tiny_study().cut(seeds=[1, 1])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"title": 3}, "`title` to be text but got 3"),
        ({"metric": []}, "`metric` to be the name of a metric or a list of such"),
        ({"rounds": "3"}, "`rounds` to be a positive integer but got '3'"),
        ({"seeds": 3}, "`seeds` to be a list of different whole numbers but got 3"),
        ({"seeds": [1, 1]}, "`seeds` to be a list of different whole numbers but got"),
        ({"settings": None}, "`settings` to be names with arguments, one or more, but got None"),
        ({"settings": ["a"]}, "`settings` to be names with arguments"),
        ({"settings": {5: "a"}}, "`a name in settings` to be text, in quotes where it is a number, but got 5"),
        ({"methods": {"M": None}}, r"`methods\.M` to be arguments of `flgraph fit` in one line but got None"),
        ({"methods": {"M": ["--m"]}}, r"`methods\.M` to be arguments of `flgraph fit` in one line but got \['--m'\]"),
        (
            {"methods": {"M": "--m='"}},
            r"`methods\.M` to be a line that a shell could read but got .* \(No closing quotation",
        ),
        (
            {"methods": {"M": "--trainer.rounds=2"}},
            r"`methods\.M` to be without what the study sets itself .*rounds=2'",
        ),
        ({"settings": {"X": "--seed_everything 2"}}, r"`settings\.X` to be without what the study sets itself"),
        ({"method_rounds": None}, "`method_rounds` to be a mapping but got None"),
        ({"method_rounds": {"M": 0}}, r"`method_rounds\.M` to be a positive integer but got 0"),
        ({"notes": "abc"}, "`notes` to be a list of sentences but got 'abc'"),
        ({"leaderboard": "yes"}, "`leaderboard` to be true or false but got 'yes'"),
        ({"protocols": "best_client"}, "`protocols` to be best_client, or none, in a list, but got 'best_client'"),
        (
            {"values": {"g": [1]}},
            r"`values\.g` to be text, or a mapping .* to it \(each value .* own\), but got \[1\]",
        ),
        ({"paper": {"Y": {"M": [1.0]}}}, "`paper` to be of settings among X but got 'Y'"),
        ({"paper": {"X": {"N": [1.0]}}}, r"`paper\.X` to be of methods among M but got 'N'"),
        ({"paper": {"X": {"M": 50.0}}}, r"`paper\.X\.M` to be \[mean\] or \[mean, standard deviation\] but got 50\.0"),
        ({"metric": ["a", "b"], "paper": {"c": {}}}, "`paper` to be of metrics among a, b but got 'c'"),
    ],
)
def test_what_a_study_may_not_hold(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    base = {"title": "t", "metric": "accuracy", "rounds": 3, "seeds": [1], "settings": {"X": "a"}}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump({**base, "methods": {"M": "m"}, **change}))
    with pytest.raises(InputError, match=sentence):
        load_study(str(tmp_path / "bad.yaml"))


def test_studies_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("title: [a\n  b: {")
    with pytest.raises(InputError, match=r"broken\.yaml` to be a YAML file but got one that cannot be read"):
        load_study(str(tmp_path / "broken.yaml"))
    (tmp_path / "twice.yaml").write_text("title: t\nmethods:\n  A: --model.lr=0.1\n  A: --model.lr=0.2\n")
    with pytest.raises(InputError, match=r"key that was not given before .* in .*twice.yaml"):
        load_study(str(tmp_path / "twice.yaml"))
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.yaml").write_text(f"extends: {other}")
    with pytest.raises(InputError, match="that does not extend it but got 'a'"):
        load_study(str(tmp_path / "a.yaml"))


def test_configurations_that_cannot_be_read(tmp_path: Path) -> None:
    """Before anything is run; those whose names depend on the seed when they are looked for."""
    base = {"title": "t", "metric": "accuracy", "rounds": 3, "seeds": [1], "methods": {"M": "m"}}
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [b\n  c: {")
    file = tmp_path / "study.yaml"
    for setting, sentence in (
        ("configs/data/chme.yaml", r"`settings\.X` to be arguments with configuration files that exist but got 'con"),
        ("--config=none.yaml", r"`settings\.X` to be arguments with configuration files that exist but got 'none"),
        (f"-c {broken}", r"broken\.yaml` to be a YAML file but got one that cannot be read"),
    ):
        file.write_text(yaml.safe_dump({**base, "settings": {"X": setting}}))
        with pytest.raises(InputError, match=sentence):
            run_study(load_study(str(file)), tmp_path, jobs=1, report=lambda line: None)


def test_values_name_those_that_come_after_them(tmp_path: Path) -> None:
    fields = {"title": "t", "metric": "accuracy", "rounds": 1, "seeds": [1], "settings": {"one": "--a=1"}}
    lines = {"methods": {"m": "{first}"}, "values": {"first": "{second}.B", "second": "--x=A"}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**fields, **lines}, sort_keys=False))
    assert load_study(str(tmp_path / "study.yaml")).run("one", "m", 1).args == ("--a=1", "--x=A.B")
    lines["values"] = dict(reversed(lines["values"].items()))
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**fields, **lines}, sort_keys=False))
    with pytest.raises(InputError, match="`values` to be in an order in which each comes before those that it names"):
        load_study(str(tmp_path / "study.yaml")).run("one", "m", 1)
