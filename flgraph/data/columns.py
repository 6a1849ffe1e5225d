"""Columns of own files, and how their values become numbers: the same at all partners.

No message repeats a value: values are data. Messages name the file, the column and the line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal, get_args

import numpy as np
import torch
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from flgraph.data.checks import Doubt, require
from flgraph.errors import InputError, expect
from flgraph.nn.tasks import Task

Missing = Literal["refuse", "zero", "mean"]
"""What becomes of a missing value: an error, 0, or the mean of its column in this client's files."""

Categories = tuple[str, ...]
Kind = str | Categories
"""What a column becomes: ``"number"``, ``"years"`` (of a point in time, since 2000), or one-hots of categories."""

NUMBER, YEARS, TEXT = "number", "years", "text"

MOST_CATEGORIES = 100
"""A column of more different texts is taken for names or free text, unless its categories are declared."""

_TIME = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}([ T]\d{1,2}:\d{2}.*)?|\d{1,2}[./]\d{1,2}[./]\d{4}( .*)?|\d{1,2}:\d{2}(:\d{2})?"
)
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_GROUPED = re.compile(r"[-+]?\d{1,3}([ ,.'\u00a0\u202f]\d{3})+([.,]\d+)?")
_WHOLE = re.compile(r"(-?\d+)(\.0*)?")
_INTEGER = re.compile(r"-?\d+")
_LOGICAL = {"true": 1.0, "false": 0.0}

RESERVED = frozenset(("id", "label", "split", "graph"))
"""Columns of nodes and graphs that are no features."""

TARGET = "label_"
"""What names of columns begin with, where there are several labels or numbers to be learned."""

ABSENT = frozenset(("na", "n/a", "#n/a", "<na>", "nan", "null", "none"))
"""What programs write for a missing value, in small letters. Among numbers it is one; among texts it may be a text."""


