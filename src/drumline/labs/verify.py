"""`drumline lab verify`: is a report what its runs say, and does training again give the same?"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drumline.core.errors import DrumlineError, UsageError
from drumline.labs.experiment import RUNS, LabSettings, Results, Training
from drumline.labs.runner import build_report, load_lab, run_experiments
from drumline.launcher.probe import Watch
from drumline.report.page.folder import audit_files, audit_numbers, audit_texts, read_manifest
from drumline.report.page.table import Table
from drumline.report.page.translator import Language

Manifest = dict[str, Any]
"""what `lab run` noted; anybody may have changed it"""
_NOT_READ = (DrumlineError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""what comes of runs that are damaged, or of another version"""


@dataclass
class Verification:
    """What is in order, and what is wrong."""

    checked: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def verify_report(folder: Path, *, rerun: bool, watch: Watch) -> Verification:
    """Verify a lab's report as a grader would; blocks while it trains again.

    Raises:
        UsageError: the folder holds no report of a lab.
    """
    manifest = read_manifest(folder)
    if "lab" not in manifest:
        raise UsageError(
            f"{folder} holds a page about runs, not a lab's report; name a folder of `lab run`"
        )
    try:
        settings = LabSettings.model_validate(manifest.get("settings", {}))
    except ValueError as error:
        raise UsageError(
            f"{folder}: the settings in its manifest are not of this version "
            f"({str(error).splitlines()[0]}); make the report again"
        ) from None
    audits = {
        f"{len(manifest['files'])} files are as they were written": audit_files(folder, manifest),
        "every number of the page is in its CSV file": audit_numbers(folder),
        "the page and the CSV files follow from the runs": _audit_runs(folder, manifest, settings),
    }
    if rerun:
        audits["training again gave the same weights"] = _train_again(manifest, settings, watch)
    verdict = Verification()
    for what, audit in audits.items():
        problems = list(audit)
        verdict.problems += problems
        if not problems:
            verdict.checked.append(what)
    return verdict


def _audit_runs(folder: Path, manifest: Manifest, settings: LabSettings) -> Iterator[str]:
    if not (folder / RUNS).is_dir():
        yield f"{folder / RUNS} is missing: the CSV files cannot be followed to the runs"
        return
    lang = Language.ZH if manifest.get("lang") == "zh" else Language.EN
    results = Results(folder=folder, settings=settings)
    try:
        report = build_report(load_lab(manifest["lab"]), results, {}, "", lang)
    except _NOT_READ as error:
        yield f"the runs cannot be read as this version's: {error}"
        return
    for table in report.tables:
        yield from _compare(table, folder / "data" / f"{table.name}.csv")
    yield from audit_texts(folder, report)


def _compare(table: Table[Any], file: Path) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        yield f"data/{file.name} is missing"
        return
    theirs, ours = text.splitlines(), table.to_csv().splitlines()
    if theirs != ours:
        pairs = enumerate(itertools.zip_longest(theirs, ours), start=1)
        line = next(number for number, (one, other) in pairs if one != other)
        yield f"data/{file.name}, line {line}: the runs give other numbers"


def _train_again(manifest: Manifest, settings: LabSettings, watch: Watch) -> Iterator[str]:
    listed = manifest.get("experiments")
    entries = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    noted = {one.get("name"): one.get("weights_sha256") for one in entries}
    experiments = [
        one
        for one in load_lab(manifest["lab"]).experiments(settings)
        if isinstance(one, Training) and one.exact and noted.get(one.name)
    ]
    if not experiments:
        yield "its manifest notes no weights to compare with: training again would tell nothing"
        return
    with tempfile.TemporaryDirectory() as temporary:
        results = run_experiments(experiments, settings, Path(temporary), reuse=False, watch=watch)
        for one in experiments:
            record = results.record(one.name)
            if record is None:
                yield f"{one.name} failed when it was run again: {results.failed.get(one.name)}"
                continue
            mine = record.summary.get("weights_sha256")
            if mine != noted[one.name]:
                yield (
                    f"{one.name} ended with other weights when it was run again "
                    f"({str(mine)[:16]}); on another processor or version of torch, rounding alone "
                    f"can do that"
                )
