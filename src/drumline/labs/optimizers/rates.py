"""How much the learning rate matters to each optimizer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from drumline.labs.chapter import Chapter
from drumline.labs.curves import smoothed
from drumline.labs.optimizers.cases import OPTIMIZERS, Plan, rate, rate_name
from drumline.labs.optimizers.descent import WIDTHS
from drumline.labs.optimizers.names import optimizer_column, optimizer_name
from drumline.labs.optimizers.pictures import draw_rates
from drumline.labs.results import Results
from drumline.report.page.blocks import Column, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table, count, plain, points
from drumline.report.page.translator import Text, Translator
from drumline.report.record import RunRecord

LOST = 10 * math.log(10)
"""a loss beyond this, ten times that of guessing among ten digits, has diverged"""
_NEAR = 0.05
"""rates whose accuracy is within this of the best one's are called good"""


def write_rates(results: Results, of: Plan, say: Translator, found: Findings) -> Chapter | None:
    """Write the chapter; None where nothing of it was run."""
    table = _sheet(results, of)
    if not table.rows:
        return None
    chapter = Chapter(heading=say.pick("The learning rate", "学习率的影响"), tables=[table])
    endings = {"done": say.pick("done", "完成"), "diverged": say.pick("diverged", "发散")}
    chapter.results = [
        Picture(
            name="rates",
            title=say.pick("Sensitivity to the learning rate", "对学习率的敏感性"),
            draw=lambda pen: draw_rates(pen, table),
            caption=say(
                "One seed. After {epochs} epochs; of GD after {steps} steps, each an epoch. "
                "A cross: the loss diverged.",
                "一个种子。训练 {epochs} 轮后的结果；GD 为 {steps} 步（每步一轮）。"
                "叉号表示损失已发散。",
                epochs=of.short_epochs,
                steps=of.short_gd_steps,
            ),
            tables=[table],
        ),
        TableBlock(
            table=table,
            title=say.pick(
                "By learning rate (one seed); the training loss is that of the last steps",
                "按学习率（一个种子）；训练损失取最后若干步",
            ),
            columns=[
                optimizer_column(say),
                Column(key="lr", name=say.pick("learning rate", "学习率"), form=plain),
                Column(key="steps", name=say.pick("steps", "步数"), form=count),
                Column(key="loss", name=say.pick("training loss", "训练损失"), form=plain),
                Column(key="accuracy", name=say.pick("test accuracy", "测试准确率"), form=points),
                Column(
                    key="ended", name=say.pick("ended", "结束状态"), align="left", labels=endings
                ),
            ],
        ),
    ]
    chapter.said = [
        one for optimizer in OPTIMIZERS if (one := _about(table, optimizer, say, found)) is not None
    ]
    return chapter


def _sheet(results: Results, of: Plan) -> Table:
    columns = ("optimizer", "factor", "lr", "steps", "loss", "accuracy", "ended")
    table = Table(name="rates", columns=columns)
    for optimizer in OPTIMIZERS:
        for factor in of.factors:
            name = rate_name(optimizer, factor)
            record = results.record(name)
            known = {"optimizer": optimizer, "factor": factor, "lr": rate(optimizer, factor)}
            if record is not None and record.curve:
                stood = _standing(record, optimizer, of)
                lost = stood["loss"] is not None and stood["loss"] > LOST
                table.add(**known, **stood, ended="diverged" if lost else "done")
            elif results.diverged(name):
                table.add(**known, steps=None, loss=None, accuracy=None, ended="diverged")
    return table


def _standing(record: RunRecord, optimizer: str, of: Plan) -> dict[str, Any]:
    """Return where a run stood after as many epochs as the short runs have."""
    epochs = of.length(optimizer, short=True)
    scores = record.scores[:epochs]
    if not scores:
        return {"steps": None, "loss": None, "accuracy": None}
    step = scores[-1].step
    smooth = [point for point in smoothed(record.curve, WIDTHS[optimizer]) if point.step <= step]
    return {"steps": step, "loss": smooth[-1].loss, "accuracy": scores[-1].accuracy}


