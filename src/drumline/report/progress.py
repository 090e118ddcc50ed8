"""How far a run has come, from its event logs as they grow. What the displays draw."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from drumline.core.rundir import Event, EventTail, RunDir
from drumline.report.ledger.accounts import Ledger, compute_ledger
from drumline.report.ledger.straggler import StragglerWatch

_WINDOW = 50  # steps that rates and bars are taken over


@dataclass
class RankProgress:
    """One rank, as its log tells."""

    rank: int
    step: int = 0
    loss: float | None = None
    recent: deque[Event] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    clock: list[Event] = field(default_factory=list)
    """how far this rank's clock is ahead, where ranks are on several machines"""

    @property
    def samples_per_s(self) -> float:
        """This rank's own samples per second, over the recent steps."""
        spent = sum(event["total"] for event in self.recent)
        return sum(event.get("samples", 0) for event in self.recent) * 1e9 / spent if spent else 0.0

    def take(self, event: Event) -> None:
        """Follow one event of this rank's log."""
        if event["event"] == "step":
            self.step, self.loss = event["step"], event.get("loss")
            self.recent.append(event)
        elif event["event"] == "start":
            self.recent.clear()
            self.clock.clear()
        elif event["event"] == "clock":
            self.clock.append(event)
        elif event["event"] == "restore":
            self.step = event["step"]


class RunProgress:
    """All ranks of a run, followed through their logs."""

    def __init__(self, run: RunDir, world_size: int, *, nodes: int = 1) -> None:
        self.nodes = nodes
        self._tails = [EventTail(run.rank_events(rank)) for rank in range(world_size)]
        self.ranks = [RankProgress(rank) for rank in range(world_size)]
        self._watch = StragglerWatch(world_size)
        self.total_steps: int | None = None
        self.started = time.monotonic()

    @property
    def share(self) -> float:
        """How much of the run is done."""
        return self.step / self.total_steps if self.total_steps else 0.0

    @property
    def now(self) -> str:
        """Where the run is, in words."""
        if self.total_steps is None:
            return "starting ranks"
        return f"step {self.step} of {self.total_steps}"

    @property
    def step(self) -> int:
        """The step that all ranks have finished."""
        return min(rank.step for rank in self.ranks)

    @property
    def eta_s(self) -> float | None:
        """Seconds that the steps left will take at the recent pace."""
        recent = self.ranks[0].recent
        if self.total_steps is None or not recent:
            return None
        pace = float(sum(event["total"] for event in recent)) / len(recent) / 1e9
        return (self.total_steps - self.step) * pace

    @property
    def samples_per_s(self) -> float:
        """Samples per second of all ranks together."""
        return sum(rank.samples_per_s for rank in self.ranks)

    def skip_to_now(self) -> None:
        """Pass over what an earlier session of this run has logged."""
        for tail in self._tails:
            deque(tail.new_events(), maxlen=0)

    def update(self) -> list[Event | str]:
        """Read what is new; returns epochs that have ended and notes, in the order of the logs."""
        news: list[Event | str] = []
        for rank, tail in zip(self.ranks, self._tails, strict=True):
            for event in tail.new_events():
                rank.take(event)
                self._watch.take(rank.rank, event)
                if event["event"] == "epoch":
                    news.append(event)
                elif event["event"] == "ready":
                    self.total_steps = event["total_steps"]
                if rank.rank == 0 and (note := _note(event)):
                    news.append(note)
        return news

    def name_straggler(self) -> str | None:
        """Say which rank cost the most time in the last minute, if one stands out; call often."""
        return self._watch.look(time.monotonic())

    def ledger(self) -> Ledger:
        """Account for the recent steps."""
        return compute_ledger([[*rank.clock, *rank.recent] for rank in self.ranks])


def _note(event: Event) -> str | None:
    match event["event"]:
        case "start" if event["attempt"] > 0:
            return f"a worker died; the group starts again (restart {event['attempt']})"
        case "restore":
            return f"going on from the checkpoint of step {event['step']}"
        case "backend" if event["backend"] != event["wanted"]:
            return f"backend {event['backend']}: {event['why']}"
        case "ready" if event.get("cuts"):
            return "layers: " + " │ ".join(", ".join(layers) for layers in event["cuts"])
        case "note":
            return str(event["text"])
        case "damaged":
            return f"passing over a damaged checkpoint: {event['path']}: {event['why']}"
    return None
