"""What a client's model predicts, as a file that a spreadsheet or pandas opens."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flgraph.errors import InputError, expect
from flgraph.runs.files import write_text

PREDICTED = ("probabilities", "label_probabilities", "values", "embeddings", "scores")
"""What the columns of ``predict_step`` may be: a model's ``predicted``, the first one if it has none."""


def write_predictions(
    client: str,
    batches: list[Any],
    rows: Mapping[str, list[Any]],
    predicted: str,
    file: Path,
    classes: Sequence[str] = (),
) -> None:
    """Writes a line for each graph, node or link: what it is, and what the model says of it.

    Args:
        client: for error messages.
        batches: what ``predict_step`` gave, tensors ``[n, columns]``.
        rows: what their rows are of, a list of values for each heading; where there are none, rows are numbered from 0
            in a column ``row``.
        predicted: ``"probabilities"`` of classes, ``p0`` and so on, with the ``class`` of the greatest before them;
            ``"label_probabilities"``, ``p0`` and so on; ``"embeddings"``, ``e0`` and so on; ``"values"`` or
            ``"scores"``, ``value`` or ``score`` where there is one column, ``v0`` or ``s0`` and so on where there are
            several.
        file: a CSV file; replaced if it is there.
        classes: their names; ``class_name`` is then that of ``class``.

    Raises:
        InputError: the batches are no such tensors, no probabilities where they should be, or not as many rows as the
            data says.
    """
    expect(predicted in PREDICTED, "model.predicted", f"one of {', '.join(PREDICTED)}", predicted)
    values = _joined(client, batches).float()
    if predicted in ("probabilities", "label_probabilities"):
        odd = values[(values < 0) | (values > 1.001)]
        wanted = "probabilities, from 0 to 1, (or the model's `predicted` another word)"
        expect(not len(odd), f"predict_step` of client `{client}", wanted, odd[:1].tolist())
    rows = rows or {"row": list(range(len(values)))}
    for heading, column in rows.items():
        field = f"{heading} of client {client}'s prediction_rows"
        expect(isinstance(column, list | tuple), field, "a list", type(column).__name__)
        wanted = f"{len(values)} values, one for each row that was predicted,"
        expect(len(column) == len(values), field, wanted, len(column))
    width = range(values.size(1))
    named = ["class_name"] if len(classes) == len(width) else []
    heads, digits = {
        "probabilities": (["class", *named, *(f"p{number}" for number in width)], ".6f"),
        "label_probabilities": ([f"p{number}" for number in width], ".6f"),
        "values": (["value"] if len(width) == 1 else [f"v{number}" for number in width], ".6g"),
        "embeddings": ([f"e{number}" for number in width], ".6g"),
        "scores": (["score"] if len(width) == 1 else [f"s{number}" for number in width], ".6g"),
    }[predicted]
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow([*rows, *heads])
    for number, value in enumerate(values):
        chosen: list[Any] = [int(value.argmax())] if predicted == "probabilities" else []
        chosen += [classes[number] for number in chosen if named]
        numbers = [format(entry, digits) for entry in value.tolist()]
        writer.writerow([*(column[number] for column in rows.values()), *chosen, *numbers])
    write_text(stream.getvalue(), file)


def _joined(client: str, batches: list[Any]) -> torch.Tensor:
    tensors = [batch for batch in batches if isinstance(batch, torch.Tensor)]
    widths = {batch.size(1) if batch.dim() == 2 else 0 for batch in tensors}
    tables = len(tensors) == len(batches) and len(widths) == 1 and 0 not in widths
    given = {f"{list(b.shape)}" if isinstance(b, torch.Tensor) else type(b).__name__ for b in batches}
    got = ", ".join(sorted(given)) or "none"
    if not tables:
        raise InputError("predict_step", "a method that gives tensors [rows, columns]", got, f"client `{client}`")
    return torch.cat(batches)
