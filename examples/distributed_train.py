"""A plain PyTorch script: one linear layer, DDP, a DataLoader. Nothing in it starts processes.

It reads the variables that every launcher sets, so the same file runs in three ways:

    python distributed_train.py                              one process
    drumline run -j 1x2 distributed_train.py                 two workers
    torchrun --nproc-per-node 2 distributed_train.py         the same two, by torchrun
"""

import argparse
import os
from itertools import islice

import numpy as np
import torch
from torch import nn
from torch.distributed import all_reduce, destroy_process_group, get_rank, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, TensorDataset

from drumline.data import PartitionSampler, Split, build_dataset
from drumline.spec.data import DataSpec, PartitionSpec

BATCH = 16  # samples per step on each rank


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(28 * 28, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.view(-1, 28 * 28))


def as_tensors(split: Split) -> TensorDataset:
    return TensorDataset(*split.batch(np.arange(len(split))))


def train(device: torch.device, rank: int, world_size: int, epochs: int) -> None:
    torch.manual_seed(1234)
    model = Net().to(device)
    ddp_model = DDP(model, device_ids=[device.index] if device.type == "cuda" else None)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.01)

    digits = build_dataset(DataSpec(name="mnist-mini"), seed=1234, dtype=torch.float32)
    dataset = as_tensors(digits.train)
    sampler = PartitionSampler(
        spec=PartitionSpec(kind="shuffle"),
        n=len(dataset),
        rank=rank,
        world_size=world_size,
        seed=1234,
    )
    dataloader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    # DDP waits for every rank at every step, so all must take the same number of steps.
    steps = len(dataset) // (BATCH * world_size)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # a new order each epoch, the same one on all ranks
        total = torch.zeros((), device=device)
        for inputs, labels in islice(dataloader, steps):
            inputs, labels = inputs.to(device), labels.to(device)
            loss = loss_fn(ddp_model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch}: loss {total.item() / (steps * world_size):.4f}")

    if rank == 0:
        print(f"test accuracy {test(model, as_tensors(digits.test), device):.1%}")


@torch.no_grad()
def test(model: nn.Module, dataset: TensorDataset, device: torch.device) -> float:
    inputs, labels = (tensor.to(device) for tensor in dataset.tensors)
    return (model(inputs).argmax(1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs

    if "RANK" not in os.environ:  # nobody launched us: be the only process
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
        os.environ["MASTER_PORT"] = "0"  # any free one
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    # nccl wants a GPU for each rank; with fewer, all ranks use the CPU.
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1)):
        device, backend = torch.device("cuda", local_rank), "nccl"
        torch.cuda.set_device(device)
    else:
        device, backend = torch.device("cpu"), "gloo"
    init_process_group(backend)
    world_size = int(os.environ["WORLD_SIZE"])
    print(f"rank {get_rank()} of {world_size} on {device}, {backend}")
    train(device, get_rank(), world_size, epochs)
    destroy_process_group()  # after `train` has returned: a DDP model must not outlive its group


if __name__ == "__main__":
    main()
