"""What the labs train on: the small MNIST that comes with the package, or all of it."""

from __future__ import annotations

from drumline.core.errors import DataError
from drumline.data.catalogue import MNIST
from drumline.data.folders import find_files
from drumline.labs.settings import LabSettings

SAMPLES = {"mnist-mini": 6_000, "mnist": 60_000}
"""for training"""
TEST_SAMPLES = {"mnist-mini": 1_000, "mnist": 10_000}


def choose_data(settings: LabSettings) -> str:
    """Return the data set of a lab: all of MNIST in the long form, where it was fetched."""
    if settings.full:
        try:
            find_files(MNIST)
        except DataError:
            return "mnist-mini"
        return "mnist"
    return "mnist-mini"
