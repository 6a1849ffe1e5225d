"""The server half of a FLARE job: runs the federated loop and sends requests to the sites."""

from __future__ import annotations

import json
import shutil
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from flgraph.errors import EngineError, InputError
from flgraph.federation.engines import ClientError
from flgraph.flare.run import serve
from flgraph.flare.settings import read_settings

TOPIC, HELLO, BODY = "flgraph", "hello", "body"
OUTCOME = "outcome.json"
"""How a job ended, in its workspace: ``state`` is ``done``, ``failed`` or ``again`` (another job may go on)."""


class FederationController(Controller):
    """Runs :class:`~flgraph.federation.FederatedTrainer` on clients at sites.

    FLARE carries requests that the server pushes; its own rounds and tasks are not used but for a greeting, which
    waits until the sites are there.

    Args:
        config: the configuration as YAML, without data.
        name: of the run.
        sites: names of the sites, in the order of the federation.
        deadline: seconds that a site has for its part of an exchange.
        min_clients: clients that must answer in time.
        wait: seconds in which all sites must be there.
        ask_every: seconds between questions to a site that missed a deadline whether it is back.
    """

    def __init__(
        self,
        config: str,
        name: str,
        sites: Sequence[str],
        deadline: float = 600.0,
        min_clients: int = 1,
        wait: float = 120.0,
        ask_every: float = 10.0,
    ) -> None:
        super().__init__()
        self.config, self.run_name, self.sites = config, name, list(sites)
        self.deadline, self.min_clients, self.wait, self.ask_every = deadline, min_clients, wait, ask_every

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to do."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to do."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """The run, from greeting to results."""
        workspace = fl_ctx.get_engine().get_workspace()
        folder = Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        try:
            post = AuxPost(fl_ctx, abort_signal)
            self._greet(abort_signal, fl_ctx)
            sites = {site: self._open(post, site) for site in self.sites}
            settings = read_settings(Path(workspace.get_root_dir()))
            times = {"deadline": self.deadline, "min_clients": self.min_clients, "ask_every": self.ask_every}
            run = serve(self.config, self.run_name, post, sites, settings, times)
            for file in ("results.json", "history.jsonl", "config.yaml"):
                shutil.copy(run / file, folder / file)
            outcome = {"state": "done", "told": str(run)}
        except (InputError, ClientError) as error:
            outcome = {"state": "failed", "told": " ".join([str(error), *getattr(error, "__notes__", [])])}
        except EngineError as error:
            outcome = {"state": "again", "told": str(error)}
        except BaseException as error:
            outcome = {"state": "failed", "told": f"{type(error).__name__}: {error}"}
            self.log_error(fl_ctx, traceback.format_exc())
        (folder / OUTCOME).write_text(json.dumps(outcome))
        if outcome["state"] != "done":
            self.system_panic(outcome["told"], fl_ctx)

    def _greet(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        task = Task(HELLO, Shareable(), timeout=int(self.wait))
        self.broadcast_and_wait(
            task, fl_ctx, targets=self.sites, min_responses=len(self.sites), abort_signal=abort_signal
        )
        there = {done.client.name for done in task.client_tasks if done.result}
        missing = [site for site in self.sites if site not in there]
        if missing:
            raise EngineError(f"Sites were not there within {self.wait:g} s: {', '.join(missing)}.")

    def _open(self, post: AuxPost, site: str) -> Mapping[str, Mapping[str, Any]]:
        reply = post.send(site, {"kind": "open", "config": self.config}, self.deadline)
        if reply is None:
            raise EngineError(f"Site `{site}` did not load its data within {self.deadline:g} s.")
        if "error" in reply:
            raise InputError(f"Site `{site}`: {reply['error']}")
        about: dict[str, dict[str, Any]] = json.loads(reply["about"])
        return about


class AuxPost:
    """Pushes messages to sites as FLARE's auxiliary requests.

    Args:
        fl_ctx: FLARE's context of the job.
        abort_signal: tells that the job is over.
    """

    def __init__(self, fl_ctx: FLContext, abort_signal: Signal) -> None:
        self._engine, self._fl_ctx, self._abort = fl_ctx.get_engine(), fl_ctx, abort_signal

    def send(self, site: str, message: Mapping[str, Any], timeout: float) -> Mapping[str, Any] | None:
        """See :class:`~flgraph.federation.engines.remote.Post`."""
        box: list[Mapping[str, Any]] = []

        def ask() -> None:
            request = Shareable()
            request[BODY] = dict(message)
            replies = self._engine.send_aux_request([site], TOPIC, request, timeout, self._fl_ctx) or {}
            reply = replies.get(site)
            if reply is not None and reply.get_return_code() == ReturnCode.OK:
                box.append(reply[BODY])

        # FLARE's call does not look at the abort signal, and must not keep the job from ending.
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.05)
            if self._abort.triggered:
                raise EngineError("FLARE ended the job.")
        return box[0] if box else None
