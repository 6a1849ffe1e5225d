"""Start-up kits: what each organisation needs to take part."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from flgraph.errors import InputError, expect
from flgraph.flare.settings import FILE, parse_settings
from flgraph.runs.files import private_folder, write_bytes, writing

ADMIN = "admin@flgraph.org"
PASSPHRASE = "FLGRAPH_AUTHORITY_PASSPHRASE"
_ROOT_KEY = "root_pri_key"
_NO_MODULES = "/local/custom"
"""Where FLARE's script lets Python look in any case."""
LOG = "flgraph.log"
"""What server or site say, in the kit."""
_NUMBERS = ("daemon_pid.fl", "pid.fl")
"""Files in which FLARE's script notes the numbers of processes, which others may have by now."""
CLASSES = ["flgraph.flare.controller.FederationController", "flgraph.flare.executor.SiteExecutor"]

_SITE = """\
# The data of this organisation, as in any configuration of `flgraph fit`: its own files, a folder of tables or a file
# (docs/data.md). Classes and columns are those that all partners have agreed on.
data:
  class_path: flgraph.data.NodeClients
  init_args:
    graphs: {SITE: /path/to/folder}
    classes: [one, other]
    columns: {age: number}
# Which of its clients are here; all of them if empty.
clients: []
# What may leave, whatever a server or a job asks. These are the defaults; docs/security.md explains all fields, and
# `flgraph flare explain KIT -c federation.yaml` says what a job would get.
policy:
  algorithms: []    # those of flgraph that reveal nothing of single records; or names, such as [FedAvg, FedStar]
  metrics: {train/*: 4, val/*: 4, test/*: 4, global_test/*: 4}    # and to how many decimals
  num_samples: 1    # numbers of samples are rounded to multiples of it; null: never told
  min_samples: 1    # nothing is measured on fewer
  rounds: 1000      # of a run, at most
"""


def provision(sites: Sequence[str], server: str, port: int, out: Path, data: Path | None = None) -> list[Path]:
    """Makes the kits of a server, its sites and an administrator, with certificates of a new authority.

    Kits refuse jobs that bring code, and load no class for a job but the two halves of flgraph's own.

    Args:
        sites: their names.
        server: host name under which sites and administrator reach the server.
        port: of the server, for all of them.
        out: folder for the kits; must not exist or be empty.
        data: folder with ``SITE.yaml`` for some sites, which become their ``local/flgraph.yaml``.

    Returns:
        The kits: ``out/server``, ``out/SITE`` for each site, ``out/admin``; and ``out/authority``, which stays where it
        is, with the certificates; with the root key, encrypted, only where the environment variable
        ``FLGRAPH_AUTHORITY_PASSPHRASE`` is set.

    Raises:
        InputError: a name, the folder or a ``SITE.yaml`` cannot be used.
    """
    expect(len(sites) > 0 and len(set(sites)) == len(sites), "--sites", "one name or more, all different", list(sites))
    plain = all(re.fullmatch(r"[A-Za-z0-9_-]+", site) for site in sites)
    expect(plain, "--sites", "names of letters, digits, - and _", list(sites))
    taken = {"server", "admin", "authority"} & set(sites)
    expect(not taken, "--sites", "names other than server, admin and authority", list(sites))
    expect(server not in sites, "--sites", f"names other than the server's, {server},", list(sites))
    host = all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?", part) for part in server.split("."))
    expect(host, "--server", "the name of a host", server)
    expect(not out.exists() or out.is_dir(), "--out", "a folder", out)
    given = {} if data is None else {site: data / f"{site}.yaml" for site in sites}
    given = {site: file for site, file in given.items() if file.is_file()}
    expect(data is None or bool(given), "--data", "a folder with a SITE.yaml for one of the sites or more", data)
    for file in given.values():
        parse_settings(file)
    there = out.exists()
    expect(not there or not any(out.iterdir()), "--out", "a folder that does not exist yet, or is empty", out)
    try:
        with writing(out):
            made = _provision(sites, server, port, out / "authority")
            for source, name in [(server, "server"), *((site, site) for site in sites), (ADMIN, "admin")]:
                shutil.move(made / source, out / name)
                for key in (out / name).rglob("*.key"):
                    key.chmod(0o600)
                if name != "admin":
                    _restrict(out / name)
            for site in sites:
                content = given[site].read_bytes() if site in given else _SITE.replace("SITE", site).encode()
                (out / site / "local" / FILE).write_bytes(content)
            _put_away_keys(out / "authority" / "flgraph" / "state" / "cert.json")
    except BaseException:  # a part of it would be in the way of the next attempt
        shutil.rmtree(out, ignore_errors=True)
        if there:
            out.mkdir(exist_ok=True)
        raise
    return [out / name for name in ("server", *sites, "admin", "authority")]


def is_site(kit: Path) -> bool:
    """Whether a kit is a site's and not the server's.

    Raises:
        InputError: it is neither.
    """
    script = kit / "startup" / "sub_start.sh"
    expect(script.is_file(), "kit", "the folder of a server's or a site's start-up kit", kit)
    return (kit / "startup" / "fed_client.json").is_file()


