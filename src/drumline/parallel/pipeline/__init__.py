"""Pipeline parallelism: schedules, our executor, and PyTorch's behind the same interface."""

from drumline.parallel.pipeline.engine import TorchEngine
from drumline.parallel.pipeline.executor import Executor, read_instructions
from drumline.parallel.pipeline.schedule import SCHEDULES, peak_live

__all__ = [
    "SCHEDULES",
    "Executor",
    "TorchEngine",
    "peak_live",
    "read_instructions",
]
