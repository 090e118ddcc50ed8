"""How well each way of dealing out the data learns: loss, accuracy, and who waits for whom."""

from __future__ import annotations

import math
import statistics

from drumline.labs.chapter import Chapter
from drumline.labs.columns import factor_cells, mean_cells
from drumline.labs.curves import curve_sheet, score_sheet, smoothed
from drumline.labs.data_parallel.cases import KINDS, Plan, seed_names
from drumline.labs.data_parallel.names import kind_name, kind_names
from drumline.labs.data_parallel.pictures import draw_learning
from drumline.labs.forms import point_change, point_size
from drumline.labs.judgement import judge_accuracy
from drumline.labs.material import TEST_SAMPLES
from drumline.labs.results import Results
from drumline.report.interval import interval_names
from drumline.report.order import Order
from drumline.report.page.blocks import Column, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table, count, milliseconds, percent, plain, points
from drumline.report.page.translator import Text, Translator
from drumline.report.record import RunRecord

WIDTH = 20
"""steps that a drawn loss is the mean of"""
_WAITS = 0.1
"""a share of waiting that is worth a sentence"""


def write_learning(results: Results, of: Plan, say: Translator, found: Findings) -> Chapter | None:
    """Write the chapter; None where no run came to its end."""
    runs = {kind: list(results.records(seed_names(kind, of)).values()) for kind in KINDS}
    runs = {kind: records for kind, records in runs.items() if records}
    if not runs:
        return None
    curves = curve_sheet("strategy_curves", "kind", runs, width=WIDTH)
    scores = score_sheet("strategy_scores", "kind", runs)
    ends = _ends_sheet(runs)
    chapter = Chapter(
        heading=say.pick("Loss and accuracy by strategy", "不同划分方式的损失与准确率"),
        tables=[ends, curves, scores],
    )
    chapter.results = [
        Picture(
            name="strategies",
            title=say.pick(
                f"Training on {of.ranks} ranks, by strategy",
                f"{of.ranks} 个进程上不同划分方式的训练过程",
            ),
            draw=lambda pen: draw_learning(pen, curves, scores, list(runs)),
            caption=say(
                "Mean over seeds (of losses the geometric one); bands and bars are 95 % intervals. "
                "A step's loss is the mean of the last {width}, over all ranks' samples.",
                "各随机种子的平均值（损失为几何平均）；色带与误差线为 95 % 置信区间。"
                "损失为最近 {width} 步在全部进程样本上的平均值。",
                width=WIDTH,
            ),
            tables=[curves, scores],
        ),
        _table(ends, say),
    ]
    chapter.said = [
        *_against_first(runs, ends, say, found),
        *_about_test_set(runs, ends, say, found),
        *_about_waiting(ends, say),
    ]
    return chapter


def _ends_sheet(runs: dict[str, list[RunRecord]]) -> Table:
    columns = ("kind", "repeats", *interval_names("accuracy", "test_loss", "loss"))
    table = Table(name="strategies", columns=(*columns, "step_ms", "wait_share", "waiting_rank"))
    for kind, records in runs.items():
        steps = [step for record in records for step in record.step_s]
        table.add(
            kind=kind,
            repeats=len(records),
            **mean_cells("accuracy", [record.accuracy for record in records], most=1.0),
            **factor_cells("test_loss", [record.summary.get("test_loss") for record in records]),
            **factor_cells("loss", [last_loss(record) for record in records]),
            step_ms=1000 * statistics.median(steps) if steps else None,
            wait_share=wait_share(records[0]),
            waiting_rank=_waiting_rank(records[0]),
        )
    return table


def last_loss(record: RunRecord) -> float | None:
    """Return the training loss at the end, of as many steps as curves show."""
    smooth = smoothed(record.curve, WIDTH)
    return smooth[-1].loss if smooth else None


def wait_share(record: RunRecord) -> float | None:
    """Return the share of all ranks' time in steps that was spent waiting for another rank."""
    if record.ledger is None:
        return None
    total = sum(rank.total_s for rank in record.ledger.ranks)
    return sum(rank.exposed_wait_s for rank in record.ledger.ranks) / total if total else None


def _waiting_rank(record: RunRecord) -> int | None:
    """Return the rank that the others waited for most."""
    if record.ledger is None or not record.ledger.ranks:
        return None
    return max(record.ledger.ranks, key=lambda rank: rank.caused_s).rank


def _table(ends: Table, say: Translator) -> TableBlock:
    columns = [
        Column(
            key="kind", name=say.pick("strategy", "划分方式"), align="left", labels=kind_names(say)
        ),
        Column(key="accuracy", name=say.pick("test accuracy", "测试准确率"), form=points),
        Column(key="test_loss", name=say.pick("test loss", "测试损失"), form=plain),
        Column(key="loss", name=say.pick("training loss", "训练损失"), form=plain),
        Column(key="step_ms", name=say.pick("step", "每步用时"), form=milliseconds),
        Column(key="wait_share", name=say.pick("waiting", "等待占比"), form=percent),
    ]
    title = say(
        "At the end of the run: mean over seeds, of losses the geometric one (95 % interval). "
        "Step: median, until the slowest rank is done. Waiting: share of all ranks' time spent "
        "waiting for another rank.",
        "训练结束时：各种子平均值，损失为几何平均（95 % 置信区间）。"
        "每步用时：到最慢进程完成为止，中位数。等待占比：全部进程的时间中用于等待其他进程的部分。",
    )
    return TableBlock(table=ends, columns=columns, title=title)


