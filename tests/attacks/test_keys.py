"""Keys: who can read them, and what can be found without them."""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from flgraph.cli.flare import check_settings
from flgraph.cli.main import main
from flgraph.errors import InputError
from flgraph.flare.settings import SITE_KEY, SiteSettings, clients_folder, encryption_secret, read_settings, site_secret
from flgraph.projects import create
from flgraph.runs.compatibility import sealed
from flgraph.runs.keys import canonical, derive_key, is_signed, signature
from flgraph.runs.site_states import SiteStates

PASSPHRASE = "FLGRAPH_AUTHORITY_PASSPHRASE"


@pytest.mark.parametrize("passphrase", ["", "correct horse"])
def test_the_root_key_is_encrypted_or_gone(
    passphrase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It lay there for all to read, beside the private keys of all kits."""
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'flgraph[flare]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PASSPHRASE, passphrase)
    main(["flare", "provision", "--sites", "north,east"])
    told = capsys.readouterr().out
    authority = tmp_path / "kits" / "authority"
    holding = {
        file for file in (tmp_path / "kits").rglob("*") if file.is_file() and b"PRIVATE KEY" in file.read_bytes()
    }
    kits = {file for file in holding if authority not in file.parents}
    assert {file.relative_to(tmp_path / "kits").parts[0] for file in kits} == {"server", "north", "east", "admin"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in kits} == {0o600}
    assert stat.S_IMODE(authority.stat().st_mode) == 0o700
    state = authority / "flgraph" / "state" / "cert.json"
    content = json.loads(state.read_text())
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert "BEGIN CERTIFICATE" in content["root_cert"]
    if not passphrase:
        assert holding == kits
        assert f"without the root key, which was removed ({PASSPHRASE} would keep it, encrypted)" in told
        return
    assert holding == {*kits, state}
    assert state.read_text().count("PRIVATE KEY") == 2  # its begin and its end
    assert "with the root key, encrypted" in told
    with pytest.raises(TypeError, match="encrypted"):
        load_pem_private_key(content["root_pri_key"].encode(), None)
    load_pem_private_key(content["root_pri_key"].encode(), passphrase.encode())


def test_settings_are_not_found_from_a_dictionary() -> None:
    """The digest of a guess was the digest that a site had sent."""
    settings = {"num_train_samples": 120, "datasets": ["MUTAG"], "batch_size": 32}
    told = sealed(settings, b"secret" * 6)["settings_sha256"]
    texts = [json.dumps(settings, sort_keys=True).encode(), canonical(settings), json.dumps(settings).encode()]
    guesses = {hashlib.sha256(text).hexdigest() for text in texts} | {signature(b"", text) for text in texts}
    assert not any(guess.startswith(told[:16]) for guess in guesses)
    assert told != sealed(settings, b"another secret")["settings_sha256"]


def test_keys_differ_by_purpose_and_parts_cannot_be_moved() -> None:
    secret = b"s" * 32
    keys = {derive_key(secret, purpose) for purpose in ("states", "settings", "checkpoints")}
    assert len(keys) == 3
    assert secret not in keys
    (key, *_) = keys
    assert signature(key, b"ab", b"c") != signature(key, b"a", b"bc")
    assert not any(is_signed(given, key, b"a") for given in (None, 3, "", "\u00e4", signature(key, b"b")))
    assert is_signed(signature(key, b"a"), key, b"a")


def test_where_the_key_of_states_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "flgraph.yaml").write_text(yaml.safe_dump({"encrypt": True}))
    settings = read_settings(tmp_path)
    monkeypatch.delenv(SITE_KEY, raising=False)
    assert encryption_secret(SiteSettings(folder=str(tmp_path))) is None
    assert encryption_secret(settings) == site_secret(settings)
    assert stat.S_IMODE(Path(settings.folder).stat().st_mode) == 0o700
    assert stat.S_IMODE((Path(settings.folder) / "secret").stat().st_mode) == 0o600
    other = replace(settings, folder=str(tmp_path / "other"))
    for given in ("ab" * 32, "AB" * 32):
        monkeypatch.setenv(SITE_KEY, given)
        assert encryption_secret(other) == b"\xab" * 32
    for weak in ("", "password", "ab" * 31):
        monkeypatch.setenv(SITE_KEY, weak)
        with pytest.raises(InputError, match=f"`{SITE_KEY}` to be a secret of 64 hexadecimal digits, or not set, but"):
            encryption_secret(settings)


def test_another_key_is_refused_before_a_state_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run would go on for good without clients whose states cannot be read. Any key is good while there are none."""
    create(tmp_path / "project", "nodes")
    own = yaml.safe_load((tmp_path / "project" / "sites" / "north.yaml").read_text())
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "flgraph.yaml").write_text(yaml.safe_dump({**own, "encrypt": True}))
    settings = read_settings(tmp_path)
    monkeypatch.setenv(SITE_KEY, "cd" * 32)
    check_settings(tmp_path, site=True)
    states = SiteStates(clients_folder(settings), "first", site_secret(settings), b"\xab" * 32)
    states.save("north", "first.x", "", b"state")
    (clients_folder(settings) / "north" / "first.y.ckpt").write_bytes(b"half")
    with pytest.raises(
        InputError, match=rf"`{SITE_KEY}` to be what the states in .* are encrypted with but got 'anothe"
    ):
        check_settings(tmp_path, site=True)
    monkeypatch.setenv(SITE_KEY, "ab" * 32)
    check_settings(tmp_path, site=True)
