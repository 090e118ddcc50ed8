"""Checkpoints: snapshots of model and optimizer, the files and the disks that hold them.

`distributed` is what the training loop uses: all ranks write and restore together.
"""
