"""`RunCheckpoints`: the ranks of a run write and restore a checkpoint together.

Each writes its part (`store`), and the leader publishes it. To restore, the leader looks for the
newest whole one, and all open it. On one machine all ranks write to one run directory. On several
each node has its own, and the leader's counts; who sees it is found out by trying. Then `Disks`
sends files by the group's own messages, a chunk at a time, node after node:

    collect   a part of a checkpoint that was written elsewhere goes to the leader's disk, before it
              is published there
    spread    a checkpoint that ranks restore from goes from the leader's disk to the others'
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from drumline.comm import StoreBarrier
from drumline.core.errors import UsageError
from drumline.core.files import hash_file
from drumline.core.rundir import EventWriter, RunDir
from drumline.core.task import LONG_TIMEOUT_S
from drumline.trainer.checkpoint.snapshot import gather_snapshot
from drumline.trainer.checkpoint.store import STATE, Checkpoint, CheckpointStore, TrainState
from drumline.trainer.divergence import check_weights
from drumline.trainer.rank import RankInfo
from drumline.trainer.runners.base import ModelRunner, TrainContext

_CHUNK = 16 << 20
_LENGTH_BYTES = 8


class RunCheckpoints:
    """The checkpoints of a run; every rank makes one, and calls its methods when the others do."""

    def __init__(
        self, run: RunDir, context: TrainContext, events: EventWriter, barrier: StoreBarrier
    ) -> None:
        spec = context.spec
        self._store = CheckpointStore(run.checkpoints, keep=spec.checkpoint.keep)
        self._rank = context.rank
        self._events = events
        self._own_optimizer_state = spec.strategy.of == "parameters"
        within_s = max(spec.timeout_s, LONG_TIMEOUT_S)
        self.disks = Disks(run, self._rank, barrier, device=context.device, within_s=within_s)

    def save(self, state: TrainState, runner: ModelRunner, *, best: int | None = None) -> None:
        """Write a checkpoint, unless a weight is NaN or infinite; blocks until it is there.

        The one of step `best` is kept, too.
        """
        self._store.best = best
        started = time.monotonic()
        check_weights(runner.model, step=state.step, rank=self._rank.rank)
        runner.optimizer.zero_grad()  # the step is over: room for what is written
        path = self._store.save(
            state,
            gather_snapshot(runner.model, runner.optimizer, runner.shard),
            runner.shard,
            rank=self._rank.rank,
            shared=not self._own_optimizer_state,
            gather=self.disks.collect,
        )
        if path is not None:
            seconds = time.monotonic() - started
            self._events.write("checkpoint", step=state.step, path=str(path), seconds=seconds)
            self._events.flush()
        self.disks.wait()  # waiting for the writer is no part of the next step

    def restore(self, runner: ModelRunner, total_steps: int) -> TrainState | None:
        """Load the newest whole checkpoint, if there is one; refuse one beyond the run's steps."""
        found = self._newest()
        if found is None:
            return None
        found.load_model(runner.model, runner.shard)
        rank = self._rank.rank if self._own_optimizer_state else None
        found.load_optimizer(runner.optimizer, runner.model, runner.shard, rank)
        if found.state.step > total_steps:
            raise UsageError(
                f"this run is at step {found.state.step} already, beyond the {total_steps} steps "
                f"asked for; raise epochs or max_steps"
            )
        self._events.write("restore", step=found.state.step, path=str(found.path))
        return found.state

    def _newest(self) -> Checkpoint | None:
        """Return the newest whole checkpoint: the leader looks, the others open the same one."""

        def damaged(path: Path, why: str) -> None:
            self._events.write("damaged", path=str(path), why=why)

        found = self._store.newest(damaged) if self._rank.leads else None
        mine = "" if found is None else str(found.state.step)
        step = self.disks.all_gather("look for a checkpoint", mine)[0]
        if not step:
            return None
        self.disks.spread(self._store.path_of(int(step)), STATE)
        return self._store.at(int(step))


class Disks:
    """Who sees which run directory; every rank makes one, once it is in the group."""

    def __init__(
        self,
        run: RunDir,
        rank: RankInfo,
        barrier: StoreBarrier,
        *,
        device: torch.device,
        within_s: float,
    ) -> None:
        self._rank = rank
        self._barrier = barrier
        self._within_s = within_s
        self._device = device if dist.get_backend() == "nccl" else torch.device("cpu")
        self._turns = 0
        self.elsewhere = self._find_elsewhere(run)
        """the ranks that write to a disk which the leader does not see, one for each"""

    def wait(self) -> None:
        """Wait for every rank, however long its disk takes; every rank calls this."""
        self._barrier.barrier(self._within_s)

    def all_gather(self, what: str, value: str) -> list[str]:
        """Return the values of all ranks; every rank calls this, within the same time as `wait`."""
        return self._barrier.all_gather(what, value, self._within_s)

    def collect(self, folder: Path) -> None:
        """Bring what ranks have written into a folder to the leader's; every rank calls this."""
        self.wait()
        for rank in self.elsewhere:
            turn = f"disk/{self._barrier.session}/{self._turns}/{rank}"
            if self._rank.rank == rank:
                self._barrier.store.wait([turn], timedelta(seconds=self._within_s))
                self._send(folder, 0)
                shutil.rmtree(folder, ignore_errors=True)
            elif self._rank.leads:
                self._barrier.store.set(turn, "1")
                self._receive(folder, rank)
            self._turns += 1

    def spread(self, folder: Path, seal: str) -> None:
        """Bring a folder of the leader's to the others' disks; every rank calls this.

        A folder that is there already is known by the file `seal` in it.
        """
        for rank in self.elsewhere:
            known = self.all_gather(f"say what it has for rank {rank}", _hash(folder / seal))
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

    def _find_elsewhere(self, run: RunDir) -> list[int]:
        """Find out who does not see the leader's disk; the first rank of its node stands for it."""
        name = run.path / f".leader-{self._barrier.session}"
        token = ""
        if self._rank.leads:
            token = secrets.token_hex(8)
            name.write_text(token)
        token = self.all_gather("write to its disk", token)[0]
        sees = name.exists() and name.read_text() == token
        alone = not sees and self._rank.local_rank == 0
        told = self.all_gather("look at its disk", str(int(alone)))
        if self._rank.leads:
            name.unlink(missing_ok=True)
        return [rank for rank, is_alone in enumerate(told) if is_alone == "1"]

    def _send(self, folder: Path, to: int) -> None:
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        header = json.dumps([[file.name, file.stat().st_size] for file in files]).encode()
        self._put(len(header).to_bytes(_LENGTH_BYTES), to)
        self._put(header, to)
        for file in files:
            with file.open("rb") as content:
                while chunk := content.read(_CHUNK):
                    self._put(chunk, to)

    def _receive(self, folder: Path, sender: int) -> None:
        size = int.from_bytes(self._take(_LENGTH_BYTES, sender))
        header = self._take(size, sender)
        folder.mkdir(parents=True, exist_ok=True)
        for name, length in json.loads(header):
            with (folder / Path(name).name).open("wb") as file:
                for start in range(0, length, _CHUNK):
                    file.write(self._take(min(_CHUNK, length - start), sender))

    def _put(self, content: bytes, to: int) -> None:
        tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        dist.send(tensor.to(self._device), to)

    def _take(self, size: int, sender: int) -> bytes:
        tensor = torch.empty(size, dtype=torch.uint8, device=self._device)
        dist.recv(tensor, sender)
        return tensor.cpu().numpy().tobytes()


def _hash(file: Path) -> str:
    try:
        return hash_file(file)
    except OSError:
        return ""
