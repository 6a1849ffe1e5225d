"""Where commands print."""

from __future__ import annotations

import rich.console


class Console(rich.console.Console):
    """Rich's, but a reader that leaves, as ``head`` does, is an error like any other."""

    def on_broken_pipe(self) -> None:
        """Called while a :class:`BrokenPipeError` is handled; rich would end the process without a word."""
        raise
