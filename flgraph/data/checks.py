"""What every kind of graph is checked for, and the order of its edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast

import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from flgraph.errors import InputError, expect
from flgraph.nn.tasks import check_targets, check_task

MOST_CLASSES = 100_000
"""More would be an id, a time or an amount that stands where a class should."""


class Doubt(UserWarning):
    """Of files that can be read, and may not mean what they say."""


def check_clients(graphs: Mapping[str, Any]) -> None:
    """Refuses what does not map clients' names to their data, and warns where several have the same.

    Raises:
        InputError: it is no mapping, has no client, or names that are no texts.
    """
    expect(isinstance(graphs, Mapping), "data.graphs", "a mapping from clients to their data", type(graphs).__name__)
    require(len(graphs) > 0, "data.graphs", "the data of at least one client", "none")
    for name in graphs:
        expect(isinstance(name, str), "data.graphs", "a mapping with texts for clients' names", f"the name {name!r}")
    paths = Counter(Path(given) for given in graphs.values() if isinstance(given, str | Path))
    for path, count in paths.items():
        if count > 1:
            rank_zero_warn(f"`data.graphs`: {count} clients have the same data, {path}.", category=Doubt)


def link_arguments(task: str, links: Mapping[str, Any] | None, *further: str) -> dict[str, Any]:
    """``data.links``: arguments of clients' data modules for link prediction, none where the task is another.

    Args:
        task: of the data.
        links: what was given.
        further: names of arguments that there are beside those of :func:`check_held_out`.

    Raises:
        InputError: a name is another, or the task is.
    """
    expect(links is None or task == "links", "data.links", f"null for {task}", links)
    known = ("val_fraction", "test_fraction", "num_negatives", "seed", *further)
    for name in links or {}:
        expect(name in known, "data.links", f"names among {', '.join(known)}", name)
    return dict(links or {})


def check_held_out(val_fraction: float, test_fraction: float, num_negatives: int, seed: int) -> None:
    """Looks at the arguments that all data modules for link prediction have.

    Args:
        val_fraction: share of the links to validate on, from 0 to below 1.
        test_fraction: share to test on; both together are below 1.
        num_negatives: what each held-out link competes with, 1 or more.
        seed: of all draws, below 2^63.

    Raises:
        InputError: one is out of its range, or no number.
    """
    for name, share in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
        fits = isinstance(share, Real) and 0 <= share < 1
        expect(fits, f"data.links.{name}", "a number, 0 or more and below 1", share)
    left = f"below {1 - val_fraction:g}, what `val_fraction` leaves"
    expect(test_fraction < 1 - val_fraction, "data.links.test_fraction", left, test_fraction)
    for name, number, least, most in (("num_negatives", num_negatives, 1, 2**31), ("seed", seed, 0, 2**63)):
        fits = isinstance(number, Integral) and least <= number < most
        expect(fits, f"data.links.{name}", f"a whole number, {least} or more and below {most}", number)


def tensor_of(data: Any, field: str, name: str) -> Tensor:
    """A tensor of a PyG graph or store, without the graph of operations that it may come from.

    Raises:
        InputError: ``data`` has no such field, or no tensor there.
    """
    value = data.get(field)
    expect(isinstance(value, Tensor), f"{name}.{field}", "a tensor", None if value is None else type(value).__name__)
    return cast(Tensor, value).detach()


def classes_of(y: Tensor, field: str, instead: str = "") -> Tensor:
    """Classes as int64.

    Args:
        y: whole numbers of any type.
        field: what an error message calls them.
        instead: what it says of other numbers.

    Raises:
        InputError: some are no whole numbers.
    """
    whole = not y.is_floating_point() or bool((y == y.round()).all() and y.isfinite().all())
    require(whole, field, f"whole numbers, one class each{instead},", "others")
    return y.long()


def targets_of(y: Tensor, count: int, task: str, field: str) -> Tensor:
    """What is to be learned of so many graphs or nodes: classes ``[n]`` int64, or labels or numbers ``[n, T]`` float32.

    Args:
        y: ``[n]`` or ``[n, T]``; NaN for labels and numbers that are not known.
        count: n.
        task: see :data:`~flgraph.nn.tasks.Task`.
        field: what an error message calls ``y``.

    Raises:
        InputError: they are not of this shape, or other numbers than the task has.
    """
    check_task(task, "data.task")
    if task == "multiclass":
        y = y[:, 0] if y.dim() == 2 and y.size(1) == 1 else y
        wanted = f"of shape [{count}], one class for each (or `data.task` multilabel or regression),"
        expect(list(y.shape) == [count], field, wanted, list(y.shape))
        return classes_of(y, field, " (or `data.task` regression)")
    fits = y.dim() in (1, 2) and y.size(0) == count and y.numel() > 0
    expect(fits, field, f"of shape [{count}, T]", list(y.shape))
    made = y.reshape(count, -1).float()
    check_targets(made, task, field)
    return made


def edges_of(edge_index: Tensor, field: str) -> Tensor:
    """``edge_index`` as int64; a tensor without elements may be of any type.

    Raises:
        InputError: it is not of shape ``[2, E]``, or of a floating type.
    """
    shape = list(edge_index.shape)
    expect(len(shape) == 2 and shape[0] == 2, field, "of shape [2, E]", shape)
    whole = not (edge_index.numel() and edge_index.is_floating_point())
    expect(whole, field, "node numbers of an integer type", edge_index.dtype)
    return edge_index.long()


def warn_of_unused(fields: Iterable[str], name: str) -> None:
    """Says in a sentence what data holds that nothing here makes use of; no word where there is nothing."""
    found = list(dict.fromkeys(fields))
    if found:
        shown = ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
        rank_zero_warn(f"Not used of the data of `{name}`: {shown}.")


def warn_of_common(numbers: Sequence[Tensor], unit: str, further: str) -> None:
    """Says in a sentence that links leak, where clients whose links are to be predicted have nodes or edges in common.

    Args:
        numbers: of each client's nodes or edges in the whole graph, ``[n]``.
        unit: what they are of, nodes or edges.
        further: what is to be said behind.
    """
    held = torch.cat(list(numbers))
    if held.unique().numel() < held.numel():
        told = "links that are held out for tests at one client may be in another's training"
        rank_zero_warn(f"Clients have {unit} in common: {told}. {further}")


def unused_fields(data: Any) -> list[str]:
    """What a heterogeneous graph of PyG's holds that :meth:`HeteroGraph.from_pyg` makes no use of."""
    read = {f"{split}_{how}" for split in ("train", "val", "test") for how in ("mask", "idx", "y")}
    read |= {"x", "y", "edge_index", "num_nodes"}
    return [f"{key} of {_type_name(store._key)}" for store in data.stores for key in store if key not in read]


