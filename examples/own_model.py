"""A model of your own for `drumline train`: any function that returns an nn.Module.

`classes` is filled in from the data; the other parameters can be set in the spec. Random numbers
are seeded before the call, so that all ranks begin with the same weights. From this folder:

    drumline train model=own_model:build
    drumline train model=own_model:build model.width=32 workers=4 strategy=ring epochs=3
"""

from torch import Tensor, nn


class Residual(nn.Module):
    """Adds what a layer computes to what it got."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, kernel_size=3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        return images + self.conv(images).relu()


def build(classes: int, width: int = 16) -> nn.Module:
    """Images [b, 1, 28, 28] to scores [b, classes]."""
    return nn.Sequential(
        nn.Conv2d(1, width, kernel_size=5, stride=2, padding=2),
        nn.ReLU(),
        Residual(width),
        nn.MaxPool2d(2),
        Residual(width),
        nn.Flatten(),
        nn.Linear(width * 7 * 7, classes),
    )
