"""Federations of data sets of the TU collection that papers call by a name; plain values, for readers and reports."""

from __future__ import annotations

from collections.abc import Sequence

_MOLECULES = ["MUTAG", "BZR", "COX2", "DHFR", "PTC_MR", "AIDS", "NCI1"]
_PROTEINS = ["ENZYMES", "DD", "PROTEINS"]
_SOCIAL = ["COLLAB", "IMDB-BINARY", "IMDB-MULTI"]
_LETTERS = ["Letter-low", "Letter-high", "Letter-med"]

TU_SETTINGS: dict[str, list[str]] = {
    "chem": _MOLECULES,
    "biochem": _MOLECULES + _PROTEINS,
    "biochemsn": _MOLECULES + _PROTEINS + _SOCIAL,
    "biosncv": _PROTEINS + _SOCIAL + _LETTERS,
}
"""The non-IID settings of FedStar (Tables 5 to 8) by name."""


def tu_setting(datasets: Sequence[str]) -> str | None:
    """Name of the setting with these data sets, if there is one.

    >>> tu_setting(TU_SETTINGS["chem"])
    'chem'
    >>> tu_setting(["ENZYMES", "DD"])
    """
    return next((name for name, members in TU_SETTINGS.items() if members == list(datasets)), None)
