"""What the server asks of a client, what a client says of its data, and how a message is noted in a ledger."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flgraph.federation.payload import Payload
from flgraph.federation.summing import Seen, forms_of
from flgraph.runs import ledger_reader
from flgraph.runs.ledger import Ledger


class Request(StrEnum):
    """What a client is to do."""

    EXCHANGE = "exchange"  # install the download, work, upload: the algorithm's own
    DESCRIBE = "describe"  # tell names and shapes of the tensors that it would share
    AGREE = "agree"  # take note of those that all share, and send initial values
    EVALUATE = "evaluate"  # install the download, tell metrics
    SNAPSHOT = "snapshot"  # keep a copy of the model
    RESTORE = "restore"  # exchange the model and that copy
    KEYS = "keys"  # make keys for the sum of an exchange; this and what follows where sums are secure
    SHARES = "shares"  # share its secrets among the others
    HOLD = "hold"  # keep the others' shares until the exchange is done
    CONFIRM = "confirm"  # tell the others, by codes of one list, who is in the sum
    UNMASK = "unmask"  # give the shares without which the sum cannot be read


ABOUT_SUMS = tuple(map(Request, ledger_reader.ABOUT_SUMS))
"""Requests of the framework by which masks of an exchange are agreed on, and taken from its sum."""


@dataclass(frozen=True)
class Turn:
    """One request to a client.

    Args:
        round: counts from 1; 0 before the first round.
        request: what to do.
        exchange: name of the exchange within the round, where that is the request, or what it is about.
        download: bytes of a :class:`Payload`, or ``None`` if there is nothing new to install.
        splits: to evaluate on, of ``train``, ``val``, ``test``.
    """

    round: int
    request: Request = Request.EXCHANGE
    exchange: str = ""
    download: bytes | None = None
    splits: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The exchange, or what else is asked for: for messages and seeds."""
        return str(self.request) if self.request in ABOUT_SUMS else self.exchange or str(self.request)


@dataclass(frozen=True)
class Predictions:
    """What a client's model says of the client's prediction data.

    Attributes:
        batches: what the module's ``predict_step`` returns for each batch.
        rows: what the rows are of: headings, and a value for each row, see :class:`ClientData`; empty where the data
            does not tell.
        predicted: what the columns are, as the module says, see :mod:`flgraph.runs.predictions`.
    """

    batches: list[Any]
    rows: dict[str, list[Any]]
    predicted: str = "probabilities"


def note_message(
    ledger: Ledger | None,
    direction: str,
    client: str,
    turn: Turn,
    data: bytes | None,
    payload: Payload | Seen | None,
    verdict: str = "",
    policy: str = "",
) -> None:
    """Notes a message in a ledger.

    Args:
        ledger: of the run, or of a site; nothing is noted where there is none.
        direction: ``up`` or ``down``.
        client: of whom it is, or for whom.
        turn: the request.
        data: what crossed; ``None`` where only what was seen of it is left.
        payload: the same, if it could be read.
        verdict: ``accepted``, or why not.
        policy: what a policy did to it.
    """
    if ledger is None:
        return
    ledger.add(
        round=turn.round,
        client=client,
        request=str(turn.request),
        exchange=turn.exchange,
        direction=direction,
        data=data,
        tensors={} if payload is None else forms_of(payload),
        scalars=[] if payload is None else list(payload.scalars),
        verdict=verdict,
        policy=policy,
        **({"bytes": payload.size, "sha256": payload.sha256} if isinstance(payload, Seen) else {}),
    )
