"""Lab 3: whose samples are whose, and do all ranks begin with the same model?

Samplers of all ranks are looked at side by side, over some epochs. For the broadcast each rank
builds a model from its own random numbers, and calls the student's function once.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations, pairwise
from typing import Any

import torch
from torch import nn

from drumline.core.json_lines import Message
from drumline.grader.pictures import draw_coverage, draw_table
from drumline.grader.ranks import fingerprint, on_ranks
from drumline.grader.submission import Submission, Wrong

PARTITION, SAMPLING = "RandomPartitionSampler", "RandomSamplingSampler"
_SAMPLES = 103
_RANKS = 4  # does not divide it, on purpose
_SEED = 5
_EPOCHS = 40  # after so many, chance alone leaves no sample out
_REPLICAS = 3


class Numbers(torch.utils.data.Dataset[int]):
    """A data set whose samples are their own indices."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def check_partition(submission: Submission) -> None:
    """Check the student's partition sampler: do the parts cover the data, each sample once?"""
    for epoch in (0, 1):
        parts = [_draw(sampler, epoch) for sampler in _build(submission, PARTITION)]
        seen, counts = _check_indices(parts, PARTITION)
        distinct = len(set().union(*seen))
        fail = partial(
            Wrong,
            picture=draw_coverage(seen, _SAMPLES),
            epoch=epoch,
            samples=_SAMPLES,
            ranks=_RANKS,
            distinct=distinct,
            counts=", ".join(map(str, counts)),
        )
        if (twice := sum(counts) - distinct) > 0:
            raise fail("partition-overlap", picture=_overlap(seen), twice=twice)
        if distinct < _SAMPLES:
            raise fail("partition-coverage", missing=_SAMPLES - distinct)
        if max(counts) - min(counts) > 1:
            raise fail("partition-unequal")
        # cut from the data as they lie, in a piece or every n-th, in any order
        regular = all(len({b - a for a, b in pairwise(sorted(part))}) == 1 for part in parts)
        if regular or parts[0] == sorted(parts[0]):
            raise fail("partition-not-random")


def check_sampling(submission: Submission) -> None:
    """Check the student's random sampler: does every rank draw from all the data, its own?"""
    samplers = _build(submission, SAMPLING)
    seen, counts = _check_indices([_draw(sampler, 0) for sampler in samplers], SAMPLING)
    fail = partial(Wrong, samples=_SAMPLES, ranks=_RANKS, counts=", ".join(map(str, counts)))
    low, high = _SAMPLES // _RANKS, -(-_SAMPLES // _RANKS)
    if not all(low <= count <= high for count in counts):
        raise fail("sampling-count", picture=draw_coverage(seen, _SAMPLES), low=low, high=high)
    same = {rank for pair in combinations(range(_RANKS), 2) if _alike(seen, *pair) for rank in pair}
    if same:
        named, distinct = ", ".join(map(str, sorted(same))), len(set().union(*seen))
        raise fail("sampling-same-draws", picture=_overlap(seen), same=named, distinct=distinct)
    for rank, sampler in enumerate(samplers):
        ever = set().union(*(_draw(sampler, epoch) for epoch in range(_EPOCHS)))
        repeated = _draw(sampler, 0) == _draw(sampler, 1) == _draw(sampler, 2)
        if len(ever) < _SAMPLES * 0.97 and not repeated:  # that is another check's
            picture = draw_coverage([ever], _SAMPLES)[0].replace("rank 0", f"rank {rank}")
            facts = {"rank": rank, "epochs": _EPOCHS, "ever": len(ever)}
            raise fail("sampling-narrow", picture=[picture], **facts)


def check_epochs(name: str, submission: Submission) -> None:
    """Check the student's sampler: a new order in each epoch, which can be repeated?"""
    for rank, sampler in enumerate(_build(submission, name)):
        orders = [_draw(sampler, epoch) for epoch in range(3)]
        rows = [[epoch, ", ".join(map(str, order[:8]))] for epoch, order in enumerate(orders)]
        picture = draw_table(["epoch", "first indices"], rows)
        if orders[0] == orders[1] == orders[2]:
            raise Wrong("same-order", picture=picture, name=name, rank=rank)
        if _draw(sampler, 1) != orders[1]:
            raise Wrong("epoch-not-repeatable", picture=picture, name=name, rank=rank)


