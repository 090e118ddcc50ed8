"""`Heartbeat`: whether the other ranks still live, told by beats that each leaves in the store.

RPC itself tells little: a call to a stopped process just takes long, and who waits to be called is
told nothing at all. So a thread of each rank counts up in the store, and looks how the others do:

    rank 0    beat 7   beat 8   beat 9   …         `status`, once it is set, ends it for everybody:
    rank 1    beat 7   beat 8   (stopped)              done    the leader has finished
    rank 2    beat 6   beat 7   beat 8   …             lost    some rank is gone, and which

Silence is counted in rounds of one's own, not on the clock: ranks that were all stopped and woken
together, as by Ctrl-Z, have not lost each other. The store has a connection of its own here; a rank
that waits at the store for something else beats on.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence

from torch.distributed import Store

from drumline.comm.lost_peers import LostPeerError
from drumline.core.formatting import name_ranks

_EVERY_S = 0.2
_SHUTDOWN_S = 1.0
_STATUS = "status"


class Heartbeat:
    """The beats of this rank, and what it hears of the others."""

    def __init__(self, store: Store, *, rank: int, world_size: int, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self.timeout_s = timeout_s
        self.every_s = min(_EVERY_S, timeout_s / 10)
        """how often this rank beats, and looks"""
        self.done = threading.Event()
        """set when the leader has said that all is done"""
        self._beats = {other: "" for other in range(world_size) if other != rank}
        self._silent_s = dict.fromkeys(self._beats, 0.0)
        self._rounds = 0
        self._rounds_seen, self._seen_at, self._stalled_s = 0, time.monotonic(), 0.0
        self._loss: LostPeerError | None = None
        self._announcement: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="drumline-heartbeat", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise a LostPeerError if some rank is gone, or has not been heard of for `timeout_s`."""
        self._notice_a_stalled_store()
        if self._loss is not None:
            raise self._loss

    def wait_for_loss(self, within_s: float) -> LostPeerError | None:
        """Wait until somebody is known to be missing; return the error that says so, or None."""
        deadline = time.monotonic() + within_s
        while self._loss is None and time.monotonic() < deadline:
            time.sleep(self.every_s)
            self._notice_a_stalled_store()
        return self._loss

    def announce_done(self) -> None:
        """Tell all ranks that there is nothing left to do; the leader calls this."""
        self._announcement = json.dumps({"done": True})

    def announce_lost(self, ranks: Sequence[int], message: str) -> LostPeerError:
        """Tell all ranks which are gone, unless that is known; return the error that says so."""
        if self._loss is None:
            self._loss = LostPeerError(message, backend="rpc", ranks=ranks)
            self._announcement = json.dumps({"lost": list(ranks), "message": message})
        return self._loss

    def close(self) -> None:
        """Beat no more; what is still to be said is said first, if the store answers."""
        self._closing.set()
        self._thread.join(_SHUTDOWN_S)  # over a cut link it never ends

    def _beat(self) -> None:
        try:
            last = time.monotonic()
            while not self._closing.wait(self.every_s):
                now = time.monotonic()
                self._round(self._at_most_two_rounds(now - last))
                last = now
            self._publish()
        except RuntimeError:  # the store's connection broke
            self._lose_the_store("is gone")

    def _round(self, took_s: float) -> None:
        self._store.set(f"beat/{self._rank}", str(self._rounds + 1))
        self._publish()
        if self._store.check([_STATUS]):
            self._receive(json.loads(self._store.get(_STATUS)))
        for other, before in self._beats.items():
            key = f"beat/{other}"  # `get` would wait for one that has not come yet
            now = self._store.get(key).decode() if self._store.check([key]) else ""
            self._silent_s[other] = 0.0 if now != before else self._silent_s[other] + took_s
            self._beats[other] = now
        lost = [other for other, silent_s in self._silent_s.items() if silent_s > self.timeout_s]
        if lost:
            self.announce_lost(lost, f"timed out: {name_ranks(lost)} {self._was_silent}")
        self._rounds += 1

    def _publish(self) -> None:
        if self._announcement is not None and not self._store.check([_STATUS]):
            self._store.set(_STATUS, self._announcement)
        self._announcement = None

    def _receive(self, status: dict[str, object]) -> None:
        if "done" in status:
            self.done.set()
        elif self._loss is None:
            ranks = status["lost"]
            assert isinstance(ranks, list)
            self._loss = LostPeerError(str(status["message"]), backend="rpc", ranks=ranks)

    def _notice_a_stalled_store(self) -> None:
        """See that the thread hangs: a store whose process is stopped does not answer at all."""
        now = time.monotonic()
        if self._rounds != self._rounds_seen or self._closing.is_set():
            self._stalled_s = 0.0
        else:
            self._stalled_s += self._at_most_two_rounds(now - self._seen_at)
        self._rounds_seen, self._seen_at = self._rounds, now
        if self._stalled_s > self.timeout_s:
            self._lose_the_store(self._was_silent, "timed out: ")

    def _lose_the_store(self, how: str, before: str = "") -> None:
        if self._loss is None and not self._closing.is_set():
            message = f"{before}rank 0, which serves the store where ranks meet, {how}"
            self._loss = LostPeerError(message, backend="rpc", ranks=[0])

    def _at_most_two_rounds(self, elapsed_s: float) -> float:
        """Count a pause that was much longer as this process's own: it was stopped."""
        return min(elapsed_s, 2 * self.every_s)

    @property
    def _was_silent(self) -> str:
        return f"was not heard of for {self.timeout_s:g} s; is it stopped, or its network cut?"
