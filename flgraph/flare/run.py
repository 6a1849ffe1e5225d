"""The two halves of a federation, made from a job's configuration; nothing here is FLARE's."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml

from flgraph.cli.fit import FederatedCLI
from flgraph.errors import InputError, expect
from flgraph.federation.engines.remote import Host, Post, Remote
from flgraph.federation.lightning import WHERE
from flgraph.flare.classes import refuse_foreign_classes, refuse_foreign_names
from flgraph.flare.settings import SiteSettings, clients_folder, site_seed
from flgraph.runs.checkpoint import find_checkpoint


class SitesData(pl.LightningDataModule):
    """The data of a server that has none: names of the clients that sites hold.

    Args:
        names: the clients, in the order of the federation.
        title: how runs are called.
    """

    name: str

    def __init__(self, names: Sequence[str] = (), title: str = "sites") -> None:
        super().__init__()
        self.names, self.name = list(names), title

    @property
    def clients(self) -> list[str]:
        """Names of the clients."""
        return self.names

    def client(self, name: str) -> Any:
        """Not here.

        Raises:
            InputError: always.
        """
        raise InputError(f"Expected `client` to be at this place but got `{name}`, whose data its site keeps.")


def host(config: str, settings: SiteSettings) -> Host:
    """A site's half: its clients, made of the job's model and algorithm and its own data.

    Args:
        config: the job's configuration as YAML, without data.
        settings: of the site.

    Raises:
        InputError: the configuration names a class that the site does not allow, or cannot be used with its data.
    """
    content = yaml.safe_load(config)
    refuse_foreign_classes(content, settings.allow)
    expect(bool(settings.data), "data", "in the site's local/flgraph.yaml", "none")
    quiet = {"engine": None, "enable_progress_bar": False, "logger": False, "enable_checkpointing": False}
    content["trainer"] = {**content["trainer"], **quiet, "default_root_dir": settings.folder, **settings.trainer}
    cli = _configured({**content, "data": dict(settings.data)}, settings)
    seed = site_seed(settings, cli.trainer.seed)
    clients = cli.trainer.host(cli.model, cli.datamodule, settings.clients or None, seed)
    return Host(clients, clients_folder(settings))


def serve(
    config: str,
    name: str,
    post: Post,
    sites: Mapping[str, Mapping[str, Mapping[str, Any]]],
    settings: SiteSettings,
    options: Mapping[str, Any],
) -> Path:
    """The server's half: runs the federation, or goes on where an earlier job of this name was stopped.

    Args:
        config: the job's configuration as YAML, without data.
        name: of the run.
        post: carries messages to the sites.
        sites: site to what its clients tell of themselves, by name.
        settings: of the server.
        options: further arguments of :class:`~flgraph.federation.engines.remote.Remote`.

    Returns:
        The run's folder.

    Raises:
        EngineError: clients are gone; the next job goes on from the last whole round.
    """
    content = yaml.safe_load(config)
    refuse_foreign_classes(content, settings.allow)
    engine = Remote(post, sites, **options)
    own = {"engine": None, "enable_progress_bar": False, "default_root_dir": settings.folder, "name": name}
    content["trainer"] = {**content["trainer"], **own, **settings.trainer}
    data = {"class_path": "flgraph.flare.run.SitesData", "init_args": {"names": list(engine.site_of), "title": name}}
    cli = _configured({**content, "data": data}, settings)
    cli.trainer.engine = engine
    cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=_newest(Path(settings.folder) / name))
    assert cli.trainer.run_dir is not None
    return cli.trainer.run_dir


def tell(host: Host, settings: SiteSettings) -> str:
    """What a site's clients tell of themselves, as JSON.

    The site's own ``trainer`` fields, but for those that say where it computes, go with what a run must share to go on.
    """
    trainer = {key: value for key, value in settings.trainer.items() if key not in WHERE}
    told = {name: client.disclosed for name, client in host.clients.items()}
    if trainer:
        told = {name: {**about, "data": {**about["data"], "trainer": trainer}} for name, about in told.items()}
    return json.dumps(told)


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
        content = yaml.safe_load(self._parser(self.subcommand).dump(self.config, "yaml", False))
        trainer = {key: value for key, value in content["trainer"].items() if key not in self._settings.trainer}
        refuse_foreign_names({"model": content["model"], "trainer": trainer}, self._settings.allow)
        super().before_instantiate_classes()


def _configured(content: Mapping[str, Any], settings: SiteSettings) -> FederatedCLI:
    """Model, data and trainer of a configuration.

    Args:
        content: of the job, with what the site or the server adds.
        settings: of the one that it is.

    Raises:
        InputError: it cannot be used; with the sentence that the command line would end with.
    """
    told = io.StringIO()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump(content, sort_keys=False))
        file.flush()
        try:
            with redirect_stderr(told):
                return _JobCLI(["--config", file.name], settings)
        except SystemExit as error:  # a job's process must live on to tell
            raise InputError(told.getvalue().strip().removeprefix("flgraph: error: ")) from error
