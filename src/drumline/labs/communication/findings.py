"""The results of lab 2: its tables and pictures, and the sentences about them."""

from __future__ import annotations

from drumline.labs.communication.experiments import DELAY_MS, LATE_RANK
from drumline.labs.communication.names import way_names
from drumline.labs.communication.pictures import (
    SITUATIONS,
    draw_curves,
    draw_delays,
    draw_sizes,
    draw_splits,
    draw_strategies,
)
from drumline.labs.communication.sentences import say_all
from drumline.labs.communication.sheets import CommunicationSheets, build_sheets
from drumline.labs.experiment import Results
from drumline.labs.lab import WriteUp
from drumline.report.bench_tables import format_size
from drumline.report.page.blocks import Block, Column, Paragraph, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import count, milliseconds, percent, plain, points, size, times
from drumline.report.page.translator import Translator


def write_up(results: Results, say: Translator) -> WriteUp:
    """Turn what was measured into tables, pictures and sentences."""
    tables = build_sheets(results)
    findings = Findings()
    said = say_all(tables, findings, say)
    nothing = say("No experiment came to its end.", "没有一个实验完成。")
    return WriteUp(
        summary=said[0] if said else nothing,
        results=[
            *_sizes(tables, say),
            *_strategies(tables, say),
            *_delays(tables, say),
            *_choices(tables, say),
        ],
        analysis=[Paragraph(said=said, findings=True)] if said else [],
        tables=[*tables.all(), *([findings.table] if findings.table.rows else [])],
    )


def _sizes(tables: CommunicationSheets, say: Translator) -> list[Block]:
    if not tables.collectives.rows:
        return []
    way = Column(key="algorithm", name=say.pick("way", "方式"), align="left", labels=way_names(say))
    ranks = Column(key="ranks", name=say.pick("ranks", "进程数"), form=count)
    return [
        Picture(
            name="sizes",
            title=say.pick(
                "all_reduce by algorithm, size and ranks", "all_reduce：算法、大小与进程数"
            ),
            caption=say.pick(
                "Crosses: what α·rounds + β·bytes, fitted to the other sizes, predicts. "
                "native: the backend's own. The parameter server is linear of bench collectives.",
                "叉号：由其他大小拟合的 α·轮数 + β·字节数所作的预测。"
                "参数服务器即 bench collectives 的 linear。",
            ),
            draw=draw_sizes(tables.collectives),
            tables=[tables.collectives],
        ),
        Picture(
            name="splits",
            title=say.pick(
                "The same calls: waiting and transfer of the slowest rank, beside the prediction",
                "同样的调用：最慢进程的等待与传输，以及预测值",
            ),
            caption=say.pick(
                "Waiting: until the last rank has begun, although all have met just before. "
                "Medians of each, so that both together are not quite the median of the time.",
                "等待：直到最后一个进程开始为止，尽管各进程刚刚同步过。两部分各取中位数，"
                "其和与总用时的中位数略有出入。",
            ),
            draw=draw_splits(tables.collectives),
            tables=[tables.collectives],
        ),
        TableBlock(
            table=tables.collectives,
            title=say.pick("Times and predictions", "用时与预测"),
            folded=True,
            columns=[
                way,
                ranks,
                Column(key="bytes", name=say.pick("size", "大小"), form=_size),
                Column(
                    key="ms",
                    name=say.pick("time (quartiles)", "用时（四分位数）"),
                    form=milliseconds,
                ),
                Column(key="wait_ms", name=say.pick("waiting", "等待"), form=milliseconds),
                Column(key="transfer_ms", name=say.pick("transfer", "传输"), form=milliseconds),
                Column(key="predicted_ms", name=say.pick("predicted", "预测"), form=milliseconds),
                Column(key="error", name=say.pick("off by", "误差"), form=_signed),
            ],
        ),
        *(
            [
                TableBlock(
                    table=tables.bytes,
                    title=say.pick("What a rank sends on average", "每个进程平均发送的字节"),
                    columns=[
                        way,
                        ranks,
                        Column(key="bytes", name=say.pick("tensor", "张量"), form=_size),
                        Column(key="sent", name=say.pick("sent", "发送"), form=size),
                        Column(
                            key="of_tensor",
                            name=say.pick("of the tensor", "与张量之比"),
                            form=times,
                        ),
                    ],
                )
            ]
            if tables.bytes.rows
            else []
        ),
    ]


def _size(value: float) -> str:
    return format_size(int(value))


def _signed(value: float) -> str:
    return f"{100 * value:+.0f} %"


