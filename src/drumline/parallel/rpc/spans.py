"""When a part computed: spans for a trace, noted by the rank that owns the part.

Forward is a call, and its span is plain. Backward is run by autograd's own threads when gradients
arrive; nothing of ours is called. But every node of the autograd graph takes hooks:

    Recv ◄── node ◄── node ◄── node ◄── outputs      1. before the first node: backward begins
               ▼        ▼                            2. after a node that leads out of the graph,
             weight   weight                            to a weight or to the part before
                                                     3. the last of those ends it
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

Note = Callable[[str, int, int, int, int], None]
"""note(kind, microbatch, chunk, began_ns, ended_ns), with kind `forward` or `backward`"""

_Node = Any
_ENDS = ("AccumulateGrad", "RecvRpcBackward")


def note_backward(outputs: Tensor, finish: Callable[[int, int], None]) -> None:
    """Call `finish(began_ns, ended_ns)` when backward has passed the graph of `outputs`."""
    if outputs.grad_fn is None:
        return
    edge = _edge(outputs.grad_fn)
    began = ended = 0
    left = len(edge)

    def begin(_: Any) -> None:
        nonlocal began
        began = time.monotonic_ns()  # (1)

    def end(*_: Any) -> None:
        nonlocal ended, left
        ended, left = time.monotonic_ns(), left - 1  # (2)
        if left == 0:
            finish(began, ended)  # (3)

    outputs.grad_fn.register_prehook(begin)
    for node in edge:
        node.register_hook(end)


def _edge(root: _Node) -> list[_Node]:
    """Find the nodes that lead out of the graph."""
    seen, waiting, edge = {root}, [root], []
    while waiting:
        node = waiting.pop()
        following = [after for after, _ in node.next_functions if after is not None]
        inner = [after for after in following if after.name().rsplit("::")[-1] not in _ENDS]
        if len(inner) < len(following):
            edge.append(node)
        for after in inner:
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return edge
