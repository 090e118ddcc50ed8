"""`Lab`: what each of the four brings; and `Chapter`: one question of it, and what answers it.

    def write_rates(chapter: Chapter, results: Results) -> None:
        rates = chapter.tabulate("rates", RateRow, …)             data/rates.csv
        chapter.picture("rates", draw_rates, rates, epochs=3)     text: rates.figures.rates
        chapter.show(rates, "optimizer", "lr", "accuracy")        text: rates.tables.rates, columns
        chapter.note("best", best=max(rates.records, …))           a point of the analysis

Text is looked up by key (`labs/text.py`), and numbers in it are cells: of a row that fills a hole,
`{best.accuracy}` is the cell of that column, written in the column's form, and `{best.optimizer}`
its name. A number that was computed from others fills a hole by itself, `ratio=2.5`; its row of
data/findings.csv is described in `findings.yaml`, by the key of the text and the hole. What the
runs do not allow is not written: a sentence with a hole that is None, a chapter without contents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from drumline.core.formatting import format_rate
from drumline.labs.catalogue import find_lab
from drumline.labs.experiment import Experiment, LabSettings, Results, Training
from drumline.labs.plots import Plot
from drumline.labs.text import LabText, lab_text
from drumline.report.intervals import Interval
from drumline.report.page import blocks
from drumline.report.page.table import FORMS, CellRef, Findings, NumberFormat, Table, seconds
from drumline.report.page.translator import Filling, Language, Sentence, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

R = TypeVar("R")
Machine = Mapping[str, Any]
"""what `describe_machine` found; nothing where a report is only verified"""


@dataclass(kw_only=True)
class Chapter:
    """What one question came to."""

    text: LabText
    findings: Findings = field(default_factory=Findings)
    """numbers computed from others, of the whole lab"""
    tables: dict[str, Table[Any]] = field(default_factory=dict)
    """of the whole lab so far, by name"""
    results: list[blocks.Block] = field(default_factory=list)
    sentences: list[Text] = field(default_factory=list)

    def tabulate(
        self, name: str, row_type: type[R], rows: Iterable[R], *, key: str = "key"
    ) -> Table[R]:
        """Make a table, one CSV file, which can then be shown, drawn and quoted."""
        table = Table(name, row_type, list(rows), key=key)
        self.tables[name] = table
        return table

    def table(self, name: str, row_type: type[R]) -> Table[R]:
        """Return a table of an earlier chapter; where there is none, one without rows."""
        return self.tables.get(name) or Table(name, row_type)

    def show(
        self,
        table: Table[Any],
        *columns: str,
        key: str = "",
        folded: bool = False,
        forms: Mapping[str, NumberFormat] | None = None,
    ) -> None:
        """Show some columns of a table, or all; one without rows is left out.

        Its title has a `key` of its own where it is shown more than once, and is all that is seen
        until it is opened where it is `folded`; `forms` are those that differ from sentences'.
        """
        if not table.rows:
            return
        text = self.text.text
        written = {**table.forms, **(forms or {})}
        section = f"tables.{key or table.name}"
        shown = [
            blocks.Column(
                key=column,
                name=text(f"{section}.{column}", text(f"columns.{column}", "")) or column,
                form=written[column],
                labels=self.text.names(column),
            )
            for column in columns or table.forms
        ]
        title = text(f"{section}.title")
        self.results.append(
            blocks.TableBlock(table=table, columns=shown, title=title, folded=folded)
        )

    def picture(
        self, name: str, draw: Callable[..., Figure], *tables: Table[Any], **holes: object
    ) -> None:
        """Show a figure, drawn from tables: `draw(plot, *tables)`; holes are its title's."""
        text = self.text.within(f"figures.{name}")
        picture = blocks.Picture(
            name=name,
            title=self._part(f"figures.{name}.title", holes),
            draw=lambda style: draw(Plot.of(style, text), *tables),
            caption=self._part(f"figures.{name}.caption", holes),
            tables=list(tables),
        )
        self.results.append(picture)

    def _part(self, key: str, holes: Mapping[str, object]) -> Text:
        """Return one of several texts that share their holes; there may be none."""
        if not self.text.text(key, ""):
            return ""
        return self.write(key, **{name: holes[name] for name in self._rows_of(key)}) or ""

    def note(self, key: str, /, **holes: object) -> None:
        """Add a sentence to the analysis, as a point of its own; not where a hole is None."""
        self.add(self.write(key, **holes))

    def add(self, sentence: Sentence | None) -> None:
        """Add a point to the analysis, if there is one."""
        if sentence is not None:
            self.sentences.append(sentence)

    def write(self, key: str, /, **holes: object) -> Sentence | None:
        """Return a sentence, its holes filled; None where there is nothing to fill one with.

        Raises:
            ValueError: these are not the holes of the text.
        """
        wanted = self.text.holes(key)
        if self._rows_of(key) != holes.keys():
            raise ValueError(f"{self.text.scope}.{key} has {sorted(wanted)}, not {[*holes]}")
        if any(filling is None for filling in holes.values()):
            return None
        filled = {name: self._quote_number(key, name, holes) for name in holes}
        return self.text.fill(key, {hole: self._fill(hole, filled) for hole in wanted})

    def _rows_of(self, key: str) -> set[str]:
        """Return what is to be given to fill a text: a row for all of its cells."""
        return {hole.partition(".")[0] for hole in self.text.holes(key)}

    def _quote_number(self, key: str, name: str, holes: Mapping[str, object]) -> object:
        """Return what fills a hole; a number that was computed is noted, and quoted."""
        value, finding = holes[name], self.text.finding(key, name)
        if finding is not None:
            return self.found(finding.name.format(**holes), value, finding.form, of=finding.of)
        if isinstance(value, float | Interval):
            raise LookupError(f"{self.text.scope}.{key}: {name} is not in findings.yaml")
        return value

    def _fill(self, hole: str, holes: Mapping[str, object]) -> Filling:
        name, _, cell = hole.partition(".")
        if not cell:
            return cast(Filling, holes[name])
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

    def found(self, name: str, value: object, form: str, *, of: str) -> CellRef:
        """Note a number that was computed from others, in the form of that name, and quote it."""
        number = cast(float | Interval | None, value)
        return self.findings.cell(name, number, self.text.form(form), of=of)

    def list_up(self, key: str, rows: Iterable[object]) -> Sentence | None:
        """Write a text for each `row`, with commas between them; None where there are no rows."""
        return self.concat([self.write(key, row=row) for row in rows], "comma")

    def concat(self, items: Iterable[Sentence | None], between: str = "space") -> Sentence | None:
        """Put sentences one after the other, with a text between them; of none there is None."""
        gap = self.text.text(between)
        parts = [part for item in items if item is not None for part in (gap, *item.parts)]
        return Sentence(tuple(parts[1:])) if parts else None


