"""Parts of models: bit for bit the weights of the whole, in the memory of the part."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drumline.core.errors import SpecError
from drumline.models import build_model
from drumline.models.partial import build_outline, build_partial
from drumline.spec.parts import ModelSpec
from drumline.spec.run_spec import BUILTIN_MODELS

NETS = """
import copy
import torch
from torch import nn
from torch.nn.init import orthogonal_, sparse_, trunc_normal_, normal_, uniform_

calls = 0

def counted(build):
    def factory():
        global calls
        calls += 1
        return build()
    return factory

@counted
def from_a_list():
    layers = [nn.Linear(5, 5) for _ in range(4)]
    return nn.Sequential(*layers, nn.BatchNorm1d(5))

class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(3, 5))
        self.fc = nn.Linear(5, 30)
        self.register_buffer("mask", torch.rand(4))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(2))
        self.last = nn.Parameter(torch.empty(7, 5))
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        for parameter in reversed(list(self.parameters())):
            if parameter.dim() > 1:
                uniform_(parameter)

root = counted(Root)

@counted
def drawn_again():
    net = nn.Sequential(*(nn.Linear(20, 20) for _ in range(6)))
    trunc_normal_(net[0].weight, std=1.0, a=-0.5, b=0.5)
    orthogonal_(net[1].weight)
    sparse_(net[2].weight, 0.3)
    normal_(net[3].weight.T[:, ::2])
    with torch.no_grad():
        net[4].weight.copy_(torch.rand_like(net[4].weight))
    net[5].weight.data = torch.empty_like(net[5].weight).bernoulli_()
    return net

@counted
def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

@counted
def renamed():
    norm = torch.nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(4, 4)), nn.Linear(4, 4), norm(nn.Linear(4, 4)))

@counted
def recurrent():
    return nn.Sequential(nn.LSTM(4, 4, num_layers=2), nn.Linear(4, 4))

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        shared = nn.Parameter(torch.empty(4, 4))
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.a.weight = shared
        self.b.weight = shared
        nn.init.normal_(shared)
        self.c = nn.Linear(4, 4)

tied = counted(Tied)

@counted
def copied():
    first = nn.Linear(4, 4)
    net = nn.Sequential(first, nn.Linear(4, 4), nn.Linear(4, 4))
    net.append(copy.deepcopy(net[0]))
    with torch.no_grad():
        net[2].weight.add_(net[1].weight)
    return net

@counted
def scaled():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.init.constant_(net[1].weight, net[0].weight.std().item())
    return net

@counted
def fickle():
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU() if calls % 2 else nn.GELU())

@counted
def broken():
    raise KeyError("layer 7")
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "odd_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import odd_nets

    yield odd_nets
    del sys.modules["odd_nets"]


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def check(spec: ModelSpec, wanted: Callable[[str], bool], **options: Any) -> set[str]:
    """Compare a part with the whole; return the names that are there."""
    options = {"classes": 10, "seed": 3, **options}
    whole = build_model(spec, **options)
    before = torch.get_rng_state()
    part = build_partial(spec, **options, wanted=wanted)
    assert torch.equal(torch.get_rng_state(), before)
    expected, found = tensors(whole), tensors(part)
    assert list(found) == list(expected)
    there = {name for name, tensor in found.items() if not tensor.is_meta}
    for name, tensor in found.items():
        other = expected[name]
        assert tensor.shape == other.shape
        assert tensor.stride() == other.stride()
        assert (tensor.dtype, tensor.requires_grad) == (other.dtype, other.requires_grad)
        assert name in there or not wanted(name), f"{name} is wanted, but not there"
        assert name not in there or torch.equal(tensor, other), f"{name} has other values"
    return there


