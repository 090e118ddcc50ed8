"""Lab 1, optimizers: GD, SGD, momentum and Adam, ours beside torch's, on one machine."""
