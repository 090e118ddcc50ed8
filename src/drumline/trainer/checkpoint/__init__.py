"""Checkpoints: snapshots of model and optimizer, their files, and `distributed` over all ranks."""
