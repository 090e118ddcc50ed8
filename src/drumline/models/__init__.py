"""The small models that labs and demos train, and the way to one of your own."""

from drumline.models.build import build_model, parameter_count, tensors_sha256, weights_sha256
from drumline.models.gpt import GPT
from drumline.models.partial import build_outline, build_partial
from drumline.models.vision import CNN, MLP, LeNet, Linear

__all__ = [
    "CNN",
    "GPT",
    "MLP",
    "LeNet",
    "Linear",
    "build_model",
    "build_outline",
    "build_partial",
    "parameter_count",
    "tensors_sha256",
    "weights_sha256",
]
