"""Lab 4: a model in two parts behind RPC: right outputs, overlap, parameters, sizes.

The student's model gets parts of ours that take a known time for a microbatch, one at a time, and
note when. Whether part 1 computes while part 2 does is then a matter of comparing spans:

    overlaps    part 1  1111222233334444....        never    part 1  1111....2222....3333....4444
                part 2  ....1111222233334444                 part 2  ....1111....2222....3333....
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import Tensor, nn

from drumline.core.json_lines import Message
from drumline.grader.pictures import Span, draw_table, draw_time_line
from drumline.grader.ranks import fingerprint, on_rpc_leader
from drumline.grader.submission import Submission, Wrong

_RANKS = 3  # the leader, and an owner for each part
_WORKERS = ("worker1", "worker2")
_SAMPLES, _MICROBATCHES = 24, 4  # split(4) gives other pieces than chunk(4)
_PART_S = 0.08  # what a part takes for a microbatch, where time matters
_LONG_PART_S = 0.4  # at a second try
_CLOSE = 1e-5


class PriorityLock:
    """Lets threads through one at a time, of those that wait the one with the least number first.

    Calls that a leader sent one after the other run on threads, in any order; a part that took its
    first microbatch last would keep the other part waiting, and the student could do nothing.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[float] = []
        self._taken = False

    @contextlib.contextmanager
    def acquire(self, number: float) -> Iterator[None]:
        """Wait for the lock, and hold it."""
        with self._changed:
            self._waiting.append(number)
            self._changed.wait_for(lambda: not self._taken and number == min(self._waiting))
            self._waiting.remove(number)
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()


@dataclass
class Log:
    """What the part on this process has computed, and when."""

    spans: list[tuple[int, float, float]] = field(default_factory=list)
    """samples, start and end of each forward"""
    parts: list[nn.Module] = field(default_factory=list)
    lock: PriorityLock = field(default_factory=PriorityLock)


_here = Log()


class TimedPart(nn.Module):
    """A part that computes one microbatch at a time, as a device does, and notes when."""

    def __init__(self, number: int, seconds: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(number)
        self.layer = nn.Linear(*((6, 5), (5, 3))[number - 1])
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / 2
        self.seconds = seconds
        _here.parts.append(self)

    def forward(self, x: Tensor) -> Tensor:
        """Compute."""
        with _here.lock.acquire(float(x.flatten()[:1].sum())):
            start = time.monotonic()
            time.sleep(self.seconds)
            y = torch.tanh(self.layer(x))
            _here.spans.append((len(x), start, time.monotonic()))
        return y


def _take_spans() -> list[tuple[int, float, float]]:
    """Return when the student's part on this process computed; called from the leader."""
    return sorted(_here.spans, key=lambda span: span[1])


def _gradient_fingerprints(context: int) -> list[float]:
    """Return a fingerprint of each gradient of the student's part; called from the leader."""
    gradients = dist_autograd.get_gradients(context)
    return [
        fingerprint(gradients[parameter]) if parameter in gradients else 0.0
        for part in _here.parts
        for parameter in part.parameters()
    ]


def _shape_of(reference: Any) -> list[int]:
    """Return the shape of what a remote reference points at; called on its owner."""
    return list(reference.local_value().shape)


def check_outputs(submission: Submission) -> None:
    """Check the student's model in two parts: outputs and gradients as of the whole one?"""
    seen = on_rpc_leader(_outputs, _RANKS, submission)
    if seen["shape"] != seen["expected_shape"]:
        raise Wrong("output-shape", got=str(seen["shape"]), expected=str(seen["expected_shape"]))
    if seen["off"] > _CLOSE:
        order = seen["sorted_off"] < _CLOSE
        raise Wrong("outputs-out-of-order" if order else "outputs-differ", off=seen["off"])
    names = ("part 1 weight", "part 1 bias", "part 2 weight", "part 2 bias")
    found = list(zip(names, seen["expected"], seen["gradients"], strict=True))
    rows = [[name, f"{right:.4f}", f"{mine:.4f}"] for name, right, mine in found]
    picture = draw_table(["gradient of", "expected", "yours"], rows)
    if lost := [name for name, _, mine in found if mine == 0.0]:
        raise Wrong("gradients-lost", picture=picture, lost=", ".join(lost))
    off = max(abs(right - mine) for _, right, mine in found)
    if off > 1e-3:
        raise Wrong("gradients-differ", picture=picture, off=off)


def check_overlap(submission: Submission) -> None:
    """Check the student's pipeline: does part 1 compute while part 2 has the microbatch before?

    On a busy machine a message may take as long as the parts; so a second try takes longer ones.
    """
    found = _measure_overlap(submission, _PART_S)
    if found is not None and found.mistake == "never-overlaps":
        found = _measure_overlap(submission, _LONG_PART_S)
    if found is not None:
        raise found


def _measure_overlap(submission: Submission, part_s: float) -> Wrong | None:
    spans = on_rpc_leader(partial(_spans, part_s), _RANKS, submission)
    parts: list[list[Span]] = [
        [(number, start, end) for number, (_, start, end) in enumerate(part)] for part in spans
    ]
    both = sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for _, start, end in parts[0]
        for _, other_start, other_end in parts[1]
    )
    calls = [len(part) for part in parts]
    facts = {
        "microbatches": _MICROBATCHES,
        "calls": calls[0],
        "samples": max([span[0] for span in spans[0]], default=0),
        "both": both,
        "possible": (_MICROBATCHES - 1) * part_s,
        "part": part_s,
    }
    if both < part_s / 2:
        return Wrong("never-overlaps", picture=draw_time_line(parts), **facts)
    if calls != [_MICROBATCHES] * 2:
        return Wrong("microbatch-count", picture=draw_time_line(parts), **facts)
    return None


