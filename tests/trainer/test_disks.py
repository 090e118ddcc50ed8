"""Ranks with a run directory of their own each: checkpoints are collected, and spread."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.distributed_c10d import _get_default_store

from drumline.comm import StoreBarrier
from drumline.core.rundir import RunDir
from drumline.trainer.checkpoint.distributed import Disks
from drumline.trainer.rank import RankInfo

LARGE = (16 << 20) + 5  # more than one chunk


def move(rank, world_size, root):
    """Ranks 0 and 1 share a disk, 2 and 3 another: two nodes with two workers."""
    run = RunDir(Path(root) / f"node{rank // 2}")
    run.path.mkdir(exist_ok=True)
    meeting = StoreBarrier(_get_default_store(), rank=rank, world_size=world_size)
    place = RankInfo(rank=rank, world_size=world_size, local_rank=rank % 2)
    disks = Disks(run, place, meeting, device=torch.device("cpu"), within_s=30)
    folder = run.path / "checkpoints" / "draft"
    for turn in ("first", "second"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{rank}").write_bytes(bytes([rank]) * (LARGE if rank == 3 else rank))
        disks.collect(folder)
        disks.wait()
        if rank == 0:
            sizes = [(folder / f"part-{r}").stat().st_size for r in range(world_size)]
            assert sizes == [0, 1, 2, LARGE]
            assert (folder / "part-3").read_bytes() == b"\3" * LARGE
            folder.rename(folder.with_name(turn))
        disks.wait()
    assert folder.exists() is False
    for _ in range(2):
        disks.spread(run.path / "checkpoints" / "first", "part-1")
        disks = Disks(run, place, meeting, device=torch.device("cpu"), within_s=30)
    found = run.path / "checkpoints" / "first"
    assert (found / "part-3").stat().st_size == LARGE
    assert sorted(path.name for path in found.parent.iterdir() if path.name[0] == ".") == []
    return disks.elsewhere, found.stat().st_ino


def test_files_go_to_the_leader_and_back(run_ranks, tmp_path):
    told = run_ranks(move, 4, str(tmp_path))
    assert [elsewhere for elsewhere, _ in told] == [[2]] * 4
    assert not list(tmp_path.glob("*/.leader-*"))
