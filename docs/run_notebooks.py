"""Runs the notebooks of the documentation and keeps what they show: ``python docs/run_notebooks.py [NAME ...]``."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

TUTORIALS = Path(__file__).parent / "tutorials"


def executed(notebook: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with its outputs, without what differs from run to run.

    Args:
        notebook: the file.
        folder: where it runs, and leaves its files.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # where `flgraph` is
    content = nbformat.read(notebook, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(content, kernel_name="python3", timeout=600, resources=where, coalesce_streams=True)
    client.execute(env={**os.environ, "PATH": path, "PYTHONWARNINGS": "ignore", "COLUMNS": "100"})
    content.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in content.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            output.pop("execution_count", None)
            if output.output_type == "execute_result":
                output.execution_count = None
        if cell.cell_type == "code":
            cell.execution_count = None
    return content


if __name__ == "__main__":
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        if path.stem in (sys.argv[1:] or path.stem):
            with tempfile.TemporaryDirectory() as folder:
                nbformat.write(executed(path, Path(folder)), path)
