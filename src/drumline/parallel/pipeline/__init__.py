"""Pipeline parallelism: schedules, our executor of them, and PyTorch's behind the same words."""

from drumline.parallel.pipeline.engine import TorchEngine
from drumline.parallel.pipeline.executor import Executor
from drumline.parallel.pipeline.plan import check_plan, read_plan
from drumline.parallel.pipeline.schedule import SCHEDULES, peak_live
from drumline.spec.strategy import bubble

__all__ = [
    "SCHEDULES",
    "Executor",
    "TorchEngine",
    "bubble",
    "check_plan",
    "peak_live",
    "read_plan",
]
