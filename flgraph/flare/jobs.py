"""Jobs on a FLARE system: submitted, watched, and submitted again where one was lost."""

from __future__ import annotations

import io
import json
import logging
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from flgraph.errors import ClientError, EngineError, InputError, decode_error, expect
from flgraph.flare.kits import ADMIN, CLASSES

RESULTS = ("results.json", "history.jsonl", "config.yaml")
"""What of a run goes to who submitted it."""

OUTCOME = "outcome.json"
"""How a job ended, in its workspace: ``state`` is ``done``, ``failed`` or ``lost`` (another job may go on)."""

_CALL = 30.0
"""Seconds for a call to the server; FLARE's own have none, and one may hang."""

_GRACE = 15.0
"""Seconds in which server and connected sites must be part of a job that is said to run."""

_HEARD = 45.0
"""Seconds after which a site that has not sent one of its heartbeats (every ten) counts as gone."""


def write_job(folder: Path, name: str, config: str, sites: Sequence[str], options: dict[str, Any]) -> Path:
    """Writes a FLARE job without code: class paths and the configuration of the run.

    Args:
        folder: where to; the job's own folder is made in it.
        name: of the run.
        config: as YAML, without data.
        sites: that take part.
        options: further arguments of the controller.
    """
    job = folder / "flgraph"
    app = job / "app" / "config"
    app.mkdir(parents=True)
    meta = {
        "name": name,
        "resource_spec": {},
        "deploy_map": {"app": ["server", *sites]},
        "min_clients": len(sites),
        "mandatory_clients": list(sites),
    }
    controller = {"config": config, "name": name, "sites": list(sites), **options}
    workflow = {"id": "federation", "path": CLASSES[0], "args": controller}
    executor = {"tasks": ["*"], "executor": {"path": CLASSES[1], "args": {}}}
    common: dict[str, Any] = {"format_version": 2, "task_data_filters": [], "task_result_filters": [], "components": []}
    (job / "meta.json").write_text(json.dumps(meta, indent=1))
    (app / "config_fed_server.json").write_text(json.dumps({**common, "workflows": [workflow]}, indent=1))
    (app / "config_fed_client.json").write_text(json.dumps({**common, "executors": [executor]}, indent=1))
    return job


