"""The results of lab 4: its tables and pictures, and the sentences about them."""

from __future__ import annotations

from drumline.labs.experiment import Results
from drumline.labs.forms import tiny
from drumline.labs.lab import WriteUp
from drumline.labs.model_parallel.cost_words import say_costs, say_losses
from drumline.labs.model_parallel.pace_words import say_fastest, say_paces
from drumline.labs.model_parallel.pictures import draw_curves, draw_forms, draw_microbatches
from drumline.labs.model_parallel.sheets import ModelParallelSheets, build_sheets
from drumline.labs.model_parallel.trace_picture import draw_trace
from drumline.report.page.blocks import Block, Column, Facts, Paragraph, Picture, TableBlock
from drumline.report.page.findings import Findings
from drumline.report.page.table import count, milliseconds, percent, plain, size, times
from drumline.report.page.translator import Sentence, Text, Translator


def write_up(results: Results, say: Translator) -> WriteUp:
    """Turn what was measured into tables, pictures and sentences."""
    tables = build_sheets(results)
    nodes = results.settings.nodes
    findings = Findings()
    said = [
        *say_paces(tables, findings, say),
        *say_costs(tables, findings, say, nodes=nodes),
    ]
    return WriteUp(
        summary=_summary(tables, say),
        results=[
            *_forms(tables, say, nodes=nodes),
            *_microbatches(tables, say),
            *_trace(tables, say),
            *_curves(tables, say),
            *_ranks(tables, say),
        ],
        analysis=[Paragraph(said=said, findings=True)] if said else [],
        tables=[*tables.all(), *([findings.table] if findings.table.rows else [])],
    )


def _summary(tables: ModelParallelSheets, say: Translator) -> Text:
    said = [*say_fastest(tables, say), *say_losses(tables, say)]
    if not said:
        return say(
            "Too little came to its end to be compared."
            if tables.forms.rows
            else "No experiment came to its end.",
            "完成的实验太少，无法比较。" if tables.forms.rows else "没有一个实验完成。",
        )
    gap = say.pick(" ", "")
    parts = [part for one in said for part in (gap, *one.parts)]
    return Sentence(tuple(parts[1:]))


def _forms(tables: ModelParallelSheets, say: Translator, *, nodes: int) -> list[Block]:
    if not tables.forms.rows:
        return []
    case, peak, sent, idle = _shared_columns(say)
    return [
        _words(say),
        Picture(
            name="forms",
            title=say.pick("What each form costs", "各种形式的代价"),
            caption=say.pick(
                "Dotted: one process alone, both its runs together. ",
                "点线：单进程，两次运行合计。",
            )
            + _how_counted(say, nodes),
            draw=draw_forms(tables),
            tables=[tables.forms, tables.ranks],
        ),
        TableBlock(
            table=tables.forms,
            title=say.pick(
                "Time: a step until its slowest rank is done, median (quartiles); speed-up over "
                "one process",
                "时间：一步，到最慢进程完成为止，中位数（四分位数）；相对单进程的加速比",
            ),
            columns=[
                case,
                Column(key="ranks", name=say.pick("ranks", "进程数"), form=count),
                Column(key="step_ms", name=say.pick("a step", "每步"), form=milliseconds),
                Column(key="samples_per_s", name=say.pick("samples/s", "样本/秒"), form=plain),
                Column(key="speedup", name=say.pick("speed-up", "加速比"), form=times),
                Column(key="loss", name=say.pick("last loss", "最后损失"), form=_loss),
                Column(
                    key="loss_difference",
                    name=say.pick("off alone at most", "与单进程最大差"),
                    form=tiny,
                ),
            ],
        ),
        TableBlock(
            table=tables.forms,
            title=say.pick(
                "Memory of the largest rank, bytes of all ranks, bubble, idle time of the idlest "
                "rank, and the share of a step in which two ranks or more compute",
                "占用最多的进程的内存、全部进程的字节、气泡、最空闲进程的空闲时间，"
                "以及两个或更多进程同时计算的时间占比",
            ),
            columns=[
                case,
                peak,
                sent,
                Column(key="bubble", name=say.pick("bubble", "气泡"), form=percent),
                Column(key="bubble_theory", name=say.pick("by theory", "理论值"), form=percent),
                Column(key="together", name=say.pick("at once", "同时计算"), form=percent),
                idle,
            ],
        ),
    ]


def _shared_columns(say: Translator) -> tuple[Column, Column, Column, Column]:
    return (
        Column(key="case", name=say.pick("form", "形式"), align="left"),
        Column(key="peak_bytes", name=say.pick("peak memory", "内存峰值"), form=size),
        Column(key="sent_bytes", name=say.pick("sent per step", "每步发送"), form=size),
        Column(key="idle_ms", name=say.pick("idle", "空闲"), form=milliseconds),
    )


