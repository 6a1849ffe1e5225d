"""Help for ``flgraph fit`` and its like, from the source: it need not wait until torch is imported."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from flgraph.cli.outline import Field, Outline, exported, outline
from flgraph.cli.typos import chosen, trainer_fields
from flgraph.configs import PACKAGES

_WIDTH = 100
_INDENT = 26
_FILES = {
    "-c FILE": "a configuration; several merge, later ones win (configs/data/chem.yaml, configs/method/fedavg.yaml)",
    "--print_config": "show the configuration that comes of all options, and run nothing",
    "--ckpt_path PATH": "",
    "--seed_everything INT": "seed from which all randomness of the run derives (default: 0)",
}
_CHECKPOINT = {
    "fit": "go on: last or best (of the newest run of this name), or the folder of a run or of a checkpoint",
    "validate": "last (the default) or best of the newest run of this name, or the folder of a run or of a checkpoint",
}
_CLASSES = {
    "model": "the network, a LightningModule",
    "data": "the clients and their data",
}
_BASES = {
    "model": "SizedModule",
    "data": "Federation",
    "trainer.aggregator": "Aggregator",
    "trainer.callbacks": "FederatedCallback",
    "trainer.engine": "Engine",
}
"""What a field's classes derive from."""


def help_of(command: str, args: Sequence[str]) -> str | None:
    """The help that these arguments ask for; ``None`` if they ask for none, or for that of a class from elsewhere.

    Args:
        command: ``fit``, ``validate``, ``test`` or ``predict``.
        args: what follows it.
    """
    for position, arg in enumerate(args):
        if arg in ("-h", "--help"):
            return _of_command(command)
        name, equals, value = arg.removeprefix("--").partition("=")
        field, dot, last = name.rpartition(".")
        if dot and last == "help" and field in PACKAGES:
            after = args[position + 1 : position + 2]
            named = value if equals else after[0] if after and not after[0].startswith("-") else chosen(args, field)
            if not named:
                return "\n".join(_classes(field))
            known = outline(named if "." in named else f"{PACKAGES[field]}.{named}")
            return None if known is None else _of_class(field, known)
    return None


def _of_command(command: str) -> str:
    lines = [f"usage: flgraph {command} -c FILE [-c FILE ...] [--FIELD VALUE ...]", "", "files and checkpoints:"]
    checkpoint = _CHECKPOINT.get(command, _CHECKPOINT["validate"])
    for option, what in _FILES.items():
        lines += _entry(option, what or checkpoint)
    for name, what in _CLASSES.items():
        lines += ["", f"{name}:", *_entry(f"--{name} CLASS", what)]
        lines += _entry(
            f"--{name}.FIELD VALUE", f"a field of it; --{name}.help [CLASS] lists classes, or fields of one"
        )
    lines += ["", "trainer:"]
    for field in trainer_fields().values():
        lines += _option(f"trainer.{field.name}", field)
    lines += _entry("--trainer.aggregator.FIELD VALUE", "a field of it; --trainer.aggregator.help [CLASS] lists them")
    return "\n".join(lines)


def _of_class(name: str, known: Outline) -> str:
    lines = [f"{known.path.rpartition('.')[2]}: {known.summary}", ""]
    for field in known.fields.values():
        lines += _option(f"{name}.{field.name}", field)
    return "\n".join(lines)


def _classes(name: str) -> Iterable[str]:
    yield f"--{name} is one of these, or the import path of your own; --{name}.help CLASS lists the fields of one:"
    for own in exported(PACKAGES[name]):
        known = outline(f"{PACKAGES[name]}.{own}")
        algorithm = known is not None and name != "trainer.aggregator" and "Aggregator" in known.bases
        if known is not None and _BASES[name] in known.bases and not known.abstract and not algorithm:
            yield from _entry(own, known.summary)


def _option(name: str, field: Field) -> list[str]:
    kind = re.sub(r"\b(pl\.|None\b)", "", field.annotation).strip(" |").upper() if field.annotation else ""
    kind = re.sub(r"LITERAL\[(.*?)\]", lambda found: found[1].replace("'", "").lower(), kind)
    default = "required" if field.default is None else f"default: {field.default}"
    return _entry(f"--{name} {kind}", f"{field.help.rstrip('.')} ({default})".strip())


def _entry(option: str, what: str) -> list[str]:
    """An option and what it is, beside each other where the option is short."""
    pad = " " * _INDENT
    lines = textwrap.wrap(what, _WIDTH, initial_indent=pad, subsequent_indent=pad) or [""]
    if len(option) < _INDENT - 4:
        return [f"  {option:<{_INDENT - 2}}{lines[0].strip()}", *lines[1:]]
    return [f"  {option}", *lines]
