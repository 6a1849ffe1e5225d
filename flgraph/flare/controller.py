"""The server half of a FLARE job: runs the federated loop and sends requests to the sites."""

from __future__ import annotations

import json
import math
import shutil
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from flgraph.importing import without_collections

with without_collections():
    from flgraph.errors import ClientError, EngineError, encode_error
    from flgraph.federation.engines.host import Message
    from flgraph.federation.engines.remote import read_answer
    from flgraph.federation.secure.identity import Authority
    from flgraph.flare.jobs import OUTCOME, RESULTS
    from flgraph.flare.run import open_sites, serve
    from flgraph.flare.settings import read_settings

TOPIC, HELLO, BODY = "flgraph", "hello", "body"


class FederationController(Controller):
    """Runs :class:`~flgraph.federation.FederatedTrainer` on clients at sites.

    FLARE carries requests that the server pushes; its own rounds and tasks are not used but for a greeting, which
    waits until the sites are there.

    Args:
        config: the configuration as YAML, without data.
        name: of the run.
        sites: names of the sites, in the order of the federation.
        deadline: seconds that a site has for its part of an exchange.
        wait: seconds in which all sites must be there.
        ask_every: seconds between questions to a site that missed a deadline whether it is back.
    """

    def __init__(
        self,
        config: str,
        name: str,
        sites: Sequence[str],
        deadline: float = 600.0,
        wait: float = 120.0,
        ask_every: float = 10.0,
    ) -> None:
        super().__init__()
        self.config, self.run_name, self.sites, self.wait = config, name, list(sites), wait
        self.options = {"deadline": deadline, "ask_every": ask_every}

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to do."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to do."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """The run, from greeting to results."""
        workspace = fl_ctx.get_engine().get_workspace()
        folder = Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        outcome: dict[str, Any] = {"state": "done"}
        try:
            transport = AuxTransport(fl_ctx, abort_signal)
            self._greet(abort_signal, fl_ctx)
            sites = open_sites(transport, self.sites, self.config, self.options["deadline"], self.run_name)
            kit = Path(workspace.get_root_dir())
            known = Authority.of_kit(kit)
            run = serve(self.config, self.run_name, transport, sites, read_settings(kit), self.options, known)
            for file in RESULTS:
                shutil.copy(run / file, folder / file)
        except BaseException as error:
            lost = isinstance(error, EngineError) and not isinstance(error, ClientError)
            outcome = {"state": "lost" if lost else "failed", "error": {**encode_error(error), "trace": ""}}
            self.log_error(fl_ctx, traceback.format_exc())
            self.system_panic(str(error), fl_ctx)
        (folder / OUTCOME).write_text(json.dumps(outcome))

    def _greet(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        task = Task(HELLO, Shareable(), timeout=math.ceil(self.wait))
        self.broadcast_and_wait(
            task, fl_ctx, targets=self.sites, min_responses=len(self.sites), abort_signal=abort_signal
        )
        there = {done.client.name for done in task.client_tasks if done.result}
        missing = [site for site in self.sites if site not in there]
        if missing:
            raise EngineError(f"Sites were not there within {self.wait:g} s: {', '.join(missing)}.")


class AuxTransport:
    """Pushes messages to sites as FLARE's auxiliary requests.

    Args:
        fl_ctx: FLARE's context of the job.
        abort_signal: set when the job is over.
    """

    def __init__(self, fl_ctx: FLContext, abort_signal: Signal) -> None:
        self._engine, self._fl_ctx, self._abort = fl_ctx.get_engine(), fl_ctx, abort_signal

    def send(self, site: str, message: Message, timeout: float) -> Message | None:
        """See :class:`~flgraph.federation.engines.remote.SiteTransport`."""
        answers: list[Message] = []

        def ask() -> None:
            request = Shareable()
            request[BODY] = bytes(message.to_bytes())
            reply = (self._engine.send_aux_request([site], TOPIC, request, timeout, self._fl_ctx) or {}).get(site)
            if reply is not None and reply.get_return_code() == ReturnCode.OK:
                answers.append(read_answer(reply.get(BODY)))

        # FLARE's call does not look at the abort signal, and must not keep the job from ending.
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.05)
            if self._abort.triggered:
                raise EngineError("FLARE ended the job.")
        return answers[0] if answers else None
