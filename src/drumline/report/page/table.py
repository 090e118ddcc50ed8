"""`Table`: a table of measured values, one CSV file; and `CellRef`: one of its cells in a sentence.

    page:  71 % (66–75)  of …          <data value="0.7134" data-sheet="waits" data-row="3" …>
    file:  data/waits.csv, row 3:      ring,0,0.7134,0.662,0.751

What is written on the page is the cell's value, rounded by a `NumberFormat`; whoever doubts a
number finds it in the file by the name that the page carries. `Findings` is the table of numbers
that were computed from others, e.g. a ratio.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from drumline.core.formatting import format_bytes, format_seconds
from drumline.report.intervals import Interval, interval_cells

NumberFormat = Callable[[float], str]
"""how a number is written, with its unit"""
NOTHING = "–"
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class CellRef:
    """One cell, as a sentence says it."""

    text: str
    table: str
    row: int
    """counted from 0, without the header"""
    column: str
    value: Any
    low: str | None = None
    """the columns of its interval, where the text gives one"""
    high: str | None = None

    def __str__(self) -> str:
        return self.text


class Table(Generic[R]):
    """A table whose rows are frozen dataclasses: their fields are the columns.

        class Ending:
            optimizer: str                                    text, aligned left
            steps: Annotated[int, count]                      a number, and the form of its text
            accuracy: Annotated[Interval | None, points]      three columns: accuracy, _low, _high
            shares: Mapping[str, float]                       a column for each key
            from_: str                                        the column `from`

    Args:
        name: of its file, without .csv.
        row_type: the dataclass.
        records: the rows.
        key: what the column of a field named `key` is called, for rows that tables share.
    """

    def __init__(
        self, name: str, row_type: type[R], records: Iterable[R] = (), *, key: str = "key"
    ) -> None:
        self.name = name
        self.file = f"data/{name}.csv"
        """in the folder of a report"""
        hints = get_type_hints(row_type, include_extras=True)
        self._titles = {each: key if each == "key" else each.rstrip("_") for each in hints}
        self._intervals = {each for each, hint in hints.items() if _is_interval(hint)}
        self.forms = {self._titles[each]: _form(hint) for each, hint in hints.items()}
        """how the cells of a column are written; None: they are text"""
        self.records: list[R] = []
        self.rows: list[dict[str, object]] = []
        """the cells of each record, by column"""
        for record in records:
            self.append(record)

    @property
    def columns(self) -> list[str]:
        """The columns, in order."""
        if self.rows:
            return list(self.rows[0])
        return [column for field_ in self._titles for column in self._spread(field_, None)]

    def append(self, record: R) -> None:
        """Add a row at the end."""
        cells: dict[str, object] = {}
        for field_ in self._titles:
            cells |= self._spread(field_, getattr(record, field_))
        self.rows.append(cells)
        self.records.append(record)

    def _spread(self, field_: str, value: Any) -> Mapping[str, object]:
        if field_ in self._intervals:
            return interval_cells(self._titles[field_], value)
        return value if isinstance(value, Mapping) else {self._titles[field_]: value}

    def where(self, **values: object) -> list[R]:
        """Return the rows with these values, in order."""
        return [
            record
            for record in self.records
            if all(getattr(record, name) == value for name, value in values.items())
        ]

    def first(self, **values: Any) -> R | None:
        """Return the first row with these values; None: there is none."""
        return next(iter(self.where(**values)), None)

    def groups(self, column: str) -> dict[Any, list[R]]:
        """Return the rows by their value of a column, in the order in which values first come."""
        found: dict[Any, list[R]] = {}
        for record in self.records:
            found.setdefault(getattr(record, column), []).append(record)
        return found

    def row_of(self, record: object) -> int | None:
        """Return the number of a row; None: it is not of this table."""
        return next((number for number, one in enumerate(self.records) if one is record), None)

    def quote(self, record: R, column: str, form: NumberFormat | None = None) -> CellRef:
        """Quote a cell of one of the rows, written as its column is, or as `form` says."""
        row = self.row_of(record)
        if row is None:
            raise LookupError(f"table {self.name!r} has no such row: {record}")
        return self.cell_at(row, column, form or self.forms[column] or str)

    def cell_at(self, row: int, column: str, form: NumberFormat) -> CellRef:
        """Quote a cell; one without a value is a dash.

        Where the table has columns `<column>_low` and `<column>_high`, and both have values, they
        are said behind it: `71 % (66–75)`.
        """
        values = self.rows[row]
        low, high = f"{column}_low", f"{column}_high"
        first, last = values.get(low), values.get(high)
        text = _write(values[column], form)
        ref = CellRef(text=text, table=self.name, row=row, column=column, value=values[column])
        if first is None or last is None or values[column] is None:
            return ref
        text = f"{text} ({_span(first, last, form)})"
        return dataclasses.replace(ref, text=text, low=low, high=high)

    def to_csv(self) -> str:
        """Return the file's text."""
        return write_csv(self.columns, (row.values() for row in self.rows))


