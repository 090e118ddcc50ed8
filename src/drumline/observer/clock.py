"""The observer's clock: moments of the monotonic clock, on the host and on a GPU's own time line.

A program that computes on a GPU hands out work and runs ahead of it: what the host's clock says
when a line is executed tells nothing of when its work is done. So each moment also leaves an event
in the GPU's queue, and is looked up there once the GPU has come that far:

    host     ─ fetch ─┬─ forward ─┬─ backward ─┬─ update ─┬─ fetch ─ …      ahead
                     (1)         (1)          (1)        (1)
    GPU      ────────── forward ──┬──────── backward ─────────┬── …
                                 (2)                         (2)

    1. `now` puts an event into the current stream
    2. `resolve` tells when the GPU has reached it, by the host's clock

Nothing waits: the two clocks are compared (`anchor`) by an event in a stream of the observer's own,
in which nothing else is ever queued. Without a GPU a moment is what the host's clock says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

_ANCHOR_NS = 10**9


class Clock:
    """Moments as integers: nanoseconds of the monotonic clock, no two of them the same."""

    def __init__(self, read: Callable[[], int] = time.monotonic_ns) -> None:
        self.read = read
        self._events: dict[int, torch.Event] = {}
        self._spare: list[torch.Event] = []
        self._anchor: tuple[torch.Event, int] | None = None
        self._stream: torch.cuda.Stream | None = None
        self._anchored = 0
        self._device: int | None = None
        """the one GPU that moments are noted on, where a process uses several"""
        self._lock = threading.Lock()

    def now(self) -> int:
        """Return this moment, of the host and of what is queued in the GPU's current stream."""
        moment = self.read()
        if self._queues():
            event = self._spare.pop() if self._spare else _new_event()
            event.record()
            with self._lock:
                while moment in self._events:
                    moment += 1
                self._events[moment] = event
        return moment

    def _queues(self) -> bool:
        """Whether an event can be put into the current stream of the GPU that is noted."""
        if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
            return False
        device = torch.cuda.current_device()
        if self._device is None:
            self._device = device
        return device == self._device

    def end_of(self, future: torch.futures.Future[object]) -> int:
        """Return the moment at which a collective that a GPU makes will have ended.

        Another stream waits for it, not the host: and not the stream that the program uses.
        """
        with torch.cuda.stream(self._own_stream()):
            future.wait()
            return self.now()

    def reached(self, moment: int) -> bool:
        """Whether the GPU has come to a moment; the host always has."""
        event = self._events.get(moment)
        return event is None or (not self.capturing and event.query())

    def resolve(self, moment: int) -> int:
        """Return when a moment that was reached has been, by the host's monotonic clock."""
        event = self._events.get(moment)
        if event is None:
            return moment
        if self._anchor is None:
            self.anchor()
        assert self._anchor is not None
        origin, at = self._anchor
        since_ms: float = origin.elapsed_time(event)
        return at + round(since_ms * 1e6)

    @property
    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured: then a GPU may be asked nothing."""
        return bool(self._events) and torch.cuda.is_current_stream_capturing()

    @property
    def on_gpu(self) -> bool:
        """Whether there are moments of a GPU."""
        return bool(self._events)

    def wait_until(self, moment: int) -> None:
        """Wait until the GPU has come to a moment; the program has ended."""
        event = self._events.get(moment)
        if event is not None:
            event.synchronize()
            self._anchored = 0
            self.anchor()

    def forget(self, until: int) -> None:
        """Let go of the events before a moment; they were resolved."""
        with self._lock:
            for moment in [moment for moment in self._events if moment < until]:
                self._spare.append(self._events.pop(moment))

    def anchor(self) -> None:
        """Compare the GPU's clock with the host's, now and then: they drift apart."""
        if not self._events or self.read() - self._anchored < _ANCHOR_NS:
            return
        if self.capturing:
            return
        with torch.cuda.stream(self._own_stream()):
            event = _new_event()
            event.record()
            event.synchronize()  # nothing else is in this stream
            self._anchored = self.read()
            self._anchor = event, self._anchored

    def _own_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        return self._stream


def _new_event() -> torch.Event:
    """Make an event that keeps its time; torch.cuda.Event looks its stream up in Python."""
    return torch.Event("cuda", enable_timing=True)