@dataclass(frozen=True)
class Column:
    """The values of one column.

    Attributes:
        values: ``[n]``, float64 with NaN where one is missing, or objects (texts and ``None``).
        kind: ``"number"``, ``"years"`` for points in time, or ``"text"``.
        where: file and column, for messages.
        written: makes the texts of numbers as they stand in the file, where that is known.
    """

    values: np.ndarray
    kind: str
    where: str
    written: Callable[[], Sequence[str | None]] | None = None

    @classmethod
    def of(cls, values: Iterable[Any], where: str) -> Column:
        """Tells what values are: numbers, also as text, truth values, points in time, or else text.

        Raises:
            InputError: a number is infinite.
        """
        given = [None if _is_missing(value) else value for value in values]
        told = [None if isinstance(value, str) and is_absent(value) else value for value in given]
        there = [value for value in told if value is not None]
        written = lambda: [None if value is None else as_text(value) for value in told]  # noqa: E731
        if all(isinstance(value, bool | int | float | np.number | np.bool_) for value in there):
            return cls.of_numbers(_floats(told), where, written)
        texts = [str(value).strip() for value in there]
        if all(_NUMBER.fullmatch(text) for text in texts):
            return cls.of_numbers(_floats(told), where, written)
        if all(text.lower() in _LOGICAL for text in texts):
            logical = [None if value is None else _LOGICAL[str(value).strip().lower()] for value in told]
            return cls.of_numbers(_floats(logical), where, written)
        in_time = all(isinstance(v, date) or _TIME.fullmatch(t) for v, t in zip(there, texts, strict=True))
        plain = [None if value is None else as_text(value) for value in (told if in_time else given)]
        return cls(np.array(plain, dtype=object), YEARS if in_time else TEXT, where)

    @classmethod
    def of_numbers(
        cls, values: np.ndarray, where: str, written: Callable[[], Sequence[str | None]] | None = None
    ) -> Column:
        """Numbers ``[n]`` float64, NaN where one is missing, and how they are written.

        Raises:
            InputError: one is infinite, or would be in float32.
        """
        infinite = np.abs(values) > np.finfo(np.float32).max
        require(not infinite.any(), where, "finite in float32", f"infinity in row {first_row(infinite)}")
        return cls(values, NUMBER, where, written)

    @classmethod
    def joined(cls, parts: Sequence[Column], where: str) -> Column:
        """Columns of several graphs as one: what is no number in one of them is as it is written in all."""
        written = lambda: [text for part in parts for text in part.texts()]  # noqa: E731
        if all(part.kind == NUMBER for part in parts):
            return cls.of_numbers(np.concatenate([part.values for part in parts]), where, written)
        return cls.of(written(), where)

    @property
    def missing(self) -> np.ndarray:
        """Which values are missing ``[n]``, bool."""
        if self.kind == NUMBER:
            return np.isnan(self.values)
        return np.array([value is None for value in self.values], dtype=bool)

    def texts(self) -> list[str | None]:
        """The values as they are written (``007``); numbers that were never text without a point if they are whole."""
        texts = self.numerals() if self.written is None else self.written()
        return [None if gone else text for text, gone in zip(texts, self.missing, strict=True)]

    def numerals(self) -> list[str | None]:
        """The values as text; numbers in their shortest form, whole ones without a point."""
        return [None if gone else as_text(value) for value, gone in zip(self.values, self.missing, strict=True)]

    def nearly_numbers(self) -> bool:
        """Whether more than half of a column of texts are numbers, also such as ``1,5`` and ``1 000``."""
        texts = [text for text in self.texts() if text is not None]
        alike = (any(form.fullmatch(text) for form in (_NUMBER, _DECIMAL_COMMA, _GROUPED)) for text in texts)
        return self.kind == TEXT and sum(alike) > len(texts) / 2

    def first_text(self) -> str:
        """Where the first value is that is no number, in words."""
        for row, text in enumerate(self.texts(), start=1):
            if text is not None and not _NUMBER.fullmatch(text):
                hint = "; decimals need points" if _DECIMAL_COMMA.fullmatch(text) else ""
                hint = hint or "; numbers are written without groups" * bool(_GROUPED.fullmatch(text))
                return f"something else in row {row}{hint}"
        return "something else"

    def years(self) -> np.ndarray:
        """Years since 2000 of points in time in ISO 8601 (``2024-03-01T12:00``); in UTC where no zone is written.

        Raises:
            InputError: one is written otherwise.
        """
        found = np.full(len(self.values), np.nan)
        for row, value in enumerate(self.texts()):
            if value is None:
                continue
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                wanted = "points in time such as 2024-03-01 or 2024-03-01T12:00"
                raise InputError(self.where, wanted, f"something else in row {row + 1}") from None
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            found[row] = (moment - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds()
        return found / (365.25 * 86400)


def first_row(found: np.ndarray) -> int:
    """The number of the first row, counted from 1, where something was found ``[n]``; 0 where nothing was."""
    return int(found.argmax()) + 1 if found.any() else 0


def is_absent(text: str) -> bool:
    """Whether a text is one of :data:`ABSENT`."""
    return text.strip().lower() in ABSENT


def class_names(labels: Sequence[str | None]) -> list[str | None]:
    """Labels as names of classes: where all are whole numbers, without a point, which pandas writes beside gaps.

    >>> class_names(["1.0", None, "0.0"])
    ['1', None, '0']
    """
    found = [None if label is None else _WHOLE.fullmatch(label) for label in labels]
    whole = all(match or label is None for match, label in zip(found, labels, strict=True))
    return [match[1] if match else None for match in found] if whole else list(labels)


def _is_missing(value: Any) -> bool:
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or value != value
        or (isinstance(value, str) and not value.strip())
    )


def _floats(values: Iterable[Any]) -> np.ndarray:
    return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)


def as_text(value: Any) -> str:
    """A value as CSV has it: whole numbers without a point, ``true`` and ``false``, dates in ISO 8601."""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return value.isoformat() if isinstance(value, date) else str(value).strip()