def write_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a report's table as CSV text; a list has spaces between its items."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(" ".join(map(str, c)) if isinstance(c, list | tuple) else c for c in row)
    return out.getvalue()


def _form(hint: Any) -> NumberFormat | None:
    """Return how a field is written: what its annotation says, or str; None: it is text."""
    form: NumberFormat | None = None if hint is str or str in get_args(hint) else str
    return next((each for each in getattr(hint, "__metadata__", ()) if callable(each)), form)


def _is_interval(hint: Any) -> bool:
    return hint is Interval or any(map(_is_interval, get_args(hint)))


def _write(value: Any, form: NumberFormat) -> str:
    """Write a value on a report's page; what is not there is a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    return value if isinstance(value, str) else form(value)


def _span(low: Any, high: Any, form: NumberFormat) -> str:
    """Write an interval; a unit that both ends have is said once before, and not again."""
    first, last = form(low), form(high)
    unit = first.lstrip("+−-0123456789.,")
    if unit and last.endswith(unit):
        first, last = first.removesuffix(unit), last.removesuffix(unit)
    signed = first[:1] in "+−-" or last[:1] in "+−-"
    return f"{first} … {last}" if signed else f"{first}–{last}"


def percent(value: float) -> str:
    """Write a share on a report's page: `71 %`, `0.4 %`."""
    shown = 100 * value
    return f"{shown:.1f} %" if abs(shown) < 9.95 else f"{shown:.0f} %"


def change(value: float) -> str:
    """Write by which share something is more or less on a report's page: `-12 %`."""
    return f"{100 * value:+.0f} %"


def points(value: float) -> str:
    """Write an accuracy on a report's page, a share with two decimals: `97.50 %`."""
    return f"{100 * value:.2f} %"


def times(value: float) -> str:
    """Write a factor on a report's page: `2.0×`, `0.48×`; near 1 `1.02×`."""
    decimals = 2 if abs(value) < 1.095 else 1 if value < 99.5 else 0
    return f"{value:.{decimals}f}×"


def milliseconds(value: float) -> str:
    """Write milliseconds on a report's page, with three digits: `12.3 ms`."""
    return f"{value:.3g} ms" if value < 999.5 else f"{value:.0f} ms"


def count(value: float) -> str:
    """Write a whole number on a report's page: `12 345`."""
    return f"{value:,.0f}".replace(",", " ")


def plain(value: float) -> str:
    """Write a number on a report's page, with three digits."""
    return f"{value:.3g}"


def tiny(value: float) -> str:
    """Write what may be rounding on a report's page: `3.1e-07`, and 0 as it is."""
    return "0" if value == 0 else f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.3g}"


seconds: NumberFormat = format_seconds
size: NumberFormat = format_bytes
FORMS: Mapping[str, NumberFormat] = {
    **{form.__name__: form for form in (count, milliseconds, percent, plain, points, times, tiny)},
    "seconds": seconds,
    "size": size,
}
"""by the names that a text may ask for: `{row.loss:tiny}`"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A number that was computed from others."""

    name: str
    """what it is, unique on the page: `bytes of ring over chunked_ring`"""
    value: Interval | None
    from_: str
    """tables and columns"""


class Findings:
    """A table of named numbers, each cited where it is found."""

    def __init__(self) -> None:
        self.table = Table("findings", Finding)

    def cell(
        self, name: str, value: float | Interval | None, form: NumberFormat, *, of: str = ""
    ) -> CellRef:
        """Note a number, what it was computed from (`of`), and quote it."""
        if isinstance(value, float | int):
            value = Interval(middle=value, low=None, high=None)
        finding = Finding(name=name, value=value, from_=of)
        self.table.append(finding)
        return self.table.quote(finding, "value", form)
