"""What a site says of itself, and what it makes of a job's configuration; no FLARE is needed for it."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flgraph.cli.flare import check_settings, configuration, main
from flgraph.errors import InputError
from flgraph.flare.classes import refuse_foreign_classes, refuse_foreign_names
from flgraph.flare.kits import start
from flgraph.flare.run import host, serve
from flgraph.flare.settings import ALLOWED, SiteSettings, read_settings, site_seed
from flgraph.projects import create

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI's args")  # pytest's own are on the command line

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flare"


def settings(site: str, folder: Path, **further: Any) -> SiteSettings:
    content = yaml.safe_load((EXAMPLE / f"{site}.yaml").read_text())
    return SiteSettings(**{**content, "clients": tuple(content["clients"]), "folder": str(folder), **further})


def config(*further: str) -> str:
    return configuration(["-c", str(EXAMPLE / "federation.yaml"), "--trainer.rounds=2", *further])


def test_classes_that_a_site_has_not_allowed_are_refused(tmp_path: Path) -> None:
    foreign = {"class_path": "subprocess.Popen", "init_args": {"args": "true"}}
    job = yaml.safe_load(config())
    job["trainer"]["callbacks"] = [foreign]
    with pytest.raises(
        InputError, match=r"`class_path` to be among those that this site allows, .* but got 'subprocess"
    ):
        host(yaml.safe_dump(job), settings("north", tmp_path), "first")
    with pytest.raises(InputError, match=r"`trainer\.callbacks` to be of a class that belongs there but got"):
        refuse_foreign_classes(job, ("flgraph.*", "subprocess.*"))
    refuse_foreign_classes(job, ("flgraph.*", "subprocess.Popen"))  # named in full by the site
    refuse_foreign_names(job, ("flgraph.*", "subprocess.*"))
    with pytest.raises(InputError, match=r"but got 'os\.Thing'"):
        refuse_foreign_names({"a": [{"b": {"class_path": "os.Thing"}}]}, ("flgraph.*",))


def test_a_job_makes_nothing_where_it_does_not_belong(tmp_path: Path) -> None:
    """The parser makes anything of an argument without a type: a ledger would take a file, here the site's secret."""
    own = settings("north", tmp_path)
    host(config(), own, "first")
    secret = (tmp_path / "secret").read_text()
    ledger = {"class_path": "flgraph.runs.ledger.Ledger", "init_args": {"file": str(tmp_path / "secret")}}
    for model, argument in (("FedSSP", "pool"), ("FedSSP", "lr"), ("GNN", "unknown")):
        job = yaml.safe_load(config())
        job["model"] = {"class_path": f"flgraph.models.{model}", "init_args": {argument: ledger}}
        with pytest.raises(InputError, match=rf"`model\.{argument}` to be of a class that belongs there but got"):
            host(yaml.safe_dump(job), own, "first")
    job = yaml.safe_load(config())
    job["trainer"]["profiler"] = ledger
    with pytest.raises(InputError, match=r"`trainer\.profiler` to be of a class that belongs there but got"):
        host(yaml.safe_dump(job), own, "first")
    assert (tmp_path / "secret").read_text() == secret


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with files that name a module outside of what sites allow; importing it is already too much."""
    (tmp_path / "foreign.py").write_text(
        "import pytorch_lightning as pl\n"
        "from flgraph.callbacks import FedAvg\n"
        "from flgraph.models import FedStar as Model\n"
        "class Evil(pl.Callback): ...\n"
        "class EvilAvg(FedAvg): ...\n"
        "class EvilModel(Model): ...\n"
        "def hook(trainer, module): ...\n"
    )
    (tmp_path / "aggregator.yaml").write_text("class_path: foreign.EvilAvg")
    (tmp_path / "trainer.yaml").write_text("aggregator: {class_path: foreign.EvilAvg}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("foreign", None)


NOTHING_ELSE = "a mapping with class_path and init_args, as nothing else is imported for a job,"
LIGHTNING = "pytorch_lightning.callbacks"
WIDE = (*ALLOWED, f"{LIGHTNING}.*")
"""What a site allows that has all of Lightning's callbacks."""


