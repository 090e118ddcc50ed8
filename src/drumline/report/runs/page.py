"""The page about one run or several: `drumline report` and `drumline compare`.

Its tables are made of the runs' records, a CSV file each; its text is in `report/text`, and what
the analysis says is chosen by what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import yaml

from drumline.report.intervals import Interval, compare, quartile_interval
from drumline.report.page import blocks
from drumline.report.page import table as form
from drumline.report.page.table import Findings, Table
from drumline.report.page.translator import Filling, Language, Sentence, Translator, page_texts
from drumline.report.plots import LEDGER, FigureStyle
from drumline.report.runs.record import CurvePoint, RunRecord, Score, find_differences

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = "key"
"""of the table of differences, beside one of each run's name: no run is called so"""
_SMOOTH = 40
"""a curve is drawn as means of so many pieces, over a faint line of all steps"""


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run; None: its directory does not tell."""

    run: str
    done: str
    """yes or no"""
    model: str
    data: str
    strategy: str
    ranks: Annotated[int | None, form.count]
    steps: Annotated[int | None, form.count]
    loss: Annotated[float | None, form.plain]
    accuracy: Annotated[float | None, form.points]
    train_s: Annotated[float | None, form.seconds]
    step_ms: Annotated[Interval | None, form.milliseconds]
    """median and quartiles"""
    samples_per_s: Annotated[float | None, form.count]
    peak_bytes: Annotated[int | None, form.size]
    waited_for: int | None
    """the rank that the others waited for most; and its share of all lost time"""
    waited_share: Annotated[float | None, form.percent]
    weights_sha256: str


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """A mean step of a rank; wait and transfer are what was not hidden behind compute."""

    run: str
    rank: Annotated[int, form.count]
    data_ms: Annotated[float, form.milliseconds]
    compute_ms: Annotated[float, form.milliseconds]
    wait_ms: Annotated[float, form.milliseconds]
    transfer_ms: Annotated[float, form.milliseconds]
    caused_ms: Annotated[float, form.milliseconds]
    """how long others waited for it"""


@dataclass(frozen=True, kw_only=True)
class DifferenceRow:
    """A key in which specs differ, and what each run has."""

    key: str
    values: Mapping[str, str]
    """by the run's name"""


@dataclass(frozen=True, kw_only=True)
class RunTables:
    """All tables of the page."""

    runs: Table[RunRow]
    compared: list[str]
    """the runs whose spec could be read"""
    differences: Table[DifferenceRow]
    curves: Table[CurvePoint]
    scores: Table[Score]
    ledger: Table[LedgerRow]


def build_tables(records: Sequence[RunRecord]) -> RunTables:
    """Build the tables of a report about runs from their records."""
    specs = {record.name: record.spec_values for record in records if record.spec_values}
    differences = [
        DifferenceRow(key=key, values=dict(zip(specs, values, strict=True)))
        for key, values in find_differences(list(specs.values())).items()
    ]
    return RunTables(
        runs=Table("runs", RunRow, map(_run_row, records)),
        compared=list(specs),
        differences=Table("differences", DifferenceRow, differences),
        curves=Table("curves", CurvePoint, (point for one in records for point in one.curve)),
        scores=Table("scores", Score, (score for one in records for score in one.scores)),
        ledger=Table("ledger", LedgerRow, _ledger_rows(records)),
    )


def _run_row(record: RunRecord) -> RunRow:
    worst, share = _worst(record)
    last = record.curve[-1] if record.curve else None
    return RunRow(
        run=record.name,
        done="yes" if record.done else "no",
        model=_named(record, "model", "name"),
        data=_named(record, "data", "name"),
        strategy=_named(record, "strategy", "kind"),
        ranks=len(record.events) or None,
        steps=None if last is None else last.step,
        loss=record.loss,
        accuracy=record.accuracy,
        train_s=None if last is None else last.seconds,
        step_ms=quartile_interval(record.step_s).scaled(1e3) if record.step_s else None,
        samples_per_s=last.samples / last.seconds if last and last.seconds else None,
        peak_bytes=max(record.peak_bytes, default=None),
        waited_for=worst,
        waited_share=share,
        weights_sha256=str(record.summary.get("weights_sha256") or "")[:16],
    )


def _named(record: RunRecord, part: str, key: str) -> str:
    value = record.spec_values.get(part)
    if isinstance(value, dict):
        value = value.get(key)
    return str(value or "")


def _worst(record: RunRecord) -> tuple[int | None, float | None]:
    """The rank that the others waited for most, and its share of all lost time."""
    if record.ledger is None:
        return None, None
    rank, share = max(record.ledger.blame.items(), key=lambda item: item[1])
    return (rank, share) if share else (None, None)


