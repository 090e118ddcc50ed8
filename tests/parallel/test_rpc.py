"""Models over RPC, on real processes: as one process computes it, whom it lets in, how it ends."""

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store

from drumline.comm import LOOPBACK
from drumline.comm.lost_peers import LostPeerError
from drumline.comm.store import join_store, serve_store
from drumline.core.errors import CommError, PeerError, UsageError
from drumline.optim import build_optimizer
from drumline.parallel.rpc.agents import join_rpc
from drumline.parallel.rpc.leader import RpcModel
from drumline.parallel.rpc.parts import Part, Traffic, ask
from drumline.spec.learning import OptimizerSpec
from drumline.trainer.rank import describe_error
from namespaces import need_namespaces
from ranks import Team

WIDTH, WORDS = 6, 7
SGD = OptimizerSpec(name="sgd", lr=0.1, momentum=0.9)
ADAM = OptimizerSpec(name="adam", lr=0.01)


def whole(*, tied=False):
    """An embedding, layers, and a head that may share the embedding's weight."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)]
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH), *blocks, nn.Linear(WIDTH, WORDS, bias=False)
    ).double()
    model[3][0].bias.requires_grad_(False)
    if tied:
        model[-1].weight = model[0].weight
    return model


def cut(model, number, parts):
    """Cut out one part; its parameters keep the names that they have in the whole model."""
    children = list(copy.deepcopy(model).named_children())
    bounds = [len(children) * k // parts for k in range(parts + 1)]
    part = nn.Sequential()
    for name, child in children[bounds[number] : bounds[number + 1]]:
        part.add_module(name, child)
    return part


def batches(steps):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randint(WORDS, (2, 7), generator=generator)  # inputs and targets


def loss_sum(logits, targets):
    return F.cross_entropy(logits, targets, reduction="sum")


def alone(spec, *, tied, clip_norm):
    """Train in one process; return the losses and the weights."""
    model = whole(tied=tied)
    optimizer = build_optimizer(spec, [p for p in model.parameters() if p.requires_grad])
    losses = []
    for inputs, targets in batches(20):
        optimizer.zero_grad()
        loss = loss_sum(model(inputs), targets)
        (loss / len(inputs)).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def store_of(rank, name):
    """Meet at a TCP store that rank 0 serves, as in a run."""
    known = _get_default_store()
    if rank == 0:
        store = serve_store(LOOPBACK, 0, 30)
        known.set(name, str(store.port))
        return store
    return join_store(LOOPBACK, int(known.get(name)), 30)


# Called on the ranks that own the parts, as a run's ranks save and load their own.

made = {}


def build_and_keep(spec, parameters):
    made["optimizer"] = build_optimizer(spec, parameters)
    return made["optimizer"]


def save(part):
    return copy.deepcopy((part.module.state_dict(), made["optimizer"].state_dict()))


def load(part, weights, optimizer=None):
    part.module.load_state_dict(weights)
    if optimizer is not None:
        made["optimizer"].load_state_dict(copy.deepcopy(optimizer))


def train_by_rpc(agents, part, spec, *, size, tied=False, clip_norm=None, overlap=True):
    """Train as `alone` does, in microbatches of `size`; return the same."""
    names = [("0.weight", "5.weight")] if tied else []
    model = RpcModel(agents, part, optimizer=partial(build_optimizer, spec))
    for number, ref in enumerate(model.parts):
        start = cut(whole(tied=tied), number, agents.world_size)
        ask(ref, load, start.state_dict()).wait()
    model = RpcModel(
        agents,
        part,
        optimizer=partial(build_and_keep, spec),
        clip_norm=clip_norm,
        tied=names,
        overlap=overlap,
    )
    losses = []
    for inputs, targets in batches(20):
        microbatches = list(zip(inputs.split(size), targets.split(size), strict=True))
        found = model.train(microbatches, loss_sum, 1 / len(inputs))
        assert len(found) == len(microbatches)
        losses.append(sum(found))
    return losses, {name: t for ref in model.parts for name, t in ask(ref, save).wait()[0].items()}


CASES = {
    "sgd, whole batch": {"spec": SGD, "size": 7},
    "sgd, microbatches": {"spec": SGD, "size": 3},
    "adam, whole batch": {"spec": ADAM, "size": 7},
    "adam, one by one": {"spec": ADAM, "size": 2, "overlap": False},
    "clipped": {"spec": SGD, "size": 3, "clip_norm": 0.3},
    "tied": {"spec": SGD, "size": 3, "tied": True},
    "tied, clipped": {"spec": ADAM, "size": 3, "tied": True, "clip_norm": 0.3},
}


def train_all_cases(rank, world_size, cases):
    threads = threading.active_count()
    store = _get_default_store()
    found = None
    with join_rpc(store, rank=rank, world_size=world_size, timeout_s=30) as agents:
        part = Part(cut(whole(), rank, world_size), number=rank)
        if rank > 0:
            agents.serve(part)
        else:
            found = {name: train_by_rpc(agents, part, **CASES[name]) for name in cases}
    assert threading.active_count() == threads
    with pytest.raises(CommError, match="joined RPC agents before"):
        join_rpc(store, rank=rank, world_size=world_size, timeout_s=30)
    return found


@pytest.mark.parametrize(
    "world_size",
    [
        1,
        2,
        pytest.param(3, marks=pytest.mark.slow),
        pytest.param(4, marks=pytest.mark.slow),
    ],
)
def test_equals_one_process(tmp_path, world_size):
    cases = CASES if world_size > 1 else ["sgd, microbatches"]
    with Team(world_size, folder=tmp_path) as team:
        found = team.call(train_all_cases, list(cases))[0]
    assert [process.exitcode for process in team.processes] == [0] * world_size
    for name in cases:
        case, (losses, weights) = CASES[name], found[name]
        expected_losses, expected = alone(
            case["spec"], tied=case.get("tied", False), clip_norm=case.get("clip_norm")
        )
        assert losses == pytest.approx(expected_losses, rel=0, abs=1e-10), name
        assert weights.keys() == expected.keys(), name
        for key, tensor in expected.items():
            torch.testing.assert_close(weights[key], tensor, rtol=0, atol=1e-10, msg=name)


def continue_and_repeat(rank, world_size):
    """Save, train on, load, train on again; dropout draws the same numbers both times."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.5)]
    module = nn.Sequential(*layers[:2]) if rank == 0 else nn.Sequential(*layers[2:])
    inputs, targets = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))
    with join_rpc(_get_default_store(), rank=rank, world_size=2, timeout_s=30) as agents:
        part = Part(module, number=rank)
        if rank > 0:
            agents.serve(part)
            return None
        model = RpcModel(agents, part, optimizer=partial(build_and_keep, ADAM))

        def load_all(saved):
            for ref, state in zip(model.parts, saved, strict=True):
                ask(ref, load, *state).wait()

        def train(seed):
            halves = [(inputs[:3], targets[:3]), (inputs[3:], targets[3:])]
            return model.train(halves, F.mse_loss, 0.5, seed=seed)

        train(0)
        saved = [ask(ref, save).wait() for ref in model.parts]
        first = [train(seed) for seed in (1, 2, 3)]
        predicted = model.predict(inputs)
        load_all(saved)
        assert not torch.equal(model.predict(inputs), predicted)
        assert train(4) != first[0]  # other masks
        load_all(saved)
        assert [train(seed) for seed in (1, 2, 3)] == first
        assert torch.equal(model.predict(inputs), predicted)
        assert not predicted.requires_grad
        with pytest.raises(UsageError, match="at least one microbatch"):
            model.train([], F.mse_loss, 1.0)
        with pytest.raises(UsageError, match="no part trains a parameter 'x'"):
            RpcModel(agents, part, optimizer=partial(build_optimizer, ADAM), tied=[("x", "0.bias")])
        return model.names


