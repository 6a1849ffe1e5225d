"""Jobs on a FLARE system: submitted, watched, and submitted again where one was lost."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from flgraph.errors import EngineError, InputError, expect
from flgraph.flare.kits import ADMIN, CLASSES

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
        sites: that take part, in the order of the federation; all that the server knows when empty.
        attempts: jobs at most.
        patience: seconds in which a server that does not answer must come back.
        report: called with a line for whatever happens.
    """

    def __init__(
        self,
        admin: Path,
        sites: Sequence[str] = (),
        attempts: int = 20,
        patience: float = 300.0,
        report: Callable[[str], None] = print,
    ) -> None:
        expect((admin / "startup").is_dir(), "--admin", "the administrator's start-up kit", admin)
        expect(attempts >= 1, "--attempts", "1 or more", attempts)
        self.admin, self.sites, self.attempts = admin.resolve(), list(sites), attempts
        self.patience, self.report = patience, report
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
            InputError: the run failed for a reason that another attempt would not change.
            EngineError: a site is not there, too many jobs were lost, or the server is gone.
        """
        sites = self.sites or sorted(self._connected())
        expect(len(sites) > 0, "--sites", "one or more that are connected to the server", "none")
        self._wait_for_sites(sites, options["wait"])
        for attempt in range(1, self.attempts + 1):
            number = self._running(name)  # of a supervisor that was stopped: two jobs must not write one run
            if number is None:
                with tempfile.TemporaryDirectory() as folder:
                    number = self._submit(write_job(Path(folder), name, config, sites, options))
            self.report(f"job {number}, attempt {attempt}, sites {', '.join(sites)}")
            outcome = self._watch(number, sites, out / name)
            if outcome["state"] == "done":
                return out / name
            if outcome["state"] == "failed":
                raise InputError(outcome["told"])
            self.report(f"lost: {outcome['told']}; going on from the last whole round")
        raise EngineError(f"{self.attempts} jobs were lost before the run was done.")

    def status(self) -> dict[str, Any]:
        """Sites that are connected, and jobs, the newest first, as plain values."""
        info = self._patiently(lambda session: session.get_system_info())
        jobs = self._patiently(lambda session: session.list_jobs())
        return {
            "server": str(info.server_info.status),
            "sites": {client.name: float(client.last_connect_time) for client in info.client_info},
            "jobs": [
                {"id": job["job_id"], "name": job.get("job_name", ""), "status": str(job["status"])}
                for job in jobs or []
            ],
        }

    def close(self) -> None:
        """Ends the session."""
        self._calls.shutdown(wait=False, cancel_futures=True)
        if self._session is not None:
            self._session.api.close()

    # ----------------------------------------------------------------------------------------------------- helpers
    def _submit(self, job: Path) -> str:
        token = uuid.uuid4().hex  # a call that is repeated because its answer was lost makes no second job
        number: str = self._patiently(lambda session: session.submit_job(str(job), submit_token=token))
        return number

    def _running(self, name: str) -> str | None:
        """The job of this run that the server is working on."""
        info = self._patiently(lambda session: session.get_system_info())
        working = {job.job_id for job in info.job_info}
        jobs = self._patiently(lambda session: session.list_jobs()) or []
        return next((job["job_id"] for job in jobs if job.get("job_name") == name and job["job_id"] in working), None)

    def _watch(self, number: str, sites: Sequence[str], out: Path) -> dict[str, str]:
        """Waits for the end of a job; ends it where a site runs again that the job has lost."""
        since: dict[str, float] = {}  # when a site, or the server's half, was first seen outside of the job
        joined: set[str] = set()
        missing = ""
        while True:
            try:
                status = str(self._patiently(lambda session: session.get_job_meta(number))["status"])
            except InputError as error:
                return {"state": "again", "told": str(error)}
            if "FINISHED" in status:
                return self._outcome(number, status, out)
            if "RUNNING" not in status:  # FLARE starts it when all are there
                missing = self._tell_missing(sites, missing)
            if "RUNNING" in status:
                info = self._patiently(lambda session: session.get_system_info())
                working = self._working(number)
                joined |= working
                here = _heard(info)
                lost = {site for site in joined - working if site in here}
                if number not in {job.job_id for job in info.job_info}:
                    lost.add("")  # a server that was killed lists its jobs as running for ever
                since = {name: since.get(name, time.monotonic()) for name in lost}
                if any(time.monotonic() - when > _GRACE for when in since.values()):
                    return self._give_up(number, lost, out)
            time.sleep(1.0)

    def _give_up(self, number: str, lost: set[str], out: Path) -> dict[str, str]:
        if "" in lost:  # or its half of the job is done, and FLARE still waits for a site that is gone
            with suppress(InputError, EngineError):
                self._patiently(lambda session: session.abort_job(number), _CALL)
                self._wait_for_end(number, _CALL)
                return self._outcome(number, "ended by the supervisor", out)
            return {"state": "again", "told": "the server was started again"}
        self._patiently(lambda session: session.abort_job(number))
        self._wait_for_end(number)
        return {"state": "again", "told": f"started again outside of the job: {', '.join(sorted(lost))}"}

    def _wait_for_end(self, number: str, patience: float | None = None) -> None:
        until = time.monotonic() + (patience or self.patience)
        while "FINISHED" not in str(self._patiently(lambda session: session.get_job_meta(number))["status"]):
            if time.monotonic() > until:
                raise EngineError(f"Job {number} does not end.")
            time.sleep(1.0)

    def _outcome(self, number: str, status: str, out: Path) -> dict[str, str]:
        """What the job's server half wrote at its end; FLARE's own status does not tell enough."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                self._patiently(lambda session: session.download_job_result(number, folder))
            except InputError as error:
                return {"state": "again", "told": f"{status}, and its results are gone: {error}"}
            found = sorted(Path(folder).rglob("outcome.json"))
            if not found:
                return {"state": "again", "told": f"the job ended as {status}"}
            outcome: dict[str, str] = json.loads(found[0].read_text())
            out.mkdir(parents=True, exist_ok=True)
            for file in ("results.json", "history.jsonl", "config.yaml"):
                if (found[0].parent / file).is_file():
                    shutil.copy(found[0].parent / file, out / file)
        return outcome

    def _wait_for_sites(self, sites: Sequence[str], seconds: float) -> None:
        until, missing = time.monotonic() + seconds, ""
        while missing := self._tell_missing(sites, missing):
            if time.monotonic() > until:
                raise EngineError(f"Sites were not there within {seconds:g} s: {missing}.")
            time.sleep(1.0)

    def _tell_missing(self, sites: Sequence[str], told: str) -> str:
        missing = ", ".join(sorted(set(sites) - self._connected()))
        if missing and missing != told:
            self.report(f"waiting for {missing}")
        return missing

    def _connected(self) -> set[str]:
        return _heard(self._patiently(lambda session: session.get_system_info()))

    def _working(self, number: str) -> set[str]:
        """Sites that run the job."""
        told = self._patiently(lambda session: session.get_client_job_status()) or []
        return {entry["client_name"] for entry in told if entry.get("job_id") == number}

    def _patiently(self, call: Callable[[Any], Any], patience: float | None = None) -> Any:
        """Calls the server; logs in again while it is away."""
        patience = patience or self.patience
        until, told = time.monotonic() + patience, ""
        while time.monotonic() < until:
            try:
                if self._session is None:
                    self._session = self._calls.submit(self._log_in).result(_CALL)
                session = self._session
                return self._calls.submit(call, session).result(_CALL)
            except InputError:
                raise
            except NoAnswer:
                told = f"no answer within {_CALL:g} s"
            except Exception as error:
                if _is_final(error):
                    raise InputError(f"Expected the server to do what was asked but got: {error}.") from error
                told = f"{type(error).__name__}: {error}"
            self._session = None
            time.sleep(2.0)
        raise EngineError(f"The server did not answer for {patience:g} s: {told}.")

    def _log_in(self) -> Any:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        with redirect_stdout(io.StringIO()):  # it tells of its progress
            return new_secure_session(ADMIN, str(self.admin), timeout=10.0)


def _heard(info: Any) -> set[str]:
    """Sites that are there: FLARE itself lists one for ten minutes after its last heartbeat."""
    last = {client.name: float(client.last_connect_time) for client in info.client_info}
    newest = max(last.values(), default=0.0)  # not the time here: clocks may differ
    return {site for site, when in last.items() if when > newest - _HEARD}


def _is_final(error: Exception) -> bool:
    """Whether asking again would give the same."""
    from nvflare.fuel.flare_api import api_spec

    kinds = (
        "JobNotFound",
        "InvalidJobDefinition",
        "AuthorizationError",
        "AuthenticationError",
        "JobNotDone",
        "JobNotRunning",
    )
    return type(error).__name__ in kinds and hasattr(api_spec, type(error).__name__)
