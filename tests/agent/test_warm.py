"""The worker server and who asks it: signals at any moment, and processes that have just begun."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from drumline.agent.warm import WarmServer, _end


class InterruptedAskError(Exception):
    """What torch elastic raises from its handler of SIGTERM, here of SIGALRM."""


@pytest.fixture
def server():
    nothing = os.open(os.devnull, os.O_RDONLY)
    server = WarmServer("", nothing)
    yield server
    server._process.kill()
    server._process.wait()
    os.close(nothing)


@pytest.fixture
def alarm():
    def interrupt(*_):
        raise InterruptedAskError

    before = signal.signal(signal.SIGALRM, interrupt)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.signal(signal.SIGALRM, before)


def test_an_answer_that_a_signal_left_unread_is_not_taken_for_the_next(server, alarm):
    pid = server.ask(start={})  # ends with code 1: run_worker gets no arguments
    while server.ask(poll=pid) is None:
        time.sleep(0.02)
    os.kill(server._process.pid, signal.SIGSTOP)
    alarm()
    with pytest.raises(InterruptedAskError):
        server.ask(start={})
    os.kill(server._process.pid, signal.SIGCONT)
    assert server.ask(poll=pid) == 1
    assert server.ask(end=True) is None


def test_a_process_that_leads_no_group_yet_is_ended_at_once():
    process = subprocess.Popen(["sleep", "20"])
    began = time.monotonic()
    _end([process.pid])
    process.wait()
    assert time.monotonic() - began < 10
