"""Lab 2: does the student's timer tell waiting from transfer, and does it wait for the end?

Two ranks time one communication whose length is known. Rank 1 arrives late; then the bytes take a
while, by a handle whose `wait` ends no earlier (a slow link):

    rank 0   ├──── wait 0.50 ────┤── transfer 0.40 ──┤
    rank 1   . . late . . . . . .├── transfer 0.40 ──┤
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from drumline.grader.pictures import draw_bars
from drumline.grader.ranks import on_ranks
from drumline.grader.submission import Submission, Wrong

_LATE_S, _TRANSFER_S = 0.5, 0.4
_OFF_S = 0.19  # what a busy machine may add or take
_TRIES = 4


class SlowLink:
    """A handle like that of `async_op=True`, of bytes that are under way for a known time."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self._end: float | None = None
        """set when the last rank has arrived, from which on bytes can travel"""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def get_future(self) -> Any:
        """Return a future that is done when the bytes are there."""

        def arrive(done: Any) -> Any:
            time.sleep(max(0.0, self._arrival() - time.monotonic()))
            return done.value()

        return self._work.get_future().then(arrive)

    def wait(self, timeout: object = None) -> bool:
        """Block until the bytes are there."""
        self._work.wait()
        time.sleep(max(0.0, self._arrival() - time.monotonic()))
        return True

    def is_completed(self) -> bool:
        """Whether they are."""
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


def _time(rank: int, _: int, submission: Submission) -> list[float]:
    time_communication = submission.take("timing", "time_communication")
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)  # connections are made by now
    dist.barrier()
    if rank == 1:
        time.sleep(_LATE_S)
    given = time_communication(lambda: SlowLink(dist.all_reduce(tensor, async_op=True)))
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
