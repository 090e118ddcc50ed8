"""Pipeline parallelism: schedules, our executor, and PyTorch's behind the same interface."""
