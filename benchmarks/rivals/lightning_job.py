"""The job with PyTorch Lightning, everything off that it need not do: logger, bar, checkpoints.

torchrun --nproc-per-node 2 lightning_job.py --data FOLDER --times PATH
"""

from __future__ import annotations

import os
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from job import CNN, LR, MOMENTUM, Digits, StepLog, arguments
from torch import Tensor
from torch.utils.data import DataLoader


class Net(pl.LightningModule):
    """The network and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = CNN()

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the loss of one batch."""
        inputs, labels = batch
        return F.cross_entropy(self.cnn(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=LR, momentum=MOMENTUM)


class MarkSteps(pl.Callback):
    """Notes when each step ended."""

    def __init__(self, log: StepLog) -> None:
        self.log_of_steps = log

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Note it."""
        self.log_of_steps.mark()


def main() -> None:
    args = arguments().parse_args()
    world_size = int(os.environ["WORLD_SIZE"])
    pl.seed_everything(1234, verbose=False)
    log = StepLog()
    trainer = pl.Trainer(
        max_steps=args.steps,
        max_epochs=-1,
        accelerator="cpu",
        devices=world_size,
        strategy="ddp",
        callbacks=[MarkSteps(log)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batch = args.batch // world_size
    trainer.fit(Net(), DataLoader(Digits(args.data), batch_size=batch, shuffle=True))
    if trainer.is_global_zero:
        log.write(args.times)


if __name__ == "__main__":
    main()
