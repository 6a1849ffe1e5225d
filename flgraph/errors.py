"""Errors that a user can act on, each one sentence of the same mould."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """Something the user gave cannot be used.

    Its text is one sentence: ``Expected `field` to be expected but got got.`` The command line prints it without a
    traceback and exits with code 2.

    Args:
        field: the name under which the user knows the value, for example ``trainer.rounds``.
        expected: the rest of "to be ...", for example ``a positive integer``.
        got: the value that came; strings that are values are quoted by :func:`expect`.
        where: where it was, for example ``client `north` ``; see :meth:`within`.
    """

    def __init__(self, field: str, expected: str = "", got: Any = "", where: str = "") -> None:
        super().__init__(field, expected, got, where)
        self.field, self.expected, self.got, self.where = field, expected, got, where

    def __str__(self) -> str:
        if not self.expected:
            return self.field
        return f"Expected `{self.field}` to be {self.expected} but got {self.got}{self.where and f' in {self.where}'}."

    def within(self, where: str) -> InputError:
        """The same error, told with where it was, in front of which ``in`` is put."""
        return type(self)(self.field, self.expected, self.got, f"{where}{self.where and f', {self.where}'}")


class PolicyError(InputError):
    """A site's policy does not allow what was asked for."""


class EngineError(RuntimeError):
    """A run cannot go on because of something where clients run; it can be resumed from its last whole round."""


class ClientError(EngineError):
    """A client failed, and would fail again."""

    @classmethod
    def in_turn(cls, client: str, round: int, exchange: str, cause: BaseException) -> ClientError:
        """Names the client, the round and the exchange."""
        text = str(cause)
        if re.search("sparse.?csr", text, re.IGNORECASE):  # what torch says of it is long, and of no help
            text = f"{text.partition('. ')[0]}. Features of many zeros are sparse: it needs `batch.x.to_dense()`."
        return cls(f"Client `{client}` failed in round {round} ({exchange}): {type(cause).__name__}: {text}")


def expect(condition: bool, field: str, expected: str, got: Any) -> None:
    """Raises :class:`InputError` unless ``condition`` holds.

    Args:
        condition: what must be true.
        field: see :class:`InputError`.
        expected: see there.
        got: the value that came, see :func:`shown`.

    Raises:
        InputError: ``condition`` does not hold.
    """
    if not condition:
        raise InputError(field, expected, shown(got))


def expect_kind(value: object, kind: type[T], field: str, expected: str) -> T:
    """The value, if it is of this class; else an :class:`InputError` with the name of the class that it is of."""
    expect(isinstance(value, kind), field, expected, type(value).__name__)
    assert isinstance(value, kind)
    return value


LONGEST = 60
"""Characters of a value that a message repeats: enough to know it again, and no more, as it may be data."""


def shown(value: Any) -> Any:
    """A value as messages repeat it: strings in quotes, and all but paths and errors cut after 60 characters.

    >>> print(shown("x" * 100))
    'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...
    """
    if isinstance(value, PurePath | BaseException):
        return value
    return brief(repr(value[: 2 * LONGEST]) if isinstance(value, str) else value)


def brief(value: object) -> str:
    """The same without quotes, for names that stand in backticks and for what another side wrote."""
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def first_line(error: BaseException) -> str:
    """What an error of another library says, fit for the end of a sentence.

    One that says nothing has its failed ``assert`` shown, which often lists what is allowed, or its type.
    """
    said = str(error).split("\n")[0]
    if not said and isinstance(error, AssertionError) and error.__traceback__ is not None:
        said = traceback.extract_tb(error.__traceback__)[-1].line or ""
    return said or type(error).__name__


class RemoteTracebackError(Exception):
    """The traceback of an error in another process, as its text."""


_KINDS = (PolicyError, InputError, OSError, ClientError, EngineError)
_ERRORS: dict[str, type[Exception]] = {kind.__name__: kind for kind in _KINDS}
"""Errors that arrive in another process as what they were; any other one arrives as a :class:`ClientError`."""


def encode_error(error: BaseException) -> dict[str, Any]:
    """An error as plain values, with its notes and its traceback."""
    kind = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), "")
    args = error.args if kind else (f"{type(error).__name__}: {error}",)
    return {
        "kind": kind,
        "args": [arg if isinstance(arg, int) else str(arg) for arg in args],
        "notes": getattr(error, "__notes__", []),
        "trace": "".join(traceback.format_exception(error)),
    }


def decode_error(encoded: Mapping[str, Any]) -> Exception:
    """The error of another process, as one of this process's; its cause is the traceback if that was sent."""
    error = _ERRORS.get(encoded["kind"], ClientError)(*encoded["args"])
    for note in encoded["notes"]:
        error.add_note(note)
    if encoded.get("trace"):
        error.__cause__ = RemoteTracebackError(encoded["trace"])
    return error


# ------------------------------------------------------------------------------------------------------ between owners
POLICY, REFUSED, FAILED, UNREADABLE = "policy", "refused", "failed", "unreadable"
"""All that one owner says to another of an error: its policy does not allow it; what was asked cannot be used; it
failed otherwise; and, of an answer, that it could not be read."""


def code_of(encoded: Mapping[str, Any]) -> str:
    """The code that stands for an error; its text may tell of data, and stays where it happened.

    Args:
        encoded: see :func:`encode_error`.
    """
    return {"PolicyError": POLICY, "InputError": REFUSED}.get(encoded["kind"], FAILED)


def from_code(code: Any, who: str) -> Exception:
    """The error that a code of another owner stands for; ``who`` begins its sentence."""
    if code == POLICY:
        return PolicyError(
            "job", f"allowed by the policy of {who}", "a refusal, which its own log explains (flgraph.log in its kit)"
        )
    if code == REFUSED:
        return InputError(
            "job", f"one that {who} can work on", "a refusal, which its own log explains (flgraph.log in its kit)"
        )
    if code == UNREADABLE:
        return InputError("answer", f"one of {who} that can be read", "something else")
    return ClientError(f"{who[:1].upper()}{who[1:]} failed; its own log says why (flgraph.log in its kit).")
