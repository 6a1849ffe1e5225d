"""Configuration files that come with the package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from flgraph.errors import InputError

PACKAGES = {
    "model": "flgraph.models",
    "data": "flgraph.data",
    "trainer.aggregator": "flgraph.callbacks",
    "trainer.callbacks": "flgraph.callbacks",
    "trainer.engine": "flgraph.federation",
}
"""Fields that take a class, and where those are that have a short name."""


def is_inline(value: str) -> bool:
    """Whether what stands in place of a configuration file's name is YAML itself."""
    return "\n" in value or ":" in value


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


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key that is there twice, of which YAML's own takes the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Raises InputError: a key is there twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    where = f"line {key.start_mark.line + 1}"
                    raise InputError(where, "of a key that was not given before", "one that was")
                seen.add(key.value)
        return dict(super().construct_mapping(node, deep))


def read_yaml(file: Path) -> Any:
    """What a YAML file holds.

    Raises:
        InputError: it is none. Nothing of the file is repeated: it may be data that was given by mistake.
    """
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader)
    except InputError as error:
        raise error.within(str(file)) from None
    except OSError as error:
        raise InputError(str(file), "a YAML file", f"one that cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        why = f"see line {mark.line + 1}" if mark else "it is no text"
        raise InputError(str(file), "a YAML file", f"one that cannot be read ({why})") from None


def read_config(file: Path) -> dict[str, Any]:
    """The sections of a configuration file.

    Raises:
        InputError: it is no YAML mapping.
    """
    content = read_yaml(file)
    if not isinstance(content, dict):
        raise InputError(str(file), "a YAML mapping with sections such as `model` and `trainer`", "something else")
    return content


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
