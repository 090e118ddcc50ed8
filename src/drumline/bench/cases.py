"""The cases of `drumline bench model-parallel`: training runs that differ in form alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from drumline.core.model_bench import CHUNKS, MIXED_COPIES, Engine, Form, ModelParallelSpec
from drumline.spec.load import validate_spec
from drumline.spec.run_spec import RunSpec
from drumline.spec.strategy import Schedule

_WITHOUT_ENGINE = ("alone", "rpc")  # one is plain, the other PyTorch's in any case


@dataclass(frozen=True, kw_only=True)
class Case:
    """One form of training, and the run that it is."""

    form: Form
    spec: RunSpec
    engine: Engine | None = None
    schedule: Schedule | None = None
    microbatches: int | None = None
    asked: bool
    """named by the user; else one that does not fit is left out"""

    @property
    def label(self) -> str:
        """What people call it: `pipeline 1f1b ×4`."""
        return _label(self.form, self.engine, self.schedule, self.microbatches)

    @property
    def slug(self) -> str:
        """What its files are called: `pipeline-1f1b-x4`."""
        return self.label.replace(" ", "-").replace("×", "x")


@dataclass(frozen=True)
class Plan:
    """The cases to run, and those that do not fit."""

    cases: list[Case] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    """case, why"""


def plan_cases(spec: ModelParallelSpec) -> Plan:
    """Lay out the runs, in the order of the forms; what was not asked for and does not fit is told.

    Raises:
        SpecError: the words make no run.
    """
    plan = Plan()
    for form in spec.forms:
        for engine in (None,) if form in _WITHOUT_ENGINE else spec.engines:
            for schedule, microbatches in _cuts(spec, form):
                why = spec.refusal(form, schedule)
                if why is None:
                    plan.cases.append(_case(spec, form, engine, schedule, microbatches))
                else:
                    label = _label(form, engine, schedule, microbatches)
                    plan.skipped.append({"case": label, "why": why})
    return plan


def _cuts(spec: ModelParallelSpec, form: Form) -> Iterator[tuple[Schedule | None, int | None]]:
    """The schedules and microbatches that a form is tried with."""
    if form == "rpc":
        yield from ((None, count) for count in spec.microbatches)
    elif form == "mixed":  # one stands for all: its schedules differ as those of pipelines do
        schedule: Schedule = "1f1b" if "1f1b" in spec.schedules else spec.schedules[0]
        yield schedule, max(spec.microbatches)
    elif form == "pipeline":
        for count in spec.microbatches:
            if count == 1:  # one microbatch has one order only
                yield None, count
                continue
            yield from ((schedule, count) for schedule in spec.schedules)
    else:
        yield None, None


def _case(
    spec: ModelParallelSpec,
    form: Form,
    engine: Engine | None,
    schedule: Schedule | None,
    microbatches: int | None,
) -> Case:
    strategy: dict[str, Any] = {"kind": form if form in ("rpc", "pipeline", "tensor") else None}
    mesh: dict[str, int] = {}
    if form in ("alone", "data", "mixed"):
        strategy["kind"] = "ddp" if form == "data" and engine == "torch" else "allreduce"
    if form == "mixed":
        mesh = {"data": MIXED_COPIES, "pipeline": spec.ranks // MIXED_COPIES}
    if engine is not None and form != "data":
        strategy["engine"] = engine
    strategy |= {"schedule": schedule, "microbatches": microbatches}
    if schedule == "interleaved":
        strategy["chunks"] = CHUNKS
    run = validate_spec(
        {
            "name": form,
            "model": spec.model.model_dump(mode="json"),
            "data": {**spec.data.model_dump(mode="json"), "batch": spec.batch},
            "strategy": strategy,
            "mesh": mesh,
            "max_steps": spec.steps,
            "evaluate": False,
            "device": spec.device,
            "threads": spec.threads or max(1, (os.cpu_count() or 1) // spec.ranks),
            "timeout_s": spec.timeout_s,
            **_place(spec, form),
        }
    )
    return Case(
        form=form,
        spec=run,
        engine=engine,
        schedule=schedule,
        microbatches=microbatches,
        asked=spec.asked_for(form, schedule),
    )


def _place(spec: ModelParallelSpec, form: Form) -> dict[str, Any]:
    """Where a case runs: one rank has no use for nodes, nor for a backend."""
    if form == "alone":
        return {"workers": 1}
    return {
        "workers": spec.workers,
        "nodes": spec.nodes,
        "link": spec.link.model_dump(mode="json"),
        "slow_nodes": {
            node: slow.model_dump(mode="json") for node, slow in spec.slow_nodes.items()
        },
        "backend": spec.backend,
    }


def _label(
    form: Form, engine: Engine | None, schedule: Schedule | None, microbatches: int | None
) -> str:
    words = [form, schedule, None if microbatches is None else f"×{microbatches}"]
    words.append("torch" if engine == "torch" else None)
    return " ".join(word for word in words if word)
