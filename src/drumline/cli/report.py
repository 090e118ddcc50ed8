"""`drumline report` and `drumline compare`."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from drumline.cli.app import print_json, print_text
from drumline.core.errors import UsageError
from drumline.core.rundir import RunDir
from drumline.launcher.runs import RUNS
from drumline.report.page.blocks import Paragraph, Report
from drumline.report.page.folder import write_report
from drumline.report.page.translator import Language, Translator, page_texts
from drumline.report.runs.page import build_runs_report
from drumline.report.runs.record import RunRecord, read_record
from drumline.report.runs.tables import COLUMN, RunTables, build_tables
from drumline.report.tables import narrow_table

_PAGE_FOLDER = "report"
_MOST = 10
"""runs on one page: more colours cannot be told apart"""


def report_command(names: list[str], *, out: Path | None, lang: Language) -> None:
    """Run `drumline report`: write a page about runs, and say where it is."""
    say = page_texts(lang)
    records = _read(names)
    page = _write(build_runs_report(records, lang), records, out)
    written = str(say("runs.command.written", page=str(page)))
    for line in (*_gaps(records, lang), written):
        print_text(Console(), line)


def compare_command(
    first: str, second: str, *, out: Path | None, lang: Language, as_json: bool
) -> None:
    """Run `drumline compare`: print in what two runs differ, and write the page."""
    say = page_texts(lang)
    records = _read([first, second])
    report = build_runs_report(records, lang)
    page = _write(report, records, out)
    tables, gaps = build_tables(records), _gaps(records, lang)
    analysis = [one.blocks for one in report.sections if one.slug == "analysis"]
    paragraphs = [block for block in chain(*analysis) if isinstance(block, Paragraph)]
    said = [str(sentence) for paragraph in paragraphs for sentence in paragraph.said]
    if as_json:
        print_json(
            {
                "runs": tables.runs.rows,
                "differences": tables.differences.rows,
                "said": said,
                "gaps": gaps,
                "page": str(page),
            }
        )
        return
    console = Console()
    console.print(_differences_table(tables, records, say))
    for line in (*gaps, *said):
        console.print(line, markup=False, highlight=False)
    print_text(console, str(say("runs.command.written", page=str(page))))


def _gaps(records: list[RunRecord], lang: Language) -> list[str]:
    return [gap for record in records for gap in record.say_gaps(lang)]


def _read(names: list[str]) -> list[RunRecord]:
    """Read the runs; two of one name are told apart by their folders, and from a table's column."""
    if len(names) > _MOST:
        raise UsageError(f"a page takes {_MOST} runs, and {len(names)} were named; name fewer")
    runs = [_open(name) for name in names]
    for path, times in Counter(run.path.resolve() for run in runs).items():
        if times > 1:
            raise UsageError(f"{path} was named {times} times; name runs that differ")
    called = [run.path.name for run in runs]
    for longer in (lambda path: f"{path.parent.name}/{path.name}", str):
        taken = Counter([*called, COLUMN])
        called = [
            longer(run.path) if taken[name] > 1 else name
            for run, name in zip(runs, called, strict=True)
        ]
    return [read_record(run, name=name) for run, name in zip(runs, called, strict=True)]


def _open(name: str) -> RunDir:
    """Find a run, also one that has nothing but a folder."""
    run = _find(name)
    if run is None and (Path(name).exists() or (RUNS / name).exists()):
        raise UsageError(
            f"{name} is no run: it has neither spec.yaml nor events/; name a run's folder, or "
            f"see what there is with: drumline runs"
        )
    return run or RunDir.open(name, root=RUNS)


def _find(name: str) -> RunDir | None:
    for path in (Path(name), RUNS / name):
        if (path / "spec.yaml").is_file() or (path / "events").is_dir():
            return RunDir(path.absolute())
    return None


def _write(report: Report, records: list[RunRecord], out: Path | None) -> Path:
    single = records[0].path / _PAGE_FOLDER if len(records) == 1 else Path(_PAGE_FOLDER)
    facts = {"runs": [str(record.path) for record in records]}
    return write_report(report, out or single, facts)


def _differences_table(tables: RunTables, records: list[RunRecord], say: Translator) -> Table | str:
    if len(tables.compared) < 2:
        of_one = any(record.script for record in records)
        return say.text(f"runs.command.specs_{'of_one' if of_one else 'unreadable'}")
    if not tables.differences.rows:
        return say.text("runs.command.specs_same")
    names = (say.text("runs.tables.differences.key"), *tables.compared)
    table = narrow_table(*(Column(name, overflow="fold") for name in names))
    for row in tables.differences.rows:
        table.add_row(*(Text(str(cell)) for cell in row.values()))
    return table
