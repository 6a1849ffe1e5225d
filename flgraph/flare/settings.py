"""What an organisation says of itself, in ``local/flgraph.yaml`` of its start-up kit."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from flgraph.configs import read_yaml
from flgraph.errors import expect

FILE, SECRET, SITE_KEY = "flgraph.yaml", "secret", "FLGRAPH_SITE_KEY"
ALLOWED = ("flgraph.*", "pytorch_lightning.callbacks.GradientAccumulationScheduler")
"""Classes that the configuration of a job may name, unless the site says otherwise."""


@dataclass(frozen=True)
class SiteSettings:
    """Of a site or of the server.

    Args:
        data: the site's data section, as in any configuration of ``flgraph fit``; the server has none.
        clients: which of the clients of the data are at this site; all of them when empty.
        folder: where runs, or states of clients, are kept, seen from the kit; ``flgraph`` when empty.
        allow: patterns of classes that the configuration of a job may name.
        policy: what may leave the site, see :class:`~flgraph.federation.policy.Policy`.
        trainer: arguments of the site's Trainers that are its own choice, for example ``accelerator``.
        seed: of all that its clients draw: first weights, batches, noise on uploads. When ``None``, it derives from a
            secret that the site draws once and keeps in ``folder``. The run's own, which everybody knows, gives the
            same bits as a run in one process.
        encrypt: whether states of clients are encrypted on disk, with a key that derives from the environment variable
            ``FLGRAPH_SITE_KEY`` (64 hexadecimal digits), or from the site's secret where that is not set.
    """

    data: Mapping[str, Any] = field(default_factory=dict)
    clients: tuple[str, ...] = ()
    folder: str = ""
    allow: tuple[str, ...] = ALLOWED
    policy: Mapping[str, Any] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    encrypt: bool = False


def read_settings(kit: Path) -> SiteSettings:
    """Reads ``local/flgraph.yaml`` of a kit; defaults where there is none.

    Raises:
        InputError: it is no mapping, or has a field that is not known.
    """
    file = kit / "local" / FILE
    settings = parse_settings(file) if file.is_file() else SiteSettings()
    return replace(settings, folder=str(kit / (settings.folder or "flgraph")))


def parse_settings(file: Path) -> SiteSettings:
    """The settings in a file; ``folder`` as it stands there.

    Raises:
        InputError: it is no mapping, or has a field that is not known.
    """
    content = read_yaml(file)
    content = {} if content is None else content
    expect(isinstance(content, dict), str(file), "a YAML mapping", type(content).__name__)
    known = [item.name for item in fields(SiteSettings)]
    for key in content:
        expect(key in known, str(file), f"a mapping with fields among {', '.join(known)}", key)
    for key in ("clients", "allow"):
        if key in content:
            expect(isinstance(content[key], list), f"{key} in {file}", "a list of strings", content[key])
            content[key] = tuple(map(str, content[key]))
    settings = SiteSettings(**content)
    whole = settings.seed is None or (isinstance(settings.seed, int) and not isinstance(settings.seed, bool))
    expect(whole, f"seed in {file}", "a whole number", settings.seed)
    expect(isinstance(settings.encrypt, bool), f"encrypt in {file}", "true or false", settings.encrypt)
    return settings


def clients_folder(settings: SiteSettings) -> Path:
    """Where a site keeps the states of its clients."""
    return Path(settings.folder) / "clients"


def site_seed(settings: SiteSettings, seed: int, run: str = "") -> int:
    """What the draws of a site's clients derive from.

    Args:
        settings: of the site.
        seed: the run's.
        run: its name: what clients draw in one run is not drawn again in another, where it is another sum's upload.

    Raises:
        InputError: what lies in place of the secret is none.
    """
    from flgraph.federation.seeding import derive_seed  # with torch, for which `flgraph flare start` need not wait

    if settings.seed is not None:
        return settings.seed
    return derive_seed(int.from_bytes(site_secret(settings), "big"), seed, run)


def site_secret(settings: SiteSettings) -> bytes:
    """32 bytes that a site or the server draws once, and from which its seed and its keys derive.

    Raises:
        InputError: what lies in place of the secret is none.
    """
    file = Path(settings.folder) / SECRET
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Only the owner may read it; who finds it there has drawn it before.
    with suppress(FileExistsError), open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as stream:
        stream.write(secrets.token_hex(32))
    return _secret(file.read_text(), str(file), "or not there, to be drawn anew,")


def encryption_secret(settings: SiteSettings) -> bytes | None:
    """From which the key of a site's states derives; ``None`` where they are not encrypted.

    Raises:
        InputError: there is something else in its place.
    """
    if not settings.encrypt:
        return None
    given = os.environ.get(SITE_KEY)
    return site_secret(settings) if given is None else _secret(given, SITE_KEY, "or not set,")


def _secret(text: str, field: str, else_: str) -> bytes:
    sound = re.fullmatch(r"[0-9A-Fa-f]{64}", text.strip()) is not None
    expect(sound, field, f"a secret of 64 hexadecimal digits, {else_}", "something else")
    return bytes.fromhex(text.strip())
