"""The client half of a FLARE job: holds a site's clients for the whole job."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from flgraph.errors import InputError
from flgraph.federation.engines.remote import Host
from flgraph.flare.controller import BODY, TOPIC
from flgraph.flare.run import host, tell
from flgraph.flare.settings import read_settings


class SiteExecutor(Executor):
    """Answers what :class:`~flgraph.flare.controller.FederationController` asks; takes no argument from a job."""

    def __init__(self) -> None:
        super().__init__()
        self._host: Host | None = None
        self._opening = threading.Lock()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Listens as soon as the job runs."""
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._answer)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answers the greeting."""
        return make_reply(ReturnCode.OK)

    def _answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        reply = make_reply(ReturnCode.OK)
        reply[BODY] = self._reply(request[BODY], fl_ctx)
        return reply

    def _reply(self, message: Mapping[str, Any], fl_ctx: FLContext) -> dict[str, Any]:
        try:
            if message["kind"] != "open":
                assert self._host is not None
                return self._host.answer(message)
            with self._opening:
                kit = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
                settings = read_settings(kit)
                self._host = host(message["config"], settings)
                return {"about": tell(self._host, settings)}
        except Exception as error:  # the server tells the user
            self.log_exception(fl_ctx, f"flgraph: {message['kind']} failed")
            told = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            return {"error": told, "client": "", "input": True}
