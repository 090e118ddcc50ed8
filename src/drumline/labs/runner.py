"""`drumline lab run`: the experiments of a lab, one after the other, then its report."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumline.bench.case_runner import describe_machine, run_each
from drumline.core.errors import DivergenceError, DrumlineError, LabError, RunDirError, UsageError
from drumline.core.lock import FileLock
from drumline.core.rundir import RunDir
from drumline.labs.catalogue import find_lab
from drumline.labs.chapter import Lab
from drumline.labs.experiment import (
    Experiment,
    LabSettings,
    Results,
    Training,
    read_settings,
    runs_folder,
)
from drumline.labs.report import build_report
from drumline.labs.text import SHARED, lab_text
from drumline.launch.probe import Watch
from drumline.report.page.folder import MANIFEST, WORDS, check_place, read_own_words, write_report
from drumline.report.page.translator import Language
from drumline.spec.load import read_run_spec


def load_lab(number: int) -> Lab:
    """Import the lab of that number, with its experiments and chapters.

    Raises:
        UsageError: there is none.
    """
    lab: Lab = importlib.import_module(f"drumline.labs.{find_lab(number).package}").LAB
    return lab


@dataclass(frozen=True, kw_only=True)
class LabRequest:
    """Which lab to run, how, and where its report goes."""

    number: int
    args: Sequence[str] = ()
    """its settings, `key=value` each"""
    full: bool = False
    """the long form"""
    folder: Path
    lang: Language = Language.EN
    reuse: bool = False
    """whether what came to its end before, by the same settings, is left alone"""


@dataclass(frozen=True, kw_only=True)
class WrittenLab:
    """A lab that was run, and its report."""

    page: Path
    message: str
    """where the report is, in its language"""
    failed: dict[str, str]
    """the experiments that are missing from it, and why"""


def run_lab(request: LabRequest, *, watch: Watch, on_figure: Callable[[str], None]) -> WrittenLab:
    """Run a lab's experiments and write its report.

    `watch` is called with their progress, `on_figure` with the name of each figure.

    Raises:
        DrumlineError: nothing could be run or written.
    """
    lab, folder, lang = load_lab(request.number), request.folder, request.lang
    settings = read_settings(request.args, full=request.full)
    check_place(folder, lab.number)  # what cannot be written is told before anything is measured
    _check_runs(folder)
    own_words = read_own_words(folder, lang)
    experiments = lab.experiments(settings)
    with lock_lab(folder):
        results = run_experiments(experiments, settings, folder, reuse=request.reuse, watch=watch)
        machine = describe_machine()
        report = build_report(lab, results, machine, own_words, lang)
        facts = {
            "lab": lab.number,
            "settings": settings.model_dump(mode="json"),
            "machine": machine,
            "experiments": [_fact(one, results) for one in experiments],
        }
        page = write_report(report, folder, facts, tell=on_figure)
    message = lab_text(SHARED, lang).text("written").format(page=page, folder=folder)
    return WrittenLab(page=page, message=message, failed=results.failed)


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


@contextlib.contextmanager
def lock_lab(folder: Path) -> Iterator[None]:
    """Lock a lab's folder against others that would run the lab there at the same time.

    Raises:
        LabError: another does so now.
        RunDirError: the folder cannot be written.
    """
    runs = runs_folder(folder)
    _make(runs)
    lock = FileLock(runs / ".lock")
    with contextlib.suppress(OSError):  # a disk that knows no locks; or writing will tell
        if not lock.acquire(0):
            raise LabError(
                f"another `drumline lab run` is at work in {folder}; wait until it has ended, "
                f"or name another folder with --out"
            )
    try:
        yield
    finally:
        lock.release()


def run_experiments(
    experiments: Sequence[Experiment],
    settings: LabSettings,
    folder: Path,
    *,
    reuse: bool,
    watch: Watch,
) -> Results:
    """Run a lab's experiments; one that fails does not keep the others from running.

    With `reuse`, what came to its end before, by the same spec, is left alone.

    Raises:
        InterruptError: Ctrl-C; what came to its end stays, for `reuse`.
        RunDirError: the folder cannot be written.
    """
    results = Results(folder=folder, settings=settings)
    runs = runs_folder(folder)
    _make(runs)

    every = run_each(
        experiments,
        runs,
        watch,
        done=[one.name for one in experiments if reuse and _is_done(one, results)],
        replaces=True,
        of_a_case=(DrumlineError,),
        interrupted=f"what is done stays in {runs}: go on with --reuse",
    )
    for ended in every:
        expected = isinstance(ended.case, Training) and ended.case.may_diverge
        if ended.error and not (expected and isinstance(ended.error, DivergenceError)):
            results.failed[ended.case.name] = ended.error.message
    return results


def _is_done(experiment: Experiment, results: Results) -> bool:
    """Whether an experiment came to its end before, by the same spec."""
    if not (results.has(experiment.name) or results.diverged(experiment.name)):
        return False
    path = runs_folder(results.folder) / experiment.name
    with contextlib.suppress(OSError, ValueError, DrumlineError):
        if isinstance(experiment, Training):
            return read_run_spec(RunDir(path)) == experiment.spec
        document = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
        return bool(document.get("spec") == experiment.spec.model_dump(mode="json"))
    return False


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirError(
            f"cannot make {folder}: {error.strerror}; name another folder with --out"
        ) from None