def test_state_can_be_saved_and_loaded(run_ranks):
    assert run_ranks(continue_and_repeat, 2)[0] == [["0.weight", "0.bias"]] * 2


class Slow(nn.Linear):
    def forward(self, inputs):
        time.sleep(0.15)
        return super().forward(inputs)


def trace(rank, world_size):
    spans = []
    with join_rpc(_get_default_store(), rank=rank, world_size=3, timeout_s=30) as agents:
        modules = [nn.Linear(4, 5), Slow(5, 6), nn.Linear(6, 2)]
        part = Part(modules[rank], number=rank, note=lambda *span: spans.append(span))
        if rank > 0:
            agents.serve(part)
            return spans
        traffic = []
        for overlap in (True, False):
            model = RpcModel(agents, part, optimizer=partial(build_optimizer, SGD), overlap=overlap)
            batch = [(torch.randn(8, 4), torch.randn(8, 2)) for _ in range(3)]
            model.train(batch, F.mse_loss, 1.0)
            others = [ask(ref, Part.take_traffic).wait() for ref in model.parts[1:]]
            traffic.append([model.take_traffic(), *others])
        assert traffic[0] == traffic[1]
        return spans, traffic[0]


def test_parts_overlap_and_what_they_send(run_ranks):
    (first, traffic), second, third = run_ranks(trace, 3)
    for spans in (first, second, third):  # in order, in both steps
        assert [span[1] for span in spans if span[0] == "forward"] == [0, 1, 2, 0, 1, 2]
        assert sorted(span[1] for span in spans if span[0] == "backward") == [0, 0, 1, 1, 2, 2]
        assert all(chunk == 0 and began <= ended for _, _, chunk, began, ended in spans)
    began = [span[3] for span in first if span[0] == "forward"]
    ended = [span[4] for span in second if span[0] == "forward"]
    assert began[2] < ended[0]  # the slow part still has the first microbatch
    assert began[4] > ended[3]  # now each waits for the one before
    # three microbatches of 8 samples, 4 bytes a number
    assert traffic == [
        Traffic(activation_bytes=3 * 8 * 5 * 4, gradient_bytes=3 * 8 * 2 * 4),
        Traffic(activation_bytes=3 * 8 * 6 * 4, gradient_bytes=3 * 8 * 5 * 4),
        Traffic(activation_bytes=3 * 8 * 2 * 4, gradient_bytes=3 * 8 * 6 * 4),
    ]


