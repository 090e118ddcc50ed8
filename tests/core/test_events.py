from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.core import rundir
from drumline.core.rundir import EventTail, EventWriter, read_events


@pytest.fixture
def log(tmp_path):
    return tmp_path / "events" / "rank-0.jsonl"


def test_an_absent_file_has_no_events(log):
    assert read_events(log) == []


def test_events_come_back_as_they_were_written(log):
    with EventWriter(log) as events:
        events.write("start", rank=0, host="größe-机器", nothing=None)
        events.write("step", step=1, spans=[["ring", 4, 1, 2]], loss=0.5)
    assert read_events(log) == [
        {"event": "start", "rank": 0, "host": "größe-机器", "nothing": None},
        {"event": "step", "step": 1, "spans": [["ring", 4, 1, 2]], "loss": 0.5},
    ]


@given(text=st.text(), number=st.floats(allow_nan=False))
def test_any_text_stays_on_its_line(text, number, tmp_path_factory):
    log = tmp_path_factory.mktemp("events") / "log.jsonl"
    with EventWriter(log) as events:
        events.write("any", text=text, number=number)
        events.write("end")
    assert log.read_bytes().count(b"\n") == 2
    assert read_events(log) == [{"event": "any", "text": text, "number": number}, {"event": "end"}]


def test_events_are_visible_after_a_flush(log):
    with EventWriter(log) as events:
        events.write("step", step=1)
        assert read_events(log) == []  # still in the writer's buffer
        events.flush()
        assert read_events(log) == [{"event": "step", "step": 1}]


def test_a_torn_last_line_is_not_read_until_it_is_whole(log):
    log.parent.mkdir()
    line = json.dumps({"event": "step", "step": 2}).encode() + b"\n"
    log.write_bytes(b'{"event":"step","step":1}\n' + line[:10])
    tail = EventTail(log)
    assert tail.read_events() == [{"event": "step", "step": 1}]
    assert tail.read_events() == []
    with log.open("ab") as file:
        file.write(line[10:])
    assert tail.read_events() == [{"event": "step", "step": 2}]
    assert tail.read_events() == []


def test_a_long_log_is_read_in_pieces(log, monkeypatch):
    monkeypatch.setattr(rundir, "_PIECE", 100)
    with EventWriter(log) as events:
        for step in range(50):
            events.write("step", step=step)
    tail = EventTail(log)
    first = next(tail.new_events())
    assert (first["step"], tail.offset <= 100) == (0, True)
    assert [event["step"] for event in tail.read_events()][-1] == 49
    assert tail.read_events() == []


@pytest.mark.parametrize("torn", [b'{"event":"st', b'{"event":"x"}', b"\xff\xfe", b"\0\0\0\0"])
def test_a_writer_that_comes_after_a_killed_one_starts_on_its_own_line(log, torn):
    log.parent.mkdir()
    log.write_bytes(b'{"event":"step","step":1}\n' + torn)
    tail = EventTail(log)
    assert tail.read_events() == [{"event": "step", "step": 1}]
    with EventWriter(log) as events:
        events.write("start")
    read = tail.read_events()
    assert read[-1] == {"event": "start"}
    assert read[:-1] == ([{"event": "x"}] if torn == b'{"event":"x"}' else [])
    assert read_events(log) == [{"event": "step", "step": 1}, *read]


def test_a_whole_file_is_not_mended(log):
    for _ in range(2):
        with EventWriter(log) as events:
            events.write("start")
    assert log.read_bytes() == b'{"event":"start"}\n' * 2


def test_lines_that_are_no_events_are_passed_over(log):
    log.parent.mkdir()
    log.write_bytes(b'\n[1]\n"event"\nnot json\n{"no":"event"}\n{"event":"end"}\n')
    assert read_events(log) == [{"event": "end"}]


def test_a_reader_that_follows_a_writer_sees_every_event_once_and_in_order(log):
    count = 3000
    seen: list[int] = []

    def write() -> None:
        with EventWriter(log) as events:
            for step in range(count):
                events.write("step", step=step, text="é" * (step % 50))
                if step % 7 == 0:
                    events.flush()

    writer = threading.Thread(target=write)
    tail = EventTail(log)
    writer.start()
    while writer.is_alive():
        seen += [event["step"] for event in tail.read_events()]
    writer.join()
    seen += [event["step"] for event in tail.read_events()]
    assert seen == list(range(count))
