from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from drumline.core.errors import UsageError
from drumline.data import DataPartitioner


def test_the_tutorials_example() -> None:
    parts = DataPartitioner(list(range(1, 11)), sizes=[0.7, 0.2, 0.1], seed=1234)
    assert [list(parts.use(i)) for i in range(3)] == [[3, 9, 4, 6, 7, 5, 10], [1, 2], [8]]


def test_no_sample_is_dropped() -> None:
    parts = DataPartitioner("abcdefghijk", sizes=[1 / 3] * 3)
    assert sorted(letter for i in range(3) for letter in parts.use(i)) == sorted("abcdefghijk")


def test_a_data_loader_takes_a_part() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(10), torch.arange(10) * 2)
    part = DataPartitioner(data, sizes=[0.5, 0.5]).use(1)
    batches = list(DataLoader(part, batch_size=2))
    assert len(part) == 5
    assert len(batches) == 3
    for x, y in batches:
        assert torch.equal(2 * x, y)


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="parts run from 0 to 2"):
        DataPartitioner([1, 2, 3]).use(3)
    for sizes in ([], [0.0, 0.0], [1.0, -0.5]):
        with pytest.raises(UsageError, match="sizes must be shares"):
            DataPartitioner([1, 2, 3], sizes)
