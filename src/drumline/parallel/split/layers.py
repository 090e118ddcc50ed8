"""A model as a chain of layers: the finest one that its forward allows.

    operations   flatten  fc1  relu  fc2  relu  fc3        as traced (`trace`)
    gaps               1    2     3    4     5             between two operations
    alive              ✓    ✓     ✓    ✓     ✓             exactly one tensor crosses: may be cut
    layers       [flatten  fc1  relu][fc2  relu][fc3]      a layer has parameters; what has none
                                                           joins the layer before it

Around a skip connection two tensors are alive, so no gap inside it may be cut. A module that is
called twice has one set of parameters, so all gaps between its calls stay closed, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor, nn
from torch.fx import Node

from drumline.core.errors import UsageError
from drumline.parallel.split.trace import LINE, Trace, trace_model, uncuttable
from drumline.parallel.tied import tied_names


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some operations in a row, which turn one value into one."""

    incoming: Node
    operations: tuple[Node, ...]
    outgoing: Node


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A link of the chain; `build_stage` makes modules of some in a row."""

    name: str
    """`fc1`, `blocks.0`; `tokens…positions` where it has parameters of several modules"""
    parameters: tuple[str, ...]
    """their names in the whole model"""
    buffers: tuple[str, ...]
    training: Piece = field(repr=False, compare=False)
    evaluation: Piece = field(repr=False, compare=False)
    constants: dict[str, Tensor] = field(repr=False, compare=False)
    """what forward makes by itself"""


def find_layers(model: nn.Module) -> list[Layer]:
    """Split a model into the longest possible chain of layers.

    Weights may be on the meta device. Names that forward does not use are in the last layer, so
    that all layers together have all names; one that shares its tensor with a name in use is with
    that one. A model that cannot be traced, or nowhere be cut, is refused (UsageError).
    """
    training, evaluation = trace_model(model)
    state = _State(
        parameters=tuple(name for name, _ in model.named_parameters(remove_duplicate=False)),
        buffers=tuple(name for name, _ in model.named_buffers(remove_duplicate=False)),
    )
    holdings = [_holdings(state, node) for node in training.operations]
    gaps = sorted(_open_gaps(training, holdings) & _open_gaps(evaluation, holdings))
    bounds = _join(gaps, holdings)
    if len(bounds) == 2 and len(_owners(holdings)) > 1:
        raise _explain_one_layer(model, training, holdings)
    shares = _share_out(model, state, holdings, bounds)
    return [
        Layer(
            name=_name(holdings[first:last]),
            parameters=share.parameters,
            buffers=share.buffers,
            training=_piece(training, first, last),
            evaluation=_piece(evaluation, first, last),
            constants=dict(training.constants),
        )
        for share, first, last in zip(shares, bounds, bounds[1:], strict=False)
    ]


@dataclass(frozen=True, kw_only=True)
class _State:
    """The names of parameters and buffers: of a model, or of what one operation takes from it."""

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    owners: tuple[str, ...] = ()
    """the modules (or parameters of the root) that have the parameters"""
    shared: tuple[str, ...] = ()
    """buffers that are read as constants, which two layers may both do"""


def _holdings(state: _State, node: Node) -> _State:
    called = [str(node.target)] if node.op == "call_module" else []
    read = [str(n.target) for n in node.all_input_nodes if n.op == "get_attr"]
    paths = called + read
    return _State(
        parameters=tuple(n for n in state.parameters if any(_below(n, path) for path in paths)),
        buffers=tuple(n for n in state.buffers if any(_below(n, path) for path in paths)),
        owners=tuple(p for p in paths if any(_below(n, p) for n in state.parameters)),
        shared=tuple(n for n in state.buffers if n in read),
    )


def _below(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}.")


def _open_gaps(trace: Trace, holdings: Sequence[_State]) -> set[int]:
    """Return the gaps that one value crosses, and no module is called on both sides of."""
    shut: set[int] = set()
    for first, last in _spans(holdings).values():
        shut.update(range(first + 1, last + 1))
    alive = _alive(trace)
    return {gap for gap in range(1, len(alive)) if len(alive[gap]) == 1 and gap not in shut}


def _alive(trace: Trace) -> list[list[Node]]:
    """For each gap (0: before the first operation): the values that are needed after it."""
    count = len(trace.operations)
    place = {node: index for index, node in enumerate(trace.operations)}
    alive: list[list[Node]] = [[] for _ in range(count)]
    for node in (trace.input, *trace.operations):
        users = [place.get(user, count) for user in node.users]
        for gap in range(place.get(node, -1) + 1, min(max(users, default=-1), count - 1) + 1):
            alive[gap].append(node)
    return alive


def _spans(holdings: Sequence[_State]) -> dict[str, tuple[int, int]]:
    """For each name that only one layer can have: its first and last operation."""
    spans: dict[str, tuple[int, int]] = {}
    for index, holding in enumerate(holdings):
        for name in (*holding.parameters, *holding.buffers):
            if name not in holding.shared:
                spans[name] = (spans.get(name, (index, index))[0], index)
    return spans


def _join(gaps: Sequence[int], holdings: Sequence[_State]) -> list[int]:
    """Keep the gaps with parameters before and right after them; add both ends."""
    ends = [*gaps, len(holdings)]
    bounds = [0]
    filled = False  # does the layer that is being collected have parameters?
    for first, last in zip([0, *gaps], ends, strict=True):
        has_parameters = any(holding.parameters for holding in holdings[first:last])
        if has_parameters and filled:
            bounds.append(first)
        filled = filled or has_parameters
    return [*bounds, len(holdings)]


def _owners(holdings: Sequence[_State]) -> list[str]:
    return list(dict.fromkeys(path for holding in holdings for path in holding.owners))


def _name(holdings: Sequence[_State]) -> str:
    owners = _owners(holdings)
    return "…".join(owners if len(owners) < 3 else (owners[0], owners[-1])) or "everything"


def _share_out(
    model: nn.Module, state: _State, holdings: Sequence[_State], bounds: Sequence[int]
) -> list[_State]:
    """Give each layer the names of its parameters and buffers, in the model's order."""
    cuts = list(pairwise(bounds))
    parameters = [{n for part in holdings[a:b] for n in part.parameters} for a, b in cuts]
    buffers = [{n for part in holdings[a:b] for n in part.buffers} for a, b in cuts]
    taken = set().union(*parameters)
    for group in tied_names(model):
        with_it = next((names for names in parameters if names & set(group)), parameters[-1])
        with_it.update(set(group) - taken)
        taken.update(group)
    parameters[-1].update(set(state.parameters) - taken)
    buffers[-1].update(set(state.buffers).difference(*buffers))
    return [
        _State(
            parameters=tuple(name for name in state.parameters if name in mine),
            buffers=tuple(name for name in state.buffers if name in my_buffers),
        )
        for mine, my_buffers in zip(parameters, buffers, strict=True)
    ]


