from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

import pytest

from drumline.core.errors import ClusterError
from drumline.node import peer as module
from drumline.node.peer import accept_follower, connect_to_leader, listen

LOOPBACK = "127.0.0.1"
SECRET = b"of this job"


def meet(*, follower=SECRET, leader=SECRET, job="j"):
    """Tie both ends; each side's secret may be another."""
    with listen(LOOPBACK) as listener:
        found = []

        def lead():
            connection, _ = listener.accept()
            found.append(accept_follower(connection, job="j", secret=leader))

        thread = threading.Thread(target=lead)
        thread.start()
        try:
            port = listener.getsockname()[1]
            mine = connect_to_leader(LOOPBACK, port, job=job, node=1, secret=follower)
        finally:
            thread.join(10)
    return mine, found[0]


def hear(tether, within_s=5.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and tether.lost is None:
        if messages := tether.tick():
            return messages
        time.sleep(0.01)
    return []


def test_both_ends_talk_and_a_closed_end_is_seen_at_once():
    mine, leader = meet()
    assert leader.node == 1
    mine.send("here", workers=2)
    assert hear(leader) == [{"what": "here", "workers": 2}]
    leader.send("start", text="ü\n" * 100_000)
    assert hear(mine)[0]["text"] == "ü\n" * 100_000
    mine.close()
    assert hear(leader) == []
    assert leader.lost == "has closed the connection"
    leader.send("stop")  # to nobody: no error
    assert leader.tick() == []


def test_who_does_not_know_the_secret_is_not_let_in():
    for wrong in ({"follower": b"guessed"}, {"leader": b"other"}, {"job": "another"}):
        with pytest.raises(ClusterError, match="does not know the secret of job"):
            meet(**wrong)


def test_an_impostor_gets_no_proof_to_use_elsewhere():
    """Who sends nonsense is hung up on, and learns nothing but a challenge."""
    no_proof = b'{"node":1,"challenge":"","proof":""}\n'
    for words in (b"x" * 5000 + b"\n", b'{"node":1}\n', b"[]\n", no_proof):
        with (
            listen(LOOPBACK) as listener,
            socket.create_connection(listener.getsockname()) as outside,
        ):
            inside, _ = listener.accept()
            outside.sendall(words)
            assert accept_follower(inside, job="j", secret=SECRET) is None
            told = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := outside.recv(4096):
                    told += chunk
            assert not told or set(json.loads(told)) == {"challenge"}


def test_silence_is_death_and_clocks_are_compared(monkeypatch):
    monkeypatch.setattr(module, "PING_S", 0.01)
    monkeypatch.setattr(module, "SILENCE_S", 0.3)
    mine, leader = meet()
    for _ in range(20):
        assert mine.tick() == leader.tick() == []
        time.sleep(0.02)
    assert mine.lost is leader.lost is None
    assert abs(leader.ahead_s) < 0.1
    deadline = time.monotonic() + 5
    while leader.lost is None and time.monotonic() < deadline:
        leader.tick()  # the other end does not
        time.sleep(0.01)
    assert leader.lost == "has not been heard of for 0.3 s"
    mine.close()


def test_nobody_there_is_told():
    with listen(LOOPBACK) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ClusterError, match=f"node 1 cannot reach the leader at 127.0.0.1:{port}"):
        connect_to_leader(LOOPBACK, port, job="j", node=1, secret=SECRET)
    with pytest.raises(ClusterError, match=r"the leader cannot listen on 192\.0\.2\.1"):
        listen("192.0.2.1")
