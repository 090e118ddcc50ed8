"""Wrong submissions: each is the right solution with a small part of its text replaced."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

SOLUTIONS = Path(__file__).parent / "grader" / "solutions"


@dataclass(frozen=True)
class Wrong:
    """One wrong submission, and what must be said about it."""

    mistake: str
    check: str
    file: str
    old: str
    new: str
    """what `old` is replaced by"""
    tag: str = ""
    """where several lead to one mistake"""

    @property
    def lab(self) -> int:
        return next(n for n in (1, 2, 3, 4) if (SOLUTIONS / str(n) / self.file).exists())

    def __str__(self) -> str:
        return f"{self.mistake}{f'-{self.tag}' if self.tag else ''}"

    def write(self, folder: Path) -> Path:
        """Write the submission to a folder that is not there yet."""
        shutil.copytree(SOLUTIONS / str(self.lab), folder)
        text = (folder / self.file).read_text()
        assert text.count(self.old) >= 1, f"{self}: {self.file} has changed"
        (folder / self.file).write_text(text.replace(self.old, self.new))
        return folder


ADAM_T = "        self.t += 1\n        for i, param in enumerate(self.params):\n"
GATHER = "parts = [torch.zeros_like(tensor) for _ in range(n)]"
SEND_RECV = """        sending = dist.isend(outgoing, dst=right)
        dist.recv(incoming, src=left)
        sending.wait()
"""
STAR = """    if rank == 0:
        for other in range(1, n):
            dist.recv(incoming := torch.empty_like(tensor), src=other)
            total += incoming
        for other in range(1, n):
            dist.send(total, dst=other)
    else:
        dist.send(tensor, dst=0)
        dist.recv(total, src=0)
    tensor.copy_(total / n)
    return
    for _ in range(n - 1):
"""
CHAIN = """    if rank > 0:
        dist.recv(incoming := torch.empty_like(tensor), src=left)
        total += incoming
    dist.send(total, dst=right)
    dist.recv(total, src=left)
    if rank < n - 1:
        dist.send(total, dst=right)
    tensor.copy_(total / n)
    return
    for _ in range(n - 1):
"""
BATCH = "torch.randperm(len(inputs))[:batch_size]"
DEAL = "deal = torch.randperm(len(self.dataset), generator=generator(self.seed))"
OWN = "own = deal[self.rank :: self.num_replicas]"
ORDER = "generator(self.seed, self.epoch, self.rank))\n        return iter(own[order]"
DRAW = "own = generator(self.seed, self.epoch, self.rank)"
DRAWS = "torch.randint(len(self.dataset), (len(self),), generator=own)"
LENGTH = "return len(range(self.rank, len(self.dataset), self.num_replicas))"
PIPELINE = """            activations = first.remote().forward(RRef(piece))
            outputs.append(second.rpc_async().forward(activations))
