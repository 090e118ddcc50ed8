"""Pipeline parallelism: schedules, our executor, and PyTorch's behind the same interface."""

from drumline.parallel.pipeline.engine import TorchEngine
from drumline.parallel.pipeline.executor import Executor

__all__ = ["Executor", "TorchEngine"]
