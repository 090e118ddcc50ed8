"""Run directories that ranks do not share: checkpoints travel between them.

On one machine all ranks write to one run directory. On several each node has its own, and the
leader's counts. Who sees the leader's is found out by trying. Then

    collect   a part of a checkpoint that was written elsewhere goes to the leader's disk, before it
              is published there
    spread    a checkpoint that ranks restore from goes from the leader's disk to the others'

by the group's own messages, a chunk at a time, node after node. Where all see the same disk, both
do nothing.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from drumline.comm import StoreBarrier
from drumline.core.files import hash_file
from drumline.core.rundir import RunDir
from drumline.train.rank import RankInfo

_CHUNK = 16 << 20


class Disks:
    """Who sees which run directory; every rank makes one, once it is in the group."""

    def __init__(
        self,
        run: RunDir,
        rank: RankInfo,
        meeting: StoreBarrier,
        *,
        device: torch.device,
        within_s: float,
    ) -> None:
        self._rank = rank
        self._meeting = meeting
        self._within_s = within_s
        self._device = device if dist.get_backend() == "nccl" else torch.device("cpu")
        self._turns = 0
        self.elsewhere = self._look(run)
        """the ranks that write to a disk which the leader does not see, one for each"""

    def wait(self) -> None:
        """Wait for every rank, however long its disk takes; every rank calls this."""
        self._meeting.barrier(self._within_s)

    def collect(self, folder: Path) -> None:
        """Bring what ranks have written into a folder to the leader's; every rank calls this."""
        self.wait()
        for rank in self.elsewhere:
            if self._rank.rank == rank:
                self._wait_for_turn(rank)
                self._send(folder, 0)
                shutil.rmtree(folder, ignore_errors=True)
            elif self._rank.leads:
                self._give_turn(rank)
                self._receive(folder, rank)
            self._turns += 1

    def spread(self, folder: Path, seal: str) -> None:
        """Bring a folder of the leader's to the others' disks; every rank calls this.

        Args:
            folder: the same path below each rank's own run directory.
            seal: a file in it by which a folder is known that is there already.
        """
        for rank in self.elsewhere:
            known = self._meeting.tell_all(
                f"say what it has for rank {rank}", _hash(folder / seal), self._within_s
            )
            if known[rank] != known[0]:
                if self._rank.leads:
                    self._send(folder, rank)
                elif self._rank.rank == rank:
                    draft = folder.with_name(f".from-leader-{folder.name}")
                    shutil.rmtree(draft, ignore_errors=True)
                    self._receive(draft, 0)
                    shutil.rmtree(folder, ignore_errors=True)
                    draft.rename(folder)
        if self.elsewhere:
            self.wait()

    def _look(self, run: RunDir) -> list[int]:
        """Find out who does not see the leader's disk; the first rank of its node stands for it."""
        name = run.path / f".leader-{self._meeting.session}"
        token = ""
        if self._rank.leads:
            token = secrets.token_hex(8)
            name.write_text(token)
        token = self._meeting.tell_all("write to its disk", token, self._within_s)[0]
        sees = name.exists() and name.read_text() == token
        alone = not sees and self._rank.local_rank == 0
        told = self._meeting.tell_all("look at its disk", str(int(alone)), self._within_s)
        if self._rank.leads:
            name.unlink(missing_ok=True)
        return [rank for rank, word in enumerate(told) if word == "1"]

    def _give_turn(self, rank: int) -> None:
        self._meeting.store.set(f"disk/{self._meeting.session}/{self._turns}/{rank}", "1")

    def _wait_for_turn(self, rank: int) -> None:
        key = f"disk/{self._meeting.session}/{self._turns}/{rank}"
        self._meeting.store.wait([key], timedelta(seconds=self._within_s))

    def _send(self, folder: Path, to: int) -> None:
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        header = json.dumps([[file.name, file.stat().st_size] for file in files]).encode()
        self._put(torch.tensor([len(header)]), to)
        self._put(_tensor(header), to)
        for file in files:
            for chunk in _chunks(file):
                self._put(_tensor(chunk), to)

    def _receive(self, folder: Path, sender: int) -> None:
        size = self._take(torch.empty(1, dtype=torch.int64), sender)
        header = bytes(self._take(_empty(int(size)), sender).numpy())
        folder.mkdir(parents=True, exist_ok=True)
        for name, length in json.loads(header):
            with (folder / Path(name).name).open("wb") as file:
                for start in range(0, length, _CHUNK):
                    chunk = self._take(_empty(min(_CHUNK, length - start)), sender)
                    file.write(chunk.numpy().tobytes())

    def _put(self, tensor: Tensor, to: int) -> None:
        dist.send(tensor.to(self._device), to)

    def _take(self, tensor: Tensor, sender: int) -> Tensor:
        here = tensor.to(self._device)
        dist.recv(here, sender)
        return here.cpu()


def _hash(file: Path) -> str:
    try:
        return hash_file(file)
    except OSError:
        return ""


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            yield chunk


def _tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _empty(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)
