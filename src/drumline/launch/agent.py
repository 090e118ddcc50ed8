"""`Agent`: a process that starts ranks on one node, and is given one task after the other.

    launcher ──(1) a task, one JSON line──▶ standard input of the agent
             ◀─(2) a line──────────────── a pipe of its own: all ranks of the task ended well
             ──(3) the next task, or the end of input

Its worker server has imported torch, which takes longer than many a run: the ranks of the next task
are forked from it, too. An agent whose task has failed ends, and its exit code tells so: nothing of
a failure can reach the next run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from drumline.core.task import AgentTask
from drumline.launch.session import Session


class Agent(Session):
    """One agent, its worker server and its ranks."""

    def __init__(
        self, preload: tuple[str, ...], environment: Mapping[str, str], enter: tuple[str, ...] = ()
    ) -> None:
        """Start it, without a task.

        Args:
            preload: what its worker server imports.
            environment: all of its variables.
            enter: what to put before its command, to start it on a simulated node.
        """
        self._traits = _traits(preload, environment)
        reports, theirs = os.pipe()
        os.set_blocking(reports, False)
        self._reports = open(reports, "rb", buffering=0)  # noqa: SIM115  closed in close
        self._done = False
        agent = [sys.executable, "-m", "drumline.agent", str(os.getpid()), ",".join(preload)]
        try:
            super().__init__([*enter, *agent, str(theirs)], environment, hand_down=(theirs,))
        finally:
            os.close(theirs)

    @property
    def exit_code(self) -> int | None:
        """How its task has ended: None while it goes on, 0 when it waits for the next one."""
        code = super().exit_code  # before we look for a report: it may come, and then the end
        if not self._reports.closed and self._reports.read(16):  # (2)
            self._done = True
        return 0 if self._done else code

    def give(self, task: AgentTask) -> None:
        """Give it a task; it has none, or has done that well."""
        self._done = False
        self.tell(task.dump() + "\n")  # (1)

    def would_be(self, preload: tuple[str, ...], environment: Mapping[str, str]) -> bool:
        """Whether it lives, and one that is started here and now with these would be the same."""
        return super().exit_code is None and self._traits == _traits(preload, environment)

    def close(self) -> None:
        """Let go of what it has printed and reported; it has ended."""
        self._done = self.exit_code == 0
        self._reports.close()
        super().close()


def _traits(preload: tuple[str, ...], environment: Mapping[str, str]) -> tuple[object, ...]:
    """Return all that an agent, and so its ranks, inherit where they are started."""
    here = os.stat(".")
    return preload, dict(environment), here.st_dev, here.st_ino
