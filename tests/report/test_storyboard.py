"""An explanation as lines of the terminal, and as a page."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from drumline.report.explain.explanation import build_explanation, find_deadlock
from drumline.report.explain.storyboard import (
    print_explanation,
    render_page,
    sentences,
)
from drumline.schedules.collectives import PLANS, CollectiveCall
from recordings import exchange, stuck, tokens


def shown(explanation, width=80, **options):
    out = io.StringIO()
    print_explanation(Console(file=out, width=width, **options), explanation)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def stuck_explanation():
    call, answers = stuck()
    other = CollectiveCall(**{**vars(call), "root": 1})
    return build_explanation(call, answers, find_deadlock(call, 1, other, 3.0, answers))


def test_the_steps_line_by_line():
    lines = shown(build_explanation(*exchange()))
    assert lines[0] == "all_reduce by halving_doubling: 2 ranks, 32 B"
    assert lines[lines.index("start") : lines.index("messages and bytes of each rank")] == [
        "start",
        "  rank 0   a▪·  b▪·",
        "  rank 1   a·▪  b·▪",
        "step 1   0 ─b→ 1   1 ─a→ 0",
        "  rank 0   a▪▪  b▪·",
        "  rank 1   a·▪  b▪▪",
        "step 2   0 ─a→ 1   1 ─b→ 0",
        "  rank 0   a▪▪  b▪▪",
        "  rank 1   a▪▪  b▪▪",
        "",
    ]
    text = "\n".join(lines)
    assert text.count("✓ the same") == 2
    assert "measured  0.002 ms (median; 0.002 ms to 0.004 ms)" in text
    assert "predicted 0.202 ms = 2 rounds × alpha + 32 bytes × beta" in text
    assert "rounds of 8 B, 1.01 kB" in text


def test_where_there_is_no_room_for_marks_they_are_counted():
    assert "  rank 0  a2 b1" in shown(build_explanation(*exchange()), width=24)


def test_a_barrier_has_no_pieces():
    lines = shown(build_explanation(*tokens()))
    assert "step 1   0 ─→ 1   1 ─→ 0" in lines
    assert "  rank 0   ▪▪" in lines
    assert not any(line.startswith("bandwidth") for line in lines)


def test_formulas_that_do_not_hold_are_shown():
    call, answers = exchange()
    answers[0]["messages"][3]["ended_ns"] = None
    answers[0]["events"] = answers[0]["events"][:6]
    assert any("✗ 2, 32; 2, 32" in line for line in shown(build_explanation(call, answers)))


def test_a_deadlock_names_the_messages_and_the_circle():
    lines = shown(stuck_explanation())
    text = "\n".join(lines)
    assert "step 1   0 ─a→✗ 1   1 ─a→✗ 0" in lines
    assert "stuck: nothing moved for 3 s" in lines
    assert "rank 1 calls broadcast with root 1 by tree, the others broadcast with root 0" in text
    assert "a circle: 0 → 1 → 0; each waits for the next" in lines
    assert "  call 1 differs between ranks: <rank 0> & rank 1" in lines


def test_colour_is_for_terminals_and_nothing_is_wider_than_one():
    plain = shown(build_explanation(*exchange()), no_color=True, force_terminal=True)
    assert not any(re.search(r"\x1b\[(3|9)\d", line) for line in plain)
    coloured = shown(build_explanation(*exchange()), force_terminal=True)
    assert any("\x1b[36m" in line for line in coloured)
    for explanation in (
        build_explanation(*exchange()),
        stuck_explanation(),
        build_explanation(*tokens()),
    ):
        assert max(len(line) for line in shown(explanation)) <= 80


def test_every_collective_and_algorithm_has_words():
    assert set(sentences()["collectives"]) == set(PLANS)
    algorithms = {name for names in PLANS.values() for name in names}
    assert set(sentences()["algorithms"]) == set(sentences()["sources"]) == algorithms


# The page


class Page(HTMLParser):
    """Checks that elements are closed in order; collects what a browser would fetch."""

    VOID = {"meta", "input", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.fetched, self.texts = [], [], {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.fetched += [value for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data


@pytest.mark.parametrize("explanation", [build_explanation(*exchange()), stuck_explanation()])
def test_the_page_is_well_formed_and_needs_nothing_else(explanation):
    text = render_page(explanation)
    page = Page(text)
    assert page.fetched == []
    assert "url(http" not in text
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    recording = json.loads(page.texts["script", "recording"])
    assert recording["call"]["collective"] == explanation.call.collective
    assert recording["words"]["where"].startswith("comm/")


def test_words_in_the_recording_cannot_end_its_element():
    call, answers = stuck()
    answers[0]["checked"] = "</script><script>alert(1)</script><!--"
    explanation = build_explanation(call, answers, find_deadlock(call, 1, call, 3.0, answers))
    page = Page(render_page(explanation))
    assert json.loads(page.texts["script", "recording"])["deadlock"]["checked"].startswith("</scr")
