"""What the `lab` commands do and print: `list`, `start`, `check`, `run`, `verify`."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

import drumline
from drumline.cli.app import print_json, print_text
from drumline.cli.display import watched
from drumline.core.errors import DrumlineError, LabError, UsageError
from drumline.core.formatting import format_seconds
from drumline.labs.catalogue import LABS, find_lab, recognise_lab, start_lab
from drumline.labs.check import (
    CheckResult,
    CheckWatch,
    check_lab,
    check_title,
    explain_verdict,
    lab_label,
    write_junit,
)
from drumline.labs.runner import LabRequest, run_lab
from drumline.labs.verify import verify_report
from drumline.launcher.grader import Status, Verdict
from drumline.launcher.probe import Progress
from drumline.report.page.translator import Language

_LISTED = ("lab", "title", "about", "needs")
_STYLES = {
    Status.PASS: "green",
    Status.WRONG: "bold red",
    Status.TO_DO: "yellow",
    Status.NOT_RUN: "dim",
}
_SLOW_S = 2.0  # a check that took longer says so
_PRINTED_LINES = 8  # the last ones of what a check printed


def list_command(lang: Language | None, *, as_json: bool) -> None:
    """Run `drumline lab list`."""
    language = lang or Language.EN
    rows = [
        {
            "lab": lab.number,
            "name": lab.name,
            **{key: lab.text(key, language) for key in ("title", "about", "needs")},
            "files": [f"{module}.py" for module in lab.modules],
        }
        for lab in LABS
    ]
    if as_json:
        print_json(rows)
        return
    columns = [Column(lab_label(name, language), overflow="fold") for name in _LISTED]
    table = Table(*columns, box=None, pad_edge=False, header_style="dim")
    for row in rows:
        table.add_row(*(str(row[name]) for name in _LISTED))
    Console().print(table)


def start_command(number: int, folder: Path, lang: Language | None) -> None:
    """Run `drumline lab start`: make a folder for a lab, and say what to do next."""
    language = lang or Language.EN
    files = start_lab(number, folder, language)
    console, title = Console(), find_lab(number).text("title", language)
    started = lab_label("started", language).format(lab=number, title=title, folder=folder)
    after = lab_label("next", language).format(folder=shlex.quote(str(folder)))
    for line in (started, *(f"  {path.name}" for path in files), after):
        print_text(console, line)


def run_lab_command(request: LabRequest, *, as_json: bool) -> None:
    """Run `drumline lab run`: run a lab, write it up, and say where the page is."""
    with watched() as watch:
        written = run_lab(
            request,
            watch=watch,
            on_figure=lambda name: watch(Progress(share=1.0, now=f"drawing {name}")),
        )
    if as_json:
        print_json({"lab": request.number, "page": str(written.page), "failed": written.failed})
    else:
        print_text(Console(), written.message)
    if written.failed:
        told = [f"{name}: {why}" for name, why in written.failed.items()]
        raise LabError(
            f"{len(told)} experiments failed, and are missing from the report:\n" + "\n".join(told)
        )


def verify_command(folder: Path, *, rerun: bool, as_json: bool) -> None:
    """Run `drumline lab verify`: say whether a report is what its runs say."""
    with watched() as watch:
        verdict = verify_report(folder, rerun=rerun, watch=watch)
    if as_json:
        print_json({"checked": verdict.checked, "problems": verdict.problems})
    else:
        for line in verdict.checked:
            print_text(Console(), f"✓ {line}")
    if verdict.problems:
        told = "\n".join(f"✗ {problem}" for problem in verdict.problems)
        raise LabError(f"{folder} is not what was written:\n{told}")


def check_command(
    folder: Path, *, junit: Path | None, lang: Language | None, timeout_s: float, as_json: bool
) -> None:
    """Run `drumline lab check` on a student's folder; exits with 1 unless all is right."""
    lab, started_in = recognise_lab(folder)
    language = lang or started_in
    if junit is not None and not junit.absolute().parent.is_dir():
        raise UsageError(f"--junit {junit}: there is no folder {junit.parent}; make it first")
    if junit is not None and junit.is_dir():
        raise UsageError(f"--junit {junit} is a folder; name a file, such as {junit}/result.xml")
    console = Console(highlight=False, quiet=as_json)
    with _watched(console, language) as watch:
        result = check_lab(lab, folder, timeout_s=timeout_s, watch=watch)
    if as_json:
        print_json(
            {
                "lab": result.lab,
                "folder": str(result.folder),
                "passed": result.passed,
                "seconds": round(result.seconds, 3),
                "checks": [_row(verdict, language) for verdict in result.verdicts],
            }
        )
    else:
        _explain_all(console, result, language)
    try:
        if junit is not None:
            write_junit(junit, result, language)
    except OSError as error:
        raise DrumlineError(
            f"cannot write {junit}: {error.strerror}; name a file that you can write to"
        ) from error
    if not result.passed:
        raise typer.Exit(1)


