from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from drumline.comm.pieces import Pieces, segments


@given(size=st.integers(0, 200), n=st.integers(1, 9))
def test_pieces_cover_the_tensor_in_order_and_differ_by_one(size, n):
    tensor = torch.arange(size)
    pieces = Pieces.even(tensor, n)
    assert len(pieces) == n
    assert torch.equal(torch.cat(list(pieces)), tensor)
    assert pieces.sizes == sorted(pieces.sizes, reverse=True)
    assert max(pieces.sizes) - min(pieces.sizes) <= 1


@given(size=st.integers(0, 200), first=st.integers(0, 5), count=st.integers(0, 5))
def test_a_run_of_pieces_is_one_view(size, first, count):
    pieces = Pieces.even(torch.arange(size), 10)
    run = pieces.span(first, first + count)
    parts = [pieces[k] for k in range(first, first + count)]
    assert torch.equal(run, torch.cat([torch.empty(0, dtype=torch.int64), *parts]))
    assert run.numel() == 0 or run.data_ptr() == parts[0].data_ptr()


@given(size=st.integers(0, 100), nbytes=st.integers(1, 300))
def test_segments_cover_the_piece(size, nbytes):
    piece = torch.arange(size)
    cut = segments(piece, nbytes)
    assert torch.equal(torch.cat([torch.empty(0, dtype=torch.int64), *cut]), piece)
    assert all(part.numel() > 0 for part in cut)
    assert all(part.nbytes <= max(nbytes, 8) for part in cut)
