"""What the supervisor makes of what FLARE says, and how messages reach a site; FLARE itself is played."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flgraph import __version__
from flgraph.errors import ClientError, EngineError, InputError, encode_error
from flgraph.federation.engines.host import Message
from flgraph.flare import jobs
from flgraph.flare.jobs import OUTCOME, RESULTS, Supervisor, _heard

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'flgraph[flare]'")

OPTIONS = {"wait": 10.0}


class Flare:
    """A server with jobs, each of which goes by its own script, and a clock that only sleeping moves."""

    def __init__(self, *scripts: Callable[[Job], None]) -> None:
        self.now, self.scripts = 0.0, list(scripts)
        self.heard = {"north": 0.0, "west": 0.0}
        self.jobs: list[Job] = []
        self.api = SimpleNamespace(close=lambda: None)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.heard = dict.fromkeys(self.heard, self.now)
        for job in self.jobs:
            job.script(job)

    # What FLARE's session has.
    def submit_job(self, folder: str, submit_token: str) -> str:
        self.jobs.append(Job(str(len(self.jobs)), self, self.scripts.pop(0)))
        return self.jobs[-1].id

    def get_system_info(self) -> Any:
        return SimpleNamespace(
            server_info=SimpleNamespace(status="started"),
            client_info=[SimpleNamespace(name=name, last_connect_time=when) for name, when in self.heard.items()],
            job_info=[SimpleNamespace(job_id=job.id) for job in self.jobs if job.served],
        )

    def list_jobs(self) -> list[dict[str, Any]]:
        return [{"job_id": job.id, "job_name": "run", "status": job.status} for job in reversed(self.jobs)]

    def get_job_meta(self, number: str) -> dict[str, Any]:
        return {"status": self.jobs[int(number)].status}

    def get_client_job_status(self) -> list[dict[str, Any]]:
        return [{"client_name": name, "job_id": job.id} for job in self.jobs for name in job.sites]

    def abort_job(self, number: str) -> None:
        self.jobs[int(number)].abort()

    def download_job_result(self, number: str, folder: str) -> None:
        for name, text in self.jobs[int(number)].files.items():
            (Path(folder) / name).write_text(text)


class Job:
    def __init__(self, number: str, flare: Flare, script: Callable[[Job], None]) -> None:
        self.id, self.flare, self.script, self.began = number, flare, script, flare.now
        self.status, self.served, self.sites = "RUNNING", True, {"north", "west"}
        self.files: dict[str, str] = {}
        self.aborted = False

    @property
    def age(self) -> float:
        return self.flare.now - self.began

    def end(self, state: str = "done", error: Exception | None = None) -> None:
        """As the job's server half leaves it."""
        outcome = {"state": state} if error is None else {"state": state, "error": encode_error(error)}
        self.files = {OUTCOME: json.dumps(outcome), **dict.fromkeys(RESULTS, "{}")}
        self.served, self.sites = False, set()

    def finish(self, status: str = "FINISHED:COMPLETED") -> None:
        self.status, self.served, self.sites = status, False, set()

    def abort(self) -> None:
        self.aborted = True
        self.finish("FINISHED:ABORTED")


def done(job: Job) -> None:
    if job.age >= 3 and job.status == "RUNNING":
        job.end()
        job.finish()


def ends_with(state: str, error: Exception) -> Callable[[Job], None]:
    def script(job: Job) -> None:
        job.end(state, error)
        job.finish("FINISHED:EXECUTION_EXCEPTION")

    return script


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Supervisor, Flare, list[str]]]:
    """Makes a supervisor of such a server, and the list of what it reports."""

    def make(*scripts: Callable[[Job], None], **options: Any) -> tuple[Supervisor, Flare, list[str]]:
        (tmp_path / "startup").mkdir(exist_ok=True)
        flare, reported = Flare(*scripts), list[str]()
        monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=flare.clock, time=flare.clock, sleep=flare.sleep))
        supervisor = Supervisor(tmp_path, ["north", "west"], report=reported.append, **options)
        monkeypatch.setattr(supervisor, "_log_in", lambda: flare)
        return supervisor, flare, reported

    return make


