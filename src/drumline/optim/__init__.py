"""GD, SGD and Adam, written to be read, and the schedules of their learning rate."""

from drumline.optim.adam import Adam
from drumline.optim.build import build_optimizer
from drumline.optim.gd import GD
from drumline.optim.schedule import lr_at
from drumline.optim.sgd import SGD

__all__ = ["GD", "SGD", "Adam", "build_optimizer", "lr_at"]
