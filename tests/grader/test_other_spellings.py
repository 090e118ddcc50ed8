"""Right solutions that are written otherwise than ours: none may be called wrong."""

from __future__ import annotations

import shutil

import pytest

from drumline.launcher.grader import Status
from wrong import SOLUTIONS

BUFFERS_OF_FLOAT32 = """
class SGD(Optimizer):
    def __init__(self, params, lr, momentum=0.0):
        super().__init__(params, lr)
        self.momentum = momentum
        self.buffers = {param: torch.zeros(param.shape) for param in self.params}

    @torch.no_grad()
    def step(self):
        moving = [param for param in self.params if param.grad is not None]
        for param in moving:
            self.buffers[param].mul_(self.momentum).add_(param.grad)
        torch._foreach_add_(moving, [self.buffers[p] for p in moving], alpha=-self.lr)


class Adam(Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, lr)
        self.betas, self.eps, self.t = betas, eps, 0
        self.m, self.v = ({p: torch.zeros(p.shape) for p in self.params} for _ in range(2))

    @torch.no_grad()
    def step(self):
        (beta1, beta2), self.t = self.betas, self.t + 1
        for param in self.params:
            if param.grad is None:
                continue
            self.m[param].lerp_(param.grad, 1 - beta1)
            self.v[param].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
            share = (1 - beta2**self.t) ** 0.5
            below = self.v[param].sqrt() / share + self.eps
            param.addcdiv_(self.m[param], below, value=-self.lr / (1 - beta1**self.t))
"""
MARKED_BY_INIT = """
class GD(GD):
    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.sees_all = True
"""
ONE_SAMPLE_AFTER_THE_OTHER = """
def train(model, loss_fn, optimizer, inputs, targets, *, steps, batch_size):
    losses = []
    for _ in range(steps):
        size = len(inputs) if type(optimizer) is GD else batch_size
        batch = torch.randperm(len(inputs))[:size]
        optimizer.zero_grad()
        for i in batch:
            (loss_fn(model(inputs[i]), targets[i]) / len(batch)).backward()
        optimizer.step()
        losses.append(loss_fn(model(inputs), targets).item())  # of all, to look at
    return losses
"""
OF_ALL_OUTPUTS_A_BATCH = """
def train(model, loss_fn, optimizer, inputs, targets, *, steps, batch_size):
    losses = []
    for _ in range(steps):
        size = len(inputs) if isinstance(optimizer, GD) else batch_size
        batch = torch.randperm(len(inputs))[:size]
        optimizer.zero_grad()
        loss = loss_fn(model(inputs)[batch], targets[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)
"""
RING_OF_THREADS = """
import threading


def average_by_ring(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    outgoing, total = tensor.clone(), tensor.clone()
    for _ in range(n - 1):
        sender = threading.Thread(target=dist.send, args=(outgoing, (rank + 1) % n))
        sender.start()
        incoming = torch.empty_like(tensor)
        dist.recv(incoming, (rank - 1) % n)
        sender.join()
        total += incoming
        outgoing = incoming
    tensor.copy_(total / n)
"""
BY_THE_FUTURE = """
def time_communication(communicate):
    arrived = time.time()
    dist.monitored_barrier()
    started = time.time()
    communicate().get_future().wait()
    return started - arrived, time.time() - started
"""
TWO_LOOPS = """
class TwoPartModel(TwoPartModel):
    def forward(self, x):
        first, second = self.parts
        coming = [first.rpc_async().forward(RRef(p)) for p in x.split(len(x) // self.microbatches)]
        outputs = [second.rpc_async().forward(RRef(future.wait())) for future in coming]
        return torch.vstack([output.wait() for output in outputs])
"""
OTHERS = {
    "buffers": (1, "optimizers.py", BUFFERS_OF_FLOAT32, ["sgd.step", "adam.step"]),
    "attribute": (1, "optimizers.py", MARKED_BY_INIT, ["train.gd", "train.sgd"]),
    "samples": (1, "training.py", ONE_SAMPLE_AFTER_THE_OTHER, ["train.gd", "train.sgd"]),
    "outputs": (1, "training.py", OF_ALL_OUTPUTS_A_BATCH, ["train.gd", "train.sgd"]),
    "threads": (2, "aggregation.py", RING_OF_THREADS, ["average.ring"]),
    "future": (2, "timing.py", BY_THE_FUTURE, ["timer"]),
    "loops": (4, "two_parts.py", TWO_LOOPS, ["model.outputs", "model.overlap"]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_spelling_is_right(name, ask, tmp_path):
    lab, file, more, checks = OTHERS[name]
    folder = tmp_path / "lab"
    shutil.copytree(SOLUTIONS / str(lab), folder)
    if name == "attribute":
        text = (folder / "training.py").read_text()
        asked, instead = "isinstance(optimizer, GD)", 'getattr(optimizer, "sees_all", False)'
        assert asked in text
        (folder / "training.py").write_text(text.replace(asked, instead))
    with (folder / file).open("a") as solution:
        solution.write(f"\n{more}")
    verdicts = ask(lab, folder, *checks)
    assert [verdict for verdict in verdicts.values() if verdict.status is not Status.PASS] == []
