"""What may be left out on a command line of ``flgraph fit`` and its like."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import yaml

from flgraph.configs import find_config, read_config


def with_packaged_configs(args: Sequence[str]) -> list[str]:
    """Lets ``-c configs/data/chem.yaml`` work away from a checkout: what is not there is taken from the package.

    Raises:
        InputError: a file is no configuration; the parser would repeat what is in it.
    """
    result: list[str] = []
    for arg in args:  # `--config=FILE` becomes two arguments, so that only one form is left to look for
        result += arg.split("=", 1) if arg.startswith(("-c=", "--config=")) else [arg]
    for position, (flag, value) in enumerate(pairwise(result)):
        if flag in ("-c", "--config"):
            result[position + 1] = str(find_config(value))
            if Path(result[position + 1]).is_file():
                read_config(Path(result[position + 1]))
    return result


def with_default_data(args: Sequence[str]) -> list[str]:
    """Lets ``--data.datasets`` stand alone: without a data class, it is that of the TU collection.

    (A default in the parser would hand its arguments' defaults on to whatever class is chosen instead.)
    """
    configs = [value for flag, value in pairwise(args) if flag in ("-c", "--config")]
    named = any(
        arg in ("--data", "--data.class_path") or arg.startswith(("--data=", "--data.class_path=")) for arg in args
    )
    wanted = any(arg.startswith("--data.") for arg in args)
    if named or not wanted or any(_chooses_data(config) for config in configs):
        return list(args)
    return [args[0], "--data=flgraph.data.TUFederation", *args[1:]]


def _chooses_data(config: str) -> bool:
    """Whether a file names a class of data; one may also have fields alone, of whatever class there is."""
    try:
        content = yaml.safe_load(Path(config).read_text() if Path(config).is_file() else config)
    except (OSError, ValueError, yaml.YAMLError):
        return False  # the parser will say what is wrong with it
    data = content.get("data") if isinstance(content, dict) else None
    return isinstance(data, str) or (isinstance(data, dict) and "class_path" in data)
