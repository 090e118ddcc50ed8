"""Pages: every number is a cell of a sheet, and a real browser shows them whole."""

from __future__ import annotations

import csv
import inspect
import json
import re
import shutil
from dataclasses import dataclass

import pytest

from browser import browsing, find_browser
from drumline.core.errors import RunDirError, UsageError
from drumline.labs.catalogue import excerpt
from drumline.report.intervals import Interval
from drumline.report.page import table as forms
from drumline.report.page.blocks import (
    Column,
    Facts,
    Markdown,
    Notice,
    OwnWords,
    Paragraph,
    Picture,
    Report,
    Section,
    TableBlock,
)
from drumline.report.page.folder import (
    WORDS,
    audit_files,
    audit_numbers,
    read_citations,
    read_manifest,
    read_own_words,
    write_report,
)
from drumline.report.page.render import render_html, render_markdown
from drumline.report.page.table import Finding, Findings, Table, milliseconds, percent, times
from drumline.report.page.translator import Translator, check_texts, fill, load_texts
from drumline.report.plots import PAGE_INK, FigureStyle, chinese_font
from drumline.report.runs.tables import DifferenceRow

TEXTS = {
    "en": {
        "title": "A report",
        "loss": "Loss",
        "kind": "strategy",
        "share": "waiting",
        "said": "{a} waited; {r}",
    },
    "zh": {
        "title": "一份报告",
        "loss": "损失",
        "kind": "策略",
        "share": "等待",
        "said": "等待 {a};{r}",
    },
}


@dataclass(frozen=True, kw_only=True)
class KindRow:
    kind: str
    n: int


@dataclass(frozen=True, kw_only=True)
class WaitRow:
    kind: str
    step_ms: float
    share: Interval
    missing: float | None


def small_report(lang, words=""):
    say = Translator(lang, TEXTS)
    table = Table("waits", WaitRow)
    for number, kind in enumerate(("ring", "tree")):
        share = Interval(middle=0.7134, low=0.66, high=0.75).scaled(1 / (number + 1))
        row = WaitRow(kind=kind, step_ms=12.3456 * (number + 1), share=share, missing=None)
        table.append(row)
    found = Findings()
    ratio = found.cell(
        "tree over ring", Interval(middle=2.0061, low=1.9, high=2.1), times, of="waits.csv"
    )

    def draw(style: FigureStyle):
        figure, (left, right) = style.panels(2)
        for number, row in enumerate(table.records):
            left.plot([1, 2, 3], [3, 2, number], label=row.kind, color=style.color(number))
            right.bar(number, row.step_ms, color=style.color(number))
        style.finish(left, title=Translator(style.speaks, TEXTS).text("loss"), x="step", y="loss")
        style.finish(right, title="Step", x="", y="ms")
        return figure

    columns = [
        Column(key="kind", name=say.text("kind")),
        Column(key="step_ms", name="ms", form=milliseconds),
        Column(key="share", name=say.text("share"), form=percent),
        Column(key="missing", name="?", form=percent),
    ]
    waited = table.quote(table.records[0], "share", percent)
    blocks = [
        Notice(said="one & two < three"),
        Paragraph(said=[say("said", a=waited, r=ratio)], findings=True),
        Picture(name="one", title="One", draw=draw, caption="c", tables=[table]),
        Picture(name="two", title='Two "quoted"', draw=draw),
        TableBlock(table=table, title="Waits", columns=columns),
        Facts(items=[("cpu", "a very-long-word-" * 12)]),
        Markdown(
            text="**b** `" + "x" * 300 + "`\n\n<script>alert(1)</script>\n\n| a |\n|---|\n| 1 |"
        ),
        OwnWords(file=WORDS, text=words),
        excerpt("comm/ring.py", "chunked_all_reduce"),
    ]
    return Report(
        title=say.text("title"),
        lang=lang,
        summary=fill("{a}", {"a": waited}),
        sections=[Section(slug="results", heading="Results", blocks=blocks)],
        tables=[table, found.table],
    )