def test_results_are_handed_over(supervise: Any, tmp_path: Path) -> None:
    supervisor, _, reported = supervise(done)
    assert supervisor.run("run", "", tmp_path / "out", OPTIONS) == tmp_path / "out" / "run"
    assert {path.name for path in (tmp_path / "out" / "run").iterdir()} == set(RESULTS)
    assert reported == ["job 0, attempt 1, sites north, west"]
    assert supervisor.status() == [
        "server: up, a job is running",
        "site north: last heard 0 s ago",
        "site west: last heard 0 s ago",
        "job 0 run: FINISHED:COMPLETED",
    ]


def test_a_job_that_went_with_its_server_is_not_said_to_run(supervise: Any) -> None:
    supervisor, flare, _ = supervise(done)
    flare.submit_job("", "")
    flare.jobs[0].served = False
    assert supervisor.status()[-1] == "job 0 run: lost, the server was started again"


def test_a_site_that_was_started_again_loses_the_job(supervise: Any, tmp_path: Path) -> None:
    """After a while in which it is there and not part of the job; before, it may still begin, or just have ended."""

    def loses_west(job: Job) -> None:
        job.sites = {"north"} if job.age >= 5 else job.sites

    supervisor, flare, reported = supervise(loses_west, done)
    supervisor.run("run", "", tmp_path, OPTIONS)
    assert flare.jobs[0].aborted
    assert 20 <= flare.jobs[1].began < 30
    assert reported[1] == "lost: started again outside of the job: west; going on from the last whole round"
    assert reported[2] == "job 1, attempt 2, sites north, west"


def test_sites_that_are_done_while_one_is_gone_lose_nothing(supervise: Any, tmp_path: Path) -> None:
    """FLARE waits for the one that is gone; the others end their part a little before the server does."""

    def west_dies(job: Job) -> None:
        if job.age >= 5:
            job.sites.discard("west")
            job.flare.heard["west"] = job.began + 5
        if job.age >= 50:
            job.sites.discard("north")
        if job.age >= 55 and job.served:
            job.end()

    supervisor, flare, reported = supervise(west_dies)
    assert supervisor.run("run", "", tmp_path / "out", OPTIONS) == tmp_path / "out" / "run"
    assert flare.jobs[0].aborted
    assert reported == ["job 0, attempt 1, sites north, west"]


def test_a_site_that_is_away_does_not_lose_the_job(supervise: Any, tmp_path: Path) -> None:
    """It is late, and may come back to its part."""

    def west_is_away(job: Job) -> None:
        away = 5 <= job.age < 100
        job.sites = {"north"} if away else {"north", "west"}
        job.flare.heard["west"] = job.began + 5 if away else job.flare.now
        if job.age >= 110 and job.status == "RUNNING":
            job.end()
            job.finish()

    supervisor, flare, _ = supervise(west_is_away)
    supervisor.run("run", "", tmp_path, OPTIONS)
    assert [job.aborted for job in flare.jobs] == [False]


def test_a_server_that_was_started_again_has_lost_its_jobs(supervise: Any, tmp_path: Path) -> None:
    """It lists them as running for ever."""
    from nvflare.fuel.flare_api.api_spec import JobNotRunning

    def is_lost(job: Job) -> None:
        if job.age >= 5:
            job.served = False

            def abort() -> None:
                raise JobNotRunning("no")

            job.abort = abort  # type: ignore[method-assign]

    supervisor, _, reported = supervise(is_lost, done)
    supervisor.run("run", "", tmp_path, OPTIONS)
    assert reported[1] == "lost: the server was started again; going on from the last whole round"


def test_a_site_that_is_gone_at_the_end_does_not_undo_the_run(supervise: Any, tmp_path: Path) -> None:
    """FLARE goes on waiting for it; the supervisor finds that the run is done."""

    def half_done(job: Job) -> None:
        if job.age >= 5 and not job.files:
            job.end()

    supervisor, flare, reported = supervise(half_done)
    assert supervisor.run("run", "", tmp_path / "out", OPTIONS).is_dir()
    assert flare.jobs[0].aborted
    assert len(reported) == 1


@pytest.mark.parametrize("kind", [InputError, ClientError])
def test_what_would_fail_again_is_not_repeated(supervise: Any, tmp_path: Path, kind: type[Exception]) -> None:
    supervisor, flare, _ = supervise(ends_with("failed", kind("of the user")))
    with pytest.raises(kind, match="of the user"):
        supervisor.run("run", "", tmp_path, OPTIONS)
    assert len(flare.jobs) == 1
    supervisor, _, _ = supervise(ends_with("failed", OSError(28, "No space left on device")))
    with pytest.raises(ClientError, match="No space left on device"):
        supervisor.run("run", "", tmp_path, OPTIONS)


