"""Tables of own files: CSV and Parquet."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date, time
from decimal import Decimal
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from pytorch_lightning.utilities import rank_zero_warn

from flgraph.data.checks import Doubt, require
from flgraph.data.columns import Column, as_text, first_row, is_absent
from flgraph.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame, Index

ENDINGS = (".csv", ".parquet")

_VALUES = (str, int, float, np.generic, date, time, Decimal, UUID)
_COMMAS = "decimals need points, texts with commas quotes"


class Table:
    """A file of rows under named columns.

    Args:
        file: it.
        frame: what it holds.
    """

    def __init__(self, file: Path, frame: DataFrame) -> None:
        self.file, self.frame = file, frame
        self.names = [str(name) for name in frame.columns]

    def __len__(self) -> int:
        return len(self.frame)

    def where(self, name: str) -> str:
        """A column, for messages."""
        return f"{name} in {self.file}"

    def rows(self, order: np.ndarray) -> Table:
        """The rows of these numbers, in this order."""
        return Table(self.file, self.frame.iloc[order])

    def column(self, name: str) -> Column:
        """A column's values, with what they are."""
        import pandas as pd

        self._require_values(name)
        series = self.frame[name]
        if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
            numbers = series.to_numpy(dtype=np.float64, na_value=np.nan)
            return Column.of_numbers(numbers, self.where(name), partial(self.texts, name, empty=True))
        if pd.api.types.is_string_dtype(series):
            numbers = pd.to_numeric(series, errors="coerce")  # many times faster than looking at each
            left = series[numbers.isna() & series.notna()]
            if not numbers.isna().all() and all(map(is_absent, left)):
                written = partial(self.texts, name, empty=True)
                return Column.of_numbers(numbers.to_numpy(dtype=np.float64), self.where(name), written)
        return Column.of(series.tolist(), self.where(name))

    def texts(self, name: str, empty: bool = False) -> list[str | None]:
        """A column's values as they are written.

        Args:
            name: of the column.
            empty: whether some may be missing.

        Raises:
            InputError: there is no such column, or values are missing.
        """
        self._require_values(name)
        # A text stays as it is ("007" is not 7); numbers of a Parquet file become text without a point.
        given = self.frame[name].to_numpy(dtype=object).tolist()
        values = [value.strip() or None if isinstance(value, str) else _whole(value) for value in given]
        kind = self.frame[name].dtype
        if kind.kind == "f":
            most = {2: 2**11, 4: 2**24}.get(kind.itemsize, 2**53)
            rounded = self.frame[name].abs().fillna(0).to_numpy(dtype=np.float64) >= most
            got = f"a decimal number in row {first_row(rounded)} that is too large to be exact"
            require(not rounded.any(), self.where(name), "whole numbers, or texts", got)
        first = 0 if empty or None not in values else values.index(None) + 1
        require(not first, self.where(name), "values in all rows", f"none in row {first}")
        return values

    def keys(self, values: Sequence[str | None]) -> Index:
        """An index of names that occur once.

        Raises:
            InputError: one occurs twice.
        """
        from pandas import Index

        index = Index(values, dtype=object)
        twice = index.duplicated()
        got = f"{int(twice.sum())} that occur again, the first in row {first_row(twice)}"
        require(not twice.any(), self.where("id"), "different names", got)
        return index

    def positions(self, keys: Index, other: Table, name: str, within: str | None = None) -> np.ndarray:
        """Which rows of this table another one's column names ``[n]``.

        Args:
            keys: of this table's rows, see :meth:`keys`.
            other: the other table.
            name: the column.
            within: column of the other table that comes before it in the keys.

        Raises:
            InputError: a name is not there.
        """
        names = other.texts(name)
        if within is not None:
            groups, known = other.texts(within), {key.partition("\0")[0] for key in keys}
            strange = np.array([group not in known for group in groups])
            got = f"{int(strange.sum())} that are not there, the first in row {first_row(strange)}"
            require(not strange.any(), other.where(within), f"graphs with nodes in {self.file.name}", got)
            names = [f"{group}\0{own}" for group, own in zip(groups, names, strict=True)]
        found: np.ndarray = keys.get_indexer(names)
        lost = found < 0
        got = f"{int(lost.sum())} that are not there, the first in row {first_row(lost)}"
        require(not lost.any(), other.where(name), f"names of {self.file.name}", got)
        return found

    def _require_values(self, name: str) -> None:
        """Refuses what is not there, and rows that hold lists, bytes, records or durations."""
        self._require(name)
        series = self.frame[name]
        if self.file.suffix == ".csv" or series.dtype.kind in "biufM":
            return
        strange = series.notna().to_numpy() & [not isinstance(value, _VALUES) for value in series]
        wanted = "one number, text, truth value or point in time in each row"
        require(not strange.any(), self.where(name), wanted, f"something else in row {first_row(strange)}")

    def _require(self, name: str) -> None:
        apart = next((mark for mark in "\t;|" if len(self.names) == 1 and mark in self.names[0]), None)
        got = "one without" if apart is None else f"one whose columns are separated by {apart!r} and not by commas"
        require(name in self.names, str(self.file), f"a table with a column `{name}`", got)


