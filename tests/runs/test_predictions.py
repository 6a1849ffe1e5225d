from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from flgraph.errors import InputError
from flgraph.runs.predictions import write_predictions

TWO = [torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5]])]


def written(tmp_path: Path, batches: list[Any], rows: dict[str, list[Any]], predicted: Any) -> list[list[str]]:
    file = tmp_path / "A.csv"
    write_predictions("A", batches, rows, predicted, file)
    with open(file, newline="") as stream:
        return list(csv.reader(stream))


def test_probabilities_stand_beside_what_they_are_of(tmp_path: Path) -> None:
    rows = {"node": [7, 3], "split": ["train", ""]}
    assert written(tmp_path, TWO, rows, "probabilities") == [
        ["node", "split", "class", "p0", "p1"],
        ["7", "train", "1", "0.250000", "0.750000"],
        ["3", "", "0", "0.500000", "0.500000"],
    ]


def test_rows_are_numbered_where_data_tells_nothing(tmp_path: Path) -> None:
    assert written(tmp_path, TWO, {}, "embeddings") == [["row", "e0", "e1"], ["0", "0.25", "0.75"], ["1", "0.5", "0.5"]]


def test_scores_have_no_class(tmp_path: Path) -> None:
    link, score = {"relation": ["likes, much"]}, torch.tensor([[-3.5]])
    assert written(tmp_path, [score], link, "scores") == [["relation", "score"], ["likes, much", "-3.5"]]
    assert written(tmp_path, TWO, {}, "scores")[0] == ["row", "s0", "s1"]


@pytest.mark.parametrize(
    ("batches", "rows", "predicted", "message"),
    [
        (
            [torch.zeros(3)],
            {},
            "scores",
            r"gives tensors \[rows, columns\] but got \[3\] in client `A`\.",
        ),
        (["words"], {}, "scores", r"but got str in"),
        ([], {}, "scores", r"but got none in"),
        (
            [torch.tensor([[-2.5, 0.5]])],
            {},
            "probabilities",
            r"of client `A` to be probabilities.* got \[-2\.5\]",
        ),
        ([torch.tensor([[2.5, 0.5]])], {}, "label_probabilities", r"to be probabilities.* got \[2\.5\]"),
        (TWO, {"node": [1]}, "scores", "`node of client A's prediction_rows` to be 2 values, one for each row that"),
        (
            TWO,
            {},
            "logits",
            "`model.predicted` to be one of probabilities, .*, embeddings, scores but got 'logits'",
        ),
    ],
)
def test_errors(tmp_path: Path, batches: list[Any], rows: dict[str, list[Any]], predicted: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        written(tmp_path, batches, rows, predicted)
    assert not (tmp_path / "A.csv").exists()
