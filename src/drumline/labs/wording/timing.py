"""Lab 2, the timer: what its check looks at, and what is said about its mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from drumline.labs.language import Said
from drumline.labs.wording.entry import Entry

TITLES: Mapping[str, Said] = MappingProxyType(
    {
        "timer": Said("the timer tells wait from transfer", "计时器区分等待与传输"),
    }
)

_TIMES = Said(
    "rank 1 arrives {late:.2f} s late and the bytes take {length:.2f} s: rank 0 has wait "
    "{late:.2f} and transfer {length:.2f}, rank 1 wait 0 and transfer {length:.2f}",
    "rank 1 迟到 {late:.2f} 秒，传输用时 {length:.2f} 秒：rank 0 应为等待 {late:.2f}、传输 "
    "{length:.2f}，rank 1 应为等待 0、传输 {length:.2f}",
)

MISTAKES: Mapping[str, Entry] = MappingProxyType(
    {
        "timer-result": Entry(
            expected=Said(
                "time_communication returns two numbers, (wait_s, transfer_s)",
                "time_communication 返回两个数 (wait_s, transfer_s)",
            ),
            seen=Said("{given}", "{given}"),
            belief=Said("Both are in seconds.", "两者都以秒为单位。"),
            read=("report/ledger.py:RankLedger",),
            section=4,
        ),
        "timing-not-synchronised": Entry(
            expected=_TIMES,
            seen=Said(
                "transfer {transfer:.2f} s on rank 0 and {late_transfer:.2f} s on rank 1, though "
                "the bytes were under way for {length:.2f} s",
                "rank 0 的传输为 {transfer:.2f} 秒，rank 1 为 {late_transfer:.2f} 秒，而数据实际在"
                "路上用了 {length:.2f} 秒",
            ),
            belief=Said(
                "“When the call has returned, it is done.” An asynchronous call returns as soon "
                "as it has started: work.wait() first, then look at the clock. On a GPU the same "
                "holds for every kernel: torch.cuda.synchronize(), or events, before the time is "
                "read.",
                "“调用返回了就完成了。”异步调用一启动就返回：要先 work.wait()，再看时钟。在 GPU 上"
                "每个核函数都如此：读时间之前要 torch.cuda.synchronize()，或使用 event。",
            ),
            read=("parallel/aggregate.py:Aggregator", "comm/meter.py:Meter"),
            section=4,
        ),
        "timing-swapped": Entry(
            expected=_TIMES,
            seen=Said(
                "rank 1, which arrived last, waited {late_wait:.2f} s and transferred for "
                "{late_transfer:.2f} s",
                "最后到达的 rank 1 等待 {late_wait:.2f} 秒，传输 {late_transfer:.2f} 秒",
            ),
            belief=Said(
                "The two are exchanged: the wait comes first in time, and first in what is "
                "returned, (wait_s, transfer_s). Whoever arrives last has nobody to wait for.",
                "两者颠倒了：等待在先，返回时也在先，即 (wait_s, transfer_s)。"
                "最后到达的 rank 无人可等。",
            ),
            read=("report/ledger.py:RankLedger",),
            section=4,
        ),
        "timing-wait-inside": Entry(
            expected=_TIMES,
            seen=Said(
                "transfer {transfer:.2f} s on rank 0: its wait for rank 1 is inside",
                "rank 0 的传输为 {transfer:.2f} 秒：其中包含了等待 rank 1 的时间",
            ),
            belief=Said(
                "“A collective's duration is its communication time.” It begins for good when the "
                "last rank arrives. What a fast rank spends before that is the slow rank's "
                "compute, and no network in the world makes it shorter. Find out when the last "
                "one arrived (a barrier, or everybody's arrival on one clock), and measure from "
                "there.",
                "“集合通信的持续时间就是通信时间。”最后一个 rank 到达时它才真正开始。快的 rank 在"
                "此之前花掉的是慢 rank 的计算时间，再好的网络也不能缩短它。请先弄清最后一个 rank "
                "何时到达（用 barrier，或在同一时钟上比较各自的到达时间），再从那时开始计时。",
            ),
            read=("report/ledger.py:compute_ledger",),
            section=4,
        ),
        "timing-wait-missing": Entry(
            expected=_TIMES,
            seen=Said(
                "wait {wait:.2f} s on rank 0 (transfer {transfer:.2f} s)",
                "rank 0 的等待为 {wait:.2f} 秒（传输 {transfer:.2f} 秒）",
            ),
            belief=Said(
                "The clock must be read before waiting as well as after: wait is from this rank's "
                "arrival to the last one's, transfer from there to the end.",
                "等待之前和之后都要读时钟：等待是从本 rank 到达至最后一个到达，传输是从那时到结"
                "束。",
            ),
            read=("report/ledger.py:compute_ledger",),
            section=4,
        ),
        "timing-differs": Entry(
            expected=_TIMES,
            seen=Said(
                "transfer {transfer:.2f} s on rank 0 and {late_transfer:.2f} s on rank 1",
                "rank 0 的传输为 {transfer:.2f} 秒，rank 1 为 {late_transfer:.2f} 秒",
            ),
            belief=Said(
                "Something else is inside the measured time: a second communication, or work that "
                "has nothing to do with it. Run communicate() once. Or these are no seconds.",
                "计时区间里还有别的事情：第二次通信，或与之无关的工作。communicate() 只应运行一"
                "次。也可能单位不是秒。",
            ),
            read=("report/ledger.py:compute_ledger",),
            section=4,
        ),
    }
)
