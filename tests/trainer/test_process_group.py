"""Ranks that load data in turn, the first one of each host before the others."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from drumline.comm import StoreBarrier
from drumline.comm.hosts import HostInfo
from drumline.core.errors import PeerError
from drumline.trainer.process_group import Ranks
from drumline.trainer.rank import RankInfo


@pytest.mark.parametrize("hosts", ["ab", "aa"])
def test_a_rank_that_cannot_load_its_data_ends_the_others_at_once(hosts):
    store, world_size = dist.HashStore(), len(hosts)
    told = [HostInfo(name=name, clock=name) for name in hosts]

    def load(rank, read):
        barrier = StoreBarrier(store, rank=rank, world_size=world_size)
        info = RankInfo(rank=rank, world_size=world_size, local_rank=rank)
        ranks = Ranks(barrier=barrier, hosts=told, leader="")
        with ranks.local_rank_zero_first(info):
            read()

    with ThreadPoolExecutor() as pool:
        other = pool.submit(load, 0, list)
        with pytest.raises(FileNotFoundError):
            load(1, lambda: Path("no such file").read_text())
        with pytest.raises(
            PeerError, match=r"rank 1 could not load .*: FileNotFoundError: .*no su"
        ):
            other.result(timeout=30)