def _piece(trace: Trace, first: int, last: int) -> Piece:
    alive = _alive(trace)
    count = len(trace.operations)
    return Piece(
        incoming=trace.input if first == 0 else alive[first][0],
        operations=trace.operations[first:last],
        outgoing=trace.output if last == count else alive[last][0],
    )


def _explain_one_layer(model: nn.Module, trace: Trace, holdings: Sequence[_State]) -> UsageError:
    """Name the fewest values that are alive across every gap between parameters."""
    filled = [index for index, holding in enumerate(holdings) if holding.parameters]
    alive = _alive(trace)
    left = [alive[gap] for gap in range(filled[0] + 1, filled[-1] + 1) if len(alive[gap]) != 1]
    crossing: list[str] = []
    while left:
        value = Counter(node for nodes in left for node in nodes).most_common(1)[0][0]
        crossing.append(_describe(value))
        left = [nodes for nodes in left if value not in nodes]
    if crossing:
        return uncuttable(
            model,
            f"{' and '.join(crossing)} {'is' if len(crossing) == 1 else 'are'} still needed after "
            f"the layers that follow (a skip connection?), so that more than one tensor would "
            f"cross each cut; put such layers into submodules, each of which stays whole and maps "
            f"one tensor to one",
        )
    both = [path for path, (first, last) in _spans(holdings).items() if first < last]
    return uncuttable(
        model,
        f"{both[0]} is used in its first layers and in its last ones, but only one stage can hold "
        f"it; give each place a module of its own (whose weight may be the same parameter)",
    )


def _describe(node: Node) -> str:
    if node.op == "placeholder":
        return "its input"
    if node.op == "call_module":
        return f"the output of {node.target}"
    name = node.target if isinstance(node.target, str) else node.name
    return f"the result of {name} ({node.meta[LINE]})" if node.meta[LINE] else f"{name}'s result"
