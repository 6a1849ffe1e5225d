"""Charts of runs: matplotlib figures, and the SVG text that a page takes in."""

from flgraph.report.charts.bars import MAX_BARS, distributions, grouped_bars, level_bars
from flgraph.report.charts.files import VARIABLES, save_figure, to_svg
from flgraph.report.charts.grid import number_grids
from flgraph.report.charts.lines import MAX_POINTS, error_bars, learning_curves, metric_over_bytes, thinned
from flgraph.report.charts.points import around_center, embedding_panels
from flgraph.report.charts.style import BASELINE_COLOUR, COLOURS, Spread, Style, spread, styles_for

__all__ = [
    "BASELINE_COLOUR",
    "COLOURS",
    "MAX_BARS",
    "MAX_POINTS",
    "VARIABLES",
    "Spread",
    "Style",
    "around_center",
    "distributions",
    "embedding_panels",
    "error_bars",
    "grouped_bars",
    "learning_curves",
    "level_bars",
    "metric_over_bytes",
    "number_grids",
    "save_figure",
    "spread",
    "styles_for",
    "thinned",
    "to_svg",
]
