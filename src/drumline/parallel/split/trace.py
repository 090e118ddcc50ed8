"""What a model's forward does, as a list of operations, found by calling it once without data.

`torch.fx` calls the root's forward with a stand-in for the tensor, which notes what is done to it.
Submodules are not looked into: one call is one operation, so a transformer's block stays whole. An
nn.Sequential is the exception: it only calls its members, so these are the operations.

The stand-in has no values. A forward that asks for one (`if x.sum() > 0`, `range(x.shape[0])`)
cannot be traced, and some things leave no trace (`torch.no_grad()`, random numbers made on the
spot). All of them are refused here with the line, since a cut model would compute something else.
"""

from __future__ import annotations

import copy
import inspect
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx import Node

from drumline.core.errors import UsageError

LINE = "drumline_line"  # under this key a node remembers the source line that made it
_WAY_OUT = (
    "make the model an nn.Sequential, or put that operation into a submodule of its own, "
    "which stays whole"
)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A forward pass: what comes in, what is done, what goes out."""

    input: Node
    operations: tuple[Node, ...]
    """in the order of computing; reading a parameter is not one"""
    output: Node
    constants: Mapping[str, Tensor]
    """tensors that forward makes by itself, by the name that operations have for them"""


def trace_model(model: nn.Module) -> tuple[Trace, Trace]:
    """Trace a model to split, in training and in evaluation; both have the same operations.

    Neither the model nor the random state changes. A model whose trace would not be the whole
    truth is refused (UsageError).
    """
    _check_calls(model)
    with torch.random.fork_rng(devices=[]):
        training, evaluation = (_trace(model, training=mode) for mode in (True, False))
    for one, other in zip(training.operations, evaluation.operations, strict=False):
        if (one.op, one.target) != (other.op, other.target):
            raise _differs(model, one)
    if len(training.operations) != len(evaluation.operations):
        raise _differs(model, training.operations[-1] if training.operations else training.output)
    for name, values in training.constants.items():
        again = evaluation.constants.get(name)
        if again is None or not torch.equal(values, again):
            raise uncuttable(
                model,
                f"its forward makes a tensor by itself that is another one each time "
                f"(shape {list(values.shape)}; random numbers?); {_WAY_OUT}",
            )
    return training, evaluation


def uncuttable(model: nn.Module, reason: str) -> UsageError:
    """Return the error that says why a model cannot be split into stages."""
    return UsageError(f"cannot cut {type(model).__name__} into stages: {reason}")


def _check_calls(model: nn.Module) -> None:
    """Refuse a model that is called in another way than `forward(one tensor)`."""
    parameters = list(inspect.signature(type(model).forward).parameters.values())[1:]
    required = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name in required]
    if len(required) > 1 or keyword_only or not parameters:
        raise uncuttable(
            model,
            f"its forward takes {len(required)} inputs ({', '.join(required) or 'none'}), but a "
            f"stage maps one tensor to one; let it take one, or give the others defaults",
        )
    if _has_hooks(model) or "forward" in vars(model):
        raise uncuttable(
            model,
            "it has forward hooks, or a forward of this one object, which its stages would not "
            "call; add them to submodules instead",
        )


def _trace(model: nn.Module, *, training: bool) -> Trace:
    root = _stand_in(model, training=training)
    tracer = _Tracer()
    try:
        graph = tracer.trace(root)
    except Exception as error:
        raise _explain(model, error) from error
    if tracer.lost is not None:
        raise uncuttable(model, f"{tracer.lost}; {_WAY_OUT}")
    nodes = list(graph.nodes)
    output = nodes[-1].args[0]
    if not isinstance(output, Node):
        given = type(output).__name__ if output is not None else "nothing"
        raise uncuttable(
            model, f"its forward returns {given}, but a stage gives one tensor; return only that"
        )
    names = {node.target for node in nodes if node.op == "get_attr"}
    constants = {
        str(name): getattr(root, str(name))
        for name in names
        if name in vars(root) and name not in vars(model)
    }
    return Trace(
        input=nodes[0],
        operations=tuple(n for n in nodes[1:-1] if n.op != "get_attr"),
        output=output,
        constants=constants,
    )


def _stand_in(model: nn.Module, *, training: bool) -> nn.Module:
    """Return a shallow copy to trace, so that what forward leaves on `self` is not left there.

    Its forward takes exactly one thing: other parameters have their defaults as plain values.
    """
    kind = type(model)
    call: Callable[..., Any] = kind.forward

    def forward(self: nn.Module, input: Any) -> Any:  # noqa: A002  torch's own name for it
        return call(self, input)

    root = copy.copy(model)
    root.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    root.training = training
    return root


class _Tracer(fx.Tracer):
    """torch's tracer; nn.Sequential is open, and what would leave no trace is noticed."""

    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__()
        self.lost: str | None = None
        self._around = _surroundings()

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if type(m).forward is nn.Sequential.forward and not _has_hooks(m):
            return forward(*args, **kwargs)  # a slice of one is not a submodule, but does no harm
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        node = super().create_node(*args, **kwargs)
        node.meta[LINE] = _first_of_theirs(traceback.walk_stack(sys._getframe()))
        if self._around != _surroundings() and self.lost is None:
            self.lost = (
                f"{node.meta[LINE]} runs under no_grad, autocast or the like, which leaves no trace"
            )
        return node


def _surroundings() -> tuple[bool, ...]:
    autocast = [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast)


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _explain(model: nn.Module, error: Exception) -> UsageError:
    innermost_first = reversed(list(traceback.walk_tb(error.__traceback__)))
    where = _first_of_theirs(innermost_first) or "its forward"
    said = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, fx.proxy.TraceError):
        why = "asks for values of a tensor, which are only there while the model runs"
    else:
        why = f"cannot be followed without data ({type(error).__name__}: {said})"
    return uncuttable(model, f"{where} {why}; {_WAY_OUT}")


def _differs(model: nn.Module, node: Node) -> UsageError:
    return uncuttable(
        model,
        f"its forward does other operations in training than in evaluation "
        f"({node.meta.get(LINE) or node.name}); {_WAY_OUT}",
    )


_OURS = tuple(os.path.join(os.path.dirname(path), "") for path in (__file__, torch.__file__))
_STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")
_INSTALLED = os.path.join(sysconfig.get_path("purelib"), "")  # may lie below the standard library


def _first_of_theirs(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return `file.py:7: \\`the code\\`` of the first line that is neither ours nor torch's."""
    places = ((frame.f_code.co_filename, line) for frame, line in frames)
    return next((_describe(path, line) for path, line in places if _is_theirs(path)), "")


def _is_theirs(path: str) -> bool:
    standard = path.startswith(_STANDARD) and not path.startswith(_INSTALLED)
    return not standard and not path.startswith(_OURS) and not path.startswith("<")


def _describe(path: str, line: int) -> str:
    code = linecache.getline(path, line).strip()
    return f"{os.path.basename(path)}:{line}" + (f": `{code}`" if code else "")
