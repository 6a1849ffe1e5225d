"""Brings a federation's run home, where the folders of all its sites are within reach."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from flgraph.errors import expect
from flgraph.federation.checkpoint import CLIENTS, SERVER, CheckpointStore, link_or_copy, read_manifest, state_name
from flgraph.federation.engines.remote import is_whole, saved_at, state_file
from flgraph.flare.settings import clients_folder, read_settings


def gather(name: str, kits: Path, out: Path) -> Path:
    """Copies the newest run of a name from the server, and with its checkpoints the states that sites keep.

    What comes out is a run as ``flgraph fit`` writes it, to be continued with any engine. For federations on one
    machine, or whose sites agree to hand over their clients' states, which hold what an algorithm keeps personal.
    Checkpoints that were written while a site was away are left out.

    Args:
        name: of the run.
        kits: folder with the start-up kits, ``server`` and one for each site.
        out: where the run goes, ``out/NAME/version_N``; must not exist.

    Returns:
        The run's folder.

    Raises:
        InputError: there is no such run, a site's folder or a state is missing, or no checkpoint has all sites.
    """
    runs = Path(read_settings(kits / "server").folder) / name
    versions = sorted(runs.glob("version_*"), key=lambda path: int(path.name.removeprefix("version_")))
    expect(len(versions) > 0, "name", f"a run of the server in {runs.parent}", name)
    run, target = versions[-1], out / name / versions[-1].name
    expect(not target.exists(), "--out", "a folder without this run", target)
    there = CheckpointStore(run / "checkpoints")
    checkpoints = {round: there.path(round) for round in there.rounds() if is_whole(there.path(round) / CLIENTS)}
    expect(len(checkpoints) > 0, "name", "a run with a checkpoint for which all sites were there", name)
    manifests = {round: read_manifest(checkpoint) for round, checkpoint in checkpoints.items()}
    states = {round: _states(checkpoint / CLIENTS, kits) for round, checkpoint in checkpoints.items()}
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("checkpoints"))
    best = (there.folder / "best").resolve()
    best_round = next((round for round, checkpoint in checkpoints.items() if checkpoint.resolve() == best), None)
    store = CheckpointStore(target / "checkpoints", keep=len(checkpoints) + 1)
    for round, checkpoint in checkpoints.items():
        server = (checkpoint / SERVER).read_bytes()
        store.save(round, server, _writer(states[round]), manifests[round]["settings"], best_round)
    return target


def _states(folder: Path, kits: Path) -> dict[str, Path]:
    """File of every client of a checkpoint, in the folder of its site."""
    found = {file.stem: file for file in folder.glob(state_name("*"))}  # of a run that one machine began
    for pointer in sorted(folder.glob("*.json")):
        site, label = saved_at(folder, pointer.stem)
        kit = kits / site
        expect(kit.is_dir(), "--kits", f"a folder with the kit of site `{site}`", kits)
        file = state_file(clients_folder(read_settings(kit)), pointer.stem, label)
        expect(file.is_file(), "--kits", f"with the state of client `{pointer.stem}`, {file}", "none")
        found[pointer.stem] = file
    return found


def _writer(states: dict[str, Path]) -> Callable[[Path, Path | None], None]:
    def write(folder: Path, previous: Path | None) -> None:
        for client, file in states.items():
            link_or_copy(file, folder / state_name(client))

    return write
