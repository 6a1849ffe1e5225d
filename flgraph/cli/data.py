"""``flgraph data check``: what is in own files, before anything trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import yaml

from flgraph.cli.parser import CommandParser
from flgraph.cli.typos import chosen
from flgraph.configs import find_config, read_config
from flgraph.errors import InputError, expect

if TYPE_CHECKING:
    from flgraph.data.check import OwnClients


def main(args: Sequence[str]) -> None:
    """Prints what was read, in numbers, and what will be left out.

    Raises:
        InputError: an argument or a file cannot be used, or files do not go together.
    """
    parser = CommandParser(
        prog="flgraph data check",
        description="Says what is in folders or files of graphs, one for each partner: nodes, edges, features, "
        "classes, what is missing and what will be left out. It prints counts and names of columns, never a row. Of a "
        "configuration, it also says what `flgraph fit` would refuse.",
    )
    what = "a folder with tables, or a file; or a configuration, .yaml, whose `data` section names them"
    parser.add_argument("paths", nargs="+", type=str, metavar="PATH", help=what)
    parser.add_argument("--task", type=str, help="nodes, graphs or hetero; told from the files if not given")
    given = list(args)
    if not given or given[0] in ("-h", "--help"):
        parser.print_help()
        return
    expect(given[0] == "check", "data", "followed by check", given[0])
    found = parser.parse_args(given[1:])
    tasks = (None, "nodes", "graphs", "hetero")
    expect(found.task in tasks, "--task", "nodes, graphs or hetero", found.task)

    configs = [path for path in found.paths if Path(path).suffix in (".yaml", ".yml")]
    expect(not configs or len(found.paths) == 1, "PATH", "folders and files, or one configuration,", found.paths)
    unsaid = not configs or found.task is None
    expect(unsaid, "--task", "left out where a configuration says what data is for", found.task)
    for line in _of_config(configs[0]) if configs else _of_files(found.paths, found.task):
        print(line)


def _of_files(paths: Sequence[str], task: Any) -> Iterator[str]:
    from flgraph.data.check import check_files  # with torch, which loads slowly

    return check_files(paths, task)


def _of_config(path: str) -> Iterator[str]:
    from flgraph.data.check import OwnClients, check_config

    section = read_config(Path(find_config(path))).get("data")
    if not isinstance(section, dict):
        raise InputError(path, "a configuration with a `data` section", "one without")
    if (own := own_clients(section)) is None:
        names = ", ".join(one.__name__ for one in get_args(OwnClients))
        raise InputError("data", f"one of {names}, whose files are one's own,", f"another class in {path}")
    return check_config(*own, path)


def own_clients(section: Mapping[str, Any]) -> tuple[type[OwnClients], dict[str, Any]] | None:
    """The class and the arguments of a data section; ``None`` if these are no files of one's own.

    Raises:
        InputError: it cannot be used.
    """
    from pytorch_lightning import LightningDataModule

    from flgraph.data.check import OwnClients

    own = {one.__name__: one for one in get_args(OwnClients)}
    content = {"data": dict(section)}
    name = str(chosen(["-c", yaml.safe_dump(content)], "data")).rpartition(".")[2]  # refuses what is mistyped
    if name not in own:
        return None
    parser = CommandParser()
    parser.add_subclass_arguments(LightningDataModule, "data")
    return own[name], parser.parse_object(content).data.init_args.as_dict()