def find_table(folder: Path, stem: str) -> Table:
    """Reads ``STEM.csv`` or ``STEM.parquet`` of a folder.

    Raises:
        InputError: there is none, or both are there, or it cannot be read.
    """
    found = [folder / f"{stem}{ending}" for ending in ENDINGS if (folder / f"{stem}{ending}").is_file()]
    require(len(found) > 0, str(folder), f"a folder with {stem}.csv or {stem}.parquet", "one without")
    require(len(found) == 1, str(folder), f"a folder with one of {stem}.csv and {stem}.parquet", "both")
    return read_table(found[0])


def tables_in(folder: Path) -> dict[str, Path]:
    """Name without its ending to file, of all tables of a folder; hidden files are none.

    Raises:
        InputError: there is none, one is a folder, or two have one name.
    """
    files = sorted(file for file in folder.iterdir() if file.suffix in ENDINGS and not file.name.startswith("."))
    for file in files:
        require(file.is_file(), str(file), "a file", "something else, such as a folder")
    found = {file.stem: file for file in files}
    require(len(files) > 0, str(folder), "a folder with tables, .csv or .parquet,", "one without")
    require(len(found) == len(files), str(folder), "a folder with one table of each name", "two of one")
    return found


def read_table(file: Path) -> Table:
    """Reads a CSV or Parquet file; in a CSV, all values stay as they are written.

    Raises:
        InputError: pandas or pyarrow is missing, or the file cannot be read.
    """
    for package in ("pandas", *(["pyarrow"] if file.suffix == ".parquet" else [])):
        needed = find_spec(package) is not None
        require(needed, package, f"installed to read {file.name} (`pip install 'flgraph[data]'`)", "no such package")
    import pandas as pd

    try:
        bare = False
        if file.suffix == ".parquet":
            frame = pd.read_parquet(file)
            header = frame.columns
        else:
            with warnings.catch_warnings():  # pandas would cut off what is beyond the header
                warnings.simplefilter("error", pd.errors.ParserWarning)
                as_written: dict[str, Any] = {
                    **{"dtype": str, "keep_default_na": False, "na_values": [""], "index_col": False},
                    **{"skipinitialspace": True, "encoding": "utf-8-sig"},
                }
                frame = pd.read_csv(file, **as_written)
                # In the frame pandas has numbered those of one name.
                header = pd.Index(pd.read_csv(file, header=None, nrows=1, **as_written).iloc[0].fillna("")).str.strip()
                bare = "" in header
                frame.columns = frame.columns.str.strip()
    except Exception as error:  # what pandas says of a file repeats parts of it
        kind = "text in UTF-8" if isinstance(error, UnicodeDecodeError) else f"a table in {file.suffix[1:].upper()}"
        raise InputError(str(file), kind, _reason(file, error)) from None
    semicolons = len(frame.columns) == 1 and ";" in str(frame.columns[0])
    require(not semicolons, str(file), "a table with commas between its columns", "one with semicolons")
    require(not bare, str(file), "a table with a name for each column (pandas: `to_csv(index=False)`)", "one without")
    require(not header.has_duplicates, str(file), "a table with different names of columns", "two of one name")
    if file.suffix == ".csv" and frame.iloc[:, -1].isna().any():
        _warn_of_short_rows(file)
    return Table(file, frame)


def _reason(file: Path, error: Exception) -> str:
    """Why a file cannot be read, without any of its contents."""
    if file.stat().st_size == 0 or type(error).__name__ == "EmptyDataError":
        return "an empty file"
    return (_long_row(file) if file.suffix == ".csv" else None) or "one that cannot be read"


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines of a CSV file that are not empty, as far as they can be read, the header first: their numbers and cells."""
    with suppress(csv.Error, UnicodeDecodeError), file.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines, skipinitialspace=True)
        yield from ((reader.line_num, row) for row in reader if row)


def _long_row(file: Path) -> str | None:
    """Which row has more cells than the header, in words."""
    rows = _rows(file)
    _, header = next(rows, (0, []))
    cells = len(header)
    if cells == 1 and ";" in header[0]:
        return "one with semicolons between its columns"
    long = ((line, len(row)) for line, row in rows if len(row) > cells)
    found = (f"{count} cells in line {line}, where the header has {cells}; {_COMMAS}" for line, count in long)
    return next(found, None)


def _warn_of_short_rows(file: Path) -> None:
    """Warns of rows with fewer cells than the header: a file that was cut off ends in one."""
    rows = _rows(file)
    cells = len(next(rows, (0, []))[1])
    short = [line for line, row in rows if any(row) and len(row) < cells]
    if short:
        text = f"{file}: rows with fewer cells than the header: {len(short)}, the first in line {short[0]}"
        rank_zero_warn(f"{text}. What they lack counts as missing.", category=Doubt)


def _whole(value: Any) -> str | None:
    if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:
        return None
    return str(value) if isinstance(value, date) else as_text(value)
