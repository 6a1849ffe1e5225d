"""Made-up tables of three partners; the same ones every time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

PARTNERS = ("north", "east", "west")
Rows = list[tuple[Any, ...]]


def accounts(partner: int) -> dict[str, Rows]:
    """Accounts and payments between them; ``fraud`` has low balances and pays its like."""
    draw = random.Random(f"accounts {partner}")
    labels = [draw.choice(("fine", "fine", "fraud")) for _ in range(60)]
    nodes: Rows = [("id", "label", "years", "balance", "branch")]
    for number, label in enumerate(labels):
        balance = draw.gauss(0.6 if label == "fraud" else 1.6, 0.5)
        years = draw.uniform(0, 2 if label == "fraud" else 4)
        nodes.append((f"A{number:03d}", label, f"{years:.1f}", f"{balance:.2f}", draw.choice(("city", "online"))))
    edges: Rows = [("source", "target")]
    seen: set[tuple[int, int]] = set()
    while len(seen) < 120:
        source, target = sorted(draw.sample(range(60), 2))
        alike = labels[source] == labels[target]
        if (source, target) not in seen and draw.random() < (0.9 if alike else 0.3):
            seen.add((source, target))
            edges.append((f"A{source:03d}", f"A{target:03d}"))
    return {"nodes": nodes, "edges": edges}


def molecules(partner: int) -> dict[str, Rows]:
    """Molecules, half of which have a ring; each partner has another share of the elements."""
    draw = random.Random(f"molecules {partner}")
    graphs: Rows = [("id", "label")]
    nodes: Rows = [("graph", "id", "element", "charge")]
    edges: Rows = [("graph", "source", "target")]
    for number in range(40):
        name, size, ring = f"M{number:02d}", draw.randint(5, 9), number % 2 == 0
        graphs.append((name, "ring" if ring else "chain"))
        for atom in range(size):
            element = draw.choices(("C", "N", "O"), (4, 1 + partner, 3 if ring else 1))[0]
            nodes.append((name, atom, element, draw.choice((0, 0, 0, 1))))
        edges += [(name, atom, atom + 1) for atom in range(size - 1)]
        if ring:
            edges.append((name, size - 1, 0))
    return {"graphs": graphs, "nodes": nodes, "edges": edges}


def library(partner: int) -> dict[str, Rows]:
    """Authors, papers and journals; journals tell of the author's field, and the last partner has none of these."""
    draw = random.Random(f"library {partner}")
    fields = [draw.choice(("biology", "physics")) for _ in range(40)]
    authors: Rows = [("id", "label")]
    authors += [(f"a{number}", field) for number, field in enumerate(fields)]
    papers: Rows = [("id", "pages")]
    writes: Rows = [("source", "target")]
    appears: Rows = [("source", "target")]
    for number in range(80):
        first = draw.randrange(40)
        biology = fields[first] == "biology"
        papers.append((f"p{number}", f"{draw.gauss(0.6 if biology else 1.6, 0.4):.2f}"))
        alike = [author for author in range(40) if fields[author] == fields[first] and author != first]
        writes += [(f"a{author}", f"p{number}") for author in (first, draw.choice(alike))]
        appears.append((f"p{number}", f"j{draw.randrange(3) + (0 if biology else 3)}"))
    tables = {"author": authors, "paper": papers, "author-writes-paper": writes}
    if partner < 2:
        tables["journal"] = [("id",), *((f"j{number}",) for number in range(6))]
        tables["paper-appears_in-journal"] = appears
    return tables


TABLES: dict[str, Callable[[int], dict[str, Rows]]] = {"nodes": accounts, "graphs": molecules, "hetero": library}