def _type_name(kind: Any) -> str:
    return "-".join(kind) if isinstance(kind, tuple) else str(kind or "the graph")


def require(condition: bool, field: str, expected: str, got: str) -> None:
    """As :func:`~flgraph.errors.expect`, with ``got`` in words, which are not quoted."""
    if not condition:
        raise InputError(field, expected, got)


def expect_tensor(tensor: Tensor, field: str, shape: Sequence[int | str], dtype: torch.dtype) -> None:
    """Raises :class:`InputError` unless a tensor has this type and shape; letters stand for any size."""
    sizes = zip(shape, tensor.shape, strict=False)
    fits = tensor.dim() == len(shape) and all(isinstance(wanted, str) or wanted == size for wanted, size in sizes)
    if not fits or tensor.dtype != dtype:
        wanted, got = (f"[{', '.join(map(str, sizes))}]" for sizes in (shape, tensor.shape))
        names = [str(kind).removeprefix("torch.") for kind in (dtype, tensor.dtype)]
        raise InputError(field, f"of shape {wanted} and {names[0]}", f"{got}, {names[1]}")


def expect_offsets(ptr: Tensor, field: str, count: int, total: int) -> None:
    """Raises :class:`InputError` unless ``ptr`` are the offsets of ``count`` ranges of ``total`` things."""
    expect_tensor(ptr, field, [count + 1], torch.long)
    rising = int(ptr[0]) == 0 and int(ptr[-1]) == total and bool((ptr.diff() >= 0).all())
    expect(rising, field, f"rising from 0 to {total}", [int(ptr[0]), int(ptr[-1])])


