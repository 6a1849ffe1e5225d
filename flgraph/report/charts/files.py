"""Figures as files and as elements of a page."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from flgraph.report.charts.style import GRID, INK, MUTED, PAPER, settings
from flgraph.runs.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}
"""What a figure is drawn in, and what stands for it in a page."""


def save_figure(figure: Figure, file: Path, outlines: bool = True, dpi: int = 300) -> None:
    """Writes a figure, whole or not at all: SVG, PDF or PNG by the file's suffix.

    Letters are outlines in SVG and embedded fonts in PDF, so that they are the same everywhere. The same figure gives
    the same bytes.

    Args:
        figure: any.
        file: what is written.
        outlines: whether letters in SVG are shapes; if not, the file is smaller, and its text is text.
        dpi: dots an inch of a PNG.
    """
    kind, stream = file.suffix[1:], io.BytesIO()
    nothing = {"svg": ("Date", "Creator"), "pdf": ("CreationDate", "Creator", "Producer"), "png": ("Software",)}[kind]
    with settings(outlines):
        figure.savefig(stream, format=kind, dpi=dpi, facecolor=PAPER, metadata=dict.fromkeys(nothing))
    write_bytes(stream.getvalue(), file)


def to_svg(figure: Figure, name: str, description: str) -> str:
    """A figure as an ``<svg>`` element for a page.

    Args:
        figure: any.
        name: makes the identifiers in it different from those of other charts on the page.
        description: for those who do not see it.
    """
    stream = io.StringIO()
    with settings():
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=nothing)
    text = stream.getvalue()
    text = text[text.index("<svg") :].replace("xlink:href", "href")
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)  # its style has no bounds
    text = re.sub(r"font-family: [^;\"]*;", "", text)
    text = re.sub(r"\bd=\"([^\"]*)\"", lambda match: f'd="{_compact(match[1])}"', text)
    text = re.sub(r"<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1>", text, count=1)
    text = re.sub(r"<g id=([\"'])(series-\d+|slice) (.*?)\1>", _marked, text, flags=re.DOTALL)
    used = set(re.findall(r"(?:href=\"|url\()#([^\")]+)", text))
    text = re.sub(r" id=\"([^\"]*)\"", lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", text)
    text = re.sub(r"(href=\"|url\()#", rf"\g<1>#{name}-", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r">\s*\n\s*<", ">\n<", text)
    label = html.escape(description)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


def _marked(group: re.Match[str]) -> str:
    title = f"<title>{group[3]}</title>" if group[3] else ""
    return f'<g class="{group[2]}">{title}'


def _compact(path: str) -> str:
    """The same strokes to a hundredth of a point, on one line."""
    return " ".join(re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.2f}", path).split())