def _ledger_rows(records: Sequence[RunRecord]) -> Iterator[LedgerRow]:
    for record in records:
        if record.ledger is None or not record.ledger.steps:
            continue
        scale = 1e3 / record.ledger.steps
        for row in record.ledger.ranks:
            parts = {f"{part}_ms": spent_s * scale for part, spent_s in row.parts.items()}
            caused = row.caused_s * scale
            yield LedgerRow(run=record.name, rank=row.rank, **parts, caused_ms=caused)


def build_runs_report(records: Sequence[RunRecord], lang: Language) -> blocks.Report:
    """Build the report about runs: what cannot be shown is said, the rest is shown."""
    say = page_texts(lang)
    tables, findings = build_tables(records), Findings()
    rows = tables.runs.records
    said = [sentence for row in rows for sentence in _of_one(row, tables, say)]
    said += [sentence for row in rows[1:] for sentence in _of_two(rows[0], row, findings, say)]
    gaps = [blocks.Notice(said=gap) for record in records for gap in record.say_gaps(lang)]
    names = say.labels("runs.tables.runs")
    sections: dict[str, list[blocks.Block]] = {
        "runs": [*gaps, blocks.TableBlock.of(tables.runs, names, title=names.pop("title"))],
        "differences": _differences(tables, say),
        "curves": _curves(tables, say),
        "time": _time(tables, say),
        "analysis": [blocks.Paragraph(said=said, findings=True)] if said else [],
        "parameters": _parameters(records, say),
    }
    every: list[Table[Any]] = [tables.runs, tables.differences, tables.curves, tables.scores]
    every += [tables.ledger, findings.table]
    return blocks.Report(
        title=say.join([record.name for record in records]),
        lang=lang,
        summary=said[0] if said else say("runs.nothing"),
        sections=[
            blocks.Section(slug=slug, heading=say.text(f"runs.headings.{slug}"), blocks=own)
            for slug, own in sections.items()
            if own
        ],
        tables=[table for table in every if table.rows],
    )


def _differences(tables: RunTables, say: Translator) -> list[blocks.Block]:
    if len(tables.compared) < 2:
        return []
    if not tables.differences.rows:
        return [blocks.Paragraph(said=[say("runs.same_specs")])]
    first = blocks.Column(key=COLUMN, name=say.text("runs.tables.differences.key"))
    columns = [first, *(blocks.Column(key=run, name=run) for run in tables.compared)]
    title = say.text("runs.tables.differences.title")
    return [blocks.TableBlock(table=tables.differences, columns=columns, title=title)]


def _curves(tables: RunTables, say: Translator) -> list[blocks.Block]:
    if not tables.curves.rows:
        return []
    shown = [table for table in (tables.curves, tables.scores) if table.rows]
    return [_picture("curves", partial(_draw_training_curves, tables), shown, say)]


def _time(tables: RunTables, say: Translator) -> list[blocks.Block]:
    if not tables.ledger.rows:
        return []
    names = say.labels("runs.tables.ledger")
    return [
        _picture("ledger", partial(_draw_ledger, tables), [tables.ledger], say),
        blocks.TableBlock.of(tables.ledger, names, title=names.pop("title")),
    ]


def _picture(
    name: str, draw: blocks.Draw, tables: list[Table[Any]], say: Translator
) -> blocks.Picture:
    title, caption = (say.text(f"runs.figures.{name}.{part}") for part in ("title", "caption"))
    return blocks.Picture(name=name, title=title, caption=caption, draw=draw, tables=tables)


def _parameters(records: Sequence[RunRecord], say: Translator) -> list[blocks.Block]:
    names = say.labels("runs.parameters")
    told: list[blocks.Block] = []
    for record in records:
        manifest = record.manifest
        hosts, packages = manifest.get("hosts"), manifest.get("packages")
        hosts = hosts if isinstance(hosts, list) else []
        packages = packages if isinstance(packages, dict) else {}
        versions = [f"{name} {version}" for name, version in packages.items()]
        if "python" in manifest:
            versions.insert(0, f"Python {manifest['python']}")
        facts = {
            "run": str(record.path),
            "started": str(manifest.get("started", "?")),
            "hosts": ", ".join(map(str, hosts)) or "?",
            "versions": ", ".join(versions) or "?",
            "commit": str(manifest.get("git_commit") or "–"),
        }
        told.append(blocks.Facts(items=[(names[key], fact) for key, fact in facts.items()]))
        if record.spec_values:
            text = yaml.safe_dump(record.spec_values, sort_keys=False, allow_unicode=True)
            told.append(blocks.Markdown(text=f"```yaml\n{text}```"))
    return told


