from __future__ import annotations

import copy
import hashlib

import pytest
import torch
from torch import nn

from drumline.models import CNN, GPT, parameter_count, weights_sha256


def make(dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).to(dtype)


def test_the_hash_is_that_of_the_documented_bytes() -> None:
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
        model.bias.fill_(0.5)
    text = b'["bias", "float32", [1]]\n\x00\x00\x00?'
    text += b'["weight", "float32", [1, 2]]\n\x00\x00\x80?\x00\x00\x00\xc0'
    assert weights_sha256(model) == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_weights_hash_equally_in_any_memory_format(dtype: torch.dtype) -> None:
    model = make(dtype)
    moved = copy.deepcopy(model).to(memory_format=torch.channels_last)
    assert moved[0].weight.stride() != model[0].weight.stride()
    assert weights_sha256(moved) == weights_sha256(model)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_equal_weights_hash_equally_on_any_device() -> None:
    assert weights_sha256(make().cuda()) == weights_sha256(make())


def test_every_part_counts() -> None:
    hashes = {weights_sha256(make()), weights_sha256(make(torch.float64))}
    for change in ("weight", "buffer", "name", "shape"):
        model = make()
        with torch.no_grad():
            if change == "weight":
                model[0].weight[0, 0, 0, 0] += 1e-6
            elif change == "buffer":
                model[1].num_batches_tracked += 1
            elif change == "name":
                model = nn.Sequential(nn.Identity(), *model)
            else:
                model[0].weight = nn.Parameter(model[0].weight.view(3, 1, 2, 9))
        hashes.add(weights_sha256(model))
    assert len(hashes) == 6


def test_empty_and_scalar_tensors_hash() -> None:
    model = nn.Module()
    model.register_buffer("nothing", torch.zeros(0, 3))
    model.register_parameter("scalar", nn.Parameter(torch.tensor(1.0)))
    assert len(weights_sha256(model)) == 64


def test_shared_parameters_count_once_frozen_ones_too() -> None:
    gpt = GPT(classes=7, layers=1, heads=1, width=4, context=3)
    assert parameter_count(gpt) == sum(p.numel() for p in set(gpt.parameters()))
    cnn = CNN(classes=10)
    cnn.requires_grad_(False)
    assert parameter_count(cnn) == 421_642
