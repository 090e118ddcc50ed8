"""What lab 2 runs.

| name | what |
|---|---|
| collectives | all_reduce in every way, by size and ranks: wait, transfer, and its prediction |
| aggregation | strategies averaging a model's gradients: even nodes, a slow CPU, a slow link |
| even-K, late-K | training by strategy K, without and with a rank that comes late by a delay |
| mean-gradients … | sum against mean, gradients against parameters |
| full-size, fp16 | 32 bits on the way, or 16 |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drumline.bench.communication.aggregation import run_aggregation
from drumline.bench.communication.collectives import run_collectives
from drumline.bench.specs import AggregationSpec, CollectivesSpec
from drumline.labs.experiment import Experiment, LabSettings, Measurement, Training, choose_data
from drumline.spec.load import validate_spec

KINDS = (
    "allreduce",
    "reduce_broadcast",
    "gather_scatter",
    "all_gather",
    "ring",
    "chunked_ring",
    "parameter_server",
)
"""the ways to average that are compared"""
WAYS = (
    "native",
    "reduce_broadcast",
    "gather_scatter",
    "all_gather",
    "linear",
    "ring",
    "chunked_ring",
    "tree",
    "halving_doubling",
)
"""the ways to one all_reduce that are timed by size and ranks; linear is the parameter server"""
DELAYED = ("allreduce", "chunked_ring", "parameter_server")
"""those that train with a late rank"""
DELAY_MS = 25
LATE_RANK = 1
AVERAGES = ("mean", "sum")
OF = ("gradients", "parameters")
COMPRESSED = ("none", "fp16")
_BOTTLENECK_NODES = 3


def plan_experiments(settings: LabSettings) -> Sequence[Experiment]:
    """Name them in order."""
    return [
        _collectives(settings),
        _aggregation(settings),
        *_delays(settings),
        *_choices(settings),
        *_compression(settings),
    ]


def _collectives(settings: LabSettings) -> Measurement:
    words: dict[str, Any] = {
        "sizes": ["4KiB", "64KiB", "1MiB", "4MiB"],
        "algorithms": list(WAYS),
        "workers": [2, 4],
        **({"rounds": 6} if not settings.full else {}),
    }
    if settings.full:
        words["sizes"] = ["4KiB", "32KiB", "256KiB", "1MiB", "4MiB", "16MiB"]
    if settings.nodes > 1:
        words |= {**_nodes(settings), "workers": [1]}
    spec = CollectivesSpec.model_validate(words)
    return Measurement(
        name="collectives",
        measure=lambda watch: run_collectives(spec, out=None, watch=watch).to_json(),
        words=spec.model_dump(mode="json"),
    )


def _aggregation(settings: LabSettings) -> Measurement:
    """On simulated nodes in any case: only they can have a slow CPU or a slow link."""
    words: dict[str, Any] = {
        "nodes": max(_BOTTLENECK_NODES, settings.nodes),
        "workers": 1,
        "kinds": list(KINDS),
        "model": "mlp",
        "batch": 256,
        **({"rounds": 12} if not settings.full else {"rounds": 60}),
    }
    if settings.link.rate is not None:
        words["link"] = settings.link.model_dump(mode="json")
    spec = AggregationSpec.model_validate(words)
    return Measurement(
        name="aggregation",
        measure=lambda watch: run_aggregation(spec, out=None, watch=watch).to_json(),
        words=spec.model_dump(mode="json"),
    )


def _nodes(settings: LabSettings) -> dict[str, Any]:
    return {"nodes": settings.nodes, "link": settings.link.model_dump(mode="json")}


def _training(
    settings: LabSettings, name: str, *, may_diverge: bool = False, **words: Any
) -> Training:
    place: dict[str, Any] = {"workers": 2}
    if settings.nodes > 1:
        place = {"workers": 1, **_nodes(settings)}
    values = {
        "name": name,
        "model": "mlp",
        "data": {"name": choose_data(settings), "batch": 128},
        "optimizer": {"name": "sgd", "lr": 0.1},
        "backend": "gloo",
        "threads": 1,
        "seed": settings.seed,
        **place,
        **words,
    }
    return Training(name=name, spec=validate_spec(values), may_diverge=may_diverge)


def _delays(settings: LabSettings) -> list[Training]:
    steps = 200 if settings.full else 40
    found = []
    for kind in DELAYED:
        common: dict[str, Any] = {
            "strategy": {"kind": kind},
            "max_steps": steps,
            "evaluate": False,
        }
        late = {LATE_RANK: {"delay_ms": DELAY_MS}}
        found.append(_training(settings, f"even-{kind}", **common))
        found.append(_training(settings, f"late-{kind}", **common, slow_ranks=late))
    return found


def _choices(settings: LabSettings) -> list[Training]:
    amount: dict[str, Any] = {"epochs": 3} if settings.full else {"epochs": 2}
    return [
        _training(
            settings,
            f"{average}-{of}",
            may_diverge=average == "sum",
            strategy={"kind": "allreduce", "average": average, "of": of},
            **amount,
        )
        for of in OF
        for average in AVERAGES
    ]


def _compression(settings: LabSettings) -> list[Training]:
    amount: dict[str, Any] = {"epochs": 3} if settings.full else {"epochs": 2}
    return [
        _training(
            settings,
            f"compress-{compress}",
            strategy={"kind": "chunked_ring", "compress": compress},
            **amount,
        )
        for compress in COMPRESSED
    ]
