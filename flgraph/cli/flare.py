"""``flgraph flare``: a federation between organisations on NVIDIA FLARE."""

from __future__ import annotations

import json
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import yaml
from jsonargparse.typing import PositiveFloat, PositiveInt

from flgraph.errors import InputError, expect
from flgraph.flare.settings import read_yaml

_FEDERATION = "arguments of `flgraph fit`, without data, that say what to run: -c FILE, --trainer.rounds 10, ..."


_ELSEWHERE = {
    "data": "which sites have",
    "trainer.engine": "which is FLARE",
    "ckpt_path": "for which --name of an earlier run stands",
}
"""What is no matter of a federation's configuration."""


class _Parser(ArgumentParser):  # jsonargparse's has no parse_known_args, by intention
    def error(self, message: str) -> NoReturn:
        raise InputError(" ".join(message.split()))


def main(args: Sequence[str]) -> None:
    """Runs a subcommand.

    Raises:
        InputError: an argument cannot be used, FLARE is not installed, or the run failed.
        EngineError: the server or its jobs are gone.
    """
    commands: dict[str, tuple[Callable[[], ArgumentParser], Callable[[Namespace, Sequence[str]], None]]] = {
        "provision": (_provision_parser, _provision),
        "start": (_start_parser, _start),
        "submit": (_submit_parser, _submit),
        "status": (_status_parser, _status),
        "gather": (_gather_parser, _gather),
    }
    if not args or args[0] in ("-h", "--help"):
        print(f"usage: flgraph flare {{{','.join(commands)}}} ...")
        print("\nA federation between organisations; see docs/deployment.md.")
        return
    expect(args[0] in commands, "flare", f"followed by one of {', '.join(commands)}", args[0])
    if find_spec("nvflare") is None:
        raise InputError("flare", "used where NVIDIA FLARE is installed (`pip install 'flgraph[flare]'`)", "no nvflare")
    make, run = commands[args[0]]
    parser = make()
    if args[0] == "submit":  # what is not its own is of the run
        run(*parser.parse_known_args(list(args[1:])))
    else:
        run(parser.parse_args(list(args[1:])), ())


def _parser(name: str, description: str) -> ArgumentParser:
    return _Parser(prog=f"flgraph flare {name}", description=description, allow_abbrev=False)


# ----------------------------------------------------------------------------------------------------------- provision
def _provision_parser() -> ArgumentParser:
    parser = _parser("provision", "Makes start-up kits for a server, its sites and an administrator.")
    parser.add_argument("--sites", type=str, required=True, help="comma-separated names of the organisations")
    parser.add_argument("--server", type=str, default="localhost", help="host name of the server, as sites see it")
    parser.add_argument("--port", type=PositiveInt, default=8002, help="of the server")
    parser.add_argument("--out", type=Path, default=Path("kits"), help="where kits go")
    parser.add_argument("--data", type=Path, help="folder with a SITE.yaml for some sites, to become their settings")
    return parser


def _provision(given: Namespace, _: Sequence[str]) -> None:
    from flgraph.flare.kits import provision

    sites = [part.strip() for part in given.sites.split(",") if part.strip()]
    *kits, authority = provision(sites, given.server, given.port, given.out, given.data)
    print(f"kits to hand out: {', '.join(map(str, kits))}\nkeep to yourself: {authority}, which holds the root key")


# --------------------------------------------------------------------------------------------------------------- start
def _start_parser() -> ArgumentParser:
    parser = _parser("start", "Runs the server or the site of a kit until it is stopped.")
    parser.add_argument("kit", type=Path, help="its folder")
    return parser


def _start(given: Namespace, _: Sequence[str]) -> None:
    from flgraph.flare.kits import start

    raise SystemExit(start(given.kit))


# -------------------------------------------------------------------------------------------------------------- submit
def _submit_parser() -> ArgumentParser:
    parser = _parser("submit", f"Runs a federation and waits for its results. Takes {_FEDERATION}")
    parser.add_argument("--admin", type=Path, default=Path("kits/admin"), help="the administrator's kit")
    parser.add_argument("--sites", type=str, help="comma-separated; all that are connected if not given")
    parser.add_argument("--name", type=str, help="of the run; the same name goes on where an earlier run was stopped")
    parser.add_argument("--out", type=Path, default=Path("runs/flare"), help="where results go, OUT/NAME")
    parser.add_argument("--deadline", type=PositiveFloat, default=600.0, help="seconds a site has for an exchange")
    parser.add_argument("--min_clients", type=PositiveInt, default=1, help="clients that must answer in time")
    parser.add_argument("--wait", type=PositiveFloat, default=120.0, help="seconds in which all sites must be there")
    parser.add_argument(
        "--ask_every", type=PositiveFloat, default=10.0, help="seconds between questions to a late site"
    )
    parser.add_argument("--attempts", type=PositiveInt, default=20, help="jobs at most, where jobs are lost")
    return parser


