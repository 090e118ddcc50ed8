"""The classifiers that labs and demos train: linear, mlp, lenet, cnn.

They are made for the shape of the data's samples (`features`), that of MNIST unless it is told:
linear and mlp flatten whatever comes, a row of a table, too; lenet and cnn read images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.core.errors import UsageError

MNIST_SHAPE = (1, 28, 28)
"""channels, height, width"""


class Linear(nn.Module):
    """The smallest model that learns MNIST: one linear layer (multinomial logistic regression).

    Its loss is convex, so every optimizer ends at the same place, which makes it the one to compare
    optimizers and gradient averaging on. 7,850 parameters with 10 classes.
    """

    def __init__(self, *, classes: int, features: Sequence[int] = MNIST_SHAPE) -> None:
        super().__init__()
        self.fc = nn.Linear(math.prod(features), classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs [b, …] to logits [b, classes]."""
        scores: Tensor = self.fc(inputs.flatten(1))
        return scores


class MLP(nn.Module):
    """Three fully connected layers with ReLU, the customary first one after the linear model.

    All its weight is in matrix products over small inputs, so a step is short and the gradients are
    large for the time they take to compute: the case where communication hurts early.
    136,074 parameters with 10 classes.
    """

    def __init__(
        self,
        *,
        classes: int,
        features: Sequence[int] = MNIST_SHAPE,
        hidden1: int = 128,
        hidden2: int = 256,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(math.prod(features), hidden1)
        self.fc2 = nn.Linear(hidden1, hidden2)
        self.fc3 = nn.Linear(hidden2, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs [b, …] to logits [b, classes]."""
        x = F.relu(self.fc1(inputs.flatten(1)))
        x = F.relu(self.fc2(x))
        scores: Tensor = self.fc3(x)
        return scores


class LeNet(nn.Module):
    """LeNet-5 (LeCun, Bottou, Bengio & Haffner, 1998); sizes for images of 28×28.

        C1  6 maps, 5×5, padded by 2 (the paper padded the images to 32×32)   28×28 → 28×28
        S2  average over 2×2                                                  28×28 → 14×14
        C3  16 maps, 5×5, each over all 6 (the paper left some links out)     14×14 → 10×10
        S4  average over 2×2                                                  10×10 →  5×5
        C5  120 units over all of it, F6 84 units, then the classes

    tanh between the layers as in the paper; a linear layer and softmax in place of its radial basis
    functions. 61,706 parameters with 10 classes: small messages, where latency shows.
    """

    def __init__(self, *, classes: int, features: Sequence[int] = MNIST_SHAPE) -> None:
        super().__init__()
        channels, height, width = _image_shape("lenet", features, smallest=12)
        area = (height // 2 - 4) // 2 * ((width // 2 - 4) // 2)
        self.c1 = nn.Conv2d(channels, 6, kernel_size=5, padding=2)
        self.c3 = nn.Conv2d(6, 16, kernel_size=5)
        self.c5 = nn.Linear(16 * area, 120)
        self.f6 = nn.Linear(120, 84)
        self.output = nn.Linear(84, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [b, channels, height, width] to logits [b, classes]."""
        x = F.avg_pool2d(torch.tanh(self.c1(images)), 2)
        x = F.avg_pool2d(torch.tanh(self.c3(x)), 2)
        x = torch.tanh(self.c5(x.flatten(1)))
        x = torch.tanh(self.f6(x))
        scores: Tensor = self.output(x)
        return scores


class CNN(nn.Module):
    """The network that the labs train: two convolutions, two linear layers, dropout.

    It gives logits, not log-probabilities, so that one loss (cross entropy) serves every model.
    421,642 parameters with 10 classes, 95 % of them in `fc1`: backward has that large gradient
    ready early and the convolutions still to do, the case where overlapped communication pays.

    `dropout1` and `dropout2` come before `fc1` and `fc2`; `dropout` sets both, and 0 makes training
    deterministic, for comparisons between runs.
    """

    def __init__(
        self,
        *,
        classes: int,
        features: Sequence[int] = MNIST_SHAPE,
        dropout1: float = 0.25,
        dropout2: float = 0.5,
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        first, second = (dropout1, dropout2) if dropout is None else (dropout, dropout)
        for share in (first, second):
            if not 0 <= share < 1:
                raise UsageError(f"dropout must lie in [0, 1), got {share}; set model.dropout=0")
        channels, height, width = _image_shape("cnn", features, smallest=4)
        self.conv1 = nn.Conv2d(channels, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.dropout1 = nn.Dropout(first)
        self.dropout2 = nn.Dropout(second)
        self.fc1 = nn.Linear(64 * (height // 4) * (width // 4), 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [b, channels, height, width] to logits [b, classes]."""
        x = F.relu(F.max_pool2d(self.conv1(images), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x.flatten(1))
        x = self.dropout2(F.relu(self.fc1(x)))
        scores: Tensor = self.fc2(x)
        return scores


def _image_shape(model: str, features: Sequence[int], *, smallest: int) -> Sequence[int]:
    """Return channels, height and width of images that the model can read."""
    if len(features) != 3:
        raise UsageError(
            f"{model} reads images [channels, height, width], and a sample of this data is "
            f"{list(features)}; set model=mlp"
        )
    if min(features[1:]) < smallest:
        raise UsageError(
            f"{model} reads images of {smallest}×{smallest} or more, and these are "
            f"{features[1]}×{features[2]}; set model=mlp, or data.size to scale a folder's images"
        )
    return features
