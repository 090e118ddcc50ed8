"""`drumline.launch`: functions of any kind, on real ranks; what they return, print and raise."""

from __future__ import annotations

import errno
import os
import pickle
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import drumline
from drumline.core.calls import Call, CallFiles
from drumline.core.errors import RankTimeoutError, RunDirError, SpecError, UsageError, WorkerError
from drumline.interactive.session import _kept_agents
from namespaces import need_namespaces


@pytest.fixture(scope="module", autouse=True)
def agents_of_this_module():
    yield
    _kept_agents(os.getpid()).close()
    _kept_agents.cache_clear()


def launch(*args, **options):
    """Launch in the environment of the test before: pytest's note of the test would change it."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    return drumline.launch(*args, **options)


class OwnError(Exception):
    """Can be pickled."""


class PickyError(Exception):
    """Cannot: pickle calls it with the message alone."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


def sum_of_ranks(start=0):
    total = torch.full((2,), float(start + dist.get_rank()))
    dist.all_reduce(total)
    print(f"the sum is {total[0]:.0f}")
    return total


def test_each_rank_returns_what_it_computed(capsys):
    found = launch(sum_of_ranks, 1, workers=3)
    assert [each.tolist() for each in found] == [[6.0, 6.0]] * 3
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines == [f"[{rank}] the sum is 6" for rank in range(3)]


def test_the_environment_is_that_of_torchrun():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    found = launch(lambda: [os.environ[name] for name in names], workers="2")  # as a spec has it
    assert found == [["0", "0", "2", "2"], ["1", "1", "2", "2"]]


def test_closures_keyword_arguments_and_own_classes_travel():
    @dataclass
    class Answer:
        rank: int
        value: int

    def answer(x, *, times):
        return Answer(dist.get_rank(), x * times)

    found = launch(answer, 3, kwargs={"times": 4})
    assert found == [Answer(0, 12), Answer(1, 12)]
    assert type(found[0]) is Answer


def test_the_group_is_of_the_backend_or_not_there_at_all():
    def backend():
        return dist.get_backend() if dist.is_initialized() else None

    assert launch(backend) == ["gloo", "gloo"]
    assert launch(backend, backend="shm") == ["shm", "shm"]
    assert launch(backend, backend=None) == [None, None]

    def own():
        dist.init_process_group("shm")  # by name: it is registered
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        return tensor.item()

    assert launch(own, backend=None) == [2.0, 2.0]


@pytest.mark.slow
def test_a_second_group_is_explained():
    with pytest.raises(ValueError, match="default process group twice") as raised:
        launch(dist.init_process_group, "gloo")
    assert "launch with backend=None" in raised.value.__notes__[0]


def test_the_second_call_is_forked_from_the_same_warm_server():
    first, second = (launch(os.getppid)[0] for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_who_is_done_at_once_does_not_leave_the_others_connecting():
    for _ in range(15):
        assert len(set(launch(os.getpid, workers=4))) == 4


@pytest.mark.slow
def test_ddp_finds_the_compiler_that_it_asks_loaded():
    def loaded():
        from torch.nn.parallel import DistributedDataParallel

        found = "torch._dynamo" in sys.modules
        DistributedDataParallel(torch.nn.Linear(2, 2))
        return os.getppid(), found

    server, found = launch(loaded)[0]
    assert found
    assert launch(os.getppid)[0] == server  # has loaded more than this one needs


def test_the_first_ranks_exception_is_raised_here():
    def fail():
        if dist.get_rank() == 1:
            raise OwnError("the sky fell")
        dist.barrier()

    with pytest.raises(OwnError, match="the sky fell") as raised:
        launch(fail, workers=3)
    assert raised.value.rank == 1
    cause = raised.value.__cause__
    assert isinstance(cause, WorkerError)
    assert 'raise OwnError("the sky fell")' in str(cause)
    assert "2 other ranks then lost the connection" in str(cause)


def test_an_exception_that_pickle_cannot_make_anew_keeps_its_type():
    def fail():
        raise PickyError(3, "out of paper")

    with pytest.raises(PickyError, match=r"^3: out of paper$") as raised:
        launch(fail, backend=None)
    assert (raised.value.code, raised.value.rank in (0, 1)) == (3, True)


def test_an_exception_that_cannot_be_pickled_is_told_by_its_traceback(capsys):
    def fail():
        raise ValueError("out of paper", threading.Lock())

    with pytest.raises(WorkerError, match=r"ValueError: .'out of paper'") as raised:
        launch(fail, backend=None)
    assert raised.value.rank == raised.value.fields["rank"]
    assert capsys.readouterr().out == ""  # raised here, so not printed as well


@pytest.mark.slow
def test_to_exit_does_not_end_the_caller():
    def leave():
        raise SystemExit(4)

    with pytest.raises(WorkerError, match="SystemExit: 4"):
        launch(leave, backend=None)


@pytest.mark.slow
def test_a_result_that_cannot_be_pickled_is_named():
    with pytest.raises(UsageError, match=r"rank \d returned generator, which cannot be sent back"):
        launch(lambda: (x for x in "ab"))


@pytest.mark.slow
def test_a_killed_rank_is_named():
    def die():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), 9)
        dist.barrier()

    with pytest.raises(WorkerError, match="rank 1 was killed by SIGKILL") as raised:
        launch(die)
    assert raised.value.rank == 1