def listeners():
    """The addresses that this process listens on, as /proc/net writes them."""
    sockets = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            sockets.add(os.readlink(link))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.append(fields[1].partition(":")[0])
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        accepts = int(fields[3], 16) & 0x10000
        if accepts and f"socket:[{fields[6]}]" in sockets:
            found.append(fields[7])
    return found


def listen(rank, world_size):
    store = store_of(rank, "listen")
    before = listeners()
    with join_rpc(store, rank=rank, world_size=2, timeout_s=30) as agents:
        part = Part(nn.Linear(2, 2), number=rank)
        if rank == 0:
            model = RpcModel(agents, part, optimizer=partial(build_optimizer, SGD))
            model.train([(torch.randn(2, 2), torch.randn(2, 2))], F.mse_loss, 1.0)
        during = listeners()
        if rank > 0:
            agents.serve(part)
    return before, during, listeners()


def test_listens_on_the_loopback_alone(run_ranks):
    for before, during, after in run_ranks(listen, 2):
        assert len(during) == len(before) + 1
        assert set(during) == {"0100007F"}  # 127.0.0.1, as the kernel writes it
        assert after == before


ON_A_NODE = """
import torch
from functools import partial
from torch.nn.functional import mse_loss
from drumline.comm.store import serve_store
from drumline.parallel.rpc.agents import join_rpc
from drumline.parallel.rpc.leader import RpcModel
from drumline.parallel.rpc.parts import Part
from test_rpc import listeners

store = serve_store("10.77.0.1", 0, 10)
with join_rpc(store, rank=0, world_size=1, timeout_s=10, leader="10.77.0.1") as agents:
    part = Part(torch.nn.Linear(2, 2), number=0)
    model = RpcModel(agents, part, optimizer=partial(torch.optim.SGD, lr=0.1))
    model.train([(torch.randn(2, 2), torch.randn(2, 2))], mse_loss, 1.0)
    print(*listeners())
"""


