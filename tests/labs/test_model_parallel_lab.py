"""Lab 4, written up from run directories that nobody trained."""

import dataclasses
import json
import re

import pytest

from drumline.core.errors import UsageError
from drumline.labs.catalogue import find_lab, read_code
from drumline.labs.chapter import Chapter
from drumline.labs.experiment import LabSettings
from drumline.labs.model_parallel.chapters import LAB, compare_steps, compare_with_data
from drumline.labs.model_parallel.experiments import AGAIN, plan_named_cases
from drumline.labs.model_parallel.tables import (
    Cases,
    FormRow,
    lay_out,
    pick_typical,
    share_together,
)
from drumline.labs.text import lab_text
from drumline.report.intervals import Interval, Order
from drumline.report.page.blocks import Paragraph, Picture, Report, Section, TableBlock
from drumline.report.page.folder import audit_numbers
from drumline.report.page.render import render_html, render_markdown
from drumline.report.page.table import CellRef, Findings
from drumline.report.page.translator import Language, Sentence
from model_parallel_runs import STEPS, make_runs

BAD = re.compile(r"\b(nan|None|inf)\b")
PICTURES = ["forms", "microbatches", "trace", "curves"]


def report_of(found, lang):
    section = Section(slug="all", heading="All", blocks=[*found.results, *found.analysis])
    return Report(
        title="lab 4", lang=lang, summary=found.summary, sections=[section], tables=found.tables
    )


def text_of(found, lang):
    return render_markdown(report_of(found, lang))


