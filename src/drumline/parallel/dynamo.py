"""Training without torch._dynamo, for as long as nobody compiles.

torch's compiler takes more than a second to import, and two things pull it in that do not use it:
building an optimizer (its methods are marked "do not compile", and applying the mark imports the
compiler) and building DDP (which asks the compiler for one setting). So:

- `postpone_dynamo` lets marked methods run unmarked until somebody imports the compiler; from then
  on they go torch's own way;
- `ddp_settings` answers DDP's question with the compiler's default while DDP is being built.

Where torch changes these inner workings, both do nothing, and the start is slower again.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

_COMPILER = "torch._dynamo"
_MARK = "__dynamo_disable"  # where torch keeps the marked form of a function


def postpone_dynamo() -> None:
    """Let optimizers and DDP run without importing torch's compiler (dynamo)."""
    methods = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    for method in methods:
        _run_unmarked(getattr(Optimizer, method))
    within = getattr(DistributedDataParallel, "_inside_ddp_forward", None)
    _run_unmarked(getattr(within, "__wrapped__", None))  # inside a contextmanager


@contextlib.contextmanager
def ddp_settings() -> Iterator[None]:
    """Answer what DDP asks torch's compiler while it is built, unless the compiler is there."""
    if _COMPILER in sys.modules:
        yield
        return
    utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
    torch._dynamo = SimpleNamespace(utils=utils)  # type: ignore[assignment]
    try:
        yield
    finally:
        del torch._dynamo


def _run_unmarked(marked: Callable[..., Any] | None) -> None:
    plain = getattr(marked, "__wrapped__", None)
    if marked is None or plain is None or hasattr(plain, _MARK):
        return

    def run(*args: Any, **kwargs: Any) -> Any:
        if _COMPILER in sys.modules:
            delattr(plain, _MARK)  # torch marks it anew, with the compiler's own mark
            return marked(*args, **kwargs)
        return plain(*args, **kwargs)

    setattr(plain, _MARK, run)
