"""Calling a function of the user's on every rank, for `drumline.launch`.

    1. the function and its arguments are read           core/calls.py
    2. the process group is started, unless the caller wants none
    3. the function is called; what it prints goes to the rank's log, which the caller shows
    4. the group is destroyed, and the result, or the exception, is left for the caller

The environment variables are those that torchrun sets. CPU cores are shared out among the ranks of
a node, as torchrun does by OMP_NUM_THREADS, unless that is set.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from drumline.comm.gloo_threads import rest_before_destroying
from drumline.comm.group import Backend, join_group, pin_interface
from drumline.comm.shm.group import register_shm
from drumline.comm.store import LOOPBACK, StoreBarrier, build_store
from drumline.core.calls import CallFiles
from drumline.core.processes import count_cores
from drumline.core.rundir import RunDir
from drumline.parallel.dynamo import postpone_dynamo
from drumline.trainer.rank import RankInfo, rank_process


def call_function(run: RunDir, folder: Path, *, workers: int) -> None:
    """Call the function in a folder as one rank; ends the process if it fails."""
    files = CallFiles(folder)
    with rank_process(run) as (rank, _), _silent_failure():
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, count_cores() // workers))
        postpone_dynamo()  # an optimizer would load it, for seconds
        rest_before_destroying()
        call, backend = files.read_call()  # (1)
        with _process_group(run, rank, backend):  # (2)
            try:
                result = call.function(*call.args, **call.kwargs)  # (3)
            except BaseException as error:
                _explain_second_group(error, backend)
                files.write_error(rank.rank, error)
                raise
            files.write_result(rank.rank, result)  # (4)
            del call, result
            gc.collect()  # what is left of DDP goes before the group


@contextlib.contextmanager
def _silent_failure() -> Iterator[None]:
    """Keep the traceback of what goes wrong out of the rank's log: the caller raises it anyway."""
    try:
        yield
    except BaseException:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  the process ends with it
        raise


@contextlib.contextmanager
def _process_group(run: RunDir, rank: RankInfo, backend: str | None) -> Iterator[None]:
    """Start torch's default process group, and destroy it unless the function has failed."""
    leader = os.environ.get("MASTER_ADDR", LOOPBACK)
    if backend is None:  # the function's own must find what ours would
        pin_interface(leader)
        register_shm()
        yield
        return
    if backend == "nccl":  # simulated nodes share this machine's GPUs
        torch.cuda.set_device(rank.rank)
    timeout_s = default_pg_timeout.total_seconds()
    store = build_store(
        "env",
        rank=rank.rank,
        rendezvous=run.rendezvous,
        tag=os.environ["MASTER_PORT"],
        timeout_s=timeout_s,
    )
    join_group(
        store,
        rank=rank.rank,
        world_size=rank.world_size,
        backend=cast(Backend, backend),
        timeout_s=timeout_s,
        leader=leader,
    )
    # a function that is quickly done must not leave while others still connect to this rank
    barrier = StoreBarrier(store, rank=rank.rank, world_size=rank.world_size)
    barrier.wait_for_all("join the group", timeout_s)
    yield
    if dist.is_initialized():  # the function may have destroyed it
        dist.destroy_process_group()


def _explain_second_group(error: BaseException, backend: str | None) -> None:
    if isinstance(error, ValueError) and "default process group twice" in str(error):
        error.add_note(
            f"drumline.launch has started the process group ({backend}) already; leave "
            f"init_process_group out, or launch with backend=None"
        )
