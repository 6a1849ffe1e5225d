"""A whole federation on NVIDIA FLARE, with mutual TLS, that loses a site in the middle of a run."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flgraph.cli.main import main
from flgraph.runs.ledger_reader import read_ledger

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flare"
CONFIG = str(EXAMPLE / "federation.yaml")
ROUNDS, SECURE = 12, "--trainer.secure_sums.threshold=0.66"

FOREIGN = """
import json, os, sys, time
from pathlib import Path
from flgraph.flare.jobs import Supervisor, write_job

folder = Path(sys.argv[1])
job = write_job(folder, "coded", "model: {}", ["north", "east"], {})
(job / "app" / "custom").mkdir()
(job / "app" / "custom" / "code.py").write_text(f"open({str(folder / 'seen')!r}, 'w')")
supervisor = Supervisor(Path("kits/admin"))
number = supervisor.submit(job)
for _ in range(200):
    meta = supervisor.meta(number)
    if "FINISHED" in str(meta["status"]):
        break
    time.sleep(0.5)
print(json.dumps({"status": str(meta["status"]), "details": str(meta)}), flush=True)
os._exit(0)
"""


@pytest.mark.usefixtures("one_thread")
def test_a_lost_job_does_not_change_a_bit(
    federation: Any,
    measured: Callable[[Path], dict[str, Any]],
    as_sites_tell: Callable[..., Any],
    assert_same: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From start to states that are brought home; what a site does not allow is refused on the way."""
    monkeypatch.chdir(federation.folder)
    sites, what = ("--sites", "north,east"), ("-c", CONFIG, f"--trainer.rounds={ROUNDS}", SECURE)
    run = federation.begin("submit", *sites, "--name", "hurt", *what, log="hurt")
    federation.wait_for(lambda: len(federation.rounds("hurt")) >= 3, "the first rounds")
    federation.kill("east", "worker_process")
    nobody = federation.begin("submit", "--sites", "north,south", "--wait", "1", "-c", CONFIG, log="nobody")
    assert nobody.wait() == 1
    assert "waiting for south" in nobody.stdout.read_text()
    assert "Sites were not there within 1 s: south." in nobody.stderr.read_text()

    assert run.wait() == 0, run.stderr.read_text()
    report = run.stdout.read_text()
    assert "; going on from the last whole round" in report  # FLARE notices it, or the supervisor does
    assert "attempt 2" in report
    assert [line["round"] for line in federation.rounds("hurt")] == list(range(1, ROUNDS + 1))
    assert all(line["clients"] == ["trees", "rings", "ladders"] for line in federation.rounds("hurt"))
    status = federation.begin("status", log="status")
    assert status.wait() == 0
    assert "site east: last heard" in status.stdout.read_text()
    assert "hurt: FINISHED:COMPLETED" in status.stdout.read_text()
    refuse_code(federation.folder)
    sites_sign_for_their_clients(federation.kits / "server" / "flgraph" / "hurt" / "version_0" / "ledger.jsonl")

    data = federation.folder / "data.yaml"
    data.write_text(yaml.safe_dump({"data": yaml.safe_load((EXAMPLE / "north.yaml").read_text())["data"]}))
    main(["fit", "-c", str(data), *what, "--trainer.name", "one", "--trainer.enable_progress_bar", "false"])
    expected = measured(federation.folder / "runs" / "one" / "version_0")
    expected["results"] = as_sites_tell(expected["results"], federation.kits, withheld=True)
    handed_over = json.loads((federation.folder / "runs" / "flare" / "hurt" / "results.json").read_text())
    expected["results"]["bytes_per_round"] = handed_over["bytes_per_round"]  # certificates and signatures cross, too
    assert {key: handed_over[key] for key in expected["results"]} == expected["results"]
    states = {kit: {file.parent.name for file in (federation.kits / kit).rglob("*.ckpt")} for kit in ("north", "east")}
    assert states == {"north": {"trees"}, "east": {"rings", "ladders"}}  # where they stay
    assert list((federation.kits / "server").rglob("*.ckpt")) == []
    private = [*federation.kits.rglob("*.ckpt"), *federation.kits.rglob("secret"), *federation.kits.rglob("*.key")]
    assert {stat.S_IMODE(file.stat().st_mode) for file in private} == {0o600}
    main(["flare", "gather", "hurt", "--out", "gathered"])
    found = measured(federation.folder / "gathered" / "hurt" / "version_0")
    for line, own in zip(expected["history"], found["history"], strict=True):
        line |= {way: own[way] for way in ("bytes_up", "bytes_down")}
    assert_same(found, expected)


def sites_sign_for_their_clients(ledger: Path) -> None:
    """Where sums are secure: with the keys of their kits."""
    lines = read_ledger(ledger)
    sent = [line for line in lines if line.direction == "up" and line.request == "shares"]
    assert {line.round for line in sent} == set(range(1, ROUNDS + 1))
    assert all(list(line.tensors) == ["certificate", "commitment", "sealed", "signature"] for line in sent)
    told = [line for line in lines if line.direction == "down" and line.request == "hold"]
    assert {line.tensors["certificates"].split("x")[0] for line in told} == {"2"}


def refuse_code(folder: Path) -> None:
    """A job that brings code is not run."""
    (folder / "coded").mkdir()
    (folder / "coded.py").write_text(FOREIGN)
    command = [sys.executable, "-P", str(folder / "coded.py"), str(folder / "coded")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert "COMPLETED" not in answer["status"], answer
    assert "byoc" in answer["details"].lower(), answer
    assert not (folder / "coded" / "seen").exists()
