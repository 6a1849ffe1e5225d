"""The two halves of a federation, made from a job's configuration; nothing here is FLARE's."""

from __future__ import annotations

import hashlib
import logging
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml

from flgraph import __version__
from flgraph.cli.fit import FederatedCLI
from flgraph.data.own import OwnFiles
from flgraph.errors import REFUSED, ClientError, EngineError, InputError, expect, first_line
from flgraph.federation.client import Client
from flgraph.federation.engines.host import Message, SiteHost, attempt, coded
from flgraph.federation.engines.remote import Remote, SiteTransport, checked_about, site_error
from flgraph.federation.lightning import WHERE
from flgraph.federation.policy import Policy
from flgraph.federation.secure.identity import Authority, Identity
from flgraph.flare.classes import refuse_foreign_classes, refuse_foreign_names
from flgraph.flare.gather import checkpoint_key
from flgraph.flare.settings import (
    FILE,
    SiteSettings,
    clients_folder,
    encryption_secret,
    read_settings,
    site_secret,
    site_seed,
)
from flgraph.runs.checkpoint import CLIENTS, find_checkpoint, read_manifest, state_name
from flgraph.runs.compatibility import check_settings
from flgraph.runs.files import private_folder
from flgraph.runs.keys import canonical
from flgraph.runs.site_states import read_locations

_log = logging.getLogger(__name__)

Opened = Mapping[str, Mapping[str, Any]] | Exception
"""What a site tells of its clients, by name; or why it did not open the job."""


class SitesData(pl.LightningDataModule):
    """The data of a server that has none: names of the clients that sites hold.

    Args:
        names: the clients, in the order of the federation.
        title: how runs are called.
    """

    name: str

    def __init__(self, names: Sequence[str] = (), title: str = "sites") -> None:
        super().__init__()
        self.clients, self.name = list(names), title

    def client(self, name: str) -> Any:
        """Raises InputError: it is not here."""
        raise InputError("client", "in this process", f"`{name}`, whose data its site keeps")


class Site:
    """A site's half of a job: opens it with the clients that are here, then answers for them.

    Args:
        kit: the site's, whose settings are read when the job opens.
    """

    def __init__(self, kit: Path) -> None:
        self.kit = kit
        self.host: SiteHost | None = None
        self._opening = threading.Lock()
        self._opened: tuple[str, str] | None = None
        self._told = Message()

    def answer(self, request: Message) -> Message:
        """What to answer to :func:`open_site` or a :class:`~flgraph.federation.engines.remote.Remote` engine."""
        if request.header.get("do") == "open":
            with self._opening:
                answer = coded(attempt(lambda: self._open(request.header["config"], request.header["run"])))
            return Message({**answer.header, "version": __version__})
        if self.host is None:
            return Message({"error": REFUSED})
        return self.host.answer(request)

    def _open(self, config: str, run: str) -> Message:
        # Limits are those of a run: a server that could begin others would have none.
        expect(self._opened in (None, (config, run)), "open", "asked for with the run of this job", "another one")
        if self.host is not None:  # asked twice: the clients have gone on since
            return self._told
        self._opened = (config, run)
        settings = read_settings(self.kit)
        try:
            made = host(config, settings, run, Identity.of_kit(self.kit))
        except SystemExit as error:  # of somebody's class: it would end the site's process without a word
            raise ClientError(f"The clients could not be made: {error!r}.") from error
        if (self.kit / "local" / "privacy.json").is_file():
            _log.warning(
                "FLARE's privacy filters do not see flgraph's messages; `policy` in local/%s replaces them.", FILE
            )
        about = {name: client.disclosed(made.key) for name, client in made.clients.items()}
        # The site's own choices, but for where it computes, go with what a run must share to go on.
        trainer = {key: value for key, value in settings.trainer.items() if key not in WHERE}
        if trainer:
            for own in about.values():
                own["data"] = {**own["data"], "trainer": trainer}
        self.host, self._told = made, Message({"about": about})
        return self._told


def host(config: str, settings: SiteSettings, run: str, identity: Identity | None = None) -> SiteHost:
    """A site's clients, made of the job's model and algorithm and the site's own data.

    Args:
        config: the job's configuration as YAML, without data.
        settings: of the site.
        run: the run's name.
        identity: with which the site signs keys of secure sums.

    Raises:
        InputError: the configuration names a class that the site does not allow, or cannot be used with its data; or
            the run's name is none.
    """
    policy = Policy.of(settings.policy)
    clients = clients_of(config, settings, policy, run)
    for client in clients.values():
        if client.masked is not None:
            client.masked.identity = identity
    secret, encryption = site_secret(settings), encryption_secret(settings)
    made = SiteHost(clients, clients_folder(settings), run, secret, encryption, policy.accept_states)
    ledgers = Path(settings.folder) / "ledger"
    private_folder(ledgers)
    made.note_in(ledgers / f"{run}.jsonl")
    return made


