"""What `drumline run` says of a run that hangs, and `drumline stacks`: where each rank is."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console

from drumline.cli.app import print_json, print_text
from drumline.cli.commands.train import ObserveOptions
from drumline.core.errors import UsageError, WorkerError
from drumline.core.rundir import EventWriter, RunDir
from drumline.core.status import read_status
from drumline.launcher.hang import Hang, HangWatch, say_hang
from drumline.launcher.runs import RUNS
from drumline.launcher.stacks import Stacks, ask_stacks

_NO_SIGN = "there is no sign of a rank that is observed"


@dataclass
class HangReporter:
    """Looks for a hang while a run is followed, and answers Ctrl-\\ (SIGQUIT) with all stacks."""

    run: RunDir
    world_size: int
    options: ObserveOptions
    console: Console
    _asked: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if self.options.on_hang not in ("report", "stop"):
            raise UsageError(f"--on-hang {self.options.on_hang}: write report or stop")
        watched = self.options.ledger and self.options.hang_after > 0
        after_s = self.options.hang_after
        self._watch = HangWatch(self.run, self.world_size, after_s) if watched else None

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
            for rank, stacks in ask_stacks(self.run, range(self.world_size)).items():
                print_text(self.console, f"rank {rank}:\n{stacks.text or stacks.silent}")
        hang = self._watch.look() if self._watch else None
        if hang is not None:
            self._tell(hang)

    def _tell(self, hang: Hang) -> None:
        with EventWriter(self.run.launcher_events) as events:
            events.write("hang", **hang.to_record())
        if self.options.on_hang == "stop":
            raise WorkerError(f"{say_hang(hang)}\nthe run was ended; stacks: {self.run.logs}")
        print_text(self.console, f"{say_hang(hang)}\nall stacks: {self.run.logs}/rank-*.stacks")


def stacks_command(name: str, *, whole: bool, as_json: bool) -> None:
    """Run `drumline stacks`: tell where each rank of a run on this machine is."""
    run = RunDir.open(name, root=RUNS)
    ranks = sorted(int(path.stem.partition("-")[2]) for path in run.events.glob("rank-*.status"))
    if not ranks:
        raise UsageError(
            f"{run.path.name}: {_NO_SIGN} on this machine; start the script with drumline run, and "
            f"without --no-ledger"
        )
    found = ask_stacks(run, ranks)
    if as_json:
        print_json([_plain(run, rank, stacks) for rank, stacks in sorted(found.items())])
        return
    console = Console()
    for rank, stacks in sorted(found.items()):
        print_text(console, f"{_doing(run, rank)}: {stacks.silent or stacks.place}")
        shown = (
            stacks.text.rstrip() if whole else "\n".join(f"    {frame}" for frame in stacks.main)
        )
        if shown:
            print_text(console, shown)


def _doing(run: RunDir, rank: int) -> str:
    """Say which step a rank is in, and what it waits for."""
    status = read_status(run.rank_status(rank), rank)
    if status is None:
        return f"rank {rank}"
    waits = "".join(f", in {call.op} #{call.seq}" for call in status.waits_in[:1])
    return f"rank {rank}, after step {status.step}{waits}"


def _plain(run: RunDir, rank: int, stacks: Stacks) -> dict[str, object]:
    frames = [{"file": f.path, "line": f.line, "function": f.function} for f in stacks.main]
    return {"rank": rank, "silent": stacks.silent, "doing": _doing(run, rank), "main": frames}
