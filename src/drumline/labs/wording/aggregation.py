"""Lab 2, the averages: what their checks look at, and what is said about their mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from drumline.labs.language import Said
from drumline.labs.wording.entry import Entry

TITLES: Mapping[str, Said] = MappingProxyType(
    {
        "average.all_gather": Said("the mean by all_gather", "用 all_gather 求平均"),
        "average.reduce_broadcast": Said(
            "the mean by reduce and broadcast", "用 reduce 加 broadcast 求平均"
        ),
        "average.ring": Said("the mean around a ring", "沿环传递求平均"),
    }
)

_MEAN = Said(
    "the {ranks} ranks bring 1, 2 and 4 times one test tensor; after average_by_{way} every rank's "
    "tensor holds the mean, {mean:.4f} times it",
    "{ranks} 个 rank 分别带来同一测试张量的 1、2、4 倍；average_by_{way} 之后，每个 rank 的张量都"
    "应是平均值，即它的 {mean:.4f} 倍",
)
_AVERAGES = ("comm/primitives.py:all_gather", "comm/primitives.py:reduce_broadcast")

MISTAKES: Mapping[str, Entry] = MappingProxyType(
    {
        "aliased-gather": Entry(
            expected=_MEAN,
            seen=Said(
                "all entries of the list for the results are one and the same tensor, so that one "
                "rank's is counted {ranks} times (table)",
                "结果列表的所有元素是同一个张量，因此某一个 rank 的张量被数了 {ranks} 次（见表）",
            ),
            belief=Said(
                "“[torch.zeros_like(t)] * n makes n tensors.” It makes one tensor and n references "
                "to it: every arrival overwrites the one before, and the last one is counted n "
                "times, silently. Write [torch.zeros_like(t) for _ in range(n)].",
                "“[torch.zeros_like(t)] * n 会创建 n 个张量。”它只创建一个张量和 n 个引用：每次到"
                "达的数据都覆盖前一个，最后一个被算了 n 次，而且不报错。应写成 "
                "[torch.zeros_like(t) for _ in range(n)]。",
            ),
            read=("comm/primitives.py:all_gather",),
            section=2,
        ),
        "missing-division": Entry(
            expected=_MEAN,
            seen=Said(
                "{total:.4f} on every rank: the sum", "每个 rank 上都是 {total:.4f}：这是总和"
            ),
            belief=Said(
                "“Aggregation is averaging.” The primitives add up; the division by the number of "
                "ranks is yours. A sum acts like a learning rate that is {ranks} times as large, "
                "which may even train for a while.",
                "“聚合就是求平均。”通信原语只做加法，除以 rank 数要由你来做。用总和相当于把学习率"
                "放大 {ranks} 倍，训练甚至可能一时看不出问题。",
            ),
            read=("parallel/aggregate.py:Aggregator",),
            section=2,
        ),
        "divided-twice": Entry(
            expected=_MEAN,
            seen=Said(
                "{seen:.4f} on every rank: the mean divided by {ranks} once more",
                "每个 rank 上都是 {seen:.4f}：平均值又被 {ranks} 除了一次",
            ),
            belief=Said(
                "“To be sure, divide on both sides.” Either each rank divides before the sum, or "
                "one division follows it; where rank 0 has divided and broadcasts the mean, the "
                "others get a mean already.",
                "“保险起见，两边都除一下。”要么每个 rank 在求和之前除，要么求和之后除一次；如果 "
                "rank 0 已经除过再广播，其他 rank 收到的就已是平均值。",
            ),
            read=("parallel/aggregate.py:Aggregator", "comm/primitives.py:reduce_broadcast"),
            section=2,
        ),
        "divided-unevenly": Entry(
            expected=_MEAN,
            seen=Said(
                "not the same everywhere (table): {total:.4f} is the sum, {twice:.4f} the mean "
                "divided once more",
                "各 rank 不一致（见表）：{total:.4f} 是总和，{twice:.4f} 是又除了一次的平均值",
            ),
            belief=Said(
                "“A division on rank 0 holds for all.” It changes rank 0's tensor, and the others "
                "learn of it only by a message that comes after it. Either rank 0 divides before "
                "it broadcasts, or every rank divides after; never some before and some after.",
                "“rank 0 除过就等于大家都除过。”它只改变 rank 0 自己的张量，"
                "其他 rank 只能通过其后的"
                "消息得知。要么 rank 0 在广播之前除，要么每个 rank 在广播之后除，不能混用。",
            ),
            read=("parallel/aggregate.py:Aggregator", "comm/primitives.py:reduce_broadcast"),
            section=2,
        ),
        "nothing-exchanged": Entry(
            expected=_MEAN,
            seen=Said("every rank still has its own tensor", "每个 rank 上仍是自己的张量"),
            belief=Said(
                "The result must go into the tensor that was handed in. `tensor = …` only gives "
                "another thing that name, inside the function; tensor.copy_(…) changes its values.",
                "结果必须写入传进来的那个张量。`tensor = …` 只是在函数内把这个名字指向另一个对象；"
                "tensor.copy_(…) 才会改变它的值。",
            ),
            read=_AVERAGES,
            section=2,
        ),
        "not-in-place": Entry(
            expected=_MEAN,
            seen=Said(
                "the mean was returned, but the tensor itself is as it was",
                "平均值被返回了，但张量本身没有变",
            ),
            belief=Said(
                "The optimizer will look at param.grad, and that is the tensor that was handed in: "
                "its values must change (tensor.copy_(…)), whatever is returned.",
                "优化器看的是 param.grad，也就是传进来的那个张量：必须改变它的值"
                "（tensor.copy_(…)），返回什么并不重要。",
            ),
            read=_AVERAGES,
            section=2,
        ),
        "not-everywhere": Entry(
            expected=_MEAN,
            seen=Said(
                "only on rank {right}; the others have something else (table)",
                "只有 rank {right} 上正确；其他 rank 上是别的值（见表）",
            ),
            belief=Said(
                "“After reduce everybody has the sum.” Only dst has it, and what it does to its "
                "tensor stays there until it is broadcast; on the others the tensor may hold "
                "partial sums.",
                "“reduce 之后所有人都有总和。”只有 dst 有；它对自己张量所做的事，在广播之前别人看"
                "不到；其他 rank 的张量里可能是部分和。",
            ),
            read=("comm/primitives.py:reduce_broadcast", "comm/linear.py:reduce"),
            section=2,
        ),
        "average-differs": Entry(
            expected=_MEAN,
            seen=Said(
                "something else (table; a tensor of {size} elements)",
                "得到了别的值（见表；张量有 {size} 个元素）",
            ),
            belief=Said(
                "Follow one element of a tensor through every message, with three ranks, on "
                "paper. The usual ones: a buffer that is received into while it is still being "
                "sent, a sum that is passed on in place of what came in, pieces of unequal size.",
                "请用三个 rank，在纸上跟踪张量的一个元素经过每条消息。常见原因：缓冲区还在发送时就"
                "被接收覆盖；传下去的是累加和而不是收到的内容；各块大小不等。",
            ),
            read=(*_AVERAGES, "comm/ring.py:all_reduce"),
            section=3,
        ),
        "not-its-name": Entry(
            expected=Said(
                "average_by_{way} uses {promised}, for a tensor of {bytes} bytes; on a ring each "
                "rank sends to one neighbour only, and receives from the other",
                "average_by_{way} 对 {bytes} 字节的张量使用 {promised}；在环上每个 rank 只向一个邻"
                "居发送，只从另一个邻居接收",
            ),
            seen=Said(
                "the mean is right, but the calls counted are {used} (table)",
                "平均值正确，但统计到的调用是 {used}（见表）",
            ),
            belief=Said(
                "“The result is the same, so it is the same.” The result is, the cost is not: what "
                "is compared in this lab is who sends how many bytes to whom. A ring sends n − 1 "
                "whole tensors per rank, or 2·(n − 1)/n of one in pieces, and no rank is special; "
                "if all bytes pass through rank 0, its link is the bottleneck.",
                "“结果相同就是同一种方法。”结果相同，代价不同：本实验比较的正是谁向谁发送多少字"
                "节。环上每个 rank 发送 n − 1 个完整张量，或分块后共 2·(n − 1)/n 个张量，没有哪个 "
                "rank 特殊；如果所有字节都经过 rank 0，它的链路就是瓶颈。",
            ),
            read=("comm/ring.py:all_reduce", "comm/ring.py:chunked_all_reduce", *_AVERAGES),
            section=3,
        ),
        "ring-bytes": Entry(
            expected=Said(
                "on a ring of {ranks} every rank sends the same: {most} bytes of a tensor of "
                "{bytes} in whole tensors, {least} in pieces",
                "在 {ranks} 个 rank 的环上每个 rank 发送得一样多："
                "张量为 {bytes} 字节时，整张量传递共 "
                "{most} 字节，分块传递共 {least} 字节",
            ),
            seen=Said(
                "the mean is right, but ranks 0, 1, … send {sent} bytes (table)",
                "平均值正确，但 rank 0、1……发送的字节数为 {sent}（见表）",
            ),
            belief=Said(
                "“Neighbours only, so it is a ring.” A sum that travels from rank to rank and back "
                "out again is a chain: one rank works, all others wait, and the time grows with n. "
                "On a ring all ranks send at once in every round, so that no link is ever idle.",
                "“只和邻居通信，就是环。”总和从一个 rank 传到下一个，"
                "再传回去，那是一条链：一个 rank "
                "在传，其他都在等，时间随 n 增长。在环上，每一轮所有 rank 同时发送，"
                "没有空闲的链路。",
            ),
            read=("comm/ring.py:all_reduce", "comm/ring.py:chunked_all_reduce"),
            section=3,
        ),
    }
)