def a_lambda(hook: Any, of: str = LIGHTNING) -> list[dict[str, Any]]:
    return [{"class_path": f"{of}.LambdaCallback", "init_args": {"on_fit_start": hook}}]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"trainer.aggregator": "foreign.EvilAvg"}, f"`trainer.aggregator` to be {NOTHING_ELSE} but got 'foreign."),
        ({"trainer.aggregator": "aggregator.yaml"}, f"`trainer.aggregator` to be {NOTHING_ELSE}"),
        ({"trainer.aggregator": '{"class_path": "foreign.EvilAvg"}'}, f"`trainer.aggregator` to be {NOTHING_ELSE}"),
        ({"trainer.aggregator": {"class_path": "EvilAvg"}}, "`class_path` to be the full name of a class"),
        ({"trainer.aggregator": {"class_path": "foreign.EvilAvg"}}, "`class_path` to be among those that this site"),
        ({"trainer.aggregator": {"weighting": "samples"}}, f"{NOTHING_ELSE} but got 'one with weighting'"),
        ({"trainer.aggregator": {"class_path.a": "foreign.EvilAvg"}}, NOTHING_ELSE),
        (
            {"trainer.aggregator": {"class_path": "flgraph.callbacks.FedAvg", "dict_kwargs": {"a": 1}}},
            "`trainer.aggregator` to be a mapping with class_path and init_args but got 'dict_kwargs'",
        ),
        (
            {"trainer.aggregator": {"class_path": "flgraph.callbacks.FedAvg", "init_args": "trainer.yaml"}},
            "`trainer.aggregator.init_args` to be a mapping",
        ),
        (
            {"trainer": {"aggregator.class_path": "foreign.EvilAvg"}},
            "`trainer` to be a mapping with names of arguments but got 'aggregator.class_path'",
        ),
        ({"trainer": "trainer.yaml"}, "`trainer` to be a mapping but got 'trainer.yaml'"),
        ({"trainer": {"__path__": "trainer.yaml"}}, "`trainer` to be a mapping with names of arguments"),
        ({"trainer": {"callbacks+": "foreign.Evil"}}, "`trainer` to be a mapping with names of arguments"),
        ({"trainer.config": {"class_path": "foreign.Evil"}}, "`class_path` to be among those that this site"),
        ({"trainer.callbacks": "foreign.Evil"}, f"`trainer.callbacks` to be {NOTHING_ELSE}"),
        ({"trainer.callbacks": ["foreign.Evil"]}, f"`trainer.callbacks` to be {NOTHING_ELSE}"),
        ({"trainer.callbacks": '[{"class_path": "foreign.Evil"}]'}, f"`trainer.callbacks` to be {NOTHING_ELSE}"),
        ({"trainer.callbacks": {"class_path": "foreign.Evil"}}, "`class_path` to be among those that this site"),
        ({"trainer.callbacks": [[{"class_path": "foreign.Evil"}]]}, "`class_path` to be among those that this site"),
        ({"trainer.callbacks": a_lambda("foreign.hook")}, f"`trainer.callbacks.on_fit_start` to be {NOTHING_ELSE}"),
        ({"trainer.callbacks": a_lambda({"class_path": "foreign.Evil"})}, "`class_path` to be among those that this"),
        ({"trainer.callbacks": a_lambda("hook")}, f"`trainer.callbacks.on_fit_start` to be {NOTHING_ELSE}"),
        (
            {"trainer.callbacks": a_lambda(None, "flgraph.cli.fit.pl.callbacks")},
            "`class_path` to be the name of a class",
        ),
        (
            {"trainer.callbacks": [{"class_path": f"{LIGHTNING}.ModelPruning", "init_args": {"amount": "foreign.f"}}]},
            f"`trainer.callbacks.amount` to be {NOTHING_ELSE}",
        ),
        ({"trainer.logger": "foreign.Log"}, f"`trainer.logger` to be {NOTHING_ELSE}"),
        ({"trainer.logger": ["foreign.Log"]}, f"`trainer.logger` to be {NOTHING_ELSE}"),
        ({"trainer.engine": "foreign.Engine"}, f"`trainer.engine` to be {NOTHING_ELSE}"),
        ({"trainer.strategy": {"class_path": "foreign.Strategy"}}, "`class_path` to be among those that this site"),
        ({"trainer.plugins": "foreign.Plugin"}, f"`trainer.plugins` to be {NOTHING_ELSE}"),
        ({"model": "foreign.EvilModel"}, "`model` to be a mapping but got 'foreign.EvilModel'"),
        ({"model": {"class_path": "foreign.EvilModel"}}, "`class_path` to be among those that this site"),
        (
            {"model": {"class_path": "flgraph.models.FedStar", "init_args": {"lr": {"class_path": "foreign.Evil"}}}},
            "`class_path` to be among those that this site",
        ),
        ({"model": {"class_path": "flgraph.cli.fit.yaml.YAMLObject"}}, "`class_path` to be the name of a class"),
        (
            {"model": {"class_path": "flgraph.cli.fit.LightningCLI"}},
            "but got 'flgraph.cli.fit.LightningCLI, which is pytorch_lightning.",
        ),
        ({"model": {"class_path": "flgraph.__main__.Model"}}, "`class_path` to be the full name of a class"),
        ({"model": {"class_path": "flgraph.cli.main.main"}}, "`class_path` to be the name of a class"),
        ({"model.class_path": "foreign.EvilModel"}, "`class_path` to be among those that this site"),
        ({"config": "trainer.yaml"}, "`configuration` to be a mapping with fields among seed_everything, model, tr"),
        ({"optimizer": {"class_path": "foreign.Evil"}}, "but got 'optimizer'"),
        ({"data": {"class_path": "foreign.Evil"}}, "but got 'data'"),
        ({"trainer.name": '{\t"class_path": "foreign.Evil"}'}, f"`trainer.name` to be {NOTHING_ELSE}"),
        ({"trainer.name": '[{"class_p\\x61th": foreign.Evil}]'}, f"`trainer.name` to be {NOTHING_ELSE}"),
        ({"trainer.personal": ["[&a [x, x], &b [*a, *a], *b]"]}, f"`trainer.personal` to be {NOTHING_ELSE}"),
        ({"seed_everything": '{"class_path": "foreign.Evil"}'}, f"`seed_everything` to be {NOTHING_ELSE}"),
    ],
)
def test_classes_are_named_in_one_way(foreign: Path, changes: dict[str, Any], sentence: str) -> None:
    """The parser knows further ones, some of which import what they name before anybody can look at it."""
    job = yaml.safe_load(config())
    for field, value in changes.items():
        section, _, name = field.partition(".")
        if name:
            job[section][name] = value
        else:
            job[section] = {**job[section], **value} if section == "trainer" and isinstance(value, dict) else value
    for half in (
        lambda: host(yaml.safe_dump(job), replace(settings("north", foreign), allow=WIDE), "first"),
        lambda: serve(yaml.safe_dump(job), "x", None, {}, SiteSettings(folder=str(foreign), allow=WIDE), {}),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError) as caught:
            half()
        assert sentence in str(caught.value)
    assert "foreign" not in sys.modules