def quoted(found):
    """Where each number of the sentences stands."""
    said = [one for block in found.analysis if isinstance(block, Paragraph) for one in block.said]
    sentences = [one for one in (found.summary, *said) if isinstance(one, Sentence)]
    quotes = [part for one in sentences for part in one.parts if isinstance(part, CellRef)]
    return sorted((q.table, q.row, q.column) for q in quotes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_runs(tmp_path_factory.mktemp("whole"))


def test_every_number_of_the_page_is_in_its_file_and_every_picture_is_drawn(whole, tmp_path):
    found = LAB.write_up(whole, "en")
    page = render_html(report_of(found, "en"), version="1", made="now")
    (tmp_path / "report.html").write_text(page)
    (tmp_path / "data").mkdir()
    for table in found.tables:
        (tmp_path / "data" / f"{table.name}.csv").write_text(table.to_csv())
    assert list(audit_numbers(tmp_path)) == []
    assert [b.name for b in found.results if isinstance(b, Picture)] == PICTURES
    assert page.count("<svg") == len(PICTURES)


def test_both_languages_say_the_same_numbers(whole):
    found = {lang: LAB.write_up(whole, lang) for lang in ("en", "zh")}
    assert quoted(found["en"]) == quoted(found["zh"])
    assert len(quoted(found["en"])) > 40
    for lang, one in found.items():
        assert not BAD.search(text_of(one, lang))
    assert not re.search(r"[一-鿿]", text_of(found["en"], "en"))


def test_sentences_follow_the_quartiles(whole):
    text = text_of(LAB.write_up(whole, "en"), "en")
    faster = re.search(r"One process alone took .* a step. Faster.*", text)[0]
    assert "data: 1.7×" in faster
    assert "rpc ×4: 1.1×" in faster
    assert re.search(r"Neither faster nor slower.*tensor: 1.00×", text)
    assert re.search(r"Slower than one process alone.*rpc ×1: 0.7", text)
    assert "Data parallelism with 60.3 ms" in text
    assert "was faster than every split of the model" in text
    assert "By RPC, microbatches helped: with 2" in text  # all but ×4 take 80 ms, and 2 come first
    assert "rpc ×1 and pipeline ×1 ended with the same weights as one process alone" in text
    assert "The machine itself changed by 2.0 %" in text


def form_row(case, low, middle, high):
    nothing = {field.name: None for field in dataclasses.fields(FormRow)}
    step = Interval(middle=middle, low=low, high=high)
    return FormRow(**{**nothing, "case": case, "form": case, "step_ms": step})


def said_against_data(rows):
    chapter = Chapter(
        text=lab_text("model_parallel", Language.EN).within("forms"),
        findings=Findings(),
        tables={},
    )
    chapter.tabulate("forms", FormRow, rows)
    compare_with_data(chapter, Cases(chapter))
    (said,) = map(str, chapter.sentences)
    return said


def test_data_parallelism_is_ahead_only_of_what_is_behind_for_certain():
    """One split is a little slower by its median, and its quartiles reach those of data."""
    rows = [
        form_row("data", 9, 10, 11),
        form_row("tensor", 13, 14, 15),
        form_row("rpc", 10, 15, 16),
    ]
    said = said_against_data(rows)
    assert "of the splits of the model, rpc 15 ms" in said
    assert "which is faster cannot be told" in said
    said = said_against_data(rows[:-1])
    assert "faster than every split of the model; the fastest, tensor, took 14 ms" in said


def test_the_bubble_is_the_formulas_where_all_pieces_take_the_same_time(whole):
    forms = next(table for table in LAB.write_up(whole, "en").tables if table.name == "forms")
    for row in forms.rows:
        if row["bubble"] is not None and row["schedule"] != "interleaved":
            count = row["microbatches"]
            assert row["bubble"] == pytest.approx(1 / (count + 1), abs=1e-6)
            assert row["together"] == pytest.approx((count - 1) / (count + 1), abs=1e-6)
    ranks = {(row["case"], row["ranks"]) for row in forms.rows}
    assert {("alone", 1), ("alone again", 1), ("tensor", 2), ("rpc ×4", 2)} <= ranks


def test_the_bubble_farthest_from_the_formula_is_that_of_all_forms(tmp_path):
    """Eight microbatches are not in the list of examples, and may be the farthest."""
    results = make_runs(tmp_path)
    for log in (tmp_path / "runs" / "rpc-x8" / "events").iterdir():
        log.write_text("".join(map(_spread, log.read_text().splitlines(keepends=True))))
    text = text_of(LAB.write_up(results, "en"), "en")
    assert re.search(r"rpc ×8 is farthest from it, by \+[0-9.]+ points", text)


def _spread(line):
    """Halve all pieces of work, so that the other half is bubble."""
    event = json.loads(line)
    for piece in event.get("work", ()):
        piece[4] = (piece[3] + piece[4]) // 2
    return json.dumps(event) + "\n"


def test_a_stage_that_waits_for_the_end_of_the_step_is_idle(whole):
    """Its work leaves half of the window, whatever of that was noted as a message."""
    ranks = next(table for table in LAB.write_up(whole, "en").tables if table.name == "ranks")
    idle = {(row["case"], row["rank"]): row["idle_ms"] for row in ranks.rows}
    assert idle["rpc ×1", 1] == pytest.approx(139 / 2)
    assert idle["pipeline ×1", 0] == idle["pipeline ×1", 1] == pytest.approx(79 / 2)
    assert idle["data", 0] == pytest.approx(1)  # as noted


def test_losses_that_do_not_agree_are_said_to_be_so(tmp_path):
    assert "do not agree" in text_of(LAB.write_up(make_runs(tmp_path, apart=0.1), "en"), "en")


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    "kept", [("alone",), ("data", "tensor"), ("rpc-x1", "rpc-x4"), ("alone", "pipeline-gpipe-x4")]
)
def test_what_failed_is_left_out(kept, lang, tmp_path):
    names = [name for name, _ in plan_named_cases(LabSettings())]
    results = make_runs(tmp_path, without=[name for name in names if name not in kept])
    found = LAB.write_up(results, lang)
    assert not BAD.search(text_of(found, lang))
    assert len(next(b for b in found.results if isinstance(b, TableBlock)).table.rows) == len(kept)


def test_where_nothing_came_to_its_end_the_page_says_so(tmp_path):
    names = [name for name, _ in plan_named_cases(LabSettings())]
    found = LAB.write_up(make_runs(tmp_path, without=names), "en")
    assert (found.results, found.analysis, found.tables) == ([], [], [])
    assert str(found.summary) == "No experiment came to its end."


def test_a_difference_that_the_machine_made_is_none():
    quick, slow = (Interval(middle=t, low=t - 1, high=t + 1) for t in (50, 60))
    assert compare_steps(quick, slow) is Order.LESS
    assert compare_steps(slow, quick) is Order.MORE
    assert compare_steps(quick, slow, drift=0.5) is Order.LEVEL
    assert compare_steps(slow, quick, drift=0.5) is Order.LEVEL
    assert compare_steps(quick, dataclasses.replace(slow, low=50)) is Order.LEVEL