def _against_first(
    runs: dict[str, list[RunRecord]], ends: Table, say: Translator, found: Findings
) -> list[Text]:
    """Compare each way with the first, seed by seed."""
    base = KINDS[0]
    if base not in runs:
        return []
    said: list[Text] = []
    for kind, records in runs.items():
        verdict = judge_accuracy(records, runs[base])
        if kind == base or verdict is None:
            continue
        gap = verdict.difference
        ref = found.cell(
            f"accuracy of {kind} minus {base}",
            gap.middle,
            point_change(say),
            low=gap.low,
            high=gap.high,
            of="strategies: accuracy, in pairs of one seed",
        )
        words = {
            Order.MORE: (
                "{name} ended at {mine}, {gap} against {base}: better by more than seeds scatter.",
                "{name}的最终准确率为 {mine}，与{base}相比 {gap}：更好，且超出种子间的波动。",
            ),
            Order.LESS: (
                "{name} ended at {mine}, {gap} against {base}: worse by more than seeds scatter.",
                "{name}的最终准确率为 {mine}，与{base}相比 {gap}：更差，且超出种子间的波动。",
            ),
            Order.LEVEL: (
                "{name} ended at {mine}, {gap} against {base}: the same within the scatter of "
                "seeds.",
                "{name}的最终准确率为 {mine}，与{base}相比 {gap}：在种子波动范围内没有区别。",
            ),
            Order.ONCE: (
                "{name} ended at {mine}, {gap} against {base}; with one seed nothing is known "
                "about the scatter.",
                "{name}的最终准确率为 {mine}，与{base}相比 {gap}；只有一个种子，无法判断波动。",
            ),
        }[verdict.order]
        said.append(
            say(
                *words,
                name=kind_name(say, kind),
                base=kind_name(say, base),
                mine=ends.cell("accuracy", points, kind=kind),
                gap=ref,
            )
        )
    return said


def _about_test_set(
    runs: dict[str, list[RunRecord]], ends: Table, say: Translator, found: Findings
) -> list[Text]:
    """Tell how sure an accuracy can be at all, on so many test samples."""
    row = next((row for row in ends.rows if row["accuracy"] is not None), None)
    data = runs[row["kind"]][0].words.get("data", {}).get("name") if row is not None else None
    if row is None or data not in TEST_SAMPLES:
        return []
    samples = TEST_SAMPLES[data]
    share = row["accuracy"]
    reach = 1.96 * math.sqrt(share * (1 - share) / samples)
    return [
        say(
            "The test set has {samples} samples: on others like them an accuracy like these would "
            "differ by up to ±{reach} (95 %, binomial), which no number of seeds tells.",
            "测试集有 {samples} 个样本：换一组同类样本，这样的准确率本身就可能相差 ±{reach}"
            "（95 %，二项分布），这一点增加种子数也无法反映。",
            samples=found.cell("samples of the test set", samples, count, of=data),
            reach=found.cell(
                "reach of an accuracy on the test set",
                reach,
                point_size(say),
                of="strategies: accuracy",
            ),
        )
    ]


def _about_waiting(ends: Table, say: Translator) -> list[Text]:
    """Tell of unequal parts: the rank with the most samples is the one that others wait for."""
    told = [row for row in ends.rows if row["wait_share"] is not None]
    if len(told) < 2:
        return []
    most = max(told, key=lambda row: row["wait_share"])
    least = min(told, key=lambda row: row["wait_share"])
    ratio = most["wait_share"] / least["wait_share"] if least["wait_share"] else None
    if most["wait_share"] < _WAITS or (ratio is not None and ratio < 1.2):
        return []
    return [
        say(
            "Ranks waited longest with {most}: {share} of their time, mostly for rank {rank}; with "
            "{least} it was {other}. A step took {step} and {other_step}.",
            "等待占比最高的是{most}：全部进程时间的 {share}，主要在等进程 {rank}；"
            "{least}只有 {other}。每步用时分别为 {step} 和 {other_step}。",
            most=kind_name(say, most["kind"]),
            least=kind_name(say, least["kind"]),
            share=ends.cell("wait_share", percent, kind=most["kind"]),
            rank=ends.cell("waiting_rank", plain, kind=most["kind"]),
            other=ends.cell("wait_share", percent, kind=least["kind"]),
            step=ends.cell("step_ms", milliseconds, kind=most["kind"]),
            other_step=ends.cell("step_ms", milliseconds, kind=least["kind"]),
        )
    ]