def expect_finite(values: Tensor, field: str) -> None:
    """Raises :class:`InputError` where a value is not a number, or infinite."""
    require(bool(torch.isfinite(values).all()), field, "finite", "NaN or infinity")


def expect_classes(y: Tensor, field: str, low: int, high: int | None = None) -> None:
    """Raises :class:`InputError` unless all classes are from ``low`` to ``high``, below :data:`MOST_CLASSES`."""
    least, most = int(y.min()), int(y.max())
    expect(most < MOST_CLASSES, field, f"classes below {MOST_CLASSES}", most)
    wanted = f"{low} or more" if high is None else f"between {low} and {high}"
    expect(least >= low and (high is None or most <= high), field, wanted, least if least < low else most)


def expect_joined(edge_index: Tensor, num_nodes: Tensor | int, field: str, of: str = "") -> None:
    """Raises :class:`InputError` unless edges join nodes 0 to ``num_nodes - 1``.

    Args:
        edge_index: ``[2, E]``, or ``[1, E]`` for one end of them.
        num_nodes: one number, or one for each edge or end.
        field: see :func:`expect`.
        of: what nodes these are, for the message.
    """
    outside = (edge_index < 0) | (edge_index >= num_nodes)
    if bool(outside.any()):
        column = int(outside.any(dim=0).nonzero()[0])
        count = num_nodes if isinstance(num_nodes, int) else int(num_nodes.expand_as(edge_index)[0, column])
        expect(False, field, f"edges between nodes 0 to {count - 1}{of}", edge_index[:, column].tolist())


def edge_keys(edge_index: Tensor, num_nodes: int, group: Tensor | int = 0) -> Tensor:
    """Numbers ``[E]`` in the order of (group, source, target)."""
    return (group * num_nodes + edge_index[0]) * num_nodes + edge_index[1]


def is_symmetric(keys: Tensor, edge_index: Tensor, num_nodes: int) -> bool:
    """Whether every edge is there in both directions, ``keys`` being the ascending ones of the edges."""
    return torch.equal(keys, edge_keys(edge_index.flip(0), num_nodes).sort().values)


def features_of_edges(edge_attr: Tensor, count: int, field: str) -> Tensor:
    """Features of so many edges as float32, ``[E, D]``.

    Raises:
        InputError: they are not of this shape, or not finite.
    """
    shape = list(edge_attr.shape)
    dense = edge_attr.layout == torch.strided and not edge_attr.is_complex()
    fits = dense and len(shape) in (1, 2) and shape[0] == count
    expect(fits, field, f"of shape [{count}, D], a row for each edge,", shape)
    rows = (edge_attr.unsqueeze(1) if len(shape) == 1 else edge_attr).detach().float()
    expect(rows.size(1) > 0, field, "of one column or more", shape)
    expect_finite(rows, field)
    return rows


def sorted_with_features(
    edge_index: Tensor, edge_attr: Tensor, num_nodes: int, undirected: bool = True
) -> tuple[Tensor, Tensor]:
    """:func:`sorted_edges` with their features ``[E, D]``, the means over edges that become one."""
    edges, rows = remove_self_loops(edge_index.long(), edge_attr)
    form = to_undirected if undirected else coalesce
    made: tuple[Tensor, Tensor] = form(edges, rows, num_nodes=num_nodes, reduce="mean")
    return made


def sorted_edges(edge_index: Tensor, num_nodes: int, undirected: bool = True) -> Tensor:
    """``[2, E]`` sorted by (source, target), without self-loops and repeats; with reverses where undirected."""
    edges, _ = remove_self_loops(edge_index.long())
    form = to_undirected if undirected else coalesce
    made: Tensor = form(edges, num_nodes=num_nodes)
    return made
