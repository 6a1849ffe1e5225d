"""Draws the figures of the documentation into docs/figures: ``python docs/draw_figures.py``."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from html import escape
from pathlib import Path

FIGURES = Path(__file__).parent / "figures"
FCLG = Path(__file__).parents[1] / "reproduction" / "fclg"
CLIENTS = ("north", "east", "west")
COLOURS = {
    "shared": ("#3f6fb5",) * 3,
    "own": ("#e0863b", "#c9a227", "#b5527a"),
    "cluster": ("#3f6fb5", "#3f6fb5", "#4b9b6e"),
    "neighbours": ("#3f6fb5", "#5b6fc5", "#3f8fb5"),
}
"""The colour of a block at each client: equal colours are equal values."""
LEGEND = {
    "shared": "the same at all clients",
    "own": "of one client, stays there",
    "cluster": "the same within a cluster",
    "neighbours": "each client has a mean of its own",
}


@dataclass(frozen=True)
class Federation:
    """What a figure of a method shows.

    Args:
        blocks: what a client's model is made of, first layer first: name and a key of ``COLOURS``.
        up, server, down: what is sent, what the server does with it, and what comes back.
        client: what the client does besides training, if anything.
    """

    blocks: tuple[tuple[str, str], ...] = (("model", "shared"),)
    up: str = "weights, number of samples"
    server: str = "weighted mean"
    down: str = "the mean"
    client: str = "trains for the local epochs"


GRAPHS = (("input layer", "own"), ("graph convolutions", "shared"), ("classifier", "own"))
METHODS = {
    "local": Federation((("model", "own"),), up="nothing", server="does nothing", down="nothing"),
    "fedavg": Federation((("input layer", "own"), ("layers of equal shape", "shared"), ("classifier", "own"))),
    "fedprox": Federation(client="trains, held back towards the mean"),
    "fedper": Federation(GRAPHS, up="convolutions, number of samples"),
    "fedsage": Federation((("input layer", "own"), ("GraphSAGE layers", "shared"), ("classifier", "own"))),
    "scaffold": Federation(
        up="weights; the control variate",
        server="weighted mean of both",
        down="the mean; the mean control variate",
        client="trains, gradients corrected",
    ),
    "fedopt": Federation(server="a step of Adam along the mean", down="the weights"),
    "fednova": Federation(
        up="weights, numbers of samples and steps", server="mean of updates by step", down="the weights"
    ),
    "ditto": Federation(
        (("common model", "shared"), ("own model, used", "own")),
        up="weights of the common model",
        client="trains both, own held near common",
    ),
    "moon": Federation(client="trains, contrasts representations"),
    "fedproto": Federation(
        (("model", "own"), ("prototypes of classes", "shared")),
        up="mean representation of each class",
        server="weighted mean of each class",
        down="all prototypes",
        client="trains, drawn to the prototypes",
    ),
    "fedrep": Federation(
        (("representation", "shared"), ("head", "own")),
        up="representation, number of samples",
        client="trains its head, then the rest",
    ),
    "apfl": Federation(
        (("common model", "shared"), ("own model, mixed in", "own")),
        up="weights of the common model",
        client="trains both, uses a mixture",
    ),
    "gcfl": Federation(
        (("input layer", "own"), ("graph convolutions", "cluster"), ("classifier", "own")),
        up="convolutions, number of samples",
        server="splits clusters by updates; a mean for each",
        down="the own cluster's mean",
    ),
    "fedstar": Federation(
        (("feature encoder", "own"), ("structure encoder", "shared"), ("classifier", "own")),
        up="structure encoder, number of samples",
    ),
    "fedstar_wl": Federation(
        (
            ("feature encoder", "own"),
            ("structure encoder", "shared"),
            ("classifier, and a kernel", "own"),
        ),
        up="structure encoder, number of samples",
    ),
    "fedssp": Federation(
        (("features, messages", "own"), ("filters of eigenvalues", "shared"), ("classifier, preference", "own")),
        up="filters; mean representation",
        server="means of both",
        down="both means",
        client="trains, held near the mean of all",
    ),
    "fedego": Federation(
        (("reduction layers", "shared"), ("personalization layers", "own")),
        up="reduction layers, averaged ego-graphs",
        server="mean; trains a global model on the ego-graphs",
        down="mean, global layers, label distribution",
        client="mixes global with own layers, trains",
    ),
    "dfedgnn": Federation(
        (("model", "neighbours"),),
        up="weights",
        server="relays: a mean over each one's neighbours",
        down="the own neighbours' mean",
    ),
    "graphfl": Federation(
        up="first meta-gradients, then weights",
        server="a meta-step, then the mean",
        down="the weights",
        client="support and query set, then trains",
    ),
    "fedgcn": Federation(
        up="once: sums over neighbours; then weights",
        server="adds the sums up, once; weighted mean",
        down="once: complete sums; then the mean",
    ),
    "fedgta": Federation(
        (("model", "neighbours"),),
        up="weights; moments and confidence of labels",
        server="a mean over those whose moments are alike",
        down="a mean of its own",
        client="trains, spreads labels over its graph",
    ),
    "fedpub": Federation(
        (("weights", "neighbours"), ("masks", "own")),
        up="weights; output on a random graph",
        server="a mean weighed by likeness of outputs",
        down="a mean of its own",
        client="trains weights and masks",
    ),
    "fedtad": Federation(
        up="weights; reliability for each class",
        server="weighted mean, then learns on made-up graphs",
        down="what came of the mean",
    ),
    "fedthin": Federation(client="asks the mean, trains on thinned graphs"),
    "fggp": Federation(
        (("model", "shared"), ("prototypes of classes", "shared")),
        up="weights; mean representation of each class",
        server="weighted mean; clusters each class's prototypes",
        down="the mean; means of clusters",
        client="joins nodes alike, trains on views of that",
    ),
    "adafgl": Federation(
        (("GCN", "shared"), ("parts for like and unlike neighbours", "own")),
        up="the GCN's weights, in the first rounds",
        client="trains the GCN; later its own parts",
    ),
    "fedsageplus": Federation(
        (("generator of neighbours", "own"), ("classifier", "shared")),
        up="first made-up neighbours, gradients; then weights",
        server="hands them round; then the mean",
        down="first made-up neighbours, gradients; then the mean",
        client="mends its graph, trains",
    ),
    "fedhgn": Federation(
        (("node embeddings", "own"), ("bases", "shared"), ("coefficients of types", "own")),
        up="bases; coefficients without names",
        server="mean of bases; pools coefficients",
        down="mean; the others' coefficients",
        client="trains, drawn to the nearest other",
    ),
    "fedspread": Federation(
        (("node embeddings, labels", "own"), ("bases, trust in labels", "shared"), ("coefficients of types", "own")),
        up="bases, trust; coefficients without names",
        server="mean of these; pools coefficients",
        down="mean; the others' coefficients",
        client="spreads its labels, trains",
    ),
    "schemafedavg": Federation(
        (("node embeddings", "own"), ("weights of relations, by name", "shared")),
        up="each relation's weights, its name",
        server="mean over those who have it",
        down="the means of the own relations",
    ),
    "fclg": Federation(
        (("graph encoder", "shared"),), up="weights, number of graphs", client="contrasts graphs, and models; no labels"
    ),
    "infograph": Federation(
        (("graph encoder", "shared"),), up="weights, number of graphs", client="contrasts nodes with graphs; no labels"
    ),
}

STYLE = "font-family='Helvetica, Arial, sans-serif'"
LEFT, STEP, WIDE = 36, 230, 188  # of the clients' boxes


def text(x: float, y: float, words: str, size: int = 13, anchor: str = "middle", fill: str = "#22313f") -> str:
    return f"<text x='{x:g}' y='{y:g}' font-size='{size}' text-anchor='{anchor}' fill='{fill}'>{escape(words)}</text>"


def box(x: float, y: float, w: float, h: float, fill: str, stroke: str = "none") -> str:
    radius = min(6, w / 4)
    return f"<rect x='{x:g}' y='{y:g}' width='{w:g}' height='{h:g}' rx='{radius:g}' fill='{fill}' stroke='{stroke}'/>"


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    ends = f"x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}'"
    return f"<line {ends} stroke='#62727f' stroke-width='1.6' marker-end='url(#a)'/>"


def page(width: int, height: int, title: str, parts: list[str]) -> str:
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img' {STYLE}>"
        f"<title>{escape(title)}</title>"
        "<defs><marker id='a' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
        "<path d='M0 0 L8 4 L0 8 z' fill='#62727f'/></marker></defs>"
    )
    return "\n".join([head, box(0.5, 0.5, width - 1, height - 1, "#ffffff", "#d5dce1"), *parts, "</svg>\n"])


def client(x: float, y: float, index: int, shown: Federation) -> list[str]:
    """One client: its model's blocks over its data."""
    height = 62 + 26 * len(shown.blocks)
    parts = [
        box(x, y, WIDE, height, "#f4f6f8", "#b9c4cc"),
        text(x + WIDE / 2, y + 18, f"client {CLIENTS[index]}"),
    ]
    for row, (name, kind) in enumerate(shown.blocks):
        top = y + 27 + 26 * row
        parts += [
            box(x + 10, top, WIDE - 20, 22, COLOURS[kind][index]),
            text(x + WIDE / 2, top + 15, name, 12, fill="#ffffff"),
        ]
    return [*parts, text(x + WIDE / 2, y + height - 12, "graphs and labels stay here", 12, fill="#62727f")]


