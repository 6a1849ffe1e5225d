"""Configuration files that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def find_config(name: str) -> Path:
    """Where a configuration file lies: as named, or, for ``configs/...`` away from a checkout, in the package.

    Args:
        name: a path.

    Returns:
        The path as it was if there is no such file anywhere.
    """
    given = Path(name)
    if given.exists() or given.parts[:1] != ("configs",):
        return given
    beside = Path(__file__).resolve().parent.parent  # a checkout that is not installed
    candidates = (Path(str(files("flgraph"))) / given, beside / given)
    return next((candidate for candidate in candidates if candidate.is_file()), given)
