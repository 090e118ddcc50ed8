"""Data parallelism against the single machine: speed-up, efficiency, accuracy at equal cost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from drumline.labs.chapter import Chapter
from drumline.labs.columns import mean_cells
from drumline.labs.curves import curve_sheet, rows_of, score_sheet
from drumline.labs.data_parallel.cases import CORES, Plan, seed_names, workers_name
from drumline.labs.data_parallel.cost_pictures import draw_equal_cost, draw_scaling
from drumline.labs.data_parallel.learning import WIDTH
from drumline.labs.data_parallel.scaling_words import say_scaling
from drumline.labs.judgement import compare_sizes
from drumline.labs.results import Results
from drumline.report.interval import Interval, interval_cells, interval_names, quartile_interval
from drumline.report.page.blocks import Column, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import (
    Table,
    count,
    milliseconds,
    percent,
    plain,
    points,
    seconds,
    times,
)
from drumline.report.page.translator import Translator
from drumline.report.record import RunRecord

ACCOUNTS = ("compute", "wait", "transfer", "data")
Setups = dict[str, list[RunRecord]]


def write_scaling(results: Results, of: Plan, say: Translator, found: Findings) -> Chapter | None:
    """Write the chapter; None without the runs on one worker."""
    setups = _setups(results, of)
    if "1" not in setups:
        return None
    times_of = _scaling_sheet(setups)
    curves = curve_sheet("scaling_curves", "setup", setups, width=WIDTH)
    scores = score_sheet("scaling_scores", "setup", setups)
    equal = _equal_sheet(curves, scores, list(setups))
    chapter = Chapter(
        heading=say.pick("Against the single machine", "与单机训练的比较"),
        tables=[times_of, curves, scores, equal],
    )
    chapter.results = [
        Picture(
            name="scaling",
            title=say.pick(
                "Speed-up, efficiency, and where a step's time goes",
                "加速比、效率与每步时间的去向",
            ),
            draw=lambda pen: draw_scaling(pen, times_of),
            caption=say.pick(
                "The same global batch on more workers, one thread each; bars are 95 % intervals "
                "over seeds. “all cores” is one process with as many threads as the machine has "
                "cores. Stacked: mean over ranks and steps of the seed "
                "with the median step.",
                "全局批量不变，增加进程数，每个进程一个线程；误差线为种子间的 95 % 置信区间。"
                "“全部核心”为一个使用全部核心的进程。堆叠图取每步用时居中的那个种子，对各进程、各步求平均。",
            ),
            tables=[times_of],
        ),
        Picture(
            name="equal_cost",
            title=say.pick(
                "The same training by samples and by seconds", "同样的训练：按样本数与按时间"
            ),
            draw=lambda pen: draw_equal_cost(pen, curves, scores, list(setups)),
            caption=say.pick(
                "Training loss (lines) and test accuracy (markers), mean over seeds, with 95 % "
                "intervals of the loss.",
                "训练损失（曲线）与测试准确率（标记），为种子间平均值，"
                "色带为损失的 95 % 置信区间。",
            ),
            tables=[curves, scores],
        ),
        *_tables(times_of, equal, say),
    ]
    chapter.said = say_scaling(setups, times_of, equal, say, found)
    return chapter


def _setups(results: Results, of: Plan) -> Setups:
    names = {str(count): workers_name(count, of) for count in of.workers} | {CORES: CORES}
    found = {
        setup: list(results.records(seed_names(name, of)).values()) for setup, name in names.items()
    }
    return {setup: records for setup, records in found.items() if records and records[0].step_s}


def _scaling_sheet(setups: Setups) -> Table:
    intervals = interval_names("step_ms", "speedup", "efficiency", "accuracy")
    table = Table(
        name="scaling",
        columns=(
            *("setup", "workers", "repeats", *intervals),
            *("samples_per_s", *(f"{account}_ms" for account in ACCOUNTS)),
        ),
    )
    for setup, records in setups.items():
        workers = 1 if setup == CORES else int(setup)
        speedup = speedup_of(setups["1"], records)
        known = speedup if setup != CORES else None
        efficiency = None if known is None else known.scaled(1 / workers)
        steps = [1000 * step for record in records for step in record.step_s]
        table.add(
            setup=setup,
            workers=workers,
            repeats=len(records),
            **interval_cells("step_ms", quartile_interval(steps)),
            **interval_cells("speedup", speedup),
            **interval_cells("efficiency", efficiency),
            samples_per_s=statistics.median(_rate(record) for record in records),
            **mean_cells("accuracy", [record.accuracy for record in records], most=1.0),
            **_accounts(records),
        )
    return table


def speedup_of(base: Sequence[RunRecord], records: Sequence[RunRecord]) -> Interval | None:
    """Return how much faster a median step is, in pairs of one seed."""
    first = {record.words.get("seed"): record.median_step_s for record in base}
    pairs = [
        (first[seed], record.median_step_s)
        for record in records
        if (seed := record.words.get("seed")) in first
    ]
    known = [(one, two) for one, two in pairs if one and two]
    if not known:
        return None
    return compare_sizes([one for one, _ in known], [two for _, two in known])


def _rate(record: RunRecord) -> float:
    last = record.curve[-1]
    return last.samples / last.seconds if last.seconds else 0.0


def _accounts(records: Sequence[RunRecord]) -> dict[str, float | None]:
    """Return where a step's time went, in milliseconds: mean over ranks and steps of one run.

    It is the run whose step is the median one, as another may have met a busy machine.
    """
    ranked = sorted(records, key=lambda record: record.median_step_s or 0.0)
    ledger = ranked[(len(ranked) - 1) // 2].ledger
    if ledger is None or not ledger.steps:
        return {f"{account}_ms": None for account in ACCOUNTS}
    sums = {
        "compute": sum(rank.compute_s for rank in ledger.ranks),
        "wait": sum(rank.exposed_wait_s for rank in ledger.ranks),
        "transfer": sum(rank.exposed_transfer_s for rank in ledger.ranks),
        "data": sum(rank.data_s for rank in ledger.ranks),
    }
    turns = ledger.steps * len(ledger.ranks)
    return {f"{account}_ms": 1000 * seconds_ / turns for account, seconds_ in sums.items()}


def _equal_sheet(curves: Table, scores: Table, setups: list[str]) -> Table:
    """Tabulate where each setup stood when the fastest had done all its samples."""
    rows = {setup: rows_of(curves, "setup", setup) for setup in setups}
    ends = {setup: float(lines[-1]["seconds"]) for setup, lines in rows.items() if lines}
    within = min(ends.values())
    looked = {"loss": curves, "accuracy": scores}
    columns = ("setup", "within_s", "samples", *interval_names(*looked))
    table = Table(name="equal_time", columns=columns)
    for setup in ends:
        table.add(
            setup=setup,
            within_s=within,
            samples=at_time(rows[setup], within, "samples"),
            **{
                column: at_time(rows_of(of, "setup", setup), within, column)
                for key, of in looked.items()
                for column in interval_names(key)
            },
        )
    return table


def at_time(rows: Sequence[Mapping[str, Any]], when: float, column: str) -> float | None:
    """Return a column at a time, between two rows on the line through them.

    None: it is too early, or a row lacks a value (the interval of one seed).
    """
    before = [row for row in rows if row["seconds"] <= when]
    after = [row for row in rows if row["seconds"] > when]
    if not before or any(row[column] is None for row in (before[-1], *after[:1])):
        return None
    last = before[-1]
    if not after:
        return float(last[column])
    step = after[0]["seconds"] - last["seconds"]
    share = (when - last["seconds"]) / step if step else 0.0
    return float(last[column] + share * (after[0][column] - last[column]))


def _tables(times_of: Table, equal: Table, say: Translator) -> list[TableBlock]:
    setup = Column(
        key="setup",
        name=say.pick("workers", "进程数"),
        align="left",
        labels={CORES: say.pick("1, all cores", "1，全部核心")},
    )
    accuracy = Column(key="accuracy", name=say.pick("test accuracy", "测试准确率"), form=points)
    return [
        TableBlock(
            table=times_of,
            title=say.pick(
                "Strong scaling: the same batch on more workers. Step: median and quartiles; "
                "speed-up, efficiency and accuracy: mean over seeds (95 % interval).",
                "强扩展：同样的全局批量，更多进程。每步用时：中位数与四分位数；"
                "加速比、效率与准确率：种子间平均值（95 % 置信区间）。",
            ),
            columns=[
                setup,
                Column(key="step_ms", name=say.pick("step", "每步用时"), form=milliseconds),
                Column(key="speedup", name=say.pick("speed-up", "加速比"), form=times),
                Column(key="efficiency", name=say.pick("efficiency", "效率"), form=percent),
                Column(key="samples_per_s", name=say.pick("samples/s", "样本/秒"), form=count),
                accuracy,
            ],
        ),
        TableBlock(
            table=equal,
            title=say.pick(
                "At equal time: where each stood when the fastest had seen all its samples; mean "
                "over seeds, 95 % interval (accuracy between two looks at the test set: on the "
                "line through them)",
                "相同时间下：最快者完成全部样本时各自的进度；种子间平均值，95 % 置信区间"
                "（两次测试之间的准确率按直线插值）",
            ),
            columns=[
                setup,
                Column(key="within_s", name=say.pick("time", "时间"), form=seconds),
                Column(key="samples", name=say.pick("samples", "样本数"), form=count),
                Column(key="loss", name=say.pick("training loss", "训练损失"), form=plain),
                accuracy,
            ],
        ),
    ]
