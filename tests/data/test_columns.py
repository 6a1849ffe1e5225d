"""What values of own files are, and the numbers that they become."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pytest
import torch

from flgraph.data.checks import Doubt
from flgraph.data.columns import (
    Coding,
    Column,
    class_names,
    declared_classes,
    declared_columns,
    derived_classes,
    derived_columns,
)
from flgraph.errors import InputError

MARKER = "Zyxomma"


def column(*values: Any) -> Column:
    return Column.of(values, "ward in nodes.csv")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (("1", "2.5", ""), "number", [1, 2.5, np.nan]),
        ((1, True, None), "number", [1, 1, np.nan]),
        (("true", "False", None), "number", [1, 0, np.nan]),
        (("1e3", " -4 ", ".5"), "number", [1000, -4, 0.5]),
        ((None, None), "number", [np.nan, np.nan]),
        (("icu", "1", None), "text", ["icu", "1", None]),
        (("2024-03-01", "2024-03-01T12:00", None), "years", ["2024-03-01", "2024-03-01T12:00", None]),
        (("1.2.2024",), "years", ["1.2.2024"]),
        ((date(2024, 3, 1),), "years", ["2024-03-01"]),
        (("nine", "inf"), "text", ["nine", "inf"]),
        (("1", "NA", "2"), "number", [1, np.nan, 2]),
        (("true", "None", "n/a"), "number", [1, np.nan, np.nan]),
        (("2024-03-01", "null"), "years", ["2024-03-01", None]),
        (("ZA", "NA", "DE"), "text", ["ZA", "NA", "DE"]),
    ],
)
def test_kinds(values: tuple[Any, ...], kind: str, expected: list[Any]) -> None:
    made = column(*values)
    assert made.kind == kind
    np.testing.assert_equal(made.values.tolist(), expected)
    assert made.missing.tolist() == [value is None or value != value for value in expected]


def test_numbers_as_text_have_no_needless_point() -> None:
    assert column(1.0, 2.5, None).texts() == ["1", "2.5", None]


def test_categories_are_told_apart_as_they_are_written() -> None:
    """But for the point of a whole number."""
    for names, values in (
        (("01234", "1234"), ["01234", "1234"]),
        (("1.5", "1.50"), ["1.5", "1.50"]),
        (("false", "true"), ["false", "true"]),
        (("false", "true"), [False, True]),
        (("1", "7"), ["1.0", "7"]),
        (("7.5", "8"), ["7.50", "8"]),
        (("0", "1"), ["false", "true"]),
    ):
        found = Coding((), {"ward": names}).features({"ward": column(*values)}, 2, "t")
        assert found.tolist() == [[1, 0], [0, 1]]
    with pytest.raises(InputError, match="one of its 2 declared categories but got another in row 2"):
        Coding((), {"ward": ("1", "7")}).features({"ward": column("1.0", "007")}, 2, "t")


def test_features() -> None:
    columns = {
        "age": Column.of(["2", "", "4"], "age"),
        "ward": Column.of(["b", "a", None], "ward"),
        "seen": Column.of(["2000-01-01", "2001-01-01", "2000-01-01"], "seen"),
        "unused": Column.of(["x", "y", "z"], "unused"),
    }
    kinds = {"ward": ("a", "b", "c"), "age": "number", "seen": "years"}
    mean = Coding(("0",), kinds, "mean")
    expected = [[2, 0, 0, 1, 0], [3, 366 / 365.25, 1, 0, 0], [4, 0, 0, 0, 0]]
    torch.testing.assert_close(mean.features(columns, 3, "t"), torch.tensor(expected))
    zero = Coding(("0",), kinds, "zero").features(columns, 3, "t")
    assert zero[1, 0] == 0
    assert mean.width == 5
    assert Coding((), {}).features({}, 2, "t").tolist() == [[1], [1]]


def test_one_moment_in_two_zones_is_one_number() -> None:
    values = Column.of(["2024-03-01T12:00", "2024-03-01T12:00Z", "2024-03-01T14:00+02:00"], "seen").years()
    assert values[0] == values[1] == values[2] == (8826 + 0.5) / 365.25


@pytest.mark.parametrize(
    ("kinds", "sentence"),
    [
        ({"age": "number"}, "Expected `age` to be without gaps, unless `data.missing` is zero or mean, but got 1 that"),
        ({"ward": ("a", "b")}, "Expected `ward` to be one of its 2 declared categories but got another in row 2."),
        ({"ward": "number"}, "Expected `ward` to be numbers, as `data.columns` says, but got something else."),
        (
            {"ward": "years"},
            "Expected `ward` to be points in time such as 2024-03-01 .* but got something else in row 1",
        ),
        ({"height": "number"}, "Expected `t` to be a table with the column `height`, as .* but got one without."),
    ],
)
def test_refused_features(kinds: dict[str, Any], sentence: str) -> None:
    columns = {"age": Column.of(["2", ""], "age"), "ward": Column.of(["b", MARKER], "ward")}
    with pytest.raises(InputError, match=sentence) as caught:
        Coding((), kinds).features(columns, 2, "t")
    assert MARKER not in str(caught.value)


def test_labels() -> None:
    coding = Coding(("well", "sick"), {})
    assert coding.labels(["sick", None, "well"], "label").tolist() == [1, -1, 0]
    with pytest.raises(
        InputError, match=r"one of the 2 classes of `data.classes` but got another in row 2\."
    ) as caught:
        coding.labels(["sick", MARKER], "label")
    assert MARKER not in str(caught.value)


def test_derived_classes() -> None:
    assert derived_classes([("n", ["b", None]), ("e", ["a"])]) == ("a", "b")
    assert derived_classes([("n", ["10", "2"]), ("e", ["-1"])]) == ("-1", "2", "10")
    assert derived_classes([("n", ["0"])], least=3) == ("0", "1", "2")
    with pytest.warns(Doubt, match="1 of 3 names differ from another in capital letters only, in how accents are"):
        assert derived_classes([("n", ["1", "2"]), ("e", ["01"])]) == ("01", "1", "2")
    with pytest.warns(Doubt, match=r"2 of 5 names differ from another .*, or as 01 and 1\.0 do from 1"):
        derived_classes([("n", ["1", "0"]), ("e", ["1.0", "0.0", "x"])])
    with pytest.warns(Doubt, match="1 of 2 names differ from another"):
        assert len(derived_classes([("n", ["caf\u00e9"]), ("e", ["cafe\u0301"])])) == 2


def test_names_of_classes() -> None:
    """``0.0`` is how pandas writes ``0`` beside gaps: partners that have none write ``0``."""
    assert class_names(["1.0", None, "0."]) == ["1", None, "0"]
    assert class_names(["1.0", "a"]) == ["1.0", "a"]
    assert class_names(["007", "1.5", "2"]) == ["007", "1.5", "2"]
    assert declared_classes(["1.0", "0.0"]) == ("1", "0")


def test_what_may_be_a_name_or_nothing_is_declared() -> None:
    country = Column.of(["ZA", "NA", None], "n")
    with pytest.raises(
        InputError, match=r"`n` to be names, and empty .* but got NA, null .* in row 2; .*`data.columns`"
    ):
        derived_columns({"north": {"country": country}})
    coding = Coding((), {"country": ("NA", "ZA")}, "zero")
    assert coding.features({"country": country}, 3, "n").tolist() == [[0, 1], [1, 0], [0, 0]]


def test_derived_columns() -> None:
    north = {"age": Column.of(["1", ""], "n"), "ward": Column.of(["1", "2"], "n")}
    east = {"ward": Column.of(["x"], "e"), "age": Column.of([""], "e")}
    with pytest.raises(InputError, match=r"`e` to be numbers, as at other clients, but got something else in row 1"):
        derived_columns({"north": north, "east": east})
    north["ward"] = Column.of(["1", "y"], "n")
    assert derived_columns({"north": north, "east": east}) == {"age": "number", "ward": ("1", "x", "y")}
    with pytest.raises(InputError, match=r"files with the same columns as `north` but got `ward` in one of them only"):
        derived_columns({"north": north, "east": {"age": east["age"]}})
    with pytest.raises(InputError, match="numbers or categories but got points in time"):
        derived_columns({"north": {"seen": Column.of(["2024-01-01"], "n")}})
    with pytest.raises(InputError, match="texts of at most 100 kinds but got 101 kinds of text") as caught:
        derived_columns({"north": {"name": Column.of([f"{MARKER}{number}" for number in range(101)], "n")}})
    assert MARKER not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (["1", "2.5", "3x", ""], r"something else in row 3 \(categories"),
        (["age", "31", "44"], r"something else in row 1 \(categories"),
        (["1,5", "2,5"], "something else in row 1; decimals need points"),
        (["1 000", "12 000", "7"], "something else in row 1; numbers are written without groups"),
        (["1.000.000", "2,345.60"], "something else in row 1; numbers are written without groups"),
    ],
)
def test_a_slip_makes_no_categories_of_numbers(values: list[str], told: str) -> None:
    with pytest.raises(InputError, match=f"`n` to be numbers, as most of it is, but got {told}"):
        derived_columns({"north": {"age": Column.of(values, "n")}})
    assert derived_columns({"north": {"house": Column.of(["1a", "2", "3b"], "n")}}) == {"house": ("1a", "2", "3b")}


def test_declared() -> None:
    assert declared_classes(2) == ("0", "1")
    assert declared_classes(["a", 7]) == ("a", "7")
    assert declared_classes(None) is None
    assert declared_columns({"age": "number", "ward": ["a", 2]}) == {"age": "number", "ward": ("a", "2")}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: declared_classes(0), "`data.classes` to be a list of classes or how many there are but got 0"),
        (lambda: declared_classes([]), "`data.classes` to be a list of names"),
        (lambda: declared_classes(["a", "a"]), "different names but got one of them twice"),
        (lambda: declared_classes([True, "no"]), "names, in quotes where YAML has its own"),
        (lambda: declared_columns({"age": "years old"}), "`data.columns.age` to be number, years, or a list"),
        (lambda: Column.of([float("inf")], "age"), "`age` to be finite in float32 but got infinity in row 1"),
    ],
)
def test_refused_declarations(call: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()
