"""`Charge`: a job in the hands of the process that will run it, with the locks that go with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from drumline.node.crew import USUAL, Crew
from drumline.node.edition import hold_edition
from drumline.node.follow import Follower
from drumline.node.job import JobFolder
from drumline.node.lead import Leader
from drumline.node.runner import Runner
from drumline.node.turns import Ticket


@dataclass(frozen=True, kw_only=True)
class Charge:
    """All that is needed to run a job on this node."""

    folder: JobFolder
    hold: int
    """the lock of the job's folder; whoever has this descriptor runs the job"""
    first: bool = True
    """whether no other job comes before it"""
    ticket: Ticket | None = None
    """the leader's place in the queue"""
    listener: socket.socket | None = None
    """where the leader expects the followers"""

    def run(self, crew: Crew | None = None) -> None:
        """Run the job to its end, with an agent that is warm already if there is one."""
        hold_edition()
        os.chdir(self.folder.work)
        runner: Runner
        if self.ticket is not None:
            runner = Leader(self.folder, self.listener, self.ticket, crew)
        else:
            runner = Follower(self.folder, first=self.first, crew=crew)
        runner.run()
        os.close(self.hold)
        if runner.job.keep_warm:
            keep_warm(self.folder.root, runner.preload)

    def pack(self) -> tuple[dict[str, object], list[int]]:
        """Return what another process needs to run the job instead: words, and descriptors."""
        words = {
            "id": self.folder.id,
            "first": self.first,
            "ticket": str(self.ticket.path) if self.ticket else "",
            "listens": self.listener is not None,
        }
        handles = [self.hold]
        if self.ticket is not None:
            handles.append(self.ticket.handle)
        if self.listener is not None:
            handles.append(self.listener.fileno())
        return words, handles

    @classmethod
    def unpack(cls, root: Path, words: dict[str, object], handles: list[int]) -> Charge:
        """Take over a job that another process has packed."""
        hold, *rest = handles
        ticket = None
        if words["ticket"]:
            ticket = Ticket(path=Path(str(words["ticket"])), handle=rest.pop(0))
        return cls(
            folder=JobFolder(root, str(words["id"])),
            hold=hold,
            first=bool(words["first"]),
            ticket=ticket,
            listener=socket.socket(fileno=rest.pop(0)) if words["listens"] else None,
        )

    def let_go(self) -> None:
        """Close this process's descriptors: another one has them."""
        os.close(self.hold)
        if self.ticket is not None:
            os.close(self.ticket.handle)
        if self.listener is not None:
            self.listener.close()


def keep_warm(root: Path, preload: tuple[str, ...] = ()) -> None:
    """Start an agent that waits for the next job, in a process of its own (`spare`)."""
    modules = ",".join(dict.fromkeys((*USUAL, *preload)))
    subprocess.Popen(
        [sys.executable, "-m", "drumline.node.spare", str(root), modules],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