def clients_of(config: str, settings: SiteSettings, policy: Policy | None, run: str = "") -> dict[str, Client]:
    """A site's clients, made of the job's model and algorithm and the site's own data.

    Args:
        config: the job's configuration as YAML, without data.
        settings: of the site.
        policy: that they obey, whatever the job's is.
        run: the run's name.

    Raises:
        InputError: the configuration names a class that the site does not allow, or cannot be used with its data.
        PolicyError: the policy does not let a client take part.
    """
    expect(bool(settings.data), "data", "in the site's local/flgraph.yaml", "none")
    quiet = {"logger": False, "enable_checkpointing": False, "default_root_dir": settings.folder, "policy": None}
    cli = _configured(config, settings, quiet, settings.data)
    for refusal in policy.excess(cli.trainer.rounds, cli.trainer.local_epochs) if policy is not None else ():
        raise refusal
    cli.trainer.policy, cli.trainer.job = policy, _job(config, run)
    if isinstance(cli.datamodule, OwnFiles):
        cli.datamodule.declared.apart = True
    seed = site_seed(settings, cli.trainer.seed, run)
    return cli.trainer.host(cli.model, cli.datamodule, settings.clients or None, seed)


def open_site(
    transport: SiteTransport, site: str, config: str, deadline: float, run: str
) -> Mapping[str, Mapping[str, Any]]:
    """Has a site make its clients for a job; returns what they tell of themselves, by name.

    Raises:
        InputError: the site refuses the job, has another version of flgraph, or what it answers cannot be used.
        ClientError: it failed otherwise.
        EngineError: it did not answer in time.
    """
    answer = transport.send(site, Message({"do": "open", "config": config, "run": run}), deadline)
    if answer is None:
        raise EngineError(f"Site `{site}` did not load its data within {deadline:g} s.")
    error, version = site_error(site, answer), answer.header.get("version")
    if error is not None and version in (None, __version__):
        raise error
    wanted = f"of version {__version__}, as at the server,"
    expect(version == __version__, f"flgraph` at site `{site}", wanted, version)
    told = checked_about(site, answer.header.get("about"))
    whole = all({"data", "parameters", "routes"} <= about.keys() for about in told.values())
    expect(whole, f"clients of site `{site}", "described by data, parameters and routes", "some of these")
    return told


def serve(
    config: str,
    name: str,
    transport: SiteTransport,
    sites: Mapping[str, Opened],
    settings: SiteSettings,
    options: Mapping[str, Any],
    authority: Authority | None = None,
) -> Path:
    """The server's half: runs the federation, or goes on where an earlier job of this name was stopped.

    Args:
        config: the job's configuration as YAML, without data.
        name: of the run.
        transport: carries messages to the sites.
        sites: site to what its clients tell of themselves, by name; or the error of one that did not open the job,
            without which a run goes on that was begun with it. So it does without clients whose states are not at
            the site that they are told of by, or whose data is no longer that of the checkpoint.
        settings: of the server.
        options: further arguments of :class:`~flgraph.federation.engines.remote.Remote`.
        authority: by which sites sign keys of secure sums.

    Returns:
        The run's folder.

    Raises:
        InputError: a site refuses the job, and it is a new run.
        EngineError: clients are gone; the next job goes on from the last whole round.
    """
    newest = _newest(Path(settings.folder) / name)
    if newest is not None:
        sites = _as_before(sites, Path(newest), checkpoint_key(settings))
    there = {site: told for site, told in sites.items() if not isinstance(told, Exception)}
    for site, error in sites.items():
        if isinstance(error, Exception):
            if newest is None or not there:
                raise error
            _log.warning("Site `%s` is left out for the rest of the run: %s", site, error)
    engine = Remote(transport, there, **options)
    data = {"class_path": "flgraph.flare.run.SitesData", "init_args": {"names": list(engine.site_of), "title": name}}
    cli = _configured(config, settings, {"default_root_dir": settings.folder, "name": name}, data)
    cli.trainer.engine, cli.trainer.authority = engine, authority
    cli.trainer.checkpoint_key, cli.trainer.job = checkpoint_key(settings), _job(config, name)
    cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=newest)
    assert cli.trainer.run_dir is not None
    return cli.trainer.run_dir


