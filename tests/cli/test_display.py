from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from drumline.cli.display import (
    LiveTable,
    LogTail,
    PlainLines,
    build_display,
    draw_ranks,
    step_line,
)
from drumline.core.rundir import EventWriter, RunDir
from drumline.report.progress import RunProgress
from drumline.spec.load import load_spec
from metered_runs import ddp_logs

SECOND = 10**9


@pytest.fixture
def run(tmp_path):
    return RunDir.create("demo", root=tmp_path)


@pytest.fixture
def writers(run):
    made = [EventWriter(run.rank_events(rank)) for rank in (0, 1)]
    yield made
    for writer in made:
        writer.close()


def console(**options) -> Console:
    return Console(file=io.StringIO(), width=80, **options)


def text_of(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def start(writers, *, attempt=0):
    for writer in writers:
        writer.write("start", attempt=attempt)
        writer.write("ready", total_steps=20, steps_per_epoch=10)


def steps(writers, numbers):
    for number in numbers:
        for rank, writer in enumerate(writers):
            writer.write(
                "step",
                step=number,
                loss=2.5 - number / 10,
                samples=32,
                total=SECOND // 2,
                data=SECOND // 100,
                blocked=[[0, SECOND // 10]],
                spans=[["ring", 100, rank * SECOND // 20, SECOND // 10]],
            )
    for writer in writers:
        writer.flush()


def test_plain_lines_tell_each_epoch_once(run, writers):
    shown = console()
    with PlainLines(
        shown, RunProgress(run, 2), "demo-1: cnn on mnist-mini, 2 ranks, ring"
    ) as display:
        display.update()
        start(writers)
        steps(writers, range(1, 11))
        writers[0].write("epoch", epoch=0, step=10, loss=1.95, test_loss=0.51, accuracy=0.8765)
        writers[0].flush()
        display.update()
        display.update()
        writers[0].write("epoch", epoch=1, step=20, loss=0.5)
        writers[0].flush()
    assert text_of(shown).splitlines() == [
        "demo-1: cnn on mnist-mini, 2 ranks, ring",
        "epoch 1  step 10/20  loss 1.9500  test loss 0.5100  accuracy 87.65%  128 samples/s",
        "epoch 2  step 20/20  loss 0.5000  128 samples/s",
    ]


def test_plain_lines_tell_of_restarts_and_damage(run, writers):
    shown = console()
    with PlainLines(shown, RunProgress(run, 2), "[title]"):
        start(writers, attempt=1)
        writers[0].write("damaged", path="checkpoints/step-9", why="a checksum is wrong [0]")
        for writer in writers:
            writer.write("restore", step=5)
            writer.flush()
    assert text_of(shown).splitlines() == [
        "[title]",
        "a worker died; the group starts again (restart 1)",
        "passing over a damaged checkpoint: checkpoints/step-9: a checksum is wrong [0]",
        "going on from the checkpoint of step 5",
    ]


def test_displays_name_the_straggler(run, writers, monkeypatch):
    """Rank 1 takes 80 ms longer for its data; 11 s pass from one look at the logs to the next."""
    logs = ddp_logs(steps=150, data_ms=lambda rank, _: 20.0 + 80 * (rank == 1))
    shown = console()
    with PlainLines(shown, RunProgress(run, 2), "[title]") as display:
        clock = [time.monotonic()]
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        for first in range(0, 150, 30):
            clock[0] += 11
            for writer, log in zip(writers, logs, strict=True):
                for event in log[first : first + 30]:
                    writer.write(**event)
                writer.flush()
            display.update()
        monkeypatch.undo()
    lines = [line for line in text_of(shown).splitlines() if line.startswith("rank 1 cost")]
    assert len(lines) == 1
    assert lines[0].endswith(": slow in data, 80 ms a step above the others")


def test_the_line_between_epochs(run, writers):
    progress = RunProgress(run, 2)
    assert step_line(progress).startswith("starting the workers (")
    start(writers)
    steps(writers, (1, 2, 3, 4))
    steps(writers[:1], [5])  # rank 1 is behind
    progress.update()
    assert step_line(progress) == "step 4/20  loss 2.0000  about 8.0 s left"


def test_progress_goes_back_to_the_checkpoint_with_the_run(run, writers):
    progress = RunProgress(run, 2)
    start(writers)
    steps(writers, range(1, 9))
    progress.update()
    assert progress.step == 8
    for writer in writers:
        writer.write("start", attempt=1)
        writer.write("restore", step=5)
        writer.flush()
    progress.update()
    assert (progress.step, progress.eta_s, progress.samples_per_s) == (5, None, 0)


def test_a_resumed_run_does_not_tell_its_first_life_again(run, writers):
    start(writers)
    steps(writers, range(1, 11))
    writers[0].write("epoch", epoch=0, step=10, loss=1.0)
    writers[0].flush()
    progress = RunProgress(run, 2)
    progress.skip_to_now()
    assert progress.update() == []


def test_what_a_fast_run_logged_is_told_in_the_order_of_its_log(run, writers):
    progress = RunProgress(run, 2)
    start(writers)
    writers[0].write("backend", wanted="nccl", backend="gloo", why="no GPU")
    steps(writers, range(1, 11))
    writers[0].write("epoch", epoch=0, step=10, loss=1.0)
    writers[0].write("note", text="the second epoch begins")
    writers[0].flush()
    backend, epoch, note = progress.update()
    assert (backend, note) == ("backend gloo: no GPU", "the second epoch begins")
    assert epoch["event"] == "epoch"


def test_a_pipe_gets_lines_and_a_terminal_a_table(run):
    for options, kind in (
        ({"force_terminal": False}, PlainLines),
        ({"force_terminal": True, "_environ": {"TERM": "dumb"}}, PlainLines),
        ({"force_terminal": True, "_environ": {"TERM": "xterm"}}, LiveTable),
    ):
        with build_display(console(**options), run, load_spec(None, [])) as display:
            pass
        assert type(display) is kind


def test_the_live_table_fits_eighty_columns(run, writers):
    shown = console(force_terminal=True, _environ={"TERM": "xterm"})
    with LiveTable(
        shown, RunProgress(run, 2), "demo-1: cnn on mnist-mini, 2 ranks, ddp"
    ) as display:
        for writer in writers:
            writer.write("start", attempt=0)
            writer.write("ready", total_steps=1_000_000, steps_per_epoch=10)
        steps(writers, range(999_990, 999_999))
        display.update()
        plain = console()
        plain.print(draw_ranks(display.progress, "demo", width=80))
    drawn = text_of(plain)
    assert "…" not in drawn
    for word in ("rank", "step", "loss", "samples/s", "999998/1000000", "128 samples/s"):
        assert word in drawn
    assert all(len(line) <= 80 for line in drawn.splitlines())


def test_a_terminal_is_given_back(run, writers):
    shown = console(force_terminal=True, _environ={"TERM": "xterm"})
    with LiveTable(shown, RunProgress(run, 2), "demo"):
        start(writers)
        steps(writers, [1])
    drawn = text_of(shown)
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")  # the cursor is visible again


def test_a_progress_bar_in_a_log_is_a_line_a_second(tmp_path, monkeypatch):
    log, shown, clock = tmp_path / "rank-0.log", console(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    tail = LogTail(log, "[0]")
    with log.open("ab", buffering=0) as file:
        for chunk, passed in (
            (b"\r 0%\r 1%", 0),
            (b"\r 2%", 0.1),
            (b"\r 3%", 1.2),
            (b"", 2),  # it stands still
            (b"\r100%", 0.1),
            (b"\nloss ", 2),  # not a bar: waits for its end
            (b"0.5\r\n\r 50%", 0.1),
            (b"\r    \r", 2),  # leaves nothing
            (b"done\n\n", 2),
            (b"\r outer 1/2\n\r inner 1\x1b[A", 2),  # bars below each other
            (b"\n\r inner 2\x1b[A\n\r inner 3\x1b[A", 2),
            (b"\r outer 2/2", 0.1),
        ):
            file.write(chunk)
            clock[0] += passed
            tail.print_new(shown)
    tail.print_new(shown, to_the_end=True)
    tail.print_new(shown, to_the_end=True)
    told = [line.removeprefix("[0] ") for line in text_of(shown).splitlines()]
    bars = [" 1%", " 3%", "100%", "loss 0.5", " 50%", "done", ""]
    assert told == [*bars, " outer 1/2", " inner 1", " inner 3", " outer 2/2"]
