"""Training: the loop, evaluation, checkpoints, and what a rank writes to the run directory."""

from drumline.trainer.train import train_rank

__all__ = ["train_rank"]