def test_lost_jobs_are_repeated_so_many_times(supervise: Any, tmp_path: Path) -> None:
    lost = ends_with("lost", EngineError("FLARE ended the job."))
    supervisor, _, reported = supervise(lost, Job.abort, done, attempts=3)
    supervisor.run("run", "", tmp_path, OPTIONS)
    assert [line.partition(";")[0] for line in reported if line.startswith("lost")] == [
        "lost: FLARE ended the job.",
        "lost: the job ended as FINISHED:ABORTED",
    ]
    supervisor, _, _ = supervise(lost, lost, attempts=2)
    with pytest.raises(EngineError, match="2 jobs were lost before the run was done"):
        supervisor.run("run", "", tmp_path, OPTIONS)


def test_a_job_that_is_going_on_is_watched(supervise: Any, tmp_path: Path) -> None:
    """Of a supervisor that was stopped: two jobs must not write one run."""
    supervisor, flare, reported = supervise(done)
    flare.submit_job("", "")
    supervisor.run("run", "", tmp_path, OPTIONS)
    assert (len(flare.jobs), len(reported)) == (1, 1)


def test_a_server_that_does_not_answer_is_waited_for(supervise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, flare, reported = supervise()

    def away(until: float) -> Any:
        if flare.now < until:
            raise ConnectionError("away")
        return flare

    monkeypatch.setattr(supervisor, "_log_in", lambda: away(100.0))
    assert len(supervisor.status()) == 3
    supervisor._session = None
    monkeypatch.setattr(supervisor, "_log_in", lambda: away(1000.0))
    with pytest.raises(EngineError, match="The server did not answer for 300 s: ConnectionError: away"):
        supervisor.status()
    assert reported == ["the server does not answer; asking again for up to 300 s in all"] * 2


def test_calls_that_hang_do_not_hold_up_later_ones(supervise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there have been since it began to ask."""
    supervisor, flare, _ = supervise()
    monkeypatch.setattr(jobs, "_CALL", 0.05)
    awake = threading.Event()
    for number in range(6):
        hangs = iter([True])
        assert supervisor._call(lambda session, hangs=hangs: awake.wait(60) if next(hangs, False) else session) is flare
        assert number < 6
    awake.set()


def test_who_submits_waits_no_longer_for_the_server_than_for_sites(
    supervise: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    supervisor, flare, _ = supervise()

    def away() -> Any:
        raise ConnectionError("away")

    monkeypatch.setattr(supervisor, "_log_in", away)
    with pytest.raises(EngineError, match="The server did not answer for 10 s"):
        supervisor.run("run", "", tmp_path, OPTIONS)
    assert flare.now <= 12.0


def test_what_the_server_refuses_is_reported(supervise: Any) -> None:
    from nvflare.fuel.flare_api.api_spec import AuthorizationError

    supervisor, flare, _ = supervise()

    def refuse() -> None:
        raise AuthorizationError("not you")

    flare.list_jobs = refuse
    with pytest.raises(InputError, match="`request` to be one that the server takes but got not you"):
        supervisor.status()


def test_a_site_without_heartbeats_counts_as_gone() -> None:
    """FLARE lists it for ten minutes; the administrator's clock may be another one than the server's."""
    sites = {"north": 1000.0, "east": 1009.0, "west": 960.0}
    info = SimpleNamespace(client_info=[SimpleNamespace(name=n, last_connect_time=t) for n, t in sites.items()])
    assert _heard(info) == {"north", "east"}
    assert _heard(SimpleNamespace(client_info=[])) == set()


def test_sites_that_are_waited_for_are_reported_once(supervise: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, _, reported = supervise()
    there = iter([{"north"}, {"north"}, {"north", "east"}, {"north", "east", "west"}])
    monkeypatch.setattr(supervisor, "_connected", lambda: next(there))
    supervisor._wait_for_sites(["north", "east", "west"], 10.0)
    assert reported == ["waiting for east, west", "waiting for west"]
    monkeypatch.setattr(supervisor, "_connected", lambda: {"north"})
    with pytest.raises(EngineError, match=r"Sites were not there within 0 s: east\."):
        supervisor._wait_for_sites(["north", "east"], 0.0)


# --------------------------------------------------------------------------------------------------- a job's two halves
class Engine:
    """What FLARE gives a job: its folder, and requests to sites."""

    def __init__(self, folder: Path, answer: Callable[[Any], Any] = lambda request: None) -> None:
        self.folder, self._answer = folder, answer

    def get_workspace(self) -> Any:
        root, run = str(self.folder), str(self.folder / "run")
        return SimpleNamespace(get_run_dir=lambda number: run, get_root_dir=lambda: root)

    def send_aux_request(self, sites: list[str], topic: str, request: Any, timeout: float, context: Any) -> Any:
        return {site: self._answer(request) for site in sites}


def context(engine: Engine) -> Any:
    return SimpleNamespace(get_engine=lambda: engine, get_job_id=lambda: "job")


def test_messages_go_through_flare_and_back(tmp_path: Path) -> None:
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import make_reply
    from nvflare.fuel.f3.cellnet.core_cell import MessageHeaderKey
    from nvflare.private.defs import new_cell_message

    from flgraph.flare.controller import AuxTransport
    from flgraph.flare.executor import SiteExecutor

    site, over = SiteExecutor(), SimpleNamespace(triggered=False)
    listening: dict[str, Callable[..., Any]] = {}
    registered: dict[str, Any] = {}
    engine: Any = Engine(tmp_path)
    engine.register_aux_message_handler = listening.__setitem__
    engine.get_cell = lambda: SimpleNamespace(register_request_cb=registered.update)
    engine.new_context = lambda: nullcontext(FLContext())
    engine.dispatch = lambda topic, request, fl_ctx: listening[topic](topic, request, fl_ctx)
    site.handle_event("_start_run", context(engine))
    assert (registered["channel"], registered["topic"]) == ("aux_communication", *listening)

    def transport(answer: Callable[[Any], Any]) -> AuxTransport:
        return AuxTransport(context(Engine(tmp_path, answer)), over)

    def carried(request: Any, origin: str = "server.job") -> Any:
        return registered["cb"](new_cell_message({MessageHeaderKey.ORIGIN: origin}, request)).payload

    for other in ("west.job", "", "servers.job"):
        assert transport(lambda request, other=other: carried(request, other)).send("north", Message(), 1.0) is None
    answers = transport(carried)
    answer = answers.send("north", Message({"do": "open", "config": "model: {}", "run": "first"}), 1.0)
    assert isinstance(answer, Message)
    assert answer.header == {"error": "refused", "version": __version__}
    for reply in (None, make_reply(ReturnCode.COMMUNICATION_ERROR)):  # too late, or gone
        assert transport(lambda request, reply=reply: reply).send("north", Message({"do": "ping"}), 1.0) is None
    over.triggered = True
    with pytest.raises(EngineError, match="FLARE ended the job"):
        transport(lambda request: __import__("time").sleep(0.2)).send("north", Message({"do": "ping"}), 1.0)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (InputError("rounds", "1 or more", 0), "failed"),
        (ClientError("Client `A` failed"), "failed"),
        (EngineError("Only 1 of at least 2 clients answered"), "lost"),
        (OSError(28, "No space left on device"), "failed"),
        (SystemExit(2), "failed"),
    ],
)
def test_a_job_says_how_it_ended(
    error: BaseException, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flgraph.flare import controller

    def serve(*args: Any) -> None:
        raise error

    panics: list[str] = []
    monkeypatch.setattr(controller, "serve", serve)
    found = controller.FederationController("", "run", [])
    monkeypatch.setattr(found, "_greet", lambda *args: None)
    monkeypatch.setattr(found, "system_panic", lambda text, _: panics.append(text))
    monkeypatch.setattr(found, "log_error", lambda *args: None)
    (tmp_path / "run").mkdir()
    found.control_flow(SimpleNamespace(triggered=False), context(Engine(tmp_path)))
    outcome: Mapping[str, Any] = json.loads((tmp_path / "run" / OUTCOME).read_text())
    assert outcome["state"] == state
    assert outcome["error"]["trace"] == ""
    assert panics == [str(error)]
