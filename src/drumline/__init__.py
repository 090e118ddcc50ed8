"""Drumline: distributed deep learning for PyTorch, in a glass box.

    results = drumline.launch(function, workers=4)         # on every rank, from a notebook too
    run = drumline.train({"model": "cnn", "workers": 2})   # a training run, and its ledger

    ddp.register_comm_hook(*drumline.comm_hook("chunked_ring"))
    model = drumline.DataParallel(model, "ring")

Names are imported when they are first used, so that `import drumline` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drumline.core.errors import DrumlineError
    from drumline.interactive.call import launch
    from drumline.interactive.run import Run, train
    from drumline.observer import mark_step, observe
    from drumline.parallel import (
        DataParallel,
        Pipeline,
        TensorParallel,
        average_gradients,
        comm_hook,
    )
    from drumline.spec.load import load_spec
    from drumline.spec.run_spec import RunSpec
    from drumline.trainer.summary import load_model

_HOMES = {
    "DataParallel": "drumline.parallel",
    "DrumlineError": "drumline.core.errors",
    "Pipeline": "drumline.parallel",
    "Run": "drumline.interactive.run",
    "RunSpec": "drumline.spec.run_spec",
    "TensorParallel": "drumline.parallel",
    "average_gradients": "drumline.parallel",
    "comm_hook": "drumline.parallel",
    "launch": "drumline.interactive.call",
    "load_model": "drumline.trainer.summary",
    "load_spec": "drumline.spec.load",
    "mark_step": "drumline.observer",
    "observe": "drumline.observer",
    "train": "drumline.interactive.run",
}

__all__ = [
    "DataParallel",
    "DrumlineError",
    "Pipeline",
    "Run",
    "RunSpec",
    "TensorParallel",
    "average_gradients",
    "comm_hook",
    "launch",
    "load_model",
    "load_spec",
    "mark_step",
    "observe",
    "train",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'drumline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