# -------------------------------------------------------------------------------------------------------------- coding
@dataclass(frozen=True)
class Coding:
    """What all partners agree on: the number of each class, and what features each column becomes.

    Attributes:
        classes: names of the classes, in the order of their numbers; with another task those of the labels or numbers.
        columns: name to what it becomes. Features are in the order of the columns' names, so that it does not matter in
            which order partners write them.
        missing: see :data:`Missing`.
        task: see :data:`~flgraph.nn.tasks.Task`.
    """

    classes: Categories
    columns: Mapping[str, Kind]
    missing: Missing = "refuse"
    task: Task = "multiclass"
    field: str = "data.columns"

    @property
    def width(self) -> int:
        """Number of features."""
        return sum(len(kind) if isinstance(kind, tuple) else 1 for kind in self.columns.values())

    def labels(self, labels: Sequence[str | None], where: str) -> Tensor:
        """Numbers of classes ``[n]``, -1 where there is no label.

        Raises:
            InputError: a label is none of the classes.
        """
        number = {name: code for code, name in enumerate(self.classes)}
        codes = [-1 if label is None else number.get(label, -2) for label in labels]
        strange = codes.index(-2) + 1 if -2 in codes else 0
        wanted = f"one of the {len(self.classes)} classes of `data.classes`"
        require(not strange, where, wanted, f"another in row {strange}")
        return torch.tensor(codes, dtype=torch.long)

    def targets(self, columns: Mapping[str, Column], where: str) -> Tensor:
        """Labels or numbers ``[n, T]`` float32 in the order of their names, NaN where one is missing.

        Raises:
            InputError: one is not there, or no number, or other than 0 and 1 where they are labels.
        """
        for name in self.classes:
            wanted = f"one with `{_short(name)}`, as `data.classes` says (the names of what is learned, in this task),"
            require(name in columns, where, wanted, "one without")
        labels = self.task == "multilabel"
        wanted = "0 or 1, true or false, or empty," if labels else "numbers, or empty,"
        for name in self.classes:
            numbers = columns[name].kind == NUMBER or bool(columns[name].missing.all())
            if not numbers:
                raise InputError(columns[name].where, wanted, columns[name].first_text())
        rows = np.stack([columns[name].values.astype(np.float64) for name in self.classes], axis=1)
        if labels:
            strange = ~(np.isnan(rows) | (rows == 0) | (rows == 1)).all(axis=1)
            require(not strange.any(), where, wanted, f"another in row {first_row(strange)}")
        return torch.from_numpy(rows).float()

    def features(self, columns: Mapping[str, Column], count: int, where: str) -> Tensor:
        """Features ``[n, width]`` float32; without columns a single one that is 1 everywhere.

        Raises:
            InputError: a column is not there, is of another kind, has an unknown category, or lacks values.
        """
        parts = []
        for name, kind in sorted(self.columns.items()):
            require(
                name in columns,
                where,
                f"a table with the column `{_short(name)}`, as `{self.field}` says,",
                "one without",
            )
            parts.append(self._encoded(columns[name], kind))
        if not parts:
            return torch.ones(count, 1)
        return torch.from_numpy(np.concatenate(parts, axis=1)).float()

    def _encoded(self, column: Column, kind: Kind) -> np.ndarray:
        gone = column.missing
        if self.missing == "refuse" and gone.any():
            got = f"{int(gone.sum())} that are missing, the first in row {first_row(gone)}"
            raise InputError(column.where, "without gaps, unless `data.missing` is zero or mean,", got)
        if isinstance(kind, tuple):
            place = {name: code for code, name in enumerate(kind)}
            # 1.0 is of the category 1, and true is, where there is no such category; 01 is not.
            pairs = zip(column.texts(), column.numerals(), strict=True)
            codes = [
                -1 if text is None else place.get(text, place.get(_plain(text, short), -2)) for text, short in pairs
            ]
            strange = codes.index(-2) + 1 if -2 in codes else 0
            require(
                not strange, column.where, f"one of its {len(kind)} declared categories", f"another in row {strange}"
            )
            return np.concatenate([np.eye(len(kind)), np.zeros((1, len(kind)))])[codes]
        if kind == NUMBER:
            if column.kind != NUMBER:
                raise InputError(column.where, f"numbers, as `{self.field}` says,", column.first_text())
            values = column.values
        else:
            values = column.years()
        rest = float(np.nanmean(values)) if self.missing == "mean" and not gone.all() else 0.0
        return np.where(gone, rest, values)[:, None]


