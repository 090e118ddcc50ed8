"""`Lab`: what each of the four brings; and `Chapter`: one question of it, and what answers it.

    def write_rates(chapter: Chapter, results: Results) -> None:
        rates = chapter.tabulate("rates", RateRow, …)             data/rates.csv
        chapter.picture("rates", draw_rates, rates, epochs=3)     text: rates.figures.rates
        chapter.show(rates, "optimizer", "lr", "accuracy")        text: rates.tables.rates, columns
        chapter.say("best", best=max(rates.records, …))           a point of the analysis

Text is looked up by key (`labs/text.py`), and numbers in it are cells: of a row that fills a hole,
`{best.accuracy}` is the cell of that column, written in the column's form, and `{best.optimizer}`
its name. What the runs do not allow is not written: a chapter without contents is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from drumline.labs.experiment import Experiment, LabSettings, Results
from drumline.labs.plots import Plot
from drumline.labs.text import LabText, lab_text
from drumline.report.intervals import Interval
from drumline.report.page.blocks import Block, Column, Markdown, Paragraph, Picture, TableBlock
from drumline.report.page.table import FORMS, CellRef, Findings, NumberFormat, Table
from drumline.report.page.translator import (
    Filling,
    Language,
    Sentence,
    Text,
    find_holes,
)
from drumline.report.plots import FigureStyle

if TYPE_CHECKING:
    from matplotlib.figure import Figure


R = TypeVar("R")


@dataclass(kw_only=True)
class Chapter:
    """What one question came to."""

    text: LabText
    findings: Findings
    """numbers computed from others, of the whole lab"""
    tables: dict[str, Table[Any]]
    """of the whole lab so far, by name"""
    results: list[Block] = field(default_factory=list)
    sentences: list[Text] = field(default_factory=list)

    def tabulate(
        self, name: str, row_type: type[R], rows: Iterable[R], *, key: str = "key"
    ) -> Table[R]:
        """Make a table, one CSV file, which can then be shown, drawn and quoted."""
        table = Table(name, row_type, rows, key=key)
        self.tables[name] = table
        return table

    def show(
        self,
        table: Table[Any],
        *columns: str,
        key: str = "",
        folded: bool = False,
        forms: Mapping[str, NumberFormat] = MappingProxyType({}),
    ) -> None:
        """Show some columns of a table.

        Args:
            table: one with rows; others are left out.
            columns: in order.
            key: of its title, where a table is shown more than once.
            folded: its title alone is seen until it is opened.
            forms: of columns that are written otherwise than in sentences.
        """
        if table.rows:
            text = self.text.text
            written = {**table.forms, **forms}
            section = f"tables.{key or table.name}"
            shown = [
                Column(
                    key=column,
                    name=text(f"{section}.{column}", text(f"columns.{column}", "")) or column,
                    form=written[column] or str,
                    align="right" if written[column] else "left",
                    labels=self.text.names(column),
                )
                for column in columns
            ]
            title = text(f"{section}.title")
            self.results.append(TableBlock(table=table, columns=shown, title=title, folded=folded))

    def picture(
        self, name: str, draw: Callable[..., Figure], *tables: Table[Any], **holes: object
    ) -> None:
        """Show a figure, drawn from tables: `draw(plot, *tables)`.

        Args:
            name: of its files, and of its text.
            draw: draws it.
            tables: what it shows.
            holes: of its title or caption.
        """
        text = self.text.within(f"figures.{name}")

        def drawn(style: FigureStyle) -> Figure:
            plot = Plot(lang=style.lang, ink=style.ink, text=replace(text, lang=style.speaks))
            return draw(plot, *tables)

        picture = Picture(
            name=name,
            title=self._part(f"figures.{name}.title", holes),
            draw=drawn,
            caption=self._part(f"figures.{name}.caption", holes),
            tables=list(tables),
        )
        self.results.append(picture)

    def _part(self, key: str, holes: Mapping[str, object]) -> Text:
        """Return one of several texts that share their holes; there may be none."""
        if not self.text.text(key, ""):
            return ""
        own = {hole.partition(".")[0] for hole in find_holes(self.text.text(key))}
        return self.write(key, **{name: holes[name] for name in own})

    def say(self, key: str, /, **holes: object) -> None:
        """Add a sentence to the analysis, as a point of its own."""
        self.sentences.append(self.write(key, **holes))

    def write(self, key: str, /, **holes: object) -> Sentence:
        """Return a sentence, its holes filled; rows of tables may be holes.

        Raises:
            ValueError: these are not the holes of the text.
        """
        wanted = find_holes(self.text.text(key))
        if {hole.partition(".")[0] for hole in wanted} != holes.keys():
            raise ValueError(f"{self.text.scope}.{key} has {sorted(wanted)}, not {[*holes]}")
        return self.text(key, **{hole: self._fill(hole, holes) for hole in wanted})

    def _fill(self, hole: str, holes: Mapping[str, Any]) -> Filling:
        name, _, cell = hole.partition(".")
        if not cell:
            filling: Filling = holes[name]
            return filling
        column, _, form = cell.partition(":")
        table, row = self._find(holes[name])
        value = table.rows[row][column]
        if isinstance(value, str):
            return self.text.name(column, value)
        return table.cell_at(row, column, FORMS[form] if form else table.forms[column] or str)

    def _find(self, record: object) -> tuple[Table[Any], int]:
        """Return the table that a row belongs to, and its number there."""
        for table in self.tables.values():
            row = table.row_of(record)
            if row is not None:
                return table, row
        raise LookupError(f"no table of the lab has such a row: {record}")

    def found(
        self, name: str, value: float | Interval | None, form: NumberFormat, *, of: str
    ) -> CellRef:
        """Note a number that was computed from others, and quote it.

        Args:
            name: what it is, unique in the lab.
            value: the number.
            form: how it is written.
            of: what it was computed from: tables and columns.
        """
        return self.findings.cell(name, value, form, of=of)

    def list_up(self, items: Sequence[Sentence]) -> Sentence:
        """Put items into one sentence, with commas between them."""
        return self.concat(items, "comma")

    def concat(self, items: Sequence[Sentence], between: str = "space") -> Sentence:
        """Put sentences one after the other, with a text between them."""
        gap = self.text.text(between)
        parts = [part for item in items for part in (gap, *item.parts)]
        return Sentence(tuple(parts[1:]))


@dataclass(frozen=True, kw_only=True)
class WriteUp:
    """What a lab found, for the sections of its report."""

    summary: Text
    """one or two sentences for the top of the page, from the measured numbers"""
    results: list[Block]
    """tables and pictures"""
    analysis: list[Block]
    """sentences made from the numbers"""
    tables: list[Table[Any]]
    """all that any of them quotes"""


@dataclass(frozen=True, kw_only=True)
class Lab:
    """One lab."""

    number: int
    name: str
    """of its text"""
    experiments: Callable[[LabSettings], Sequence[Experiment]]
    """names what is to be run, in order"""
    code: Sequence[tuple[str, str]]
    """the source that the experiments really use: path and symbol, in reading order"""
    chapters: Mapping[str, Callable[[Chapter, Results], None]]
    """what writes each chapter, by the name of its section in the text"""
    summarize: Callable[[Chapter], Text | None] | None = None
    """says what came out, by the tables of all chapters; None: too little was measured. Without it
    the first point of the analysis is the summary"""

    def write_up(self, results: Results, lang: Language) -> WriteUp:
        """Turn what was measured into the chapters that it allows."""
        text, findings = lab_text(self.name, lang), Findings()
        tables: dict[str, Table[Any]] = {}
        written = []
        for name, write in self.chapters.items():
            chapter = Chapter(text=text.within(name), findings=findings, tables=tables)
            write(chapter, results)
            if chapter.results or chapter.sentences:
                written.append(chapter)
        end = Chapter(text=text.within("summary"), findings=findings, tables=tables)
        points = [point for chapter in written for point in chapter.sentences]
        summary = self.summarize(end) if self.summarize else points[0] if points else None
        noted = [findings.table] if findings.table.rows else []
        return WriteUp(
            summary=end.write("nothing") if summary is None else summary,
            results=[block for one in written for block in (*_heading(one), *one.results)],
            analysis=_analysis(written),
            tables=[*tables.values(), *noted],
        )


def _heading(chapter: Chapter) -> list[Block]:
    heading = chapter.text.text("heading", "")
    return [Markdown(text=f"### {heading}")] if heading else []


def _analysis(written: Sequence[Chapter]) -> list[Block]:
    """Put the points of chapters below their headings; those without one make one list."""
    if not any(map(_heading, written)):
        points = [point for chapter in written for point in chapter.sentences]
        return [Paragraph(said=points, findings=True)] if points else []
    return [
        block
        for chapter in written
        if chapter.sentences
        for block in (*_heading(chapter), Paragraph(said=chapter.sentences, findings=True))
    ]
