"""What happened on this rank, put together into the steps of a program that marks none.

Hooks note what they see, each with its times: batches fetched, backwards, optimizer steps, and the
calls of torch.distributed. From these follow the steps, and no line of the program says so:

    │ data │ forward │ backward … blocked │ update │ logging … │ data │ forward …
    start  ▲         ▲                             ▲
           a batch   backward begins               the last optimizer step: the step ends

- A step ends with an optimizer's step. Where there are several optimizers, it ends with the last
  one before any of them steps again. So a step is known to have ended when the next one updates.
- It begins where the one before ended; but where more than one batch was fetched since then and
  before the first backward, only the last of them was trained on (an evaluation lies between): the
  step begins with this batch, and the stretch before it is written as one of its own.
- A program that says where its steps end (`drumline.mark_step()`) is believed.
- Without any of these there are no steps: what was communicated is written about once a second.

Everything is noted in nanoseconds of the monotonic clock. Nothing here may fail the program.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque

import torch.distributed as dist

from drumline.core.rundir import EventKind, EventWriter
from drumline.core.status import Phase, StatusWriter
from drumline.observer.clock import Clock
from drumline.observer.steps import (
    Call,
    Fetch,
    Notes,
    Stretch,
    account_calls,
    account_step,
    start_of_step,
)

_STRETCH_NS = 10**9
_IDLE_NS = 10 * 10**9
_WARM = 8
_MAX_OVER = 64
_CLOSE_S = 1.0
"""how long the end of a program may wait for its GPU"""
_MESSAGES = ("send", "recv")


class Recorder:
    """Collect notes from any thread of this rank, and write steps to its event log."""

    def __init__(
        self, events: EventWriter, status: StatusWriter, clock: Clock | None = None
    ) -> None:
        self.clock = clock or Clock()
        self.status = status
        self._events = events
        self._lock = threading.RLock()
        self._notes = Notes()
        self._over: deque[Stretch] = deque()
        """not written yet: of calls, some end later"""
        self._queued: deque[Call] = deque()
        """on a GPU, and not seen to have ended"""
        self._awaitable: weakref.WeakKeyDictionary[dist.Work, Call] = weakref.WeakKeyDictionary()
        self._returning = threading.local()
        """a message's handle, until the thread that sends or receives it makes another call"""
        self._counts: dict[str, int] = {}
        self._groups: dict[str, int] = {}
        self._since = self.clock.now()
        self._stepped: set[int] = set()
        self._marked = False
        self._in_backward = 0
        self._usual = 0
        self.steps = 0

    # --- what the program does -----------------------------------------------------------------

    def fetch_began(self) -> int:
        """Note that a batch is asked for."""
        now = self.clock.now()
        self.status.beat(now, Phase.DATA)
        return now

    def fetch_ended(self, began: int, samples: int | None) -> None:
        """Note that a batch is here, or that there is none left (None)."""
        now = self.clock.now()
        with self._lock:
            self._notes.fetches.append(Fetch(began=began, ended=now, samples=samples))
        self.status.beat(now, Phase.OTHER)

    def backward_began(self) -> int:
        """Note that a backward begins; it may lie within another one."""
        now = self.clock.now()
        self._in_backward += 1
        self.status.beat(now, Phase.BACKWARD)
        return now

    def backward_ended(self, began: int) -> None:
        """Note that a backward has ended."""
        now = self.clock.now()
        self._in_backward -= 1
        if self._in_backward == 0:
            with self._lock:
                self._notes.backwards.append((began, now))
            self.status.beat(now, Phase.OTHER)

    def update_began(self, optimizer: int) -> int:
        """Note that an optimizer steps; where it has already, a step has ended before."""
        now = self.clock.now()
        if optimizer in self._stepped:
            self._stepped.clear()
            if not self._marked:
                self._end_step(self._notes.updates[-1][1])
        self.status.beat(now, Phase.OPTIMIZER)
        return now

    def update_ended(self, optimizer: int, began: int) -> None:
        """Note that an optimizer has stepped."""
        now = self.clock.now()
        self._stepped.add(optimizer)
        with self._lock:
            self._notes.updates.append((began, now))
        self.status.beat(now, Phase.OTHER)

    def mark_step(self) -> None:
        """Note that a step ends here: the program says so, and knows better than its optimizers."""
        self._marked = True
        self._end_step(self.clock.now())

    # --- what it communicates ------------------------------------------------------------------

    def call_began(self, op: str, nbytes: int, group: str, ranks: tuple[int, ...]) -> Call:
        """Note that a collective or message begins."""
        self._returning.work = None
        with self._lock:
            self._look_at_queued()
            now = self.clock.now()
            if not self._groups and self._notes.is_empty:
                self._since = now  # what came before is the program's start
            number = self._groups.get(group)
            if number is None:
                members = ranks or range(dist.get_world_size())
                number = self._groups[group] = self.status.add_group(group, members)
            seq = self._counts[group] = self._counts.get(group, 0) + 1
            in_backward = self._in_backward > 0
            if self.clock.on_gpu:
                self._end_idle_stretch(now)
            entry = self.status.call_began(number, seq, op, nbytes, now, in_backward=in_backward)
            call = Call(
                op=op,
                nbytes=nbytes,
                group=group,
                ranks=ranks,
                seq=seq,
                arrived=now,
                number=entry,
                in_backward=in_backward,
            )
            self._notes.calls.append(call)
        return call

    def call_goes_on(self, call: Call, work: dist.Work) -> None:
        """Note what a call has returned, for whoever waits for it.

        A message that nobody waits for has ended when the program lets go of it, and is not kept.
        """
        self._awaitable[work] = call
        if call.op in _MESSAGES:
            self._returning.work = work  # or else the program would get another object for it
            weakref.finalize(work, self.call_ended, call).atexit = False
        else:
            call.work = work

    def call_queued(self, call: Call, ended: int) -> None:
        """Note at which moment a GPU will have ended a call."""
        call.ended = ended
        self._queued.append(call)

    def call_ended(self, call: Call, moment: int | None = None) -> None:
        """Note that a collective or message has ended, unless that is known already."""
        if not call.ended:
            call.ended = self.clock.now() if moment is None else moment
            self.status.call_ended(call.number, call.ended)
        if not call.on_gpu:
            call.work = None

    def _look_at_queued(self) -> None:
        """Note which of the calls that were queued on a GPU have ended."""
        while self._queued and self.clock.reached(self._queued[0].ended):
            call = self._queued.popleft()
            self.status.call_ended(call.number, call.ended)
            call.work = None

    def waited(self, work: dist.Work, began: int) -> None:
        """Note that the program has waited for what a call returned, since a moment."""
        call = self._awaitable.pop(work, None)
        if call is None:
            return
        call.awaited = True
        if call.op == "recv" and not call.ended:
            call.arrived = max(call.arrived, began)
        self.call_ended(call)
        self.blocked_since(began)

    def blocked_since(self, began: int) -> None:
        """Note that this thread did nothing but wait from a moment until now."""
        if _is_main_work():
            with self._lock:
                self._notes.blocked.append((began, self.clock.now()))

    # --- what is written -----------------------------------------------------------------------

    def write(self, event: EventKind, **fields: object) -> None:
        """Write an event of another kind."""
        with self._lock:
            self._events.write(event, **fields)

    def _end_step(self, until: int) -> None:
        with self._lock:
            notes, since, self._since = self._notes.cut(until), self._since, until
            start = start_of_step(notes, since)
            if start > since:
                self._over.append(Stretch(notes=notes.cut(start), since=since, until=start))
            self.steps += 1
            self._over.append(Stretch(notes=notes, since=start, until=until, step=self.steps))
            took = until - start
            self._usual = (
                took if self.steps < _WARM else self._usual + (took - self._usual) // _WARM
            )
            self.status.stepped(self.steps, self._usual, self.clock.read())
            self._look_at_queued()
            self.clock.anchor()
            self._write()

    def _write(self, *, all_of_it: bool = False) -> None:
        """Write what is over, in order, as far as all of it is known."""
        over, clock = self._over, self.clock
        if clock.capturing:
            return
        while over and clock.reached(over[0].until):
            if not (all_of_it or over[0].is_known(clock.reached) or len(over) > _MAX_OVER):
                break
            known = over.popleft()
            calls = known.notes.calls
            known.notes.calls = [call for call in calls if call.ended and clock.reached(call.ended)]
            if clock.on_gpu:
                known = known.resolved(clock.resolve)
                clock.forget(until=over[0].since if over else self._since)
            if known.step is not None:
                self._events.write("step", step=known.step, **account_step(known))
            elif known.notes.calls:
                self._events.write("collectives", **account_calls(known))

    def flush(self) -> None:
        """Write out what can be read already; about once a second, from another thread."""
        with self._lock:
            now = self.clock.read()
            if self.clock.on_gpu:  # its moments are written by the program's own thread
                with self.clock.asking() as may:
                    if may:
                        self._look_at_queued()
            else:
                self._end_idle_stretch(now)
                self._write()
            self._events.flush()

    def _end_idle_stretch(self, now: int) -> None:
        """End what lies outside of steps, now and then: here, or before the call that goes on.

        Without steps, what is computed before a call counts with it.
        """
        notes = self._notes
        if now - self._since <= (_IDLE_NS if self.steps else _STRETCH_NS):
            return
        within = bool(notes.calls and not notes.calls[-1].ended)
        over = len(notes.calls) > within or (self.steps and not within)
        if over and not (notes.updates or notes.backwards or notes.fetches):
            self._end_stretch(notes.calls[-1].arrived if within else now)
            self._write()

    def _end_stretch(self, until: int) -> None:
        self._over.append(Stretch(notes=self._notes.cut(until), since=self._since, until=until))
        self._since = until

    def close(self) -> None:
        """Write out all that is known; the program has ended."""
        with self._lock:
            if self._notes.updates and not self._marked:
                self._end_step(self._notes.updates[-1][1])
            now = self.clock.now()
            self._end_stretch(now)
            for call in (call for stretch in self._over for call in stretch.notes.calls):
                if call.work is not None and call.op not in _MESSAGES and call.work.is_completed():
                    self.call_ended(call)
            self.clock.wait_until(now, within_s=_CLOSE_S)
            self._write(all_of_it=True)
            self._events.flush()
            self.status.beat(now, Phase.ENDED)


def _is_main_work() -> bool:
    """Whether this thread does the program's work: its main one, or one of autograd's.

    Threads that Python has started may wait as long as they like; autograd's are not known to it.
    """
    ident = threading.get_ident()
    if ident == threading.main_thread().ident:
        return True
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return thread is None or isinstance(thread, threading._DummyThread)