"""

OPTIMIZERS = [
    Wrong(
        "step-differs",
        "gd.step",
        "optimizers.py",
        "param -= self.lr * param.grad",
        "param += self.lr * param.grad",
    ),
    Wrong(
        "step-differs",
        "gd.step",
        "optimizers.py",
        "                param -= self.lr * param.grad",
        "                param = param - self.lr * param.grad",
        "new-tensor",
    ),
    Wrong(
        "momentum-ignored",
        "sgd.step",
        "optimizers.py",
        "self.momentum * self.buffers[i] + param.grad",
        "param.grad.clone()",
    ),
    Wrong(
        "momentum-differs",
        "sgd.step",
        "optimizers.py",
        "self.momentum * self.buffers[i] + param.grad",
        "self.momentum * self.buffers[i] + (1 - self.momentum) * param.grad",
    ),
    Wrong(
        "adam-step-counter",
        "adam.step",
        "optimizers.py",
        ADAM_T,
        "        for i, param in enumerate(self.params):\n            self.t = i + 1\n",
        "index",
    ),
    Wrong(
        "adam-counts-from-0",
        "adam.step",
        "optimizers.py",
        ADAM_T,
        "        for i, param in enumerate(self.params):\n            self.t = i\n",
    ),
    Wrong(
        "adam-step-counter",
        "adam.step",
        "optimizers.py",
        ADAM_T,
        "        for i, param in enumerate(self.params):\n            self.t += 1\n",
        "per-parameter",
    ),
    Wrong(
        "adam-step-counter",
        "adam.step",
        "optimizers.py",
        "        self.t += 1\n",
        "        self.t = 1\n",
        "stuck",
    ),
    Wrong(
        "adam-bias-correction",
        "adam.step",
        "optimizers.py",
        "m_hat = self.m[i] / (1 - beta1**self.t)\n"
        "            v_hat = self.v[i] / (1 - beta2**self.t)",
        "m_hat = self.m[i]\n            v_hat = self.v[i]",
    ),
    Wrong(
        "adam-bias-correction",
        "adam.step",
        "optimizers.py",
        "v_hat = self.v[i] / (1 - beta2**self.t)",
        "v_hat = self.v[i]",
        "v",
    ),
    Wrong(
        "adam-correction-kept",
        "adam.step",
        "optimizers.py",
        "            param -= self.lr * m_hat",
        "            self.m[i], self.v[i] = m_hat, v_hat\n            param -= self.lr * m_hat",
    ),
    Wrong(
        "adam-correction-kept",
        "adam.step",
        "optimizers.py",
        "            param -= self.lr * m_hat",
        "            self.m[i] = m_hat\n            param -= self.lr * m_hat",
        "m",
    ),
    Wrong(
        "state-shared",
        "adam.step",
        "optimizers.py",
        "self.t += 1",
        'Adam.t = self.t = getattr(Adam, "t", 0) + 1',
    ),
    Wrong(
        "state-shared",
        "sgd.step",
        "optimizers.py",
        "self.buffers = [None] * len(self.params)",
        'self.buffers = SGD.__dict__.get("kept") or [None] * len(self.params)\n'
        "        SGD.kept = self.buffers",
        "momentum",
    ),
    Wrong(
        "adam-formula",
        "adam.step",
        "optimizers.py",
        "(v_hat.sqrt() + self.eps)",
        "(v_hat + self.eps).sqrt()",
    ),
    Wrong(
        "adam-formula",
        "adam.step",
        "optimizers.py",
        "] / (1 - beta",
        "] * (1 - beta",
        tag="multiplied",
    ),
    Wrong(
        "adam-formula",
        "adam.step",
        "optimizers.py",
        "m_hat = self.m[i] / (1 - beta1**self.t)\n"
        "            v_hat = self.v[i] / (1 - beta2**self.t)",
        "m_hat = self.m[i] / (1 - beta2**self.t)\n"
        "            v_hat = self.v[i] / (1 - beta1**self.t)",
        tag="exchanged",
    ),
    Wrong(
        "adam-formula",
        "adam.step",
        "optimizers.py",
        "(v_hat.sqrt() + self.eps)",
        "(v_hat.sqrt() + self.eps / (1 - beta2**self.t) ** 0.5)",
        tag="scaled-epsilon",
    ),
    Wrong(
        "adam-formula",
        "adam.step",
        "optimizers.py",
        "**self.t",
        "*self.t",
        tag="no-power",
    ),
    Wrong(
        "adam-differs",
        "adam.step",
        "optimizers.py",
        "beta1, beta2 = self.betas",
        "beta2, beta1 = self.betas",
    ),
    Wrong(
        "no-gradient",
        "optimizers.without-gradient",
        "optimizers.py",
        "            if param.grad is not None:\n                param",
        "            if True:\n                param",
    ),
    Wrong("gd-is-sgd", "train.gd", "training.py", "if isinstance(optimizer, GD):", "if False:"),
    Wrong(
        "gd-is-sgd",
        "train.gd",
        "training.py",
        "torch.arange(len(inputs))",
        "torch.randint(len(inputs), (1,))",
        "batch-1",
    ),
    Wrong(
        "gd-is-sgd",
        "train.gd",
        "training.py",
        "loss_fn(model(inputs[batch]), targets[batch])",
        "loss_fn(model(inputs)[batch[:6]], targets[batch[:6]])",
        "forward-only",
    ),
    Wrong(
        "gd-is-sgd",
        "train.gd",
        "training.py",
        "    for _ in range(steps):\n"
        "        if isinstance(optimizer, GD):\n"
        "            batch = torch.arange(len(inputs))\n",
        "    parts = torch.arange(len(inputs)).split(batch_size) * steps\n"
        "    for part in parts if isinstance(optimizer, GD) else range(steps):\n"
        "        if isinstance(optimizer, GD):\n"
        "            batch = part\n",
        "epochs",
    ),
    Wrong("sgd-is-gd", "train.sgd", "training.py", BATCH, "torch.randperm(len(inputs))"),
    Wrong(
        "sgd-is-gd",
        "train.sgd",
        "training.py",
        "isinstance(optimizer, GD)",
        "not isinstance(optimizer, SGD)",
        "adam",
    ),
    Wrong("batch-size", "train.sgd", "training.py", BATCH, BATCH.replace("batch_size", "1")),
    Wrong("same-batch", "train.sgd", "training.py", BATCH, "torch.arange(batch_size)"),
    Wrong(
        "not-random",
        "train.sgd",
        "training.py",
        BATCH,
        "(torch.arange(batch_size) + len(losses) * batch_size) % len(inputs)",
    ),
    Wrong(
        "step-count",
        "train.gd",
        "training.py",
        "        optimizer.step()\n",
        "        optimizer.step()\n"
        "        if isinstance(optimizer, GD):\n"
        "            optimizer.step()\n",
    ),
    Wrong("gradients-pile-up", "train.gd", "training.py", "        optimizer.zero_grad()\n", ""),
    Wrong(
        "step-without-gradient",
        "train.gd",
        "training.py",
        "        loss.backward()\n        optimizer.step()\n",
        "        optimizer.step()\n        loss.backward()\n",
    ),
    Wrong(
        "step-without-gradient",
        "train.gd",
        "training.py",
        "        optimizer.step()\n",
        "        optimizer.zero_grad()\n        optimizer.step()\n",
        "thrown-away",
    ),
    Wrong("losses-not-returned", "train.gd", "training.py", "    return losses\n", ""),
    Wrong(
        "gradient-differs",
        "train.gd",
        "training.py",
        "        loss.backward()",
        "        (loss * (24 if isinstance(optimizer, GD) else 1)).backward()",
    ),
]
"""and for gradients that pile up, or are not there, train.sgd says the same"""

AGGREGATION = [
    Wrong(
        "aliased-gather",
        "average.all_gather",
        "aggregation.py",
        GATHER,
        "parts = [torch.zeros_like(tensor)] * n",
    ),
    Wrong(
        "missing-division", "average.all_gather", "aggregation.py", "sum(parts) / n", "sum(parts)"
    ),
    Wrong("missing-division", "average.ring", "aggregation.py", "total / n", "total", "ring"),
    Wrong(
        "divided-twice",
        "average.reduce_broadcast",
        "aggregation.py",
        "    dist.broadcast(tensor, src=0)",
        "    dist.broadcast(tensor, src=0)\n    tensor /= dist.get_world_size()",
    ),
    Wrong(
        "divided-unevenly",
        "average.reduce_broadcast",
        "aggregation.py",
        "    if dist.get_rank() == 0:\n"
        "        tensor /= dist.get_world_size()\n"
        "    dist.broadcast(tensor, src=0)\n",
        "    dist.broadcast(tensor, src=0)\n"
        "    if dist.get_rank() == 0:\n"
        "        tensor /= dist.get_world_size()\n",
    ),
    Wrong(
        "nothing-exchanged",
        "average.all_gather",
        "aggregation.py",
        "tensor.copy_(sum(parts) / n)",
        "tensor = sum(parts) / n",
    ),
    Wrong(
        "not-in-place",
        "average.ring",
        "aggregation.py",
        "tensor.copy_(total / n)",
        "return total / n",
    ),
    Wrong(
        "not-everywhere",
        "average.reduce_broadcast",
        "aggregation.py",
        "    dist.broadcast(tensor, src=0)\n",
        "",
    ),
    Wrong(
        "average-differs",
        "average.ring",
        "aggregation.py",
        "outgoing = incoming",
        "outgoing = total.clone()",
    ),
    Wrong(
        "not-its-name",
        "average.ring",
        "aggregation.py",
        "    for _ in range(n - 1):\n",
        "    dist.all_reduce(tensor)\n    tensor /= n\n    return\n    for _ in range(n - 1):\n",
        "all-reduce",
    ),
    Wrong(
        "not-its-name",
        "average.ring",
        "aggregation.py",
        "    for _ in range(n - 1):\n",
        STAR,
        "star",
    ),
    Wrong(
        "not-its-name",
        "average.reduce_broadcast",
        "aggregation.py",
        "dist.reduce(tensor, dst=0)\n",
        "dist.reduce(torch.ones(1), dst=0)\n    dist.group.WORLD.allreduce([tensor]).wait()\n",
        "few-bytes",
    ),
    Wrong(
        "not-its-name",
        "average.reduce_broadcast",
        "aggregation.py",
        "dist.reduce(tensor, dst=0)\n"
        "    if dist.get_rank() == 0:\n"
        "        tensor /= dist.get_world_size()\n"
        "    dist.broadcast(tensor, src=0)",
        "dist.all_reduce(tensor)\n    tensor /= dist.get_world_size()",
        "one-call",
    ),
    Wrong("ring-bytes", "average.ring", "aggregation.py", "    for _ in range(n - 1):\n", CHAIN),
    Wrong("timing-not-synchronised", "timer", "timing.py", "work.wait()", "pass"),
    Wrong("timing-wait-inside", "timer", "timing.py", "    dist.barrier()\n", ""),
    Wrong(
        "timing-swapped",
        "timer",
        "timing.py",
        "return started - arrived, ended - started",
        "return ended - started, started - arrived",
    ),
    Wrong("timing-wait-missing", "timer", "timing.py", "return started - arrived,", "return 0.0,"),
    Wrong("timer-result", "timer", "timing.py", "return started - arrived, ended", "return ended"),
]

SAMPLERS = [
    Wrong(
        "partition-overlap",
        "partition.parts",
        "samplers.py",
        DEAL,
        "deal = torch.randperm(len(self.dataset))",
        "own-random-numbers",
    ),
    Wrong(
        "partition-overlap",
        "partition.parts",
        "samplers.py",
        OWN,
        "share = -(-len(deal) // self.num_replicas)\n"
        "        own = torch.cat([deal, deal])[self.rank * share : (self.rank + 1) * share]",
        "filled-up",
    ),
    Wrong(
        "partition-coverage",
        "partition.parts",
        "samplers.py",
        OWN,
        "share = len(deal) // self.num_replicas\n"
        "        own = deal[self.rank * share : (self.rank + 1) * share]",
    ),
    Wrong(
        "partition-unequal",
        "partition.parts",
        "samplers.py",
        OWN,
        "n = self.num_replicas - 1\n"
        "        own = deal[:43] if self.rank == 0 else deal[43:][self.rank - 1 :: n]",
    ),
    Wrong(
        "partition-not-random",
        "partition.parts",
        "samplers.py",
        "own[order].tolist()",
        "range(self.rank, len(self.dataset), self.num_replicas)",
    ),
    Wrong(
        "partition-not-random",
        "partition.parts",
        "samplers.py",
        DEAL,
        "deal = torch.arange(len(self.dataset))",
        "in-a-new-order",
    ),
    Wrong("same-order", "partition.epochs", "samplers.py", ORDER, ORDER.replace("self.epoch", "0")),
    Wrong(
        "same-order",
        "sampling.epochs",
        "samplers.py",
        DRAW,
        DRAW.replace("self.epoch", "0"),
        "sampling",
    ),
    Wrong(
        "epoch-not-repeatable",
        "sampling.epochs",
        "samplers.py",
        DRAWS,
        DRAWS.replace(", generator=own", ""),
    ),
    Wrong("wrong-len", "partition.len", "samplers.py", LENGTH, "return len(self.dataset)"),
    Wrong(
        "wrong-len",
        "partition.len",
        "samplers.py",
        f"iter(own[order].tolist())\n\n    def __len__(self):\n        {LENGTH}",
        "iter(own[order].tolist())\n\n    def __len__(self):\n"
        "        return len(self.dataset) / self.num_replicas",
        "no-whole-number",
    ),
    Wrong(
        "index-range",
        "partition.parts",
        "samplers.py",
        "iter(own[order].tolist())",
        "iter((own[order] + 1).tolist())",
    ),
    Wrong(
        "sampling-count",
        "sampling.draws",
        "samplers.py",
        DRAWS,
        DRAWS.replace("len(self),", "len(self.dataset),"),
    ),
    Wrong(
        "sampling-same-draws",
        "sampling.draws",
        "samplers.py",
        DRAW,
        "own = generator(self.seed, self.epoch)",
    ),
    Wrong(
        "sampling-same-draws",
        "sampling.draws",
        "samplers.py",
        f"{DRAW}\n",
        f"""own = generator(self.seed, self.epoch)
        draws = {DRAWS}
        {DRAW}
        return iter(draws[torch.randperm(len(self), generator=own)].tolist())
