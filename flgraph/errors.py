"""Errors that a user can act on, each one sentence of the same mould."""

from __future__ import annotations

from typing import Any


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


class EngineError(RuntimeError):
    """A run cannot go on because of something where clients run; it can be resumed from its last whole round."""


def expect(condition: bool, field: str, expected: str, got: Any) -> None:
    """Raises :class:`InputError` unless ``condition`` holds.

    Args:
        condition: what must be true.
        field: see :class:`InputError`.
        expected: see there.
        got: the value that came; strings are quoted in the message.

    Raises:
        InputError: ``condition`` does not hold.
    """
    if not condition:
        raise InputError(field, expected, repr(got) if isinstance(got, str) else got)


def first_line(error: BaseException) -> str:
    """What an error of another library says, fit for the end of a sentence; its type where it says nothing."""
    return str(error).split("\n")[0] or type(error).__name__
