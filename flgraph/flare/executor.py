"""The client half of a FLARE job: holds a site's clients for the whole job."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.utils.fl_context_utils import gen_new_peer_ctx
from nvflare.fuel.f3.cellnet.core_cell import Message as CellMessage
from nvflare.fuel.f3.cellnet.core_cell import MessageHeaderKey
from nvflare.fuel.f3.cellnet.core_cell import ReturnCode as CellReturnCode
from nvflare.fuel.f3.cellnet.core_cell import make_reply as make_cell_reply
from nvflare.fuel.f3.cellnet.fqcn import FqcnInfo
from nvflare.private.defs import CellChannel, new_cell_message

from flgraph.importing import without_collections

with without_collections():
    from flgraph.federation.engines.host import Message, attempt, coded
    from flgraph.flare.controller import BODY, TOPIC
    from flgraph.flare.run import Site


_log = logging.getLogger(__name__)


class SiteExecutor(Executor):
    """Answers what :class:`~flgraph.flare.controller.FederationController` asks; takes no argument from a job."""

    def __init__(self) -> None:
        super().__init__()
        self._site: Site | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Listens as soon as the job runs."""
        if event_type == EventType.START_RUN:
            engine: Any = fl_ctx.get_engine()
            self._site = Site(Path(engine.get_workspace().get_root_dir()))
            # In front of FLARE's own way to the handler, which is open to the other sites of the job as well.
            # By keywords: FLARE looks for `channel`, and else leaves out requests that are streamed.
            engine.get_cell().register_request_cb(
                channel=CellChannel.AUX_COMMUNICATION, topic=TOPIC, cb=lambda request: self._receive(request, engine)
            )
            engine.register_aux_message_handler(TOPIC, self._answer)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answers the greeting."""
        return make_reply(ReturnCode.OK)

    def _receive(self, request: CellMessage, engine: Any) -> CellMessage:
        """Lets the server's requests through: its FLARE checks of all that passes whether it is from whom it says."""
        origin = str(request.get_header(MessageHeaderKey.ORIGIN, ""))
        if not FqcnInfo(origin).is_on_server:
            _log.warning("A request of %s is refused: only the server may ask.", ascii(origin[:100]))
            return make_cell_reply(CellReturnCode.UNAUTHENTICATED, "only the server may ask")
        with engine.new_context() as fl_ctx:
            reply = engine.dispatch(topic=TOPIC, request=request.payload, fl_ctx=fl_ctx)
            reply.set_peer_context(gen_new_peer_ctx(fl_ctx))
        return new_cell_message({MessageHeaderKey.RETURN_CODE: CellReturnCode.OK}, reply)

    def _answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        assert self._site is not None
        site = self._site
        asked = attempt(lambda: site.answer(Message.from_bytes(request[BODY])))
        reply = make_reply(ReturnCode.OK)
        reply[BODY] = bytes(coded(asked).to_bytes())
        return reply
