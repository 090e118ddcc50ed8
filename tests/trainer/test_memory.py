"""A rank with little memory: what does not fit is explained in a sentence, and half of it fits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from drumline.comm import meter
from drumline.core.errors import UsageError
from drumline.models import MLP, Linear
from drumline.optim import Adam
from drumline.parallel.shard_spec import ShardSpec
from drumline.spec.learning import OptimizerSpec
from drumline.trainer.checkpoint.snapshot import gather_snapshot
from drumline.trainer.checkpoint.store import CheckpointStore, TrainState
from drumline.trainer.device import explain_memory, limit_memory

MIB = 2**20
TRAIN = """
import json, sys
import torch
from torch import nn
from drumline.spec.learning import OptimizerSpec
from drumline.optim import build_optimizer
from drumline.trainer.device import explain_memory, limit_memory

layers, limit = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
spec = OptimizerSpec(name="sgd", momentum=0.9)

def train(model):
    optimizer = build_optimizer(spec, model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.rand(2, 2048)).sum().backward()
        optimizer.step()

train(nn.Sequential(nn.Linear(2048, 4)))  # threads and such come into being
limit_memory(limit)
with torch.device("meta"):
    outline = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(layers)])
try:
    train(nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(layers)]))
    print(json.dumps("it fits"))
except Exception as error:
    words = explain_memory(error, limit=limit, model=outline, optimizer=spec)
    print(json.dumps(str(words)))
"""


def train(layers: int, limit: int) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", TRAIN, str(layers), str(limit)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert answer.returncode == 0, answer.stderr
    return str(json.loads(answer.stdout))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux limits memory")
def test_what_does_not_fit_is_explained_and_its_half_fits() -> None:
    # 16.8 MB a layer, three times over: 201 MB for four of them, 101 MB for two
    assert train(4, 150 * MIB) == (
        "this rank may take 157 MB of memory (memory_bytes=157286400), which is used up: "
        "parameters take 67.1 MB, gradients 67.1 MB, the state of sgd 67.1 MB, together 201 MB, "
        "and activations come on top; split the model (strategy=pipeline workers=2), or set "
        "memory_bytes=251658240"
    )
    assert train(2, 150 * MIB) == "it fits"


RESUME = """
import sys
from pathlib import Path
import torch
from torch import nn
from drumline.optim import Adam
from drumline.parallel.shard_spec import ShardSpec
from drumline.trainer.checkpoint.store import CheckpointStore
from drumline.trainer.device import limit_memory

torch.set_num_threads(1)
part = nn.Sequential(nn.Linear(1024, 1024, bias=False))
optimizer = Adam(part.parameters())
limit_memory(24 * 2**20)
found = CheckpointStore(Path(sys.argv[1]), keep=1).at(1)
found.load_model(part, ShardSpec(parts=8))
found.load_optimizer(optimizer, part, ShardSpec(parts=8))
(state,) = optimizer.state.values()
print(part[0].weight.mean().item(), state["exp_avg"].mean().item())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux limits memory")
def test_a_part_is_read_in_the_memory_of_a_part(tmp_path: Path) -> None:
    # 4 MiB a layer: the whole model's file has 32, its optimizer's 64
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8)))
    optimizer = Adam(model.parameters())
    for param in model.parameters():
        param.grad = torch.ones_like(param)
        nn.init.constant_(param, 0.5)
    optimizer.step()
    wanted = [
        model[0].weight.mean().item(),
        float(optimizer.state[model[0].weight]["exp_avg"][0, 0]),
    ]
    snapshot = gather_snapshot(model, optimizer, ShardSpec())
    store = CheckpointStore(tmp_path, keep=1)
    store.save(TrainState(step=1), snapshot, ShardSpec(), rank=0)
    answer = subprocess.run(
        [sys.executable, "-c", RESUME, str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert answer.returncode == 0, answer.stderr
    assert [float(value) for value in answer.stdout.split()] == pytest.approx(wanted)


BEGIN = """
import sys
from drumline.spec.load import load_spec
from drumline.trainer.runners.base import load_data_and_model
from drumline.trainer.device import check_room, memory_budget

import torch
torch.set_num_threads(1)
spec = load_spec(None, sys.argv[1:])
with memory_budget(spec) as held:
    load_data_and_model(spec, held)
    held.clear()
    check_room(spec)
    print("it fits")
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux limits memory")
@pytest.mark.parametrize("limit", ["1MB", pytest.param("20MB", marks=pytest.mark.slow)])
def test_too_little_to_begin_is_told_with_what_would_do(limit: str) -> None:
    words = ["model=gpt-mini", "data=shakespeare", "strategy=pipeline"]

    def begin(limit: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", BEGIN, *words, f"memory_bytes={limit}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=100)

    said = re.search(
        r"UsageError: this rank may take \d+ MB of memory \(memory_bytes=\d+\), which is too "
        r"little to begin: loading shakespeare takes \S+ MB, threads and torch itself about 56 "
        r"MB, a rank's part of the model 1.75 MB and its activations \S+ MB; set "
        r"memory_bytes=(\d+MB)$",
        begin(limit).stderr.strip(),
    )
    assert said is not None
    assert begin(said.group(1)).stdout == "it fits\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_errors_that_tell_of_memory(error: Exception) -> None:
    words = explain_memory(error, limit=1000, model=Linear(classes=10), optimizer=OptimizerSpec())
    assert isinstance(words, UsageError)
    assert "parameters take 31.4 kB, gradients 31.4 kB, the state of sgd 0 B" in str(words)
    assert words.fields == {"limit": 1000, "needed": 2 * 31_400}


def test_other_errors_are_left_alone() -> None:
    for error in (RuntimeError("shapes cannot be multiplied"), ValueError("memory"), OSError()):
        model, optimizer = Linear(classes=10), OptimizerSpec()
        assert explain_memory(error, limit=10, model=model, optimizer=optimizer) is None


def test_a_real_refusal_of_torch_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.uint8)
    model, optimizer = Linear(classes=10), OptimizerSpec()
    assert explain_memory(caught.value, limit=10, model=model, optimizer=optimizer) is not None


@pytest.mark.parametrize(
    ("optimizer", "times"),
    [
        (OptimizerSpec(name="sgd"), 2),
        (OptimizerSpec(name="gd"), 2),
        (OptimizerSpec(name="sgd", momentum=0.9), 3),
        (OptimizerSpec(name="adam"), 4),
    ],
)
def test_what_is_needed_depends_on_the_optimizer(optimizer: OptimizerSpec, times: int) -> None:
    model = MLP(classes=10)
    words = explain_memory(MemoryError(), limit=10**6, model=model, optimizer=optimizer)
    assert words is not None
    assert words.fields["needed"] == times * 4 * 136_074
    model.fc1.requires_grad_(False)
    words = explain_memory(MemoryError(), limit=10**6, model=model, optimizer=optimizer)
    assert words is not None
    frozen = 4 * (784 * 128 + 128)
    assert words.fields["needed"] == times * 4 * 136_074 - (times - 1) * frozen


def test_where_there_is_no_such_limit_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "_STATUS", tmp_path / "none")
    with pytest.raises(UsageError, match=r"memory_bytes needs Linux, .*; leave it out"):
        limit_memory(10)
