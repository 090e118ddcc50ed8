"""What averaging hides: ranks with other labels learn other things, until they are averaged.

Averaged every step, skewed parts make the same global gradient as mixed ones: the mean over all
samples of the batch does not care who computed it. So the skew shows in what ranks see (their own
losses), in rules that are not linear in the gradient (Adam on each rank, then the mean of the
parameters), and in what a rank's part teaches without the others.
"""

from __future__ import annotations

from drumline.labs.chapter import Chapter
from drumline.labs.curves import largest_difference
from drumline.labs.data_parallel.cases import (
    KINDS,
    SKEWED,
    Plan,
    alone_name,
    averaging_name,
    label_groups,
)
from drumline.labs.data_parallel.hiding_words import say_hiding
from drumline.labs.data_parallel.learning import WIDTH
from drumline.labs.data_parallel.names import kind_names
from drumline.labs.data_parallel.pictures import draw_hiding
from drumline.labs.results import Results
from drumline.report.page.blocks import Column, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table, count, plain, points
from drumline.report.page.translator import Translator
from drumline.report.record import RunRecord

AVERAGING = (
    (KINDS[0], "sgd", "gradients"),
    (SKEWED, "sgd", "gradients"),
    (SKEWED, "sgd", "parameters"),
    (KINDS[0], "adam", "gradients"),
    (SKEWED, "adam", "gradients"),
    (KINDS[0], "adam", "parameters"),
    (SKEWED, "adam", "parameters"),
)
"""partition, optimizer, what is averaged"""


def write_hiding(results: Results, of: Plan, say: Translator, found: Findings) -> Chapter | None:
    """Write the chapter; None where nothing of it came to its end."""
    local = _local_sheet(results)
    averaging = _averaging_sheet(results)
    alone = _alone_sheet(results, of)
    if not averaging.rows and not alone.rows:
        return None
    chapter = Chapter(
        heading=say.pick("What averaging hides", "平均掩盖了什么"),
        tables=[local, averaging, alone],
    )
    chapter.results = [
        Picture(
            name="hidden",
            title=say.pick("Skewed labels, seen and hidden", "标签倾斜：可见与被掩盖的影响"),
            draw=lambda pen: draw_hiding(pen, local, averaging, alone),
            caption=say(
                "Left: each rank's loss on its own samples, mean of the last {width} steps. Right: "
                "test accuracy by what is averaged, and of one part without the others (one seed).",
                "左：各进程在自己样本上的损失（最近 {width} 步平均）。"
                "右：按聚合内容比较的测试准确率，以及单独使用一份数据的结果（一个种子）。",
                width=WIDTH,
            ),
            tables=[local, averaging, alone],
        ),
        *_tables(averaging, alone, say),
    ]
    runs = {case: results.record(averaging_name(*case)) for case in AVERAGING}
    gap = _parameters_gap(runs)
    chapter.said = say_hiding(local, averaging, alone, gap, say, found)
    return chapter


def _local_sheet(results: Results) -> Table:
    """Tabulate each rank's own loss, smoothed."""
    sheet = Table(name="local_losses", columns=("kind", "rank", "step", "loss"))
    for kind in (KINDS[0], SKEWED):
        record = results.record(f"{kind}-1")
        for rank, log in enumerate([] if record is None else record.events):
            losses = [event for event in log if event["event"] == "step" and event["samples"]]
            for number, event in enumerate(losses, start=1):
                last = losses[max(0, number - WIDTH) : number]
                mean = sum(one["loss"] for one in last) / len(last)
                sheet.add(kind=kind, rank=rank, step=event["step"], loss=mean)
    return sheet


def _averaging_sheet(results: Results) -> Table:
    sheet = Table(
        name="averaging", columns=("kind", "optimizer", "averaged", "accuracy", "test_loss")
    )
    for kind, optimizer, averaged in AVERAGING:
        record = results.record(averaging_name(kind, optimizer, averaged))
        if record is not None:
            sheet.add(
                kind=kind,
                optimizer=optimizer,
                averaged=averaged,
                accuracy=record.accuracy,
                test_loss=record.summary.get("test_loss"),
            )
    return sheet


def _alone_sheet(results: Results, of: Plan) -> Table:
    sheet = Table(name="alone", columns=("part", "samples", "accuracy"))
    groups = label_groups(of.ranks)
    for part in (None, *range(len(groups))):
        record = results.record(alone_name(part))
        if record is not None and record.coverage is not None:
            sheet.add(
                part="mixed" if part is None else "".join(map(str, groups[part])),
                samples=record.coverage["run"]["seen"],
                accuracy=record.accuracy,
            )
    return sheet


def _parameters_gap(runs: dict[tuple[str, str, str], RunRecord | None]) -> float | None:
    """Return how far SGD's losses differ between averaged gradients and averaged parameters."""
    first, second = runs[SKEWED, "sgd", "gradients"], runs[SKEWED, "sgd", "parameters"]
    if first is None or second is None or not first.curve or not second.curve:
        return None
    return largest_difference(first, second)


def _tables(averaging: Table, alone: Table, say: Translator) -> list[TableBlock]:
    averaged = {
        "gradients": say.pick("gradients", "梯度"),
        "parameters": say.pick("parameters", "参数"),
    }
    mixed = {"mixed": say.pick("all", "全部")}
    tables = [
        TableBlock(
            table=averaging,
            title=say.pick(
                "By what is averaged after each step (one seed)", "按每步之后聚合的内容（一个种子）"
            ),
            columns=[
                Column(
                    key="kind",
                    name=say.pick("strategy", "划分方式"),
                    align="left",
                    labels=kind_names(say),
                ),
                Column(
                    key="optimizer",
                    name=say.pick("optimizer", "优化器"),
                    align="left",
                    labels={"sgd": "SGD", "adam": "Adam"},
                ),
                Column(
                    key="averaged",
                    name=say.pick("averaged", "聚合内容"),
                    align="left",
                    labels=averaged,
                ),
                Column(key="accuracy", name=say.pick("test accuracy", "测试准确率"), form=points),
                Column(key="test_loss", name=say.pick("test loss", "测试损失"), form=plain),
            ],
        ),
        TableBlock(
            table=alone,
            title=say.pick(
                "One part without the others (one seed)",
                "只用一份数据、不与其他进程聚合（一个种子）",
            ),
            columns=[
                Column(key="part", name=say.pick("digits", "数字"), align="left", labels=mixed),
                Column(key="samples", name=say.pick("samples", "样本数"), form=count),
                Column(key="accuracy", name=say.pick("test accuracy", "测试准确率"), form=points),
            ],
        ),
    ]
    return [table for table in tables if table.table.rows]
