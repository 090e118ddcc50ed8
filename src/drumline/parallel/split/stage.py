"""Stages: some layers of a model in a row, as a module that maps one tensor to one.

A stage has the model's own submodules under their own paths (`blocks.0` of the model is `blocks.0`
of the stage), so its parameters have the names that they have in the whole model, and checkpoints
of any split fit together. Its forward is the code that `torch.fx` writes for its operations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, fx, nn
from torch.fx import Node

from drumline.core.errors import UsageError
from drumline.parallel.split.layers import Layer, Piece
from drumline.parallel.tied import tied_names


class Stage(nn.Module):
    """Some layers in a row; made by `build_stage`."""

    def __init__(self, label: str) -> None:
        super().__init__()
        # Names that no submodule of a model will have.
        self._drumline_label = label
        self._drumline_forwards: dict[bool, Callable[[nn.Module, Tensor], Any]] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Map the tensor that comes in to the one that goes out."""
        out = self._drumline_forwards[self.training](self, x)
        if not isinstance(out, Tensor):
            raise UsageError(
                f"the stage of {self._drumline_label} gives {type(out).__name__}, but one tensor "
                f"must go to the next; cut elsewhere, or let its last layer return a tensor"
            )
        return out


def build_stage(model: nn.Module, layers: Sequence[Layer], first: int, last: int) -> nn.Module:
    """Build a stage of a split model: a module of the layers `first` to `last - 1`.

    It shares the model's tensors, with one exception: of a parameter with several names (tied
    weights) the stage with the first name has the tensor itself; another one has a copy, as it
    would in another process. The model is the one whose layers these are, or another of the same
    build, in which the stage's own weights are there (`build_partial`).
    """
    stage = assemble_stage(model, layers, first, last)
    if not any(parameter.requires_grad for parameter in stage.parameters()):
        raise UsageError(
            f"the stage of layers {first} to {last - 1} ({stage._drumline_label}) would have no "
            f"parameter to train; give it more layers of {', '.join(n.name for n in layers)}"
        )
    return stage


def assemble_stage(model: nn.Module, layers: Sequence[Layer], first: int, last: int) -> Stage:
    """Build a stage of a split model, whatever its layers have to train."""
    mine = layers[first:last]
    stage = Stage("…".join(dict.fromkeys((mine[0].name, mine[-1].name))) if mine else "no layer")
    graphs = {
        True: _join([layer.training for layer in mine]),
        False: _join([layer.evaluation for layer in mine]),
    }
    names = {name for layer in mine for name in (*layer.parameters, *layer.buffers)}
    memo = _memo(model, names)
    constants = {name: value for layer in mine for name, value in layer.constants.items()}
    for path in _paths(graphs.values(), names, model):
        if path in constants:
            setattr(stage, path, constants[path])
        else:
            _place(stage, path, model, memo)
    for path, module in stage.named_modules():
        module.training = model.get_submodule(path).training
    for training, graph in graphs.items():
        written = fx.GraphModule(stage, graph)
        stage._drumline_forwards[training] = type(written).forward
    return stage


def _join(pieces: Sequence[Piece]) -> fx.Graph:
    """Write the operations of some pieces as one graph."""
    graph = fx.Graph()
    copies: dict[Node, Node] = {}

    def copy_of(node: Node) -> Node:
        if node not in copies:  # only reading the model's state is not an operation of a piece
            copies[node] = graph.node_copy(node)
        return copies[node]

    given = graph.placeholder("given")
    if pieces:
        copies[pieces[0].incoming] = given
    for piece in pieces:
        for node in piece.operations:
            copies[node] = graph.node_copy(node, copy_of)
    graph.output(copies[pieces[-1].outgoing] if pieces else given)
    return graph


def _paths(graphs: Iterable[fx.Graph], names: set[str], model: nn.Module) -> list[str]:
    """Return what the stage must have, in the model's order: modules first, then what is left."""
    named = {
        str(node.target)
        for graph in graphs
        for node in graph.nodes
        if node.op in ("call_module", "get_attr")
    }
    state = {
        **dict(model.named_modules(remove_duplicate=False)),
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    wanted = [path for path in state if path in named | names]
    return [*wanted, *sorted(named - set(wanted))]


def _memo(model: nn.Module, names: set[str]) -> dict[int, Any]:
    """Return what `deepcopy` must take as it is: all tensors but the tied ones of other stages."""
    tensors: dict[str, Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    elsewhere = {group[0] for group in tied_names(model) if group[0] not in names}
    copied = {id(tensors[name]) for name in elsewhere}
    return {id(tensor): tensor for tensor in tensors.values() if id(tensor) not in copied}


def _place(stage: nn.Module, path: str, model: nn.Module, memo: dict[int, Any]) -> None:
    """Put what the model has at a path there, unless it has come with what is above it."""
    *above, name = path.split(".")
    here = stage
    for part in above:
        if part not in here._modules:
            here.add_module(part, nn.Module())
        here = here.get_submodule(part)
    if hasattr(here, name):
        return
    owner = model.get_submodule(".".join(above))
    if name in owner._modules:
        module = owner.get_submodule(name)
        own = all(id(tensor) in memo for tensor in (*module.parameters(), *module.buffers()))
        here.add_module(name, module if own else copy.deepcopy(module, memo))
    elif name in owner._parameters:
        here.register_parameter(name, copy.deepcopy(owner.get_parameter(name), memo))
    elif name in owner._buffers:
        lasting = name not in owner._non_persistent_buffers_set
        here.register_buffer(name, owner.get_buffer(name), persistent=lasting)
    else:
        setattr(here, name, getattr(owner, name))  # a plain tensor, constant as in the model


class Chunks(nn.Module):
    """The stages of a rank in an interleaved schedule, as one module to train, save and load."""

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
