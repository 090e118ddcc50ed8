"""Lab 4: what its checks look at, and what is said about their mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from drumline.labs.language import Said
from drumline.labs.wording.entry import Entry

TITLES: Mapping[str, Said] = MappingProxyType(
    {
        "model.outputs": Said(
            "two parts compute what the whole model does", "两部分合起来的计算与完整模型一致"
        ),
        "model.overlap": Said("micro-batches overlap", "微批次在两部分之间重叠"),
        "model.parameters": Said("the leader reaches all parameters", "主进程能够引用全部参数"),
        "model.sizes": Said("the report tells the parts' bytes", "报告给出各部分的字节数"),
    }
)

_GRADIENTS = Said(
    "every parameter gets the gradient that it has in the whole model",
    "每个参数得到与完整模型相同的梯度",
)

MISTAKES: Mapping[str, Entry] = MappingProxyType(
    {
        "output-shape": Entry(
            expected=Said(
                "forward returns a tensor of shape {expected}",
                "forward 返回形状为 {expected} 的张量",
            ),
            seen=Said("{got}", "{got}"),
            belief=Said(
                "forward returns the values, not a reference or a list of pieces: wait for all "
                "futures, and join the pieces with torch.cat.",
                "forward 返回的是数值，而不是引用或分块的列表：等待所有 future，再用 torch.cat 拼"
                "接。",
            ),
            read=("parallel/rpc/leader.py:RpcModel",),
            section=2,
        ),
        "outputs-out-of-order": Entry(
            expected=Said(
                "row i of the output belongs to row i of the input", "输出第 i 行对应输入第 i 行"
            ),
            seen=Said("the right rows, in another order", "各行数值正确，但顺序不同"),
            belief=Said(
                "“First done, first in.” Pieces may end in any order; the loss compares them with "
                "targets in the order of the input. Keep the futures in a list, in the order in "
                "which the pieces left.",
                "“先完成的排在前面。”各块完成的先后不定，而损失按输入的顺序与目标比较。请按发出的"
                "顺序把 future 保存在列表里。",
            ),
            read=("parallel/rpc/leader.py:RpcModel.train",),
            section=2,
        ),
        "outputs-differ": Entry(
            expected=Said(
                "the outputs of the whole model on one process", "与单进程完整模型相同的输出"
            ),
            seen=Said("values that differ by up to {off:.4f}", "数值最多相差 {off:.4f}"),
            belief=Said(
                "Part 2 gets what part 1 has computed, all of it and nothing else; each row passes "
                "both parts once.",
                "第二部分得到第一部分算出的全部结果，不多不少；每一行各经过两部分一次。",
            ),
            read=("parallel/rpc/parts.py:Part.take",),
            section=2,
        ),
        "gradients-lost": Entry(
            expected=_GRADIENTS,
            seen=Said("no gradient for {lost}", "{lost} 没有梯度"),
            belief=Said(
                "“A tensor that was sent is the same tensor.” Distributed autograd follows a "
                "tensor only through the RPC call itself. detach(), .data, torch.no_grad() or "
                "numpy cut the way back, and the part before that never learns.",
                "“发送过去的张量还是同一个张量。”分布式自动求导只沿着 RPC 调用本身回溯。detach()、"
                ".data、torch.no_grad() 或 numpy 都会切断反向的通路，前面的部分就永远学不到东西。",
            ),
            read=("parallel/rpc/parts.py:Part.take", "parallel/rpc/leader.py:RpcModel.train"),
            section=3,
        ),
        "gradients-differ": Entry(
            expected=_GRADIENTS,
            seen=Said("gradients that differ by up to {off:.4f}", "梯度最多相差 {off:.4f}"),
            belief=Said(
                "The gradients of all pieces add up to that of the batch, if each piece passes "
                "once and all of them belong to the same context.",
                "各块的梯度之和就是整个批次的梯度，前提是每块只经过一次，且都属于同一个 context。",
            ),
            read=("parallel/rpc/leader.py:RpcModel.train",),
            section=3,
        ),
        "never-overlaps": Entry(
            expected=Said(
                "{microbatches} micro-batches, each {part:.2f} s in either part: both parts "
                "compute at once for up to {possible:.2f} s",
                "{microbatches} 个微批次，在每一部分各用 {part:.2f} 秒：两部分最多可同时计算 "
                "{possible:.2f} 秒",
            ),
            seen=Said(
                "both at once for {both:.2f} s; calls of part 1: {calls}, with {samples} samples "
                "at most",
                "同时计算 {both:.2f} 秒；第一部分被调用 {calls} 次，每次最多 {samples} 个样本",
            ),
            belief=Said(
                "“Two processes, so twice as fast.” One process waits while the other computes, "
                "unless the next piece is on its way before the last one has come back. rpc_sync, "
                ".to_here() or .wait() inside the loop over pieces makes every piece wait for the "
                "one before; and a batch that is not cut has nothing to overlap.",
                "“两个进程就快一倍。”只要下一块没有在上一块返回之前发出，就总是一个进程在算、另一"
                "个在等。在遍历各块的循环里使用 rpc_sync、.to_here() 或 .wait()，每一块都要等前一"
                "块；而没有切分的批次根本无从重叠。",
            ),
            read=("parallel/rpc/leader.py:RpcModel.train", "parallel/rpc/parts.py:hand_on"),
            section=2,
        ),
        "microbatch-count": Entry(
            expected=Said(
                "each part computes {microbatches} micro-batches",
                "每一部分计算 {microbatches} 个微批次",
            ),
            seen=Said("part 1 was called {calls} times", "第一部分被调用 {calls} 次"),
            belief=Said(
                "microbatches is the number of pieces, not their size: x.chunk(n) cuts into n "
                "pieces, x.split(n) into pieces of n rows.",
                "microbatches 是块数而不是块的大小：x.chunk(n) 切成 n 块，x.split(n) 切成每块 n "
                "行。",
            ),
            read=("parallel/rpc/leader.py:RpcModel.train",),
            section=2,
        ),
        "not-references": Entry(
            expected=Said("a list of RRefs", "由 RRef 组成的列表"),
            seen=Said("{kinds}", "{kinds}"),
            belief=Said(
                "A parameter that is sent arrives as a copy; an optimizer that steps the copy "
                "changes nothing. DistributedOptimizer wants references to the parameters where "
                "they live.",
                "参数被发送后到达的是副本；优化器更新副本毫无作用。DistributedOptimizer 需要的是参"
                "数所在之处的引用。",
            ),
            read=("parallel/rpc/parts.py:Part.parameter_refs",),
            section=3,
        ),
        "parameters-not-reached": Entry(
            expected=Said(
                "{expected} references, each owned by the worker that holds the parameter",
                "{expected} 个引用，各由持有该参数的 worker 拥有",
            ),
            seen=Said("{seen} (table)", "{seen} 个（见表）"),
            belief=Said(
                "“model.parameters() has all parameters.” The leader's module holds only remote "
                "references, and no parameter at all: an optimizer made from it trains nothing. "
                "Ask each part, on its owner, for RRefs to its own.",
                "“model.parameters() 包含所有参数。”主进程的模块里只有远程引用，一个参数也没有：用"
                "它构造的优化器什么也训练不了。请让每一部分在其所有者上给出自己参数的 RRef。",
            ),
            read=("parallel/rpc/parts.py:Part.parameter_refs", "parallel/rpc/optimizers.py"),
            section=3,
        ),
        "size-report": Entry(
            expected=Said("a dictionary from worker to bytes", "从 worker 名到字节数的字典"),
            seen=Said("{got}", "{got}"),
            belief=Said("Such as {{'worker1': 4096}}.", "例如 {{'worker1': 4096}}。"),
            section=4,
        ),
        "bytes-zero": Entry(
            expected=Said(
                "{expected} bytes of parameters on both workers together",
                "两个 worker 上的参数共 {expected} 字节",
            ),
            seen=Said("0", "0"),
            belief=Said(
                "“The sum over model.parameters() is the model's size.” On the leader it is the "
                "sum over nothing: an RRef is not a parameter, and the module that holds it has "
                "none. Bytes must be counted where the tensors are, on the owner.",
                "“对 model.parameters() 求和就是模型大小。”在主进程上这是对空集求和：RRef 不是参"
                "数，持有它的模块里没有参数。字节数必须在张量所在之处，即所有者上统计。",
            ),
            read=("parallel/rpc/parts.py:Part.trained", "parallel/rpc/parts.py:Traffic"),
            section=4,
        ),
        "bytes-are-elements": Entry(
            expected=Said("{expected} bytes", "{expected} 字节"),
            seen=Said(
                "a quarter of that: elements, not bytes", "只有四分之一：那是元素个数，不是字节数"
            ),
            belief=Said(
                "numel() counts numbers; a float32 takes four bytes: numel() * element_size(), or "
                "nbytes.",
                "numel() 数的是元素个数；一个 float32 占四字节：用 numel() * element_size() 或 "
                "nbytes。",
            ),
            read=("parallel/rpc/parts.py:Traffic",),
            section=4,
        ),
        "bytes-differ": Entry(
            expected=Said(
                "{expected} bytes on both workers together", "两个 worker 共 {expected} 字节"
            ),
            seen=Said("{seen} (table)", "{seen}（见表）"),
            belief=Said(
                "Each part is counted once, on its owner, under its owner's name.",
                "每一部分在其所有者上统计一次，记在所有者名下。",
            ),
            read=("parallel/rpc/parts.py:Part.trained",),
            section=4,
        ),
    }
)
