"""What settings say of runs: which have the same method, which the same data, and how both are called."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any

from flgraph.configs import tu_setting
from flgraph.runs.reader import Run, mapping

Flat = Mapping[str, Any]
"""Dotted name to value."""

_NOT_THE_METHOD = re.compile(
    r"(.*[._])?seed(_everything)?|ckpt_path|(trainer\.)?(default_root_dir|name|logger(\..*)?|enable_progress_bar|"
    r"enable_checkpointing|checkpoint_every|keep_checkpoints|max_logged_clients|engine(\..*)?)|data\.(root|name)"
)
"""Settings that say where a run lies, where it computes and what it writes, not what it computes; and its seeds."""

_NOT_THE_DATA = re.compile(r"data\.(features|structure|dse_dim|rwse_dim|batch_size|eval_batch_size|num_workers)")
"""Settings of data that a method may choose: the graphs, clients and splits are the same."""


def shown(value: Any) -> str:
    """A setting as text; a class by its own name."""
    if isinstance(value, str):
        return value.rpartition(".")[2] if re.fullmatch(r"([A-Za-z_]\w*\.)+[A-Z]\w*", value) else value
    return "–" if value is None else json.dumps(value)


def differing(flats: Sequence[Flat]) -> list[str]:
    """Names of settings that are not the same everywhere; absent and null are the same."""
    names = dict.fromkeys(name for flat in flats for name in flat if not _NOT_THE_METHOD.fullmatch(name))
    return [name for name in names if len({json.dumps(flat.get(name), default=str) for flat in flats}) > 1]


def seeds(run: Run, prefix: str = "") -> tuple[tuple[str, str], ...]:
    """The seeds among a run's settings that begin with something, such as that of the partition."""
    named = [name for name in run.flat if name.startswith(prefix) and re.fullmatch(r"(.*[._])?seed", name)]
    return tuple((name, str(run.flat[name])) for name in sorted(named) if run.flat[name] is not None)


def of_data(flat: Flat) -> dict[str, Any]:
    """The settings that say which data it is."""
    names = [name for name in flat if name == "data" or name.startswith("data.")]
    # Of own files, and of classes that are not the package's, these may say which data it is.
    own = not str(flat.get("data")).startswith("flgraph.") or any(name.startswith("data.graphs") for name in names)
    telling = ("data.root", "data.name") if own else ()
    left_out = {name for name in names if _NOT_THE_METHOD.fullmatch(name) or _NOT_THE_DATA.fullmatch(name)}
    return {name: flat[name] for name in names if name in telling or name not in left_out}


def data_key(run: Run) -> str:
    """Tells data apart: by settings; by clients and checksums of their graphs if it was handed over in Python."""
    if isinstance(run.flat.get("data"), str):
        return _key(of_data(run.flat))
    known = {name: value for name, value in run.flat.items() if re.fullmatch(r"data\..*\.content", name)}
    return _key({**known, "": sorted(run.clients)})


def contents_key(run: Run) -> str:
    """Checksums of what the clients held; empty if the run has none."""
    held = {name: mapping(of).get("content") for name, of in mapping(run.results.get("data")).items()}
    return _key(held) if held and all(held.values()) else ""


def method_key(run: Run) -> str:
    """Tells methods apart."""
    flat = {name: value for name, value in run.flat.items() if not _NOT_THE_METHOD.fullmatch(name)}
    # Without a model among the settings it came from Python, and only the run's name is left to go by.
    return _key(flat if "model" in flat else {**flat, "": run.name})


def _key(flat: Flat) -> str:
    return json.dumps({name: value for name, value in sorted(flat.items()) if value is not None}, default=str)


# ------------------------------------------------------------------------------------------------------------- names
def method_name(runs: Sequence[Run]) -> str:
    """What the names of a method's runs have in common, or else its algorithm."""
    names = list(dict.fromkeys(run.name for run in runs))
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in same)
    if len(names) == 1 or len(common := common.rstrip("-_. 0123456789")) > 2:
        return common
    return shown(runs[0].flat.get("trainer.aggregator", names[0]))


def data_name(run: Run, clients: int) -> str:
    """What the data of a run is called, which has some number of clients."""
    flat = run.flat
    if flat.get("data.name"):
        return str(flat["data.name"])
    datasets = flat.get("data.datasets")
    if isinstance(datasets, list) and datasets:
        title = (tu_setting(datasets) or "").upper() or ", ".join(map(str, datasets))
        each = " each" * (len(datasets) > 1)
        shards = clients if len(datasets) == 1 and _is_file(flat) else flat.get("data.shards", 1)
        return title if shards in (1, None) else f"{title}, {shards} clients{each}"
    if isinstance(flat.get("data.dataset"), str):
        return ", ".join([flat["data.dataset"], *_cut(flat), f"{clients} clients"])
    counted = f"{clients} client{'s' * (clients > 1)}"
    if name := run.results.get("data_name"):
        return f"{name}, {counted}"
    if isinstance(flat.get("data"), str):
        return shown(flat["data"])
    return counted if clients else run.name


def _cut(flat: Flat) -> list[str]:
    if key := flat.get("data.partition_key"):
        return [f"by {key}"]
    partition = str(flat.get("data.partition") or "")
    return [PurePath(partition).name if _is_file(flat) else partition.replace("_", " ")] if partition else []


def _is_file(flat: Flat) -> bool:
    """As :func:`~flgraph.data.partition_file.is_partition_file`, which needs torch."""
    return str(flat.get("data.partition")).lower().endswith((".npz", ".json"))


def difference(flat: Flat, flats: Sequence[Flat]) -> str:
    """The settings of one of several that make them differ, as ``lr=0.1, mu=1``; empty if none does."""
    keys = differing(flats)
    told = keys[:3]
    for key in keys[3:]:  # and what it takes to have a title of its own
        alike = [other for other in flats if all(other.get(own) == flat.get(own) for own in told)]
        if any(other.get(key) != flat.get(key) for other in alike):
            told.append(key)
    texts = [f"{key.rpartition('.')[2]}={shown(flat.get(key))}" for key in told]
    return ", ".join(texts) + (", …" if len(keys) > len(told) else "")