def test_two_ranks_compute_together_where_both_have_work():
    def step(*ranks):
        return [{"work": [["forward", 0, 0, *piece] for piece in pieces]} for pieces in ranks]

    assert share_together(step([(0, 10)], [(10, 20)])) == 0
    assert share_together(step([(0, 10)], [(5, 20)])) == pytest.approx(0.25)
    assert share_together(step([(0, 6), (4, 10)], [(5, 20)])) == pytest.approx(0.25)  # two threads
    assert share_together(step([(0, 10)], [(0, 10)], [(0, 10)])) == 1
    assert share_together([{"work": [["forward", 0, 0, 1, 2]]}, {}]) is None


def test_a_trace_shows_usual_steps_and_threads_side_by_side():
    def step(number, total):
        work = [["forward", 0, 0, 5, 20], ["forward", 1, 0, 10, 30], ["backward", 0, 0, 25, 40]]
        times = {"t": 100 * number, "total": total, "blocked": [[1, 1], [2, 4]], "work": work}
        return [{"step": number, **times}]

    steps = [step(n, total) for n, total in enumerate([90, 11, 50, 10, 12], start=1)]
    assert [one[0]["step"] for one in pick_typical(steps, 2)] == [4, 5]
    assert pick_typical(steps[:1], 2) == steps[:1]
    early, late = ((0, 1), (1, 19), (20, 20)), ((0, 10), (10, 10), (20, 20))
    pairs = [
        [{"t": t, "total": total} for t, total in both] for both in zip(early, late, strict=True)
    ]
    assert pick_typical(pairs, 2) == pairs[:2], "10, 10 and 20, whatever rank 0 has waited"
    pieces = list(lay_out("rpc ×1", steps[:1]))
    shown = [(piece.kind, piece.lane) for piece in pieces]
    lanes = [("forward", 0), ("forward", 1), ("backward", 0)]
    assert shown == [("step", 0), ("waiting", 0), *lanes]
    assert (
        min(piece.since_ms for piece in lay_out("rpc ×1", steps[:1]) if piece.kind == "step") == 0
    )


def test_every_experiment_is_a_run_with_the_seed_that_was_asked_for():
    quick = {one.name: one.spec for one in LAB.experiments(LabSettings(seed=7))}
    assert {spec.seed for spec in quick.values()} == {7}
    assert {spec.threads for spec in quick.values()} == {1}
    assert [*quick][:1] == ["alone"]
    assert [*quick][-1:] == [AGAIN]
    assert len(quick) == 14
    assert {"rpc-x1", "rpc-x4", "pipeline-gpipe-x4", "pipeline-interleaved-x4"} <= set(quick)
    inexact = {one.name for one in LAB.experiments(LabSettings()) if not one.exact}
    assert inexact == {"rpc-x4", "rpc-x8"}  # `lab verify --rerun` asks for no bits of them
    full = {one.name: one.spec for one in LAB.experiments(LabSettings(full=True))}
    assert set(quick) < set(full)


def test_on_simulated_nodes_every_part_has_a_node():
    for nodes in (2, 3, 16):
        specs = {one.name: one.spec for one in LAB.experiments(LabSettings(nodes=nodes))}
        assert (specs["alone"].nodes, specs["alone"].workers) == (1, 1)
        assert {(s.nodes, s.workers) for name, s in specs.items() if "alone" not in name} == {
            (nodes, 1)
        }
        assert "pipeline-interleaved-x4" in specs
    with pytest.raises(UsageError, match="nodes=16"):
        LAB.experiments(LabSettings(nodes=17))


def test_bytes_are_those_of_links_on_nodes(tmp_path):
    results = make_runs(tmp_path, settings=LabSettings(nodes=3))
    found = LAB.write_up(results, "en")
    forms = next(table for table in found.tables if table.name == "forms")
    assert {row["sent_bytes"] for row in forms.rows if row["ranks"] == 3} == {3 * 4000 // STEPS}
    assert "left the nodes by their links" in text_of(found, "en")
    assert not BAD.search(text_of(found, "en"))


def test_the_code_shown_is_there():
    assert all(code.text for code in read_code(find_lab(4)))
