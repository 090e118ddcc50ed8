"""`drumline lab run`: the experiments of a lab, then its report."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from drumline.bench.case_runner import describe_machine
from drumline.core.errors import UsageError
from drumline.labs.catalogue import find_lab
from drumline.labs.experiment import Experiment, Training, runs_folder
from drumline.labs.lab import Lab
from drumline.labs.results import Results
from drumline.labs.running import alone, run_experiments
from drumline.labs.settings import LabSettings
from drumline.labs.writing import build_report
from drumline.launch.probe import Watch
from drumline.report.page.folder import MANIFEST, WORDS, check_place, read_own_words, write_report
from drumline.report.page.translator import Translator

_MODULES = {1: "optimizers", 2: "communication", 3: "data_parallel", 4: "model_parallel"}


def load_lab(number: int) -> Lab:
    """Return the lab of that number.

    Raises:
        UsageError: there is none.
    """
    entry = find_lab(number)
    module = importlib.import_module(f"drumline.labs.{_MODULES[entry.number]}")
    lab: Lab = module.LAB
    return lab


def run_lab(
    number: int,
    settings: LabSettings,
    folder: Path,
    say: Translator,
    *,
    reuse: bool,
    watch: Watch,
    tell: Callable[[str], None],
) -> tuple[Path, Results]:
    """Run a lab's experiments and write its report; returns the page, and what was found.

    Raises:
        DrumlineError: nothing could be run or written.
    """
    lab = load_lab(number)
    check_place(folder, number)  # what cannot be written is told before anything is measured
    _check_runs(folder)
    words = read_own_words(folder, say.lang)
    experiments = lab.experiments(settings)
    with alone(folder):
        results = run_experiments(experiments, settings, folder, reuse=reuse, watch=watch)
        machine = describe_machine(sys.argv)
        report = build_report(lab, find_lab(number), results, experiments, machine, words, say)
        facts = {
            "lab": number,
            "settings": settings.model_dump(mode="json"),
            "machine": machine,
            "experiments": [_fact(one, results) for one in experiments],
        }
        return write_report(report, folder, facts, tell=tell), results


def _check_runs(folder: Path) -> None:
    """See that the runs in a folder are a lab's: experiments replace those of their names.

    Raises:
        UsageError: there are runs, and nothing else that a lab leaves.
    """
    runs = runs_folder(folder)
    if runs.exists() and not any((folder / name).exists() for name in (MANIFEST, WORDS)):
        raise UsageError(
            f"{runs} is there already, and is no lab's; nothing in it is replaced: name a new "
            f"folder with --out"
        )


def _fact(experiment: Experiment, results: Results) -> dict[str, object]:
    record = results.record(experiment.name) if isinstance(experiment, Training) else None
    weights = None if record is None else record.summary.get("weights_sha256")
    return {
        "name": experiment.name,
        "kind": "training" if isinstance(experiment, Training) else "measurement",
        "done": results.has(experiment.name),
        "weights_sha256": weights,
        **({"why": results.failed[experiment.name]} if experiment.name in results.failed else {}),
    }
