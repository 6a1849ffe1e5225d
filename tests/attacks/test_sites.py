"""What a site can do to the others by its answers; and what of its data its answers hold when something fails."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from offices import Office

from flgraph import __version__
from flgraph.callbacks import FedPer
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer
from flgraph.federation.engines.host import Message, SiteHost
from flgraph.federation.engines.remote import Remote, checked_about, read_answer
from flgraph.flare.run import Site

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI's args")  # pytest's own are on the command line

MARKER = "Zyxomma"
Lie = Callable[[Message], bytes]


# ------------------------------------------------------------------------------------------------------ messages
def block(head: Any, rest: bytes = b"") -> bytes:
    text = head.encode() if isinstance(head, str) else json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + rest


HOSTILE = {
    "empty": b"",
    "short": b"\x01",
    "no json": block("{"),
    "no end": (2**63).to_bytes(8, "little") + b"{}",
    "nested": block("[" * 200_000),
    "nested header": block('{"header": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + ', "sizes": {}}'),
    "a list": block([]),
    "no header": block({"sizes": {}}),
    "no sizes": block({"header": {}}),
    "header in pairs": block({"header": [["error", "policy"]], "sizes": {}}),
    "header is text": block({"header": "", "sizes": {}}),
    "400 digits": block('{"header": {}, "sizes": {"a": 1' + "0" * 400 + "}}"),
    "5000 digits": block('{"header": {}, "sizes": {"a": 1' + "0" * 5000 + "}}"),
    "negative": block({"header": {}, "sizes": {"a": -1, "b": 1}}),
    "true": block({"header": {}, "sizes": {"a": True}}, b"x"),
    "nan": block('{"header": {}, "sizes": {"a": NaN}}'),
    "float": block({"header": {}, "sizes": {"a": 1.0}}, b"x"),
    "name twice": block('{"header": {}, "sizes": {"a": 1, "a": 1}}', b"x"),
    "header twice": block('{"header": {"do": "ping"}, "header": {"do": "run"}, "sizes": {}}'),
    "sizes in a list": block({"header": {}, "sizes": [1]}, b"x"),
    "too much": block({"header": {}, "sizes": {"a": 1}}, b"xy"),
    "too little": block({"header": {}, "sizes": {"a": 3}}, b"xy"),
    "a long head": block(" " * 2**24),
    "no utf-8": len(b"\xff").to_bytes(8, "little") + b"\xff",
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_messages(hostile: bytes) -> None:
    with pytest.raises(InputError, match=r"^Expected `message` to be ") as caught:
        Message.from_bytes(hostile)
    assert len(str(caught.value)) < 1000
    assert read_answer(hostile) == Message({"error": "unreadable"})


def test_no_message_at_all() -> None:
    assert read_answer(None) == read_answer(3) == read_answer("text") == Message({"error": "unreadable"})


# -------------------------------------------------------------------------------------------- a site and the others
class Lies(Office):
    """Site ``two`` answers some requests with bytes of its own."""

    def __init__(self, hosts: Mapping[str, SiteHost], do: str, lie: Lie) -> None:
        super().__init__(hosts)
        self.do, self.lie = do, lie

    def send(self, site: str, message: Message, timeout: float) -> Message | None:
        answer = super().send(site, message, timeout)
        assert answer is not None
        asked = next(iter(message.header.get("turns", {"": {}}).values()))
        lies = site == "two" and message.header["do"] == self.do and (self.do != "run" or asked["round"] == 2)
        return read_answer(self.lie(answer) if lies else bytes(answer.to_bytes()))


@pytest.fixture
def fit(
    federate: Callable[..., FederatedTrainer], toy_federation: Callable[..., Any], toy_module: Any, tmp_path: Path
) -> Callable[..., FederatedTrainer]:
    """Runs a federation of clients A and B at site ``one`` and C at ``two``, which lies."""

    def run(do: str, lie: Lie, **kwargs: Any) -> FederatedTrainer:
        aggregator, model, data = FedPer(base=["first.*"]), toy_module(), toy_federation(6, 8, 9)
        hosts = {}
        for number, (site, names) in enumerate((("one", ["A", "B"]), ("two", ["C"]))):
            clients = federate(aggregator, enable_checkpointing=False).host(model, data, names)
            hosts[site] = SiteHost(clients, tmp_path / site, "fedper-toy", bytes([number]) * 32)
        sites = {s: {n: c.disclosed(host.key) for n, c in host.clients.items()} for s, host in hosts.items()}
        trainer = federate(aggregator, engine=Remote(Lies(hosts, do, lie), sites, 60.0, 0.0), rounds=3)
        trainer.fit(model, data, **kwargs)
        return trainer

    return run


def header(**fields: Any) -> Lie:
    return lambda answer: bytes(Message(fields, {}).to_bytes())


def pieces(**given: bytes) -> Lie:
    return lambda answer: bytes(Message({"errors": {}}, given).to_bytes())


ANSWERS: dict[str, Lie] = {
    **{f"hostile {name}": lambda answer, own=own: own for name, own in HOSTILE.items() if len(own) < 1000},
    "policy": header(error="policy"),
    "refused": header(error="refused"),
    "failed": header(error="failed"),
    "another code": header(error="x" * 10_000),
    "a code that is a list": header(error=["policy"]),
    "a code that is a mapping": header(error={"kind": "InputError", "args": ["<script>"], "notes": []}),
    "nothing": header(),
    "errors of a wrong type": header(errors=[]),
    "an error of a wrong type": header(errors={"C": {"kind": "OSError"}}),
    "errors of others": header(errors={"A": "failed", "B": "policy"}),
    "pieces of others": pieces(A=b"x", B=b"y"),
    "garbage": pieces(C=b"\xff" * 100),
    "nested codes": lambda answer: block('{"header": {"errors": ' + "[" * 900 + "]" * 900 + '}, "sizes": {}}'),
}


@pytest.mark.parametrize("lie", ANSWERS.values(), ids=ANSWERS.keys())
def test_the_others_go_on(fit: Callable[..., Any], lie: Lie) -> None:
    trainer = fit("run", lie)
    records = [json.loads(line) for line in (trainer.run_dir / "history.jsonl").read_text().splitlines()]
    assert [record["clients"] for record in records] == [["A", "B", "C"], ["A", "B"], ["A", "B", "C"]]
    assert list(records[1]["dropped"]) == ["C"]
    assert len(records[1]["dropped"]["C"]) < 300
    assert "<script>" not in records[1]["dropped"]["C"]
    assert trainer.server.dropped == {"C": {"times": 2, "excluded": False}}  # of the evaluation, too


@pytest.mark.parametrize("code", ["failed", "refused", "policy", "other"])
def test_a_site_that_cannot_save(fit: Callable[..., Any], code: str) -> None:
    """It takes part until the run is stopped, and is not asked any more when that goes on."""
    trainer = fit("save", header(error=code))
    assert sorted(trainer.history.last["clients"]) == ["A", "B", "C"]


@pytest.mark.parametrize("code", ["failed", "refused", "policy"])
def test_a_site_that_cannot_load(fit: Callable[..., Any], code: str) -> None:
    fit("save", header(error=code))
    for do in ("load", "save"):
        trainer = fit(do, header(error=code), ckpt_path="last")
        assert trainer.server.excluded == trainer.server.aggregator.excluded == {"C"}


@pytest.mark.parametrize(
    "told",
    [
        None,
        3,
        [],
        {},
        {"../../x": {}},
        {"a/b": {}},
        {"": {}},
        {".": {}},
        {"..": {}},
        {"a\x1b[2J": {}},
        {"a\n": {}},
        {"x" * 101: {}},
        {"x" * 10_000: {}},
        {3: {}},
        {f"client{number}": {} for number in range(1001)},
        {"a": None},
        {"a": {"data": 3}},
        {"a": {"data": {"x": float("nan")}}},
        {"a": {"data": {"x": 10**400}}},
        {"a": {"data": {"x": "y" * 1001}}},
        {"a": {"data": {"x\n": 1}}},
        {"a": {"data": {"x": "\x1b[2J"}}},
        {"a": {"data": {"x": list(range(101))}}},
        {"a": {"data": reduce(lambda inner, _: {"x": inner}, range(700), {})}},
        {"a": {"parameters": {"shared": -1}}},
        {"a": {"parameters": {"shared": 10**400}}},
        {"a": {"parameters": {"shared": True}}},
        {"a": {"parameters": {str(number): 1 for number in range(11)}}},
        {"a": {"routes": "x"}},
        {"a": {"routes": [["a", "b"]]}},
        {"a": {"routes": [["a", "b", 3]]}},
        {"a": {"routes": [["a", "b", "\x1b[2J"]]}},
        {"a": {"routes": [["a", "b", "x" * 501]]}},
        {"a": {"routes": [["a", "b", "c"]] * 100_001}},
    ],
    ids=lambda told: str(told)[:40].encode("unicode_escape").decode(),
)
def test_what_sites_tell_of_their_clients(told: Any) -> None:
    with pytest.raises(InputError, match=r"^Expected `clients of site `north` to be ") as caught:
        checked_about("north", told)
    assert len(str(caught.value)) < 300


def test_a_client_of_another_site() -> None:
    about = {"data": {}, "parameters": {"shared": 1}, "routes": []}
    with pytest.raises(InputError, match="of different names, but `a` is at one, too"):
        Remote(_Nobody(), {"one": {"a": about}, "two": {"a": about}})


def test_a_site_tells_nothing_of_clients_of_others() -> None:
    about = {"data": {}, "parameters": {"shared": 1}, "routes": []}
    engine = Remote(_Nobody(), {"one": {"a": about}, "two": {"b": about}})
    told = {"a": {**about, "parameters": {"shared": 9}}, "b": {**about, "parameters": {"shared": 5}}}
    engine.transport.send = lambda site, message, timeout: Message({"about": told if site == "two" else {}})
    found = engine.about()
    assert found["a"]["parameters"] == {"shared": 1}
    assert found["b"]["parameters"] == {"shared": 5}


class _Nobody:
    def send(self, site: str, message: Message, timeout: float) -> Message | None:
        return None


# ---------------------------------------------------------------------------------------------------- error texts
MODULE = f'''
import pytorch_lightning as pl
import torch
from flgraph.models import GNN

class {MARKER}Model(GNN):
    def training_step(self, batch, batch_idx):
        raise ValueError("graph of {MARKER} with label {MARKER}")

class {MARKER}Data(pl.LightningDataModule):
    name = "{MARKER}"
    clients = ["trees"]
    def setup(self, stage):
        raise KeyError("{MARKER}")

class {MARKER}Exit(pl.LightningDataModule):
    name = "{MARKER}"
    clients = ["trees"]
    def setup(self, stage):
        raise SystemExit("{MARKER}")
'''
SYNTHETIC = {"class_path": "flgraph.data.SyntheticFederation", "init_args": {"domains": ["trees"], "num_graphs": 12}}


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a site's kit with settings, beside which there are files with the marker in names and contents."""
    name = f"{MARKER.lower()}_own"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{MARKER}.csv").write_text(f"{MARKER},label\n1,{MARKER}\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(**settings: Any) -> Path:
        (tmp_path / "kit" / "local").mkdir(parents=True, exist_ok=True)
        own = {"allow": ["flgraph.*", f"{name}.*"], **settings}
        (tmp_path / "kit" / "local" / "flgraph.yaml").write_text(yaml.safe_dump(own))
        return tmp_path / "kit"

    return make


