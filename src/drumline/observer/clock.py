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

The program waits for nothing of this: the two clocks are compared (`anchor`) by an event in a
stream of the observer's own, in which nothing else is ever queued, and the end of a collective
(`end_of`) is an event in another one, which waits for it. Without a GPU a moment is what the host's
clock says.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import torch

_ANCHOR_NS = 10**9
_LOOK_S = 0.01


class Clock:
    """Moments as integers: nanoseconds of the monotonic clock, no two of them the same."""

    def __init__(self, read: Callable[[], int] = time.monotonic_ns) -> None:
        self.read = read
        self._events: dict[int, torch.Event] = {}
        self._spare: list[torch.Event] = []
        self._anchor: tuple[torch.Event, int] | None = None
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._anchored = 0
        self._captures = 0
        self._device: int | None = None
        """the one GPU that moments are noted on, where a process uses several"""
        self._lock = threading.Lock()

    def now(self) -> int:
        """Return this moment, of the host and of what is queued in the GPU's current stream."""
        moment = self.read()
        if self._queues():
            with self._lock:
                event = self._spare.pop() if self._spare else _new_event()
                event.record()
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

        Another stream waits for it, not the host: and not the stream that the program uses. The
        caching allocator keeps what the collective returns until then, even if it is freed before.
        """
        with torch.cuda.stream(self._own_stream("ends")):
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

    def capture_began(self) -> None:
        """Note that a CUDA graph is being captured: until it has ended no thread may ask a GPU."""
        with self._lock:
            self._captures += 1

    def capture_ended(self) -> None:
        """Note the end of a capture."""
        with self._lock:
            self._captures -= 1

    @contextlib.contextmanager
    def asking(self) -> Iterator[bool]:
        """Tell a thread beside the program's whether it may ask a GPU, and let no capture begin."""
        with self._lock:
            yield self._captures == 0

    def wait_until(self, moment: int, within_s: float) -> None:
        """Wait until the GPU has come to a moment, but not long: it may wait for a lost peer."""
        event = self._events.get(moment)
        deadline = time.monotonic() + within_s
        while event is not None and not event.query():
            if time.monotonic() > deadline:
                return
            time.sleep(_LOOK_S)
        if event is not None:
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
        with torch.cuda.stream(self._own_stream("anchors")):
            event = _new_event()
            event.record()
            event.synchronize()  # nothing else is in this stream
            self._anchored = self.read()
            self._anchor = event, self._anchored

    def _own_stream(self, what: str) -> torch.cuda.Stream:
        if what not in self._streams:
            self._streams[what] = torch.cuda.Stream(self._device)
        return self._streams[what]


def _new_event() -> torch.Event:
    """Make an event that keeps its time; torch.cuda.Event looks its stream up in Python."""
    return torch.Event("cuda", enable_timing=True)
