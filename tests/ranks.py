"""Real processes that form a group, by gloo unless another backend is named, to call functions on.

The processes are forked from a server that has imported torch once, so a group is up in a fraction
of a second. A rank's exception fails the test with that rank's traceback.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from pathlib import Path

_WARM = ["torch", "drumline.parallel", "drumline.trainer", "torch._dynamo"]


class Team:
    """Ranks that stay: call functions on all of them, again and again."""

    def __init__(self, world_size, *, folder: Path, timeout_s: float = 60.0, backend="gloo"):
        self.world_size = world_size
        self.timeout_s = timeout_s
        self._folder = folder
        self._backend = backend
        self._start()

    def _start(self):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_WARM)
        meeting = Path(tempfile.mkdtemp(dir=self._folder)) / "store"
        self._results = context.SimpleQueue()
        self._tasks = [context.SimpleQueue() for _ in range(self.world_size)]
        shared = (self.world_size, str(meeting), self.timeout_s, self._backend)
        self.processes = [
            context.Process(target=_rank, args=(rank, *shared, tasks, self._results), daemon=True)
            for rank, tasks in enumerate(self._tasks)
        ]
        for process in self.processes:
            process.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop()

    def _stop(self, patience_s=5):
        for tasks in self._tasks:
            tasks.put(None)
        for process in self.processes:
            process.join(patience_s)
            if process.is_alive():
                process.kill()
                process.join()

    def call(self, function, *args, lost=()):
        """Call `function(rank, world_size, *args)` on every rank; return the results by rank.

        Ranks that are `lost` give none: they are killed or stopped on purpose. The others end then,
        since there is nobody to say goodbye to.
        """
        for tasks in self._tasks:
            tasks.put((function, args, bool(lost)))
        answers = {}
        try:
            for _ in range(self.world_size - len(lost)):
                rank, value, error = self._next_result()
                if error is not None:
                    raise AssertionError(f"rank {rank} of {self.world_size} failed:\n{error}")
                answers[rank] = value
        except BaseException:  # those left wait for one that is gone: the next call needs new ones
            self._stop(patience_s=0)
            self._start()
            raise
        return [answers.get(rank) for rank in range(self.world_size)]

    def _next_result(self):
        if not self._results._reader.poll(self.timeout_s):
            alive = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
            raise AssertionError(f"ranks {alive} gave no result within {self.timeout_s} s")
        return self._results.get()


def run_ranks(
    function, world_size, *args, folder: Path, timeout_s: float = 60.0, backend="gloo", lost=()
):
    """Call `function(rank, world_size, *args)` once on fresh ranks; return the results by rank."""
    team = Team(world_size, folder=folder, timeout_s=timeout_s, backend=backend)
    try:
        return team.call(function, *args, lost=lost)
    finally:
        team._stop(patience_s=0 if lost else 5)


def _rank(rank, world_size, meeting, timeout_s, backend, tasks, results):
    import torch
    import torch.distributed as dist

    from drumline.comm import join_group
    from drumline.core.processes import die_with_parent

    die_with_parent()
    torch.set_num_threads(1)
    try:
        store = dist.FileStore(meeting, world_size)
        join_group(
            store, rank=rank, world_size=world_size, backend=backend, timeout_s=min(timeout_s, 30)
        )
        while (task := tasks.get()) is not None:
            function, args, ends = task
            results.put((rank, function(rank, world_size, *args), None))
            if ends:
                os._exit(0)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
        raise SystemExit(1) from None