def test_a_report_is_what_its_files_say(tmp_path):
    page = write_report(small_report("en"), tmp_path / "r", {"lab": 2}).read_text()
    folder = tmp_path / "r"
    manifest = read_manifest(folder)
    assert sorted(manifest["files"]) == sorted(
        ["data/findings.csv", "data/waits.csv", "report.html", "report.md"]
        + [f"figures/{name}.{end}" for name in ("one", "two") for end in ("png", "svg", "pdf")]
    )
    assert list(audit_files(folder, manifest)) == []
    assert list(audit_numbers(folder)) == []
    # numbers as a reader sees them, rounded from the cells and with their intervals
    texts = {cited.text: cited for cited in read_citations(page)}
    with (folder / "data" / "waits.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert texts["71 % (66–75)"].value == rows[0]["share"] == "0.7134"
    assert texts["12.3 ms"].value == rows[0]["step_ms"]
    assert texts["2.0× (1.9–2.1)"].table == "findings"
    assert texts["–"].value == ""
    assert "71 % (66–75) waited; 2.0× (1.9–2.1)" in (folder / "report.md").read_text()
    # text that is not ours is shown, not obeyed
    assert "<script>" not in page
    assert "one &amp; two &lt; three" in page
    # one drawing for both schemes; each name once
    assert PAGE_INK not in page
    assert "currentColor" in page
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert re.search(r"https?://(?!www\.w3\.org)", page) is None

    # whoever changes a number is found, in the page and in the file
    (folder / "data" / "waits.csv").write_text(
        (folder / "data" / "waits.csv").read_text().replace("0.7134", "0.5134")
    )
    assert list(audit_files(folder, manifest)) == [
        "data/waits.csv was changed after it was written"
    ]
    assert any("waits.csv has 0.5134 in row 1, share" in one for one in audit_numbers(folder))
    shutil.rmtree(folder / "data")
    assert "data/waits.csv is missing" in list(audit_files(folder, manifest))
    assert any("no such cell" in one for one in audit_numbers(folder))


def test_own_words_are_kept(tmp_path):
    assert read_own_words(tmp_path, "en") == ""
    (tmp_path / WORDS).write_text("<!-- a hint -->\nThe ring *wins*. <b>Really</b>\n")
    for _ in range(2):
        words = read_own_words(tmp_path, "en")
        write_report(small_report("en", words), tmp_path, {})
    assert (tmp_path / WORDS).read_text().startswith("<!-- a hint -->")
    page = (tmp_path / "report.html").read_text()
    assert "The ring <em>wins</em>. &lt;b&gt;Really&lt;/b&gt;" in page
    assert "a hint" not in page
    (tmp_path / WORDS).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunDirError, match="no text in UTF-8"):
        read_own_words(tmp_path, "en")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "holds no report"),
        ("{", "is damaged"),
        ('{"format": 0, "drumline": "0.0.1"}', "format 0, this program reads 1.*drumline 0.0.1"),
        ("[]", "format None"),
    ],
)
def test_what_is_no_report_of_ours_is_told(tmp_path, text, said):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_manifest(tmp_path)


@pytest.mark.slow
def test_nothing_of_others_is_overwritten(tmp_path):
    folder = tmp_path / "r"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "mine.csv").write_text("a,b\n")
    write_report(small_report("en"), folder, {})
    old = folder / "figures" / "of-an-older-report.png"
    old.write_text("")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] |= {"figures/of-an-older-report.png": "", "data/../../else": ""}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "else").write_text("")
    write_report(small_report("en"), folder, {})
    assert (folder / "data" / "mine.csv").read_text() == "a,b\n"
    assert (tmp_path / "else").exists()
    assert not old.exists()
    (folder / "manifest.json").write_text("{")  # damaged, but the page is ours
    write_report(small_report("en"), folder, {})
    for name, text in (("manifest.json", '{"argv": []}'), ("report.html", "<h1>Mine</h1>")):
        taken = tmp_path / name
        taken.mkdir()
        (taken / name).write_text(text)
        with pytest.raises(UsageError, match=f"has a {name} that is no report's"):
            write_report(small_report("en"), taken, {})
        assert [file.name for file in taken.iterdir()] == [name]
    for name in ("report.md", "data/waits.csv"):  # somebody's own text and numbers
        taken = tmp_path / name / "r"
        (taken / name).parent.mkdir(parents=True)
        (taken / name).write_text("mine")
        with pytest.raises(UsageError, match=f"has a {name} that is no report's"):
            write_report(small_report("en"), taken, {})
        assert (taken / name).read_text() == "mine"