def check_parameters(submission: Submission) -> None:
    """Check that the student's leader gets an RRef to every parameter, where it lives."""
    seen = on_rpc_leader(_parameters, _RANKS, submission)
    expected = [
        [worker, list(parameter.shape)]
        for number, worker in enumerate(_WORKERS, start=1)
        for parameter in TimedPart(number, 0).parameters()
    ]
    if sorted(map(str, seen)) == sorted(map(str, expected)):
        return
    rows = [*(["expected", *one] for one in expected), *(["yours", *one] for one in seen)]
    picture = draw_table(["", "owner", "shape"], rows)
    raise Wrong("parameters-not-reached", picture=picture, expected=len(expected), seen=len(seen))


def check_sizes(submission: Submission) -> None:
    """Check the student's size report: the bytes of parameters that each worker holds?"""
    seen = on_rpc_leader(_sizes, _RANKS, submission)
    expected = {
        worker: sum(parameter.nbytes for parameter in TimedPart(number, 0).parameters())
        for number, worker in enumerate(_WORKERS, start=1)
    }
    if seen == expected:
        return
    workers = [*_WORKERS, *(worker for worker in seen if worker not in _WORKERS)]
    rows = [[worker, expected.get(worker, "—"), seen.get(worker, "—")] for worker in workers]
    picture = draw_table(["owner", "bytes expected", "yours"], rows)
    fail = partial(Wrong, picture=picture, expected=sum(expected.values()))
    if not any(seen.values()):
        raise fail("bytes-zero")
    if seen == {worker: count // 4 for worker, count in expected.items()}:
        raise fail("bytes-are-elements")
    raise fail("bytes-differ", seen=sum(seen.values()))


def _model(submission: Submission, seconds: float = 0.0) -> Any:
    build = submission.take("two_parts", "TwoPartModel")
    builders = tuple(partial(TimedPart, number, seconds) for number in (1, 2))
    return build(_WORKERS, builders, _MICROBATCHES)


def _inputs() -> Tensor:
    x = torch.randn(_SAMPLES, 6, generator=torch.Generator().manual_seed(11))
    x[:, 0] = torch.linspace(-1, 1, _SAMPLES)  # whose turn it is
    return x


def _outputs(submission: Submission) -> Message:
    whole, x = nn.Sequential(TimedPart(1, 0), TimedPart(2, 0)), _inputs()
    right = whole(x)
    weights = torch.linspace(-1, 2, right.numel()).reshape(right.shape)
    (right * weights).sum().backward()
    model = _model(submission)
    model(x[:_MICROBATCHES])  # RRefs know what they point at: a first rpc_async loses gradients
    with dist_autograd.context() as context:
        mine = model(x)
        if not isinstance(mine, Tensor):
            raise Wrong("output-shape", got=type(mine).__name__, expected=str(list(right.shape)))
        if list(mine.shape) != list(right.shape):
            return {"shape": list(mine.shape), "expected_shape": list(right.shape)}
        if mine.requires_grad:
            dist_autograd.backward(context, [(mine * weights).sum()])
        parts = [rpc.rpc_sync(to, _gradient_fingerprints, args=(context,)) for to in _WORKERS]
    ordered = [rows.detach().sort(dim=0).values for rows in (mine, right)]
    return {
        "shape": list(mine.shape),
        "expected_shape": list(right.shape),
        "off": float((mine - right).abs().max()),
        "sorted_off": float((ordered[0] - ordered[1]).abs().max()),
        "gradients": [*parts[0], *parts[1]],
        "expected": [fingerprint(p.grad) for p in whole.parameters() if p.grad is not None],
    }


def _spans(part_s: float, submission: Submission) -> list[Any]:
    model = _model(submission, part_s)
    with dist_autograd.context():
        model(_inputs())
    return [rpc.rpc_sync(worker, _take_spans) for worker in _WORKERS]


def _parameters(submission: Submission) -> list[Any]:
    found = list(_model(submission).parameter_rrefs())
    if not all(hasattr(reference, "owner") for reference in found):  # RRefs have several types
        kinds = ", ".join(sorted({type(reference).__name__ for reference in found}))
        raise Wrong("not-references", kinds=kinds)
    return [
        [owner.name, rpc.rpc_sync(owner, _shape_of, args=(reference,))]
        for reference in found
        for owner in [reference.owner()]
    ]


def _sizes(submission: Submission) -> dict[str, int]:
    report = _model(submission).size_report()
    try:
        return {str(worker): int(count) for worker, count in report.items()}
    except (AttributeError, TypeError, ValueError):
        raise Wrong("size-report", got=repr(report)[:100]) from None
