"""The client half of a FLARE job: holds a site's clients for the whole job."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from flgraph.importing import without_collections

with without_collections():
    from flgraph.federation.engines.host import Message, attempt, coded
    from flgraph.flare.controller import BODY, TOPIC
    from flgraph.flare.run import Site


class SiteExecutor(Executor):
    """Answers what :class:`~flgraph.flare.controller.FederationController` asks; takes no argument from a job."""

    def __init__(self) -> None:
        super().__init__()
        self._site: Site | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Listens as soon as the job runs."""
        if event_type == EventType.START_RUN:
            self._site = Site(Path(fl_ctx.get_engine().get_workspace().get_root_dir()))
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._answer)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answers the greeting."""
        return make_reply(ReturnCode.OK)

    def _answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        assert self._site is not None
        site = self._site
        asked = attempt(lambda: site.answer(Message.from_bytes(request[BODY])))
        reply = make_reply(ReturnCode.OK)
        reply[BODY] = bytes(coded(asked).to_bytes())
        return reply
