"""Configuration files that come with the package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml


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


@cache
def tu_settings() -> dict[str, list[str]]:
    """Data sets of the federations that papers call by a name, as ``configs/data`` has them: ``chem`` and so on."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("data/*.yaml")):
        data = yaml.safe_load(path.read_text())["data"]
        if data["class_path"] == "flgraph.data.TUFederation" and data["init_args"].keys() == {"datasets"}:
            found[path.stem] = list(data["init_args"]["datasets"])
    return found


def tu_setting(datasets: Sequence[str]) -> str | None:
    """Name of the setting with these data sets, if there is one.

    >>> tu_setting(["MUTAG", "BZR", "COX2", "DHFR", "PTC_MR", "AIDS", "NCI1"])
    'chem'
    >>> tu_setting(["ENZYMES", "DD"])
    """
    return next((name for name, members in tu_settings().items() if members == list(datasets)), None)