def federation(title: str, shown: Federation) -> str:
    """A server above three clients; what goes up and down stands beside the arrows."""
    y = 176
    bottom = y + 62 + 26 * len(shown.blocks)
    kinds = [kind for kind in LEGEND if any(kind == block[1] for block in shown.blocks)]
    parts = [
        box(190, 18, 340, 48, "#e8eef5", "#8fa7c2"),
        text(360, 38, "server", 14),
        text(360, 56, shown.server, 12),
    ]
    for index in range(3):
        x = LEFT + STEP * index
        middle = x + WIDE / 2
        target = 250 + 110 * index
        if shown.up != "nothing":
            parts += [arrow(middle - 14, y - 6, target - 10, 72), arrow(target + 14, 68, middle + 14, y - 8)]
        parts += client(x, y, index, shown)
    parts += [
        box(232, 88, 256, 56, "#ffffff", "#d5dce1"),
        text(360, 109, f"↑ {shown.up}", 12),
        text(360, 133, f"↓ {shown.down}", 12),
        text(360, bottom + 24, f"each client {shown.client}", 13),
    ]
    x = 360 - 105 * len(kinds)
    for kind in kinds:
        for index, colour in enumerate(COLOURS[kind]):
            parts.append(box(x + 12 * index, bottom + 38, 11, 14, colour))
        parts.append(text(x + 42, bottom + 50, LEGEND[kind], 12, "start", "#62727f"))
        x += 210
    return page(720, bottom + 66, title, parts)


