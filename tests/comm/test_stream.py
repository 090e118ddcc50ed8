"""The communication thread: order kept, errors handed to whoever waits."""

import threading

import pytest
import torch

from drumline.comm.stream import CommStream


def test_jobs_run_in_order_on_one_other_thread():
    stream, seen = CommStream(), []
    handles = [
        stream.submit(lambda n=n: seen.append((n, threading.get_ident()))) for n in range(100)
    ]
    for handle in handles:
        handle.result(timeout=5)
    assert [n for n, _ in seen] == list(range(100))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    assert len({thread for _, thread in seen}) == 1
    stream.close()


def test_an_error_reaches_the_one_who_waits_and_later_jobs_still_run():
    stream = CommStream()

    def fail():
        raise RuntimeError("connection closed by peer")

    failed, after = stream.submit(fail), stream.submit(lambda: None)
    with pytest.raises(RuntimeError, match="closed by peer"):
        failed.result(timeout=5)
    after.result(timeout=5)
    stream.close()


def test_close_waits_for_queued_jobs_and_ends_the_thread():
    stream, done = CommStream(), []
    for n in range(10):
        stream.submit(lambda n=n: done.append(n))
    stream.close()
    assert done == list(range(10))
    assert "drumline-comm" not in {thread.name for thread in threading.enumerate()}


def test_its_thread_computes_alone_and_leaves_the_others_their_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        stream = CommStream()
        seen = []
        stream.submit(lambda: seen.append(torch.get_num_threads())).result()
        stream.close()
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
