"""Stub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LEDGER = "ledger.jsonl"


class Ledger:
    """Stub."""

    def __init__(self, file: Path | None) -> None:
        self.file = file

    def open(self, file: Path) -> None:
        """Stub."""

    def add(self, **fields: Any) -> None:
        """Stub."""

    def flush(self) -> None:
        """Stub."""

    def close(self) -> None:
        """Stub."""
