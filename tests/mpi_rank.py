"""One rank under mpirun: `mpirun -n N python tests/mpi_rank.py STORE_FILE` runs all checks."""

import hashlib
import sys

import torch
import torch.distributed as dist
from mpi4py import MPI

from backends import check_all
from drumline.comm import join_group

if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, world_size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    store = dist.FileStore(sys.argv[1], world_size)
    join_group(store, rank=rank, world_size=world_size, backend="mpi", timeout_s=30)
    results = check_all(rank, world_size)
    digest = hashlib.sha256(repr(results).encode()).hexdigest()
    dist.destroy_process_group()
    sys.stdout.write(f"{rank} {digest}\n")
