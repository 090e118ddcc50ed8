"""What the numbers of lab 2 say: each sentence is chosen by them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drumline.labs.communication.choice_words import say_choices, say_compression
from drumline.labs.communication.experiments import DELAY_MS, LATE_RANK
from drumline.labs.communication.names import way_name
from drumline.labs.communication.sheets import CommunicationSheets
from drumline.report.bench_tables import format_size
from drumline.report.interval import read_interval
from drumline.report.order import Order, compare
from drumline.report.page.findings import Findings
from drumline.report.page.table import milliseconds, percent, plain, times
from drumline.report.page.translator import Sentence, Translator

_WAITS = 0.1
"""a share of waiting that makes it worth telling who waits"""


def say_all(tables: CommunicationSheets, findings: Findings, say: Translator) -> list[Sentence]:
    """Say everything that can be said."""
    return [
        *_fastest(tables, findings, say),
        *_waits(tables, findings, say),
        *_rings(tables, findings, say),
        *_predictions(tables, findings, say),
        *_bottlenecks(tables, findings, say),
        *_delays(tables, say),
        *say_choices(tables, say),
        *say_compression(tables, findings, say),
    ]


def _fastest(
    tables: CommunicationSheets, findings: Findings, say: Translator
) -> Iterator[Sentence]:
    """The best of all ways, for the smallest and the largest tensor."""
    rows = tables.collectives.rows
    if not rows:
        return
    ranks = max(row["ranks"] for row in rows)
    for bytes_ in _ends(rows):
        own = sorted(
            (row for row in rows if row["bytes"] == bytes_ and row["ranks"] == ranks),
            key=lambda row: row["ms"],
        )
        if len(own) < 2:
            continue
        first, *others = own
        least = read_interval(first, "ms")
        rivals = [r for r in others if compare(read_interval(r, "ms"), least) is not Order.MORE]
        second = rivals[0] if rivals else others[0]
        where = {"ranks": ranks, "bytes": bytes_}
        holes: dict[str, Any] = {
            "size": format_size(bytes_),
            "ranks": str(ranks),
            "best": way_name(say, first["algorithm"]),
            "time": tables.collectives.cell(
                "ms", milliseconds, algorithm=first["algorithm"], **where
            ),
            "next": way_name(say, second["algorithm"]),
            "ratio": findings.cell(
                f"{second['algorithm']} over {first['algorithm']} at {bytes_} bytes",
                second["ms"] / first["ms"],
                times,
                of="collectives.csv: ms",
            ),
        }
        if not rivals:
            yield say(
                "At {size} on {ranks} ranks {best} was the fastest way, {time}; the next, "
                "{next}, took {ratio} as long, and their quartiles do not meet.",
                "{size}、{ranks} 个进程时，{best} 最快，用时 {time}；"
                "其次是 {next}，用时为其 {ratio}，两者的四分位区间不相交。",
                **holes,
            )
        else:
            yield say(
                "At {size} on {ranks} ranks {best} took {time} and {next} {ratio} as long; their "
                "quartiles overlap, so which is faster cannot be told.",
                "{size}、{ranks} 个进程时，{best} 用时 {time}，{next} 为其 {ratio}；"
                "两者的四分位区间重叠，不能说谁更快。",
                **holes,
            )


def _ends(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the smallest and the largest size, or the only one."""
    sizes = {row["bytes"] for row in rows}
    return sorted({min(sizes), max(sizes)})


def _waits(tables: CommunicationSheets, findings: Findings, say: Translator) -> Iterator[Sentence]:
    """What of a call is waiting for the last rank, for the smallest and the largest tensor."""
    rows = [row for row in tables.collectives.rows if row["wait_ms"] + row["transfer_ms"] > 0]
    if not rows:
        return
    ranks = max(row["ranks"] for row in rows)
    for bytes_ in _ends(rows):
        own = [row for row in rows if (row["ranks"], row["bytes"]) == (ranks, bytes_)]
        if len(own) < 2:
            continue
        own.sort(key=_wait_share)
        refs = {
            hole: findings.cell(
                f"share of waiting, {row['algorithm']}, {ranks} ranks, {bytes_} bytes",
                _wait_share(row),
                percent,
                of="collectives.csv: wait_ms, transfer_ms",
            )
            for hole, row in (("low", own[0]), ("high", own[-1]))
        }
        yield say(
            "At {size} on {ranks} ranks, {low} ({a}) to {high} ({b}) of a call was waiting for the "
            "last rank to begin; the rest was transfer.",
            "{size}、{ranks} 个进程时，一次调用中有 {low}（{a}）至 {high}（{b}）"
            "是在等待最后一个进程开始，其余为传输。",
            size=format_size(bytes_),
            ranks=str(ranks),
            a=way_name(say, own[0]["algorithm"]),
            b=way_name(say, own[-1]["algorithm"]),
            **refs,
        )


def _wait_share(row: Mapping[str, Any]) -> float:
    return float(row["wait_ms"] / (row["wait_ms"] + row["transfer_ms"]))


