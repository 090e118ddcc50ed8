"""torch's compiler stays out of a run that does not compile, and works in one that does."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
import torch, torch.distributed as dist
import drumline.trainer  # what a worker has imported
from drumline.spec.learning import OptimizerSpec
from drumline.spec.strategy import StrategySpec
from drumline.comm import Meter
from drumline.comm.store import serve_store
from drumline.optim import build_optimizer
from drumline.parallel.dynamo import postpone_dynamo
from drumline.parallel.strategy import build_strategy

dist.init_process_group("gloo", store=serve_store("127.0.0.1", 0, 10), rank=0, world_size=1)
postpone_dynamo()
model = torch.nn.Linear(3, 2)
strategy = build_strategy(StrategySpec(kind="ddp"), model, Meter())
for spec in (OptimizerSpec(name="adam"), OptimizerSpec(name="sgd", momentum=0.9)):
    optimizer = build_optimizer(spec, model.parameters())
    optimizer.zero_grad()
    strategy.module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules, "the compiler was imported"

double = torch.compile(lambda x: x * 2, backend="eager")
assert double(torch.ones(2)).tolist() == [2, 2]
assert "torch._dynamo" in sys.modules
for _ in range(2):
    optimizer.zero_grad()
    strategy.module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
from torch.nn.parallel import DistributedDataParallel
DistributedDataParallel(torch.nn.Linear(2, 2))
print("fine")
os._exit(0)
"""


@pytest.mark.slow
def test_the_compiler_is_imported_only_where_somebody_compiles():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "compiler was imported" not in done.stderr
