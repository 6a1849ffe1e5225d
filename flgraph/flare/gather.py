"""Brings a federation's run home, where the folders of all its sites are within reach; and a run of home there."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import yaml

from flgraph.errors import InputError, expect
from flgraph.flare.settings import SiteSettings, clients_folder, encryption_secret, read_settings, site_secret
from flgraph.runs.checkpoint import (
    CLIENTS,
    SERVER,
    CheckpointStore,
    find_checkpoint,
    link_or_copy,
    read_manifest,
    state_name,
)
from flgraph.runs.files import LOCK, Digest, only_writer, write_bytes
from flgraph.runs.keys import derive_key
from flgraph.runs.site_states import Location, SiteStates, check_run_name, is_complete, read_locations

States = Mapping[str, Callable[[Path], object]]
"""Client to what writes its state to a file."""


def checkpoint_key(settings: SiteSettings) -> bytes:
    """With which a server signs its checkpoints; see :class:`~flgraph.runs.checkpoint.CheckpointStore`."""
    return derive_key(site_secret(settings), "checkpoints")


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
    server = read_settings(kits / "server")
    runs = Path(server.folder) / name
    expect(runs.is_dir(), "name", f"a run of the server in {runs.parent}", name)
    run = find_checkpoint("last", runs).parents[1]
    with _new_run(out, name, run.name, "--out") as whole:
        try:
            _copy(run, whole, partial(_states, kits=kits, run=name), key=checkpoint_key(server))
        except FileNotFoundError as error:
            raise InputError("name", "a run that has stopped", f"{name}, which is going on") from error
        _change_config(whole / "config.yaml", name, out)
    return out / name / run.name


def adopt(run: Path, kit: Path) -> Path:
    """Copies a run of ``flgraph fit`` to a server, which signs its checkpoints and can then go on with it at sites.

    Args:
        run: its folder, ``runs/NAME/version_N``, or ``runs/NAME`` for the newest one.
        kit: the server's.

    Returns:
        The run's folder at the server.

    Raises:
        InputError: there is no such run, another process is writing to it, a checkpoint is damaged, or the server has a
            run of that name and version.
    """
    expect((kit / "local").is_dir(), "--kit", "the server's kit", kit)
    server = read_settings(kit)
    inside = any(run.glob("version_*"))
    found = find_checkpoint("last", run) if inside else find_checkpoint(str(run), run)
    expect(found.parent.name == "checkpoints", "RUN", "the folder of a run", run)
    source = found.parents[1]
    name = source.parent.name
    check_run_name(name, "RUN")
    folder = Path(server.folder)
    with only_writer(source), _new_run(folder, name, source.name, "RUN") as whole:
        _copy(source, whole, _own_states, sign=checkpoint_key(server))
    return folder / name / source.name


@contextmanager
def _new_run(out: Path, name: str, version: str, field: str) -> Iterator[Path]:
    """A folder to fill, which becomes ``out/NAME/VERSION`` if nothing goes wrong; it ends like that."""
    target = out / name / version
    what = "a folder without this run" if field == "--out" else "a run that the server does not have"
    expect(not target.exists(), field, what, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".copying-") as folder:
        whole = Path(folder) / name / version
        yield whole
        whole.rename(target)


def _copy(
    run: Path, target: Path, states: Callable[[Path], States], key: bytes | None = None, sign: bytes | None = None
) -> None:
    """Copies a run and those of its checkpoints that have all clients.

    Args:
        run: its folder.
        target: where it goes.
        states: the clients' of a checkpoint's folder.
        key: with which its manifests must be signed.
        sign: with which they will be.
    """
    there = CheckpointStore(run / "checkpoints")
    checkpoints = {round: there.path(round) for round in there.rounds() if is_complete(there.path(round) / CLIENTS)}
    expect(len(checkpoints) > 0, "name", "a run with a checkpoint for which all sites were there", run)
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("checkpoints", LOCK))
    best = there.best()
    found = (round for round, checkpoint in checkpoints.items() if best and checkpoint.resolve() == best.resolve())
    best_round = next(found, None)
    store = CheckpointStore(target / "checkpoints", keep=len(checkpoints) + 1, key=sign)
    for round, checkpoint in checkpoints.items():
        settings = read_manifest(checkpoint, key)["settings"]
        server, own = (checkpoint / SERVER).read_bytes(), states(checkpoint / CLIENTS)

        def write(folder: Path, _: Path | None, writers: States = own) -> dict[str, Digest]:
            for client, write_to in writers.items():
                write_to(folder / state_name(client))
            return {}

        store.save(round, server, write, settings, best_round)


def _own_states(folder: Path) -> dict[str, Callable[[Path], object]]:
    """Of a checkpoint that one machine wrote."""
    return {file.stem: partial(link_or_copy, file) for file in folder.glob(state_name("*"))}


def _states(folder: Path, kits: Path, run: str) -> dict[str, Callable[[Path], object]]:
    """Of a checkpoint, from the folders of its sites."""
    found = _own_states(folder)  # of a run that one machine began
    for client, location in read_locations(folder).items():
        kit = kits / location.site
        plain = re.fullmatch(r"[A-Za-z0-9_-]+", location.site) is not None and kit.is_dir()
        expect(plain, "--kits", f"a folder with the kit of site `{location.site}`", kits)
        settings = read_settings(kit)
        states = SiteStates(clients_folder(settings), run, site_secret(settings), encryption_secret(settings))
        there = states.has(client, location.label)
        expect(there, "--kits", f"with the state of client `{client}`, {location.label}", "none")
        found[client] = partial(_write_state, states, client, location)
    return found


def _write_state(states: SiteStates, client: str, location: Location, file: Path) -> None:
    try:
        write_bytes(states.load(client, location.label), file)
    except InputError as error:
        raise error.within(f"site `{location.site}`") from error


def _change_config(file: Path, name: str, out: Path) -> None:
    """The server's configuration names its own folder, and no data."""
    if not file.is_file():
        return
    content = yaml.safe_load(file.read_text())
    content.pop("data", None)
    content["trainer"] = {**content["trainer"], "default_root_dir": str(out), "name": name}
    content["trainer"].pop("enable_progress_bar", None)  # false at the server, which has no terminal
    file.write_text(yaml.safe_dump(content, sort_keys=False))
