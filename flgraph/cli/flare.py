"""``flgraph flare``: a federation between organisations on NVIDIA FLARE."""

from __future__ import annotations

import json
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import yaml
from jsonargparse.typing import PositiveInt, restricted_number_type

from flgraph.cli.parser import Refusing
from flgraph.configs import read_config
from flgraph.errors import expect

_Seconds = restricted_number_type("Seconds", float, [(">", 0), ("<=", 1e7)])  # FLARE cannot count to infinity

_ELSEWHERE = {
    "data": "which sites have",
    "trainer.engine": "which is FLARE",
    "ckpt_path": "for which --name of an earlier run stands",
}
"""What is no matter of a federation's configuration."""


class _Parser(Refusing, ArgumentParser):  # jsonargparse's has no parse_known_args, by intention
    """For the commands of a federation."""


def main(args: Sequence[str]) -> None:
    """Runs a subcommand.

    Raises:
        InputError: an argument cannot be used, FLARE is not installed, or the run failed.
        EngineError: the server or its jobs are gone, or a client failed.
    """
    parser, commands = _parser()
    if not args or args[0] in ("-h", "--help"):
        parser.print_help()
        return
    expect(args[0] in commands, "flare", f"followed by one of {', '.join(commands)}", args[0])
    expect(
        find_spec("nvflare") is not None, "flare", "installed (`pip install 'flgraph[flare]'`)", "no package nvflare"
    )
    given, rest = parser.parse_known_args(list(args))
    if rest and args[0] not in ("submit", "explain"):  # where what is not its own is of the run
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    commands[args[0]](given, rest)


def _parser() -> tuple[ArgumentParser, dict[str, Callable[[Namespace, Sequence[str]], None]]]:
    """The parser, and what the subcommands run."""
    description = "A federation between organisations; see docs/deployment.md."
    parser = _Parser(prog="flgraph flare", description=description, allow_abbrev=False)
    parsers = parser.add_subparsers(metavar="COMMAND")
    commands: dict[str, Callable[[Namespace, Sequence[str]], None]] = {}

    def command(run: Callable[[Namespace, Sequence[str]], None], what: str) -> Callable[..., object]:
        name = run.__name__.strip("_")
        commands[name] = run
        return parsers.add_parser(name, help=what, description=what, allow_abbrev=False).add_argument

    add = command(_provision, "Makes start-up kits for a server, its sites and an administrator.")
    add("--sites", required=True, help="comma-separated names of the organisations")
    add("--server", default="localhost", help="host name of the server, as sites see it (%(default)s)")
    add("--port", type=PositiveInt, default=8002, help="of the server (%(default)s)")
    add("--out", type=Path, default=Path("kits"), help="where kits go (%(default)s)")
    add("--data", type=Path, help="folder with a SITE.yaml for some sites, to become their settings")

    add = command(_start, "Runs the server or the site of a kit until it is stopped.")
    add("kit", type=Path, help="its folder")

    run = "arguments of `flgraph fit`, without data, that say what to run: -c FILE, --trainer.rounds 10, ..."
    add = command(_submit, f"Runs a federation and waits for its results. Takes {run}")
    add("--admin", type=Path, default=Path("kits/admin"), help="the administrator's kit (%(default)s)")
    add("--sites", help="comma-separated; all that are connected if not given")
    add("--name", help="of the run; the same name goes on where an earlier run was stopped")
    add("--out", type=Path, default=Path("runs/flare"), help="where results go, OUT/NAME (%(default)s)")
    add("--deadline", type=_Seconds, default=600.0, help="seconds a site has for an exchange (%(default)s)")
    add(
        "--wait",
        type=_Seconds,
        default=120.0,
        help="seconds in which the server and all sites must be there (%(default)s)",
    )
    add("--ask_every", type=_Seconds, default=10.0, help="seconds between questions to a late site (%(default)s)")
    add("--attempts", type=PositiveInt, default=20, help="jobs at most, where jobs are lost (%(default)s)")

    add = command(_explain, f"Says what a federation would take from a site, before anything runs. Takes {run}")
    add("kit", type=Path, help="the site's folder")

    add = command(_status, "Says which sites are connected and what jobs there are.")
    add("--admin", type=Path, default=Path("kits/admin"), help="the administrator's kit (%(default)s)")

    add = command(_gather, "Copies a run with the states of its clients, where the kits of all sites are here.")
    add("name", help="of the run")
    add("--kits", type=Path, default=Path("kits"), help="folder with the kits of server and sites (%(default)s)")
    add("--out", type=Path, default=Path("runs"), help="where the run goes, OUT/NAME (%(default)s)")

    add = command(_adopt, "Copies a run of `flgraph fit` to the server, to go on at sites.")
    add("run", type=Path, help="its folder, runs/NAME or runs/NAME/version_N")
    add("--kit", type=Path, default=Path("kits/server"), help="the server's kit (%(default)s)")
    return parser, commands


def _provision(given: Namespace, _: Sequence[str]) -> None:
    from flgraph.flare.kits import PASSPHRASE, provision

    *kits, authority = provision(_names(given.sites), given.server, given.port, given.out, given.data)
    without = f"without the root key, which was removed ({PASSPHRASE} would keep it, encrypted)"
    root = "with the root key, encrypted" if os.environ.get(PASSPHRASE) else without
    print(f"kits to hand out: {', '.join(map(str, kits))}\nkeep to yourself: {authority}, {root}")


