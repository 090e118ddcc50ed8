"""Tensor parallelism: one layer's work, and its weights, shared out over ranks."""
