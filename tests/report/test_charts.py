"""Figures: what they draw, and what becomes of them."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest

from flgraph.report import charts
from flgraph.report.charts import (
    BASELINE_COLOUR,
    COLOURS,
    MAX_BARS,
    MAX_POINTS,
    around_center,
    distributions,
    error_bars,
    grouped_bars,
    learning_curves,
    save_figure,
    spread,
    styles_for,
    thinned,
    to_svg,
)

NAN = math.nan


def test_spread() -> None:
    assert spread([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    mean, std = spread([4.0, NAN])
    assert mean == 4.0
    assert math.isnan(std)
    assert all(map(math.isnan, spread([])))


def test_learning_curves_lines_and_bands() -> None:
    figure = learning_curves({"one": [[1.0, 2.0, 3.0], [3.0, 4.0, 3.0]], "alone": [[5.0, NAN, 7.0]]}, ylabel="y")
    (axes,) = figure.axes
    one, _, alone, _ = axes.lines  # each followed by the dot at its end
    assert list(one.get_xdata()) == [1, 2, 3]
    assert list(one.get_ydata()) == [2.0, 3.0, 3.0]
    assert list(alone.get_xdata()) == [1, 3]  # rounds without a metric are no gap
    (band,) = axes.collections  # one run has no deviation
    low, high = band.get_paths()[0].get_extents().intervaly
    assert low == pytest.approx(2 - math.sqrt(2))
    assert high == pytest.approx(3 + math.sqrt(2))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "alone"]


def test_learning_curves_of_unequal_runs_and_of_none() -> None:
    figure = learning_curves({"m": [[1.0, 1.0, 4.0], [3.0]], "empty": [[NAN]], "none": []}, unfinished={"m": [[9.0]]})
    mean, _, single = figure.axes[0].lines
    assert list(mean.get_ydata()) == [2.0, 1.0, 4.0]
    assert list(single.get_ydata()) == [9.0]
    assert learning_curves({}).axes[0].lines[:] == []


def test_error_bars_over_settings() -> None:
    series = {"Local": {"a": (1.0, 0.5), "b": (2.0, NAN)}, "FedAvg": {"b": (3.0, 1.0)}}
    (axes,) = error_bars(series, ["a", "b"], xlabel="x", ylabel="y").axes
    local, fedavg = axes.lines
    assert list(local.get_ydata()) == [1.0, 2.0]
    assert local.get_color() == BASELINE_COLOUR
    assert list(fedavg.get_xdata()) == [pytest.approx(1.1)]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    bars = [collection.get_paths()[0].vertices[:, 1].tolist() for collection in axes.collections]
    assert bars == [[0.5, 1.5], [2.0, 4.0]]


def test_twelve_methods_look_different() -> None:
    styles = styles_for(["Local", *"abcdefghijkl"], "Local")
    looks = {(style.colour, style.dashes) for style in styles.values()}
    assert len(looks) == 13
    assert styles["Local"].colour == BASELINE_COLOUR
    assert styles["a"].colour == styles["g"].colour == COLOURS[0]
    assert styles["a"].dashes != styles["g"].dashes
    assert styles["a"].hatch != styles["g"].hatch


def test_long_runs_are_thinned() -> None:
    assert thinned(3) == [0, 1, 2]
    kept = thinned(10_000)
    assert len(kept) == MAX_POINTS
    assert (kept[0], kept[-1]) == (0, 9_999)
    line = learning_curves({"m": [[float(n) for n in range(5000)]]}).axes[0].lines[0]
    assert len(line.get_xdata()) == MAX_POINTS


def test_bars_of_many_clients_go_into_rows() -> None:
    clients, names = [f"c{n}" for n in range(30)], ["a", "b", "c", "d", "e"]
    values = {name: [(float(n), 0.5) for n in range(30)] for name in names}
    figure = grouped_bars(clients, values, ylabel="y", styles=styles_for(names), width=11)
    assert len(figure.axes) == math.ceil(150 / MAX_BARS)
    heights = [patch.get_height() for axes in figure.axes for patch in axes.patches]
    assert sorted(heights) == sorted(float(n) for n in range(30) for _ in names)


def test_distributions_mark_every_client() -> None:
    figure = distributions(
        ["A", "B", "C"], {"m": [1.0, 2.0, NAN]}, xlabel="x", styles=styles_for(["m"]), width=8, zero=True
    )
    assert [dot.get_gid() for dot in figure.axes[0].collections] == ["series-0 m, A: 1", "series-0 m, B: 2"]


def test_svg_is_ready_for_a_page() -> None:
    hostile = '<b>&"$x$'
    first = learning_curves({hostile: [[1.0, 2.0], [2.0, 2.0]]}, ylabel=hostile, legend=False)
    text = to_svg(first, "one", hostile)
    assert text.startswith('<svg role="img" aria-label="&lt;b&gt;&amp;&quot;$x$" viewBox=')
    assert "<b>" not in text
    assert "http" not in text
    assert "<style" not in text  # it would hold for the whole page
    assert 'class="series-0"><title>&lt;b&gt;&amp;' in text
    assert "var(--muted)" in text
    again = to_svg(learning_curves({hostile: [[1.0, 2.0], [2.0, 2.0]]}, ylabel=hostile, legend=False), "one", hostile)
    assert again == text


def test_png_is_the_same_twice(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        save_figure(learning_curves({"m": [[1.0, 2.0]]}, title="t"), tmp_path / name, dpi=50)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_users_settings_stay_as_they_are() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    to_svg(learning_curves({"m": [[1.0]]}), "x", "x")
    assert dict(matplotlib.rcParams) == before


def test_matplotlib_is_imported_when_needed() -> None:
    for file in Path(charts.__file__).parent.glob("*.py"):
        eager = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not [node for node in eager if "matplotlib" in ast.unparse(node)], file


def test_around_center_has_a_circle_per_method() -> None:
    figure = around_center({"a": {"x": 0.1, "y": 0.4}, "b": {"x": 0.2, "y": float("nan")}})
    axes = figure.get_axes()
    assert [one.get_title(loc="left") for one in axes] == ["a", "b"]
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert axes[0].get_ylim()[1] == pytest.approx(0.44)
    points = axes[0].collections[0].get_offsets().tolist()
    assert points == [[0, 0.1], [pytest.approx(math.pi), 0.4]]


def test_a_legend_of_many_names_fits() -> None:
    """Six columns of such names would be wider than the picture."""
    names = [f"a method with a long name, {number}" for number in range(9)]
    figure = charts.learning_curves({name: [[0.1, 0.2]] for name in names})
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    assert legend.get_window_extent().width <= figure.bbox.width
