"""`Segment`: memory that all ranks of a group have mapped, and that has no name anywhere.

The leader makes it with `memfd_create`, so nothing appears in /dev/shm at any moment: the memory
goes with the last process that holds it, however that process ends. The others open it by way of
the leader's entry in /proc:

    leader   (1) makes the memory and puts a random token in front
             (2) tells through the store: process id, descriptor, token     "where"
    others   (3) open /proc/<pid>/fd/<fd>, look for the token, and tell     "answer/<rank>"
    leader   (4) hears all answers and gives one verdict for everybody      "verdict"

So whether ranks share a host is found out by trying. A container with processes of its own, or
another host, fails at (3), and all ranks learn it with the reason.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import select
import sys
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import Store

from drumline.comm.lost_peers import LostPeerError

HEAD_BYTES = 64
"""in front of the memory: the token"""
_PAGE = mmap.PAGESIZE
_NAME = "drumline"


class SharingError(RuntimeError):
    """The ranks of a group cannot share memory; says which rank, and why."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Mapped memory, and the processes that have mapped it."""

    memory: mmap.mmap
    pids: tuple[int, ...]
    """by rank in the group"""


def share_segment(store: Store, rank: int, size: int, nbytes: int) -> Segment:
    """Map `nbytes` of shared memory (after the head) in a group's ranks; every rank calls this.

    Where they are not all on one host, or the system has no such memory, all raise a SharingError.
    """
    total = -(-(HEAD_BYTES + nbytes) // _PAGE) * _PAGE
    descriptor = -1
    try:
        if rank == 0:
            memory, descriptor = _offer(store, total)  # (1) (2)
        else:
            memory = _open(store, rank, total)  # (3)
        pids = _settle(store, rank, size)  # (4)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    assert memory is not None, "a good verdict means that every rank has mapped the memory"
    return Segment(memory=memory, pids=pids)


def _offer(store: Store, total: int) -> tuple[mmap.mmap | None, int]:
    descriptor = -1
    try:
        if sys.platform != "linux":
            raise OSError(f"no memory without a name on {sys.platform}")
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        os.ftruncate(descriptor, total)
        memory = mmap.mmap(descriptor, total)
        space = _pid_space()
    except OSError as error:
        store.set("where", json.dumps({"error": str(error)}))
        store.set("answer/0", json.dumps({"error": str(error)}))
        return None, descriptor
    token = secrets.token_bytes(HEAD_BYTES // 2)
    memory[: len(token)] = token
    where = {"pid": os.getpid(), "fd": descriptor, "token": token.hex(), "space": space}
    store.set("where", json.dumps(where))
    store.set("answer/0", json.dumps(_own_answer()))
    return memory, descriptor


def _open(store: Store, rank: int, total: int) -> mmap.mmap | None:
    where = json.loads(store.get("where"))
    memory = None
    try:
        memory = _map_peer(where, total)
        answer = _own_answer()
    except OSError as error:
        answer = {"error": str(error)}
    store.set(f"answer/{rank}", json.dumps(answer))
    return memory


def _map_peer(where: dict[str, str], total: int) -> mmap.mmap:
    if "error" in where:
        raise OSError(where["error"])
    if where["space"] != _pid_space():
        raise OSError("it is in another container or on another host than rank 0")
    path = f"/proc/{where['pid']}/fd/{where['fd']}"
    try:
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            raise OSError(0, "there is something else in its place")
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(f"it cannot open rank 0's memory: {error.strerror}") from None
    try:
        if os.fstat(descriptor).st_size != total:
            raise OSError("it found other memory than rank 0's: another host")
        memory = mmap.mmap(descriptor, total)
    finally:
        os.close(descriptor)
    token = bytes.fromhex(where["token"])
    if memory[: len(token)] != token:
        raise OSError("it found other memory than rank 0's: another host")
    return memory


def _settle(store: Store, rank: int, size: int) -> tuple[int, ...]:
    """Agree on whether all have it; the leader listens, everybody hears the same."""
    if rank == 0:
        answers = [json.loads(store.get(f"answer/{other}")) for other in range(size)]
        store.set("verdict", json.dumps(answers))
    answers = json.loads(store.get("verdict"))
    for other, answer in enumerate(answers):
        if "error" in answer:
            raise SharingError(f"rank {other} cannot share memory: {answer['error']}")
    return tuple(answer["pid"] for answer in answers)


def _own_answer() -> dict[str, int | str]:
    """Say who this is; a rank must be able to watch the others, too."""
    try:
        ProcessWatch((os.getpid(),)).close()
    except OSError as error:
        return {"error": f"it cannot watch other processes: {error}"}
    return {"pid": os.getpid()}


def _pid_space() -> str:
    """Name what process ids mean here: other containers and other hosts use the same ones."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


if sys.platform == "linux":
    from os import pidfd_open
else:  # only Linux shares memory without a name, so nothing is ever watched elsewhere

    def pidfd_open(pid: int) -> int:
        """Refuse."""
        raise OSError("no pidfds on this system")


class ProcessWatch:
    """Whether the processes of the other ranks are alive, by pidfds.

    The kernel says that a process has ended even while its parent has not yet asked for its exit
    code, and never takes a new process for an old one.
    """

    def __init__(self, pids: tuple[int, ...]) -> None:
        self._poll = select.poll()
        self._rank_of: dict[int, int] = {}
        for rank, pid in enumerate(pids):
            try:
                descriptor = pidfd_open(pid)
            except ProcessLookupError:
                self.close()
                raise LostPeerError(
                    f"rank {rank} of the group ended before it began", backend="shm", ranks=[rank]
                ) from None
            self._rank_of[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)

    def gone(self) -> list[int]:
        """Return the ranks (in the group) whose processes have ended."""
        return sorted(self._rank_of[descriptor] for descriptor, _ in self._poll.poll(0))

    def close(self) -> None:
        """Stop watching."""
        for descriptor in self._rank_of:
            os.close(descriptor)
        self._rank_of.clear()
        self._poll = select.poll()