def _plain(text: str, numeral: str | None) -> str:
    """A number as it is declared: whole ones without a point, others in their shortest form."""
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else numeral or ""


def declared_classes(given: int | Sequence[Any] | None) -> Categories | None:
    """Names of the classes that a configuration declares; a number stands for 0, 1, ...

    Raises:
        InputError: it is no such list.
    """
    if given is None:
        return None
    if isinstance(given, int) and not isinstance(given, bool):
        expect(given >= 1, "data.classes", "a list of classes or how many there are", given)
        return tuple(map(str, range(given)))
    return _names(given, "data.classes")


def declared_columns(given: Mapping[str, Any] | None, field: str = "data.columns") -> dict[str, Kind] | None:
    """What columns become, as a configuration declares it; in the order of their names, whatever order it has.

    Raises:
        InputError: it says something else than ``number``, ``years`` or a list of categories.
    """
    if given is None:
        return None
    expect(isinstance(given, Mapping), field, "a mapping from columns to what they are", type(given).__name__)
    kinds: dict[str, Kind] = {}
    for name, kind in sorted(given.items(), key=lambda item: str(item[0])):
        listed = isinstance(kind, list | tuple)
        expect(listed or kind in (NUMBER, YEARS), f"{field}.{name}", "number, years, or a list of categories", kind)
        kinds[str(name)] = _names(kind, f"{field}.{name}") if listed else kind
    return kinds


def check_missing(missing: str) -> None:
    """Refuses what is no rule for missing values."""
    expect(missing in get_args(Missing), "data.missing", f"one of {', '.join(get_args(Missing))}", missing)


def derived_classes(
    labels: Iterable[tuple[str, Iterable[str | None]]], least: int = 0, field: str = "data.classes"
) -> Categories:
    """All labels that some client has, in the order of numbers where they are whole numbers, else of letters.

    Args:
        labels: of each client, and before them where they are, for messages.
        least: so many classes that are numbers are there in any case.
        field: in which names are declared.

    Raises:
        InputError: one is of :data:`ABSENT`: nobody has said whether it is a name or stands for nothing.
    """
    found = set(map(str, range(least)))
    for where, given in labels:
        own = list(given)
        row = first_row(np.array([label is not None and is_absent(label) for label in own]))
        got = f"NA, null or the like in row {row}; if that is a name, declare all names in `{field}`"
        require(not row, where, "names, and empty where there is none,", got)
        found |= {label for label in own if label is not None}
    plain = {own: unicodedata.normalize("NFKC", own).casefold() for own in found}
    numbers = {own: str(int(match[1])) for own in found if (match := _WHOLE.fullmatch(own))}
    alike = len(found) - len({numbers.get(own, plain[own]) for own in found})
    if alike:
        how = "in capital letters only, in how accents are coded, or as 01 and 1.0 do from 1"
        text = f"`{field}`: {alike} of {len(found)} names differ from another {how}"
        rank_zero_warn(f"{text}; they count apart. Write them alike, or declare them.", category=Doubt)
    whole = all(map(_INTEGER.fullmatch, found))
    return tuple(sorted(found, key=lambda label: (int(label), label)) if whole else sorted(found))


