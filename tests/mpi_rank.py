"""One rank under mpirun: `mpirun -n N python tests/mpi_rank.py STORE_FILE [stop]`.

Runs all checks and prints a digest of the results; with `stop`, rank 1 stops before a collective.
"""

import hashlib
import os
import signal
import sys
import threading

import torch
import torch.distributed as dist
from mpi4py import MPI

from backends import check_all
from drumline.comm import LostPeerError, join_group


def stop_one(rank: int) -> None:
    """Let rank 1 go to sleep; the others say whom they miss, and wake it up to be ended."""
    pids = [None] * MPI.COMM_WORLD.Get_size()
    dist.all_gather_object(pids, os.getpid())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        dist.all_reduce(torch.ones(4))
    except LostPeerError as error:
        sys.stdout.write(f"rank {rank}: {error}\n")
        sys.stdout.flush()
        threading.Event().wait(1.0)
        os.kill(pids[1], signal.SIGCONT)
    os._exit(3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, world_size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    stops = "stop" in sys.argv
    store = dist.FileStore(sys.argv[1], world_size)
    timeout_s = 2 if stops else 30
    join_group(store, rank=rank, world_size=world_size, backend="mpi", timeout_s=timeout_s)
    if stops:
        stop_one(rank)
    results = check_all(rank, world_size)
    digest = hashlib.sha256(repr(results).encode()).hexdigest()
    dist.destroy_process_group()
    sys.stdout.write(f"{rank} {digest}\n")
