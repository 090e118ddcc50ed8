"""Lab 2: the mean of a tensor over all ranks, made in three ways. TASK.md, sections 2 and 3.

Every rank calls the same function with a tensor of the same shape. When it returns, the tensor
itself holds the mean of all ranks' tensors (in place), on every rank.

    python aggregation.py     averages a tensor on three ranks of this machine
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def average_by_all_gather(tensor):
    """Everybody gets everybody's tensor (dist.all_gather), and computes the mean for itself."""
    n = dist.get_world_size()
    parts = [torch.zeros_like(tensor) for _ in range(n)]
    dist.all_gather(parts, tensor)
    tensor.copy_(sum(parts) / n)


def average_by_reduce_broadcast(tensor):
    """Rank 0 gets the sum (dist.reduce), makes the mean, and gives it to all (dist.broadcast)."""
    dist.reduce(tensor, dst=0)
    if dist.get_rank() == 0:
        tensor /= dist.get_world_size()
    dist.broadcast(tensor, src=0)


def average_by_ring(tensor):
    """Tensors travel around a ring: every rank sends to rank + 1 and receives from rank - 1.

    Only dist.send, dist.recv, dist.isend and dist.irecv. n - 1 rounds with whole tensors will do;
    2 * (n - 1) rounds with pieces move fewer bytes (TASK.md, section 3). What would happen if every
    rank first sent, and only then received?
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    outgoing, total = tensor.clone(), tensor.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(tensor)
        sending = dist.isend(outgoing, dst=right)
        dist.recv(incoming, src=left)
        sending.wait()
        total += incoming
        outgoing = incoming
    tensor.copy_(total / n)


def average_gradients(model, average):
    """Average the gradients of a model, by one of the functions above. Nothing to do here."""
    for param in model.parameters():
        if param.grad is not None:
            average(param.grad)


def main(rank, world_size, meeting):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the loopback, as Linux calls it
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    for average in (average_by_all_gather, average_by_reduce_broadcast, average_by_ring):
        tensor = torch.full((4,), float(rank))
        try:
            average(tensor)
            print(f"rank {rank}: {average.__name__:<28} {tensor.tolist()}")
        except NotImplementedError as hole:
            print(f"rank {rank}: to do: {hole}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # the ranks meet by a file in it
        mp.spawn(main, args=(3, f"file://{folder}/meeting"), nprocs=3)