def _submit(given: Namespace, rest: Sequence[str]) -> None:
    from flgraph.flare.jobs import Supervisor

    name = given.name or time.strftime("run-%Y%m%d-%H%M%S")
    plain = all(letter.isalnum() or letter in "-_" for letter in name)
    expect(plain, "--name", "letters, digits, - and _", name)
    sites = [part.strip() for part in (given.sites or "").split(",") if part.strip()]
    options = {name: getattr(given, name) for name in ("deadline", "min_clients", "wait", "ask_every")}
    supervisor = Supervisor(given.admin, sites, given.attempts, report=lambda line: print(line, flush=True))
    try:
        folder = supervisor.run(name, configuration(rest), given.out, options)
    finally:
        supervisor.close()
    final = json.loads((folder / "results.json").read_text())["final"]["mean"]
    accuracies = [f"{key} {value:.4f}" for key, value in final.items() if "accuracy" in key]
    print(f"results in {folder}: {', '.join(accuracies)}", flush=True)
    os._exit(0)  # FLARE's session leaves threads that never end


def configuration(args: Sequence[str], report: Callable[[str], None] = print) -> str:
    """What ``flgraph fit`` would run with these arguments, as YAML without what is a matter of sites and server.

    Args:
        args: arguments of ``flgraph fit``.
        report: is told which files have a data section, which is left out.

    Raises:
        InputError: an argument cannot be used, or names data or an engine.
    """
    from flgraph.cli.fit import FederatedCLI, with_packaged_configs

    for field, instead in _ELSEWHERE.items():
        named = [arg for arg in args if arg.partition("=")[0] == f"--{field}" or arg.startswith(f"--{field}.")]
        expect(not named, "arguments", f"those of `flgraph fit` without {field}, {instead},", named)
    whole = with_packaged_configs(args)
    for place, (flag, given) in enumerate(pairwise(whole), start=1):
        if flag in ("-c", "--config") and Path(given).is_file():
            whole[place] = _without_places(Path(given), report)
    cli = FederatedCLI([*whole, "--data=flgraph.flare.run.SitesData"], run=False)
    content = yaml.safe_load(cli.trainer.config_text)
    return yaml.safe_dump({key: content[key] for key in ("seed_everything", "model", "trainer")}, sort_keys=False)


def _without_places(file: Path, report: Callable[[str], None]) -> str:
    """A configuration file without data, engine and checkpoint, which a run's own ``config.yaml`` has."""
    content = read_yaml(file)
    if not isinstance(content, dict):
        return str(file)  # the parser will say what is wrong with it
    if "data" in content:
        report(f"{file}: its data section is left out; see that those of the sites are in accordance with it")
    kept = {key: value for key, value in content.items() if key not in ("data", "ckpt_path")}
    if isinstance(kept.get("trainer"), dict):
        kept["trainer"] = {key: value for key, value in kept["trainer"].items() if key != "engine"}
    return str(yaml.safe_dump(kept, sort_keys=False))


# -------------------------------------------------------------------------------------------------------------- status
def _status_parser() -> ArgumentParser:
    parser = _parser("status", "Tells which sites are connected and what jobs there are.")
    parser.add_argument("--admin", type=Path, default=Path("kits/admin"), help="the administrator's kit")
    return parser


def _status(given: Namespace, _: Sequence[str]) -> None:
    from flgraph.flare.jobs import Supervisor

    supervisor = Supervisor(given.admin, timeout=60.0)
    try:
        told = supervisor.status()
    finally:
        supervisor.close()
    print("server: up, a job is running" if told["server"] == "started" else "server: up, no job is running")
    for site, when in told["sites"].items():
        print(f"site {site}: last heard {time.time() - when:.0f} s ago")
    for job in told["jobs"]:
        print(f"job {job['id']} {job['name']}: {job['status']}", flush=True)
    os._exit(0)  # as above


# -------------------------------------------------------------------------------------------------------------- gather
def _gather_parser() -> ArgumentParser:
    parser = _parser("gather", "Copies a run with the states of its clients, where the kits of all sites are here.")
    parser.add_argument("name", type=str, help="of the run")
    parser.add_argument("--kits", type=Path, default=Path("kits"), help="folder with the kits of server and sites")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where the run goes, OUT/NAME")
    return parser


def _gather(given: Namespace, _: Sequence[str]) -> None:
    from flgraph.flare.gather import gather

    folder = gather(given.name, given.kits, given.out)
    print(f"continue it with: flgraph fit -c {folder / 'config.yaml'} -c DATA.yaml --ckpt_path last")