def job(**changes: Any) -> str:
    trainer = {"aggregator": {"class_path": "flgraph.callbacks.FedAvg"}, "rounds": 2, "accelerator": "cpu"}
    model = {"class_path": "flgraph.models.GNN", "init_args": {"hidden_channels": 4}}
    return yaml.safe_dump({"model": model, "trainer": trainer, **changes})


def asked(site: Site, **fields: Any) -> Message:
    """An answer, of which no byte holds the marker."""
    answer = bytes(site.answer(Message(fields)).to_bytes())
    assert MARKER.lower().encode() not in answer.lower()
    return Message.from_bytes(answer)


OWN = f"{MARKER.lower()}_own"
DATA: dict[str, Any] = {
    "no such class": {"class_path": f"flgraph.data.{MARKER}"},
    "no such module": {"class_path": f"{MARKER}.Data"},
    "no such folder": {"class_path": "flgraph.data.TUFederation", "init_args": {"names": ["A"], "root": f"/{MARKER}"}},
    "no such argument": {"class_path": "flgraph.data.SyntheticFederation", "init_args": {MARKER: 1}},
    "no such domain": {"class_path": "flgraph.data.SyntheticFederation", "init_args": {"domains": [MARKER]}},
    "text": MARKER,
    "a file": f"{MARKER}.csv",
    "fails": {"class_path": f"{OWN}.{MARKER}Data"},
    "exits": {"class_path": f"{OWN}.{MARKER}Exit"},
    "a csv": {"class_path": "flgraph.data.TUFederation", "init_args": {"names": ["A"], "root": f"{MARKER}.csv"}},
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA.keys())
def test_errors_of_data_stay(kit: Callable[..., Path], data: Any, caplog: pytest.LogCaptureFixture) -> None:
    answer = asked(Site(kit(data=data)), do="open", config=job(), run="first")
    told = [Message({"error": code, "version": __version__}) for code in ("refused", "failed")]
    assert answer in told
    assert MARKER in caplog.text


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"clients": [MARKER]}, "clients"),
        ({"policy": {MARKER: 3}}, "policy"),
        ({"policy": {"algorithms": [MARKER]}}, "policy"),
        ({"trainer": {MARKER: 3}}, "trainer"),
        ({"trainer": {"precision": MARKER}}, "trainer"),
        ({MARKER: 3}, "site"),
        ({"seed": MARKER}, "site"),
    ],
)
def test_errors_of_settings_stay(
    kit: Callable[..., Path], settings: dict[str, Any], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = asked(Site(kit(**{"data": SYNTHETIC, **settings})), do="open", config=job(), run="first")
    assert answer.header["error"] in ("refused", "failed", "policy")
    assert MARKER in caplog.text


def test_errors_of_training_stay(kit: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    site = Site(kit(data=SYNTHETIC))
    model = {"class_path": f"{OWN}.{MARKER}Model", "init_args": {"hidden_channels": 4}}
    (name,) = asked(site, do="open", config=job(model=model), run="first").header["about"]
    turn = {"round": 1, "request": "exchange", "exchange": "train", "download": None, "splits": []}
    common = {"do": "run", "keep_going": True, "bases": {name: 0}, "numbers": {name: 1}}
    answer = asked(site, **common, turns={name: turn})
    assert answer == Message({"errors": {name: "failed"}})
    assert f"ValueError: graph of {MARKER} with label {MARKER}" in caplog.text
    for fields in ({"do": "save", "label": "x"}, {"do": "load", "labels": {"trees": "first.x"}}, {"do": 3}, {}):
        assert asked(site, **fields).header["error"] in ("refused", "failed")
    assert asked(site, do="ping") == Message()


def test_a_folder_that_cannot_be_written(kit: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    own = kit(data=SYNTHETIC, folder=MARKER)
    (own / MARKER).write_text("a file")
    assert asked(Site(own), do="open", config=job(), run="first").header["error"] in ("refused", "failed")
    assert MARKER in caplog.text


@pytest.mark.parametrize(
    "config",
    [
        "model: [" * 5000,
        "{" * 5000,
        "a: &a [x]\nb: *a\n",
        "\n".join([f"a0: &a0 [{MARKER}]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))]),
        "model: &m {self: *m}",
        "!!python/object/apply:os.system [true]",
        "x: " + "y" * 2_000_000,
        3,
        None,
        ["model"],
        "",
        "\x00",
        "model: {class_path: os.system}",
        job(data=SYNTHETIC),
    ],
    ids=range(14),
)
def test_hostile_configurations(kit: Callable[..., Path], config: Any) -> None:
    began = time.monotonic()
    answer = asked(Site(kit(data=SYNTHETIC)), do="open", config=config, run="first")
    assert answer.header["error"] == "refused"
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("run", ["../x", "", "x" * 101, "a b", 3, None, ["x"], "a\n"])
def test_hostile_names_of_runs(kit: Callable[..., Path], run: Any) -> None:
    assert asked(Site(kit(data=SYNTHETIC)), do="open", config=job(), run=run).header["error"] in ("refused", "failed")


def test_a_job_has_one_run(kit: Callable[..., Path]) -> None:
    """Limits are those of a run: with another name for each request there would be none."""
    site = Site(kit(data=SYNTHETIC))
    assert "about" in asked(site, do="open", config=job(), run="first").header
    assert asked(site, do="open", config=job(), run="second").header["error"] == "refused"
    longer = {**yaml.safe_load(job())["trainer"], "rounds": 1000}
    assert asked(site, do="open", config=job(trainer=longer), run="first").header["error"] == "refused"
    assert "about" in asked(site, do="open", config=job(), run="first").header  # its first answer may have been lost
