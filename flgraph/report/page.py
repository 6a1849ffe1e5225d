"""The page: one HTML file with its style, its script and its charts inside, and nothing fetched from anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jinja2
import yaml

from flgraph.report import tables
from flgraph.report.charts import VARIABLES, Style, to_svg
from flgraph.report.compare import Comparison, Method
from flgraph.report.files import method_rows, to_csv, to_latex
from flgraph.report.panels import MANY_CLIENTS, PAGE, PHONE, PRINT, Layout, Panel, Panels, styles_of
from flgraph.report.settings import shown


def render(comparisons: Sequence[Comparison], waiting: Sequence[Path] = ()) -> str:
    """The page's HTML.

    Args:
        comparisons: one section each.
        waiting: folders of runs that have not finished a round.
    """
    styles = styles_of(comparisons)
    runs = [run for part in comparisons for method in part.methods for run in method.all]
    page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    page.filters |= {
        "count": lambda count, noun: f"{count} {noun}{'' if count == 1 else 's'}",
        "or_dash": lambda value: "–" if value is None else value,
        "shown": shown,
        "yaml": partial(yaml.safe_dump, sort_keys=False, allow_unicode=True),
    }
    metrics = {part.metric.words: None for part in comparisons}
    return page.get_template("page.html").render(
        titles=" · ".join(dict.fromkeys(part.title for part in comparisons)),
        metrics=", ".join(metrics),
        styles=styles,
        runs=runs,
        going=sum(not run.finished for run in runs),
        waiting=waiting,
        many=MANY_CLIENTS,
        light={variable[6:-1]: colour for colour, variable in VARIABLES.items()},
        sections=[Section(part, styles, f"s{number}") for number, part in enumerate(comparisons, start=1)],
    )


@dataclass(frozen=True)
class Drawn:
    """A chart as the page has it.

    Args:
        name: of the file it is saved as.
        panel: its texts.
        page: SVG for wide screens.
        phone: SVG for narrow ones.
        paper: SVG that is saved.
    """

    name: str
    panel: Panel
    page: str
    phone: str
    paper: str


class Section:
    """All about one data set, as the template asks for it.

    Args:
        part: its methods.
        styles: method to its looks.
        anchor: identifier of the section; those of its parts begin with it.
    """

    def __init__(self, part: Comparison, styles: Mapping[str, Style], anchor: str) -> None:
        self.part, self.anchor = part, anchor
        self.styles = {method.label: styles[method.label] for method in part.methods}
        self.panels = Panels(part, styles)
        self.unlike = {method.label: part.unlike(method) for method in part.methods}
        self.results, self.costs = tables.result_columns(part), tables.cost_columns(part)
        self.clusters, self.left_out = list(tables.clusters(part)), list(tables.left_out(part))
        self._charts = 0

    @property
    def csv(self) -> str:
        """The summary, for a file."""
        return to_csv(list(method_rows([self.part])))

    @property
    def latex(self) -> str:
        """The same as a table for a paper."""
        return to_latex([self.part])

    def dropped(self, method: Method) -> int:
        """How many clients were left out of any of its runs."""
        return len({client for run in method.all for client in run.dropped})

    def client_rows(self) -> list[tuple[str, list[tables.Cell]]]:
        """Every client's final metric, and the mean over clients, by method."""
        return [(head, cells) for head, _, cells in tables.client_rows(self.part, self.panels.shown)]

    def curves(self) -> list[Drawn]:
        """What was measured over rounds."""
        return list(map(self._drawn, self.panels.curves()))

    def clients(self) -> list[Drawn]:
        """What every client has of it."""
        return list(map(self._drawn, self.panels.clients()))

    def cost(self) -> list[Drawn]:
        """What it took."""
        return list(map(self._drawn, self.panels.cost()))

    def _drawn(self, panel: Panel) -> Drawn:
        return Drawn(f"{self.part.title} {panel.name}", panel, *self._versions(panel))

    def _versions(self, panel: Panel) -> Iterator[str]:
        layout: Layout
        for layout in (PAGE, PHONE, PRINT):
            self._charts += 1
            yield to_svg(panel.draw(layout), f"{self.anchor}c{self._charts}", panel.name)
