"""The collectives, in shared memory. Every rank of the group calls each of them; all block.

Each piece of a tensor goes through the same stations:

    copy in ─► wait ─► read what the others have put there
                  └──► (many ranks) add up one share each ─► wait ─► read the whole sum

n ranks, a tensor of b bytes; what each rank reads and writes, and how many barriers a piece takes:

    all_reduce, 2 ranks or few bytes   b in, n·b read and added              1 barrier
    all_reduce, otherwise              b in, b added (its share of n), b out 2 barriers
    all_reduce, in shared memory       b added, b written                    2 barriers, no copy
    broadcast                          b                                     1 barrier
    all_gather                         b in, n·b out                         1 barrier
    reduce_scatter                     n·b in, n·b added                     1 barrier

All tensors are flat and contiguous; `group` sees to that. They are combined in rank order, so that
every rank gets the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from drumline.comm.reduce_op import COMBINE, finish
from drumline.comm.shm.arena import HALF_BYTES, Arena, share_of
from drumline.comm.shm.barrier import CALL_BYTES

_ONE_SHOT_BYTES = 2**15  # up to here, adding everything oneself is cheaper than barrier twice


def combine(op: str, parts: Sequence[Tensor], total: Tensor) -> None:
    """Combine parts of shared memory in rank order, into `total`, which may be the first."""
    if len(parts) == 1:
        total.copy_(parts[0])
    else:
        function = COMBINE[op]
        function(parts[0], parts[1], out=total)
        for part in parts[2:]:
            function(total, part, out=total)
    finish(op, total, len(parts))


def barrier(arena: Arena) -> None:
    """Wait in shared memory until every rank is here."""
    arena.barrier.wait(_call("barrier", "", None, 0, ""))


def all_reduce(arena: Arena, flat: Tensor, op: str) -> None:
    """Combine a tensor over all ranks through shared memory, in place."""
    region = arena.region_of(flat)
    where = "" if region is None else region.where
    call = _call("all_reduce", op, flat.dtype, flat.numel(), where)
    if region is not None:
        arena.barrier.wait(call)
        for total, *others in region.shares:
            combine(op, [total, *others], total)
            for other in others:
                other.copy_(total)
        arena.barrier.wait()
        return
    for piece in _pieces(flat):
        rows = arena.rows(piece.dtype, piece.numel())
        rows[arena.rank].copy_(piece)
        arena.barrier.wait(call)
        if arena.size <= 2 or piece.nbytes <= _ONE_SHOT_BYTES:
            combine(op, rows, piece)
        else:
            _combine_share(arena, rows, op)
            arena.barrier.wait()
            piece.copy_(rows[0])
        arena.turn()


def reduce(arena: Arena, flat: Tensor, op: str, root: int) -> None:
    """Combine a tensor through shared memory into the root's; the others' stay as they are."""
    call = _call("reduce", op, flat.dtype, flat.numel(), f" to {root}")
    for piece in _pieces(flat):
        rows = arena.rows(piece.dtype, piece.numel())
        rows[arena.rank].copy_(piece)
        arena.barrier.wait(call)
        _combine_share(arena, rows, op)
        arena.barrier.wait()
        if arena.rank == root:
            piece.copy_(rows[0])
        arena.turn()


def broadcast(arena: Arena, flat: Tensor, root: int) -> None:
    """Give every rank the root's tensor through shared memory."""
    call = _call("broadcast", "", flat.dtype, flat.numel(), f" from {root}")
    for piece in _pieces(flat):
        row = arena.rows(piece.dtype, piece.numel())[root]
        if arena.rank == root:
            row.copy_(piece)
        arena.barrier.wait(call)
        if arena.rank != root:
            piece.copy_(row)
        arena.turn()


def all_gather(arena: Arena, outputs: Sequence[Tensor], flat: Tensor) -> None:
    """Give every rank every rank's tensor through shared memory, in rank order."""
    call = _call("all_gather", "", flat.dtype, flat.numel(), "")
    count = _per_piece(flat)
    for begin, piece in zip(_begins(flat, count), _pieces(flat), strict=True):
        rows = arena.rows(piece.dtype, piece.numel())
        rows[arena.rank].copy_(piece)
        arena.barrier.wait(call)
        for output, row in zip(outputs, rows, strict=True):
            output[begin : begin + count].copy_(row)
        arena.turn()


def reduce_scatter(arena: Arena, output: Tensor, inputs: Sequence[Tensor], op: str) -> None:
    """Combine the k-th input of all ranks through shared memory into the output of rank k."""
    call = _call("reduce_scatter", op, output.dtype, output.numel(), "")
    count = max(1, _per_piece(output) // arena.size)
    for begin in _begins(output, count):
        piece = output[begin : begin + count]
        numel = piece.numel()
        rows = arena.rows(piece.dtype, numel * arena.size)
        for rank, part in enumerate(inputs):
            rows[arena.rank][rank * numel :][:numel].copy_(part[begin : begin + count])
        arena.barrier.wait(call)
        mine = [row[arena.rank * numel :][:numel] for row in rows]
        combine(op, mine, piece)
        arena.turn()


def _combine_share(arena: Arena, rows: list[Tensor], op: str) -> None:
    """Combine this rank's share of a piece, into rank 0's row, where all will read it."""
    total = rows[0]
    mine = share_of(arena.rank, arena.size, total.numel(), total.itemsize)
    combine(op, [row[mine] for row in rows], total[mine])


def _pieces(flat: Tensor) -> Iterator[Tensor]:
    """Cut a tensor into what fits a half of a row; an empty one is one empty piece."""
    count = _per_piece(flat)
    if flat.numel() <= count:
        yield flat
        return
    yield from flat.split(count)


def _per_piece(flat: Tensor) -> int:
    return HALF_BYTES // flat.itemsize


def _begins(flat: Tensor, count: int) -> range:
    return range(0, max(1, flat.numel()), count)


@lru_cache(maxsize=1024)
def _call(kind: str, op: str, dtype: torch.dtype | None, numel: int, more: str) -> bytes:
    """Write down a call as the others must make it too, for `ShmBarrier.wait` to compare."""
    text = f"{kind} {op}".strip() + more
    if dtype is not None:
        text += f" of {numel} {str(dtype).removeprefix('torch.')}"
    return text.encode()[:CALL_BYTES].ljust(CALL_BYTES)
