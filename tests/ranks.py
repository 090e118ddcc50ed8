"""`run_ranks`: a function on N real processes that form a group, by gloo unless another is named.

The processes are forked from a server that has imported torch once, so a group is up in a fraction
of a second. A rank's exception fails the test with that rank's traceback.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from pathlib import Path

_WARM = ["torch", "drumline.parallel", "drumline.train", "torch._dynamo"]


def run_ranks(
    function, world_size, *args, folder: Path, timeout_s: float = 60.0, backend="gloo", lost=()
):
    """Call `function(rank, world_size, *args)` on every rank; return the results by rank.

    Ranks that are `lost` give none: they are killed or stopped on purpose.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_WARM)
    meeting = Path(tempfile.mkdtemp(dir=folder)) / "store"
    results = context.SimpleQueue()
    shared = (str(meeting), timeout_s, results, backend, lost, args)
    processes = [
        context.Process(
            target=_rank,
            args=(function, rank, world_size, *shared),
            daemon=True,
        )
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    try:
        answers = {}
        for _ in range(world_size - len(lost)):
            rank, value, error = _get(results, processes, timeout_s)
            if error is not None:
                raise AssertionError(f"rank {rank} of {world_size} failed:\n{error}")
            answers[rank] = value
        return [answers.get(rank) for rank in range(world_size)]
    finally:
        for process in processes:
            process.join(0 if lost else 5)
            if process.is_alive():
                process.kill()
                process.join()


def _get(results, processes, timeout_s):
    if not results._reader.poll(timeout_s):
        alive = [rank for rank, process in enumerate(processes) if process.is_alive()]
        raise AssertionError(f"ranks {alive} gave no result within {timeout_s} s")
    return results.get()


def _rank(function, rank, world_size, meeting, timeout_s, results, backend, lost, args):
    import torch
    import torch.distributed as dist

    from drumline.comm import join_group
    from drumline.core.lifeline import die_with_parent

    die_with_parent()
    torch.set_num_threads(1)
    try:
        store = dist.FileStore(meeting, world_size)
        join_group(
            store, rank=rank, world_size=world_size, backend=backend, timeout_s=min(timeout_s, 30)
        )
        results.put((rank, function(rank, world_size, *args), None))
        if lost:  # nobody to say goodbye to
            os._exit(0)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
        raise SystemExit(1) from None
