"""`drumline lab run`: the experiments of a lab, one after the other, then its report.

The report has the sections that graders look for: the principle, the code that ran, the parameters,
the results, their analysis with the author's own words, and how to make it all again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from drumline.bench.case_runner import CasePolicy, describe_machine, run_each
from drumline.core.errors import DivergenceError, DrumlineError, LabError, RunDirError, UsageError
from drumline.core.formatting import format_rate
from drumline.core.lock import FileLock
from drumline.labs.catalogue import find_lab, read_code, read_principle
from drumline.labs.chapter import Lab, Machine, write_parameters
from drumline.labs.experiment import RUNS, Experiment, LabSettings, Results, Training, read_settings
from drumline.labs.text import SHARED, LabText, lab_text
from drumline.launcher.probe import Watch
from drumline.report.page import blocks
from drumline.report.page.folder import MANIFEST, WORDS, check_place, read_own_words, write_report
from drumline.report.page.translator import Language
from drumline.report.plots import chinese_font
from drumline.spec.load import read_run_spec


def load_lab(number: int) -> Lab:
    """Import the lab of that number, with its experiments and chapters.

    Raises:
        UsageError: there is none.
    """
    lab: Lab = import_module(f"drumline.labs.{find_lab(number).package}.chapters").LAB
    return lab


@dataclass(frozen=True, kw_only=True)
class LabRequest:
    """Which lab to run, how, and where its report goes: the options of `drumline lab run`."""

    number: int
    args: list[str] = field(default_factory=list)
    """its settings, `key=value` each"""
    full: bool = False
    """the long form"""
    out: Path | None = None
    """the folder of the report (default: labs/NUMBER)"""
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
    lab, lang = load_lab(request.number), request.lang
    folder = request.out or Path("labs", str(request.number))
    settings = read_settings(request.args, full=request.full)
    check_place(folder, lab.number)  # what cannot be written is told before anything is measured
    runs = folder / RUNS
    if runs.exists() and not any((folder / name).exists() for name in (MANIFEST, WORDS)):
        raise UsageError(
            f"{runs} is there already, and is no lab's; nothing in it is replaced: name a new "
            f"folder with --out"
        )
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


def _fact(experiment: Experiment, results: Results) -> dict[str, object]:
    name, training = experiment.name, isinstance(experiment, Training)
    record = results.record(name) if training else None
    return {
        "name": name,
        "kind": "training" if training else "measurement",
        "done": results.has(name),
        "weights_sha256": None if record is None else record.summary.get("weights_sha256"),
        **({"why": results.failed[name]} if name in results.failed else {}),
    }


@contextlib.contextmanager
def lock_lab(folder: Path) -> Iterator[None]:
    """Lock a lab's folder against others that would run the lab there at the same time.

    Raises:
        LabError: another does so now.
        RunDirError: the folder cannot be written.
    """
    lock = FileLock(_make_runs(folder) / ".lock")
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
    runs = _make_runs(folder)
    policy = CasePolicy(
        noun="",
        done=[one.name for one in experiments if reuse and _is_done(one, results)],
        replaces=True,
        failures=(DrumlineError,),
        interrupted=f"what is done stays in {runs}: go on with --reuse",
    )
    for ended in run_each(experiments, runs, watch, policy):
        expected = isinstance(ended.case, Training) and ended.case.may_diverge
        if ended.error and not (expected and isinstance(ended.error, DivergenceError)):
            results.failed[ended.case.name] = ended.error.message
    return results


def _is_done(experiment: Experiment, results: Results) -> bool:
    """Whether an experiment came to its end before, by the same spec."""
    if not (results.has(experiment.name) or results.diverged(experiment.name)):
        return False
    if isinstance(experiment, Training):
        with contextlib.suppress(OSError, ValueError, DrumlineError):
            return read_run_spec(results.run_dir(experiment.name)) == experiment.spec
        return False
    spec = results.document(experiment.name).get("spec")
    return bool(spec == experiment.spec.model_dump(mode="json"))


def _make_runs(folder: Path) -> Path:
    runs = folder / RUNS
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirError(
            f"cannot make {runs}: {error.strerror}; name another folder with --out"
        ) from None
    return runs


def build_report(
    lab: Lab, results: Results, machine: Machine, own_words: str, lang: Language
) -> blocks.Report:
    """Put a lab's report together."""
    text = lab_text(SHARED, lang)
    entry = find_lab(lab.number)
    found = lab.write_up(results, lang)
    parameters = write_parameters(text, results, lab.experiments(results.settings), machine)
    written = blocks.OwnWords(file=WORDS, text=own_words)
    command = f"drumline lab run {lab.number}{_options(results.settings)}"
    contents: dict[str, Sequence[blocks.Block]] = {
        "principle": [blocks.Markdown(text=read_principle(entry, lang))],
        "code": [blocks.Paragraph(said=[text.text("code")]), *read_code(entry)],
        "parameters": parameters.results,
        "results": [*_gaps(results, text), *found.results],
        "analysis": [*found.analysis, blocks.Paragraph(said=[text.text("own_words")]), written],
        "again": [blocks.Markdown(text=f"```\n{command}\n```\n\n{text.text('again')}")],
    }
    sections = [
        blocks.Section(slug=slug, heading=text.text(f"sections.{slug}"), blocks=own)
        for slug, own in contents.items()
    ]
    title = text.text("title").format(number=lab.number, title=entry.text("title", lang))
    tables = [*found.tables, *parameters.tables.values()]
    return blocks.Report(
        title=title, lang=lang, summary=found.summary, sections=sections, tables=tables
    )


def _options(settings: LabSettings) -> str:
    options = [" --full"] if settings.full else []
    if settings.nodes > 1:
        rate = "" if settings.link.rate is None else f" link={format_rate(settings.link.rate)}"
        options.append(f" nodes={settings.nodes}{rate}")
    if settings.seed != LabSettings.model_fields["seed"].default:
        options.append(f" seed={settings.seed}")
    return "".join(options)


def _gaps(results: Results, text: LabText) -> list[blocks.Notice]:
    """Tell what failed, and where figures cannot be in the page's language."""
    failed = text.text("failed")
    said = [failed.format(name=name, why=why) for name, why in results.failed.items()]
    if text.lang == Language.ZH and chinese_font() is None:
        said.append(text.text("no_font"))
    return [blocks.Notice(said=one) for one in said]