@dataclass(frozen=True, kw_only=True)
class WriteUp:
    """What a lab found, for the sections of its report."""

    summary: Text
    """one or two sentences for the top of the page, from the measured numbers"""
    results: list[blocks.Block]
    """tables and pictures"""
    analysis: list[blocks.Block]
    """sentences made from the numbers"""
    tables: list[Table[Any]]
    """all that any of them quotes"""


@dataclass(frozen=True, kw_only=True)
class Lab:
    """One lab."""

    number: int
    experiments: Callable[[LabSettings], Sequence[Experiment]]
    """names what is to be run, in order"""
    chapters: Mapping[str, Callable[[Chapter, Results], None]]
    """what writes each chapter, by the name of its section in the text"""
    summarize: Callable[[Chapter], Text | None] | None = None
    """says what came out, by the tables of all chapters; None: too little was measured. Without it
    the first point of the analysis is the summary"""

    def write_up(self, results: Results, lang: Language) -> WriteUp:
        """Turn what was measured into the chapters that it allows."""
        text, findings = lab_text(find_lab(self.number).package, lang), Findings()
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
            summary=end.write("nothing") or "" if summary is None else summary,
            results=[block for one in written for block in (*_heading(one), *one.results)],
            analysis=_analysis(written),
            tables=[*tables.values(), *noted],
        )


def _heading(chapter: Chapter) -> list[blocks.Block]:
    heading = chapter.text.text("heading", "")
    return [blocks.Markdown(text=f"### {heading}")] if heading else []


def _analysis(written: Sequence[Chapter]) -> list[blocks.Block]:
    """Put the points of chapters below their headings; those without one make one list."""
    if not any(map(_heading, written)):
        points = [point for chapter in written for point in chapter.sentences]
        return [blocks.Paragraph(said=points, findings=True)] if points else []
    return [
        block
        for chapter in written
        if chapter.sentences
        for block in (*_heading(chapter), blocks.Paragraph(said=chapter.sentences, findings=True))
    ]


@dataclass(frozen=True, kw_only=True)
class ExperimentRow:
    """One experiment; of a measurement only its name is known."""

    name: str
    ranks: int | None = None
    nodes: int | None = None
    seed: int | None = None
    train_s: Annotated[float | None, seconds] = None
    weights_sha256: str = ""


def write_parameters(
    text: LabText, results: Results, experiments: Sequence[Experiment], machine: Machine
) -> Chapter:
    """Write the chapter that all labs have: where and how everything ran, and the experiments."""
    chapter = Chapter(text=text.within("parameters"))
    settings, text = results.settings, chapter.text
    rate = settings.link.rate
    limit = text.text("no_limit") if rate is None else format_rate(rate)
    where = "nodes" if settings.nodes > 1 else "host"
    known = {name: machine.get(name, "?") for name in ("cpu", "cpu_count", "platform", "python")}
    packages = machine.get("packages", {})
    facts = {
        "form": text.text("full" if settings.full else "quick"),
        "where": text.text(where).format(nodes=settings.nodes, limit=limit),
        "seed": str(settings.seed),
        "processor": text.text("cores").format(**known),
        "system": f"{known['platform']}, Python {known['python']}",
        "versions": ", ".join(f"{name} {version}" for name, version in packages.items()),
        "load": str(machine.get("load_1min", "?")),
    }
    items = [(text.text(f"facts.{name}"), fact) for name, fact in facts.items()]
    chapter.results.append(blocks.Facts(items=items))
    listed = chapter.tabulate("experiments", ExperimentRow, _listed(experiments, results))
    chapter.show(listed, folded=True)
    return chapter


def _listed(experiments: Sequence[Experiment], results: Results) -> Iterator[ExperimentRow]:
    for one in experiments:
        if not isinstance(one, Training):
            yield ExperimentRow(name=one.name)
            continue
        record = results.record(one.name)
        summary = record.summary if record is not None else {}
        yield ExperimentRow(
            name=one.name,
            ranks=one.spec.nodes * one.spec.workers,
            nodes=one.spec.nodes,
            seed=one.spec.seed,
            train_s=summary.get("train_s"),
            weights_sha256=(summary.get("weights_sha256") or "")[:16],
        )
