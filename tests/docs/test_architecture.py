"""What ``docs/architecture.md`` promises of imports."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import flgraph

PACKAGE = Path(flgraph.__file__).parent


def imported(tree: ast.AST, modules: set[str]) -> set[str]:
    """Modules of the package that a module imports when it is loaded, or for types."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {str(node.module)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.If | ast.With):
            found |= imported(node, modules)
    return found & modules


def test_no_import_circle() -> None:
    files = {}
    for file in [*PACKAGE.rglob("*.py"), *(PACKAGE / "callbacks").glob("*.py")]:
        name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
        files[name.removesuffix(".__init__")] = file
    graph = {name: imported(ast.parse(file.read_text()), files.keys() - {name}) for name, file in files.items()}
    assert "flgraph.federation.aggregator" in graph["flgraph.federation.door"]  # for types
    assert "flgraph.callbacks.fedavg" in graph["flgraph.callbacks"]
    TopologicalSorter(graph).prepare()  # raises CycleError
