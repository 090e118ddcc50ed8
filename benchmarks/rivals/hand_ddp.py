"""The job as a person writes it: DDP, a DataLoader with a DistributedSampler, a loop.

    torchrun --nproc-per-node 2 hand_ddp.py --data FOLDER --times PATH

`--sliced` takes whole batches out of one tensor instead of collating items, and `--channels-last`
changes the memory format: what one tunes by hand, so that the effect of each can be seen.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from job import CNN, LR, MEAN, MOMENTUM, STD, Digits, StepLog, arguments
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

SEED = 1234


def loaded(digits: Digits, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    sampler = DistributedSampler(digits, seed=SEED)
    loader = DataLoader(digits, batch_size=batch, sampler=sampler)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def sliced(digits: Digits, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    images = (digits.images.float() / 255 - MEAN) / STD
    labels = digits.labels.long()
    sampler = DistributedSampler(digits, seed=SEED)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for indices in torch.tensor(list(sampler)).split(batch):
            yield images[indices], labels[indices]
        epoch += 1


def train(args: Namespace) -> StepLog:
    torch.manual_seed(SEED)
    model = CNN()
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=LR, momentum=MOMENTUM)
    source = sliced if args.sliced else loaded
    batches = source(Digits(args.data), args.batch // dist.get_world_size())
    log = StepLog()
    for _ in range(args.steps):
        inputs, labels = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        log.mark()
    return log


def main() -> None:
    parser = arguments()
    parser.add_argument("--sliced", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    log = train(args)  # a DDP model that outlives its group can abort the process
    if dist.get_rank() == 0:
        log.write(args.times)
    dist.barrier()
    time.sleep(0.2)
    os._exit(0)  # gloo's destructors can abort the process; what comes now is not timed


if __name__ == "__main__":
    main()
