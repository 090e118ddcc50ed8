"""Lab 2: averaging by messages that the function's name promises, and a timer of one collective.

Three ranks average tensors whose values tell who had them. Then the calls that were counted are
compared with what the name promises: which functions, how many bytes, to and from whom.

Two ranks time one communication whose length is known: does the timer tell waiting from transfer,
and does it wait for the end? Rank 1 arrives late; then the bytes take a while, by a handle whose
`wait` ends no earlier (a slow link):

    rank 0   ├──── wait 0.50 ────┤── transfer 0.40 ──┤
    rank 1   . . late . . . . . .├── transfer 0.40 ──┤
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from drumline.core.json_lines import Message
from drumline.grader.pictures import draw_bars, draw_table
from drumline.grader.ranks import POINT_TO_POINT, Call, count_calls, on_ranks
from drumline.grader.submission import Submission, Wrong

SEND, RECV = ("send", "isend"), ("recv", "irecv")
METHODS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "all_gather": (("all_gather", "all_gather_into_tensor", "all_gather_single"),),
    "reduce_broadcast": (("reduce",), ("broadcast",)),
    "ring": (SEND, RECV),
}
"""the functions of torch.distributed that each name promises: one of each group"""
_RANKS = 3
_SIZES = (1000, 7, 1)
"""of the tensors: one that can be cut, one that cannot be cut evenly, one that cannot be cut"""
_CLOSE = 1e-5
_FREE = ("barrier",)  # moves nothing
_LATE_S, _TRANSFER_S = 0.5, 0.4
_OFF_S = 0.19  # what a busy machine may add or take
_TRIES = 4


def check_average(method: str, submission: Submission) -> None:
    """Check the student's averaging: the mean on every rank, by the messages of its name?"""
    answers = on_ranks(partial(_average, method), _RANKS, submission)
    calls = [[[Call(**call) for call in one["calls"]] for one in answer] for answer in answers]
    for number, size in enumerate(_SIZES):
        aliased = any(call.aliased for of_rank in calls for call in of_rank[number])
        _check_values([answer[number] for answer in answers], size, method, aliased=aliased)
    moving = [[call for call in of_rank[0] if call.op not in _FREE] for of_rank in calls]
    _check_calls(moving, method, _SIZES[0] * 4)


def _average(method: str, rank: int, submission: Submission) -> list[Message]:
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


class _SlowLink:
    """A handle like that of `async_op=True`, of bytes that are under way for a known time."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._end: float | None = None
        """set when the last rank has arrived, from which on bytes can travel"""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def get_future(self) -> Any:
        def arrive(done: Any) -> Any:
            time.sleep(max(0.0, self._arrival() - time.monotonic()))
            return done.value()

        return self._work.get_future().then(arrive)

    def wait(self, timeout: object = None) -> bool:
        self._work.wait()
        time.sleep(max(0.0, self._arrival() - time.monotonic()))
        return True

    def is_completed(self) -> bool:
        return bool(self._work.is_completed()) and time.monotonic() >= self._arrival()

    def _arrival(self) -> float:
        if self._end is None:
            self._end = time.monotonic() + _TRANSFER_S
        return self._end


def check_timer(submission: Submission) -> None:
    """Check the student's timer: does it give wait and transfer as they are?

    A busy machine may add to any time, so what is wrong must be so twice in a row.
    """
    found: list[Wrong] = []
    while len(found) < _TRIES:
        seen = _judge(on_ranks(_time, 2, submission))
        if seen is None:
            return
        found.append(seen)
        if [each.mistake for each in found[-2:]] == [seen.mistake] * 2:
            break
    raise found[-1]


def _time(rank: int, submission: Submission) -> list[float]:
    time_communication = submission.take("timing", "time_communication")
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)  # connections are made by now
    dist.barrier()
    if rank == 1:
        time.sleep(_LATE_S)
    given = time_communication(lambda: _SlowLink(dist.all_reduce(tensor, async_op=True)))
    try:
        wait_s, transfer_s = map(float, given)
    except (TypeError, ValueError):
        raise Wrong("timer-result", given=repr(given)[:100]) from None
    return [wait_s, transfer_s]


def _judge(answers: list[list[float]]) -> Wrong | None:
    (wait, transfer), (late_wait, late_transfer) = answers
    picture = draw_bars(
        [
            ("rank 0 expected", [("wait", _LATE_S), ("transfer", _TRANSFER_S)]),
            ("rank 0 yours", [("wait", wait), ("transfer", transfer)]),
            ("rank 1 expected", [("wait", 0.0), ("transfer", _TRANSFER_S)]),
            ("rank 1 yours", [("wait", late_wait), ("transfer", late_transfer)]),
        ]
    )
    fail = partial(
        Wrong,
        picture=picture,
        late=_LATE_S,
        length=_TRANSFER_S,
        wait=wait,
        transfer=transfer,
        late_transfer=late_transfer,
    )
    longest = max(transfer, late_transfer)
    ends = (abs(late_wait - _TRANSFER_S), abs(late_transfer), abs(transfer - _LATE_S))
    if max(ends) < _OFF_S:  # rank 1 has waited for nobody
        return fail("timing-swapped", late_wait=late_wait)
    mistakes = (
        ("timing-not-synchronised", late_transfer < _TRANSFER_S - _OFF_S),
        ("timing-differs", longest > 2 * (_TRANSFER_S + _LATE_S)),  # than anything here can take
        ("timing-wait-inside", transfer > _TRANSFER_S + _LATE_S - _OFF_S),
        ("timing-not-synchronised", transfer < _TRANSFER_S - _OFF_S),
        ("timing-wait-missing", abs(wait - _LATE_S) > _OFF_S or abs(late_wait) > _OFF_S),
        ("timing-differs", longest > _TRANSFER_S + _OFF_S),
    )
    return next((fail(mistake) for mistake, made in mistakes if made), None)