def _ranks(tables: ModelParallelSheets, say: Translator) -> list[Block]:
    if not tables.ranks.rows:
        return []
    case, peak, sent, idle = _shared_columns(say)
    rank = Column(key="rank", name=say.pick("rank", "进程"), form=count)
    inside = Column(
        key="bubble_idle_ms", name=say.pick("in the bubble", "气泡内"), form=milliseconds
    )
    return [
        TableBlock(
            table=tables.ranks,
            title=say.pick(
                "Each rank: memory, bytes, and time of a step in which it did nothing but wait and "
                "transfer, or, between the first piece of work and the last, had none",
                "各进程：内存、字节，以及一步中只在等待和传输的时间，"
                "和从第一块计算到最后一块计算之间没有计算的时间",
            ),
            columns=[case, rank, peak, sent, idle, inside],
            folded=True,
        )
    ]


def _words(say: Translator) -> Facts:
    return Facts(
        items=[
            (
                "alone",
                say.pick(
                    "one process, run first and again at the end", "单进程，最先和最后各运行一次"
                ),
            ),
            (
                "data",
                say.pick(
                    "data parallelism: a copy of the model on each rank, gradients averaged",
                    "数据并行：每个进程一份模型，对梯度求平均",
                ),
            ),
            (
                "rpc ×m",
                say.pick(
                    "cut between layers, a part on each rank, driven by RPC calls with m "
                    "microbatches; ×1: the parts compute in turn",
                    "按层切分，每个进程一部分，由 RPC 调用驱动，m 个微批次；×1：各部分轮流计算",
                ),
            ),
            (
                "pipeline S ×m",
                say.pick(
                    "cut between layers, a stage on each rank, by schedule S with m microbatches; "
                    "interleaved: two chunks on each rank",
                    "按层切分，每个进程一个阶段，按调度 S 执行 m 个微批次；"
                    "interleaved：每个进程两个模型块",
                ),
            ),
            (
                "tensor",
                say.pick(
                    "the horizontal split: every layer is cut inside, a share on each rank",
                    "横向划分：每一层内部切开，每个进程一份",
                ),
            ),
        ]
    )


def _how_counted(say: Translator, nodes: int) -> str:
    if nodes > 1:
        return say.pick(
            "Bytes: what left the nodes by their links, headers included.",
            "字节：经由链路离开各节点的量，含包头。",
        )
    return say.pick(
        "Bytes: messages and RPC's tensors that were sent, and tensors brought to collectives; "
        "without headers.",
        "字节：发出的消息、RPC 发出的张量，以及交给集合通信的张量；不含包头。",
    )


def _loss(value: float) -> str:
    return f"{value:.4f}"


def _microbatches(tables: ModelParallelSheets, say: Translator) -> list[Block]:
    if not any(row["bubble"] is not None for row in tables.forms.rows):
        return []
    return [
        Picture(
            name="microbatches",
            title=say.pick(
                "More microbatches: time and bubble, beside the formula",
                "微批次数的影响：用时与气泡，及理论值",
            ),
            caption=say.pick(
                "p: parts of the model. With one microbatch every schedule is the same.",
                "p：模型的部分数。只有一个微批次时，各种调度相同。",
            ),
            draw=draw_microbatches(tables),
            tables=[tables.forms],
        )
    ]


def _trace(tables: ModelParallelSheets, say: Translator) -> list[Block]:
    if not tables.trace.rows:
        return []
    return [
        Picture(
            name="trace",
            title=say.pick(
                "Who computes when: two steps of each form, on one scale of time",
                "谁在何时计算：每种形式的两步，同一时间尺度",
            ),
            caption=say.pick(
                "Dotted: a step begins. Steps were chosen that took as long as most. Half as high: "
                "pieces that ran beside each other on threads of one rank. Empty: data, update, "
                "and what nobody noted.",
                "点线：一步开始。所选的步用时接近中位数。高度减半：同一进程的多个线程同时执行的部分。"
                "空白：读数据、更新参数，以及没有记录的时间。",
            ),
            draw=draw_trace(tables.trace),
            tables=[tables.trace],
        )
    ]


def _curves(tables: ModelParallelSheets, say: Translator) -> list[Block]:
    if not tables.curves.rows:
        return []
    return [
        Picture(
            name="curves",
            title=say.pick(
                "Loss curves: all forms train the same model, or not",
                "损失曲线：各种形式训练的是否为同一模型",
            ),
            caption=say.pick(
                "Broad: one process alone. Each other curve has its marks at steps of its own.",
                "粗线：单进程。其他曲线的标记各在不同的步。",
            ),
            draw=draw_curves(tables.curves),
            tables=[tables.curves],
        )
    ]