def _rings(tables: CommunicationSheets, findings: Findings, say: Translator) -> Iterator[Sentence]:
    rows = {(row["algorithm"], row["ranks"]): row for row in tables.bytes.rows}
    for ranks in sorted({row["ranks"] for row in tables.bytes.rows}):
        whole, chunks = rows.get(("ring", ranks)), rows.get(("chunked_ring", ranks))
        if whole is None or chunks is None or not chunks["sent"]:
            continue
        yield say(
            "With {ranks} ranks ring moved {ratio} the bytes of chunked_ring: {whole} the tensor "
            "per rank against {chunks}.",
            "{ranks} 个进程时，ring 传输的字节数是 chunked_ring 的 {ratio}：每个进程发送张量的 "
            "{whole}，后者为 {chunks}。",
            ranks=str(ranks),
            ratio=findings.cell(
                f"bytes of ring over chunked_ring, {ranks} ranks",
                whole["sent"] / chunks["sent"],
                times,
                of="bytes.csv: sent",
            ),
            whole=tables.bytes.cell("of_tensor", times, algorithm="ring", ranks=ranks),
            chunks=tables.bytes.cell("of_tensor", times, algorithm="chunked_ring", ranks=ranks),
        )


def _predictions(
    tables: CommunicationSheets, findings: Findings, say: Translator
) -> Iterator[Sentence]:
    errors = [abs(row["error"]) for row in tables.collectives.rows if row["error"] is not None]
    if errors:
        yield say(
            "A line through the other sizes (α per round, β per byte) predicted a time to within "
            "{median} in half of the {count} cases; the worst was off by {worst}.",
            "由其他大小拟合的直线（每轮 α，每字节 β）在 {count} 个情形中有一半误差不超过 {median}；"
            "最差的误差为 {worst}。",
            median=findings.cell(
                "median error of prediction",
                statistics.median(errors),
                percent,
                of="collectives.csv: error",
            ),
            worst=findings.cell(
                "worst error of prediction", max(errors), percent, of="collectives.csv: error"
            ),
            count=str(len(errors)),
        )


def _bottlenecks(
    tables: CommunicationSheets, findings: Findings, say: Translator
) -> Iterator[Sentence]:
    for situation, en, zh in (
        ("slow cpu", "a slow CPU on one node", "一个节点 CPU 变慢"),
        ("slow link", "a slow link of one node", "一个节点链路变慢"),
    ):
        own = [
            row
            for row in tables.strategies.rows
            if row["situation"] == situation and row["over_even"] is not None
        ]
        if len(own) < 2:
            continue
        own.sort(key=lambda row: row["over_even"])
        least, most = own[0], own[-1]
        said = say(
            "With {what}, a step took from {low} by {a} to {high} by {b} as long as on even nodes; "
            "by {b}, {share} of all communication time was waiting",
            "{what}时，每步用时从 {a} 的 {low} 到 {b} 的 {high}（与均等节点相比）；"
            "{b} 的通信时间中有 {share} 是等待",
            what=say.pick(en, zh),
            a=least["kind"],
            b=most["kind"],
            low=_quote(tables, "over_even", least, times),
            high=_quote(tables, "over_even", most, times),
            share=_quote(tables, "wait_share", most, percent),
        )
        if (most["wait_share"] or 0.0) < _WAITS:
            yield say("{said}, the rest transfer.", "{said}，其余为传输。", said=said)
            continue
        yield say(
            "{said}; rank {waits} waited longest and rank {late} least.",
            "{said}；进程 {waits} 等待最久，进程 {late} 等待最短。",
            said=said,
            waits=_quote(tables, "waits_most", most, plain),
            late=_quote(tables, "waited_for", most, plain),
        )


def _quote(tables: CommunicationSheets, column: str, row: Mapping[str, Any], form: Any) -> Any:
    return tables.strategies.cell(column, form, situation=row["situation"], kind=row["kind"])


def _delays(tables: CommunicationSheets, say: Translator) -> Iterator[Sentence]:
    for row in tables.delays.rows:
        holes: dict[str, Any] = {
            "kind": row["kind"],
            "delay": str(DELAY_MS),
            "rank": str(LATE_RANK),
            "added": tables.delays.cell("added_ms", milliseconds, kind=row["kind"]),
            "blame": tables.delays.cell("blame", percent, kind=row["kind"]),
        }
        late, even = read_interval(row, "late_ms"), read_interval(row, "even_ms")
        if compare(late, even) is Order.MORE:
            yield say(
                "{kind}: a delay of {delay} ms on rank {rank} made a step {added} longer; {blame} "
                "of all lost time was waiting for that rank.",
                "{kind}：进程 {rank} 延迟 {delay} 毫秒，使每步增加 {added}；全部损耗的时间中 "
                "{blame} 是在等待该进程。",
                **holes,
            )
        else:
            yield say(
                "{kind}: with a delay of {delay} ms on rank {rank} the median of a step changed by "
                "{added}, which the quartiles do not tell from chance; {blame} of all lost time "
                "was waiting for that rank.",
                "{kind}：进程 {rank} 延迟 {delay} 毫秒，每步中位数变化 {added}，"
                "但四分位区间重叠，无法与偶然波动区分；全部损耗的时间中 {blame} 是在等待该进程。",
                **holes,
            )