def test_a_dotted_name_of_a_whole_configuration_is_refused(foreign: Path) -> None:
    job = yaml.safe_load(config())
    with pytest.raises(InputError, match=r"with fields among .* but got 'trainer\.callbacks'"):
        host(yaml.safe_dump({**job, "trainer.callbacks": "foreign.Evil"}), settings("north", foreign), "first")
    endless: dict[str, Any] = {"class_path": "flgraph.models.FedStar"}
    endless["init_args"] = {"further": endless}
    for broken, sentence in [
        ([], "`configuration` to be a YAML mapping but got 'list'"),
        ({"model": job["model"]}, "`trainer` to be a mapping but got None"),
        ({**job, "model": endless}, "`configuration` to be a tree"),
    ]:
        with pytest.raises(InputError, match=sentence):
            refuse_foreign_classes(broken, ALLOWED)
    assert "foreign" not in sys.modules


def test_a_class_that_a_site_allows_is_used(foreign: Path) -> None:
    """Its own trainer's may be any."""
    job = yaml.safe_load(config())
    job["trainer"]["aggregator"] = {"class_path": "foreign.EvilAvg"}
    own = settings("north", foreign, allow=(*ALLOWED, "foreign.EvilAvg"), trainer={"callbacks": "foreign.Evil"})
    own = replace(own, policy={"algorithms": ["EvilAvg"]})
    made = host(yaml.safe_dump(job), own, "first")
    assert type(made.clients["trees"].aggregator).__name__ == "EvilAvg"