@contextlib.contextmanager
def _watched(console: Console, language: Language) -> Iterator[CheckWatch]:
    """Print each verdict as it comes; on a terminal also what is being checked."""
    with console.status(lab_label("starting", language)) as spinner:

        def watch(told: str | Verdict) -> None:
            if isinstance(told, Verdict):
                console.print(_line(told, language))
            else:
                title = check_title(told, language)
                spinner.update(lab_label("checking", language).format(title=title))

        yield watch


def _line(verdict: Verdict, language: Language) -> Text:
    line = Text(f"{lab_label(verdict.status, language)} ", style=_STYLES[verdict.status])
    line.append(check_title(verdict.check, language), style="")
    if verdict.status is Status.WRONG:
        line.append(f"  {verdict.mistake}", style="red")
    if verdict.seconds > _SLOW_S:
        line.append(f"  {format_seconds(verdict.seconds)}", style="dim")
    return line


def _explain_all(console: Console, result: CheckResult, language: Language) -> None:
    for verdict in result.verdicts:
        if verdict.status in (Status.TO_DO, Status.WRONG):
            _explain(console, verdict, language)
    console.print()
    key = "all right" if result.passed else "summary"
    console.print(
        lab_label(key, language).format(
            lab=result.lab,
            total=len(result.verdicts),
            passed=result.count(Status.PASS),
            wrong=result.count(Status.WRONG),
            todo=result.count(Status.TO_DO),
            not_run=result.count(Status.NOT_RUN),
        ),
        markup=False,
    )
    if result.count(Status.WRONG):
        source = lab_label("source", language).format(folder=Path(drumline.__file__).parent)
        console.print(source, markup=False, soft_wrap=True)


def _explain(console: Console, verdict: Verdict, language: Language) -> None:
    mark, title = lab_label(verdict.status, language), check_title(verdict.check, language)
    console.print()
    console.print(Text(f"{mark} {title}", style=_STYLES[verdict.status]))
    told = explain_verdict(verdict, language)
    if verdict.status is Status.TO_DO:
        _say(console, told.seen)
        return

    def say(name: str, text: str, *, empty: bool = False) -> None:
        if text or empty:
            _say(console, text, lab_label(name, language) + lab_label("colon", language))

    say("expected", told.expected)
    say("seen", told.seen)
    for line in told.picture:
        console.print(Text(f"      {line}", style="cyan", no_wrap=True), soft_wrap=True)
    say("belief", told.belief)
    say("read", told.reading())
    if verdict.output.strip() and verdict.mistake in ("raises", "died", "hangs", "exits"):
        say("printed", "", empty=True)
        for line in verdict.output.strip().splitlines()[-_PRINTED_LINES:]:
            console.print(Text(f"      {line}", style="dim"))


def _say(console: Console, text: str, before: str = "") -> None:
    """Print a sentence, broken where the line is full, with a word before it."""
    line = Text(before, style="bold")
    line.append(text, style="not bold")
    console.print(Padding(line, (0, 0, 0, 4), expand=False))


def _row(verdict: Verdict, language: Language) -> dict[str, object]:
    told = asdict(explain_verdict(verdict, language))
    del told["language"]
    return {
        "check": verdict.check,
        "title": check_title(verdict.check, language),
        "status": str(verdict.status),
        "mistake": verdict.mistake,
        **told,
        "facts": {name: _plain(value) for name, value in verdict.facts.items()},
        "seconds": verdict.seconds,
    }


def _plain(value: Any) -> Any:
    """Write as text what JSON has no number for, such as a weight that is NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
