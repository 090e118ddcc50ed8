"""Lab 2: is what comes out the mean, and did it come about as the function's name says?

Three ranks average tensors whose values tell who had them. Then the calls that were counted are
compared with what the name promises: which functions, how many bytes, to and from whom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from drumline.grader.counting import POINT_TO_POINT, count_calls
from drumline.grader.outcome import Wrong
from drumline.grader.pictures import table
from drumline.grader.ranks import on_ranks
from drumline.grader.submission import Submission

WAYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all_gather": ("all_gather|all_gather_into_tensor|all_gather_single",),
        "reduce_broadcast": ("reduce", "broadcast"),
        "ring": ("send|isend", "recv|irecv"),
    }
)
"""the functions of torch.distributed that each name promises; | where either will do"""
_RANKS = 3
_SIZES = (1000, 7, 1)
"""of the tensors: one that can be cut, one that cannot be cut evenly, one that cannot be cut"""
_CLOSE = 1e-5
_FREE = ("barrier",)  # moves nothing


def average(way: str, submission: Submission) -> None:
    """Does a way of averaging give the mean on every rank, by the messages of its name?"""
    answers = on_ranks(partial(_average, way), _RANKS, submission)
    for number, size in enumerate(_SIZES):
        _check_values([answer[number] for answer in answers], size, way)
    first = [answer[0] for answer in answers]
    _check_calls([answer["calls"] for answer in first], way, _SIZES[0] * 4)


def _average(way: str, rank: int, _: int, submission: Submission) -> list[dict[str, Any]]:
    calls = count_calls()
    function = submission.take("aggregation", f"average_by_{way}")
    answers = []
    for size in _SIZES:
        tensor = _own(rank, size)
        given = function(tensor)
        answers.append(
            {
                "value": _level(tensor),
                "given": _level(given) if isinstance(given, torch.Tensor) else None,
                "calls": calls.take(),
            }
        )
    return answers


def _own(rank: int, size: int) -> torch.Tensor:
    """What a rank brings: 1, 2, 4 times the same ramp, so that every sum tells its terms."""
    return torch.linspace(1, 2, size) * 2.0**rank


def _level(tensor: torch.Tensor) -> float | None:
    """Return the factor before the ramp; None where it is not a multiple of the ramp."""
    ramp = torch.linspace(1, 2, tensor.numel())
    flat = tensor.detach().flatten().float()
    level = float(flat[0] / ramp[0])
    return level if torch.allclose(flat, ramp * level, rtol=_CLOSE, atol=_CLOSE) else None


def _check_values(answers: list[dict[str, Any]], size: int, way: str) -> None:
    """Compare what each rank ended with, and name what explains it."""
    own = [2.0**rank for rank in range(_RANKS)]
    mean, total = sum(own) / _RANKS, sum(own)
    seen = [answer["value"] for answer in answers]
    if all(_is(value, mean) for value in seen):
        return
    aliased = any(call["aliased"] for answer in answers for call in answer["calls"])
    rows = [
        [rank, f"{own[rank]:.4f}", f"{mean:.4f}", "mixed" if value is None else f"{value:.4f}"]
        for rank, value in enumerate(seen)
    ]
    picture = table(["rank", "brings", "expected", "yours"], rows)
    fail = partial(Wrong, picture=picture, way=way, ranks=_RANKS, size=size, mean=mean)
    if aliased:
        raise fail("aliased-gather")
    if all(_is(value, total) for value in seen):
        raise fail("missing-division", total=total)
    if all(_is(value, mean / _RANKS) for value in seen):
        raise fail("divided-twice", seen=mean / _RANKS)
    if all(_is(value, mine) for value, mine in zip(seen, own, strict=True)):
        given = [answer["given"] for answer in answers]
        in_place = not all(_is(value, mean) for value in given)
        raise fail("nothing-exchanged" if in_place else "not-in-place")
    if all(any(_is(value, mean * k) for k in (1, _RANKS, 1 / _RANKS)) for value in seen):
        raise fail("divided-unevenly", total=total, twice=mean / _RANKS)
    if any(_is(value, mean) for value in seen):
        right = [rank for rank, value in enumerate(seen) if _is(value, mean)]
        raise fail("not-everywhere", right=", ".join(map(str, right)))
    raise fail("average-differs")


def _is(value: float | None, expected: float) -> bool:
    return value is not None and abs(value - expected) < 1e-4 * expected


def _check_calls(calls: list[list[dict[str, Any]]], way: str, nbytes: int) -> None:
    """Compare the calls of each rank with what the name promises."""
    moving = [[call for call in of_rank if call["op"] not in _FREE] for of_rank in calls]
    promised = {op for choice in WAYS[way] for op in choice.split("|")}
    used = {call["op"] for of_rank in moving for call in of_rank}
    fail = partial(
        Wrong,
        picture=_traffic(moving),
        way=way,
        promised=", ".join(sorted(promised)),
        used=", ".join(sorted(used)) or "—",
        bytes=nbytes,
    )
    missing = [choice for choice in WAYS[way] if not used & set(choice.split("|"))]
    if missing or used - promised:
        raise fail("not-its-name")
    if way == "ring":
        _check_ring(moving, nbytes, fail)
        return
    for choice in WAYS[way]:
        for of_rank in moving:
            if _bytes(of_rank, choice.split("|")) < 0.98 * nbytes:  # the tensor went another way
                raise fail("not-its-name")


def _check_ring(
    moving: list[list[dict[str, Any]]], nbytes: int, fail: Callable[..., Wrong]
) -> None:
    """On a ring every rank sends to one neighbour, receives from the other, and none is special."""
    targets = [_peers(of_rank, ("send", "isend")) for of_rank in moving]
    sources = [_peers(of_rank, ("recv", "irecv")) for of_rank in moving]
    turn = {1, _RANKS - 1}
    steps = {
        (peer - rank) % _RANKS for rank, peers in enumerate(targets) for peer in peers or {rank}
    }
    back = {
        (rank - peer) % _RANKS
        for rank, peers in enumerate(sources)
        for peer in peers or {rank}
        if peer is not None
    }
    if len(steps) != 1 or not steps <= turn or (back and back != steps):
        raise fail("not-its-name")
    sent = [_bytes(of_rank, ("send", "isend")) for of_rank in moving]
    least, most = 2 * (_RANKS - 1) / _RANKS * nbytes, (_RANKS - 1) * nbytes
    if min(sent) < 0.98 * least or max(sent) > 1.02 * most:
        sums = ", ".join(map(str, sent))
        raise fail("ring-bytes", least=round(least), most=most, sent=sums, ranks=_RANKS)


def _bytes(calls: list[dict[str, Any]], ops: Sequence[str]) -> int:
    return sum(call["nbytes"] for call in calls if call["op"] in ops)


def _peers(calls: list[dict[str, Any]], ops: tuple[str, ...]) -> set[Any]:
    return {call["peer"] for call in calls if call["op"] in ops}


def _traffic(calls: list[list[dict[str, Any]]]) -> list[str]:
    """Write what each rank called, how often, with how many bytes, and to or from whom."""
    rows = []
    for rank, of_rank in enumerate(calls):
        for op in dict.fromkeys(call["op"] for call in of_rank):
            same = [call for call in of_rank if call["op"] == op]
            peers = sorted({call["peer"] for call in same if call["peer"] is not None})
            whom = ", ".join(map(str, peers)) if op in POINT_TO_POINT or peers else "all"
            rows.append([rank, op, len(same), sum(call["nbytes"] for call in same), whom])
    return table(["rank", "call", "times", "bytes", "peers"], rows)
