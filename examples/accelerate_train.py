"""The same job with Accelerate: it finds the variables of the launcher by itself.

    python accelerate_train.py                                          one process
    drumline run -j 1x2 accelerate_train.py                             two workers
    drumline run -j 1x2 accelerate_train.py --comm-hook chunked_ring    gradients by a ring

Needs: pip install 'drumline[accelerate]'
"""

import argparse
import os

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import drumline
from drumline.comm import Meter
from drumline.data import Split, build_dataset
from drumline.spec.data import DataSpec

BATCH = 16  # samples per step on each rank


def as_tensors(split: Split) -> TensorDataset:
    return TensorDataset(*split.batch(np.arange(len(split))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--comm-hook", metavar="KIND", help="ring, chunked_ring, all_gather, …")
    options = parser.parse_args()

    # nccl wants a GPU for each rank; with fewer, all ranks use the CPU.
    enough_gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    accelerator = Accelerator(cpu=not enough_gpus)
    train(accelerator, options)
    # The model goes before the process group does: with gloo, torch can hang where a DDP model
    # outlives its group (pytorch/pytorch#56297).
    accelerator.free_memory()
    accelerator.end_training()


def train(accelerator: Accelerator, options: argparse.Namespace) -> None:
    set_seed(1234)
    digits = build_dataset(DataSpec(name="mnist-mini"), seed=1234, dtype=torch.float32)
    model, optimizer, train_loader, test_loader = build(accelerator, digits.train, digits.test)
    meter = Meter()
    if options.comm_hook and isinstance(model, DistributedDataParallel):  # not with one process
        model.register_comm_hook(*drumline.comm_hook(options.comm_hook, meter=meter))

    for epoch in range(options.epochs):
        loss = train_epoch(accelerator, model, optimizer, train_loader)
        accelerator.print(f"epoch {epoch}: loss {loss:.4f}")
    accelerator.print(f"test accuracy {test(accelerator, model, test_loader):.1%}")
    if meter.spans:
        accelerator.print(f"{options.comm_hook} averaged {len(meter.spans)} buckets of gradients")


def build(accelerator: Accelerator, train: Split, test: Split) -> tuple:
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train_loader = DataLoader(as_tensors(train), batch_size=BATCH, shuffle=True)
    test_loader = DataLoader(as_tensors(test), batch_size=250)
    return accelerator.prepare(model, optimizer, train_loader, test_loader)


def train_epoch(accelerator, model, optimizer, loader) -> float:
    total = torch.zeros((), device=accelerator.device)
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        total += loss.detach()
    return accelerator.reduce(total / len(loader), "mean").item()


@torch.no_grad()
def test(accelerator, model, loader) -> float:
    correct = count = 0
    for inputs, labels in loader:
        guesses = model(inputs).argmax(1)
        guesses, labels = accelerator.gather_for_metrics((guesses, labels))
        correct += (guesses == labels).sum().item()
        count += len(labels)
    return correct / count


if __name__ == "__main__":
    main()
