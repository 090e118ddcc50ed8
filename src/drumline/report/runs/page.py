"""The page about one run or several: `drumline report` and `drumline compare`.

Its tables are made of the runs' records, a CSV file each; its text is in `report/text`, and what
the analysis says is chosen by what was measured. The run of a script has neither spec nor losses,
and where it makes no steps, its times are per second, in a table of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from drumline.report.intervals import compare
from drumline.report.page import blocks
from drumline.report.page import table as form
from drumline.report.page.table import Findings, Table
from drumline.report.page.translator import Filling, Language, Sentence, Translator, page_texts
from drumline.report.plots import LEDGER, FigureStyle
from drumline.report.runs.record import RunRecord
from drumline.report.runs.tables import COLUMN, LedgerRow, RunRow, RunTables, build_tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SMOOTH = 40
"""a curve is drawn as means of so many pieces, over a faint line of all steps"""


def build_runs_report(records: Sequence[RunRecord], lang: Language) -> blocks.Report:
    """Build the report about runs: what cannot be shown is said, the rest is shown."""
    say = page_texts(lang)
    tables, findings = build_tables(records), Findings()
    rows = tables.runs.records
    said = [sentence for row in rows for sentence in _of_one(row, tables, say)]
    said += [sentence for row in rows[1:] for sentence in _of_two(rows[0], row, findings, say)]
    gaps = [blocks.Notice(said=gap) for record in records for gap in record.say_gaps(lang)]
    names = _told(tables.runs, say.labels("runs.tables.runs"))
    sections: dict[str, list[blocks.Block]] = {
        "runs": [*gaps, blocks.TableBlock.of(tables.runs, names, title=names.pop("title"))],
        "differences": _differences(tables, say),
        "curves": _curves(tables, say),
        "time": _time(tables, say),
        "collectives": _collectives(tables, say),
        "analysis": [blocks.Paragraph(said=said, findings=True)] if said else [],
        "parameters": _parameters(records, say),
    }
    every: list[Table[Any]] = [tables.runs, tables.differences, tables.curves, tables.scores]
    every += [tables.times, tables.ledger, tables.seconds, tables.collectives, findings.table]
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


def _told(table: Table[Any], names: Mapping[str, str]) -> dict[str, str]:
    """Leave out the columns in which no row tells anything: scripts have no loss, for one."""
    empty = {key for key in table.columns if all(row[key] in (None, "") for row in table.rows)}
    return {key: name for key, name in names.items() if key not in empty}


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
    shown: list[blocks.Block] = []
    if len(tables.times.rows) > 1:
        shown.append(_picture("times", partial(_draw_step_times, tables), [tables.times], say))
    for name, table in (("ledger", tables.ledger), ("seconds", tables.seconds)):
        if table.rows:
            names = {**say.labels("runs.tables.ledger"), **say.labels(f"runs.tables.{name}")}
            shown.append(_picture(name, partial(_draw_ledger, table, name), [table], say))
            shown.append(blocks.TableBlock.of(table, names, title=names.pop("title")))
    return shown


def _collectives(tables: RunTables, say: Translator) -> list[blocks.Block]:
    if not tables.collectives.rows:
        return []
    names = say.labels("runs.tables.collectives")
    return [
        blocks.TableBlock.of(tables.collectives, names, title=names.pop("title")),
        blocks.Paragraph(said=[say("runs.collectives")]),
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
            **({"script": " ".join(record.script)} if record.script else {}),
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
        known = [key for key in ("accuracy", "loss") if getattr(row, key) is not None]
        what = known[0] if known else "neither"
        holes: dict[str, Filling] = {"name": row.run, "took": took}
        holes |= {key: tables.runs.quote(row, key) for key in known[:1]}
        if what == "accuracy":
            when = "at_the_end" if row.done == "yes" else "last_looked_at"
            holes["when"] = say.text(f"runs.analysis.{when}")
        said.append(say(f"runs.analysis.{what}", **holes))
    if row.waited_share is not None:
        share, rank = tables.runs.quote(row, "waited_share"), str(row.waited_for)
        said.append(say("runs.analysis.waited", name=row.run, share=share, rank=rank))
    if row.slow_ms is not None and (row.waited_share or 0) > 0.5:
        phase = say.text(f"runs.analysis.phases.{row.slow_in}")
        per = say.text(f"runs.analysis.per.{'second' if row.step_ms is None else 'step'}")
        excess, rank = tables.runs.quote(row, "slow_ms"), str(row.waited_for)
        said.append(say("runs.analysis.slow", rank=rank, phase=phase, excess=excess, per=per))
    if row.link_node is not None:
        told = "messages" if row.link_busy is None else "busy"
        holes = {"node": str(row.link_node), "rate": tables.runs.quote(row, "link_mbit_s")}
        holes |= {} if row.link_busy is None else {"busy": tables.runs.quote(row, "link_busy")}
        said.append(say(f"runs.analysis.link.{told}", name=row.run, **holes))
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
        _draw_lines(panel, tables.curves, (key, "loss"), style)
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


def _draw_step_times(tables: RunTables, style: FigureStyle) -> Figure:
    """Draw how long each step of the runs took."""
    say = page_texts(style.speaks)
    figure = style.figure(height=2.9)
    axes = figure.subplots()
    _draw_lines(axes, tables.times, ("step", "step_ms"), style)
    groups = tables.times.groups("run").values()
    warm = [row.step_ms for rows in groups for row in rows[1:] or rows]
    axes.set_ylim(0, 1.05 * max(warm))
    style.finish(axes, **say.labels("runs.figures.times.lines"), legend=False)
    if len(tables.times.groups("run")) > 1:
        style.legend(figure, axes, columns=4)
    return figure


def _draw_lines(axes: Axes, table: Table[Any], keys: tuple[str, str], style: FigureStyle) -> None:
    """Draw a column of a table over another, a line for each run."""
    for number, (run, rows) in enumerate(table.groups("run").items()):
        x, y = ([getattr(row, key) for row in rows] for key in keys)
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


def _draw_ledger(table: Table[LedgerRow], name: str, style: FigureStyle) -> Figure:
    """Draw the runs' ledgers, a bar for each rank: what a step or second of it is made of."""
    figure = style.figure(height=1.1 + 0.26 * len(table.records))
    axes = figure.subplots()
    _draw_bars(axes, table, name, style)
    style.legend(figure, axes, columns=4)
    return figure


