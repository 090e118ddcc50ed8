"""`FittingTable`: a table that leaves out whole columns where the terminal is narrow.

rich cuts cells to fit, and half a number is a wrong number. Here the columns that matter least go,
one after the other, until the others fit; a line below says which, and where they can be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Generic, Literal, TypeVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from drumline.report.tables import narrow_table

Row = TypeVar("Row")
KEPT = 0
NOTHING = "—"
_WIDER = 10_000


def format_known(
    form: str, value: float | None, missing: str = NOTHING, *, scale: float = 1
) -> str:
    """Format a number of a bench's table, which may not be known, times `scale`."""
    return missing if value is None else form.format(value * scale)


@dataclass(frozen=True)
class FittingColumn(Generic[Row]):
    """A column, and what it shows of a row."""

    name: str
    show: Callable[[Row], str]
    _: KW_ONLY
    justify: Literal["left", "right"] = "right"
    leaves: int = KEPT
    """when it goes: those with 1 first, those that are KEPT never"""
    told: str = ""
    """what it is called where it is left out, if not by its name"""


@dataclass(frozen=True, kw_only=True)
class FittingTable(Generic[Row]):
    """Rows, and those of their columns that a terminal has room for."""

    rows: Sequence[Row]
    columns: Sequence[FittingColumn[Row]]
    gap: int = 2
    elsewhere: str = "--json"
    """where all columns can be seen, besides in a wider terminal"""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print what fits, and say what does not."""
        shown = list(self.columns)
        unlimited = options.update(width=_WIDER)
        for turn in sorted({column.leaves for column in shown} - {KEPT}):
            if console.measure(self._table(shown), options=unlimited).maximum <= options.max_width:
                break
            shown = [column for column in shown if column.leaves != turn]
        yield self._table(shown)
        missing = dict.fromkeys(c.told or c.name for c in self.columns if c not in shown)
        if missing:
            yield Text(
                f"no room for {', '.join(missing)}: see {self.elsewhere} or a wider terminal"
            )

    def _table(self, columns: Sequence[FittingColumn[Row]]) -> Table:
        table = narrow_table(gap=self.gap)
        for column in columns:
            # where not even those that are kept fit, a number goes on in the next line
            table.add_column(column.name, justify=column.justify, overflow="fold")
        for row in self.rows:
            table.add_row(*(column.show(row) for column in columns))
        return table