def check_len(name: str, submission: Submission) -> None:
    """Check the student's sampler: does `len` give how many indices come?"""
    told, counted = [], []
    for sampler in _build(submission, name):
        told.append(sampler.__len__())  # len() would refuse a float without saying whose
        counted.append(len(_draw(sampler, 0)))
    if told != counted:
        rows = [[rank, counted[rank], told[rank]] for rank in range(_RANKS)]
        picture = draw_table(["rank", "indices", "len()"], rows)
        facts = {"told": told[0], "counted": counted[0], "samples": _SAMPLES}
        raise Wrong("wrong-len", picture=picture, name=name, **facts)


def _build(submission: Submission, name: str) -> list[Any]:
    """Make the samplers of all ranks, each as in a process of its own: other random numbers."""
    kind = submission.take("samplers", name)
    samplers = []
    for rank in range(_RANKS):
        torch.manual_seed(1000 + rank)
        samplers.append(kind(Numbers(), num_replicas=_RANKS, rank=rank, seed=_SEED))
    return samplers


def _draw(sampler: Any, epoch: int) -> list[int]:
    sampler.set_epoch(epoch)
    return [int(index) for index in sampler]


def _check_indices(parts: list[list[int]], name: str) -> tuple[list[set[int]], list[int]]:
    """Return which samples each rank has, and how many indices, if these are indices."""
    for rank, part in enumerate(parts):
        off = [index for index in part if not 0 <= index < _SAMPLES]
        if off or not part:
            got = str(off[0]) if off else "—"
            raise Wrong("index-range", name=name, rank=rank, got=got, last=_SAMPLES - 1)
    return [set(part) for part in parts], [len(part) for part in parts]


def _alike(seen: list[set[int]], one: int, other: int) -> bool:
    """Whether two ranks saw the same samples, in any order: by chance they share a quarter."""
    return len(seen[one] & seen[other]) > 0.9 * min(len(seen[one]), len(seen[other]))


def _overlap(seen: list[set[int]]) -> list[str]:
    """Write how many samples each pair of ranks has in common, above who saw what."""
    names = [f"rank {rank}" for rank in range(len(seen))]
    rows = [
        [name, *(len(mine & other) for other in seen)]
        for name, mine in zip(names, seen, strict=True)
    ]
    return [*draw_table(["both saw", *names], rows), "", *draw_coverage(seen, _SAMPLES)]


def check_broadcast(submission: Submission) -> None:
    """Check the student's broadcast: has every rank rank 0's parameters and buffers after it?"""
    answers = on_ranks(_broadcast, _REPLICAS, submission)
    source = answers[0]["before"]
    rows, off = [], []
    for name in source:
        after = [answer["after"][name] for answer in answers]
        rows.append([name, f"{source[name]:.4f}", *(f"{value:.4f}" for value in after)])
        if any(abs(value - source[name]) > 1e-6 for value in after):
            off.append(name)
    if not off:
        return
    picture = draw_table(["", "rank 0 had", *(f"rank {rank}" for rank in range(_REPLICAS))], rows)
    buffers = [name for name in off if name.startswith("norm.running")]
    moved = off if len(off) == len(buffers) else [name for name in off if name not in buffers]
    mistake = "buffers-not-broadcast" if moved == buffers else "parameters-not-broadcast"
    raise Wrong(mistake, picture=picture, off=", ".join(moved), count=len(moved), ranks=_REPLICAS)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.norm.running_mean.normal_()  # type: ignore[union-attr]
        nn.init.normal_(self.norm.weight)


def _broadcast(rank: int, submission: Submission) -> Message:
    function = submission.take("replicas", "broadcast_parameters")
    torch.manual_seed(100 + rank)
    model = _Model()
    before = _fingerprints(model)
    function(model)
    return {"before": before, "after": _fingerprints(model)}


def _fingerprints(model: nn.Module) -> dict[str, float]:
    return {
        name: fingerprint(tensor.double())
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point() and name != "norm.bias" and not name.endswith("_var")
    }
