"""Lab 4: a model in two parts, each on a worker of its own, by RPC. TASK.md, sections 2 to 4.

    leader (worker0)  --x-->  worker1: part 1  --activations-->  worker2: part 2  --y-->  leader

python two_parts.py       trains such a model on three processes of this machine
"""

import os
import tempfile

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.rpc import RRef


class Part(nn.Module):
    """One part of the model. It lives on the worker that owns it; the leader has an RRef to it."""

    def __init__(self, build):
        super().__init__()
        self.module = build()

    def ready(self):
        """Answer a first call (see TwoPartModel). Nothing to do here."""
        return True

    def forward(self, x_rref):
        """Fetch the input from wherever it lies, and compute. Nothing to do here."""
        return self.module(x_rref.to_here())

    def parameter_rrefs(self):
        """Runs on the owner: a list with an RRef to each of its parameters."""
        return [RRef(parameter) for parameter in self.parameters()]

    def parameter_bytes(self):
        """Runs on the owner: how many bytes its parameters take."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.parameters())


class TwoPartModel(nn.Module):
    """What the leader has: a remote reference to each part, and no parameter of its own."""

    def __init__(self, workers, builders, microbatches):
        """Build part i on workers[i] by calling builders[i] there. Nothing to do here."""
        super().__init__()
        self.workers = workers
        self.microbatches = microbatches
        self.parts = [
            rpc.remote(worker, Part, args=(build,))
            for worker, build in zip(workers, builders, strict=True)
        ]
        # By a first call torch learns what an RRef points at. If that first call were an
        # rpc_async(), it would leave the autograd context, and its gradients would be lost.
        for part in self.parts:
            part.rpc_sync().ready()

    def forward(self, x):
        """Return the model's output for the batch x, its rows in the order of x.

        The batch is cut into self.microbatches pieces, and while part 2 computes a piece, part 1
        computes the next. So no call may be waited for before the next piece is on its way:

            part 1   1 2 3 4 .
            part 2   . 1 2 3 4

        Useful: x.chunk(n), RRef(piece), part.remote().forward(rref) (gives an RRef),
        part.rpc_async().forward(rref) (gives a future), torch.futures.wait_all, torch.cat.
        """
        first, second = self.parts
        outputs = []
        for piece in x.chunk(self.microbatches):
            activations = first.remote().forward(RRef(piece))
            outputs.append(second.rpc_async().forward(activations))
        return torch.cat(torch.futures.wait_all(outputs))

    def parameter_rrefs(self):
        """Return the RRefs to all parameters of both parts, as DistributedOptimizer wants them."""
        return [rref for part in self.parts for rref in part.rpc_sync().parameter_rrefs()]

    def size_report(self):
        """Return the bytes of parameters by worker, such as {"worker1": 4096, "worker2": 1024}."""
        return {
            worker: part.rpc_sync().parameter_bytes()
            for worker, part in zip(self.workers, self.parts, strict=True)
        }


def build_first():
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU())


def build_second():
    return nn.Linear(32, 2)


def train():
    from torch.distributed.optim import DistributedOptimizer

    model = TwoPartModel(("worker1", "worker2"), (build_first, build_second), microbatches=4)
    optimizer = DistributedOptimizer(torch.optim.SGD, model.parameter_rrefs(), lr=0.1)
    print("bytes of parameters:", model.size_report())
    x = torch.randn(64, 20)
    y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()
    for step in range(20):
        with dist_autograd.context() as context:
            loss = nn.functional.cross_entropy(model(x), y)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        if step % 5 == 0:
            print(f"step {step:2d}  loss {loss.item():.4f}")


def main(rank, world_size, meeting):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the loopback, as Linux calls it
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    options = rpc.TensorPipeRpcBackendOptions(init_method=meeting)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    if rank == 0:
        try:
            train()
        except NotImplementedError as hole:
            print(f"to do: {hole}")
    rpc.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # the ranks meet by a file in it
        mp.spawn(main, args=(3, f"file://{folder}/meeting"), nprocs=3)
