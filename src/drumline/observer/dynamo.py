"""Hooks that torch.compile passes over.

While a compiled module runs, torch's compiler looks at every Python function that is entered, those
included that the module does not call itself: a hook in a DDP module's backward would be traced,
with warnings and graph breaks that the program does not have without it. A code object that is
marked is left alone; marking needs no import of the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch


def keep_from_dynamo(*modules: ModuleType) -> None:
    """Let torch's compiler pass over every function of some modules."""
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    for module in modules:
        for code in _codes_of(vars(module).values(), module.__name__):
            frames.set_code_exec_strategy(code, skip)


def _codes_of(values: object, module: str) -> Iterator[CodeType]:
    """Find the code of functions, of classes' methods, and of what they define inside."""
    for value in list(values):  # type: ignore[call-overload]
        if isinstance(value, CodeType):
            yield value
            yield from _codes_of(value.co_consts, module)
        elif getattr(value, "__module__", None) != module:
            continue
        elif isinstance(value, FunctionType):
            yield from _codes_of([value.__code__], module)
        elif isinstance(value, type):
            yield from _codes_of(vars(value).values(), module)
        elif isinstance(value, property):
            yield from _codes_of([value.fget], module)