def _start(given: Namespace, _: Sequence[str]) -> None:
    from flgraph.flare.kits import is_site, start

    check_settings(given.kit, is_site(given.kit))
    raise SystemExit(start(given.kit))


def check_settings(kit: Path, site: bool) -> None:
    """Looks at ``local/flgraph.yaml`` of a kit, and at the files that it names, before any job does.

    Raises:
        InputError: a field or a file cannot be used.
    """
    from flgraph.flare.settings import FILE, SITE_KEY, clients_folder, encryption_secret, read_settings

    settings, file = read_settings(kit), str(kit / "local" / FILE)
    if not site:
        return
    from flgraph.cli.data import own_clients  # with torch, for which a server need not wait
    from flgraph.data.check import check_config
    from flgraph.federation.policy import Policy
    from flgraph.runs.site_states import can_read

    Policy.of(settings.policy)
    if (secret := encryption_secret(settings)) is not None:
        states = clients_folder(settings)
        wanted = f"what the states in {states} are encrypted with"
        expect(can_read(states, secret), SITE_KEY, wanted, "another key, or none")
    given = isinstance(settings.data, dict) and bool(settings.data)
    expect(given, f"data in {file}", "a section as in any configuration", settings.data)
    if (own := own_clients(settings.data)) is not None:
        known = set(settings.clients) <= set(own[1]["graphs"])
        expect(known, f"clients in {file}", "some of those of its data", settings.clients)
        for line in check_config(*own, file, apart=True):
            if "PROBLEM" in line:
                print(line, flush=True)


def _submit(given: Namespace, rest: Sequence[str]) -> None:
    from flgraph.flare.jobs import Supervisor
    from flgraph.runs.site_states import check_run_name

    name = given.name or time.strftime("run-%Y%m%d-%H%M%S")
    check_run_name(name, "--name")
    options = {name: getattr(given, name) for name in ("deadline", "wait", "ask_every")}
    supervisor = Supervisor(given.admin, _names(given.sites or ""), given.attempts, report=partial(print, flush=True))
    try:
        folder = supervisor.run(name, configuration(rest), given.out, options)
    finally:
        supervisor.close()
    final = json.loads((folder / "results.json").read_text())["final"]["mean"]
    measured = [f"{key} {value:.4f}" for key, value in final.items() if "test/" in key and value is not None]
    print(f"results in {folder}: {', '.join(measured)}", flush=True)
    os._exit(0)  # FLARE's session leaves threads that never end


def _explain(given: Namespace, rest: Sequence[str]) -> None:
    from flgraph.flare.explain import explain

    expect((given.kit / "local").is_dir(), "kit", "a site's start-up kit", given.kit)
    for line in explain(given.kit, configuration(rest)):
        print(line)


def _status(given: Namespace, _: Sequence[str]) -> None:
    from flgraph.flare.jobs import Supervisor

    supervisor = Supervisor(given.admin, timeout=15.0)
    try:
        print("\n".join(supervisor.status()), flush=True)
    finally:
        supervisor.close()
    os._exit(0)  # as above


def _gather(given: Namespace, _: Sequence[str]) -> None:
    from flgraph.flare.gather import gather

    folder = gather(given.name, given.kits, given.out)
    print(f"continue it with: flgraph fit -c {folder / 'config.yaml'} -c DATA.yaml --ckpt_path last")


def _adopt(given: Namespace, _: Sequence[str]) -> None:
    from flgraph.flare.gather import adopt

    folder = adopt(given.run, given.kit)
    print(f"continue it with: flgraph flare submit --name {folder.parent.name} ...")


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def configuration(args: Sequence[str], report: Callable[[str], None] = print) -> str:
    """What ``flgraph fit`` would run with these arguments, as YAML without what is a matter of sites and server.

    Args:
        args: arguments of ``flgraph fit``.
        report: called with a line for each file with a data section, which is left out.

    Raises:
        InputError: an argument cannot be used, or names data or an engine.
    """
    from flgraph.cli.arguments import with_packaged_configs
    from flgraph.cli.fit import FederatedCLI

    for field, instead in _ELSEWHERE.items():
        named = [arg for arg in args if arg.partition("=")[0] == f"--{field}" or arg.startswith(f"--{field}.")]
        expect(not named, "arguments", f"those of `flgraph fit` without {field}, {instead},", named)
    words = with_packaged_configs(args)
    for position, (flag, given) in enumerate(pairwise(words), start=1):
        if flag in ("-c", "--config") and Path(given).is_file():
            words[position] = _without_data(Path(given), report)
    cli = FederatedCLI([*words, "--data=flgraph.flare.run.SitesData"], run=False)
    content = yaml.safe_load(cli.trainer.config_text)
    return yaml.safe_dump({key: content[key] for key in ("seed_everything", "model", "trainer")}, sort_keys=False)


def _without_data(file: Path, report: Callable[[str], None]) -> str:
    """A configuration file without data, engine and checkpoint, which a run's own ``config.yaml`` has."""
    content = read_config(file)
    if "data" in content:
        report(f"{file}: its data section is left out; see that those of the sites are in accordance with it")
    kept = {key: value for key, value in content.items() if key not in ("data", "ckpt_path")}
    if isinstance(kept.get("trainer"), dict):
        kept["trainer"] = {key: value for key, value in kept["trainer"].items() if key != "engine"}
    return str(yaml.safe_dump(kept, sort_keys=False))
