"""What one microbatch's forward through one chunk leaves for its backward.

`SavedForward` keeps the autograd graph. `Checkpointed` is activation checkpointing: it keeps only
the input and the random state, and computes forward again when backward comes (Chen et al. 2016,
"Training Deep Nets with Sublinear Memory Cost"; GPipe does it for each microbatch). Dropout draws
the same numbers again; layers that count their calls, as batch norm does, count twice.

PyTorch's own `torch.utils.checkpoint` does the same for any part of a graph, and imports the
compiler.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Run = Callable[[Tensor], Tensor]


class SavedForward:
    """Keep the graph between forward and backward."""

    def __init__(self, run: Run, inputs: Tensor) -> None:
        self._run = run
        self._inputs = inputs
        self._root: Tensor | None = None

    def forward(self) -> Tensor:
        """Return the output, cut off from the graph that is kept."""
        self._root = self._run(self._inputs)
        return self._root.detach()

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Add to the parameters' gradients; return the input's, if anybody wants it."""
        assert self._root is not None
        if self._root.requires_grad:  # not where all layers up to here are frozen
            torch.autograd.backward(self._root, gradient)
        if not self._inputs.requires_grad:
            return None
        return torch.zeros_like(self._inputs) if self._inputs.grad is None else self._inputs.grad


class Checkpointed(SavedForward):
    """Keep the input, and compute the graph again."""

    def __init__(self, run: Run, inputs: Tensor) -> None:
        super().__init__(run, inputs)
        self._gpu = [inputs.device] if inputs.is_cuda else []
        self._random = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._gpu)]

    def forward(self) -> Tensor:
        """Return the output; no graph is kept."""
        with torch.no_grad():
            return self._run(self._inputs)

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Go forward again with the same random numbers, and then back."""
        with torch.random.fork_rng(self._gpu, device_type="cuda"):
            torch.set_rng_state(self._random[0])
            for device, state in zip(self._gpu, self._random[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            self._root = self._run(self._inputs)
        return super().backward(gradient)
