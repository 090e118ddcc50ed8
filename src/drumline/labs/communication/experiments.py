"""What lab 2 runs.

| name | what |
|---|---|
| collectives | all_reduce in every way, by size and ranks: wait, transfer, and its prediction |
| aggregation | strategies averaging a model's gradients: even nodes, a slow CPU, a slow link |
| even-K, late-K | training by strategy K, without and with a rank that comes late by a delay |
| mean-gradients … | sum against mean, gradients against parameters |
| compress-none, compress-fp16 | 32 bits on the way, or 16 |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drumline.bench.case_runner import Measurement
from drumline.bench.communication.aggregation import run_aggregation
from drumline.bench.communication.collectives import run_collectives
from drumline.bench.specs import AggregationSpec, CollectivesSpec
from drumline.labs import experiment
from drumline.labs.experiment import LabSettings, Options, Training

_COMPOSED = ("reduce_broadcast", "gather_scatter", "all_gather")
"""made of other collectives of the backend"""
KINDS = ("allreduce", *_COMPOSED, "ring", "chunked_ring", "parameter_server")
"""the ways to average that are compared"""
WAYS = ("native", *_COMPOSED, "linear", "ring", "chunked_ring", "tree", "halving_doubling")
"""the ways to one all_reduce that are timed by size and ranks; linear is the parameter server"""
DELAYED = ("allreduce", "chunked_ring", "parameter_server")
"""those that train with a late rank"""
DELAY_MS = 25
LATE_RANK = 1
OF = ("gradients", "parameters")
CHOICES = {f"{average}-{of}": (average, of) for of in OF for average in ("mean", "sum")}
"""how the average is taken and of what, by the run's name"""
COMPRESSED = ("none", "fp16")
_BOTTLENECK_NODES = 3
_SHARED: Options = {
    "model": "mlp",
    "data": {"batch": 128},
    "optimizer": {"name": "sgd", "lr": 0.1},
    "backend": "gloo",
    "threads": 1,
}


def plan_experiments(settings: LabSettings) -> Sequence[Measurement | Training]:
    """List the experiments of lab 2, in order."""
    return [_collectives(settings), _aggregation(settings), *_delays(settings), *_choices(settings)]


def _collectives(settings: LabSettings) -> Measurement:
    sizes = "4KiB 32KiB 256KiB 1MiB 4MiB 16MiB" if settings.full else "4KiB 64KiB 1MiB 4MiB"
    options: Options = {"sizes": sizes.split(), "algorithms": WAYS, "workers": [2, 4]}
    if settings.nodes > 1:
        options = {**options, **experiment.place_ranks(settings, settings.nodes), "workers": [1]}
    rounds = {} if settings.full else {"rounds": 6}
    return experiment.build_measurement(
        "collectives", run_collectives, CollectivesSpec, {**options, **rounds}
    )


def _aggregation(settings: LabSettings) -> Measurement:
    """On simulated nodes in any case: only they can have a slow CPU or a slow link."""
    options = {
        "nodes": max(_BOTTLENECK_NODES, settings.nodes),
        "workers": 1,
        "kinds": KINDS,
        "model": "mlp",
        "batch": 256,
        "rounds": 60 if settings.full else 12,
    }
    if settings.link.rate is not None:
        options["link"] = settings.link
    return experiment.build_measurement("aggregation", run_aggregation, AggregationSpec, options)


def _train(
    settings: LabSettings, name: str, options: Options, *, may_diverge: bool = False
) -> Training:
    ranks = max(2, settings.nodes)
    return experiment.build_training(
        settings, name, _SHARED, options, ranks=ranks, may_diverge=may_diverge
    )


def _delays(settings: LabSettings) -> Iterator[Training]:
    steps = 200 if settings.full else 40
    late = {LATE_RANK: {"delay_ms": DELAY_MS}}
    for kind in DELAYED:
        options: Options = {"strategy": {"kind": kind}, "max_steps": steps, "evaluate": False}
        yield _train(settings, f"even-{kind}", options)
        yield _train(settings, f"late-{kind}", {**options, "slow_ranks": late})


def _choices(settings: LabSettings) -> Iterator[Training]:
    epochs: Options = {"epochs": 3 if settings.full else 2}
    for name, (average, of) in CHOICES.items():
        strategy = {"kind": "allreduce", "average": average, "of": of}
        options = {**epochs, "strategy": strategy}
        yield _train(settings, name, options, may_diverge=average == "sum")
    for compress in COMPRESSED:
        strategy = {"kind": "chunked_ring", "compress": compress}
        yield _train(settings, f"compress-{compress}", {**epochs, "strategy": strategy})
