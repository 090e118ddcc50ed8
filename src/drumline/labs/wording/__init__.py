"""What people read about a verdict: every sentence about every mistake, in English and Chinese.

The sentences are data (`anywhere`, and modules for each lab); here the facts are put into them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from drumline.core.language import Language
from drumline.labs.catalogue import TASK
from drumline.labs.language import Said
from drumline.labs.verdict import Status, Verdict
from drumline.labs.wording import (
    aggregation,
    anywhere,
    data_parallel,
    model_parallel,
    optimizers,
    timing,
    training,
)
from drumline.labs.wording.anywhere import WORDS
from drumline.labs.wording.entry import Entry
from drumline.report.page.translator import Translator

MISTAKES: Mapping[str, Entry] = MappingProxyType(
    {
        **anywhere.MISTAKES,
        **optimizers.MISTAKES,
        **training.MISTAKES,
        **aggregation.MISTAKES,
        **timing.MISTAKES,
        **data_parallel.MISTAKES,
        **model_parallel.MISTAKES,
    }
)
TITLES: Mapping[str, Said] = MappingProxyType(
    {
        **optimizers.TITLES,
        **training.TITLES,
        **aggregation.TITLES,
        **timing.TITLES,
        **data_parallel.TITLES,
        **model_parallel.TITLES,
    }
)
"""what each check looks at"""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """All that is said about one verdict, in one language."""

    language: Language
    expected: str = ""
    seen: str = ""
    belief: str = ""
    read: tuple[str, ...] = ()
    section: str = ""
    picture: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return it as plain lines, each with a word in front."""
        said = [
            ("expected", self.expected),
            ("seen", self.seen),
            ("belief", self.belief),
            ("read", self.reading()),
        ]
        colon = word("colon", self.language)
        lines = [f"{word(name, self.language)}{colon}{text}" for name, text in said if text]
        return [*lines[:2], *(f"    {line}" for line in self.picture), *lines[2:]]

    def reading(self) -> str:
        """Return where to read, in one line."""
        places = [*self.read, *([self.section] if self.section else [])]
        return word("semicolon", self.language).join(places)


def explain(verdict: Verdict, language: Language) -> Explanation:
    """Say what a verdict means; a check that passed needs no words."""
    if verdict.status is Status.PASS:
        return Explanation(language=language)
    if verdict.status is Status.TO_DO:
        seen = Said("{where}", "{where}").within(language, verdict.facts)
        return Explanation(language=language, seen=seen)
    entry = MISTAKES[verdict.mistake or "raises"]
    table = TASK.within(language)
    section = word("section", language).format(table=table, number=entry.section)
    return Explanation(
        language=language,
        expected=entry.expected.within(language, verdict.facts),
        seen=_with_rank(entry.seen.within(language, verdict.facts), verdict, language),
        belief=entry.belief.within(language, verdict.facts),
        read=tuple(_place(place, language) for place in entry.read),
        section=section if entry.section is not None else "",
        picture=verdict.picture,
    )


def title_of(check: str, language: Language) -> str:
    """Say what a check looks at."""
    module, _, what = check.rpartition(".")
    if what == "import":
        return word("import", language).format(file=f"{module}.py")
    return TITLES[check].within(language)


def word(name: str, language: Language) -> str:
    """Return one of the words that stand around the sentences."""
    return Translator(language).pick(WORDS[name].en, WORDS[name].zh)


def _place(place: str, language: Language) -> str:
    file, _, symbol = place.partition(":")
    if not symbol:
        return f"drumline/{file}"
    return word("place", language).format(file=file, symbol=symbol)


def _with_rank(seen: str, verdict: Verdict, language: Language) -> str:
    if verdict.mistake in ("raises", "exits", "died") and "rank" in verdict.facts:
        return word("on rank", language).format(rank=verdict.facts["rank"]) + seen
    return seen
