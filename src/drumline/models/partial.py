"""Building a part of a model with the weights that it has in the whole one, in less memory.

What a weight starts as depends on the random numbers that all weights before it took, so all of
them must be drawn, whoever wants them. Absent parameters therefore share one piece of memory:

    whole      fc1 ████████  fc2 ████████  fc3 ████████  fc4 ████████
    part       fc1 ████████  fc2 ████████  fc3, fc4 ──▶ ████████ scratch, drawn over and over

They are ordinary tensors as long as the model is built, so any initialisation runs as it always
does, to the same random state. In the end they become tensors on the meta device: shapes without
values. (Had they been on it from the start, torch's `orthogonal_` and `trunc_normal_` would not
draw at all, and the latter draws again what lies outside: how often depends on the values.)

1. The outline: call the factory with every parameter absent, and note the order in which modules
   and parameters are registered. Only when all is built is it known what their names are.
2. Call it again. The same order tells the name of a parameter when it is registered, before its
   values are drawn; if nobody wants it, it goes to the scratch memory.

Where a wanted value is computed from an absent one (a copied layer, say), that value is wrong. A
`ScratchWatch` follows what was computed from scratch memory; where it got into a wanted parameter,
the whole model is built, and the rest thrown away afterwards. Buffers are kept until the end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drumline.models.build import call_factory
from drumline.spec.parts import ModelSpec

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_INIT = os.path.join(_TORCH, "nn", "init.py")


class SharedStorage:
    """One piece of memory for any number of tensors, as large as the largest of them."""

    def __init__(self) -> None:
        self._storage = torch.UntypedStorage(0)

    def lend(self, like: Tensor) -> Tensor:
        """Return a tensor of the same shape, strides and dtype, whose values others overwrite.

        Strides matter: torch draws random numbers in another order where they have gaps.
        """
        needed = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device="meta")
        size = needed.untyped_storage().nbytes()
        if size > self._storage.nbytes():
            self._storage.resize_(size)  # tensors that have it see the larger one
        empty = torch.empty(0, dtype=like.dtype)
        return empty.set_(self._storage, 0, like.size(), like.stride())

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor was lent from here, or is a view of one that was."""
        return bool(tensor.untyped_storage()._cdata == self._storage._cdata)


class ScratchWatch(TorchDispatchMode):
    """Follows values out of scratch memory, through everything that torch computes from them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.scratch = SharedStorage()
        self.leaked = False
        """a value became a plain number, which can go anywhere"""
        self._followed: dict[int, StorageWeakRef] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes a second, only to switch it off

    def follows(self, tensor: Tensor) -> bool:
        """Whether a tensor's values come from scratch memory."""
        known = self._followed.get(tensor.untyped_storage()._cdata)
        return self.scratch.holds(tensor) or (known is not None and not known.expired())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do an operation of torch, and note what it computed."""
        out = func(*args, **(kwargs or {}))
        inputs = list(_tensors((args, kwargs)))
        if not _only_shapes(func) and any(self.follows(tensor) for tensor in inputs):
            for tensor in (*_tensors(out), *_written(func, args)):
                storage = tensor.untyped_storage()
                self._followed[storage._cdata] = StorageWeakRef(storage)
            numbers = [n for n in tree_leaves(out) if isinstance(n, bool | int | float | complex)]
            self.leaked = self.leaked or (bool(numbers) and not _in_init())
        return out


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def _written(func: Any, args: tuple[Any, ...]) -> Iterator[Tensor]:
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(value)


def _only_shapes(func: Any) -> bool:
    """Whether an operation asks its inputs for nothing but shape and type."""
    name: str = func._schema.name.removeprefix("aten::")
    return name.startswith("new_") or name.endswith("_like")


def _in_init() -> bool:
    """Whether torch's own initialisations are at work, which look at what they drew themselves."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, __file__)):
        if frame.f_code.co_filename == _INIT:
            return True
        frame = frame.f_back
    return False


def build_partial(
    spec: ModelSpec,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
    wanted: Callable[[str], bool],
    **given: object,
) -> nn.Module:
    """Build a model in which only the wanted parameters are there, the others on the meta device.

    The wanted ones are bit for bit those of `build_model`. Of tied parameters all are there if one
    is wanted. It takes the memory of what is wanted and twice that of the largest other parameter.

    `wanted` is asked with the names of parameters and buffers. A buffer is also there if a
    parameter of its own module is.

    Raises:
        SpecError: as for `build_model`.
    """
    plan = _Plan(*_build_outline(spec, seed=seed, **given), wanted)
    with ScratchWatch() as watch, _Registrations(watch.scratch, plan) as registrations:
        model = call_factory(spec, seed=seed, **given)
    if registrations.strayed or watch.leaked or _spoilt(model, watch, plan):
        del model
        model = call_factory(spec, seed=seed, **given)
    _leave_out(model, plan.parameters, plan.buffers)
    return model.to(dtype)


def build_outline(
    spec: ModelSpec, *, seed: int, dtype: torch.dtype = torch.float32, **given: object
) -> nn.Module:
    """Build a model with all its names, shapes and types, but no values (the meta device).

    Raises:
        SpecError: as for `build_model`.
    """
    return _build_outline(spec, seed=seed, **given)[0].to(dtype)


_Event = tuple[str, str | None]
"""a parameter of a module is registered, or (None) a module in another one; the module's class is
told by name, since some are made anew each time"""
_Paths = Sequence[tuple[_Event, list[str]]]
"""what was registered, with the paths that its module has in the end"""