def test_a_report_replaces_only_one_of_its_own_kind(tmp_path):
    write_report(small_report("en"), tmp_path, {"lab": 2})
    before = (tmp_path / "report.html").read_text()
    for facts in ({"lab": 1}, {"runs": []}):
        with pytest.raises(UsageError, match="holds the report of lab 2, which stays"):
            write_report(small_report("en"), tmp_path, facts)
    assert (tmp_path / "report.html").read_text() == before
    write_report(small_report("zh"), tmp_path, {"lab": 2})
    write_report(small_report("en"), tmp_path / "page", {})
    with pytest.raises(UsageError, match="holds a page about runs, which stays"):
        write_report(small_report("en"), tmp_path / "page", {"lab": 2})


def test_a_report_that_was_cut_short_says_so_and_is_made_again(tmp_path):
    def stop(name):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_report(small_report("en"), tmp_path, {}, tell=stop)
    found = list(audit_files(tmp_path, read_manifest(tmp_path)))
    assert "data/waits.csv is of a report that was never finished; make it again" in found
    assert "report.html is missing" in found
    write_report(small_report("en"), tmp_path, {})
    assert list(audit_files(tmp_path, read_manifest(tmp_path))) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="cannot write the report to"):
        write_report(small_report("en"), tmp_path / "file", {})


def test_both_languages_need_the_same_holes():
    with pytest.raises(ValueError, match="holes"):
        check_texts({"en": {"": "{a} and {b}"}, "zh": {"": "{a}"}}, "a test")
    say = Translator("zh", {"zh": {"is": "是 {a}"}})
    with pytest.raises(ValueError, match="holes"):
        say("is")
    assert str(say("is", a="1")) == "是 1"


def test_texts_of_both_languages_have_the_same_keys_and_holes(tmp_path, monkeypatch):
    package = tmp_path / "sayings"
    (package / "text").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    def load(en, zh):
        (package / "text" / "en.yaml").write_text(en)
        (package / "text" / "zh.yaml").write_text(zh)
        load_texts.cache_clear()
        return load_texts("sayings")

    texts = load("a: {b: '{n} steps', c: d}", "a: {b: '{n} 步', c: 丁}")
    say = Translator("zh", texts)
    assert (str(say("a.b", n=3)), say.text("a.c")) == ("3 步", "丁")
    assert say.labels("a") == {"b": "{n} 步", "c": "丁"}
    for zh in ("a: {b: '{m} 步', c: 丁}", "a: {b: '{n} 步'}"):
        with pytest.raises(ValueError, match=r"a.b has not the same|only one language has a.c"):
            load("a: {b: '{n} steps', c: d}", zh)
    with pytest.raises(ValueError, match=r"a.c is no text: 3; quote it"):
        load("a: {c: 3}", "a: {c: 3}")
    load_texts.cache_clear()


def test_no_space_stands_between_chinese_words():
    for name, said in (
        ("SGD", "比 SGD 慢"),
        ("按标签", "比按标签慢"),
        ("动量 SGD", "比动量 SGD 慢"),
    ):
        assert str(fill("比 {a} 慢", {"a": name})) == said


def test_a_chinese_page_has_chinese_punctuation():
    report = small_report("zh")
    text = render_markdown(report)
    assert "\n- cpu：a very" in text
    assert re.search(r"`chunked_all_reduce`（comm/ring.py，第 \d+ 行）", text)
    page = render_html(report, version="1", made="now")
    assert "c（data/waits.csv）</figcaption>" in page
    assert re.search(r"comm/ring.py，第 \d+ 行</summary>", page)


