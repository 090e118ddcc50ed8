"""Lab 3: which samples does a rank train on? TASK.md, sections 2 and 3.

A sampler gives a DataLoader the indices of one rank's samples:

    sampler = RandomPartitionSampler(dataset, num_replicas=4, rank=rank)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader: ...

Every rank makes its own sampler, in its own process, and none asks the others: what must be the
same everywhere has to come from `seed` and `epoch` alone.
"""

import torch
from torch.utils.data import Sampler


def generator(seed, epoch=0, rank=0):
    return torch.Generator().manual_seed(1_000_003 * seed + 1_009 * epoch + rank)


class RandomPartitionSampler(Sampler):
    """The data is dealt out at random: every sample belongs to exactly one rank.

    Nothing is left out and nothing is given twice, also where the number of samples is not
    divisible by the number of ranks (then parts differ by one sample). The order is new in each
    epoch, and the same again for the same seed and epoch.
    """

    def __init__(self, dataset, num_replicas, rank, seed=0):
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        deal = torch.randperm(len(self.dataset), generator=generator(self.seed))
        own = deal[self.rank :: self.num_replicas]
        order = torch.randperm(len(own), generator=generator(self.seed, self.epoch, self.rank))
        return iter(own[order].tolist())

    def __len__(self):
        return len(range(self.rank, len(self.dataset), self.num_replicas))


class RandomSamplingSampler(Sampler):
    """Every rank draws its share of indices from ALL the data, by draws of its own.

    len(dataset) / num_replicas draws (rounded down or up). Ranks may draw the same sample now and
    then, and no epoch sees everything; but every rank can draw every sample, no two ranks draw
    alike, and each epoch draws anew. The same seed, epoch and rank draw the same again.
    """

    def __init__(self, dataset, num_replicas, rank, seed=0):
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        own = generator(self.seed, self.epoch, self.rank)
        return iter(torch.randint(len(self.dataset), (len(self),), generator=own).tolist())

    def __len__(self):
        return len(range(self.rank, len(self.dataset), self.num_replicas))