def test_ranks_that_take_too_long_are_ended():
    def wait():
        if dist.get_rank() == 0:
            threading.Event().wait(60)
        return os.getpid()

    told = r"ranks? 0.* had not ended after 2 s, so all 2 ranks were ended"
    with pytest.raises(RankTimeoutError, match=told) as raised:
        launch(wait, timeout_s="2")
    assert isinstance(raised.value, TimeoutError)
    assert 0 in raised.value.fields["ranks"]


@pytest.mark.slow
def test_results_count_though_a_process_takes_its_time_to_end():
    class Slow:
        def __del__(self):
            time.sleep(60)

    def leave_a_cycle():
        slow = Slow()
        slow.me = slow
        return dist.get_rank()

    launch(os.getpid)  # from now on it is quick
    assert launch(leave_a_cycle, timeout_s=10) == [0, 1]


def test_a_rank_that_ends_without_returning_is_named():
    with pytest.raises(WorkerError, match=r"ranks 0 and 1 ended without returning") as raised:
        launch(lambda: os._exit(0), backend=None)
    assert raised.value.rank == 0


def test_a_progress_bar_is_told_while_it_grows(capsys):
    def draw():
        for step in range(41):
            sys.stderr.write(f"\r{step}/40")
            time.sleep(0.05)
        sys.stderr.write("\n")

    launch(draw, workers=1, backend=None)
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "[0] 40/40"
    assert 2 <= len(shown) <= 6  # of 41, and not the last alone


def test_simulated_nodes_have_links():
    need_namespaces()

    def where():
        return os.environ["RANK"], os.environ["LOCAL_WORLD_SIZE"], os.environ["MASTER_ADDR"]

    found = launch(where, workers=1, nodes=2, link="1gbit")
    assert found == [("0", "1", "10.77.0.1"), ("1", "1", "10.77.0.1")]


@pytest.mark.slow
def test_another_thread_has_agents_of_its_own():
    found = []
    here = launch(os.getppid)[0]
    thread = threading.Thread(target=lambda: found.extend(launch(os.getppid)))
    thread.start()
    thread.join()
    assert len(set(found)) == 1
    assert found[0] != here
    assert launch(os.getppid)[0] == here


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"workers": 0}, SpecError, "workers is 0, but must be 1 or more"),
        ({"nodes": 999}, SpecError, "has addresses for 1 to 254 nodes"),
        ({"link": "1gbit"}, UsageError, "links join simulated nodes"),
        ({"nodes": 2, "link": "fast"}, SpecError, "link.rate: expected a rate"),
        ({"backend": "glo"}, UsageError, "did you mean 'gloo'"),
        ({"timeout_s": -1}, SpecError, "timeout_s is -1, but must be 1 or more"),
        (
            {"backend": "nccl", "workers": 3},
            UsageError,
            "for each of 3 ranks, and there are 2",
        ),
        ({"kwargs": {"x": threading.Lock()}}, UsageError, "cannot send sum_of_ranks to ranks"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(options, error, sentence, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(error, match=sentence):
        launch(sum_of_ranks, **options)


def test_a_file_that_another_user_could_have_written_is_not_read(tmp_path):
    files = CallFiles(tmp_path / "call")
    files.write_call(Call(function=print, args=(), kwargs={}), None)
    (file,) = (tmp_path / "call").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_bytes(pickle.dumps((None, [], {})))
    file.chmod(0o660)
    with pytest.raises(RunDirError, match="could have been written by another user"):
        files.read_call()


def test_an_exception_that_has_no_room_on_the_disk_stays_what_it_is(tmp_path, monkeypatch):
    files = CallFiles(tmp_path / "call")
    monkeypatch.setattr(Path, "rename", _disk_is_full)
    files.write_error(0, OwnError("the sky fell"))
    assert files.read_error(0) is None


def _disk_is_full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