def _strategies(tables: CommunicationSheets, say: Translator) -> list[Block]:
    if not tables.aggregation.rows:
        return []
    named = say.pick("rank", "进程")

    def rank(value: float) -> str:
        return f"{named} {value:.0f}"

    return [
        Picture(
            name="strategies",
            title=say.pick(
                "Averaging gradients: waiting and transfer of each rank, without and with a "
                "bottleneck node",
                "梯度平均：各进程的等待与传输，无瓶颈节点与有瓶颈节点",
            ),
            caption=say.pick(
                "Waiting is the time before the last rank has arrived, transfer the time after.",
                "最后一个进程到达之前的时间为等待，之后为传输。",
            ),
            draw=draw_strategies(tables.aggregation),
            tables=[tables.aggregation, tables.strategies],
        ),
        TableBlock(
            table=tables.strategies,
            title=say.pick(
                "Strategies by situation; in brackets the quartiles, or what they allow",
                "各情形下的策略；括号内为四分位，或其所允许的范围",
            ),
            columns=[
                Column(
                    key="situation",
                    name=say.pick("situation", "情形"),
                    align="left",
                    labels={key: say.pick(*names) for key, names in SITUATIONS.items()},
                ),
                Column(key="kind", name=say.pick("strategy", "策略"), align="left"),
                Column(key="step_ms", name=say.pick("a step", "每步"), form=milliseconds),
                Column(key="over_even", name=say.pick("over even", "与均等时之比"), form=times),
                Column(key="wait_share", name=say.pick("waiting share", "等待占比"), form=percent),
                Column(key="waits_most", name=say.pick("waits most", "等待最久"), form=rank),
                Column(key="waited_for", name=say.pick("waits least", "等待最短"), form=rank),
            ],
        ),
    ]


def _delays(tables: CommunicationSheets, say: Translator) -> list[Block]:
    if not tables.delays.rows:
        return []
    return [
        Picture(
            name="delays",
            title=say.pick(
                f"Rank {LATE_RANK} sleeps {DELAY_MS} ms before the first collective of each step",
                f"进程 {LATE_RANK} 在每步第一次集合通信之前休眠 {DELAY_MS} 毫秒",
            ),
            draw=draw_delays(tables.delays, DELAY_MS),
            tables=[tables.delays],
        ),
        TableBlock(
            table=tables.delays,
            title=say.pick("A late rank", "迟到的进程"),
            columns=[
                Column(key="kind", name=say.pick("strategy", "策略"), align="left"),
                Column(key="even_ms", name=say.pick("a step", "每步"), form=milliseconds),
                Column(
                    key="late_ms", name=say.pick("with the delay", "有延迟时"), form=milliseconds
                ),
                Column(key="added_ms", name=say.pick("more", "增加"), form=milliseconds),
                Column(
                    key="wait_ms_of_others",
                    name=say.pick("the others wait", "其他进程等待"),
                    form=milliseconds,
                ),
                Column(key="blame", name=say.pick("of the lost time", "占损耗时间"), form=percent),
            ],
        ),
    ]


def _choices(tables: CommunicationSheets, say: Translator) -> list[Block]:
    blocks: list[Block] = []
    if tables.curves.rows:
        blocks.append(
            Picture(
                name="curves",
                title=say.pick(
                    "Sum or mean, gradients or parameters, 32 or 16 bits: all curves",
                    "求和或求平均、梯度或参数、32 位或 16 位：全部曲线",
                ),
                caption=say.pick(
                    "Cut off above: what leaves the picture has run away.",
                    "上方截断：超出画面的曲线已经发散。",
                ),
                draw=draw_curves(tables.curves),
                tables=[tables.curves],
            )
        )
    if tables.choices.rows:
        blocks.append(
            TableBlock(
                table=tables.choices,
                title=say.pick(
                    "What is averaged, and how; the loss is the mean over the last epoch",
                    "聚合对象与方式；损失为最后一轮的平均值",
                ),
                columns=[
                    Column(
                        key="of",
                        name=say.pick("of", "对象"),
                        align="left",
                        labels={
                            "gradients": say.pick("gradients", "梯度"),
                            "parameters": say.pick("parameters", "参数"),
                        },
                    ),
                    Column(
                        key="average",
                        name=say.pick("how", "方式"),
                        align="left",
                        labels={"mean": say.pick("mean", "平均"), "sum": say.pick("sum", "求和")},
                    ),
                    Column(key="loss", name=say.pick("loss", "损失"), form=plain),
                    Column(
                        key="accuracy", name=say.pick("test accuracy", "测试准确率"), form=points
                    ),
                    Column(key="diverged_at", name=say.pick("diverged at", "发散步"), form=count),
                ],
            )
        )
    if tables.compression.rows:
        blocks.append(
            TableBlock(
                table=tables.compression,
                title=say.pick("Compression (chunked_ring)", "压缩（chunked_ring）"),
                columns=[
                    Column(
                        key="compress",
                        name=say.pick("on the way", "传输格式"),
                        align="left",
                        labels={
                            "none": say.pick("32 bits", "32 位"),
                            "fp16": say.pick("16 bits", "16 位"),
                        },
                    ),
                    Column(
                        key="bytes_per_step", name=say.pick("bytes per step", "每步字节"), form=size
                    ),
                    Column(key="step_ms", name=say.pick("a step", "每步"), form=milliseconds),
                    Column(
                        key="accuracy", name=say.pick("test accuracy", "测试准确率"), form=points
                    ),
                ],
            )
        )
    return blocks