def _build_outline(spec: ModelSpec, *, seed: int, **given: object) -> tuple[nn.Module, _Paths]:
    """Build the outline, and note what was registered meanwhile."""
    with _Registrations(SharedStorage()) as registrations:
        model = call_factory(spec, seed=seed, **given)
    _leave_out(model, set(), set())
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(f"{path}." if path else "")
    noted = zip(registrations.events, registrations.modules, strict=True)
    return model, [(event, paths.get(module, [])) for event, module in noted]


class _Plan:
    """Which parameters stay, by their names and by the order in which they are registered."""

    def __init__(self, outline: nn.Module, events: _Paths, wanted: Callable[[str], bool]) -> None:
        named = dict(outline.named_parameters(remove_duplicate=False))
        asked = {id(parameter) for name, parameter in named.items() if wanted(name)}
        self.parameters = {name for name, parameter in named.items() if id(parameter) in asked}
        homes = {name.rpartition(".")[0] for name in self.parameters}
        self.buffers = {
            name
            for name, _ in outline.named_buffers(remove_duplicate=False)
            if wanted(name) or name.rpartition(".")[0] in homes
        }
        self._all = set(named)
        self._events = events

    def fits(self, index: int, event: _Event) -> bool:
        """Whether the factory has done the same thing at this point as the first time."""
        return index < len(self._events) and self._events[index][0] == event

    def keeps(self, index: int, name: str) -> bool:
        """Whether a parameter stays that an event brings, by its name in the event's module."""
        paths = self._events[index][1]
        if not paths:
            return True  # not a part of the finished model, but its values may go somewhere
        final = {path + name for path in paths} & self._all
        if final:
            return not final.isdisjoint(self.parameters)
        # It goes by another name in the end (weight_norm does that): stay with its module.
        return any(kept.startswith(path) for path in paths for kept in self.parameters)


class _Registrations(contextlib.ExitStack):
    """Notes what modules register, and moves parameters to scratch memory unless the plan says no.

    Until the `with` ends, torch calls the hooks for all modules of the process: build no other one.
    """

    def __init__(self, scratch: SharedStorage, plan: _Plan | None = None) -> None:
        super().__init__()
        self.events: list[_Event] = []
        self.modules: list[nn.Module] = []
        """the one of each event"""
        self.strayed = False
        self._scratch = scratch
        self._plan = plan
        # A parameter with two names is registered twice, and must stay one.
        self._moved: dict[int, tuple[weakref.ref[Tensor], nn.Parameter]] = {}
        self.enter_context(register_module_parameter_registration_hook(self._on_parameter))
        self.enter_context(register_module_module_registration_hook(self._on_module))

    def _on_parameter(self, module: nn.Module, name: str, parameter: nn.Parameter) -> Any:
        self._note(module, name)
        return parameter if self._keeps(name) else self._move(parameter)

    def _on_module(self, _: nn.Module, __: str, module: nn.Module | None) -> None:
        if module is None:
            return
        # Its parameters have been registered before, unless they were copied with it.
        self._note(module)
        for owner, name, path, parameter in list(_parameters_in(module)):
            if not self._keeps(path):
                owner._parameters[name] = self._move(parameter)

    def _note(self, module: nn.Module, parameter: str | None = None) -> None:
        event = (type(module).__qualname__, parameter)
        if self._plan is not None and not self._plan.fits(len(self.events), event):
            self.strayed = True
        self.events.append(event)
        if self._plan is None:
            self.modules.append(module)

    def _keeps(self, name: str) -> bool:
        if self._plan is None:
            return False
        return self.strayed or self._plan.keeps(len(self.events) - 1, name)

    def _move(self, parameter: nn.Parameter) -> nn.Parameter:
        if is_lazy(parameter) or parameter.layout is not torch.strided:
            return parameter
        if parameter.device.type != "cpu" or self._scratch.holds(parameter):
            return parameter
        original, moved = self._moved.get(id(parameter), (None, parameter))
        if original is None or original() is not parameter:
            moved = nn.Parameter(self._scratch.lend(parameter), parameter.requires_grad)
            self._moved[id(parameter)] = (weakref.ref(parameter), moved)
        return moved


def _parameters_in(module: nn.Module) -> Iterator[tuple[nn.Module, str, str, nn.Parameter]]:
    """Yield of each parameter the owner, the name there, the path from the module, and itself."""
    for path, owner in module.named_modules(remove_duplicate=False):
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                yield owner, name, f"{path}.{name}" if path else name, parameter


def _spoilt(model: nn.Module, watch: ScratchWatch, plan: _Plan) -> bool:
    """Whether something that stays has been computed from scratch memory."""
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    stay = plan.parameters | plan.buffers
    return any(name in stay and watch.follows(t) for name, t in chain(parameters, buffers))


def _leave_out(model: nn.Module, parameters: set[str], buffers: set[str]) -> None:
    """Put what does not stay on the meta device; what shares a parameter goes on sharing it."""
    absent: dict[int, nn.Parameter] = {}
    for owner, name, path, parameter in list(_parameters_in(model)):  # holds them: ids stay theirs
        if path in parameters or is_lazy(parameter):
            continue
        if id(parameter) not in absent:
            shape = parameter.detach().to("meta")
            absent[id(parameter)] = nn.Parameter(shape, parameter.requires_grad)
        setattr(owner, name, absent[id(parameter)])  # an RNN has a list of them, too
    for path, owner in model.named_modules(remove_duplicate=False):
        for name, buffer in owner._buffers.items():
            if buffer is not None and (f"{path}.{name}" if path else name) not in buffers:
                owner._buffers[name] = buffer.to("meta")
