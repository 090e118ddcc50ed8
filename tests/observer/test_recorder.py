"""Steps of programs that mark none, from what their hooks have noted, by a clock of the test's."""

from __future__ import annotations

import pytest

from drumline.core.rundir import EventWriter, read_events
from drumline.core.status import StatusWriter, read_status
from drumline.observer.clock import Clock
from drumline.observer.recorder import Recorder
from drumline.observer.steps import merged


class Program:
    """Notes what a program does; the clock moves by the times given."""

    def __init__(self, folder):
        self.time = 0
        self.path = folder / "rank-0.jsonl"
        self.events = EventWriter(self.path)
        status = StatusWriter(folder / "rank-0.status")
        self.recorder = Recorder(self.events, status, Clock(lambda: self.time))

    def fetch(self, took=1, samples=8):
        began = self.recorder.fetch_began()
        self.time += took
        self.recorder.fetch_ended(began, samples)

    def backward(self, took=10, reduce_at=None, until=None):
        began = self.recorder.backward_began()
        if reduce_at is not None:
            self.time += reduce_at
            call = self.recorder.call_began("all_reduce", 400, "0", (0,))
            self.time += until - reduce_at
            self.recorder.call_ended(call)
            took -= until
        self.time += took
        self.recorder.backward_ended(began)

    def update(self, optimizer=1, took=2):
        began = self.recorder.update_began(optimizer)
        self.time += took
        self.recorder.update_ended(optimizer, began)

    def compute(self, took):
        self.time += took

    def end(self):
        self.recorder.close()
        self.events.close()
        return read_events(self.path)


@pytest.fixture
def program(tmp_path):
    program = Program(tmp_path)
    with program.events:
        yield program


def steps(events):
    return [
        {key: event[key] for key in ("step", "t", "total", "data", "update")}
        for event in events
        if event["event"] == "step"
    ]


def test_a_step_is_data_forward_backward_update(program):
    for _ in range(2):
        program.fetch(took=3)
        program.compute(5)
        program.backward(took=10)
        program.update(took=2)
    events = program.end()
    assert steps(events) == [
        {"step": 1, "t": 0, "total": 20, "data": 3, "update": 2},
        {"step": 2, "t": 20, "total": 20, "data": 3, "update": 2},
    ]
    assert events[1]["work"] == [["forward", 0, 0, 23, 28], ["backward", 0, 0, 28, 38]]
    assert events[1]["samples"] == 8


def test_an_evaluation_between_two_steps_belongs_to_none(program):
    program.fetch()
    program.backward()
    program.update()  # at 13
    for _ in range(4):
        program.fetch()
        program.compute(100)
    program.fetch()  # from 417
    program.backward()
    program.update()
    assert steps(program.end())[1] == {"step": 2, "t": 417, "total": 13, "data": 1, "update": 2}


def test_the_turn_of_an_epoch_is_time_for_data(program):
    program.fetch()
    program.backward()
    program.update()
    program.fetch(took=1, samples=None)  # there is none left
    program.fetch(took=50, samples=None)  # loader workers start
    program.fetch(took=2)
    program.backward()
    program.update()
    assert steps(program.end())[1] == {"step": 2, "t": 13, "total": 65, "data": 53, "update": 2}


def test_accumulated_gradients_are_one_step(program):
    for _ in range(2):
        for _ in range(3):
            program.fetch()
            program.compute(2)
            program.backward(took=4)
        program.update()
    events = program.end()
    assert [(step["total"], step["data"]) for step in steps(events)] == [(23, 3), (23, 3)]
    assert [row[0] for row in events[0]["work"]] == ["forward", "backward"] * 3
    assert events[0]["samples"] == 24


def test_several_optimizers_are_one_step(program):
    for _ in range(3):
        program.fetch()
        program.backward()
        program.update(optimizer=1)
        program.backward()
        program.update(optimizer=2)
    assert [step["total"] for step in steps(program.end())] == [25, 25, 25]


def test_an_optimizer_within_another_is_counted_once(program):
    for _ in range(2):
        program.backward()
        began = program.recorder.update_began(1)  # as ZeroRedundancyOptimizer does
        program.update(optimizer=2, took=5)
        program.compute(1)
        program.recorder.update_ended(1, began)
    assert [step["update"] for step in steps(program.end())] == [6, 6]


def test_a_program_may_say_where_steps_end(program):
    for _ in range(3):
        program.compute(7)
        program.recorder.mark_step()
    assert [step["total"] for step in steps(program.end())] == [7, 7, 7]


def test_what_ddp_waits_for_at_the_end_of_a_backward_is_blocked(program):
    program.fetch()
    program.backward(took=20, reduce_at=12, until=19)
    program.update()
    events = program.end()
    assert events[0]["spans"] == [["all_reduce", 400, 13, 20, [0], 1, "0"]]
    assert events[0]["blocked"] == [[13, 20]]


