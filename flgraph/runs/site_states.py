"""Checkpoints of clients that are elsewhere: files that tell which site has a state, and under which label."""

from __future__ import annotations

import json
from pathlib import Path

from flgraph.runs.checkpoint import state_name
from flgraph.runs.files import write_json


def state_file(folder: Path, name: str, label: str) -> Path:
    """Where a site keeps the state of a client that was saved under a label; ``folder`` is that of its clients."""
    return folder / name / state_name(label)


def saved_at(folder: Path, name: str) -> tuple[str, str]:
    """Which site has a client's state, and under which label.

    Args:
        folder: the clients' folder of a checkpoint.
        name: of the client.

    Raises:
        FileNotFoundError: the checkpoint does not point anywhere for this client.
    """
    pointer = json.loads((folder / _file(name)).read_text())
    return pointer["site"], pointer["label"]


def point(folder: Path, name: str, site: str, label: str) -> None:
    """Writes down where a client's state is; ``folder`` is the clients' of a checkpoint."""
    write_json({"site": site, "label": label}, folder / _file(name))


def labels_in_use(checkpoints: Path) -> set[str]:
    """Labels of all states that the checkpoints of a run point to."""
    return {saved_at(file.parent, file.stem)[1] for file in checkpoints.glob(f"*/*/{_file('*')}")}


def is_whole(folder: Path) -> bool:
    """Whether all sites were there when a checkpoint was written; ``folder`` is that of its clients."""
    return all(saved_at(folder, file.stem)[1] == checkpoint_label(folder) for file in folder.glob(_file("*")))


def checkpoint_label(folder: Path) -> str:
    """What the states of a checkpoint are called: run, version and round."""
    checkpoint, version = folder.parent, folder.parents[2]
    return f"{version.parent.name}.{version.name}.{checkpoint.name.rpartition('-')[2]}"


def has_state(folder: Path, name: str) -> bool:
    """Whether a checkpoint has a client's state, or tells where it is."""
    return (folder / state_name(name)).is_file() or (folder / _file(name)).is_file()


def client_label(folder: Path, name: str) -> str:
    """What a client's state in a checkpoint is called; as the checkpoint's own where nothing else is told."""
    return saved_at(folder, name)[1] if (folder / _file(name)).is_file() else checkpoint_label(folder)


def _file(name: str) -> str:
    return f"{name}.json"
