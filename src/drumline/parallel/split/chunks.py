"""`Chunks`: several stages of one rank, with the names that their parameters have in the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn


class Chunks(nn.Module):
    """The stages that a rank holds, as one module to train, save and load; they are not called."""

    def __init__(self, stages: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Name parameters as the whole model does."""
        for stage in self.stages:
            yield from stage.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Name buffers as the whole model does."""
        for stage in self.stages:
            yield from stage.named_buffers(prefix, recurse, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return parameters and lasting buffers by these names."""
        return {
            name: tensor
            for stage in self.stages
            for name, tensor in stage.state_dict(*args, **kwargs).items()
        }
