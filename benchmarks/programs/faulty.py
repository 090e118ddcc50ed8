"""Six ordinary training programs, and a fault that can be put into any of them: see `faults.py`.

    torchrun --nproc-per-node 3 benchmarks/programs/faulty.py ddp --fault hang --at forward --rank 1

The programs know nothing of Drumline. Each is written as users of its framework write, over the
same samples and the same model, and averages its loss over the ranks after each step. The fault
strikes one rank where the program reads a sample, in forward, in backward, or before that average.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH = 16
WIDTH = 256
DELAYS = ("sleep", "busy")
HANGS = ("hang", "lock", "stopped")
MISMATCHES = ("broadcast", "size", "barrier")
DEATHS = ("raise", "kill", "exit", "leave")
WORK = ("evaluation", "checkpoint", "compile")
"""what takes long, and is no fault"""


class Fault:
    """What strikes one rank, at one place of its steps."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.kind, self.at, self.first = args.fault, args.at, args.first
        self.delay_s, self.steps = args.ms / 1000, args.steps
        faulty = args.fault not in ("none", *WORK)
        self.here = faulty and int(os.environ["RANK"]) == args.rank
        self.step = 0

    def strike(self, place: str, share: int = 1) -> None:
        """Do what this fault does, or a share of a delay, if it strikes this rank here and now."""
        if not self.here or place != self.at or self.step < self.first:
            return
        if self.kind not in DELAYS:
            Path("struck").write_text(str(time.time()))
            self.first = sys.maxsize
        if self.kind == "sleep":
            time.sleep(self.delay_s / share)
        elif self.kind == "busy":
            until = time.perf_counter() + self.delay_s / share
            while time.perf_counter() < until:
                torch.ones(64, 64) @ torch.ones(64, 64)
        elif self.kind == "hang":
            time.sleep(3600)
        elif self.kind == "lock":
            reader, _ = os.pipe()
            os.read(reader, 1)
        elif self.kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "broadcast":
            dist.broadcast(torch.zeros(1), src=dist.get_rank())
        elif self.kind == "size":
            dist.all_reduce(torch.zeros(7))
        elif self.kind == "barrier":
            dist.barrier()
        elif self.kind == "raise":
            raise ValueError("this rank's sample is broken")
        elif self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "exit":
            os._exit(3)
        elif self.kind == "leave":
            os._exit(0)


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """Random samples of ten classes."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.inputs, self.targets = torch.randn(4096, 64), torch.randint(0, 10, (4096,))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.fault.strike("data", share=BATCH)
        return self.inputs[index], self.targets[index]


class Net(nn.Module):
    """Three linear layers."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault
        self.first, self.second = nn.Linear(64, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        """Score samples."""
        self.fault.strike("forward")
        hidden = self.first(inputs).relu()
        if hidden.requires_grad and self.fault.at == "backward":
            hidden.register_hook(lambda _gradient: self.fault.strike("backward"))
        scores: Tensor = self.last(self.second(hidden).relu())
        return scores


def batches(fault: Fault, sampler: Any = None) -> DataLoader[tuple[Tensor, Tensor]]:
    return DataLoader(Samples(fault), BATCH, sampler=sampler, shuffle=sampler is None)


def after_step(fault: Fault, loss: Tensor, model: nn.Module) -> None:
    """Average the loss over the ranks; in the middle of the training do what takes long."""
    fault.step += 1
    fault.strike("collective")
    averaged = loss.detach().clone().reshape(1)
    dist.all_reduce(averaged)
    if fault.step == fault.steps // 2:
        if fault.kind == "evaluation":
            evaluate(model)
        elif fault.kind == "checkpoint":
            save(model)


def evaluate(model: nn.Module) -> None:
    """Evaluate on rank 0, for 12 seconds; the others wait."""
    until = time.monotonic() + 12
    while dist.get_rank() == 0 and time.monotonic() < until:
        torch.ones(500, 500) @ torch.ones(500, 500)
    dist.barrier()


class SlowDisk:
    """A file that takes 20 seconds, as a network's does."""

    def __init__(self, path: Path) -> None:
        self.file, self.until = path.open("wb"), time.monotonic() + 20

    def write(self, content: bytes) -> int:
        """Write after a while."""
        while time.monotonic() < self.until:
            time.sleep(0.5)
        return self.file.write(content)

    def flush(self) -> None:
        """Write out what is buffered."""
        self.file.flush()


def save(model: nn.Module) -> None:
    """Save a checkpoint on rank 0, in 20 seconds; the others wait."""
    if dist.get_rank() == 0:
        torch.save(
            {name: one.shape for name, one in model.named_parameters()}, SlowDisk(Path("c.pt"))
        )
    dist.barrier()


def compiled(fault: Fault, model: nn.Module) -> nn.Module:
    return torch.compile(model) if fault.kind == "compile" else model


def train(fault: Fault, model: nn.Module, average: Callable[[nn.Module], nn.Module]) -> None:
    """The usual loop, over a model whose gradients or parameters the ranks share."""
    shared = average(model)
    run = compiled(fault, shared)
    optimizer = torch.optim.SGD(shared.parameters(), lr=0.01)
    loader = batches(fault, DistributedSampler(Samples(fault)))
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(run(inputs), targets)
            loss.backward()
            optimizer.step()
            after_step(fault, loss, shared)
            if fault.step == fault.steps:
                return


def ddp(fault: Fault) -> None:
    dist.init_process_group("gloo")
    train(fault, Net(fault), nn.parallel.DistributedDataParallel)
    dist.destroy_process_group()


def fsdp2(fault: Fault) -> None:
    from torch.distributed.fsdp import fully_shard

    def sharded(model: nn.Module) -> nn.Module:
        for layer in model.children():
            fully_shard(layer)
        return fully_shard(model)

    dist.init_process_group("gloo")
    train(fault, Net(fault), sharded)
    dist.destroy_process_group()


def loop(fault: Fault) -> None:
    """No model, no optimizer: numbers that are added up over the ranks."""
    dist.init_process_group("gloo")
    work = compiled(fault, nn.Linear(WIDTH, WIDTH))
    for _ in range(fault.steps):
        fault.strike("data")
        numbers = work(torch.randn(WIDTH, WIDTH)).detach()
        fault.strike("forward")
        dist.all_reduce(numbers)
        after_step(fault, numbers.mean(), work)
    dist.destroy_process_group()


def accelerate(fault: Fault) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Net(fault)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, batches(fault))
    run = compiled(fault, model)
    while fault.step < fault.steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(run(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            after_step(fault, loss, model)
            if fault.step == fault.steps:
                break
    accelerator.end_training()


def lightning(fault: Fault) -> None:
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(fault)

        def training_step(self, batch: Any, _index: int) -> Tensor:
            inputs, targets = batch
            return nn.functional.cross_entropy(compiled_net(inputs), targets)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def on_train_batch_end(self, outputs: Any, *_: Any) -> None:
            after_step(fault, outputs["loss"], self)

    module = Module()
    compiled_net = compiled(fault, module.net)
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=local,
        num_nodes=int(os.environ["WORLD_SIZE"]) // local,
        strategy="ddp",
        max_steps=fault.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, batches(fault))


def transformers(fault: Fault) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = compiled(fault, Net(fault))

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            scores = self.net(inputs)
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    class AfterStep(TrainerCallback):
        def on_step_end(self, *_: Any, **parts: Any) -> None:
            after_step(fault, torch.zeros(1), parts["model"])

    def collate(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        inputs, labels = zip(*samples, strict=True)
        return {"inputs": torch.stack(inputs), "labels": torch.stack(labels)}

    arguments = TrainingArguments(
        output_dir="out",
        max_steps=fault.steps,
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    Trainer(
        model=Classifier(),
        args=arguments,
        train_dataset=Samples(fault),
        data_collator=collate,
        callbacks=[AfterStep()],
    ).train()


PROGRAMS = {
    program.__name__: program for program in (ddp, fsdp2, lightning, accelerate, transformers, loop)
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    kinds = ("none", *DELAYS, *HANGS, *MISMATCHES, *DEATHS, *WORK)
    parser.add_argument("--fault", choices=kinds, default="none")
    parser.add_argument("--at", choices=("data", "forward", "backward", "collective"))
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ms", type=float, default=0)
    parser.add_argument("--first", type=int, default=20, help="the step from which it strikes")
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    PROGRAMS[args.program](Fault(args))


if __name__ == "__main__":
    main()
