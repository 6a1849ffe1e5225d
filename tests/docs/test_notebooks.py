"""The tutorials run, with fewer rounds than they are committed with, and show what they are committed with."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import nbformat
import pytest

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", TUTORIALS, ids=lambda path: path.stem)
def test_it_runs(notebook: Path, tmp_path: Path) -> None:
    run = runpy.run_path(str(DOCS / "run_notebooks.py"))["executed"]
    short = tmp_path / notebook.name
    short.write_text(re.sub(r"(rounds(: |=))\d+", r"\g<1>2", notebook.read_text()))
    shown = [kinds(cell) for cell in run(short, tmp_path).cells]
    committed = [kinds(cell) for cell in nbformat.read(notebook, as_version=4).cells]
    assert committed == shown, "run docs/run_notebooks.py"


def kinds(cell: nbformat.NotebookNode) -> list[str]:
    """What a cell shows, but for its numbers."""
    outputs = cell.get("outputs", [])
    assert not any(output.get("name") == "stderr" for output in outputs), outputs
    return [kind for output in outputs for kind in sorted(output.get("data", {"text/plain": ""}))]


@pytest.mark.parametrize("notebook", TUTORIALS, ids=lambda path: path.stem)
def test_it_is_small(notebook: Path) -> None:
    assert notebook.stat().st_size < 200_000
