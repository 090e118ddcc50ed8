"""Drumline: distributed deep learning for PyTorch, in a glass box.

    ddp.register_comm_hook(*drumline.comm_hook("chunked_ring"))
    model = drumline.DataParallel(model, "ring")

Names are imported when they are first used, so that `import drumline` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drumline.core.errors import DrumlineError
    from drumline.parallel import DataParallel, average_gradients, comm_hook
    from drumline.spec.load import load_spec
    from drumline.spec.run_spec import RunSpec

__all__ = [
    "DataParallel",
    "DrumlineError",
    "RunSpec",
    "average_gradients",
    "comm_hook",
    "load_spec",
]

__version__ = "0.1.0"

_HOMES = {
    "DataParallel": "drumline.parallel",
    "DrumlineError": "drumline.core.errors",
    "RunSpec": "drumline.spec.run_spec",
    "average_gradients": "drumline.parallel",
    "comm_hook": "drumline.parallel",
    "load_spec": "drumline.spec.load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'drumline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
