"""The convolutional network that the labs train: two convolutions, two linear layers, dropout.

It gives logits, not log-probabilities, so that one loss (cross entropy) serves every model here.
421,642 parameters with 10 classes, 95 % of them in `fc1`: backward has that large gradient ready
early and the convolutions' work still to do, the case where overlapped communication pays.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from drumline.core.errors import UsageError


class CNN(nn.Module):
    """28×28 pixels to class scores.

    Args:
        classes: how many scores.
        dropout1: share of the features that is zeroed before `fc1` while training.
        dropout2: the same before `fc2`.
        dropout: sets both; 0 makes training deterministic, for comparisons between runs.
    """

    def __init__(
        self,
        *,
        classes: int,
        dropout1: float = 0.25,
        dropout2: float = 0.5,
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        first, second = (dropout1, dropout2) if dropout is None else (dropout, dropout)
        for share in (first, second):
            if not 0 <= share < 1:
                raise UsageError(f"dropout must lie in [0, 1), got {share}; set model.dropout=0")
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.dropout1 = nn.Dropout(first)
        self.dropout2 = nn.Dropout(second)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [b, 1, 28, 28] to logits [b, classes]."""
        x = F.relu(F.max_pool2d(self.conv1(images), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x.flatten(1))
        x = self.dropout2(F.relu(self.fc1(x)))
        scores: Tensor = self.fc2(x)
        return scores
