"""Configuration files that come with the package."""

from __future__ import annotations

from pathlib import Path


def find_config(name: str) -> Path:
    """Where a configuration file lies: as named, or, for ``configs/...`` away from a checkout, in the package.

    Args:
        name: a path.

    Returns:
        The path as it was if there is no such file anywhere.
    """
    given = Path(name)
    packaged = Path(__file__).parent.joinpath(*given.parts[1:])
    return packaged if not given.exists() and given.parts[:1] == ("configs",) and packaged.is_file() else given