class Supervisor:
    """Sees a run through: submits a job, and another one whenever that was lost before the run was done.

    Each job goes on from the last whole round of the one before. A job that failed for a reason of the user's or of an
    algorithm is not repeated.

    Args:
        admin: the administrator's kit.
        sites: that take part, in the order of the federation; all that are connected when empty.
        attempts: jobs at most.
        timeout: seconds in which a server that does not answer must come back.
        report: called with a line for whatever happens.
    """

    def __init__(
        self,
        admin: Path,
        sites: Sequence[str] = (),
        attempts: int = 20,
        timeout: float = 300.0,
        report: Callable[[str], None] = print,
    ) -> None:
        expect((admin / "startup").is_dir(), "--admin", "the administrator's start-up kit", admin)
        expect(attempts >= 1, "--attempts", "1 or more", attempts)
        self.admin, self.sites, self.attempts = admin.resolve(), list(sites), attempts
        self.timeout, self.report = timeout, report
        self._session: Any = None
        self._calls = ThreadPoolExecutor(4)  # one that hangs must not hold up the others

    def run(self, name: str, config: str, out: Path, options: dict[str, Any]) -> Path:
        """Runs a federation to its end.

        Args:
            name: of the run; the same name goes on where an earlier run was stopped.
            config: as YAML, without data.
            out: where results go, ``out/NAME``.
            options: see :func:`write_job`.

        Returns:
            The folder with ``results.json``.

        Raises:
            InputError: the run failed for a reason of the user's.
            ClientError: a client failed, or something else that another attempt would not change.
            EngineError: a site is not there, too many jobs were lost, or the server is gone.
        """
        self._call(lambda session: session.get_system_info(), options["wait"])  # or there is no server at all
        sites = self.sites or sorted(self._connected())
        expect(len(sites) > 0, "--sites", "one or more that are connected to the server", "none")
        self._wait_for_sites(sites, options["wait"])
        for attempt in range(1, self.attempts + 1):
            job = self._running(name)  # of a supervisor that was stopped: two jobs must not write one run
            if job is None:
                with tempfile.TemporaryDirectory() as folder:
                    job = self.submit(write_job(Path(folder), name, config, sites, options))
            self.report(f"job {job}, attempt {attempt}, sites {', '.join(sites)}")
            lost = self._wait_for(job, sites, out / name)
            if not lost:
                return out / name
            self.report(f"lost: {lost}; going on from the last whole round")
        raise EngineError(f"{self.attempts} jobs were lost before the run was done.")

    def status(self) -> list[str]:
        """Lines about the server, sites that are connected, and jobs, the newest first."""
        info = self._info()
        server = "a job" if str(info.server_info.status) == "started" else "no job"
        working = {job.job_id for job in info.job_info}

        def state(job: dict[str, Any]) -> str:
            gone = "RUNNING" in job["status"] and job["job_id"] not in working
            return "lost, the server was started again" if gone else str(job["status"])

        return [
            f"server: up, {server} is running",
            *(f"site {site}: last heard {time.time() - when:.0f} s ago" for site, when in _heartbeats(info).items()),
            *(f"job {job['job_id']} {job.get('job_name', '')}: {state(job)}" for job in self._jobs()),
        ]

    def submit(self, job: Path) -> str:
        """Submits a job and returns its id."""
        token = uuid.uuid4().hex  # a call that is repeated because its answer was lost makes no second job
        return str(self._call(lambda session: session.submit_job(str(job), submit_token=token)))

    def meta(self, job: str) -> dict[str, Any]:
        """What the server knows of a job."""
        return dict(self._call(lambda session: session.get_job_meta(job)))

    def close(self) -> None:
        """Ends the session."""
        self._calls.shutdown(wait=False, cancel_futures=True)
        if self._session is not None:
            self._session.api.close()

    # -------------------------------------------------------------------------------------------------------- a job
    def _wait_for(self, job: str, sites: Sequence[str], out: Path) -> str:
        """Waits for the end of a job; ends it where a site runs again that the job has lost.

        Returns:
            Why the job was lost; empty if the run is done.
        """
        # When a site, or the server's half, was first seen outside of the job, and the site's last heartbeat then.
        since: dict[str, tuple[float, float]] = {}
        joined: set[str] = set()
        missing = ""
        while True:
            try:
                status = str(self.meta(job)["status"])
            except InputError as error:
                return str(error)
            if "FINISHED" in status:
                return self._take_results(job, status, out)
            if "RUNNING" not in status:  # FLARE starts it when all are there
                missing = self._report_missing(sites, missing)
            else:
                info = self._info()
                working = self._working(job)
                joined |= working
                heard = _heartbeats(info)
                lost = joined - working
                if job not in {running.job_id for running in info.job_info}:
                    lost.add("")  # a server that was killed lists its jobs as running for ever
                since = {name: since.get(name, (time.monotonic(), heard.get(name, 0.0))) for name in lost}
                late = {name for name, (when, _) in since.items() if time.monotonic() - when > _GRACE}
                # A site that is gone has no more heartbeats: the others go on without it.
                back = {name for name in late if not name or heard.get(name, 0.0) > since[name][1]}
                if back:
                    return self._give_up(job, back | (lost & {""}), out)
            time.sleep(1.0)

    def _give_up(self, job: str, lost: set[str], out: Path) -> str:
        if "" in lost:  # or its half of the job is done, and FLARE still waits for a site that is gone
            try:
                self._abort(job, _CALL)
            except (InputError, EngineError):
                return "the server was started again"
            return self._take_results(job, "ended by the supervisor", out)
        self._abort(job, self.timeout)
        return f"started again outside of the job: {', '.join(sorted(lost))}"

    def _abort(self, job: str, timeout: float) -> None:
        self._call(lambda session: session.abort_job(job), timeout)
        until = time.monotonic() + timeout
        while "FINISHED" not in str(self.meta(job)["status"]):
            if time.monotonic() > until:
                raise EngineError(f"Job {job} does not end.")
            time.sleep(1.0)

    def _take_results(self, job: str, status: str, out: Path) -> str:
        """What the job's server half wrote at its end; FLARE's own status does not say enough. Returns why it was lost.

        Raises:
            InputError: the job failed because of something that the user gave.
            ClientError: it failed otherwise.
        """
        with tempfile.TemporaryDirectory() as folder:
            try:
                self._call(lambda session: session.download_job_result(job, folder))
            except InputError as error:
                return f"{status}, and its results are gone: {error}"
            found = sorted(Path(folder).rglob(OUTCOME))
            if not found:
                return f"the job ended as {status}"
            outcome = json.loads(found[0].read_text())
            if outcome["state"] == "done":
                out.mkdir(parents=True, exist_ok=True)
                for file in RESULTS:
                    shutil.copy(found[0].parent / file, out / file)
                return ""
        cause = decode_error(outcome["error"])
        if outcome["state"] == "lost":
            return str(cause)
        raise cause if isinstance(cause, InputError | ClientError) else ClientError(str(cause))

    def _running(self, name: str) -> str | None:
        """The job of this run that the server is working on."""
        working = {job.job_id for job in self._info().job_info}
        jobs = (job["job_id"] for job in self._jobs() if job.get("job_name") == name)
        return next((job for job in jobs if job in working), None)

    def _working(self, job: str) -> set[str]:
        """Sites that run the job."""
        entries = self._call(lambda session: session.get_client_job_status()) or []
        return {entry["client_name"] for entry in entries if entry.get("job_id") == job}

    # ---------------------------------------------------------------------------------------------------- the server
    def _wait_for_sites(self, sites: Sequence[str], seconds: float) -> None:
        until, missing = time.monotonic() + seconds, ""
        while missing := self._report_missing(sites, missing):
            if time.monotonic() > until:
                raise EngineError(f"Sites were not there within {seconds:g} s: {missing}.")
            time.sleep(1.0)

    def _report_missing(self, sites: Sequence[str], reported: str) -> str:
        missing = ", ".join(sorted(set(sites) - self._connected()))
        if missing and missing != reported:
            self.report(f"waiting for {missing}")
        return missing

    def _connected(self) -> set[str]:
        return _heard(self._info())

    def _info(self) -> Any:
        return self._call(lambda session: session.get_system_info())

    def _jobs(self) -> list[dict[str, Any]]:
        return self._call(lambda session: session.list_jobs()) or []

    def _call(self, call: Callable[[Any], Any], timeout: float | None = None) -> Any:
        """Calls the server; logs in again while it is away."""
        timeout = timeout or self.timeout
        until, why, told = time.monotonic() + timeout, "", False
        while time.monotonic() < until:
            try:
                if self._session is None:
                    self._session = self._calls.submit(self._log_in).result(_CALL)
                return self._calls.submit(call, self._session).result(_CALL)
            except NoAnswer:
                why = f"no answer within {_CALL:g} s"
                self._calls.shutdown(wait=False)  # the call that hangs keeps its thread
                self._calls = ThreadPoolExecutor(4)
            except Exception as error:
                if _is_final(error):
                    raise InputError("request", "one that the server takes", error) from error
                why = f"{type(error).__name__}: {error}"
            if not told:
                self.report(f"the server does not answer; asking again for up to {timeout:g} s in all")
            self._session, told = None, True
            time.sleep(2.0)
        raise EngineError(f"The server did not answer for {timeout:g} s: {why}.")

    def _log_in(self) -> Any:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        logging.getLogger("nvflare").addHandler(logging.NullHandler())  # of a server that is away it says a lot
        with redirect_stdout(io.StringIO()):  # it tells of its progress
            return new_secure_session(ADMIN, str(self.admin), timeout=10.0)


def _heartbeats(info: Any) -> dict[str, float]:
    """Site to the server's time of its last heartbeat."""
    return {client.name: float(client.last_connect_time) for client in info.client_info}


def _heard(info: Any) -> set[str]:
    """Sites that are there: FLARE itself lists one for ten minutes after its last heartbeat."""
    last = _heartbeats(info)
    newest = max(last.values(), default=0.0)  # not the time here: clocks may differ
    return {site for site, when in last.items() if when > newest - _HEARD}


def _is_final(error: Exception) -> bool:
    """Whether asking again would give the same."""
    from nvflare.fuel.flare_api import api_spec

    names = "JobNotFound InvalidJobDefinition AuthorizationError AuthenticationError JobNotDone JobNotRunning"
    return isinstance(error, tuple(getattr(api_spec, name) for name in names.split()))
