"""The site is built without a warning, which a dead link is one of; figures are those that the script draws."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import flgraph.callbacks
from flgraph.federation import Aggregator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("*.html")}
    assert {"index.html", "methods/fedstar.html", "reference/nn.html", "repository/CHANGELOG.html"} <= pages


def test_every_page_is_in_the_menu() -> None:
    class Loader(yaml.SafeLoader):
        """Ignores the names of Python functions."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)

    def leaves(menu: object) -> set[str]:
        if isinstance(menu, str):
            return {menu}
        entries = menu.values() if isinstance(menu, dict) else menu
        assert not isinstance(entries, str)
        return set().union(*(leaves(entry) for entry in entries))  # type: ignore[attr-defined]

    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.suffix in (".md", ".ipynb")}
    assert leaves(nav) == pages


@pytest.mark.parametrize("name", flgraph.callbacks.__all__)
def test_every_method_has_a_page(name: str) -> None:
    if not issubclass(getattr(flgraph.callbacks, name), Aggregator):
        pytest.skip("listens to rounds")
    pages = [path.name for path in (DOCS / "methods").glob("*.md") if f"#flgraph.callbacks.{name})" in path.read_text()]
    index = (DOCS / "algorithms.md").read_text()
    assert any(f"(methods/{page})" in index for page in pages)


def test_figures_are_up_to_date() -> None:
    drawn = runpy.run_path(str(DOCS / "draw_figures.py"))["figures"]()
    assert {path.name: path.read_text() for path in (DOCS / "figures").glob("*.svg")} == drawn