def test_code_is_cut_out_as_it_stands():
    from drumline.optim.adam import Adam

    assert excerpt("optim/adam.py", "Adam.__init__").symbol == "Adam.__init__"
    found = excerpt("optim/adam.py", "Adam")
    assert found.text + "\n" == inspect.getsource(Adam)
    with pytest.raises(LookupError, match="defines no Nothing"):
        excerpt("optim/adam.py", "Nothing")


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (forms.percent, 0.004, "0.4 %"),
        (forms.percent, 0.713, "71 %"),
        (forms.points, 0.975, "97.50 %"),
        (forms.times, 0.48, "0.48×"),
        (forms.times, 1.02, "1.02×"),
        (forms.times, 1.996, "2.0×"),
        (forms.times, 120.4, "120×"),
        (forms.milliseconds, 0.01234, "0.0123 ms"),
        (forms.milliseconds, 1234.5, "1234 ms"),
        (forms.count, 12345, "12 345"),
    ],
)
def test_forms(form, value, text):
    assert form(value) == text


def test_an_interval_of_either_sign_is_told_by_dots():
    row = WaitRow(kind="", step_ms=0, share=Interval(middle=0.5, low=-1.0, high=2.0), missing=None)
    table = Table("s", WaitRow, [row])
    assert str(table.quote(row, "share", lambda value: f"{value:+.0f} ms")) == "+0 ms (-1 … +2)"
    assert str(table.quote(row, "share", forms.plain)) == "0.5 (-1 … 2)"


def test_a_table_names_the_keys_of_its_sheet():
    table = Table("s", KindRow, [KindRow(kind="gd", n=1)])
    columns = [Column(key="kind", name="k", labels={"gd": "GD"}), Column(key="n", name="n")]
    (cells,) = TableBlock(table=table, columns=columns, title="t").cells()
    assert [(cell.text, cell.value) for cell in cells] == [("GD", "gd"), ("1", 1)]


def test_names_are_listed():
    assert Translator("en").join(["a", "b", "c"]) == "a, b and c"
    assert Translator("zh").join(["打乱", "随机"]) == "打乱和随机"
    assert Translator("zh").join(["Adam", "SGD"]) == "Adam 和 SGD"


def test_a_wrong_row_is_refused():
    table = Table("s", KindRow, [KindRow(kind="gd", n=1)])
    with pytest.raises(AttributeError, match="no attribute 'kind'"):
        table.append(Finding(name="n", value=None, from_=""))
    with pytest.raises(LookupError, match="no such row"):
        table.quote(KindRow(kind="gd", n=1), "n")
    assert (len(table.rows), len(table.where(n=1)), table.where(n=3)) == (1, 1, [])


def test_fields_become_columns():
    empty = Table("waits", WaitRow)
    assert empty.columns == ["kind", "step_ms", "share", "share_low", "share_high", "missing"]
    assert empty.forms == {"kind": None, "step_ms": str, "share": str, "missing": str}
    row = DifferenceRow(key="data.batch", values={"run-1": "64", "b": "128"})
    assert Table("differences", DifferenceRow, [row]).to_csv() == (
        "key,run-1,b\ndata.batch,64,128\n"
    )
    found = Findings()
    found.cell("gap", 0.5, percent, of="waits.csv")
    assert found.table.to_csv() == "name,value,value_low,value_high,from\ngap,0.5,,,waits.csv\n"


def test_figures_speak_chinese_only_where_a_font_does(monkeypatch):
    monkeypatch.setattr("drumline.report.plots.chinese_font", lambda: None)
    assert Translator(FigureStyle(lang="zh").speaks, TEXTS).text("loss") == "Loss"
    chinese_font.cache_clear()


def test_a_browser_shows_all_of_it(tmp_path):
    find_browser()
    with browsing() as browser:
        for lang in ("en", "zh"):
            page = tmp_path / f"{lang}.html"
            page.write_text(render_html(small_report(lang), version="1", made="now"))
            for width in (1280, 390):
                browser.open(page, width=width, dark=width == 390)
                assert browser.faults() == [], (lang, width)
        folded = "document.querySelector('details pre').checkVisibility()"
        assert not browser.evaluate(folded)
        browser.open(page, width=800, paper=True)
        assert browser.evaluate(folded), "nothing is folded on paper"
        page.write_text(
            "<body><p style='width:3000px'>wide</p><figure></figure>"
            "<script>console.error('no')</script></body>"
        )
        browser.open(page, width=1280)
        assert len(browser.faults()) >= 4, "it finds what is wrong"
