"""One rank under mpirun: `mpirun -n N python tests/mpi_rank.py STORE_FILE [before | within]`.

Runs all checks, and those of torch's features, and prints a digest of the results. With `before` or
`within`, rank 1 stops before a collective, or when all have come to it.
"""

import contextlib
import hashlib
import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI

from backend_features import check_features
from backends import check_all
from drumline.comm import join_group
from drumline.comm.mpi import group


def stop_one(store: dist.Store, rank: int, when: str) -> None:
    """Let rank 1 go to sleep; the others say whom they miss, and wake it up to be ended."""
    pids = [None] * MPI.COMM_WORLD.Get_size()
    dist.all_gather_object(pids, os.getpid())
    if rank == 1 and when == "within":
        group.to_combine = lambda _: os.kill(os.getpid(), signal.SIGSTOP)  # right before MPI's call
    elif rank == 1:
        with contextlib.suppress(RuntimeError):  # that nothing came is no answer to the all_reduce
            dist.irecv(torch.ones(1)).wait(timedelta(seconds=0.2))
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2)]
    for work in works:
        try:
            work.get_future().wait()
        except RuntimeError as error:
            sys.stdout.write(f"rank {rank}: {error}\n")
            sys.stdout.flush()
    dist.destroy_process_group()  # does not wait for a thread that is stuck
    store.set(f"told/{rank}", "1")
    store.wait(["told/0", "told/2"], timedelta(seconds=20))  # the first to exit ends all
    os.kill(pids[1], signal.SIGCONT)
    os._exit(3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, world_size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    stops = sys.argv[2:]
    store = dist.FileStore(sys.argv[1], world_size)
    timeout_s = 2 if stops else 30
    join_group(store, rank=rank, world_size=world_size, backend="mpi", timeout_s=timeout_s)
    if stops:
        stop_one(store, rank, *stops)
    results = check_all(rank, world_size) + check_features(rank, world_size)
    dist.group.WORLD._collectives.close()
    dist.all_reduce(again := torch.ones(1))
    results.append(again.item())
    digest = hashlib.sha256(repr(results).encode()).hexdigest()
    dist.destroy_process_group()
    sys.stdout.write(f"{rank} {digest}\n")
