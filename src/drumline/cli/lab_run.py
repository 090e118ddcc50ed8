"""`drumline lab run` and `drumline lab verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from drumline.cli.bench import watched
from drumline.cli.printing import print_json
from drumline.core.errors import LabError
from drumline.labs.catalogue import find_lab
from drumline.labs.experiment import LabSettings
from drumline.labs.runner import run_lab
from drumline.labs.verify import verify
from drumline.launch.probe import Progress
from drumline.report.page.translator import Language, Translator
from drumline.spec.load import read_words

LAB_FOLDERS = Path("labs")
_EXAMPLE = "drumline lab run 2 nodes=4 link=100mbit"


@dataclass(frozen=True, kw_only=True)
class LabRunOptions:
    """How a lab is to be run."""

    full: bool
    lang: Language
    out: Path | None
    reuse: bool
    as_json: bool


def run_command(number: int, words: list[str], wishes: LabRunOptions) -> None:
    """Run a lab, write it up, and say where the page is."""
    find_lab(number)
    say = Translator(wishes.lang)
    settings = read_words(LabSettings, words, _EXAMPLE)
    if wishes.full:
        settings = settings.model_copy(update={"full": True})
    folder = wishes.out or LAB_FOLDERS / str(number)
    with watched() as watch:
        page, results = run_lab(
            number,
            settings,
            folder,
            say,
            reuse=wishes.reuse,
            watch=watch,
            tell=lambda name: watch(Progress(share=1.0, now=f"drawing {name}")),
        )
    if wishes.as_json:
        print_json({"lab": number, "page": str(page), "failed": results.failed})
    else:
        text = say(
            "{page} is written; open it in a browser. Your own words go into {folder}/words.md",
            "已写出 {page}，请用浏览器打开。你自己的分析写进 {folder}/words.md",
            page=str(page),
            folder=str(folder),
        )
        Console().print(str(text), markup=False, highlight=False, soft_wrap=True)
    if results.failed:
        told = [f"{name}: {why}" for name, why in results.failed.items()]
        raise LabError(
            f"{len(told)} experiments failed, and are missing from the report:\n" + "\n".join(told)
        )


def verify_command(folder: Path, *, rerun: bool, as_json: bool) -> None:
    """Say whether a report is what its runs say."""
    with watched() as watch:
        verdict = verify(folder, rerun=rerun, watch=watch)
    if as_json:
        print_json({"checked": verdict.checked, "problems": verdict.problems})
    else:
        for line in verdict.checked:
            Console().print(f"✓ {line}", markup=False, highlight=False, soft_wrap=True)
    if verdict.problems:
        told = "\n".join(f"✗ {problem}" for problem in verdict.problems)
        raise LabError(f"{folder} is not what was written:\n{told}")
