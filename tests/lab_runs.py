"""Run directories as a lab leaves them, made up without training; and the words of a write-up."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from drumline.bench.case_runner import Measurement
from drumline.core.rundir import RunDir
from drumline.data import BatchPlan
from drumline.data.coverage import coverage
from drumline.labs.chapter import Lab, WriteUp
from drumline.labs.experiment import LabSettings, Results, Training
from drumline.report.page.blocks import Paragraph, Picture, Report, Section, TableBlock
from drumline.report.page.render import render_markdown
from drumline.report.page.table import CellRef
from drumline.report.page.translator import Language, Sentence, Text
from drumline.spec.load import write_run_spec

MS = 1_000_000
SAMPLES = 240
_LABELS = np.arange(SAMPLES) % 10


def make_runs(
    lab: Lab,
    folder: Path,
    *,
    without: Collection[str] = (),
    diverged: Collection[str] = (),
    documents: Mapping[str, Any] | None = None,
    settings: LabSettings | None = None,
) -> Results:
    """Leave what all experiments of a lab would, but those named; measurements: `documents`."""
    settings = settings or LabSettings()
    for experiment in lab.experiments(settings):
        if experiment.name in without:
            continue
        if isinstance(experiment, Measurement):
            document = (documents or {})[experiment.name]
            (folder / "runs").mkdir(parents=True, exist_ok=True)
            (folder / "runs" / f"{experiment.name}.json").write_text(json.dumps(document))
        elif experiment.name in diverged:
            _diverge(folder, experiment)
        else:
            _leave(folder, experiment)
    failed = dict.fromkeys(without, "it was unplugged")
    return Results(folder=folder, settings=settings, failed=failed)


def _leave(folder: Path, training: Training) -> None:
    spec = training.spec
    run = RunDir.create("", root=folder, exact=folder / "runs" / training.name)
    write_run_spec(run, spec)
    run.write_json("manifest.json", {"cpu_count": 2})
    whole = spec.optimizer.name == "gd"
    per_epoch = 1 if whole else 6
    steps = spec.max_steps or per_epoch * (spec.epochs or 1)
    for rank in range(spec.world_size):
        _log(run, training, rank, steps, per_epoch)
    plan = BatchPlan(
        spec=spec.data.partition,
        n=min(SAMPLES, spec.data.samples or SAMPLES),
        labels=_LABELS,
        batch=SAMPLES // per_epoch,
        world_size=spec.world_size,
        seed=spec.seed,
    )
    run.write_json("coverage.json", asdict(coverage(plan, steps)))
    run.write_json(
        "summary.json",
        {
            "accuracy": _accuracy(training, spec.epochs or 1),
            "test_loss": 0.3 + 0.001 * (spec.seed % 7),
            "parameters": 1000,
            "train_s": steps * 0.01,
            "weights_sha256": f"{spec.seed}",
        },
    )


def _log(run: RunDir, training: Training, rank: int, steps: int, per_epoch: int) -> None:
    spec = training.spec
    ranks = spec.world_size
    slow = (10 + 2 * rank + 0.1 * (spec.seed % 10)) * MS / ranks
    events: list[dict[str, Any]] = [{"event": "start"}]
    now = 0
    for step in range(1, steps + 1):
        computed = round(now + slow)
        arrived = round(now + (10 + 2 * ranks) * MS / ranks)
        events.append(
            {
                "event": "step",
                "step": step,
                "loss": 2.3 * math.exp(-step / 20)
                + 0.01 * (sum(map(ord, f"{training.name} {rank}")) % 7),
                "samples": SAMPLES // per_epoch // ranks,
                "t": now,
                "data": MS,
                "update": MS // 2,
                "total": arrived + MS - now,
                "blocked": [[computed, arrived + MS]] if ranks > 1 else [],
                "spans": [["all_reduce", 4000, computed, arrived + MS]] if ranks > 1 else [],
            }
        )
        now = arrived + 2 * MS
        if rank == 0 and step % per_epoch == 0:
            accuracy = _accuracy(training, step // per_epoch)
            scores = {"test_loss": 0.4, "accuracy": accuracy}
            events.append({"event": "epoch", "step": step, **scores})
    events.append({"event": "end", "step": steps, "peak_bytes": 5_000_000 + 1000 * spec.seed})
    lines = [json.dumps(event) + "\n" for event in events]
    run.rank_events(rank).write_text("".join(lines))


def _accuracy(training: Training, epoch: int) -> float:
    return 0.9 - 0.4 / epoch + 0.001 * (sum(map(ord, training.name)) % 13)


def _diverge(folder: Path, training: Training) -> None:
    run = RunDir.create("", root=folder, exact=folder / "runs" / training.name)
    write_run_spec(run, training.spec)
    error = {"event": "error", "type": "DivergenceError", "message": "the loss is nan"}
    run.rank_events(0).write_text(json.dumps(error) + "\n")


def quotes_of(found: WriteUp) -> list[CellRef]:
    """Return all numbers of a write-up: in sentences, tables and captions."""
    refs: list[CellRef] = []
    for block in (*found.results, *found.analysis):
        match block:
            case Paragraph(said=sentences):
                refs += [ref for one in sentences for ref in _in(one)]
            case TableBlock(title=title):
                cells = [cell for row in block.cells() for cell in row]
                refs += [*_in(title), *(cell for cell in cells if isinstance(cell, CellRef))]
            case Picture(title=title, caption=caption):
                refs += [*_in(title), *_in(caption)]
    return [*_in(found.summary), *refs]


def _in(said: Text) -> list[CellRef]:
    parts = said.parts if isinstance(said, Sentence) else ()
    return [part for part in parts if isinstance(part, CellRef)]


def words_of(found: WriteUp, lang: Language) -> str:
    """Return what a reader reads, as one text."""
    blocks = [*found.results, *found.analysis]
    section = Section(slug="all", heading="All", blocks=blocks)
    report = Report(title="a lab", lang=lang, summary=found.summary, sections=[section])
    return render_markdown(report)


def wrong_quotes(found: WriteUp) -> list[str]:
    """Name the numbers of a write-up that are not those of the files of its sheets."""
    files = {
        table.name: list(csv.DictReader(io.StringIO(table.to_csv()))) for table in found.tables
    }
    assert len(files) == len(found.tables), "two sheets of one name"
    return [
        f"{ref.table}.csv, row {ref.row}, {ref.column}: {ref.value} on the page"
        for ref in quotes_of(found)
        if files[ref.table][ref.row][ref.column] != ("" if ref.value is None else str(ref.value))
    ]