def test_names_that_the_parser_settled_are_looked_at_again(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it knew a spelling that the first look lets pass."""
    monkeypatch.setattr("flgraph.flare.run.refuse_foreign_classes", lambda config, allow: None)
    job = yaml.safe_load(config())
    job["trainer"]["aggregator"] = "foreign.EvilAvg"
    with pytest.raises(InputError, match=r"this site allows, .* but got 'foreign\.EvilAvg'"):
        host(yaml.safe_dump(job), settings("north", foreign), "first")


@pytest.mark.parametrize(
    "args",
    [
        *(
            ["-c", f"configs/method/{name}.yaml"]
            for name in ("dfedgnn", "fedgcn", "fedhgn_links", "fedprox_adaptive", "gcflplus", "schema_fedavg")
        ),
        [
            "-c",
            "configs/method/fedavg.yaml",
            "--trainer.callbacks+=flgraph.callbacks.EarlyStopping",
            "--trainer.name=os.path",
        ],
        [
            *("-c", "configs/method/fedavg.yaml", f"--trainer.callbacks+={LIGHTNING}.GradientAccumulationScheduler"),
            "--trainer.callbacks.scheduling={4: 2}",
        ],
    ],
)
def test_what_submit_writes_is_allowed(args: list[str]) -> None:
    """Patterns of parameters are text, and so are names in a graph."""
    content = yaml.safe_load(configuration(args, lambda line: None))
    refuse_foreign_classes(content, ALLOWED)
    with pytest.raises(InputError, match=r"`class_path` to be among those that this site allows, none\.\*,"):
        refuse_foreign_classes(content, ("none.*",))


def test_a_default_function_is_the_classs_own() -> None:
    content = yaml.safe_load(configuration(["-c", "configs/method/fedavg.yaml"], lambda line: None))
    arguments = {"lambda_func": f"{LIGHTNING}.finetuning.multiplicative"}
    content["trainer"]["callbacks"] = [{"class_path": f"{LIGHTNING}.BackboneFinetuning", "init_args": arguments}]
    refuse_foreign_classes(content, WIDE)
    with pytest.raises(InputError, match=r"`class_path` to be among those that this site allows"):
        refuse_foreign_classes(content, ALLOWED)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("- a", "to be a YAML mapping but got 'list'"),
        (
            "dat: {}",
            "among data, clients, folder, allow, policy, trainer, seed, encrypt but got 'dat'",
        ),
        ("encrypt: 1", "`encrypt in .*` to be true or false but got 1"),
        ("seed: x", "`seed in .*` to be a whole number but got 'x'"),
        (
            "a: [b",
            r"`.*flgraph\.yaml` to be a YAML file but got one that cannot be read \(see line 2",
        ),
        ("clients: a", "`clients in .*` to be a list of strings but got 'a'"),
    ],
)
def test_bad_settings(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "flgraph.yaml").write_text(content)
    with pytest.raises(InputError, match=sentence):
        read_settings(tmp_path)


def test_a_configuration_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """The process lives on: where a command would end, the server hears a sentence."""
    own = settings("north", tmp_path)
    wrong = {**own.data, "init_args": {**own.data["init_args"], "num_graph": 3}}
    with pytest.raises(InputError, match=r"`data` to be given only fields of .* but got `num_graph`"):
        host(config(), settings("north", tmp_path, data=wrong), "first")


def test_settings_have_defaults(tmp_path: Path) -> None:
    found = read_settings(tmp_path)
    assert (found.data, found.clients, found.folder) == ({}, (), str(tmp_path / "flgraph"))
    with pytest.raises(InputError, match=r"`data` to be in the site's local/flgraph\.yaml"):
        host(config(), found, "first")
    with pytest.raises(InputError, match="`clients` to be among those of the data, trees, rings, ladders, but got"):
        host(config(), settings("north", tmp_path, clients=("nobody",)), "first")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["nothing"], "`flare` to be followed by one of provision, start, submit, explain, status, gather, adopt"),
        (["provision", "--sites", "a,a"], "`--sites` to be one name or more, all different"),
        (["provision", "--sites", "server"], "`--sites` to be names other than server, admin and authority"),
        (["provision", "--sites", "a b"], "`--sites` to be names of letters, digits, - and _ but got ['a b']"),
        (["provision", "--sites", "localhost"], "`--sites` to be names other than the server's, localhost,"),
        (["provision", "--sites", "a", "--server", "a b"], "`--server` to be the name of a host but got 'a b'"),
        (["provision", "--sites", "a", "--data", "nowhere"], "`--data` to be a folder with a SITE.yaml for one of the"),
        (["provision", "--sites", "broken", "--data", "."], "`broken.yaml` to be a YAML file but got one that cannot"),
        (["provision", "--sites", "bytes", "--data", "."], "`bytes.yaml` to be a YAML file but got one that cannot"),
        (["provision", "--sites", "odd", "--data", "."], "`odd.yaml` to be a mapping with fields among "),
        (["start", "nowhere"], "`kit` to be the folder of a server's or a site's start-up kit"),
        (["submit", "--admin", "nowhere"], "`--admin` to be the administrator's start-up kit"),
        (["submit", "--admin", "kits/admin", "--data=x"], "`arguments` to be those of `flgraph fit` without data"),
        (["gather", "first", "--kits", "."], "`--kits` to be a folder with the server's kit but got ."),
        (["gather", "first"], "`name` to be a run of the server in kits/server/flgraph but got 'first'"),
        (
            ["adopt", "runs/first"],
            "`ckpt_path` to be last, best, or the folder of a run or checkpoint but got runs/first",
        ),
        (["adopt", "x", "--kit", "."], "`--kit` to be the server's kit but got ."),
        (["submit", "--trainer.engine=ProcessGroup"], "without trainer.engine, which is FLARE,"),
        (["submit", "--ckpt_path", "last"], "without ckpt_path, for which --name of an earlier run stands,"),
        (["submit", "-c", "broken.yaml"], "`broken.yaml` to be a YAML file but got one that cannot be read (see line"),
        (
            ["submit", "-c", "bytes.yaml"],
            "`bytes.yaml` to be a YAML file but got one that cannot be read (it is no text)",
        ),
        (
            ["submit", "--name", "größe"],
            "`--name` to be a name of 1 to 100 letters (a to z), digits, - and _ but got 'g",
        ),
        (
            ["submit", "--name", "a" * 101],
            "`--name` to be a name of 1 to 100 letters (a to z), digits, - and _ but got",
        ),
    ],
)
def test_bad_arguments(args: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'flgraph[flare]'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kits" / "admin" / "startup").mkdir(parents=True)
    (tmp_path / "kits" / "server" / "local").mkdir(parents=True)
    (tmp_path / "broken.yaml").write_text("model: [a\n  b: {")
    (tmp_path / "bytes.yaml").write_bytes(b"model: \xff")
    (tmp_path / "odd.yaml").write_text("model: 1")
    with pytest.raises(InputError) as caught:
        main(args)
    assert sentence in str(caught.value)


def test_kits_that_cannot_be_made_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the same command, corrected, has a place for its own."""
    from flgraph.flare import kits

    def fail(*args: Any) -> None:
        (tmp_path / "kits" / "authority").mkdir(parents=True)
        raise ValueError("of FLARE")

    monkeypatch.setattr(kits, "_provision", fail)
    for there in (False, True):
        with pytest.raises(ValueError, match="of FLARE"):
            kits.provision(["north"], "localhost", 8002, tmp_path / "kits")
        assert list(tmp_path.rglob("*")) == [tmp_path / "kits"] * there
        (tmp_path / "kits").mkdir(exist_ok=True)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="`--out` to be a folder but got"):
        kits.provision(["north"], "localhost", 8002, tmp_path / "file")


