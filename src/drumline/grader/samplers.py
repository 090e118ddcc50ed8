"""Lab 3: whose samples are whose? All ranks' samplers side by side, over some epochs."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import torch

from drumline.grader.outcome import Wrong
from drumline.grader.pictures import coverage, table
from drumline.grader.submission import Submission

_SAMPLES, _RANKS = 103, 4  # not divisible on purpose
_SEED = 5
_EPOCHS = 40  # after so many, chance alone leaves no sample out
_PARTITION, _SAMPLING = "RandomPartitionSampler", "RandomSamplingSampler"


class Numbers(torch.utils.data.Dataset[int]):
    """A data set whose samples are their own indices."""

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def partition_parts(submission: Submission) -> None:
    """Do the ranks' parts cover the data, each sample once?"""
    for epoch in (0, 1):
        parts = [_draw(sampler, epoch) for sampler in _build(submission, _PARTITION)]
        seen = [set(part) for part in parts]
        _check_range(parts, _PARTITION)
        counts = [len(part) for part in parts]
        facts: dict[str, Any] = {
            "epoch": epoch,
            "samples": _SAMPLES,
            "ranks": _RANKS,
            "distinct": len(set().union(*seen)),
            "counts": ", ".join(map(str, counts)),
        }
        twice = sum(counts) - facts["distinct"]
        if twice > 0:
            raise Wrong("partition-overlap", picture=_overlap(seen), twice=twice, **facts)
        if facts["distinct"] < _SAMPLES:
            missing = _SAMPLES - facts["distinct"]
            raise Wrong(
                "partition-coverage", picture=coverage(seen, _SAMPLES), missing=missing, **facts
            )
        if max(counts) - min(counts) > 1:
            raise Wrong("partition-unequal", picture=coverage(seen, _SAMPLES), **facts)
        if parts[0] == sorted(parts[0]) or all(map(_regular, parts)):
            raise Wrong("partition-not-random", picture=coverage(seen, _SAMPLES), **facts)


def partition_epochs(submission: Submission) -> None:
    """Does each epoch go through a part in a new order?"""
    _check_epochs(submission, _PARTITION)


def sampling_epochs(submission: Submission) -> None:
    """Does each epoch draw anew?"""
    _check_epochs(submission, _SAMPLING)


def partition_len(submission: Submission) -> None:
    """Does `len` give how many indices come?"""
    _check_len(submission, _PARTITION)


def sampling_len(submission: Submission) -> None:
    """Does `len` give how many indices come?"""
    _check_len(submission, _SAMPLING)


def sampling_draws(submission: Submission) -> None:
    """Does every rank draw from all the data, and its own?"""
    samplers = _build(submission, _SAMPLING)
    first = [_draw(sampler, 0) for sampler in samplers]
    _check_range(first, _SAMPLING)
    seen = [set(part) for part in first]
    counts = [len(part) for part in first]
    facts: dict[str, Any] = {"samples": _SAMPLES, "ranks": _RANKS}
    facts["counts"] = ", ".join(map(str, counts))
    low, high = _SAMPLES // _RANKS, -(-_SAMPLES // _RANKS)
    if not all(low <= count <= high for count in counts):
        raise Wrong("sampling-count", picture=coverage(seen, _SAMPLES), low=low, high=high, **facts)
    same = {rank for pair in combinations(range(_RANKS), 2) if _alike(seen, *pair) for rank in pair}
    if same:
        facts["distinct"] = len(set().union(*seen))
        named = ", ".join(map(str, sorted(same)))
        raise Wrong("sampling-same-draws", picture=_overlap(seen), same=named, **facts)
    for rank, sampler in enumerate(samplers):
        ever = set().union(*(_draw(sampler, epoch) for epoch in range(_EPOCHS)))
        repeated = _draw(sampler, 0) == _draw(sampler, 1) == _draw(sampler, 2)
        if len(ever) < _SAMPLES * 0.97 and not repeated:  # that is another check's
            picture = coverage([ever], _SAMPLES)[:1]
            raise Wrong(
                "sampling-narrow",
                picture=[picture[0].replace("rank 0", f"rank {rank}")],
                rank=rank,
                epochs=_EPOCHS,
                ever=len(ever),
                **facts,
            )


def _regular(part: list[int]) -> bool:
    """Whether a part is cut from the data as they lie, in a piece or every n-th, in any order."""
    return len({after - index for index, after in pairwise(sorted(part))}) == 1


def _alike(seen: list[set[int]], one: int, other: int) -> bool:
    """Whether two ranks saw the same samples, in any order: by chance they share a quarter."""
    return len(seen[one] & seen[other]) > 0.9 * min(len(seen[one]), len(seen[other]))


def _check_epochs(submission: Submission, name: str) -> None:
    for rank, sampler in enumerate(_build(submission, name)):
        orders = [_draw(sampler, epoch) for epoch in range(3)]
        rows = [[epoch, ", ".join(map(str, order[:8]))] for epoch, order in enumerate(orders)]
        picture = table(["epoch", "first indices"], rows)
        if orders[0] == orders[1] == orders[2]:
            raise Wrong("same-order", picture=picture, name=name, rank=rank)
        if _draw(sampler, 1) != orders[1]:
            raise Wrong("epoch-not-repeatable", picture=picture, name=name, rank=rank)


def _check_len(submission: Submission, name: str) -> None:
    told, counted = [], []
    for sampler in _build(submission, name):
        told.append(sampler.__len__())  # len() would refuse a float without saying whose
        counted.append(len(_draw(sampler, 0)))
    if told != counted:
        rows = [[rank, counted[rank], told[rank]] for rank in range(_RANKS)]
        raise Wrong(
            "wrong-len",
            picture=table(["rank", "indices", "len()"], rows),
            name=name,
            told=told[0],
            counted=counted[0],
            samples=_SAMPLES,
        )


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


def _check_range(parts: list[list[int]], name: str) -> None:
    for rank, part in enumerate(parts):
        off = [index for index in part if not 0 <= index < _SAMPLES]
        if off or not part:
            got = str(off[0]) if off else "—"
            raise Wrong("index-range", name=name, rank=rank, got=got, last=_SAMPLES - 1)


def _overlap(seen: list[set[int]]) -> list[str]:
    """Write how many samples each pair of ranks has in common, above who saw what."""
    rows = [
        [f"rank {one}", *(len(seen[one] & seen[other]) for other in range(len(seen)))]
        for one in range(len(seen))
    ]
    head = ["both saw", *(f"rank {rank}" for rank in range(len(seen)))]
    return [*table(head, rows), "", *coverage(seen, _SAMPLES)]
