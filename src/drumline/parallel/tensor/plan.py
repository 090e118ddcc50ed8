"""Plans: which layers of a model are split, and how. Pure: a plan is made without any other rank.

Any layer can be split by its outputs and gathered (`GATHERED`): that is right whatever comes next,
and costs an all-gather forward and an all-reduce backward. For models that are known, there is
something better: a pair of layers with nothing but elementwise work between them is split by the
first one's outputs (`COLUMN`) and the second one's inputs (`ROW`), with one all-reduce each way.

    mlp       fc1 COLUMN ─ relu ─ fc2 ROW ─ relu ─ fc3 GATHERED
    lenet     c1 whole ─ c3 COLUMN ─ c5 ROW (25 features a channel) ─ f6 COLUMN ─ output ROW
    cnn       conv1 whole ─ conv2 COLUMN ─ fc1 ROW (49 features a channel) ─ fc2 GATHERED
    linear    fc GATHERED
    gpt-mini  in each block: attention HEADS, fc1 COLUMN ─ gelu ─ fc2 ROW; embeddings and tied head
              whole, an untied head GATHERED

The first convolutions stay whole: conv1 is 5 % of cnn's work, but its output, 25,088 numbers an
image, is what would have to be gathered. conv2's input gradient, all there is to exchange instead,
has 6,272.

Known models are known by the full name of their class, since this package does not import them. A
class derived from one of them may do anything with its layers, so it counts as unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from torch import nn

from drumline.parallel.tensor.layers import check_heads, unsplittable


class How(StrEnum):
    """How a layer is split."""

    GATHERED = "gathered"
    """by outputs; the output is put together"""
    COLUMN = "column"
    """by outputs; each rank goes on with its share"""
    ROW = "row"
    """by inputs, of which each rank has its share; the output is summed up"""
    HEADS = "heads"
    """attention, by heads"""
    DROPOUT = "dropout"
    """between COLUMN and ROW: the own share of the whole's mask"""


@dataclass(frozen=True, kw_only=True)
class LayerSplit:
    """How one layer is split."""

    how: How
    blocks: int | None = None
    """in how many equal blocks its split dimension is dealt out; None: one by one"""


Plan = dict[str, LayerSplit]
"""by the layer's name in the model; what is not named stays whole"""


def build_plan(model: nn.Module, ranks: int) -> Plan:
    """Plan a model's tensor parallelism over so many ranks; layers too small for it stay whole."""
    places = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    tied = {which for which, times in places.items() if times > 1}
    plan: Plan = {}
    _walk(model, "", ranks, tied, plan)
    return plan


def _walk(module: nn.Module, name: str, ranks: int, tied: set[int], plan: Plan) -> None:
    known = _KNOWN.get(f"{type(module).__module__}.{type(module).__qualname__}")
    rules = known(module, ranks) if known is not None and _as_built(module) else None
    if rules is not None and all(_may_change(module.get_submodule(layer), tied) for layer in rules):
        plan |= {_join(name, layer): rule for layer, rule in rules.items()}
    elif _splits_by_outputs(module, ranks) and _may_change(module, tied):
        plan[name] = LayerSplit(how=How.GATHERED)
    elif not _reaches_into_children(module):
        for child_name, child in module.named_children():
            _walk(child, _join(name, child_name), ranks, tied, plan)


def _as_built(module: nn.Module) -> bool:
    """Tell whether nobody put another kind of layer into a known model."""
    leaves = [part for part in module.modules() if next(part.children(), None) is None]
    return all(type(leaf).__module__.startswith("torch.nn.modules.") for leaf in leaves)


def _splits_by_outputs(module: nn.Module, ranks: int) -> bool:
    """Tell whether it is a plain layer, not derived from one, with enough outputs."""
    if type(module) is nn.Linear:
        return module.out_features >= ranks
    return type(module) is nn.Conv2d and unsplittable(module, ranks) is None


def _may_change(module: nn.Module, tied: set[int]) -> bool:
    """Tell whether nobody relies on the module as it is: no tied weight, hook or odd parameter."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    own = [*module.parameters()]
    plain = all(name in ("weight", "bias") for name, _ in module.named_parameters(recurse=False))
    return (
        plain
        and not any(id(parameter) in tied for parameter in own)
        and not any(getattr(part, hook) for part in module.modules() for hook in hooks)
    )


def _reaches_into_children(module: nn.Module) -> bool:
    """Tell whether it is a composite of torch's that uses the weights of its layers directly."""
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    return type(module).__module__.startswith("torch.nn.") and not isinstance(module, containers)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}".strip(".")


# The known models. Each gives its rules, or None where there are fewer blocks than ranks: then each
# of its layers is looked at for itself.


def _pair(first: str, second: str, blocks: int) -> Plan:
    """Split two layers so that the second takes what the first gives, block by block."""
    return {
        first: LayerSplit(how=How.COLUMN, blocks=blocks),
        second: LayerSplit(how=How.ROW, blocks=blocks),
    }


def _mlp(model: Any, ranks: int) -> Plan | None:
    if model.fc1.out_features < ranks:
        return None
    return _pair("fc1", "fc2", model.fc1.out_features) | _gathered(model, "fc3", ranks)


def _lenet(model: Any, ranks: int) -> Plan | None:
    if model.c3.out_channels < ranks:
        return None
    return _pair("c3", "c5", model.c3.out_channels) | _pair("f6", "output", model.f6.out_features)


def _cnn(model: Any, ranks: int) -> Plan | None:
    if (channels := model.conv2.out_channels) < ranks:
        return None
    return (
        _pair("conv2", "fc1", channels)
        | {"dropout1": LayerSplit(how=How.DROPOUT, blocks=channels)}
        | _gathered(model, "fc2", ranks)
    )


def _attention(model: Any, ranks: int, name: str = "") -> Plan:
    check_heads(model.heads, model.qkv.in_features, ranks)
    return {name: LayerSplit(how=How.HEADS, blocks=model.heads)}


def _block(model: Any, ranks: int) -> Plan:
    pair = _pair("fc1", "fc2", model.fc1.out_features)
    return _attention(model.attention, ranks, "attention") | pair


def _gathered(model: Any, name: str, ranks: int) -> Plan:
    enough = _splits_by_outputs(model.get_submodule(name), ranks)
    return {name: LayerSplit(how=How.GATHERED)} if enough else {}


_KNOWN: Mapping[str, Callable[[Any, int], Plan | None]] = MappingProxyType(
    {
        "drumline.models.vision.MLP": _mlp,
        "drumline.models.vision.LeNet": _lenet,
        "drumline.models.vision.CNN": _cnn,
        "drumline.models.gpt.Attention": _attention,
        "drumline.models.gpt.Block": _block,
    }
)
