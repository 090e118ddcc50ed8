"""Lab 2: is what comes out the mean, and did it come about as the function's name says?

Three ranks average tensors whose values tell who had them. Then the calls that were counted are
compared with what the name promises: which functions, how many bytes, to and from whom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from types import MappingProxyType

import torch

from drumline.core.json_lines import Message
from drumline.grader.pictures import draw_table
from drumline.grader.ranks import POINT_TO_POINT, Call, count_calls, on_ranks
from drumline.grader.submission import Submission, Wrong

SEND, RECV = ("send", "isend"), ("recv", "irecv")
METHODS: Mapping[str, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        "all_gather": (("all_gather", "all_gather_into_tensor", "all_gather_single"),),
        "reduce_broadcast": (("reduce",), ("broadcast",)),
        "ring": (SEND, RECV),
    }
)
"""the functions of torch.distributed that each name promises: one of each group"""
_RANKS = 3
_SIZES = (1000, 7, 1)
"""of the tensors: one that can be cut, one that cannot be cut evenly, one that cannot be cut"""
_CLOSE = 1e-5
_FREE = ("barrier",)  # moves nothing


def check_average(method: str, submission: Submission) -> None:
    """Check the student's averaging: the mean on every rank, by the messages of its name?"""
    answers = on_ranks(partial(_average, method), _RANKS, submission)
    calls = [[[Call(**call) for call in one["calls"]] for one in answer] for answer in answers]
    for number, size in enumerate(_SIZES):
        aliased = any(call.aliased for of_rank in calls for call in of_rank[number])
        _check_values([answer[number] for answer in answers], size, method, aliased=aliased)
    moving = [[call for call in of_rank[0] if call.op not in _FREE] for of_rank in calls]
    _check_calls(moving, method, _SIZES[0] * 4)


def _average(method: str, rank: int, _: int, submission: Submission) -> list[Message]:
    calls = count_calls()
    function = submission.take("aggregation", f"average_by_{method}")
    answers = []
    for size in _SIZES:
        # 1, 2, 4 times the same ramp, so that every sum tells its terms
        tensor = torch.linspace(1, 2, size) * 2.0**rank
        given = function(tensor)
        returned = _factor(given) if isinstance(given, torch.Tensor) else None
        made = [asdict(call) for call in calls]
        calls.clear()
        answers.append({"value": _factor(tensor), "given": returned, "calls": made})
    return answers


def _factor(tensor: torch.Tensor) -> float | None:
    """Return the factor before the ramp; None where it is not a multiple of the ramp."""
    ramp = torch.linspace(1, 2, tensor.numel())
    flat = tensor.detach().flatten().float()
    factor = float(flat[0] / ramp[0])
    return factor if torch.allclose(flat, ramp * factor, rtol=_CLOSE, atol=_CLOSE) else None


def _check_values(answers: list[Message], size: int, method: str, *, aliased: bool) -> None:
    """Compare what each rank ended with, and name what explains it."""
    own = [2.0**rank for rank in range(_RANKS)]
    mean, total = sum(own) / _RANKS, sum(own)
    seen = [answer["value"] for answer in answers]
    if all(_is(value, mean) for value in seen):
        return
    rows = [
        [rank, f"{own[rank]:.4f}", f"{mean:.4f}", "mixed" if value is None else f"{value:.4f}"]
        for rank, value in enumerate(seen)
    ]
    picture = draw_table(["rank", "brings", "expected", "yours"], rows)
    fail = partial(Wrong, picture=picture, way=method, ranks=_RANKS, size=size, mean=mean)
    if aliased:
        raise fail("aliased-gather")
    if all(_is(value, total) for value in seen):
        raise fail("missing-division", total=total)
    if all(_is(value, mean / _RANKS) for value in seen):
        raise fail("divided-twice", seen=mean / _RANKS)
    if all(_is(value, mine) for value, mine in zip(seen, own, strict=True)):
        returned = all(_is(answer["given"], mean) for answer in answers)
        raise fail("not-in-place" if returned else "nothing-exchanged")
    if all(any(_is(value, mean * k) for k in (1, _RANKS, 1 / _RANKS)) for value in seen):
        raise fail("divided-unevenly", total=total, twice=mean / _RANKS)
    if right := [rank for rank, value in enumerate(seen) if _is(value, mean)]:
        raise fail("not-everywhere", right=", ".join(map(str, right)))
    raise fail("average-differs")


def _is(value: float | None, expected: float) -> bool:
    return value is not None and abs(value - expected) < 1e-4 * expected


def _check_calls(calls: list[list[Call]], method: str, nbytes: int) -> None:
    """Compare the calls of each rank with what the name promises."""
    groups = METHODS[method]
    promised = {op for group in groups for op in group}
    used = {call.op for of_rank in calls for call in of_rank}
    fail = partial(
        Wrong,
        picture=_traffic(calls),
        way=method,
        promised=", ".join(sorted(promised)),
        used=", ".join(sorted(used)) or "—",
        bytes=nbytes,
    )
    if used - promised or not all(used & set(group) for group in groups):
        raise fail("not-its-name")
    if method == "ring":
        _check_ring(calls, nbytes, fail)
    elif any(_bytes(of_rank, group) < 0.98 * nbytes for group in groups for of_rank in calls):
        raise fail("not-its-name")  # the tensor went another way


def _check_ring(calls: list[list[Call]], nbytes: int, fail: Callable[..., Wrong]) -> None:
    """On a ring every rank sends to one neighbour, receives from the other, and none is special."""
    steps, back = _offsets(calls, SEND), {-offset % _RANKS for offset in _offsets(calls, RECV)}
    if len(steps) != 1 or not steps <= {1, _RANKS - 1} or (back and back != steps):
        raise fail("not-its-name")
    sent = [_bytes(of_rank, SEND) for of_rank in calls]
    least, most = 2 * (_RANKS - 1) / _RANKS * nbytes, (_RANKS - 1) * nbytes
    if min(sent) < 0.98 * least or max(sent) > 1.02 * most:
        sums = ", ".join(map(str, sent))
        raise fail("ring-bytes", least=round(least), most=most, sent=sums, ranks=_RANKS)


def _bytes(calls: list[Call], ops: Sequence[str]) -> int:
    return sum(call.nbytes for call in calls if call.op in ops)


def _offsets(calls: list[list[Call]], ops: Sequence[str]) -> set[int]:
    """Return how far from each rank its peers are, around the ring; 0 where it has none."""
    found = set()
    for rank, of_rank in enumerate(calls):
        peers = {call.peer for call in of_rank if call.op in ops} or {rank}
        found |= {(peer - rank) % _RANKS for peer in peers if peer is not None}
    return found


def _traffic(calls: list[list[Call]]) -> list[str]:
    """Write what each rank called, how often, with how many bytes, and to or from whom."""
    rows = []
    for rank, of_rank in enumerate(calls):
        for op in dict.fromkeys(call.op for call in of_rank):
            same = [call for call in of_rank if call.op == op]
            peers = sorted({call.peer for call in same if call.peer is not None})
            whom = ", ".join(map(str, peers)) if op in POINT_TO_POINT or peers else "all"
            rows.append([rank, op, len(same), _bytes(same, [op]), whom])
    return draw_table(["rank", "call", "times", "bytes", "peers"], rows)
