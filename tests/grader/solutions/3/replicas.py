"""Lab 3: all ranks begin with the same model. TASK.md, section 4.

python replicas.py        builds a model on three ranks, and shows its weights before and after
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def broadcast_parameters(model):
    """Give every rank the parameters and buffers of rank 0's model, in place.

    Every rank calls this once, after building the model and before the first step.
    """
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def main(rank, world_size, meeting):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the loopback, as Linux calls it
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    torch.manual_seed(rank)
    model = nn.Linear(3, 1)
    before = model.weight.tolist()
    try:
        broadcast_parameters(model)
        print(f"rank {rank}: {before} -> {model.weight.tolist()}")
    except NotImplementedError as hole:
        print(f"rank {rank}: to do: {hole}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # the ranks meet by a file in it
        mp.spawn(main, args=(3, f"file://{folder}/meeting"), nprocs=3)