def test_what_is_a_matter_of_places_is_left_out(tmp_path: Path) -> None:
    """Some methods' files name the class of data that they need; a run's own configuration names everything."""
    told: list[str] = []
    found = yaml.safe_load(configuration(["-c", "configs/method/fedgcn.yaml"], told.append))
    assert sorted(found) == ["model", "seed_everything", "trainer"]
    assert found["trainer"]["aggregator"]["class_path"] == "flgraph.callbacks.FedGCN"
    assert len(told) == 1
    assert told[0].endswith(
        "fedgcn.yaml: its data section is left out; see that those of the sites are in accordance with it"
    )
    whole = yaml.safe_load(config())
    whole["trainer"]["engine"] = {"class_path": "flgraph.federation.ProcessGroup", "init_args": {"processes": 2}}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**whole, "ckpt_path": None}))
    assert configuration(["-c", str(file)]) == config()


def test_what_clients_draw_derives_from_a_secret_of_the_site(tmp_path: Path) -> None:
    """Or from a seed that the site names. The secret is drawn once, and nobody else may read it."""
    one, other = (settings("north", tmp_path / name, seed=None) for name in ("one", "other"))
    drawn = site_seed(one, 0)
    assert site_seed(one, 0) == drawn
    assert len({drawn, site_seed(one, 1), site_seed(one, 0, "second"), site_seed(other, 0), 0}) == 5
    (file,) = (tmp_path / "one").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert host(config(), one, "first").clients["trees"].seed == site_seed(
        one, yaml.safe_load(config())["seed_everything"], "first"
    )
    named = settings("north", tmp_path / "named", seed=7)
    assert host(config(), named, "first").clients["trees"].seed == 7
    file.write_text("abc")
    with pytest.raises(InputError, match="a secret of 64 hexadecimal digits, or not there, to be drawn anew, but"):
        site_seed(one, 0)


