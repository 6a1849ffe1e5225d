"""The parser of the commands that take no model and no data."""

from __future__ import annotations

from typing import NoReturn

from jsonargparse import ArgumentParser

from flgraph.errors import InputError


class CommandParser(ArgumentParser):
    """Tells what is wrong by an :class:`~flgraph.errors.InputError`; takes options by their full names only."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Called for anything that cannot be taken."""
        raise InputError(" ".join(message.split()))
