"""A study of scaling made up by hand: what the runs would have taken, without running any."""

from __future__ import annotations

from collections.abc import Callable

from drumline.bench.scaling.rows import Parts, RunTimes, Study
from drumline.bench.scaling.run import ScalingResult, build_scaling_result
from drumline.bench.scaling.spec import ScalingCase, ScalingSpec, plan_rounds, plan_scaling
from drumline.spec.load import read_spec

Take = Callable[[ScalingCase], Parts | None]
"""what a step of a run is made of; None: the run failed"""


def read(*words: str) -> ScalingSpec:
    return read_spec(ScalingSpec, words, "an example")


def make_study(take: Take, *words: str, cores: int = 4) -> Study:
    spec = read(*words)
    runs = plan_rounds(plan_scaling(spec), spec.repeats)
    study = Study(spec, [run for run in runs if run.round == 0], cores)
    for run in runs:
        parts = take(run)
        if parts is not None:
            steps = [sum(parts) * factor for factor in (0.99, 1.0, 1.0, 1.02)]
            times = RunTimes(
                steps_s=steps, parts=parts, backend="shm", on_cpu=True, path=f"/kept/{run.slug}"
            )
            study.add(run, times)
    return study


def make_result(take: Take, *words: str, cores: int = 4, load: float = 0.0) -> ScalingResult:
    study = make_study(take, *words, cores=cores)
    return build_scaling_result(study, load=load, failed=[], kept=True)


def make_document(take: Take, *words: str, cores: int = 4, load: float = 0.0) -> dict:
    return make_result(take, *words, cores=cores, load=load).to_json()


def by_law(serial: float, noise: tuple[float, ...] = (1.0,)) -> Take:
    """Compute that follows Amdahl's law (and Gustafson's, where the work grows), and 10 ms more.

    What more than one rank costs is half wait, half transfer.
    """

    def take(run: ScalingCase) -> Parts:
        ranks, batch = run.count.ranks, run.spec.data.batch
        alone = 0.1 * batch / 100
        compute = (alone / ranks) * noise[run.round % len(noise)]
        lost = alone * serial * (1 - 1 / ranks)
        return Parts(compute=compute, data=0.0, wait=lost / 2, transfer=lost / 2, other=0.0)

    return take
