"""Tensor parallelism: one layer's work, and its weights, shared out over ranks."""

from drumline.parallel.tensor.apply import apply_tensor_parallel

__all__ = ["apply_tensor_parallel"]
