"""Deterministic against stochastic: what the order of the samples does to GD and to SGD.

The runs start from the same weights and see all samples in each epoch; only the order differs.
GD's gradient is that of all samples, so the order changes nothing but rounding. SGD's is that of a
batch, so each order is another walk.
"""

from __future__ import annotations

import statistics
from itertools import pairwise

from drumline.labs.chapter import Chapter
from drumline.labs.forms import tiny
from drumline.labs.optimizers.cases import ORDERED, ORDERS, Plan, order_name, seed_names
from drumline.labs.optimizers.names import optimizer_column, optimizer_name
from drumline.labs.optimizers.pictures import draw_chance
from drumline.labs.results import Results
from drumline.report.page.blocks import Column, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import Table, count, percent, plain, times
from drumline.report.page.translator import Text, Translator
from drumline.report.record import RunRecord


def write_chance(results: Results, of: Plan, say: Translator, found: Findings) -> Chapter | None:
    """Write the chapter; None where an optimizer has fewer than two orders."""
    runs = {
        optimizer: results.records([order_name(optimizer, order) for order in ORDERS])
        for optimizer in ORDERED
    }
    runs = {optimizer: records for optimizer, records in runs.items() if len(records) > 1}
    if not runs:
        return None
    seeds = {
        optimizer: list(results.records(seed_names(optimizer, of)).values()) for optimizer in runs
    }
    steps = min(len(record.curve) for records in runs.values() for record in records.values())
    walks = _walks_sheet(runs, steps)
    scatter = _scatter_sheet(runs, seeds, steps)
    chapter = Chapter(
        heading=say.pick("Deterministic against stochastic", "确定性方法与随机性方法"),
        tables=[scatter, walks],
    )
    chapter.results = [
        Picture(
            name="chance",
            title=say.pick(
                "The same first weights, the samples in other orders",
                "相同的初始权重，不同的样本顺序",
            ),
            draw=lambda pen: draw_chance(pen, walks),
            caption=say(
                "Left: the loss of each step, not smoothed, for {orders} orders. Right: how far "
                "the losses of these orders lie apart at each step.",
                "左：{orders} 种样本顺序下每一步的损失，未平滑。右：同一步上不同顺序的损失之差。",
                orders=max(map(len, runs.values())),
            ),
            tables=[walks],
        ),
        TableBlock(
            table=scatter,
            title=say.pick(
                "Scatter of the loss over the first steps: mean over steps of the standard "
                "deviation over orders of the data, and over seeds (other first weights, too); "
                "share of steps after which the loss was higher",
                "前若干步损失的波动：不同样本顺序之间、不同随机种子（初始权重也不同）之间"
                "的标准差，对各步求平均；损失上升的步数占比",
            ),
            columns=[
                optimizer_column(say),
                Column(key="steps", name=say.pick("steps", "步数"), form=count),
                Column(key="over_orders", name=say.pick("over orders", "顺序之间"), form=tiny),
                Column(key="over_seeds", name=say.pick("over seeds", "种子之间"), form=tiny),
                Column(key="rises", name=say.pick("steps uphill", "损失上升的步"), form=percent),
            ],
        ),
    ]
    chapter.said = _sentences(scatter, say, found)
    return chapter


def _walks_sheet(runs: dict[str, dict[str, RunRecord]], steps: int) -> Table:
    table = Table(name="orders", columns=("optimizer", "order", "step", "loss"))
    for optimizer, records in runs.items():
        for order in ORDERS:
            record = records.get(order_name(optimizer, order))
            for point in [] if record is None else record.curve[:steps]:
                table.add(optimizer=optimizer, order=order, step=point.step, loss=point.loss)
    return table


def _scatter_sheet(
    runs: dict[str, dict[str, RunRecord]], seeds: dict[str, list[RunRecord]], steps: int
) -> Table:
    columns = ("optimizer", "steps", "over_orders", "over_seeds", "rises")
    table = Table(name="scatter", columns=columns)
    for optimizer, records in runs.items():
        orders = list(records.values())
        table.add(
            optimizer=optimizer,
            steps=steps,
            over_orders=_scatter(orders, steps),
            over_seeds=_scatter(seeds[optimizer], steps),
            rises=statistics.fmean(_rises(record, steps) for record in orders),
        )
    return table


def _scatter(records: list[RunRecord], steps: int) -> float | None:
    """Return the mean over steps of the standard deviation over runs; the first step is left out.

    There all runs of one seed have the same weights.
    """
    if len(records) < 2:
        return None
    curves = [[point.loss for point in record.curve[1:steps]] for record in records]
    found = [statistics.stdev(losses) for losses in zip(*curves, strict=False)]
    return statistics.fmean(found) if found else None


def _rises(record: RunRecord, steps: int) -> float:
    losses = [point.loss for point in record.curve[:steps]]
    pairs = list(pairwise(losses))
    return sum(after > before for before, after in pairs) / len(pairs) if pairs else 0.0


def _sentences(scatter: Table, say: Translator, found: Findings) -> list[Text]:
    said: list[Text] = []
    rows = {row["optimizer"]: row for row in scatter.rows}
    for optimizer in rows:
        said.append(
            say(
                "{name}: over {steps} steps the loss scattered by {orders} between orders of the "
                "samples and by {seeds} between seeds; after {rises} of the steps it was higher "
                "than before.",
                "{name}：在 {steps} 步内，不同样本顺序之间损失的波动为 {orders}，"
                "不同种子之间为 {seeds}；"
                "有 {rises} 的步在更新之后损失反而上升。",
                name=optimizer_name(say, optimizer),
                steps=scatter.cell("steps", count, optimizer=optimizer),
                orders=scatter.cell("over_orders", tiny, optimizer=optimizer),
                seeds=scatter.cell("over_seeds", tiny, optimizer=optimizer),
                rises=scatter.cell("rises", percent, optimizer=optimizer),
            )
        )
    gd, sgd = rows.get("gd"), rows.get("sgd")
    if gd is None or sgd is None or gd["over_orders"] is None or sgd["over_orders"] is None:
        return said
    if gd["over_orders"] == 0 and sgd["over_orders"] == 0:
        return said
    if gd["over_orders"] == 0:
        said.append(
            say(
                "GD is the same for every order to the last bit; SGD is not.",
                "GD 对任何样本顺序逐位相同，SGD 则不然。",
            )
        )
        return said
    ratio = sgd["over_orders"] / gd["over_orders"]
    ref = found.cell("scatter over orders, SGD over GD", ratio, _factor, of="scatter: over_orders")
    said.append(
        say(
            "The order matters {ratio} as much to SGD as to GD, whose gradient is that of all "
            "samples in any order: what is left there is rounding.",
            "样本顺序对 SGD 的影响是对 GD 的 {ratio}：无论顺序如何，GD 的梯度都来自全部样本，"
            "剩下的差别只是舍入误差。",
            ratio=ref,
        )
        if ratio > 100
        else say(
            "The order matters {ratio} as much to SGD as to GD.",
            "样本顺序对 SGD 的影响是对 GD 的 {ratio}。",
            ratio=ref,
        )
    )
    return said


def _factor(value: float) -> str:
    return times(value) if value < 1000 else f"{count(float(plain(value)))}×"
