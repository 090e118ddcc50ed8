"""What is observed of real ranks, by each way in which programs communicate, and that it is all."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import warnings
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from drumline.comm.fallback import GlooFallback
from drumline.comm.mpi.group import MpiGroup
from drumline.comm.shm.group import ShmGroup
from drumline.core.rundir import EventWriter, RunDir, read_events
from drumline.core.status import StatusWriter, read_status
from drumline.observer import mark_step, observe_rank
from drumline.observer.collectives import METHODS
from drumline.observer.hooks import Hooks
from drumline.observer.recorder import Recorder
from drumline.observer.steps import count_samples
from ranks import run_ranks


def observe(rank, folder, program):
    """Observe what a program does on this rank; returns its result and its events."""
    path = Path(folder) / f"{program.__name__}-{rank}.jsonl"
    with EventWriter(path) as events:
        recorder = Recorder(events, StatusWriter(path.with_suffix(".status")))
        with Hooks(recorder):
            result = program(rank)
        recorder.close()
    return result, read_events(path)


def spans_of(events):
    """The kind, bytes, ranks and number of all calls, by group, in order."""
    found = {}
    for event in events:
        for op, nbytes, arrived, ended, ranks, seq, group in event.get("spans", ()):
            assert 0 < arrived <= ended
            found.setdefault(group, []).append((op, nbytes, tuple(ranks), seq))
    return found


def calls_of_python(rank):
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, src=1)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.all_gather([torch.empty(10), torch.empty(10)], torch.ones(10))
    with torch.inference_mode():
        dist.all_reduce(tensor)
    dist.barrier()
    (dist.send if rank == 0 else dist.recv)(tensor, 1 - rank)
    alone = [dist.new_group([member]) for member in range(2)][rank]
    dist.all_reduce(tensor, group=alone)
    return tensor.sum().item(), alone.group_name


def test_the_calls_of_torch_distributed(team):
    for rank, ((_, alone), events) in enumerate(team(2, calls_of_python)):
        spans = spans_of(events)
        everybody = [(op, nbytes) for op, nbytes, ranks, _ in spans["0"] if ranks == ()]
        assert everybody[:6] == [
            ("all_reduce", 400),
            ("broadcast", 400),
            ("all_reduce", 400),
            ("all_gather", 80),
            ("all_reduce", 400),
            ("barrier", 0),
        ]
        message = "send" if rank == 0 else "recv"
        assert spans["0>1"] == [(message, 400, (0, 1), 1)]
        assert spans[alone] == [("all_reduce", 400, (rank,), 1)]


def functional_calls(rank):
    import torch.distributed._functional_collectives as functional

    tensor = functional.all_reduce(torch.ones(50), "sum", dist.group.WORLD)
    return (tensor + 0).sum().item()


def test_functional_collectives_which_dtensor_uses(team):
    for result, events in team(2, functional_calls):
        assert result == 100
        assert spans_of(events) == {"0": [("all_reduce", 200, (), 1)]}
        assert any(event["blocked"] for event in events)


def train_ddp(rank):
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.randn(60, 32), torch.randint(0, 4, (60,)))
    for _ in range(2):
        for inputs, targets in DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return [parameter.tolist() for parameter in model.parameters()]


def plainly(rank, world_size, program):
    return program(rank)


def test_the_steps_of_ddp_and_the_same_bits(team):
    plain = team.plain(2, train_ddp)
    observed = team(2, train_ddp)
    assert [weights for weights, _ in observed] == plain
    for _, events in observed:
        steps = [event for event in events if event["event"] == "step"]
        assert [step["step"] for step in steps] == list(range(1, 17))
        assert [step["samples"] for step in steps] == ([8] * 7 + [4]) * 2
        for step in steps[2:]:
            assert [span[0] for span in step["spans"]] == ["all_reduce"]
            ((began, ended),) = step["blocked"]
            (_, _, _, *forward), (_, _, _, *backward) = step["work"]
            assert step["t"] <= forward[0] <= forward[1] == backward[0] <= began <= ended
            assert ended <= backward[1] <= step["t"] + step["total"]


def train_compiled(rank):
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = DistributedDataParallel(nn.Linear(8, 8))
    compiled = torch.compile(model, backend="eager")
    for _ in range(3):
        compiled(torch.randn(4, 8)).sum().backward()
    return sum(torch._dynamo.utils.counters["graph_break"].values())


def test_the_compiler_does_not_see_the_hooks(team):
    assert [breaks for breaks, _ in team(2, train_compiled)] == team.plain(2, train_compiled)


def train_through_shm(rank):
    group = dist.new_group(backend="shm")
    dist.all_reduce(torch.ones(10), group=group)
    work = dist.all_reduce(torch.ones(20), group=group, async_op=True)
    work.wait()
    dist.all_to_all_single(torch.empty(4), torch.ones(4), group=group)  # these go on to gloo
    parts = [torch.empty(3), torch.empty(3)] if rank == 0 else None
    dist.gather(torch.ones(3), parts, dst=0, group=group)
    (dist.send if rank == 0 else dist.recv)(torch.ones(5), 1 - rank, group=group)
    return group.group_name


def test_our_own_groups(team):
    for name, events in team(2, train_through_shm):
        spans = spans_of(events)
        assert [span[0] for span in spans[name]] == [*["all_reduce"] * 2, "all_to_all", "gather"]
        assert [span[2] for span in spans["0>1"]] == [(0, 1)]


def send_and_forget(rank):
    tensors = [torch.ones(10) for _ in range(20)]
    if rank == 0:
        sent = [dist.isend(each, 1) for each in tensors]
        dist.recv(tensors[0])  # from whoever sends
        dist.barrier()
        return [weakref.ref(each) for each in (*tensors, *sent)]
    for each in tensors:
        dist.recv(each, 0)
    dist.send(tensors[0], 0)
    dist.barrier()
    return []


def status_after(rank, folder, program):
    """The status of a rank while its program still goes on, and how many handles are kept."""
    path = Path(folder) / f"{program.__name__}-{rank}.status"
    with EventWriter(path.with_suffix(".jsonl")) as events:
        recorder = Recorder(events, StatusWriter(path))
        with Hooks(recorder):
            alive = [ref() for ref in program(rank) if ref() is not None]
            status = read_status(path, rank)
            kept = len(recorder._awaitable)
    return [call.op for call in status.waits_in], kept, len(alive), sorted(status.groups)


def test_a_message_that_nobody_waits_for_is_let_go_of(team):
    for rank, (waits_in, kept, alive, groups) in enumerate(team.status(2, send_and_forget)):
        assert (waits_in, kept, alive) == ([], 0, 0)
        assert groups == ["0", *[["0>1", "1>0"], ["0>1", "any>0"]][rank == 0]]


def begin_anew(rank):
    here = [dist.new_group([0]), dist.new_group([1])][rank]
    dist.all_reduce(torch.ones(1), group=here)
    dist.destroy_process_group()
    store = dist.FileStore(f"{tempfile.gettempdir()}/anew-{os.getppid()}", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    group = dist.new_group([1, 0])
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    return here.group_name


def test_groups_are_told_apart_though_torch_names_them_anew(tmp_path):
    first, second = run_ranks(as_observed, 2, str(tmp_path), begin_anew, folder=tmp_path)
    for rank, (here, events) in enumerate((first, second)):
        spans = spans_of(events)
        assert spans[here] == [("all_reduce", 4, (rank,), 1)]
        assert [span[0] for span in spans["0.2"]] == ["barrier"]
        assert spans["1.2"] == [("all_reduce", 4, (), 1)]


@pytest.mark.parametrize("group", [ShmGroup, MpiGroup])
def test_every_collective_of_our_groups_is_observed(group):
    own = {
        name
        for kind in group.__mro__
        if kind in (ShmGroup, MpiGroup, GlooFallback)
        for name in vars(kind)
        if not name.startswith("_")
    }
    others = {"allocate", "backend_name", "getBackendName", "register", "shutdown", "timeout_s"}
    assert own - others <= METHODS.keys()


def raise_as_ever(rank):
    try:
        dist.broadcast(torch.ones(3), src=7)
    except Exception as error:
        return type(error).__name__, str(error)


def test_errors_are_the_programs_own(team):
    assert [error for error, _ in team(2, raise_as_ever)] == team.plain(2, raise_as_ever)


def fork_and_train(rank):
    child = os.fork()
    if child == 0:
        optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1)
        for _ in range(5):
            optimizer.step()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def test_a_forked_child_is_not_observed(team):
    assert team(1, fork_and_train) == [(0, [])]


def test_a_fault_in_the_observer_is_not_the_programs(tmp_path, capfd):
    class Broken(Recorder):
        def update_began(self, optimizer):
            raise OSError("no space left")

    with EventWriter(tmp_path / "rank-0.jsonl") as events:
        recorder = Broken(events, StatusWriter(tmp_path / "rank-0.status"))
        with Hooks(recorder):
            weight = torch.ones(1, requires_grad=True)
            optimizer = torch.optim.SGD([weight], lr=0.5)
            for _ in range(3):
                weight.grad = torch.ones(1)
                optimizer.step()
    assert weight.item() == -0.5
    said = capfd.readouterr().err.splitlines()
    assert said == ["drumline no longer observes this rank: OSError: no space left"]
    assert read_status(tmp_path / "rank-0.status", 0) is None, "it is not taken for a hang"


def test_a_full_disk_ends_the_observation_and_not_the_program(tmp_path, capfd, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    run = RunDir.create("run", root=tmp_path)
    with EventWriter(run.rank_events(0)) as events:
        observe_rank(run, 0, events)
    mark_step()
    said = capfd.readouterr().err
    assert said.startswith("drumline cannot observe this rank: OSError: [Errno 28] No space left")
    assert read_status(run.rank_status(0), 0) is None


def test_nothing_is_left_of_the_hooks(tmp_path):
    from torch.optim import optimizer as optimizers

    def places():
        return (
            dist.Work.wait,
            DataLoader.__iter__,
            torch.autograd._engine_run_backward,
            len(optimizers._global_optimizer_pre_hooks),
            len(threading.enumerate()),
        )

    before = places()
    with EventWriter(tmp_path / "rank-0.jsonl") as events, warnings.catch_warnings():
        warnings.simplefilter("error")
        with Hooks(Recorder(events, StatusWriter(tmp_path / "rank-0.status"))):
            assert places() != before
    assert places() == before


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(3, 2), 3),
        ([torch.ones(4), torch.ones(4)], 4),
        ({"x": torch.ones(5, 1), "y": torch.ones(5)}, 5),
        (("name", {"x": torch.ones(2)}), 2),
        ("text", 0),
        (torch.tensor(1.0), 1),
        ([], 0),
    ],
)
def test_samples_of_a_batch(batch, samples):
    assert count_samples(batch) == samples


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """Ranks that stay for all tests of this file, observed while they run a program, or not."""
    from ranks import Team

    class Observed:
        def __init__(self):
            self.folder = tmp_path_factory.mktemp("observed")
            self.teams = {}

        def __call__(self, ranks, program):
            return self.of(ranks).call(as_observed, str(self.folder), program)

        def plain(self, ranks, program):
            return self.of(ranks).call(plainly, program)

        def status(self, ranks, program):
            return self.of(ranks).call(as_status, str(self.folder), program)

        def of(self, ranks):
            if ranks not in self.teams:
                self.teams[ranks] = Team(ranks, folder=self.folder)
            return self.teams[ranks]

    observed = Observed()
    yield observed
    for each in observed.teams.values():
        each._stop()


def as_observed(rank, world_size, folder, program):
    return observe(rank, folder, program)


def as_status(rank, world_size, folder, program):
    return status_after(rank, folder, program)
