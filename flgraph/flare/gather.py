"""Brings a federation's run home, where the folders of all its sites are within reach."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import yaml

from flgraph.errors import InputError, expect
from flgraph.flare.settings import clients_folder, read_settings
from flgraph.runs.checkpoint import (
    CLIENTS,
    SERVER,
    CheckpointStore,
    find_checkpoint,
    link_or_copy,
    read_manifest,
    state_name,
)
from flgraph.runs.site_states import is_complete, read_locations, state_file


def gather(name: str, kits: Path, out: Path) -> Path:
    """Copies the newest run of a name from the server, and with its checkpoints the states that sites keep.

    What comes out is a run as ``flgraph fit`` writes it, to be continued with any engine; its ``config.yaml`` names no
    data. For federations on one machine, or whose sites agree to hand over their clients' states, which hold what an
    algorithm keeps personal. Checkpoints that were written while a site was away are left out.

    Args:
        name: of the run.
        kits: folder with the start-up kits, ``server`` and one for each site.
        out: where the run goes, ``out/NAME/version_N``; must not exist.

    Returns:
        The run's folder.

    Raises:
        InputError: there is no such run, it is going on, a site's folder or a state is missing, or no checkpoint has
            all sites.
    """
    expect((kits / "server" / "local").is_dir(), "--kits", "a folder with the server's kit", kits)
    runs = Path(read_settings(kits / "server").folder) / name
    expect(runs.is_dir(), "name", f"a run of the server in {runs.parent}", name)
    run = find_checkpoint("last", runs).parents[1]
    target = out / name / run.name
    expect(not target.exists(), "--out", "a folder without this run", target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".gathering-") as folder:
        whole = Path(folder) / run.name
        try:
            _copy(run, whole, kits)
        except FileNotFoundError as error:
            raise InputError("name", "a run that has stopped", f"{name}, which is going on") from error
        _change_config(whole / "config.yaml", name, out)
        whole.rename(target)
    return target


def _copy(run: Path, target: Path, kits: Path) -> None:
    there = CheckpointStore(run / "checkpoints")
    checkpoints = {round: there.path(round) for round in there.rounds() if is_complete(there.path(round) / CLIENTS)}
    expect(len(checkpoints) > 0, "name", "a run with a checkpoint for which all sites were there", run)
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("checkpoints"))
    best = there.best()
    found = (round for round, checkpoint in checkpoints.items() if best and checkpoint.resolve() == best.resolve())
    best_round = next(found, None)
    store = CheckpointStore(target / "checkpoints", keep=len(checkpoints) + 1)
    for round, checkpoint in checkpoints.items():
        settings = read_manifest(checkpoint)["settings"]
        server = (checkpoint / SERVER).read_bytes()
        states = _states(checkpoint / CLIENTS, kits)

        def write(folder: Path, _: Path | None, states: dict[str, Path] = states) -> None:
            for client, file in states.items():
                link_or_copy(file, folder / state_name(client))

        store.save(round, server, write, settings, best_round)


def _states(folder: Path, kits: Path) -> dict[str, Path]:
    """File of every client of a checkpoint, in the folder of its site."""
    found = {file.stem: file for file in folder.glob(state_name("*"))}  # of a run that one machine began
    for client, location in read_locations(folder).items():
        kit = kits / location.site
        expect(kit.is_dir(), "--kits", f"a folder with the kit of site `{location.site}`", kits)
        file = state_file(clients_folder(read_settings(kit)), client, location.label)
        expect(file.is_file(), "--kits", f"with the state of client `{client}`, {file}", "none")
        found[client] = file
    return found


def _change_config(file: Path, name: str, out: Path) -> None:
    """The server's configuration names its own folder, and no data."""
    if not file.is_file():
        return
    content = yaml.safe_load(file.read_text())
    content.pop("data", None)
    content["trainer"] = {**content["trainer"], "default_root_dir": str(out), "name": name}
    file.write_text(yaml.safe_dump(content, sort_keys=False))
