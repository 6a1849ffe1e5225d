"""Checkpoints of clients at sites: for each client a file ``NAME.json``, which says where its state is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from flgraph.runs.checkpoint import CLIENTS, state_name
from flgraph.runs.files import write_text


@dataclass(frozen=True)
class Location:
    """Where the state of a client is: at which site, and under which label."""

    site: str
    label: str


def write_location(folder: Path, client: str, location: Location) -> None:
    """Writes down where a client's state is; ``folder`` is the clients' of a checkpoint."""
    write_text(json.dumps(asdict(location)), folder / f"{client}.json")


def read_locations(folder: Path) -> dict[str, Location]:
    """Where the clients' states of a checkpoint are, as far as they are at sites."""
    return {file.stem: Location(**json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))}


def labels_in_use(checkpoints: Path) -> set[str]:
    """Labels of all states that the checkpoints of a run name."""
    folders = checkpoints.glob(f"*/{CLIENTS}")
    return {location.label for folder in folders for location in read_locations(folder).values()}


def is_complete(folder: Path) -> bool:
    """Whether all sites were there when a checkpoint was written; ``folder`` is that of its clients."""
    return all(location.label == checkpoint_label(folder) for location in read_locations(folder).values())


def checkpoint_label(folder: Path) -> str:
    """What the states of a checkpoint are called: run, version and round; ``folder`` is that of its clients."""
    checkpoint, version = folder.parent, folder.parents[2]
    return f"{version.parent.name}.{version.name}.{checkpoint.name.rpartition('-')[2]}"


def state_file(folder: Path, client: str, label: str) -> Path:
    """Where a site keeps a client's state of that label; ``folder`` is that of the site's clients."""
    return folder / client / state_name(label)
