"""What one microbatch's forward through one chunk leaves for its backward.

`SavedForward` keeps the autograd graph. `Checkpointed` is activation checkpointing: it keeps only
the input and the random state, and computes forward again when backward comes (Chen et al. 2016,
"Training Deep Nets with Sublinear Memory Cost"; GPipe does it for each microbatch). Dropout draws
the same numbers again; layers that count their calls, as batch norm does, count twice.

PyTorch's own `torch.utils.checkpoint` does the same for any part of a graph, and imports the
compiler.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

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
        self._random = RandomState(inputs.device)

    def forward(self) -> Tensor:
        """Return the output; no graph is kept."""
        with torch.no_grad():
            return self._run(self._inputs)

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Go forward again, and then back."""
        with self._random.restored():
            self._root = self._run(self._inputs)
        return super().backward(gradient)


class RandomState:
    """The random numbers' state on the host, and on a GPU if that is where the tensors are."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = [device] if device.type == "cuda" else []
        self._states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._gpu)]

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Draw the same numbers again in here; outside, nothing has happened."""
        with torch.random.fork_rng(self._gpu, device_type="cuda"):
            torch.set_rng_state(self._states[0])
            for device, state in zip(self._gpu, self._states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
