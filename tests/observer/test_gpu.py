"""What is observed of a program on a GPU: times of the GPU, though the program runs ahead of it."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from drumline.core.rundir import EventWriter, read_events
from drumline.core.status import StatusWriter, read_status
from drumline.observer.hooks import Hooks
from drumline.observer.recorder import Recorder

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not dist.is_nccl_available(), reason="needs a GPU and NCCL"
)


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    torch.cuda.set_device(0)
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    yield
    dist.destroy_process_group()


def observe(folder, program):
    path = folder / "rank-0.jsonl"
    with EventWriter(path) as events:
        recorder = Recorder(events, StatusWriter(path.with_suffix(".status")))
        with Hooks(recorder):
            result = program()
        recorder.close()
    return result, read_events(path)


class Slow(TensorDataset):
    def __init__(self, *tensors, delay_s):
        super().__init__(*tensors)
        self.delay_s = delay_s

    def __getitems__(self, indices):
        time.sleep(self.delay_s)
        return [self[index] for index in indices]


def build_program(*, delay_s=0.0, width=4096, layers=8, steps=20):
    torch.manual_seed(0)
    linear = [nn.Linear(width, width) for _ in range(layers)]
    model = DistributedDataParallel(nn.Sequential(*linear).cuda(), bucket_cap_mb=64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = Slow(torch.randn(64 * steps, width), delay_s=delay_s)

    def run():
        for (inputs,) in DataLoader(data, batch_size=64):
            optimizer.zero_grad()
            model(inputs.cuda()).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
        return [parameter.sum().item() for parameter in model.parameters()]

    return run


def median(values):
    return sorted(values)[len(values) // 2]


def test_steps_last_as_long_as_on_the_gpu(group, tmp_path):
    run = build_program()
    run()
    began = time.monotonic_ns()
    _, events = observe(tmp_path, run)
    took = time.monotonic_ns() - began
    steps = [event for event in events if event["event"] == "step"]
    assert len(steps) == 20
    spent = sum(step["total"] for step in steps[1:])
    assert 0.5 * took < spent < 1.05 * took
    for step in steps[2:]:
        assert [span[0] for span in step["spans"]] == ["all_reduce"] * len(step["spans"])
        (_, _, _, *forward), (_, _, _, *backward) = step["work"]
        assert forward[0] < forward[1] <= backward[0] < backward[1]
        for _op, _nbytes, arrived, ended, *_ in step["spans"]:
            assert backward[0] <= arrived < ended <= backward[1] + 10**6
        for a, b in step["blocked"]:
            assert step["t"] <= a <= b <= step["t"] + step["total"] + 10**6
    for before, after in itertools.pairwise(steps):
        assert before["t"] + before["total"] == pytest.approx(after["t"], abs=10**5)


def test_data_that_the_gpu_waits_for_is_data(group, tmp_path):
    slow = build_program(delay_s=0.02, width=512, layers=2)
    slow()
    _, events = observe(tmp_path, slow)
    steps = [event for event in events if event["event"] == "step"][2:]
    assert median([step["data"] for step in steps]) > 15e6
    hidden = build_program()  # the host is ahead: its loading costs the GPU nothing
    hidden()
    _, events = observe(tmp_path / "hidden", hidden)
    steps = [event for event in events if event["event"] == "step"][2:]
    assert median([step["data"] / step["total"] for step in steps]) < 0.5


def test_the_same_bits(group, tmp_path):
    plain = build_program(width=256)()
    observed, _ = observe(tmp_path, build_program(width=256))
    assert observed == plain


def test_calls_that_wait_and_calls_that_do_not(group, tmp_path):
    def program():
        tensor = torch.ones(2**24, device="cuda")
        for _ in range(3):
            dist.all_reduce(tensor)
            work = dist.all_reduce(tensor, async_op=True)
            tensor2 = tensor * 2
            work.wait()
            dist.barrier()
        torch.cuda.synchronize()
        return tensor2.sum().item()

    _, events = observe(tmp_path, program)
    spans = [span for event in events for span in event.get("spans", ())]
    assert [span[0] for span in spans] == ["all_reduce", "all_reduce", "barrier"] * 3
    assert all(span[2] < span[3] for span in spans)
    status = read_status(tmp_path / "rank-0.status", 0)
    assert [call.seq for call in status.calls] == list(range(1, 10))


def test_a_cuda_graph_is_captured_and_replayed(group, tmp_path):
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(8, 64, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def program():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        for _ in range(10):
            graph.replay()
        return loss.item()

    value, events = observe(tmp_path, program)
    assert value == value
    assert any(event["event"] == "step" for event in events)