def expect_classes(labels: Iterable[str | None], where: str) -> None:
    """Refuses labels that were measured: each would be a class of its own.

    Raises:
        InputError: all are numbers, and not all of them whole.
    """
    given = {label for label in labels if label is not None and not is_absent(label)}
    measured = all(_NUMBER.fullmatch(label) for label in given) and not all(float(own).is_integer() for own in given)
    require(not measured, where, "classes", "numbers with fractions, which need `data.task` regression")


def derived_targets(tables: Mapping[str, Mapping[str, Column]]) -> Categories:
    """Names of the labels or numbers that are to be learned, which all clients must have, in the order of the letters.

    Args:
        tables: client to its columns of labels.

    Raises:
        InputError: a client has none, or others than the first.
    """
    first, names = next(iter(tables.items()))
    for client, columns in tables.items():
        require(len(columns) > 0, f"data.graphs.{client}", "data with `label`, or several `label_...`", "none")
        same = sorted(columns) == sorted(names)
        require(same, f"data.graphs.{client}", f"data with the same labels as `{first}`", "others")
    return tuple(sorted(names))


def derived_columns(tables: Mapping[str, Mapping[str, Column]]) -> dict[str, Kind]:
    """What columns become where all clients' files are at hand: text becomes one-hots of all categories there are.

    Args:
        tables: client to its columns.

    Raises:
        InputError: clients have other columns, one of :data:`RESERVED` in capital letters, one called ``label_...``,
            points in time, a column of too many texts, or one of numbers with a text among them.
    """
    first, names = next(iter(tables.items()))
    for client, columns in tables.items():
        differing = sorted(set(names) ^ set(columns))
        what = f"of files with the same columns as `{first}`"
        got = f"`{_short(differing[0])}` in one of them only" if differing else ""
        require(not differing, f"data.graphs.{client}", what, got)
    kinds: dict[str, Kind] = {}
    for name in sorted(names):
        same = [own[name] for own in tables.values()]
        meant = "label" if name.casefold().startswith(TARGET) else name.casefold()
        wanted = f"called `{meant}`, or declared in `data.columns` if it is a feature,"
        require(name == meant or meant not in RESERVED, same[0].where, wanted, f"`{_short(name)}`")
        found = {column.kind for column in same if not column.missing.all()}
        where = same[0].where
        if YEARS in found and found <= {YEARS}:
            got = "points in time; take the column out, or declare it as `years` (2024-03-01) in `data.columns`"
            raise InputError(where, "numbers or categories", got)
        if found <= {NUMBER}:
            kinds[name] = NUMBER
            continue
        if found == {NUMBER, TEXT}:  # one text would make categories of a column of numbers
            odd = next(column for column in same if column.kind == TEXT)
            got = f"{odd.first_text()} (categories are declared in `data.columns`)"
            raise InputError(odd.where, "numbers, as at other clients,", got)
        for column in same:
            if column.nearly_numbers():
                got = f"{column.first_text()} (categories are declared in `data.columns`)"
                raise InputError(column.where, "numbers, as most of it is,", got)
        texts = derived_classes(((column.where, column.texts()) for column in same), field="data.columns")
        most = f"numbers, or texts of at most {MOST_CATEGORIES} kinds"
        got = f"{len(texts)} kinds of text; take the column out, or declare it in `data.columns`"
        require(len(texts) <= MOST_CATEGORIES, where, most, got)
        kinds[name] = texts
    return kinds


def _names(given: Any, field: str) -> Categories:
    listed = isinstance(given, list | tuple) and bool(given)
    expect(listed, field, "a list of names", given)
    quoted = not any(isinstance(name, bool | None) for name in given)
    require(quoted, field, "names, in quotes where YAML has its own ('yes', 'null')", "one without")
    names = tuple(map(str, class_names([as_text(name) for name in given])))
    require(len(set(names)) == len(names), field, "different names", "one of them twice")
    return names


def _short(name: str) -> str:
    return name[:40]
