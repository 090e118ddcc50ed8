"""How fast each optimizer goes down: by steps, by samples, by seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drumline.labs.chapter import Chapter
from drumline.labs.columns import factor_cells, mean_cells
from drumline.labs.curves import curve_sheet, rows_of, score_sheet, smoothed
from drumline.labs.judgement import judge_accuracy
from drumline.labs.optimizers.cases import OPTIMIZERS, Plan, seed_names
from drumline.labs.optimizers.names import optimizer_column, optimizer_name
from drumline.labs.optimizers.pictures import draw_accuracy, draw_descent
from drumline.labs.results import Results
from drumline.report.interval import interval_names
from drumline.report.order import Order
from drumline.report.page.blocks import Column, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table, count, plain, points, seconds
from drumline.report.page.translator import Sentence, Text, Translator
from drumline.report.record import RunRecord

WIDTH = 20
"""steps that a drawn loss is the mean of, but for GD, which does not scatter"""
WIDTHS = {optimizer: 1 if optimizer == "gd" else WIDTH for optimizer in OPTIMIZERS}
Runs = dict[str, list[RunRecord]]


def runs_of(results: Results, of: Plan, *, engine: str = "drumline") -> Runs:
    """Return the runs of each optimizer that came to their end."""
    found = {
        optimizer: results.records(seed_names(optimizer, of, engine=engine)).values()
        for optimizer in OPTIMIZERS
    }
    read = {
        optimizer: [record for record in records if record.curve]
        for optimizer, records in found.items()
    }
    return {optimizer: records for optimizer, records in read.items() if records}


def write_descent(results: Results, of: Plan, say: Translator, found: Findings) -> Chapter | None:
    """Write the chapter; None where no run came to its end."""
    runs = runs_of(results, of)
    if not runs:
        return None
    curves = curve_sheet("curves", "optimizer", runs, width=WIDTHS)
    scores = score_sheet("scores", "optimizer", runs)
    ends = _ends_sheet(runs)
    equal = _equal_sheet(curves, list(runs))
    chapter = Chapter(
        heading=say.pick("Loss curves and final accuracy", "损失曲线与最终准确率"),
        tables=[ends, curves, scores, equal],
    )
    chapter.results = [
        Picture(
            name="descent",
            title=say.pick(
                "Training loss by steps, samples and seconds", "训练损失：按步数、样本数与时间"
            ),
            draw=lambda pen: draw_descent(pen, curves, list(runs)),
            caption=say(
                "Geometric mean over seeds; bands are 95 % intervals. Of the stochastic ones "
                "each loss is the mean of the last {width} steps, at first of the last quarter of "
                "them. All axes are logarithmic.",
                "各随机种子的几何平均值，色带为 95 % 置信区间。"
                "随机性方法的损失为最近 {width} 步（开始时为最近四分之一的步）的平均值。"
                "坐标轴均为对数坐标。",
                width=WIDTH,
            ),
            tables=[curves],
        ),
        Picture(
            name="accuracy",
            title=say.pick("Test accuracy while training", "训练过程中的测试准确率"),
            draw=lambda pen: draw_accuracy(pen, scores, list(runs)),
            caption=say.pick(
                "Mean over seeds; bands are 95 % intervals.",
                "各随机种子的平均值，色带为 95 % 置信区间。",
            ),
            tables=[scores],
        ),
        *_tables(ends, equal, say),
    ]
    chapter.said = _sentences(runs, ends, equal, say)
    return chapter


def _ends_sheet(runs: Runs) -> Table:
    table = Table(
        name="ends",
        columns=(
            *("optimizer", "lr", "repeats", "steps", "samples"),
            *interval_names("accuracy", "test_loss", "loss", "train_s"),
        ),
    )
    for optimizer, records in runs.items():
        last = records[0].curve[-1]
        smooth = [smoothed(record.curve, WIDTHS[optimizer]) for record in records]
        table.add(
            optimizer=optimizer,
            lr=records[0].words["optimizer"]["lr"],
            repeats=len(records),
            steps=last.step,
            samples=last.samples,
            **mean_cells("accuracy", [record.accuracy for record in records], most=1.0),
            **factor_cells("test_loss", [record.summary.get("test_loss") for record in records]),
            **factor_cells("loss", [points_[-1].loss for points_ in smooth if points_]),
            **factor_cells("train_s", [record.curve[-1].seconds for record in records]),
        )
    return table


def _equal_sheet(curves: Table, optimizers: list[str]) -> Table:
    """Tabulate the losses where the shortest run ended, by steps, samples and seconds."""
    table = Table(
        name="equal",
        columns=("by", "at", "optimizer", "steps", *interval_names("loss")),
    )
    rows = {optimizer: rows_of(curves, "optimizer", optimizer) for optimizer in optimizers}
    for by in ("step", "samples", "seconds"):
        at = min(lines[-1][by] for lines in rows.values())
        for optimizer, lines in rows.items():
            row = _last_until(lines, by, at)
            if row is not None and row["loss"] is not None:
                cells = {key: row[key] for key in interval_names("loss")}
                table.add(by=by, at=at, optimizer=optimizer, steps=row["step"], **cells)
    return table


def _last_until(rows: Sequence[Mapping[str, Any]], by: str, at: float) -> Mapping[str, Any] | None:
    """Return the last row until then; None where the first step had not ended."""
    until = [row for row in rows if row[by] <= at]
    return until[-1] if until else None


def _tables(ends: Table, equal: Table, say: Translator) -> list[TableBlock]:
    name = optimizer_column(say)
    amounts = {
        "step": say.pick("steps", "步数"),
        "samples": say.pick("samples", "样本数"),
        "seconds": say.pick("seconds", "秒"),
    }
    loss = Column(key="loss", name=say.pick("training loss", "训练损失"), form=plain)
    return [
        TableBlock(
            table=ends,
            title=say.pick(
                "At the end of each run: mean over seeds, of losses and times the geometric one "
                "(95 % interval)",
                "训练结束时：各种子平均值，损失与用时为几何平均（95 % 置信区间）",
            ),
            columns=[
                name,
                Column(key="lr", name=say.pick("lr", "学习率"), form=plain),
                Column(key="steps", name=say.pick("steps", "步数"), form=count),
                Column(key="samples", name=say.pick("samples", "样本数"), form=count),
                Column(key="train_s", name=say.pick("time", "用时"), form=seconds),
                loss,
                Column(key="accuracy", name=say.pick("test accuracy", "测试准确率"), form=points),
            ],
        ),
        TableBlock(
            table=equal,
            title=say.pick(
                "At equal cost: the training loss where the shortest run ended",
                "相同代价下的训练损失：以最短的一次训练为准",
            ),
            columns=[
                Column(key="by", name=say.pick("equal", "相同的量"), align="left", labels=amounts),
                Column(key="at", name=say.pick("at", "取值"), form=_amount),
                name,
                Column(key="steps", name=say.pick("steps taken", "已走步数"), form=count),
                loss,
            ],
        ),
    ]


def _amount(value: float) -> str:
    return count(value) if float(value).is_integer() else f"{value:.3g}"


def _sentences(runs: Runs, ends: Table, equal: Table, say: Translator) -> list[Text]:
    said: list[Text] = _about_accuracy(runs, ends, say)
    units = {
        "step": ("After {at} steps", "走过 {at} 步后"),
        "samples": ("After {at} samples", "处理 {at} 个样本后"),
        "seconds": ("After {at} s", "训练 {at} 秒后"),
    }
    for by, words in units.items():
        rows = [row for row in equal.rows if row["by"] == by]
        if len(rows) > 1:
            said.append(_about_equal(equal, by, rows, words, say))
    said += _about_steps(equal, say)
    return said


def _about_accuracy(runs: Runs, ends: Table, say: Translator) -> list[Text]:
    """List the accuracies; the first is held against each other one, seed by seed."""
    ranked = sorted(
        (row for row in ends.rows if row["accuracy"] is not None),
        key=lambda row: -row["accuracy"],
    )
    listed = [
        say(
            "{name} {accuracy}",
            "{name} {accuracy}",
            name=optimizer_name(say, row["optimizer"]),
            accuracy=ends.cell("accuracy", points, optimizer=row["optimizer"]),
        )
        for row in ranked
    ]
    if not ranked:
        return []
    best, *rest = (row["optimizer"] for row in ranked)
    found = [judge_accuracy(runs[best], runs[other]) for other in rest]
    orders = {other: one.order for other, one in zip(rest, found, strict=True) if one is not None}
    start = say("Final test accuracy: {list}.", "最终测试准确率：{list}。", list=_join(listed, say))
    unclear = {Order.ONCE, Order.LESS}  # of other seeds than the mean, where some failed
    if not rest or len(orders) < len(rest) or unclear & set(orders.values()):
        return [start]
    level = [optimizer_name(say, other) for other in rest if orders[other] is not Order.MORE]
    if not level:
        return [
            say(
                "{start} Seed by seed, {best} is ahead of each other one: the 95 % interval of the "
                "difference does not hold 0.",
                "{start}逐种子比较，{best} 领先于其他每一种方法：差值的 95 % 置信区间不含 0。",
                start=start,
                best=optimizer_name(say, best),
            )
        ]
    return [
        say(
            "{start} Seed by seed, {best} cannot be told apart from {names}: the 95 % interval of "
            "the difference holds 0.",
            "{start}逐种子比较，{best} 与 {names} 无法区分：差值的 95 % 置信区间含 0。",
            start=start,
            best=optimizer_name(say, best),
            names=say.join(level),
        )
    ]


def _join(items: list[Sentence], say: Translator) -> Sentence:
    comma = "、" if say.lang == "zh" else ", "
    parts: list[Any] = []
    for number, item in enumerate(items):
        parts += [*([comma] if number else []), *item.parts]
    return Sentence(tuple(parts))


def _about_steps(equal: Table, say: Translator) -> list[Text]:
    """Tell how few steps GD takes for the samples that make many steps of the others."""
    steps = {row["optimizer"]: row["steps"] for row in equal.rows if row["by"] == "samples"}
    if "gd" not in steps or "sgd" not in steps:
        return []
    return [
        say(
            "For as many samples GD took {few} steps and SGD {many}: a full batch buys an exact "
            "gradient, and pays with steps.",
            "处理同样多的样本，GD 只走了 {few} 步，SGD 走了 {many} 步：全批量换来精确的梯度，"
            "代价是步数。",
            few=equal.cell("steps", count, by="samples", optimizer="gd"),
            many=equal.cell("steps", count, by="samples", optimizer="sgd"),
        )
    ]


def _about_equal(
    equal: Table,
    by: str,
    rows: list[Mapping[str, Any]],
    words: tuple[str, str],
    say: Translator,
) -> Text:
    ranked = sorted(rows, key=lambda row: float(row["loss"]))
    listed = [
        say(
            "{name} {loss}",
            "{name} {loss}",
            name=optimizer_name(say, row["optimizer"]),
            loss=equal.cell("loss", plain, by=by, optimizer=row["optimizer"]),
        )
        for row in ranked
    ]
    return say(
        words[0] + " the training loss was, from the lowest: {list}.",
        words[1] + "，训练损失从低到高为：{list}。",
        at=equal.cell("at", _amount, by=by, optimizer=ranked[0]["optimizer"]),
        list=_join(listed, say),
    )
