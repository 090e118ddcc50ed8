"""`drumline bench model-parallel`: one model, the forms in which it is trained, and their runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from drumline.bench.case_runner import RunCase, Skipped
from drumline.bench.specs import BenchPlace, Data, Each, Model, TrainingBench, Workers
from drumline.spec.data import DataSpec
from drumline.spec.parts import ClashError, ModelSpec
from drumline.spec.run_spec import RunSpec
from drumline.spec.strategy import Schedule

Form = Literal["alone", "data", "rpc", "pipeline", "tensor", "mixed"]
Engine = Literal["drumline", "torch"]
FORMS: tuple[Form, ...] = get_args(Form)
CUT_FORMS: tuple[Form, ...] = ("rpc", "pipeline", "mixed")
"""forms that cut the model by layers"""
MIXED_COPIES = 2
"""copies of the model in the mixed form; the rest of its ranks are stages"""
LEAST_MIXED = 2 * MIXED_COPIES
CHUNKS = 2
"""of an interleaved schedule, on each rank"""
_WITHOUT_ENGINE = ("alone", "rpc")  # one is plain, the other PyTorch's in any case
_CUTTABLE = {"linear": 1, "mlp": 3, "lenet": 5, "cnn": 4}
_CUT_BY = ("workers", "nodes", "model", "model.layers")
"""keys that say into how many parts a model is cut, and can be"""
_GPT_LAYERS, _GPT_AROUND = 2, 4  # blocks by default; embeddings, norm and head around them


def cuttable_layers(model: ModelSpec) -> int | None:
    """Return into how many parts a bench can cut a built-in model; None: only its factory knows."""
    if model.name == "gpt-mini":
        blocks = model.options.get("layers", _GPT_LAYERS)
        return blocks + _GPT_AROUND if isinstance(blocks, int) else None
    return _CUTTABLE.get(model.name)


class ModelParallelSpec(BenchPlace, TrainingBench):
    """`drumline bench model-parallel`: which model, in which forms, on how many ranks."""

    model: Model = ModelSpec.model_validate({"name": "gpt-mini", "layers": 4})
    data: Data = DataSpec(name="shakespeare")
    batch: int = Field(default=32, ge=1, le=65536)
    """samples per step over all ranks together, in every form"""
    workers: Workers = 2
    """processes per node (default: 2, or 1 on each of several nodes)"""
    forms: Each[Form] = FORMS
    """alone, data, rpc, pipeline, tensor, mixed (default: all that fit)"""
    schedules: Each[Schedule] = get_args(Schedule)
    """of pipelines (default: all that fit)"""
    microbatches: Each[Annotated[int, Field(ge=1)]] = (1, 4)
    """of pipelines and rpc"""
    engines: Each[Engine] = ("drumline",)
    """of data, pipeline, tensor and mixed: written here, or PyTorch's own"""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of a rank, the same in every form (default: the cores shared out to all ranks)"""

    @property
    def ranks(self) -> int:
        """How many ranks all forms have, but for `alone`."""
        return self.workers * self.nodes

    def asked_for(self, schedule: Schedule | None = None) -> bool:
        """Whether the cases of a schedule were named, and not left to what fits."""
        named = "schedules" if schedule == "interleaved" else "forms"
        return named in self.model_fields_set

    def refusal(self, form: Form, schedule: Schedule | None = None) -> ClashError | None:
        """Say why a case cannot be, as far as the spec shows; None: it can."""
        keys = ("forms" if schedule is None else "schedules", *_CUT_BY)
        if form == "mixed" and (self.ranks < LEAST_MIXED or self.ranks % MIXED_COPIES):
            return ClashError(
                f"mixed is {MIXED_COPIES} copies of a pipeline, which takes {LEAST_MIXED} ranks or "
                f"more, an even number, but {self.ranks} will start; set "
                f"workers={-(-LEAST_MIXED // self.nodes)}",
                *keys,
            )
        layers = cuttable_layers(self.model)
        stages = self.ranks // MIXED_COPIES if form == "mixed" else self.ranks
        chunks = CHUNKS if schedule == "interleaved" else 1
        parts = stages * chunks if form in CUT_FORMS else 1
        if layers is not None and parts > layers:
            fix = "raise model.layers" if self.model.name == "gpt-mini" else "choose another model"
            return ClashError(
                f"{schedule or form} needs {parts} parts, but {self.model.name} can be cut into "
                f"{layers} at most; {fix}, or set fewer workers",
                *keys,
            )
        return None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self._check_ranks(self.workers)
        self._check_trained()
        refusals = [self.refusal(form) for form in self.forms if self.asked_for()]
        if "interleaved" in self.schedules and self.asked_for("interleaved"):
            refusals.append(self.refusal("pipeline", "interleaved"))
        if why := next(filter(None, refusals), None):
            raise why
        self._check_batch()
        return self

    def _check_batch(self) -> None:
        """Refuse microbatches that would not be equal: some forms could not cut them at all."""
        copies = MIXED_COPIES if "mixed" in self.forms and not self.refusal("mixed") else 1
        cuts = [form for form in self.forms if form in CUT_FORMS and not self.refusal(form)]
        for count in self.microbatches if cuts else ():
            if self.batch % (copies * count):
                of = f" of {copies} copies" if copies > 1 else ""
                near = max(1, round(self.batch / (copies * count))) * copies * count
                message = (
                    f"a batch of {self.batch} cannot be cut into {count} equal microbatches{of}; "
                    f"set batch={near}, or other microbatches"
                )
                raise ClashError(message, "microbatches", "batch")
        if "data" in self.forms:
            self._check_samples(self.ranks, fewer="workers")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One form of training, and how."""

    form: Form
    engine: Engine | None = None
    schedule: Schedule | None = None
    microbatches: int | None = None

    @property
    def label(self) -> str:
        """What people call it: `pipeline 1f1b ×4`."""
        count = None if self.microbatches is None else f"×{self.microbatches}"
        engine = "torch" if self.engine == "torch" else None
        return " ".join(part for part in (self.form, self.schedule, count, engine) if part)


@dataclass(frozen=True, kw_only=True)
class ModelParallelCase(Variant, RunCase):
    """A variant, and the run that it is."""

    spec: RunSpec
    asked: bool
    """named by the user; else one that does not fit is left out"""


@dataclass(frozen=True)
class CasePlan:
    """The cases to run, and those that do not fit."""

    cases: list[ModelParallelCase] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def plan_cases(spec: ModelParallelSpec) -> CasePlan:
    """Lay out `bench model-parallel`'s runs by form; what does not fit is told.

    Raises:
        SpecError: the keys make no run.
    """
    plan = CasePlan()
    for form in spec.forms:
        for engine in (None,) if form in _WITHOUT_ENGINE else spec.engines:
            for schedule, count in _cuts(spec, form):
                variant = Variant(form=form, engine=engine, schedule=schedule, microbatches=count)
                why = spec.refusal(form, schedule)
                if why is None:
                    plan.cases.append(_build_case(spec, variant))
                else:
                    plan.skipped.append(Skipped(case=variant.label, why=str(why)))
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
            orders = spec.schedules if count > 1 else (None,)  # one microbatch has one order only
            yield from ((order, count) for order in orders)
    else:
        yield None, None


def _build_case(spec: ModelParallelSpec, variant: Variant) -> ModelParallelCase:
    form, engine, schedule = variant.form, variant.engine, variant.schedule
    kind: str = form
    if form in ("alone", "data", "mixed"):
        kind = "ddp" if form == "data" and engine == "torch" else "allreduce"
    count = variant.microbatches
    strategy: dict[str, object] = {"kind": kind, "schedule": schedule, "microbatches": count}
    mesh = {"data": MIXED_COPIES, "pipeline": spec.ranks // MIXED_COPIES} if form == "mixed" else {}
    if engine is not None and form != "data":
        strategy["engine"] = engine
    if schedule == "interleaved":
        strategy["chunks"] = CHUNKS
    alone = form == "alone"
    run = spec.build_run(
        name=form,
        batch=spec.batch,
        strategy=strategy,
        mesh=mesh,
        threads=spec.threads or max(1, (os.cpu_count() or 1) // spec.ranks),
        nodes=1 if alone else spec.nodes,
        workers=1 if alone else spec.workers,
    )
    return ModelParallelCase(**vars(variant), spec=run, asked=spec.asked_for(schedule))
