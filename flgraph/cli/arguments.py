"""What may be left out on a command line of ``flgraph fit`` and its like."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import yaml

from flgraph.configs import find_config, is_inline, read_config


def with_packaged_configs(args: Sequence[str]) -> list[str]:
    """Lets ``-c configs/data/chem.yaml`` work away from a checkout: what is not there is taken from the package.

    Raises:
        InputError: a file is no configuration; the parser would repeat what is in it.
    """
    result: list[str] = []
    for arg in args:  # `--config=FILE` becomes two arguments, so that only one form is left to look for
        result += arg.split("=", 1) if arg.startswith(("-c=", "--config=")) else [arg]
    for position, (flag, value) in enumerate(pairwise(result)):
        if flag in ("-c", "--config") and not is_inline(value):
            result[position + 1] = str(find_config(value))
            if Path(result[position + 1]).is_file():
                read_config(Path(result[position + 1]))
    return result


def with_data_first(args: Sequence[str]) -> list[str]:
    """Puts the choice of a data class before all that has fields of it, which the parser wants.

    Files of some methods have such fields and no class. ``--data.datasets`` may stand alone, too: without a data class,
    it is that of the TU collection. (A default in the parser would hand its arguments' defaults on to whatever class is
    chosen instead.)
    """
    kinds = [_on_data(*pair) for pair in pairwise([*args, ""])]
    chosen = next((position for position, kind in enumerate(kinds) if kind in ("class", "whole")), None)
    if chosen is None:
        return [args[0], "--data=flgraph.data.TUFederation", *args[1:]] if "field" in kinds else list(args)
    if kinds[chosen] == "whole":  # its model must not come before that of an earlier file
        return list(args)
    end = chosen + (1 if "=" in args[chosen] else 2)
    return [args[0], *args[chosen:end], *args[1:chosen], *args[end:]]


def _on_data(arg: str, following: str) -> str:
    """What an argument says of data: its ``class``, or a ``field``; a file with its class may be of a ``whole`` run."""
    name = arg.partition("=")[0]
    if name in ("--data", "--data.class_path"):
        return "class"
    if name.startswith("--data."):
        return "field"
    if arg not in ("-c", "--config"):
        return ""
    try:
        content = yaml.safe_load(Path(following).read_text() if Path(following).is_file() else following)
    except (OSError, ValueError, yaml.YAMLError):
        return ""  # the parser will say what is wrong with it
    data = content.get("data") if isinstance(content, dict) else None
    if isinstance(data, str) or (isinstance(data, dict) and "class_path" in data):
        return "whole" if len(content) > 1 else "class"
    return ""
