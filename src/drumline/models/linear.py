"""The smallest model that learns MNIST: one linear layer (multinomial logistic regression).

Its loss is convex, so every optimizer ends at the same place, which makes it the one to compare
optimizers and gradient averaging on. 7,850 parameters with 10 classes.
"""

from __future__ import annotations

from torch import Tensor, nn


class Linear(nn.Module):
    """28×28 pixels to class scores, in one matrix."""

    def __init__(self, *, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(28 * 28, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [b, 1, 28, 28] to logits [b, classes]."""
        scores: Tensor = self.fc(images.flatten(1))
        return scores