@pytest.mark.slow
def test_listens_on_a_nodes_own_address():
    need_namespaces()
    network = (
        "ip link set lo up && ip link add n0 type veth peer name n1 && ip link set n0 up && "
        "ip link set n1 up && ip addr add 10.77.0.1/24 dev n0"
    )
    ended = subprocess.run(
        ["unshare", "-Urn", "sh", "-c", f'{network} && "$0" -c "$1"', sys.executable, ON_A_NODE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["01004D0A"] * 2  # 10.77.0.1: the store's, and the agent's


class Trap(nn.Linear):
    """Does something to its process in its fifth forward or backward."""

    def __init__(self, when, act):
        super().__init__(4, 4)
        self.when, self.act, self.count = when, act, 0

    def forward(self, inputs):
        outputs = super().forward(inputs)
        if self.when == "forward":
            self.spring()
        elif outputs.requires_grad:
            outputs.register_hook(self.spring)
        return outputs

    def spring(self, _=None):
        self.count += 1
        if self.count == 5:
            self.act()


def train_until_trapped(rank, world_size, victim, when, act, timeout_s):
    """Train over all ranks, one of which has a trap; return what ended it."""
    store = store_of(rank, "trap")
    module = Trap(when, act) if rank == victim else nn.Linear(4, 4)
    try:
        with join_rpc(store, rank=rank, world_size=world_size, timeout_s=timeout_s) as agents:
            part = Part(module, number=rank)
            if rank > 0:
                agents.serve(part)
                return None
            model = RpcModel(agents, part, optimizer=partial(build_optimizer, SGD))
            for _ in range(10):
                model.train([(torch.randn(2, 4), torch.randn(2, 4))] * 2, F.mse_loss, 1.0)
            return None
    except (CommError, LostPeerError, ValueError) as error:
        found = describe_error(error)
        return found["type"], str(error), found["consequence"], getattr(error, "ranks", None)


def signal_oneself(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("victim", "when", "number"),
    [
        (1, "forward", signal.SIGKILL),
        (2, "backward", signal.SIGKILL),
        pytest.param(1, "forward", signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param(2, "backward", signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param(0, "forward", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(0, "backward", signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_a_lost_rank_is_named_by_all_others(run_ranks, victim, when, number):
    trap = (victim, when, partial(signal_oneself, number))
    answers = run_ranks(train_until_trapped, 3, *trap, 2, lost=[victim], timeout_s=25)
    for rank in {0, 1, 2} - {victim}:
        kind, message, consequence, ranks = answers[rank]
        assert (kind, consequence, ranks) == ("LostPeerError", True, (victim,)), message
        assert f"rank {victim}" in message


def refuse():
    raise ValueError("this layer wants other tensors")


def test_an_error_inside_a_part_reaches_the_leader_and_ends_all(run_ranks):
    leader, *others = run_ranks(train_until_trapped, 3, 1, "forward", refuse, 20)
    assert leader[0] == "ValueError"
    assert "this layer wants other tensors" in leader[1]
    for kind, message, consequence, ranks in others:
        assert (kind, consequence, ranks) == ("LostPeerError", True, (0,))
        assert "rank 0 gave up: ValueError" in message


@pytest.mark.slow
def test_a_rank_that_is_only_slow_is_told_from_a_lost_one(run_ranks):
    doze = partial(time.sleep, 4)
    leader, other = run_ranks(train_until_trapped, 2, 1, "forward", doze, 1)
    assert leader[:2] == (
        "CommError",
        "a call took longer than timeout_s = 1 s, though all ranks live; raise timeout_s, or take "
        "smaller batches",
    )
    assert "rank 0 gave up: CommError: a call took longer" in other[1]


def stay_away(rank, world_size):
    if rank == 1:
        return None
    with pytest.raises(PeerError) as caught:
        join_rpc(_get_default_store(), rank=rank, world_size=2, timeout_s=0.5)
    return caught.value.message


def test_who_does_not_come_is_named(run_ranks):
    message = run_ranks(stay_away, 2)[0]
    assert message.startswith("rank 1 did not join the RPC agents within 0.5 s")