@pytest.mark.parametrize("name", BUILTIN_MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_built_in_models_have_the_weights_of_the_whole(name: str, dtype: torch.dtype) -> None:
    spec = ModelSpec(name=name, **({"width": 8} if name == "gpt-mini" else {}))
    names = list(tensors(build_outline(spec, classes=10, seed=0)))
    for one in names:
        there = check(spec, lambda name, one=one: name == one, dtype=dtype)
        tied = {"tokens.weight", "head.weight"} if name == "gpt-mini" else set()
        assert there == (tied if one in tied else {one})
    assert check(spec, lambda _: True) == set(names)
    assert check(spec, lambda _: False) == set()
    half = set(names[: len(names) // 2])
    assert half <= check(spec, half.__contains__)


@pytest.mark.parametrize(
    "factory",
    ["from_a_list", "root", "drawn_again", "encoder", "renamed", "recurrent", "tied"],
)
def test_odd_ways_to_start_come_out_the_same(nets: Any, factory: str) -> None:
    spec = ModelSpec(name=f"odd_nets:{factory}")
    model = build_model(spec, classes=10, seed=0)
    names = list(tensors(model))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for one in names:
        nets.calls = 0
        there = check(spec, lambda name, one=one: name == one)
        assert nets.calls == 3, "the whole, the outline, the part"
        expected = {"a.weight", "b.weight"} if one in ("a.weight", "b.weight") else {one}
        assert there & set(parameters) <= expected
    check(spec, set(names[::2]).__contains__)
    check(spec, set(names[1::2]).__contains__)


@pytest.mark.parametrize(
    ("factory", "wanted", "calls"),
    [
        ("copied", "0.weight", 3),
        ("copied", "1.bias", 3),
        ("copied", "2.weight", 4),
        ("copied", "3.weight", 4),
        ("scaled", "0.weight", 3),
        ("scaled", "1.weight", 4),
    ],
)
def test_values_computed_from_absent_ones_are_right_for_the_whole_is_built(
    nets: Any, factory: str, wanted: str, calls: int
) -> None:
    there = check(ModelSpec(name=f"odd_nets:{factory}"), lambda name: name == wanted)
    assert there == {wanted}
    assert nets.calls == calls


def test_a_factory_that_does_another_thing_each_time(nets: Any) -> None:
    nets.calls = 1
    there = check(ModelSpec(name="odd_nets:fickle"), lambda name: name == "1.weight")
    assert there == {"1.weight"}
    assert nets.calls == 5, "the part did not go as the outline had said, so the whole was built"


def test_buffers_stay_with_the_parameters_of_their_module(nets: Any) -> None:
    spec = ModelSpec(name="odd_nets:from_a_list")
    there = check(spec, lambda name: name == "4.bias")
    assert there == {"4.bias", "4.running_mean", "4.running_var", "4.num_batches_tracked"}
    assert check(spec, lambda name: name == "4.running_var") == {"4.running_var"}


def test_tied_parameters_stay_one(nets: Any) -> None:
    for options in ({"wanted": lambda name: name == "c.bias"}, {"wanted": lambda _: True}):
        model = build_partial(ModelSpec(name="odd_nets:tied"), classes=1, seed=0, **options)
        assert model.a.weight is model.b.weight
        assert model.a.weight is not model.c.weight
    outline = build_outline(ModelSpec(name="gpt-mini"), classes=10, seed=0)
    assert outline.head.weight is outline.tokens.weight


def test_an_outline_has_shapes_and_no_values(nets: Any) -> None:
    spec = ModelSpec(name="odd_nets:root")
    outline = build_outline(spec, classes=10, seed=0, dtype=torch.float64)
    whole = build_model(spec, classes=10, seed=0, dtype=torch.float64)
    assert all(tensor.is_meta for tensor in tensors(outline).values())
    described = [(n, t.shape, t.dtype, t.requires_grad) for n, t in tensors(outline).items()]
    assert described == [(n, t.shape, t.dtype, t.requires_grad) for n, t in tensors(whole).items()]


def test_a_factory_that_fails_leaves_no_hook_behind(nets: Any) -> None:
    for build in (build_outline, build_partial):
        options = {"wanted": lambda _: True} if build is build_partial else {}
        with pytest.raises(SpecError, match="could not be built: KeyError: 'layer 7'"):
            build(ModelSpec(name="odd_nets:broken"), classes=1, seed=0, **options)
    assert not nn.Linear(2, 2).weight.is_meta
    held = nn.modules.module
    assert not held._global_parameter_registration_hooks
    assert not held._global_module_registration_hooks


WIDE = """
import sys
from pathlib import Path
from torch import nn
import torch
from drumline.spec.parts import ModelSpec
from drumline.models import build_model
from drumline.models.partial import build_partial
from drumline.trainer.device import limit_memory

def wide():
    return nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(8)])

if __name__ == "__main__":
    torch.set_num_threads(1)
    nn.Linear(300, 300)
    options = {"spec": ModelSpec(name="wide_net:wide"), "classes": 1, "seed": 0}
    limit_memory(5 * 2048 * 2048 * 4)  # of eight; the part needs two, and two for scratch
    if sys.argv[1] == "part":
        model = build_partial(**options, wanted=lambda name: name[0] in "67")
        print([name for name, p in model.named_parameters() if not p.is_meta])
    else:
        build_model(**options)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux limits memory")
def test_a_part_fits_where_the_whole_does_not(tmp_path: Path) -> None:
    (tmp_path / "wide_net.py").write_text(WIDE)

    def run(which: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "wide_net.py", which],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )

    whole, part = run("whole"), run("part")
    assert whole.returncode == 1
    assert "can't allocate memory" in whole.stderr
    assert part.stdout.strip() == "['6.weight', '7.weight']", part.stderr
