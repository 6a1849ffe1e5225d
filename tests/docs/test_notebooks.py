"""The tutorials run as they are, and are committed with what they show."""

from __future__ import annotations

import runpy
from pathlib import Path

import nbformat
import pytest

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", TUTORIALS, ids=lambda path: path.stem)
def test_it_runs(notebook: Path, tmp_path: Path) -> None:
    run = runpy.run_path(str(DOCS / "run_notebooks.py"))["executed"]
    shown = [kinds(cell) for cell in run(notebook, tmp_path).cells]
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
