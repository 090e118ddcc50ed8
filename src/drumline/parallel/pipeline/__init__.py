"""Pipeline parallelism: schedules, our executor of them, and PyTorch's behind the same words."""

from drumline.parallel.pipeline.engine import TorchEngine
from drumline.parallel.pipeline.executor import Executor
from drumline.parallel.pipeline.schedule import SCHEDULES, peak_live
from drumline.parallel.pipeline.validate import check_schedule, read_instructions

__all__ = [
    "SCHEDULES",
    "Executor",
    "TorchEngine",
    "check_schedule",
    "peak_live",
    "read_instructions",
]