def _draw_bars(axes: Axes, table: Table[LedgerRow], name: str, style: FigureStyle) -> None:
    say, rows = page_texts(style.speaks), table.records
    left = [0.0] * len(rows)
    for part, label in say.labels("runs.figures.ledger.parts").items():
        values = [getattr(row, f"{part}_ms") for row in rows]
        axes.barh(range(len(rows)), values, 0.8, left, color=LEDGER[part], label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.set_yticks(range(len(rows)), [f"{row.run}  {row.rank}" for row in rows])
    axes.invert_yaxis()
    style.finish(axes, **say.labels(f"runs.figures.{name}.bars"), legend=False)


def draw_overview(records: Sequence[RunRecord], style: FigureStyle) -> Figure:
    """Draw runs in one figure: their losses over steps, and below what their steps are made of."""
    tables, say = build_tables(records), page_texts(style.speaks)
    bars = 0.9 + 0.26 * len(tables.ledger.records)
    figure = style.figure(height=2.9 + bars)
    losses, ledger = figure.subplots(2, height_ratios=[2.9, bars])
    _draw_lines(losses, tables.curves, ("step", "loss"), style)
    title, y = (say.text(f"runs.figures.curves.loss.{key}") for key in ("title", "y"))
    across = say.text("runs.figures.curves.against.step")
    style.finish(losses, title=title, x=across, y=y)
    _draw_bars(ledger, tables.ledger, "ledger", style)
    style.legend(figure, ledger, columns=4, loc="outside lower center")
    return figure
