"""The parts of a `RunSpec`: model, checkpoints, simulated nodes; `data` and `learning` have others.

Each part is frozen, refuses unknown keys, and checks what its own keys must keep together; what
keys of different parts must keep together is checked by `run_spec`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from drumline.core.factory import FactoryKind
from drumline.core.formatting import format_rate, nearest, parse_bytes, parse_rate
from drumline.core.nodes import MAX_NODES, PREFIX, NodePlan, address_of

Bytes = Annotated[int, BeforeValidator(parse_bytes, json_schema_input_type=int | str), Field(gt=0)]


class ClashError(ValueError):
    """Keys that are fine one by one but not together; `keys` says which."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


class UnknownKeyError(ValueError):
    """A key that a part takes in some cases, as an option of the user's own, and not here."""

    def __init__(self, key: str) -> None:
        super().__init__(f"unknown key {key!r}")
        self.key = key


def clash(name: str, /, **values: object) -> ClashError:
    """Return the error for keys of a spec that do not go together, by its name in messages.yaml."""
    found = read_messages().clashes[name]
    return ClashError(found.says.format(**values), *(key.format(**values) for key in found.about))


class _Clash(BaseModel):
    says: str
    about: list[str]


class _Messages(BaseModel):
    wanted: dict[str, str]
    examples: dict[str, str]
    clashes: dict[str, _Clash]


@cache
def read_messages() -> _Messages:
    """Read what errors in a spec say."""
    text = Path(__file__).with_name("messages.yaml").read_text(encoding="utf-8")
    return _Messages.model_validate(yaml.safe_load(text))


class SpecPart(BaseModel):
    """A frozen part of a spec that refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",  # a model's own options may have them
    )


def one_word(part: type[SpecPart], key: str) -> BeforeValidator:
    """Let a part of a spec be one word, which stands for the given key; the schema says so too."""
    word: Any = part.model_fields[key].rebuild_annotation()
    return BeforeValidator(
        lambda value: {key: value} if isinstance(value, str) else value,
        json_schema_input_type=part | word,
    )


class OptionsSpec(SpecPart):
    """A part of a spec whose keys that are no fields are options of what it names."""

    model_config = ConfigDict(extra="allow")

    secret: ClassVar[re.Pattern[str]] = re.compile(
        r"(passw(or)?d|passphrase|(^|_)pwd|secret|credentials?|^token"
        r"|(api|access|auth|secret|private|session|hf)[_-]?(key|token))$"
    )
    """which options' names end like a secret's"""

    @property
    def options(self) -> dict[str, object]:
        """The options that were given."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _keep_no_secret(self) -> Self:
        for key in _find_secrets(self, self.secret):
            raise clash("secret_in_spec", key=key)
        return self


_PASSWORD_IN_URL = re.compile(r"https?://[^/?#\s]+@|://[^/\s@]*:[^/\s]*@")


def _find_secrets(options: Iterable[tuple[str, object]], secret: re.Pattern[str]) -> Iterator[str]:
    """Yield the keys of options that look like a secret, or have a URL with a password."""
    for key, value in options:
        match value:
            case dict():
                yield from (f"{key}.{inner}" for inner in _find_secrets(value.items(), secret))
            case list() | tuple():
                yield from _find_secrets(((key, item) for item in value), secret)
            case str() | int() if not isinstance(value, bool):
                if secret.search(str(key).lower()) or _PASSWORD_IN_URL.search(str(value)):
                    yield key


class FactorySpec(OptionsSpec):
    """Something that is built by name; keys that are no fields are options for its factory."""

    factories: ClassVar[FactoryKind]
    """those of the user's own that `name` may be"""
    name: str
    """a built-in, or `package.module:factory` of your own"""


