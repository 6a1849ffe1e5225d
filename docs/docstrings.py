"""Lets the site read docstrings as Sphinx would: roles become links, formulas MathML, which browsers draw."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`(?P<short>~?)(?P<path>[\w.]+)`")
INLINE = re.compile(r":math:`([^`]+)`")
DISPLAY = re.compile(r"(?P<indent>[ ]*)\.\. math::[ ]*(?P<first>[^\n]*)(?P<rest>(?:\n[ ]*\n|\n(?P=indent)[ ]+[^\n]*)*)")


class Roles(griffe.Extension):
    """Rewrites the docstring of every object of the package once it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value, obj)


def markdown(text: str, obj: griffe.Object) -> str:
    """A docstring without roles and directives."""

    def link(role: re.Match[str]) -> str:
        path = role["path"]
        try:
            target = path if path.startswith("flgraph.") else obj.resolve(path)
        except griffe.NameResolutionError:
            target = path
        shown = path.rpartition(".")[2] if role["short"] else path
        return f'<autoref identifier="{target}" optional><code>{shown}</code></autoref>'

    def display(found: re.Match[str]) -> str:
        body = textwrap.dedent(f"{found['first']}\n{textwrap.dedent(found['rest'])}").strip()
        return f'\n{found["indent"]}<div class="formula">{mathml(body, "block")}</div>\n'

    return ROLE.sub(link, INLINE.sub(lambda found: mathml(found[1], "inline"), DISPLAY.sub(display, text)))


def mathml(latex: str, display: str) -> str:
    if "&" in latex or "\\\\" in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"
    shown = convert(" ".join(latex.split()), display=display)
    return shown if display == "block" else f'<span class="formula">{shown}</span>'
