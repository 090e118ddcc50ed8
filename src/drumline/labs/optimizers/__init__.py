"""Lab 1, optimizers: GD, SGD, momentum and Adam, ours beside torch's, on one machine."""

from __future__ import annotations

from drumline.labs.chapter import Chapter, Lab
from drumline.labs.optimizers.convergence import (
    write_convergence,
    write_rates,
    write_sample_order,
)
from drumline.labs.optimizers.cost import write_engines, write_profile
from drumline.labs.optimizers.experiments import experiments
from drumline.labs.repeats import ranked
from drumline.report.page.translator import Sentence


def summarize(chapter: Chapter) -> Sentence | None:
    """Say what came out, as far as it was measured."""
    if "ends" not in chapter.tables:
        return None
    best = ranked(chapter.tables["ends"].records, lambda row: row.accuracy, reverse=True)
    by_samples = chapter.tables["equal"].where(by="samples")
    if not best:
        return None
    losses = ranked(by_samples, lambda row: row.loss)
    highest = ranked(by_samples, lambda row: row.loss, reverse=True)
    behind = chapter.write("behind", row=best[1]) if len(best) > 1 else ""
    return chapter.write("best", best=best[0], behind=behind, low=losses[0], high=highest[0])


LAB = Lab(
    number=1,
    name="optimizers",
    experiments=experiments,
    code=(
        ("optim/gd.py", "GD"),
        ("optim/sgd.py", "SGD"),
        ("optim/adam.py", "Adam"),
        ("optim/foreach.py", "ForeachOptimizer.step"),
        ("optim/build.py", "build_optimizer"),
        ("train/train.py", "ReplicaRunner.forward_backward"),
        ("train/train.py", "Trainer.train_step"),
    ),
    chapters={
        "convergence": write_convergence,
        "engines": write_engines,
        "profile": write_profile,
        "rates": write_rates,
        "sample_order": write_sample_order,
    },
    summarize=summarize,
)
