"""What pages are made of: blocks in sections in a `Report`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from drumline.report.page import table as data
from drumline.report.page.table import CellRef, NumberFormat
from drumline.report.page.translator import Language, Text
from drumline.report.plots import FigureStyle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[FigureStyle], "Figure"]


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Sentences that belong together; `findings` are what was measured, each a point of its own."""

    said: Sequence[Text]
    findings: bool = False


@dataclass(frozen=True, kw_only=True)
class Markdown:
    """Text that somebody wrote as Markdown; HTML in it is shown, not obeyed."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something that a reader must not miss: what is not there, and why."""

    said: Text


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table block: which of the table's, what it is called, how it is written."""

    key: str
    name: str
    form: NumberFormat | None = None
    """of numbers; None: they are texts, which stand as they are"""
    labels: Mapping[str, str] = field(default_factory=dict)
    """what a reader reads for the values of the table"""

    @property
    def align(self) -> Literal["left", "right"]:
        """Where its cells stand: numbers by their last digits."""
        return "left" if self.form is None else "right"


@dataclass(frozen=True, kw_only=True)
class TableBlock:
    """A table, or some of its columns, to be read."""

    table: data.Table[Any]
    columns: Sequence[Column]
    title: Text
    folded: bool = False
    """long, and looked up rather than read: its title alone is seen until it is opened"""

    @classmethod
    def of(cls, table: data.Table[Any], names: Mapping[str, str], *, title: Text) -> TableBlock:
        """Show the columns that have names, as their annotations say."""
        columns = [Column(key=key, name=names[key], form=table.forms[key]) for key in names]
        return cls(table=table, columns=columns, title=title)

    def cells(self) -> Iterator[list[CellRef]]:
        """Give each row's cells."""
        for row in range(len(self.table.rows)):
            yield [self._cell(row, column) for column in self.columns]

    def _cell(self, row: int, column: Column) -> CellRef:
        ref = self.table.cell_at(row, column.key, column.form or str)
        return replace(ref, text=column.labels.get(ref.text, ref.text))


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure, drawn when the page is written: once for it, once for each file beside it."""

    name: str
    """of its files, without an ending"""
    title: Text
    draw: Draw
    caption: Text = ""
    tables: Sequence[data.Table[Any]] = ()
    """what it shows"""


@dataclass(frozen=True, kw_only=True)
class Code:
    """Source that really ran, with where it stands."""

    path: str
    """from the root of the package, e.g. comm/ring.py"""
    symbol: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names and what they stand for: parameters, machine, versions."""

    items: Sequence[tuple[str, Text]]


@dataclass(frozen=True, kw_only=True)
class OwnWords:
    """The author's own part, kept in a file beside the page."""

    file: str
    text: str
    """Markdown; empty: nothing was written yet"""


Block = Paragraph | Markdown | Notice | TableBlock | Picture | Code | Facts | OwnWords


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what stands below it."""

    slug: str
    heading: str
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole page."""

    title: str
    lang: Language
    summary: Text
    sections: Sequence[Section]
    tables: Sequence[data.Table[Any]] = ()
    """all that is written to data/; what sentences cite must be among them"""

    def pictures(self) -> list[Picture]:
        """Return all pictures, in order."""
        blocks = (block for section in self.sections for block in section.blocks)
        return [block for block in blocks if isinstance(block, Picture)]