def federation_round() -> str:
    """The picture of the first page: what happens in a round, in four steps."""
    shown = Federation((("stays at home", "own"), ("shared", "shared"), ("stays at home", "own")), "", "", "")
    parts = [
        box(225, 22, 270, 66, "#e8eef5", "#8fa7c2"),
        text(360, 46, "server", 15),
        text(360, 68, "③ averages what was shared; sees no graph", 12),
    ]
    for index in range(3):
        x = LEFT + STEP * index
        middle, target = x + WIDE / 2, 270 + 90 * index
        parts += [arrow(middle - 14, 194, target - 10, 94), arrow(target + 14, 90, middle + 14, 192)]
        parts += client(x, 200, index, shown)
    parts += [
        text(20, 122, "② sends the shared layers", 13, "start"),
        text(700, 122, "④ takes the mean home", 13, "end"),
        text(360, 366, "① every client trains on its own graphs, with its own Lightning Trainer", 14),
        text(360, 388, "then the next round", 12, fill="#62727f"),
    ]
    return page(720, 402, "One round of a federation", parts)


def curve(x: float, dataset: str, size: str, first: int, last: int) -> list[str]:
    """A panel: accuracy against a threshold on the size of a graph, beside the paper's FCLG and the largest class."""
    with open(FCLG / "size.csv", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if (row["dataset"], row["size"]) == (dataset, size)]
    with open(FCLG / "without_model.csv", newline="") as stream:
        others = {r["representation"]: float(r["accuracy"]) for r in csv.DictReader(stream) if r["dataset"] == dataset}
    wide, top, bottom = 186, 66, 246

    def at(threshold: float, accuracy: float) -> tuple[float, float]:
        return x + wide * (threshold - first) / (last - first), bottom - (bottom - top) * (accuracy - 35) / 40

    points = [at(int(r["threshold"]), float(r["accuracy"])) for r in rows if first <= int(r["threshold"]) <= last]
    parts = [text(x + wide / 2, 48, f"{dataset}: fewer {size} than", 14), box(x, top, wide, bottom - top, "#f4f6f8")]
    for accuracy in (40, 50, 60, 70):
        y = at(first, accuracy)[1]
        parts += [f"<line x1='{x:g}' y1='{y:g}' x2='{x + wide:g}' y2='{y:g}' stroke='#d5dce1'/>"]
        parts += [text(x - 6, y + 4, str(accuracy), 11, "end", "#62727f")]
    parts += [text(at(n, 0)[0], bottom + 16, str(n), 11, fill="#62727f") for n in range(first, last + 1, 10)]
    for name, colour in (("all graphs in the largest class", "#62727f"), ("FCLG, the paper's Table II", "#c0392b")):
        y = at(first, others[name])[1]
        parts += [
            f"<line x1='{x:g}' y1='{y:g}' x2='{x + wide:g}' y2='{y:g}' stroke='{colour}' stroke-dasharray='5 4'/>"
        ]
        paper = "paper" in name
        words = f"{'paper' if paper else 'largest class'} {others[name]:.1f}"
        parts += [text(x + wide - 4, y - 6 if paper else bottom - 8, words, 11, "end", colour)]
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    return [*parts, f"<polyline points='{line}' fill='none' stroke='#3f6fb5' stroke-width='2'/>"]


def size_cuts() -> str:
    """FCLG's printed accuracies beside a cut by size."""
    panels = [("PROTEINS", "nodes", 5, 65), ("NCI1", "edges", 5, 65), ("DHFR", "nodes", 20, 70)]
    parts = [part for number, panel in enumerate(panels) for part in curve(40 + 228 * number, *panel)]
    title = "Accuracy of one threshold on the size of a graph"
    return page(720, 282, title, [text(360, 24, f"{title}, in percent; nothing is trained", 13), *parts])


def figures() -> dict[str, str]:
    """File name to contents."""
    return {"round.svg": federation_round(), "fclg-size.svg": size_cuts()} | {
        f"{name}.svg": federation(f"What is shared: {name}", shown) for name, shown in METHODS.items()
    }


if __name__ == "__main__":
    for name, svg in figures().items():
        (FIGURES / name).write_text(svg, encoding="utf-8")