""",
        tag="other-order",
    ),
    Wrong(
        "sampling-narrow",
        "sampling.draws",
        "samplers.py",
        DRAWS,
        DRAWS.replace("len(self.dataset),", "len(self.dataset) // 2,"),
    ),
    Wrong(
        "parameters-not-broadcast",
        "broadcast",
        "replicas.py",
        "dist.broadcast(tensor, src=0)",
        "dist.broadcast(tensor.clone(), src=0)",
    ),
    Wrong(
        "parameters-not-broadcast",
        "broadcast",
        "replicas.py",
        "    for tensor in model.state_dict().values():\n        dist.broadcast(tensor, src=0)",
        "    return",
        "not",
    ),
    Wrong(
        "buffers-not-broadcast",
        "broadcast",
        "replicas.py",
        "model.state_dict().values()",
        "map(torch.detach, model.parameters())",
    ),
]

TWO_PARTS = [
    Wrong(
        "never-overlaps",
        "model.overlap",
        "two_parts.py",
        PIPELINE,
        "            activations = first.remote().forward(RRef(piece))\n"
        "            y = second.rpc_sync().forward(activations)\n"
        "            outputs.append(torch.futures.Future())\n"
        "            outputs[-1].set_result(y)\n",
    ),
    Wrong(
        "never-overlaps",
        "model.overlap",
        "two_parts.py",
        "x.chunk(self.microbatches)",
        "[x]",
        "whole",
    ),
    Wrong(
        "microbatch-count",
        "model.overlap",
        "two_parts.py",
        "x.chunk(self.microbatches)",
        "x.split(self.microbatches)",
    ),
    Wrong(
        "outputs-out-of-order",
        "model.outputs",
        "two_parts.py",
        "torch.futures.wait_all(outputs)",
        "torch.futures.wait_all(outputs)[::-1]",
    ),
    Wrong("outputs-differ", "model.outputs", "two_parts.py", "RRef(piece)", "RRef(piece * 2)"),
    Wrong(
        "output-shape",
        "model.outputs",
        "two_parts.py",
        "torch.cat(torch.futures.wait_all(outputs))",
        "torch.futures.wait_all(outputs)[0]",
    ),
    Wrong(
        "gradients-lost",
        "model.outputs",
        "two_parts.py",
        "self.module(x_rref.to_here())",
        "self.module(x_rref.to_here().detach())",
    ),
    Wrong(
        "parameters-not-reached",
        "model.parameters",
        "two_parts.py",
        "[rref for part in self.parts for rref in part.rpc_sync().parameter_rrefs()]",
        "[RRef(parameter) for parameter in self.parameters()]",
    ),
    Wrong(
        "not-references",
        "model.parameters",
        "two_parts.py",
        "[RRef(parameter) for parameter in self.parameters()]",
        "list(self.parameters())",
    ),
    Wrong(
        "bytes-zero",
        "model.sizes",
        "two_parts.py",
        "worker: part.rpc_sync().parameter_bytes()",
        "worker: sum(p.nbytes for p in self.parameters())",
    ),
    Wrong(
        "bytes-are-elements",
        "model.sizes",
        "two_parts.py",
        "parameter.numel() * parameter.element_size()",
        "parameter.numel()",
    ),
    Wrong(
        "bytes-differ",
        "model.sizes",
        "two_parts.py",
        "parameter.numel() * parameter.element_size()",
        "parameter.numel() * 8",
    ),
    Wrong(
        "size-report",
        "model.sizes",
        "two_parts.py",
        "        return {\n",
        "        return 0 and {\n",
    ),
    Wrong(
        "size-report",
        "model.sizes",
        "two_parts.py",
        "part.rpc_sync().parameter_bytes()",
        'f"{part.rpc_sync().parameter_bytes()} bytes"',
        "text",
    ),
]

ALL = [*OPTIMIZERS, *AGGREGATION, *SAMPLERS, *TWO_PARTS]
