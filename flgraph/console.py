"""Where commands print."""

from __future__ import annotations

from typing import Any

import rich.console


class Console(rich.console.Console):
    """Rich's, but names are printed as they are, and a reader that leaves, as ``head`` does, is an error as others are.

    Names may be of other owners: ``val/[/x]`` would be an error where brackets are markup.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def on_broken_pipe(self) -> None:
        """Called while a :class:`BrokenPipeError` is handled; rich would end the process without a word."""
        raise