class RuleSpec(FactorySpec):
    """An optimizer or a schedule: those of `ours` have fields for their options, others any."""

    ours: ClassVar[tuple[str, ...]]
    ours_only: ClassVar[frozenset[str]]
    """the fields that are options of ours; of others, those that are given are options, too"""
    others_only: ClassVar[frozenset[str]] = frozenset()

    @property
    def is_ours(self) -> bool:
        """Whether there is an implementation of ours, with the fields as its options."""
        return self.name in self.ours

    @property
    def options(self) -> dict[str, object]:
        """The options that were given, for one that is not ours."""
        given = self.ours_only & self.model_fields_set
        return {key: getattr(self, key) for key in given} | dict(self.model_extra or {})

    @model_serializer(mode="wrap")
    def _only_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the defaults of fields that are not for this name."""
        values: dict[str, Any] = handler(self)
        others = {"engine", *self.ours_only} - self.model_fields_set
        foreign = self.others_only if self.is_ours else others
        return {key: value for key, value in values.items() if key not in foreign}

    @model_validator(mode="after")
    def _know_keys(self) -> Self:
        for key in self.model_extra or () if self.is_ours else ():
            keys = list(type(self).model_fields)
            hint = nearest(key, keys, f"the keys here are {', '.join(keys)}")
            raise clash("no_such_option", key=key, hint=hint)
        return self


class ModelSpec(FactorySpec):
    """Which model; other keys are passed to its factory (`model: {name: cnn, dropout: 0}`)."""

    factories = FactoryKind(
        what="model",
        returns="an nn.Module",
        key="model",
        given=("classes", "outputs", "features"),  # come from the data, not from the spec
    )

    name: str = "cnn"
    """linear, mlp, lenet, cnn, gpt-mini, or `package.module:factory` of your own"""


class CheckpointSpec(SpecPart):
    """When the state is written."""

    every_steps: int | None = Field(default=None, ge=1)
    """write every so many steps (default: at the end of each epoch)"""
    keep: int = Field(default=2, ge=1)
    """how many of the newest to keep; two survive damage to one"""
    best: str | None = None
    """also keep the one that is best by this: loss, or a metric's name (of the validation set,
    where there is one; default: that of early_stopping, if there is any)"""


class SlowRank(SpecPart):
    """A rank that is slowed on purpose."""

    delay_ms: float = Field(default=0.0, ge=0)
    """sleep this long in each step, before its first collective"""


# Below, one frame takes longer than a collective may; above, no machine of today comes close.
SLOWEST, FASTEST = 10**6, 4 * 10**11


def _check_rate(value: object) -> int:
    rate = parse_rate(value)
    if not SLOWEST <= rate <= FASTEST:
        raise ValueError(
            f"{value!r} is no rate for a link; give one from {format_rate(SLOWEST)} to "
            f"{format_rate(FASTEST)}, such as 100mbit or 1gbit"
        )
    return rate


def check_node_count(nodes: int) -> int:
    """Raise ValueError for no simulated node at all, or more than there are addresses."""
    if not 1 <= nodes <= MAX_NODES:
        raise ValueError(
            f"got {nodes}, but the simulated network {PREFIX}.0/24 has addresses for 1 to "
            f"{MAX_NODES} nodes; write e.g. nodes=4, and more workers on each"
        )
    return nodes


Rate = Annotated[
    int,
    BeforeValidator(_check_rate, json_schema_input_type=int | str),
    PlainSerializer(format_rate, return_type=str, when_used="json"),
]


class LinkSpec(SpecPart):
    """The link of each simulated node to the switch that joins them."""

    rate: Rate | None = None
    """bits per second in either direction, e.g. 100mbit, 1gbit, 12.5MB/s (default: not limited)"""
    delay_ms: float = Field(default=0.0, ge=0, le=10_000)
    """what a packet takes longer over the link, in either direction (needs the kernel's netem)"""


class SlowNode(SpecPart):
    """A simulated node that is slowed on purpose: by its link, or by its CPU."""

    rate: Rate | None = None
    """the rate of its link, instead of link.rate"""
    delay_ms: float | None = Field(default=None, ge=0, le=10_000)
    """the delay of its link, instead of link.delay_ms"""
    cpu: float = Field(default=1.0, ge=0.05, le=1)
    """the share of CPU time that its workers get: with 0.5, computing takes twice as long"""


def plan_nodes(
    nodes: int, link: LinkSpec, slow_nodes: Mapping[int, SlowNode]
) -> tuple[NodePlan, ...]:
    """Lay out the simulated nodes of a run spec; none where all workers are on one node."""
    slow = [slow_nodes.get(node, SlowNode()) for node in range(nodes if nodes > 1 else 0)]
    return tuple(
        NodePlan(
            node=node,
            address=address_of(node),
            rate=link.rate if own.rate is None else own.rate,
            delay_ms=link.delay_ms if own.delay_ms is None else own.delay_ms,
            cpu=own.cpu,
        )
        for node, own in enumerate(slow)
    )


def check_slow_nodes(nodes: int, link: LinkSpec, slow_nodes: Mapping[int, SlowNode]) -> None:
    """Raise ClashError for links or slow nodes of a spec that has no such simulated nodes."""
    if nodes == 1 and (slow_nodes or link != LinkSpec()):
        raise clash("no_simulated_nodes", key="slow_nodes" if slow_nodes else "link")
    late = sorted(node for node in slow_nodes if not 0 <= node < nodes)
    if late:
        raise clash("no_such_slow_node", node=late[0], last=nodes - 1)