def _about(table: Table, optimizer: str, say: Translator, found: Findings) -> Text | None:
    rows = [row for row in table.rows if row["optimizer"] == optimizer]
    told = [row for row in rows if row["accuracy"] is not None]
    if len(told) < 2:
        return None
    best = max(told, key=lambda row: row["accuracy"])
    good = [row for row in told if row["accuracy"] >= best["accuracy"] - _NEAR]
    edge = _about_edge([float(row["lr"]) for row in rows], float(best["lr"]), say)
    start = say(
        "{name} did best with {lr}: {accuracy}." + edge,
        "{name} 在学习率 {lr} 时最好：{accuracy}。" + edge,
        name=optimizer_name(say, optimizer),
        lr=_quote(table, best, "lr"),
        accuracy=table.cell("accuracy", points, optimizer=optimizer, factor=best["factor"]),
    )
    width = (
        say(
            " Of {tried} rates tried, {good} came within {near} of that, itself included, from "
            "{low} to {high}.",
            "在尝试的 {tried} 个学习率中，{good} 个（含其本身）与之相差不超过 {near}，"
            "从 {low} 到 {high}。",
            tried=len(rows),
            good=found.cell(
                f"rates of {optimizer} near the best", len(good), plain, of="rates: accuracy"
            ),
            near=say.pick(f"{100 * _NEAR:.0f} points", f"{100 * _NEAR:.0f} 个百分点"),
            low=_quote(table, min(good, key=lambda row: float(row["lr"])), "lr"),
            high=_quote(table, max(good, key=lambda row: float(row["lr"])), "lr"),
        )
        if len(good) > 1
        else say(
            " Of {tried} rates tried, no other came within {near} of that.",
            "在尝试的 {tried} 个学习率中，没有其他取值与之相差在 {near}以内。",
            tried=len(rows),
            near=say.pick(f"{100 * _NEAR:.0f} points", f"{100 * _NEAR:.0f} 个百分点"),
        )
    )
    return say(
        "{start}{width}{end}",
        "{start}{width}{end}",
        start=start,
        width=width,
        end=_about_largest(table, rows, best, say, found),
    )


def _about_edge(rates: Sequence[float], best: float, say: Translator) -> str:
    """Tell where rates beyond those tried might have done better still."""
    if best == max(rates):
        return say.pick(
            " That is the largest rate tried: one beyond it may do better.",
            "这是尝试过的最大学习率，更大的取值可能更好。",
        )
    if best == min(rates):
        return say.pick(
            " That is the smallest rate tried: one below it may do better.",
            "这是尝试过的最小学习率，更小的取值可能更好。",
        )
    return ""


def _about_largest(
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    best: Mapping[str, Any],
    say: Translator,
    found: Findings,
) -> Text:
    """Tell what became of the largest rate, and of those below it that diverged, too."""
    falling = sorted(rows, key=lambda row: float(row["lr"]), reverse=True)
    largest = falling[0]
    lost = list(itertools.takewhile(lambda row: row["ended"] == "diverged", falling))
    if len(lost) > 1:
        return say(
            " From {lr} up it diverged.",
            "学习率从 {lr} 起发散。",
            lr=_quote(table, lost[-1], "lr"),
        )
    if largest["ended"] == "diverged" and largest["loss"] is None:
        return say(
            " With {lr} it diverged.", "学习率 {lr} 时发散。", lr=_quote(table, largest, "lr")
        )
    if largest["ended"] == "diverged":
        return say(
            " With {lr} it diverged, to a loss of {loss}.",
            "学习率 {lr} 时发散，损失达到 {loss}。",
            lr=_quote(table, largest, "lr"),
            loss=_quote(table, largest, "loss"),
        )
    guess = math.log(10)  # of ten classes
    if largest["loss"] is not None and largest["loss"] > 0.8 * guess and largest is not best:
        return say(
            " With {lr} it learned next to nothing: a loss of {loss}, where guessing costs "
            "{guess}.",
            "学习率 {lr} 时几乎没有学到东西：损失为 {loss}，而随机猜测为 {guess}。",
            guess=found.cell(
                f"loss of guessing ({largest['optimizer']})", guess, plain, of="ln 10"
            ),
            lr=_quote(table, largest, "lr"),
            loss=_quote(table, largest, "loss"),
        )
    return ""


def _quote(table: Table, row: Mapping[str, Any], column: str) -> Any:
    return table.cell(column, plain, optimizer=row["optimizer"], factor=row["factor"])