def test_without_steps_collectives_are_told_in_stretches(program):
    for _ in range(3):
        call = program.recorder.call_began("all_reduce", 4, "0", (0,))
        program.compute(2 * 10**9)
        program.recorder.call_ended(call)
        program.recorder.flush()
    events = program.end()
    assert [event["event"] for event in events] == ["collectives"] * 3
    assert [span[5] for event in events for span in event["spans"]] == [1, 2, 3]
    assert [event["total"] for event in events] == [2 * 10**9] * 3


def test_without_steps_all_time_is_told_from_the_first_call_on(program):
    """What is computed before a call counts with it, and a long wait with its call."""
    second = 10**9
    program.compute(5 * second)  # imports
    for wait, work in ((0, 3 * second), (12 * second, 2 * second), (second, 0)):
        call = program.recorder.call_began("barrier", 0, "0", (0,))
        for _ in range(3):
            program.compute(wait // 3)
            program.recorder.flush()
        program.recorder.call_ended(call)
        program.recorder.blocked_since(program.time - wait)
        for _ in range(2):
            program.compute(work // 2)
            program.recorder.flush()
    events = program.end()
    assert sum(event["total"] for event in events) == 18 * second - 1
    for event in events:
        until = event["t"] + event["total"]
        assert all(event["t"] <= began <= ended <= until for began, ended in event["blocked"])


def test_a_rank_that_waits_all_the_time_writes_every_second(program):
    """Whenever its log is flushed it is within a call, as the one that waits for a straggler."""
    second = 10**9
    for _ in range(60):
        call = program.recorder.call_began("all_reduce", 4, "0", (0,))
        program.compute(second // 10)
        program.recorder.flush()
        program.recorder.call_ended(call)
    events = read_events(program.path)
    assert len(events) >= 5
    assert all(event["total"] <= 1.2 * second for event in events)
    spans = [span for event in program.end() for span in event["spans"]]
    assert [span[5] for span in spans] == list(range(1, 61))


def test_a_call_that_has_not_ended_is_told_when_it_has(program):
    late = program.recorder.call_began("all_reduce", 4, "0", (0,))
    for _ in range(3):
        program.backward()
        program.update()
    program.recorder.call_ended(late)
    events = program.end()
    spans = [span for event in events for span in event.get("spans", ())]
    assert [span[5] for span in spans] == [1]


class Gpu(Clock):
    """A GPU that has come to `done`, while the host is ahead of it."""

    def __init__(self, read):
        super().__init__(read)
        self.done = 0

    on_gpu = True

    def reached(self, moment):
        return moment <= self.done

    def wait_until(self, moment, within_s):
        pass


@pytest.fixture
def on_gpu(program):
    program.recorder.clock = Gpu(lambda: program.time)
    return program


def queue_call(program):
    call = program.recorder.call_began("all_reduce", 4, "0", (0,))
    call.on_gpu = True
    program.recorder.call_queued(call, program.time + 5)
    program.compute(1)


def test_who_has_ended_on_a_gpu_waits_no_longer_while_the_host_does_something_else(on_gpu):
    queue_call(on_gpu)
    status = on_gpu.path.with_suffix(".status")
    on_gpu.recorder.flush()
    assert len(read_status(status, 0).waits_in) == 1
    on_gpu.recorder.clock.done = 100
    on_gpu.recorder.clock.capture_began()
    on_gpu.recorder.flush()  # asks nothing while a CUDA graph is captured
    assert len(read_status(status, 0).waits_in) == 1
    on_gpu.recorder.clock.capture_ended()
    on_gpu.recorder.flush()
    assert read_status(status, 0).waits_in == []


def test_without_steps_calls_on_a_gpu_are_written_as_they_go(on_gpu):
    for _ in range(4):
        queue_call(on_gpu)
        on_gpu.compute(2 * 10**9)
        on_gpu.recorder.clock.done = on_gpu.time
        on_gpu.recorder.flush()
    on_gpu.events.flush()
    assert len(read_events(on_gpu.path)) == 3


def test_the_end_does_not_need_a_gpu_that_waits_for_a_lost_peer(on_gpu):
    on_gpu.fetch()
    on_gpu.backward()
    on_gpu.update()
    on_gpu.recorder.clock.done = on_gpu.time
    on_gpu.backward()
    on_gpu.update()
    queue_call(on_gpu)
    assert [step["step"] for step in steps(on_gpu.end())] == [1]


def test_merged_intervals():
    assert merged([]) == []
    assert merged([(5, 6), (1, 3), (2, 4), (4, 5)]) == [(1, 6)]
    assert merged([(1, 2), (3, 4), (3, 9), (5, 6)]) == [(1, 2), (3, 9)]