def _of_one(row: RunRow, tables: RunTables, say: Translator) -> list[Sentence]:
    """Say how a run went."""
    said = []
    if row.step_ms is not None:
        step = tables.runs.quote(row, "step_ms")
        took = say(f"runs.analysis.{'one_step' if step.low is None else 'steps'}", step=step)
        what = "loss" if row.accuracy is None else "accuracy"
        value = tables.runs.quote(row, what)
        holes: dict[str, Filling] = {what: value, "name": row.run, "took": took}
        if row.accuracy is not None:
            when = "at_the_end" if row.done == "yes" else "last_looked_at"
            holes["when"] = say.text(f"runs.analysis.{when}")
        said.append(say(f"runs.analysis.{what}", **holes))
    if row.waited_share is not None:
        share = tables.runs.quote(row, "waited_share")
        rank = str(row.waited_for)
        said.append(say("runs.analysis.waited", name=row.run, share=share, rank=rank))
    return said


def _of_two(a: RunRow, b: RunRow, findings: Findings, say: Translator) -> list[Sentence]:
    """Say how a run compares with the first."""
    said = []
    names = {"a": a.run, "b": b.run}
    if a.step_ms and b.step_ms and a.step_ms.middle and b.step_ms.middle:
        ratio = findings.cell(
            f"step of {b.run} over {a.run}",
            b.step_ms.middle / a.step_ms.middle,
            form.times,
            of="runs.csv: step_ms",
        )
        # faster or slower only where the quartiles of the steps do not meet
        order = compare(b.step_ms, a.step_ms)
        said.append(say(f"runs.analysis.speed.{order}", **names, ratio=ratio))
    same_test = a.data == b.data and a.done == b.done == "yes"
    if same_test and a.accuracy is not None and b.accuracy is not None:
        gap = findings.cell(
            f"accuracy of {b.run} less {a.run}, in points",
            100 * (b.accuracy - a.accuracy),
            lambda value: f"{value:+.2f}",
            of="runs.csv: accuracy",
        )
        said.append(say("runs.analysis.gap", **names, gap=gap))
    if a.weights_sha256 and a.weights_sha256 == b.weights_sha256:
        said.append(say("runs.analysis.same_weights", **names))
    return said


def _draw_training_curves(tables: RunTables, style: FigureStyle) -> Figure:
    """Draw the runs' losses over steps, samples and seconds, and accuracies where measured."""
    say, scores = page_texts(style.speaks), tables.scores
    against = say.labels("runs.figures.curves.against")
    figure, axes = style.panels(len(against) + bool(scores.records), columns=2, height=2.9)
    title, y = (say.text(f"runs.figures.curves.loss.{key}") for key in ("title", "y"))
    for panel, (key, label) in zip(axes, against.items(), strict=False):
        _draw_losses(panel, tables.curves, key, style)
        style.finish(panel, title=title, x=label, y=y, legend=False)
    for number, rows in enumerate(scores.groups("run").values()):
        accuracies = [100 * row.accuracy for row in rows]
        look: dict[str, Any] = {"color": style.color(number), "marker": style.marker(number)}
        axes[-1].plot([row.step for row in rows], accuracies, markersize=4, **look)
    if scores.records:
        title = say.text("runs.figures.curves.scores.title")
        style.finish(axes[-1], title=title, x=against["step"], y="%", legend=False)
    style.legend(figure, axes[0], columns=min(4, len(tables.curves.groups("run"))))
    return figure


def _draw_losses(axes: Axes, curves: Table[CurvePoint], key: str, style: FigureStyle) -> None:
    for number, (run, rows) in enumerate(curves.groups("run").items()):
        x, y = [getattr(row, key) for row in rows], [row.loss for row in rows]
        color = style.color(number)
        width = max(1, len(rows) // _SMOOTH)
        if width > 1:
            axes.plot(x, y, color=color, alpha=0.25, linewidth=0.7)
            x, y = _means(x, width), _means(y, width)
        marks: dict[str, Any] = {"marker": style.marker(number), "markersize": 4}
        axes.plot(x, y, color=color, label=run, markevery=max(1, len(x) // 6), **marks)


def _means(values: Sequence[float], width: int) -> list[float]:
    pieces = [values[at : at + width] for at in range(0, len(values), width)]
    return [sum(piece) / len(piece) for piece in pieces]


def _draw_ledger(tables: RunTables, style: FigureStyle) -> Figure:
    """Draw the runs' ledgers, a bar for each rank: what a step of it is made of."""
    say, rows = page_texts(style.speaks), tables.ledger.records
    figure = style.figure(height=1.1 + 0.26 * len(rows))
    axes = figure.subplots()
    left = [0.0] * len(rows)
    for part, label in say.labels("runs.figures.ledger.parts").items():
        values = [getattr(row, f"{part}_ms") for row in rows]
        axes.barh(range(len(rows)), values, 0.8, left, color=LEDGER[part], label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.set_yticks(range(len(rows)), [f"{row.run}  {row.rank}" for row in rows])
    axes.invert_yaxis()
    style.finish(axes, **say.labels("runs.figures.ledger.bars"), legend=False)
    style.legend(figure, axes, columns=4)
    return figure
