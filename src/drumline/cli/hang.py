"""What `drumline run` says of a run that hangs."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console

from drumline.cli.app import print_text
from drumline.cli.commands.train import ObserveOptions
from drumline.core.errors import WorkerError
from drumline.core.rundir import EventWriter, RunDir
from drumline.core.task import OnHang
from drumline.launcher.activity import ActivityWatch, look_again, look_at_ranks
from drumline.launcher.hang import Hang, HangWatch, say_hang, say_stacks
from drumline.launcher.stacks import ask_stacks, observed_ranks


@dataclass
class HangReporter:
    """Looks for a hang while a run is followed, and answers Ctrl-\\ (SIGQUIT) with all stacks."""

    run: RunDir
    world_size: int
    options: ObserveOptions
    console: Console
    _asked: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        after_s = self.options.hang_after
        self._watched = self.options.ledger and after_s > 0
        self._activity = ActivityWatch(self.run, range(self.world_size), after_s)
        self._watch = HangWatch(after_s)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Answer SIGQUIT meanwhile."""
        before = signal.signal(signal.SIGQUIT, lambda *_: self._asked.set())
        try:
            yield
        finally:
            signal.signal(signal.SIGQUIT, before)

    def look(self) -> None:
        """Tell a hang that has begun, or the stacks that were asked for; call it again and again.

        Raises:
            WorkerError: there is a hang, and it is to end the run.
        """
        if self._asked.is_set():
            self._asked.clear()
            self._tell_stacks()
        if not self._watched:
            return
        ranks = self._activity.look()
        if self._watch.suspects(ranks):
            stacks = ask_stacks(self.run, range(self.world_size))
            hang = self._watch.find(look_again(self.run, ranks), stacks)
            if hang is not None:
                self._tell(hang)

    def _tell_stacks(self) -> None:
        ranks = observed_ranks(self.run)
        stacks = ask_stacks(self.run, ranks)
        said = say_stacks(look_at_ranks(self.run, ranks), stacks, whole=True)
        print_text(self.console, said or "there is no rank that is observed")

    def _tell(self, hang: Hang) -> None:
        with EventWriter(self.run.launcher_events) as events:
            events.write("hang", **hang.to_record())
        if self.options.on_hang is OnHang.STOP:
            said = f"{say_hang(hang)}\nthe run was ended; stacks: {self.run.logs}"
            raise WorkerError(said, rank=hang.rank)
        print_text(self.console, f"{say_hang(hang)}\nall stacks: {self.run.logs}/rank-*.stacks")
