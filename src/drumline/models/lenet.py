"""LeNet-5 (LeCun, Bottou, Bengio & Haffner, 1998), for images of 28×28.

    C1  6 maps, 5×5, padded by 2 (the paper padded the images to 32×32)   28×28 → 28×28
    S2  average over 2×2                                                  28×28 → 14×14
    C3  16 maps, 5×5, each over all 6 (the paper left some links out)     14×14 → 10×10
    S4  average over 2×2                                                  10×10 →  5×5
    C5  120 units over all of it, F6 84 units, then the classes

tanh between the layers as in the paper; a linear layer and softmax in the place of its radial basis
functions. 61,706 parameters with 10 classes: small messages, where latency shows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LeNet(nn.Module):
    """28×28 pixels to class scores, through two convolutions and three linear layers."""

    def __init__(self, *, classes: int) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 6, kernel_size=5, padding=2)
        self.c3 = nn.Conv2d(6, 16, kernel_size=5)
        self.c5 = nn.Linear(16 * 5 * 5, 120)
        self.f6 = nn.Linear(120, 84)
        self.output = nn.Linear(84, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [b, 1, 28, 28] to logits [b, classes]."""
        x = F.avg_pool2d(torch.tanh(self.c1(images)), 2)
        x = F.avg_pool2d(torch.tanh(self.c3(x)), 2)
        x = torch.tanh(self.c5(x.flatten(1)))
        x = torch.tanh(self.f6(x))
        scores: Tensor = self.output(x)
        return scores