def open_sites(
    transport: SiteTransport, sites: Sequence[str], config: str, deadline: float, run: str
) -> dict[str, Opened]:
    """What :func:`open_site` gives for each site, or its error; who did not answer in time is asked once more."""
    opened: dict[str, Opened] = {}
    waiting = list(sites)
    for _ in range(2):
        for site in waiting:
            try:
                opened[site] = open_site(transport, site, config, deadline, run)
            except (InputError, EngineError) as error:
                opened[site] = error
        waiting = [site for site, told in opened.items() if type(told) is EngineError]
    return opened


def _as_before(sites: Mapping[str, Opened], newest: Path, key: bytes) -> dict[str, Opened]:
    """The same with clients alone that can go on from a checkpoint; an error for a site that has none."""
    saved, places = read_manifest(newest, key)["settings"]["data"], read_locations(newest / CLIENTS)
    found: dict[str, Opened] = {}
    for site, told in sites.items():
        if isinstance(told, Exception):
            found[site] = told
            continue
        kept, errors = {}, []
        for name, about in told.items():
            try:
                file, place = newest / CLIENTS / state_name(name), places.get(name)
                here = place.site == site if place is not None else not places or file.is_file()
                wanted = f"one whose state is at site `{site}`, as when the run began,"
                expect(name in saved and here, "client", wanted, name)
                check_settings({"data": {name: saved[name]}}, {"data": {name: about["data"]}}, {}, newest)
                kept[name] = about
            except InputError as error:
                errors.append(error)
                _log.warning("Client `%s` of site `%s` is left out for the rest of the run: %s", name, site, error)
        found[site] = kept or errors[0]
    return found


def _job(config: str, run: str) -> str:
    return hashlib.sha256(canonical([config, run])).hexdigest()


def _newest(runs: Path) -> str | None:
    try:
        return str(find_checkpoint("last", runs))
    except InputError:
        return None


class _JobCLI(FederatedCLI):
    """Looks at the classes once more when the parser has settled their names, and before it makes them."""

    def __init__(self, args: Sequence[str], settings: SiteSettings) -> None:
        self._settings = settings
        super().__init__(args, run=False)

    def before_instantiate_classes(self) -> None:
        """All but those that the site has chosen itself."""
        content = yaml.safe_load(self.config_text)
        trainer = {key: value for key, value in content["trainer"].items() if key not in self._settings.trainer}
        refuse_foreign_names({"model": content["model"], "trainer": trainer}, self._settings.allow)
        super().before_instantiate_classes()


_LONGEST, _DEEPEST = 1_000_000, 100
"""Characters and levels of a job's configuration."""


def _content(config: Any) -> Any:
    """What the configuration of a job holds.

    Raises:
        InputError: it is no YAML, or could be more than it is long.
    """
    fits = isinstance(config, str) and len(config) <= _LONGEST
    expect(fits, "configuration", f"a text of up to {_LONGEST} characters", "something else")
    try:
        depth = 0
        for event in yaml.parse(config, yaml.SafeLoader):
            expect(
                not isinstance(event, yaml.AliasEvent), "configuration", "YAML without aliases, which multiply,", "one"
            )
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            expect(depth <= _DEEPEST, "configuration", f"YAML of {_DEEPEST} levels at most", "more")  # time grows fast
        return yaml.safe_load(config)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError("configuration", "YAML", first_line(error)) from error


def _configured(
    config: str, settings: SiteSettings, trainer: Mapping[str, Any], data: Mapping[str, Any]
) -> FederatedCLI:
    """Model, data and trainer of a job.

    Args:
        config: of the job, as YAML.
        settings: of the site or server that this is; its classes are looked at before anything is imported.
        trainer: arguments of the trainer that are not the job's choice; ``settings`` may name further ones.
        data: the data section.

    Raises:
        InputError: it cannot be used; with the sentence that the command line would end with.
    """
    for field, section in (("data", data), ("trainer", settings.trainer)):
        expect(isinstance(section, Mapping), f"{field} in local/{FILE}", "a mapping", section)
    content = _content(config)
    refuse_foreign_classes(content, settings.allow)
    own = {"engine": None, "enable_progress_bar": False, **trainer, **settings.trainer}
    content = {**content, "trainer": {**content["trainer"], **own}, "data": dict(data)}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump(content, sort_keys=False))
        file.flush()
        return _JobCLI(["--config", file.name], settings)
