"""A whole federation on NVIDIA FLARE, with mutual TLS, and what happens to it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

CONFIG = str(Path(__file__).resolve().parents[2] / "examples" / "flare" / "federation.yaml")

SERVER, SITE, JOB = "server_train", "client_train", "worker_process"

FOREIGN = """
import json, os, sys, time
from pathlib import Path
from flgraph.flare.jobs import Supervisor, write_job

folder = Path(sys.argv[1])
job = write_job(folder, "coded", "model: {}", ["north", "east", "west"], {})
(job / "app" / "custom").mkdir()
(job / "app" / "custom" / "code.py").write_text(f"open({str(folder / 'seen')!r}, 'w')")
supervisor = Supervisor(Path("kits/admin"))
number = supervisor._patiently(lambda session: session.submit_job(str(job)))
for _ in range(200):
    meta = supervisor._patiently(lambda session: session.get_job_meta(number))
    if "FINISHED" in str(meta["status"]):
        break
    time.sleep(0.5)
print(json.dumps({"status": str(meta["status"]), "details": str(meta)}), flush=True)
os._exit(0)
"""


def test_the_same_bits_as_in_one_process(federation: Any, as_sites_tell: Any) -> None:
    run = federation.submit("whole", 3)
    assert run.wait(400) == 0, federation.told("whole")
    here, there = federation.in_one_process(3), federation.results("whole")
    here = as_sites_tell(here)
    for part in ("final", "best_val", "bytes_per_round", "setup_bytes", "rounds", "parameters", "data"):
        assert there[part] == here[part], part
    kept = list((federation.kits / "server").rglob("*.ckpt"))
    assert kept == []  # states of clients stay at the sites
    assert {path.parent.name for path in (federation.kits / "north" / "flgraph").rglob("*.ckpt")} == {"trees"}
    told = federation.run("flare", "status", "--admin", "kits/admin").stdout
    assert "site east: last heard" in told
    assert "whole: FINISHED:COMPLETED" in told


def test_lost_processes_do_not_change_a_bit(federation: Any) -> None:
    """First a site's training process is killed in the middle of the run, then the server with all it knows."""
    rounds = 80
    run = federation.submit("hurt", rounds)
    federation.wait_for(lambda: len(federation.rounds("hurt")) >= 3, "the first rounds")
    federation.signal("east", JOB, signal.SIGKILL)
    federation.wait_for(lambda: "attempt 2" in federation.told("hurt"), "another job")
    before = len(federation.rounds("hurt"))
    federation.wait_for(lambda: len(federation.rounds("hurt")) >= min(before + 3, rounds - 1), "further rounds")
    for module in (SERVER, "runner_process"):
        federation.signal("server", module, signal.SIGKILL)
    assert run.wait(500) == 0, federation.told("hurt")
    assert "attempt 3" in federation.told("hurt")
    assert federation.results("hurt")["final"] == federation.in_one_process(rounds)["final"]
    assert [line["round"] for line in federation.rounds("hurt")] == list(range(1, rounds + 1))


def test_a_site_that_is_late_and_one_that_is_started_again(federation: Any) -> None:
    """Left out after its deadline, not waited for afterwards, back with its own state; then lost as a whole."""
    run = federation.submit("late", 200, "--deadline", "3", "--ask_every", "1")
    federation.wait_for(lambda: len(federation.rounds("late")) >= 3, "the first rounds")
    federation.signal("west", JOB, signal.SIGSTOP)
    federation.wait_for(lambda: federation.rounds("late")[-1]["clients"] == ["trees", "rings"], "a round without it")
    federation.signal("west", JOB, signal.SIGCONT)
    federation.wait_for(lambda: len(federation.rounds("late")[-1]["clients"]) == 3, "a round with it")
    for module in (SITE, JOB):
        federation.signal("west", module, signal.SIGKILL)
    assert run.wait(500) == 0, federation.told("late")
    assert "started again outside of the job: west" in federation.told("late")
    results = federation.results("late")
    assert sorted(results["final"]["clients"]) == ["ladders", "rings", "trees"]
    assert results["rounds"] == 200


def test_a_site_that_is_gone_at_the_end_does_not_undo_the_run(federation: Any) -> None:
    """FLARE goes on waiting for it; the supervisor finds that the run is done."""
    rounds = 30
    run = federation.submit("ended", rounds, "--deadline", "3")
    federation.wait_for(lambda: len(federation.rounds("ended")) >= rounds - 1, "the last rounds")
    federation.processes[3].terminate()  # west's kit, with everything that it runs
    assert run.wait(400) == 0, federation.told("ended")
    assert federation.results("ended")["rounds"] == rounds
    assert "attempt 2" not in federation.told("ended")
    federation.begin("flare", "start", "kits/west")
    federation.wait_for(lambda: _west_is_back(federation), "west")


def test_nobody_starts_without_a_site_that_is_named(federation: Any) -> None:
    run = federation.begin("flare", "submit", "--sites", "north,south", "--wait", "1", "-c", CONFIG, log="without.log")
    assert run.wait(200) == 1
    assert "waiting for south" in federation.told("without")
    assert "Sites were not there within 1 s: south." in federation.told("without")


def _west_is_back(federation: Any) -> bool:
    told = federation.run("flare", "status", "--admin", "kits/admin").stdout
    return any("site west" in line and int(line.split()[-3]) < 15 for line in told.splitlines() if "heard" in line)


def test_code_sent_with_a_job_is_refused(federation: Any, tmp_path: Path) -> None:
    script = tmp_path / "submit.py"
    script.write_text(FOREIGN)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        cwd=federation.folder,
        env=federation.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert "COMPLETED" not in answer["status"], answer
    assert "byoc" in answer["details"].lower(), answer
    assert not (tmp_path / "seen").exists()
