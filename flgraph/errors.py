"""Errors that a user can act on, and the sentences they are made of."""

from __future__ import annotations

from typing import Any


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message is one sentence that names the field, what was expected and what came. The command line prints it
    without a traceback and exits with code 2.
    """


class EngineError(RuntimeError):
    """A run cannot go on because of something where clients run; it can be resumed from its last whole round."""


def expect(condition: bool, field: str, expected: str, got: Any) -> None:
    """Raises :class:`InputError` unless ``condition`` holds.

    Args:
        condition: what must be true.
        field: the name under which the user knows the value, for example ``trainer.rounds``.
        expected: the rest of "to be ...", for example ``a positive integer``.
        got: the value that came; strings are quoted in the message.

    Raises:
        InputError: ``Expected `field` to be expected but got got.``
    """
    if not condition:
        shown = repr(got) if isinstance(got, str) else got
        raise InputError(f"Expected `{field}` to be {expected} but got {shown}.")


def first_line(error: BaseException) -> str:
    """What an error of another library says, fit for the end of a sentence; its type where it says nothing."""
    return str(error).split("\n")[0] or type(error).__name__