def test_folders_are_seen_from_the_kit(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "flgraph.yaml").write_text("folder: states")
    assert read_settings(tmp_path).folder == str(tmp_path / "states")


@pytest.mark.parametrize("given", [None, "own"])
def test_a_kit_takes_no_module_of_the_folder_it_is_started_in(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLARE's script adds to PYTHONPATH and runs modules of its own by ``python3 -m``."""
    from flgraph.flare import kits

    kit, here = tmp_path / "kit", tmp_path / "here"
    for folder in (kit / "startup", kit / "local", here):
        folder.mkdir(parents=True)
    (kit / "local" / "resources.json").write_text("{}")
    script = f'export PYTHONPATH=/local/custom:$PYTHONPATH\npython3 -m json --help > "{kit}/said" 2>&1\n'
    show = f'python3 -m site > "{kit}/paths"\n'
    (kit / "startup" / "sub_start.sh").write_text(script + show)
    (here / "json.py").write_text("print('mine')")
    (here / "site.py").write_text("print('mine')")
    monkeypatch.chdir(here)
    if given is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / given))
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    (kit / "pid.fl").write_text(str(os.getpid()))  # from before the machine was started again
    assert kits.start(kit) == 0
    paths = (kit / "paths").read_text()
    assert "mine" not in paths + (kit / "said").read_text()
    assert repr(str(here)) not in paths
    assert (repr(str(tmp_path / "own")) in paths) == (given is not None)


def test_a_kit_that_runs_is_not_started_again(tmp_path: Path) -> None:
    """What it was started by may have been killed."""
    kit = tmp_path / "kit"
    (kit / "startup").mkdir(parents=True)
    script = kit / "startup" / "sub_start.sh"
    script.write_text("read line\n")
    with subprocess.Popen(["bash", str(script)], stdin=subprocess.PIPE) as left:
        (kit / "daemon_pid.fl").write_text(f"{left.pid}\n")
        with pytest.raises(InputError, match=f"one that is not running but got {kit}, which `kill -9 {left.pid}` ends"):
            start(kit)
        assert (kit / "daemon_pid.fl").exists()


@pytest.mark.parametrize(
    ("changed", "told", "line"),
    [
        ({"poliky": {}}, "to be a mapping with fields among data, clients,", ""),
        ({"policy": {"rounds": "many"}}, "`policy.rounds`", ""),
        ({"data": {}}, "to be a section as in any configuration", ""),
        ({"clients": ["east"]}, "to be some of those of its data but got ", ""),
        ({"encrypt": True}, "`FLGRAPH_SITE_KEY` to be a secret of 64 hexadecimal digits, or not set, but got", ""),
        ({"data": {"graphs": {"north": "nowhere"}}}, "got one problem, see above", "nowhere, which is not there"),
        ({"data": {"classes": None}}, "got one problem, see above", "given where partners keep their files apart"),
    ],
)
def test_a_site_is_told_of_its_mistakes_when_it_starts(
    changed: dict[str, Any],
    told: str,
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLGRAPH_SITE_KEY", "short")
    create(tmp_path / "project", "nodes")
    own = yaml.safe_load((tmp_path / "project" / "sites" / "north.yaml").read_text())
    (tmp_path / "kit" / "local").mkdir(parents=True)
    file = tmp_path / "kit" / "local" / "flgraph.yaml"
    file.write_text(yaml.safe_dump(own))
    check_settings(tmp_path / "kit", site=True)
    assert capsys.readouterr().out == ""
    if changed.get("data"):
        changed = {"data": {**own["data"], "init_args": {**own["data"]["init_args"], **changed["data"]}}}
    file.write_text(yaml.safe_dump({**own, **changed}))
    with pytest.raises(InputError, match=re.escape(told)):
        check_settings(tmp_path / "kit", site=True)
    assert line in capsys.readouterr().out
