"""Public functions of the packages that users call directly show how they are used; pytest runs the examples."""

from __future__ import annotations

import inspect

import pytest

import flgraph.data
import flgraph.nn

FUNCTIONS = [
    (package.__name__, name)
    for package in (flgraph.data, flgraph.nn)
    for name in package.__all__
    if inspect.isfunction(getattr(package, name))
]


@pytest.mark.parametrize(("package", "name"), FUNCTIONS)
def test_it_shows_an_example(package: str, name: str) -> None:
    function = getattr(flgraph.data if package == "flgraph.data" else flgraph.nn, name)
    assert ">>>" in (inspect.getdoc(function) or "")
