"""The page: one HTML file with its style and its charts inside, and nothing fetched from anywhere."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from flgraph.report.charts import (
    Spread,
    Style,
    distributions,
    grouped_bars,
    learning_curves,
    level_bars,
    metric_over_bytes,
    spread,
    styles_for,
    to_svg,
)
from flgraph.report.compare import Comparison, Method, Metric, shown
from flgraph.runs.reader import Run, mapping

WIDE, HALF = 11.4, 5.5
"""Inches of charts that take the page's width, and half of it: letters come out equally large in both."""

MANY_CLIENTS = 30
"""More than these are shown as distributions."""

_Column = tuple[str, str, Callable[[Method], Spread], Callable[[float, float], str], int]
"""Head, explanation, values, how a value is written, and whether more (1) or less (-1) is best, or neither (0)."""

STYLE = """
:root { color-scheme: light dark; --ink: #1a1d21; --muted: #5f6671; --grid: #e2e5ea; --paper: #ffffff; --back: #f5f6f8;
  --best: #e3f2ea; --best-ink: #0b5a3c; --accent: #0072b2; --warn: #9a5b00; --warn-back: #fdf1dc; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --muted: #a2a9b4; --grid: #333840; --paper: #1b1e23;
  --back: #131518; --best: #17392b; --best-ink: #8fe0b9; --accent: #6bb8e8; --warn: #f0b866; --warn-back: #3a2d14; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 4.5rem; scroll-behavior: smooth; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif; }
main, header.top { max-width: 1240px; margin: 0 auto; padding: 0 24px; }
header.top { padding-top: 36px; }
h1 { font-size: 1.85rem; line-height: 1.2; letter-spacing: -.015em; margin: 0 0 .3rem; text-wrap: balance; }
h2 { font-size: 1.4rem; letter-spacing: -.01em; margin: 2.6rem 0 .2rem; }
h3 { font-size: 1.08rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; max-width: 85ch; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
code, pre { font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
pre { overflow-x: auto; margin: .6rem 0; }
.muted, figcaption, .note { color: var(--muted); } .note, figcaption { font-size: 13px; }
.legend { position: sticky; top: 0; z-index: 5; background: var(--back); border-bottom: 1px solid var(--grid);
  margin-top: 18px; }
.legend > div { max-width: 1240px; margin: 0 auto; padding: 9px 24px; display: flex; flex-wrap: wrap; gap: 3px 18px;
  align-items: center; font-size: 14px; }
.legend label { display: inline-flex; gap: 6px; align-items: center; cursor: pointer; white-space: nowrap; }
.legend label:has(input:not(:checked)) { opacity: .45; } .legend input { accent-color: var(--muted); margin: 0; }
.legend nav { margin-left: auto; display: flex; flex-wrap: wrap; gap: 0 14px; }
.swatch { width: 22px; height: 12px; flex: none; vertical-align: -1px; }
.card, figure, details { background: var(--paper); border: 1px solid var(--grid); border-radius: 8px; }
.card { overflow-x: auto; } figure { margin: 0; padding: 12px 14px 10px; min-width: 0; }
figure b { display: block; font-size: 14px; margin-bottom: 4px; }
figure svg { display: block; width: 100%; height: auto; }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; } figure svg text { font-family: inherit; }
figcaption { margin-top: 4px; }
.grid { display: grid; gap: 16px; grid-template-columns: repeat(2, minmax(0, 1fr)); } .wide { grid-column: 1 / -1; }
@media (max-width: 860px) { .grid { grid-template-columns: minmax(0, 1fr); }
  figure.wide { overflow-x: auto; } figure.wide svg { min-width: 760px; } }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 9px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid); }
th { font-weight: 600; font-size: 12.5px; color: var(--muted); vertical-align: bottom; line-height: 1.3; }
.summary th { white-space: normal; }
tr:last-child > td, tr:last-child > th { border-bottom: 0; } tbody tr:hover { background: var(--back); }
td:first-child, th:first-child { text-align: left; } tbody th { color: var(--ink); font-size: 14px; }
.card tr > :first-child { padding-left: 14px; } .card tr > :last-child { padding-right: 14px; }
.texts td, .texts th { text-align: left; } .texts td { white-space: normal; }
.pm { color: var(--muted); font-size: 12.5px; }
td.best { background: var(--best); color: var(--best-ink); font-weight: 650; }
td.best .pm { color: inherit; font-weight: 400; } tfoot td, tfoot th { border-top: 2px solid var(--grid); }
.tag { font-size: 11.5px; font-weight: 600; color: var(--warn); background: var(--warn-back); border-radius: 4px;
  padding: 1px 6px; margin-left: 6px; white-space: nowrap; }
details { margin-top: 8px; padding: 9px 14px; } summary { cursor: pointer; font-weight: 600; font-size: 14px; }
details .card { border: 0; margin-top: 8px; }
details details { border-width: 1px 0 0; border-radius: 0; margin: 8px 0 0; }
footer { margin: 3rem auto 2.5rem; max-width: 1240px; padding: 0 24px; font-size: 13px; color: var(--muted); }
@media print { .legend { position: static; } figure, tr { break-inside: avoid; } }
"""