def start(kit: Path) -> int:
    """Runs a kit's server or site until it ends or is told to stop; returns the exit code.

    FLARE's own script watches over the process and starts it again when it dies.

    Raises:
        InputError: it runs already.
    """
    script = kit.resolve() / "startup" / "sub_start.sh"
    if running := _running(kit.resolve()):
        raise InputError("kit", "one that is not running", f"{kit}, which `kill -9 {' '.join(map(str, running))}` ends")
    print(f"starting {kit}, which logs to {kit / LOG}", flush=True)
    for left in (*_NUMBERS, "shutdown.fl", "restart.fl"):
        (kit / left).unlink(missing_ok=True)
    _keep_jobs_in(kit)
    # Modules of the folder that this was called in are nobody's part in a job. FLARE's script adds to PYTHONPATH, of
    # which an empty part would be that folder.
    modules = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "").strip(os.pathsep) or _NO_MODULES}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with open(kit / LOG, "a") as log:
        process = subprocess.Popen(
            ["bash", str(script)],
            env={**os.environ, **modules, "PATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

        def stop(signum: int, frame: Any) -> None:
            os.killpg(process.pid, signal.SIGKILL)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        return process.wait()


def _running(kit: Path) -> list[int]:
    """Processes of a kit, also of a start that was killed: FLARE's script, and what it watches over."""
    found = []
    for file in _NUMBERS:
        with suppress(OSError, ValueError, psutil.Error):  # no file, or nobody of this number
            number = int((kit / file).read_text())
            if any(kit in (Path(word), *Path(word).parents) for word in psutil.Process(number).cmdline()):
                found.append(number)
    return found


def _provision(sites: Sequence[str], server: str, port: int, workspace: Path) -> Path:
    from nvflare.lighter.prov_utils import prepare_builders, prepare_packager
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    people = [
        {"name": server, "type": "server", "org": "flgraph", "fed_learn_port": port},
        *({"name": site, "type": "client", "org": "flgraph"} for site in sites),
        {"name": ADMIN, "type": "admin", "org": "flgraph", "role": "project_admin"},
    ]
    builders: dict[str, dict[str, Any]] = {
        "workspace.WorkspaceBuilder": {},
        "static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "grpc"},
        "cert.CertBuilder": {},
        "signature.SignatureBuilder": {},
    }
    project = {
        "api_version": 3,
        "name": "flgraph",
        "description": "made by flgraph flare provision",
        "participants": people,
        "builders": [{"path": f"nvflare.lighter.impl.{name}", "args": args} for name, args in builders.items()],
    }
    private_folder(workspace)  # before any key is written
    whole = prepare_project(project)
    Provisioner(str(workspace), prepare_builders(project), prepare_packager(project)).provision(whole)
    made: Path = workspace / "flgraph" / "prod_00"
    return made


def _put_away_keys(file: Path) -> None:
    """Removes the private keys that FLARE notes beside certificates; the root key stays if it can be encrypted."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    noted = json.loads(file.read_text())
    root, passphrase = noted.pop(_ROOT_KEY), os.environ.get(PASSPHRASE, "").encode()
    kept = {name: {"cert": own["cert"]} if isinstance(own, dict) else own for name, own in noted.items()}
    if passphrase:
        key = load_pem_private_key(root.encode(), None)
        wrapped = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase))
        kept[_ROOT_KEY] = wrapped.decode()
    write_bytes(json.dumps(kept).encode(), file, private=True)


def _keep_jobs_in(kit: Path) -> None:
    """A server keeps its jobs in its kit, wherever that lies now; FLARE's default is the temporary folder."""
    file = kit / "local" / "resources.json"
    resources = json.loads(file.read_text())
    if "snapshot_persistor" not in resources:
        return
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit.resolve() / "snapshots")
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(kit.resolve() / "jobs")
    file.write_text(json.dumps(resources, indent=2))


def _restrict(kit: Path) -> None:
    """Of jobs our two classes and no code; no logs to the server; no shell for the administrator."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    logging = [name for name in resources["class_allow_list"] if name.startswith("nvflare.app_common.logging.")]
    resources["class_allow_list"] = [*CLASSES, *logging]
    if "allow_log_streaming" in resources:
        resources["allow_log_streaming"] = False
        resources["components"] = [part for part in resources["components"] if part["id"] != "site_log_streamer"]
    (local / "resources.json").write_text(json.dumps(resources, indent=2))
    policy = json.loads((local / "authorization.json.default").read_text())
    for role, rights in policy["permissions"].items():
        if rights == "any":
            rights = dict.fromkeys(("submit_job", "clone_job", "manage_job", "download_job", "view", "operate"), "any")
        policy["permissions"][role] = {**rights, "byoc": "none"}
    (local / "authorization.json").write_text(json.dumps(policy, indent=2))
