"""A job at sites that are objects: what both halves do together, and what one site can cost the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flgraph import __version__
from flgraph.cli.flare import configuration
from flgraph.errors import InputError
from flgraph.federation import EngineError
from flgraph.federation.engines.host import Message
from flgraph.flare.run import SitesData, serve
from flgraph.flare.settings import SiteSettings

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI's args")  # pytest's own are on the command line

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flare"


def config(*further: str) -> str:
    return configuration(["-c", str(EXAMPLE / "federation.yaml"), "--trainer.rounds=2", *further])


@pytest.fixture
def handing(in_memory: Any) -> Callable[..., Any]:
    """Makes a transport to two sites in a folder, which have arguments for their trainers."""

    def make(folder: Path, **trainer: Any) -> Any:
        own = {site: yaml.safe_load((EXAMPLE / f"{site}.yaml").read_text()) for site in ("north", "east")}
        return in_memory(folder, {site: {**content, "trainer": trainer} for site, content in own.items()})

    return make


def test_both_halves_together(handing: Any, tmp_path: Path) -> None:
    """Sites and server as FLARE would run them."""
    transport, server = handing(tmp_path), SiteSettings(folder=str(tmp_path / "server"))
    sites = transport.open(config(), "first")
    run = serve(config(), "first", transport, sites, server, {"deadline": 60.0})
    assert run == tmp_path / "server" / "first" / "version_0"
    results = json.loads((run / "results.json").read_text())
    assert list(results["final"]["clients"]) == ["trees", "rings"]
    assert "data" not in yaml.safe_load(config())
    sites = transport.open(config("--trainer.rounds=3"), "first")
    further = serve(config("--trainer.rounds=3"), "first", transport, sites, server, {"deadline": 60.0})
    assert further == run  # it went on
    assert json.loads((run / "results.json").read_text())["rounds"] == 3
    with pytest.raises(InputError, match="whose data its site keeps"):
        SitesData(["trees"]).client("trees")


def test_sites_go_on_in_the_precision_that_they_began_in(handing: Any, tmp_path: Path) -> None:
    server = SiteSettings(folder=str(tmp_path / "server"))

    def run(name: str, rounds: int, **trainer: Any) -> Path:
        transport, what = handing(tmp_path / name, **trainer), config(f"--trainer.rounds={rounds}")
        return serve(what, name, transport, transport.open(what, name), server, {"deadline": 60.0})

    for name, began, now, sentence in [
        ("a", {"precision": "bf16-true"}, {}, r"`data\.\w+\.trainer` to be there as in checkpoint"),
        ("b", {}, {"precision": "bf16-true"}, "to be left out as in checkpoint"),
        ("c", {"precision": "64-true"}, {"precision": "bf16-true"}, "precision` to be '64-true' as in checkpoint"),
    ]:
        folder = run(name, 2, **began)
        with pytest.raises(InputError, match=sentence):
            run(name, 3, **now)
        assert run(name, 3, **began, accelerator="cpu") == folder  # where a site computes is its own affair


def test_a_run_goes_on_without_a_site_that_does_not_open_it_again(handing: Any, tmp_path: Path) -> None:
    """A new run is refused as a whole: whoever submits it is to know."""
    server = SiteSettings(folder=str(tmp_path / "server"))

    def run(rounds: int) -> dict[str, Any]:
        what = config(f"--trainer.rounds={rounds}")
        folder = serve(what, "first", transport, transport.open(what, "first"), server, {"deadline": 60.0})
        return dict(json.loads((folder / "results.json").read_text()))

    transport = handing(tmp_path)
    run(2)
    file = tmp_path / "east" / "local" / "flgraph.yaml"
    before = file.read_text()
    file.write_text(yaml.safe_dump({**yaml.safe_load(before), "policy": {"algorithms": ["Local"]}}))
    assert list(run(3)["final"]["clients"]) == ["trees"]
    file.write_text(before)
    results = run(4)  # it is not let in again: it has missed a round, and nobody knows why
    assert list(results["final"]["clients"]) == ["trees"]
    assert results["dropped"] == {"rings": {"times": 0, "excluded": True}}
    file.write_text(yaml.safe_dump({**yaml.safe_load(before), "policy": {"algorithms": ["Local"]}}))
    sites = transport.open(config(), "second")
    with pytest.raises(InputError, match="policy of site `east`"):
        serve(config(), "second", transport, sites, server, {"deadline": 60.0})


def test_too_few_sites_end_a_run(handing: Any, tmp_path: Path) -> None:
    transport = handing(tmp_path)
    sites = transport.open(config(), "first")
    transport.send = lambda site, message, timeout: None
    with pytest.raises(EngineError, match="Only 0 of at least 2 clients answered in time; missing: trees, rings"):
        serve(config(), "x", transport, sites, SiteSettings(folder=str(tmp_path)), {})
    silent = transport.open(config(), "first")
    with pytest.raises(EngineError, match="Site `north` did not load its data within 60 s"):
        serve(config(), "y", transport, silent, SiteSettings(folder=str(tmp_path)), {})


def test_what_a_site_tells_when_a_run_goes_on_costs_itself_only(handing: Any, tmp_path: Path) -> None:
    server = SiteSettings(folder=str(tmp_path / "server"))

    def run(name: str, rounds: int, lie: Callable[[Any], Any] | None = None) -> list[str]:
        what = config(f"--trainer.rounds={rounds}")
        opened = transport.open(what, name)
        if lie is not None:
            opened["east"] = lie(opened["east"])
        folder = serve(what, name, transport, opened, server, {"deadline": 60.0})
        return sorted(json.loads((folder / "results.json").read_text())["final"]["clients"])

    transport = handing(tmp_path)
    lies: dict[str, Callable[[Any], Any]] = {
        "fewer": lambda told: {n: {**of, "data": {**of["data"], "num_train_samples": 1}} for n, of in told.items()},
        "anothers": lambda told: {"trees": told["rings"]},
        "unknown": lambda told: {"new": told["rings"]},
        "silent": lambda _: EngineError("It did not load its data."),
    }
    for name, lie in lies.items():
        assert run(name, 2) == ["rings", "trees"]
        assert run(name, 3, lie) == ["trees"]
    assert run("more", 2) == ["rings", "trees"]
    assert run("more", 3, lambda told: {**told, "new": told["rings"]}) == ["rings", "trees"]


@pytest.mark.parametrize("field", ["data", "parameters", "routes"])
def test_a_site_describes_its_clients_wholly(handing: Any, tmp_path: Path, field: str) -> None:
    transport = handing(tmp_path)
    send = transport.send

    def without(site: str, message: Message, timeout: float) -> Message:
        answer: Message = send(site, message, timeout)
        for about in answer.header.get("about", {}).values():
            about.pop(field, None)
        return answer

    transport.send = without
    told = transport.open(config(), "first")["east"]
    assert str(told).startswith("Expected `clients of site `east` to be described by data, parameters and routes")


@pytest.mark.parametrize("broken", [False, True])
def test_a_site_of_another_version_is_named(handing: Any, tmp_path: Path, broken: bool) -> None:
    """Also where it cannot open the job, as it may well not."""
    transport = handing(tmp_path)
    send = transport.send

    def older(site: str, message: Message, timeout: float) -> Message:
        answer: Message = send(site, message, timeout)
        return Message({**({"error": "refused"} if broken else answer.header), "version": "0.0.9"})

    transport.send = older
    wanted = f"Expected `flgraph` at site `east` to be of version {__version__}, as at the server, but got '0.0.9'."
    assert str(transport.open(config(), "first")["east"]) == wanted


def test_a_job_that_is_opened_twice_keeps_its_clients(handing: Any, tmp_path: Path) -> None:
    """They have trained since."""
    site = handing(tmp_path).sites["east"]
    request = Message({"do": "open", "config": config(), "run": "first"})
    told, made = site.answer(request), site.host
    assert site.answer(request) == told
    assert site.host is made


def test_what_a_site_refuses_is_told_by_a_code(
    in_memory: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The sentence, which may tell of the site's data and files, is in the site's log alone."""
    content = yaml.safe_load((EXAMPLE / "north.yaml").read_text())
    for own, sentence in [
        ({}, "`data` to be in the site's local/flgraph.yaml but got 'none'."),
        ({**content, "clients": ["x"]}, "`clients` to be among those of the data, trees, rings, ladders"),
        ({**content, "trainer": {"callbacks": "nowhere.Callback"}}, "`trainer.callbacks` to be"),
        ({**content, "policy": {"algorithms": ["Local"]}}, "`aggregator` to be among the algorithms"),
    ]:
        transport = in_memory(tmp_path, {"north": own})
        error = transport.open(config(), "first")["north"]
        assert isinstance(error, InputError)
        assert str(error) in (
            f"Expected `job` to be {expected} but got a refusal, which its own log explains (flgraph.log in its kit)."
            for expected in ("one that site `north` can work on", "allowed by the policy of site `north`")
        )
        assert error.__cause__ is None
        assert sentence in caplog.text