def render(comparisons: Sequence[Comparison], metric: Metric, waiting: Sequence[Path] = ()) -> str:
    """The page's HTML.

    Args:
        comparisons: one section each.
        metric: what is compared.
        waiting: folders of runs that have not finished a round.
    """
    labels = list(dict.fromkeys(method.label for part in comparisons for method in part.methods))
    grey = next((part.baseline.label for part in comparisons if part.baseline), None)
    styles = styles_for(labels, grey)
    runs = [run for part in comparisons for method in part.methods for run in method.all]
    titles = ", ".join(part.title for part in comparisons)
    several = len(comparisons) > 1
    hidden = "\n".join(
        f"body:has(#show-{style.key}:not(:checked)) .{style.key} {{ display: none; }}" for style in styles.values()
    )
    boxes = "".join(
        f'<label><input type="checkbox" id="show-{style.key}" checked>{_swatch(style)}{_text(label)}</label>'
        for label, style in styles.items()
    )
    sections = [_Section(part, metric, styles, f"s{place}", several) for place, part in enumerate(comparisons, start=1)]
    links = [(f"s{place}", part.title) for place, part in enumerate(comparisons, start=1)]
    if not several:
        links = sections[0].anchors()
    nav = "".join(f'<a href="#{anchor}">{_text(title)}</a>' for anchor, title in links)
    going = sum(not run.finished for run in runs)
    counts = [_count(len(runs), "run"), _count(len(labels), "method"), *([f"{going} unfinished"] if going else [])]
    left_out = ""
    if waiting:
        names = ", ".join(f"<code>{_text(folder)}</code>" for folder in waiting)
        left_out = f'<p class="note">Left out, because no round is done yet: {names}.</p>'
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(titles)}: {_text(metric.words)}</title>
<style>{STYLE}{hidden}</style>
</head>
<body>
<header class="top">
<h1>{_text(titles)}: {_text(metric.words)}</h1>
<p class="muted">{", ".join(counts)}. A value is the unweighted mean over clients; behind ± and in bands stands the
sample standard deviation over seeds.</p>
{left_out}
</header>
<div class="legend"><div>{boxes}<nav>{nav}</nav></div></div>
<main>
{"".join(section.html() for section in sections)}
</main>
<footer>Made by <code>flgraph report</code>.</footer>
</body>
</html>
"""


class _Section:
    """All about one data set.

    Args:
        part: its methods.
        metric: what is compared.
        styles: method to its looks.
        anchor: identifier of the section; those of its parts begin with it.
        several: whether the page has other sections.
    """

    def __init__(
        self, part: Comparison, metric: Metric, styles: Mapping[str, Style], anchor: str, several: bool
    ) -> None:
        self.part, self.metric, self.anchor, self.several = part, metric, anchor, several
        self.styles = {method.label: styles[method.label] for method in part.methods}
        self.charts = 0
        self.label = f"{metric.words}{metric.unit}"

    def anchors(self) -> list[tuple[str, str]]:
        parts = {"curves": "Curves", "clients": "Clients", "cost": "Cost", "settings": "Settings", "runs": "Runs"}
        return [(f"{self.anchor}-{key}", title) for key, title in parts.items()]

    def html(self) -> str:
        part = self.part
        names = ", ".join(part.clients[:MANY_CLIENTS]) + (", …" if len(part.clients) > MANY_CLIENTS else ".")
        head = f"<h2>{_text(part.title)}</h2>" if self.several else ""
        if self.several and len(self.anchors()) > 1:
            head += '<p class="note">' + " · ".join(f'<a href="#{a}">{t}</a>' for a, t in self.anchors()) + "</p>"
        about = f'<p class="note">{_count(len(part.clients), "client")}: {_text(names)}</p>' if part.clients else ""
        return f"""<section id="{self.anchor}">
{head}
<h3>Summary</h3>
{self._summary()}
{about}
<h3 id="{self.anchor}-curves">Learning curves</h3>
{self._curves()}
{self._clusters()}
<h3 id="{self.anchor}-clients">Clients</h3>
{self._clients()}
<h3 id="{self.anchor}-cost">Bytes and seconds</h3>
{self._cost()}
<h3 id="{self.anchor}-settings">Settings that differ</h3>
{self._settings()}
<h3 id="{self.anchor}-runs">Runs</h3>
{self._runs()}
</section>
"""

    # ------------------------------------------------------------------------------------------------------ summary
    def _summary(self) -> str:
        baseline, metric = self.part.baseline, self.metric
        sign = -1 if metric.lower else 1
        digits = 2 if metric.scale == 100 else 4
        many = [m for m in self.part.methods if m.finished]

        def value(mean: float, std: float) -> str:
            return _spread(mean, std, digits)

        columns: list[_Column] = [
            ("final", "after the last round", Method.final, value, sign),
            ("best val", "in the round with the best validation metric", Method.best_val, value, sign),
            ("best test*", "optimistic: the round is chosen by the test data", Method.best_test, value, sign),
        ]
        if baseline is not None and self.part.compared:
            columns.append(
                (
                    f"gain over {baseline.label}",
                    "of the final metric, runs of the same seed paired",
                    lambda m: m.gain(baseline) if m in self.part.compared else (math.nan, math.nan),
                    lambda mean, std: _spread(mean, std, digits, "+"),
                    sign,
                )
            )
            columns.append(("clients better", "by the mean over seeds", self._better, self._of_clients, 1))
        for head, which in (("parameters / client", "total"), ("shared parameters", "shared")):
            if any(math.isfinite(method.parameters(which)) for method in self.part.methods):
                columns.append((head, "mean over clients", self._parameters(which), lambda m, _: f"{m:,.0f}", 0))
        for head, what in (("kB up", "up"), ("kB down", "down")):
            columns.append((f"{head} / round", "all clients together", self._per_round(what, 1e3), _kilobytes, 0))
        columns.append(("s / round", "wall clock, evaluation included", self._per_round("seconds"), _seconds, 0))

        best = []
        for _, _, get, write, direction in columns:
            ranked = [get(method)[0] for method in many]
            ranked = [mean for mean in ranked if math.isfinite(mean)]
            worth = direction and len(ranked) > 1 and len({write(mean, math.nan) for mean in ranked}) > 1
            best.append(write(max(ranked, key=lambda mean: direction * mean), math.nan) if worth else None)
        rows = []
        for method in self.part.methods:
            cells = []
            for (_, _, get, write, _), top in zip(columns, best, strict=True):
                mean, std = get(method)
                # What is printed alike is equally good.
                marked = top is not None and method.finished and math.isfinite(mean) and write(mean, math.nan) == top
                text = write(mean, std) if math.isfinite(mean) else "–"
                cells.append(f'<td class="best">{text}</td>' if marked else f"<td>{text}</td>")
            style = self.styles[method.label]
            rows.append(
                f'<tr class="{style.key}"><td>{_swatch(style)} {_text(method.label)}{_state(method)}</td>'
                f"<td>{len(method.runs)}</td><td>{_rounds(method)}</td>{''.join(cells)}</tr>"
            )
        heads = "".join(f'<th title="{_text(why)}">{_text(head)}</th>' for head, why, *_ in columns)
        notes = [
            f"{metric.words.capitalize()}{metric.unit}. <b>final</b>: after the last round. <b>best val</b>: in the "
            "round with the best mean validation metric. <b>best test*</b>: in the round with the best test metric "
            "itself, which is optimistic: it looks at the test data. kB are 1,000 bytes, of all clients together."
        ]
        if baseline is None and len(self.part.methods) > 1:
            notes.append("No finished run trains its clients alone (Local), so there are no gains.")
        elif baseline is not None and self.part.compared:
            notes.append(f"Gains are over {_text(baseline.label)}, runs of the same seed paired where there are any.")
        if not all(method.finished for method in self.part.methods):
            notes.append("Unfinished: as of its newest round, and in no comparison.")
        heads = f"<tr><th>method</th><th>seeds</th><th>rounds</th>{heads}</tr>"
        table = f'<table class="summary"><thead>{heads}</thead><tbody>{"".join(rows)}</tbody></table>'
        return f'<div class="card">{table}</div><p class="note">{" ".join(notes)}</p>'

    def _better(self, method: Method) -> Spread:
        if self.part.baseline is None or method not in self.part.compared:
            return math.nan, math.nan
        gains = [mean for mean, _ in self._gains(method) if math.isfinite(mean)]
        return (float(sum(map(self.metric.better, gains))), math.nan) if gains else (math.nan, math.nan)

    def _of_clients(self, mean: float, _: float) -> str:
        return f'{mean:.0f}<span class="pm"> of {len(self.part.clients)}</span>'

    def _parameters(self, which: str) -> Callable[[Method], Spread]:
        return lambda method: (method.parameters(which), math.nan)

    def _per_round(self, what: str, unit: float = 1.0) -> Callable[[Method], Spread]:
        def get(method: Method) -> Spread:
            mean, std = method.per_round(what)
            return mean / unit, std / unit

        return get

    def _gains(self, method: Method) -> list[Spread]:
        assert self.part.baseline is not None
        return [method.gain(self.part.baseline, client) for client in self.part.clients]

    # ------------------------------------------------------------------------------------------------------- charts
    def _curves(self) -> str:
        metric = self.metric
        panels = [
            self._curve(metric.test, metric.words.capitalize(), self.label, WIDE, 4.3),
            self._curve(metric.val, f"Validation {metric.bare}", f"validation {metric.bare}{metric.unit}", HALF, 3.5),
            self._curve("train/loss", "Training loss", "training loss", HALF, 3.5),
        ]
        keys = sorted({key for m in self.part.methods for run in m.all for r in run.rounds for key in r.server})
        single = [key for key in keys if "/" not in key]  # the others are one value for each client or cluster
        for key in single:
            panels.append(self._lines(f"Server: {key}", key, HALF, 3.0, _server_curves(key)))
        groups = dict.fromkeys(key.partition("/")[0] for key in keys if key not in single)
        note = ""
        if groups:
            shown = ", ".join(f"<code>{_text(group)}/…</code>" for group in groups)
            note = f'<p class="note">Also recorded in <code>history.jsonl</code> and TensorBoard: {shown}.</p>'
        if any(not run.finished for method in self.part.methods for run in method.all):
            note += '<p class="note">Thin dotted: single runs that are not finished; they count in no mean.</p>'
        shown_panels = "".join(panels)
        if not shown_panels:
            return '<p class="note">No run has a <code>history.jsonl</code> with metrics.</p>'
        return f'<div class="grid">{shown_panels}</div>{note}'

    def _clusters(self) -> str:
        """Who ended up with whom, where an algorithm puts clients into clusters."""
        rows = ""
        for method in self.part.methods:
            swatch = f"{_swatch(self.styles[method.label])} {_text(method.label)}"
            for run in method.all:
                told = mapping(run.results.get("aggregator"))
                clusters, splits = told.get("clusters"), told.get("splits")
                if not isinstance(clusters, list) or not isinstance(splits, list):
                    continue
                members = "; ".join(", ".join(map(str, cluster)) for cluster in clusters)
                rounds = ", ".join(str(mapping(split).get("round")) for split in splits) or "–"
                rows += (
                    f'<tr class="{self.styles[method.label].key}"><td>{swatch}</td>'
                    f"<td>{'–' if run.seed is None else run.seed}</td><td>{_text(rounds)}</td>"
                    f"<td>{_text(members)}</td></tr>"
                )
        if not rows:
            return ""
        heads = "<th>method</th><th>seed</th><th>split in round</th><th>clusters at the end</th>"
        table = f'<table class="texts"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
        return f'<h3>Clusters</h3><div class="card">{table}</div>'

    def _curve(self, name: str, title: str, ylabel: str, width: float, height: float) -> str:
        return self._lines(title, ylabel, width, height, lambda method, runs: method.curves(name, runs))

    def _lines(
        self,
        title: str,
        ylabel: str,
        width: float,
        height: float,
        get: Callable[[Method, Sequence[Run]], list[list[float]]],
    ) -> str:
        """A panel of lines over rounds; nothing if no run has a value."""
        series = {method.label: get(method, method.runs) for method in self.part.methods if method.finished}
        going = {
            method.label: get(method, [run for run in method.all if not run.finished]) for method in self.part.methods
        }
        values = [value for group in (series, going) for runs in group.values() for run in runs for value in run]
        if not any(map(math.isfinite, values)):
            return ""
        figure = learning_curves(
            series, ylabel=ylabel, size=(width, height), styles=self.styles, legend=False, unfinished=going
        )
        return self._figure(title, to_svg(figure, self._next(), f"{title} over rounds"), wide=width == WIDE)

    def _clients(self) -> str:
        part, metric, baseline = self.part, self.metric, self.part.baseline
        if not part.clients:
            return '<p class="note">No run has metrics per client.</p>'
        methods = [method for method in part.methods if method.finished] or part.methods
        finals = {method.label: [method.client(client) for client in part.clients] for method in methods}
        many = len(part.clients) > MANY_CLIENTS
        if many:
            means = {label: [mean for mean, _ in spreads] for label, spreads in finals.items()}
            figure = distributions(means, xlabel=self.label, styles=self.styles, width=WIDE)
            caption = "A dot is a client, the mean over seeds. Box: quartiles and median; whiskers: 1.5 times the box."
        else:
            figure = grouped_bars(part.clients, finals, ylabel=self.label, styles=self.styles, width=WIDE)
            caption = "Mean over seeds; error bars: one standard deviation."
        title = f"Final {metric.words} of every client"
        panels = [self._figure(title, to_svg(figure, self._next(), title), caption)]
        if baseline is not None and part.compared:
            panels.append(self._gain_chart(many, baseline))
        table = "" if many else self._client_table(methods, finals)
        return f'<div class="grid">{"".join(panels)}</div>{table}'

    def _gain_chart(self, many: bool, baseline: Method) -> str:
        gains = {method.label: self._gains(method) for method in self.part.compared}
        ylabel = f"gain over {baseline.label}" + (" (points)" if self.metric.scale == 100 else "")
        title = f"Gain over {baseline.label} of every client"
        if many:
            means = {label: [mean for mean, _ in spreads] for label, spreads in gains.items()}
            figure = distributions(means, xlabel=ylabel, styles=self.styles, width=WIDE, zero=True)
            return self._figure(title, to_svg(figure, self._next(), title), "A dot is a client, the mean over seeds.")
        sign = 1 if self.metric.lower else -1
        typical = [
            spread([spreads[place][0] for spreads in gains.values()])[0] for place in range(len(self.part.clients))
        ]
        order = sorted(
            range(len(typical)), key=lambda place: (math.isnan(typical[place]), sign * typical[place], place)
        )
        clients = [self.part.clients[place] for place in order]
        sorted_gains = {label: [spreads[place] for place in order] for label, spreads in gains.items()}
        figure = grouped_bars(clients, sorted_gains, ylabel=ylabel, styles=self.styles, width=WIDE)
        caption = "Clients by their mean gain over all methods. Error bars: standard deviation over pairs of runs."
        return self._figure(title, to_svg(figure, self._next(), title), caption)

    def _client_table(self, methods: Sequence[Method], finals: Mapping[str, Sequence[Spread]]) -> str:
        digits = 2 if self.metric.scale == 100 else 4
        choose: Callable[[list[float]], float] = min if self.metric.lower else max
        heads = "".join(
            f'<th class="{self.styles[m.label].key}">{_swatch(self.styles[m.label])} {_text(m.label)}</th>'
            for m in methods
        )

        def row(head: str, spreads: Mapping[str, Spread]) -> str:
            known = [round(mean, digits) for mean, _ in spreads.values() if math.isfinite(mean)]
            top = choose(known) if len(set(known)) > 1 else None
            cells = ""
            for label, (mean, std) in spreads.items():
                best = " best" if top is not None and math.isfinite(mean) and round(mean, digits) == top else ""
                text = _spread(mean, std, digits) if math.isfinite(mean) else "–"
                cells += f'<td class="{self.styles[label].key}{best}">{text}</td>'
            return f"<tr><td>{_text(head)}</td>{cells}</tr>"

        rows = "".join(
            row(client, {label: spreads[place] for label, spreads in finals.items()})
            for place, client in enumerate(self.part.clients)
        )
        foot = row("mean over clients", {method.label: method.final() for method in methods})
        return (
            f"<details><summary>The same in numbers: final {_text(self.label)} of every client</summary>"
            f'<div class="card"><table><thead><tr><th>client</th>{heads}</tr></thead><tbody>{rows}</tbody>'
            f"<tfoot>{foot}</tfoot></table></div></details>"
        )

    def _cost(self) -> str:
        methods = [method for method in self.part.methods if method.finished] or self.part.methods
        lines, free = {}, {}
        for method in methods:
            megabytes, values = method.over_bytes()
            if megabytes and megabytes[-1] > 0:
                lines[method.label] = (megabytes, values)
            elif values:
                free[method.label] = values[-1]
        panels = []
        if lines:
            title = f"{self.metric.words.capitalize()} by megabytes sent"
            figure = metric_over_bytes(lines, free, ylabel=self.label, styles=self.styles, size=(HALF, 3.5))
            caption = "Means over seeds. Without what is sent before the first round, and without metrics."
            if free:
                caption += f" Level line: {', '.join(free)} at the end, without sending anything."
            panels.append(self._figure(title, to_svg(figure, self._next(), title), caption, wide=False))
        seconds = {method.label: method.per_round("seconds") for method in methods}
        if any(math.isfinite(mean) for mean, _ in seconds.values()):
            height = max(1.6, min(3.5, 0.9 + 0.42 * len(seconds))) if not lines else 3.5
            figure = level_bars(seconds, xlabel="seconds per round", styles=self.styles, size=(HALF, height))
            caption = "Wall clock with evaluation, beside whatever else the machine did. Mean and deviation over seeds."
            svg = to_svg(figure, self._next(), "Seconds per round")
            panels.append(self._figure("Seconds per round", svg, caption, wide=False))
        return f'<div class="grid">{"".join(panels)}</div>' if panels else '<p class="note">Nothing recorded.</p>'

    # ------------------------------------------------------------------------------------------------------- tables
    def _settings(self) -> str:
        if len(self.part.methods) < 2:
            return '<p class="note">There is one method.</p>'
        differences = self.part.differences()
        if not differences:
            return '<p class="note">None is recorded.</p>'
        heads = "".join(
            f'<th class="{self.styles[m.label].key}">{_swatch(self.styles[m.label])} {_text(m.label)}</th>'
            for m in self.part.methods
        )
        rows = ""
        for key, values in differences.items():
            cells = "".join(
                f'<td class="{self.styles[method.label].key}">{_text(value)}</td>'
                for method, value in zip(self.part.methods, values, strict=True)
            )
            rows += f"<tr><td><code>{_text(key)}</code></td>{cells}</tr>"
        return (
            f'<div class="card"><table class="texts"><thead><tr><th>setting</th>{heads}</tr></thead>'
            f'<tbody>{rows}</tbody></table></div><p class="note">All other settings are the same, but for seeds, '
            "folders and what is logged. –: not set, or the class does not have it.</p>"
        )

    def _runs(self) -> str:
        parts = []
        for method in self.part.methods:
            style = self.styles[method.label]
            rows = ""
            for run in method.all:
                planned = f" of {run.planned}" if run.planned and not run.finished else ""
                state = "" if run.finished else '<span class="tag">unfinished</span>'
                git = (
                    shown(run.results["versions"].get("git")) if isinstance(run.results.get("versions"), dict) else "–"
                )
                rows += (
                    f"<tr><td>{'–' if run.seed is None else run.seed}</td><td>{run.done}{planned}{state}</td>"
                    f"<td><code>{_text(git)}</code></td><td><code>{_text(run.folder)}</code></td></tr>"
                )
            versions = sorted({_versions(run) for run in method.all if _versions(run)})
            note = "".join(f'<p class="note">{_text(text)}</p>' for text in versions)
            if method.repeats:
                note += '<p class="note">Left out, because the same seed was run again: '
                note += ", ".join(f"<code>{_text(run.folder)}</code>" for run in method.repeats) + ".</p>"
            config = ""
            if method.runs[0].config:
                text = yaml.safe_dump(method.runs[0].config, sort_keys=False, allow_unicode=True)
                config = f"<details><summary>Settings of its first run</summary><pre>{_text(text)}</pre></details>"
            parts.append(
                f'<details class="{style.key}"><summary>{_swatch(style)} {_text(method.label)}: '
                f"{_count(len(method.all), 'run')}{_state(method)}</summary>"
                '<div class="card"><table class="texts"><thead><tr><th>seed</th><th>rounds</th><th>git revision</th>'
                f"<th>folder</th></tr></thead><tbody>{rows}</tbody></table></div>{note}{config}</details>"
            )
        return "".join(parts)

    def _figure(self, title: str, svg: str, caption: str = "", wide: bool = True) -> str:
        below = f"<figcaption>{_text(caption)}</figcaption>" if caption else ""
        return f"<figure{' class=wide' if wide else ''}><b>{_text(title)}</b>{svg}{below}</figure>\n"

    def _next(self) -> str:
        self.charts += 1
        return f"{self.anchor}c{self.charts}"


# ------------------------------------------------------------------------------------------------------------- texts
def _text(value: object) -> str:
    return html.escape(str(value))


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _spread(mean: float, std: float, digits: int, sign: str = "") -> str:
    text = f"{mean:{sign}.{digits}f}".replace("-", "−")
    return text if math.isnan(std) else f'{text}<span class="pm"> ± {std:.{digits}f}</span>'


def _kilobytes(mean: float, _: float) -> str:
    return "0" if mean == 0 else f"{mean:,.1f}" if mean < 100 else f"{mean:,.0f}"


def _seconds(mean: float, std: float) -> str:
    return _spread(mean, std, 2 if mean >= 0.1 else 4)


def _rounds(method: Method) -> str:
    done = sorted({run.done for run in method.runs})
    text = f"{done[0]}" if len(done) == 1 else f"{done[0]}–{done[-1]}"
    planned = {run.planned for run in method.runs if run.planned}
    return text if method.finished or not planned else f"{text} of {max(planned)}"


def _state(method: Method) -> str:
    if not method.finished:
        return '<span class="tag">unfinished</span>'
    return f'<span class="tag">+{len(method.rest)} unfinished</span>' if method.rest else ""


def _versions(run: Run) -> str:
    versions = run.results.get("versions")
    if not isinstance(versions, dict):
        return ""
    return ", ".join(f"{name} {shown(value)}" for name, value in versions.items() if name != "git")


def _server_curves(key: str) -> Callable[[Method, Sequence[Run]], list[list[float]]]:
    return lambda _, runs: [run.server_curve(key) for run in runs]


def _swatch(style: Style) -> str:
    dashes = f' stroke-dasharray="{" ".join(str(3 * part / 2) for part in style.dashes)}"' if style.dashes else ""
    return (
        '<svg class="swatch" viewBox="0 0 22 12" aria-hidden="true">'
        f'<line x1="1" y1="6" x2="21" y2="6" stroke="{style.colour}" stroke-width="4"{dashes}/></svg>'
    )
