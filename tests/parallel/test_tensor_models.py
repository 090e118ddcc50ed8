"""Split models against one process: plans, 20 steps by both engines, states, clipping."""

import copy
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from drumline.comm import Meter
from drumline.core.errors import UsageError
from drumline.models import build_model
from drumline.optim import build_optimizer
from drumline.parallel import DataParallel
from drumline.parallel.axes import Axes, build_axes
from drumline.parallel.shard_spec import clip_split_gradients, describe_shard
from drumline.parallel.tensor.apply import apply_tensor_parallel
from drumline.parallel.tensor.exchange import shares_of
from drumline.parallel.tensor.plan import How, LayerSplit, build_plan
from drumline.spec.learning import LossSpec, OptimizerSpec
from drumline.spec.mesh import Mesh
from drumline.spec.parts import ModelSpec
from drumline.trainer.checkpoint.snapshot import gather_snapshot, load_model
from drumline.trainer.loss import build_loss

STEPS = 20
TEXT = 11  # characters
SPECS = {
    "mlp": ModelSpec(name="mlp", hidden1=7, hidden2=5),
    "cnn": ModelSpec(name="cnn", dropout=0),
    "lenet": ModelSpec(name="lenet"),
    "linear": ModelSpec(name="linear"),
    "gpt-mini": ModelSpec(name="gpt-mini", width=12, layers=2, context=6),
    "untied": ModelSpec(name="gpt-mini", width=12, layers=1, context=6, tied=False),
}


class Unknown(nn.Module):
    """A model of the user's own: convolutions that follow each other, a norm, a shared layer."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 5, 3, stride=3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 1, 3, stride=3)
        )
        self.again = nn.Linear(9, 9)
        self.same = self.again
        self.tied = nn.Linear(9, 9)
        self.tied.weight = nn.Parameter(self.again.weight.detach().clone())
        self.also_tied = nn.Linear(9, 9)
        self.also_tied.weight = self.tied.weight
        self.last = nn.Linear(9, 10, bias=False)

    def forward(self, x):
        x = self.features(x).flatten(1)
        x = self.same(torch.relu(self.again(x)))
        return self.last(self.also_tied(torch.relu(self.tied(x))))


def build(name, dtype=torch.float64):
    if name == "unknown":
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return Unknown().to(dtype)
    classes = TEXT if "context" in SPECS[name].options else 10
    return build_model(SPECS[name], classes=classes, seed=1, dtype=dtype)


def batches(name, dtype):
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        if name in ("gpt-mini", "untied"):
            text = torch.randint(TEXT, (3, 7), generator=generator)
            yield text[:, :-1], text[:, 1:]
        else:
            many = 2 if name == "cnn" else 4  # cnn takes the time of all others together
            x = torch.randn(many, 1, 28, 28, generator=generator, dtype=torch.float64)
            yield x.to(dtype), torch.randint(10, (many,), generator=generator)


def train(model, optimizer, name, dtype, clip, seed=None):
    """Train; return the losses, the clipped norms, and the gradients of the first step."""
    losses, norms, first = [], [], {}
    for step, (x, y) in enumerate(batches(name, dtype)):
        if seed is not None:
            torch.manual_seed(seed + step)
        optimizer.zero_grad()
        loss = build_loss(LossSpec()).summed(model(x), y) / y.numel()
        loss.backward()
        first = first or {name: p.grad.clone() for name, p in model.named_parameters()}
        if clip is not None:
            norms.append(float(clip(model)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, first


def clip_alone(model):
    return nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def all_ranks():
    return build_axes(Mesh(tensor=dist.get_world_size()), timeout_s=60)


def hold(split, axes=None):
    return describe_shard(split, axes or all_ranks())


def clip_split(model):
    return clip_split_gradients(model, 0.5, all_ranks(), hold(model).counts)


def gather(split, tensors, axes=None):
    """Put tensors together that are split as the parameters of these names are."""
    holding = hold(split, axes)
    return {name: holding.gather(name, tensor) for name, tensor in tensors.items()}


def gather_state(split, axes=None):
    return gather(split, split.state_dict(), axes)


@torch.no_grad()
def load_state(split, whole, axes=None):
    load_model(split, hold(split, axes), whole)


def worst(ours, expected):
    assert list(ours) == list(expected)
    assert all(ours[name].shape == expected[name].shape for name in expected)
    return max((ours[name] - expected[name]).abs().max().item() for name in expected)


def replicas_agree(model):
    """Tell whether what is not split has the same bits on every rank."""
    shares = shares_of(model)
    flat = torch.cat(
        [t.double().reshape(-1) for name, t in model.state_dict().items() if name not in shares]
        + [torch.zeros(1)]
    )
    everybody = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, flat)
    return all(torch.equal(other, flat) for other in everybody)


def compare_training(case, meter=None):
    """Train alone and split; the largest difference of anything, relative to what was asked."""
    name, engine, optimizer, dtype = case
    clipped = optimizer.name == "adam"
    alone = build(name, dtype)
    split = copy.deepcopy(alone)
    parameters = sum(p.numel() for p in alone.parameters())
    losses, norms, first = train(
        alone, build_optimizer(optimizer, alone.parameters()), name, dtype,
        clip_alone if clipped else None,
    )  # fmt: skip
    assert apply_tensor_parallel(split, engine=engine, meter=meter) is split
    assert all(type(p) is nn.Parameter for p in split.parameters())
    assert sum(p.numel() for p in split.parameters()) < parameters
    got_losses, got_norms, got_first = train(
        split, build_optimizer(optimizer, split.parameters()), name, dtype,
        clip_split if clipped else None,
    )  # fmt: skip
    assert losses[0] != losses[-1]
    assert replicas_agree(split), f"{case}: replicated parameters drifted apart"
    exact = 1e-10 if dtype is torch.float64 else 1e-5
    for what, difference in {
        "losses": max(abs(a - b) for a, b in zip(losses, got_losses, strict=True)),
        "norms": max((abs(a - b) for a, b in zip(norms, got_norms, strict=True)), default=0),
        "first gradients": worst(gather(split, got_first), first),
        "weights": worst(gather_state(split), alone.state_dict()),
    }.items():
        assert difference <= exact, f"{case}: {what} differ by {difference}"


SGD = OptimizerSpec(name="sgd", lr=0.05, momentum=0.9)
ADAM = OptimizerSpec(name="adam", lr=0.003)
OF_TORCH = {"engine": "torch"}


def cases(world_size, engine):
    """Name what to train: all of it on 3 ranks, on 2 and 4 what odd shares could break."""
    f64, f32 = torch.float64, torch.float32
    if engine == "drumline":
        found = [(name, rule, f64) for name in ("mlp", "cnn", "gpt-mini") for rule in (SGD, ADAM)]
        if world_size == 3:
            found += [(name, SGD, f64) for name in ("lenet", "linear", "untied", "unknown")]
            found += [(name, SGD, f32) for name in ("mlp", "cnn", "gpt-mini")]
    else:
        found = [("mlp", SGD, f64), ("mlp", ADAM, f64), ("gpt-mini", ADAM, f64)]
        if world_size == 3:
            found += [(name, SGD, f64) for name in ("cnn", "lenet", "untied", "unknown")]
            found += [("gpt-mini", SGD, f32)]
            found += [("mlp", rule.model_copy(update=OF_TORCH), f64) for rule in (SGD, ADAM)]
    return [(name, engine, optimizer, dtype) for name, optimizer, dtype in found]


def train_all(rank, world_size, engine):
    for case in cases(world_size, engine):
        compare_training(case)


@pytest.mark.parametrize("engine", ["drumline", "torch"])
@pytest.mark.parametrize(
    "world_size",
    [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)],
)
def test_training_equals_one_process(run_ranks, world_size, engine):
    run_ranks(train_all, world_size, engine, timeout_s=110)


def train_over_shared_memory(rank, world_size):
    meter = Meter()
    compare_training(("mlp", "drumline", SGD, torch.float64), meter)
    spans = meter.drain().spans
    compare_training(("mlp", "torch", SGD, torch.float64))
    return [(span.op, span.nbytes) for span in spans]


def test_shared_memory_and_what_a_step_exchanges(run_ranks):
    step = [
        ("tensor_all_reduce", 4 * 5 * 8),  # fc2's output
        ("tensor_all_gather", 4 * 10 * 8),  # the scores
        ("tensor_all_reduce", 4 * 5 * 8),  # backward: fc3's input; fc1's needs no gradient
    ]
    assert run_ranks(train_over_shared_memory, 2, backend="shm") == [step * STEPS] * 2


def move_states(rank, world_size):
    """From one rank to three, to two, and back to one: the same bits in the same names."""
    pair, _ = dist.new_group([0, 1]), dist.new_group([2])
    answers = []
    for name in ("mlp", "cnn", "gpt-mini", "unknown"):
        whole = build(name).state_dict()
        for engine in ("drumline", "torch"):
            three = apply_tensor_parallel(build(name), engine=engine)
            with torch.no_grad():
                for parameter in three.parameters():
                    parameter.zero_()
            load_state(three, whole)
            assert worst(gather_state(three), whole) == 0
            taken = gather_snapshot(three, torch.optim.SGD(three.parameters()), hold(three)).model
            assert worst(taken, whole if rank == 0 else three.state_dict()) == 0  # who writes keeps
            if rank < 2:
                place = {"replica": 0, "stage": 0, "share": rank}
                axes = Axes(mesh=Mesh(tensor=2), **place, tensor=pair, model=pair)
                two = apply_tensor_parallel(build(name), pair, engine=engine)
                load_state(two, {key: tensor + 1 for key, tensor in whole.items()}, axes)
                load_state(two, gather_state(two, axes), axes)
                one = build(name)
                one.load_state_dict(gather_state(two, axes))
                moved = {key: tensor - 1 for key, tensor in one.state_dict().items()}
                answers.append(worst(moved, whole))
                # an optimizer's state, named after the parameters
                momenta = {key: p.detach() * 2 for key, p in two.named_parameters()}
                gathered = gather(two, momenta, axes)
                holding = hold(two, axes)
                cut = {key: holding.cut(key, tensor) for key, tensor in gathered.items()}
                assert worst(cut, momenta) == 0
    said = []
    for broken in (
        {},
        {**whole, "extra": torch.zeros(1)},
        {**whole, "last.weight": torch.zeros(10, 3)},
        {**whole, "last.weight": torch.zeros(20, 9)},
    ):
        with pytest.raises(ValueError, match=r"has no|there") as caught:
            load_state(three, broken)
        said.append(str(caught.value))
    return max(answers, default=0), said


def test_states_move_between_splits(run_ranks):
    for difference, said in run_ranks(move_states, 3, timeout_s=110):
        assert difference <= 1e-12
        assert said == [
            "it has no again.bias",
            "the model has no extra",
            "last.weight is [10, 3] there, [10, 9] here",
            "last.weight is [20, 9] there, [10, 9] here",
        ]


def other_matters(rank, world_size):
    # Dropout, on: the masks are those of one process, on shares and on what is replicated.
    # 64 channels over 3 ranks are unequal shares, so a mask drawn for the share would show.
    spec = ModelSpec(name="cnn")
    alone = build_model(spec, classes=10, seed=1, dtype=torch.float64)
    split = apply_tensor_parallel(copy.deepcopy(alone))
    results = [
        train(m, build_optimizer(SGD, m.parameters()), "cnn", torch.float64, None, seed=100)[0]
        for m in (alone, split)
    ]
    assert max(abs(a - b) for a, b in zip(*results, strict=True)) <= 1e-10
    # Evaluation: no gradient, no dropout; the mode of a model is kept when it is split.
    x, _ = next(batches("cnn", torch.float64))
    with torch.no_grad():
        assert (alone.eval()(x) - split.eval()(x)).abs().max() <= 1e-10
    assert not apply_tensor_parallel(build("mlp").eval()).fc1.training
    # Weights are the first rank's, whatever the others drew.
    torch.manual_seed(rank)
    odd = gather_state(apply_tensor_parallel(nn.Sequential(nn.Linear(3, 7))))
    torch.manual_seed(0)
    assert torch.equal(odd["0.weight"], nn.Linear(3, 7).weight)
    # What comes after a layer may change its output in place.
    for engine in ("drumline", "torch"):
        hasty = nn.Sequential(nn.Linear(3, 7), nn.ReLU(inplace=True), nn.Linear(7, 5))
        split_hasty = apply_tensor_parallel(copy.deepcopy(hasty), engine=engine)
        hasty.load_state_dict(gather_state(split_hasty))
        for model in (hasty, split_hasty):
            model(torch.ones(2, 3)).sum().backward()
        grads = {name: p.grad for name, p in split_hasty.named_parameters()}
        expected = {name: p.grad for name, p in hasty.named_parameters()}
        assert worst(gather(split_hasty, grads), expected) <= 1e-6
    # A model that is one layer is replaced; frozen stays frozen; without gradients the norm is 0.
    lone = apply_tensor_parallel(nn.Linear(3, 7).requires_grad_(False))
    assert list(gather_state(lone)) == ["weight", "bias"]
    assert [p.requires_grad for p in lone.parameters()] == [False, False]
    assert clip_split(lone) == 0
    # A gradient that is no number makes all of them so, on the ranks without it, too.
    poisoned = apply_tensor_parallel(nn.Linear(3, 7))
    poisoned(torch.full((1, 3), float("nan") if rank == 0 else 1.0)).sum().backward()
    assert clip_split(poisoned).isnan()
    assert all(p.grad.isnan().all() for p in poisoned.parameters())
    # One rank: nothing to split.
    single = build("mlp")
    groups = [dist.new_group([r]) for r in range(world_size)]
    assert type(apply_tensor_parallel(single, groups[rank]).fc1) is nn.Linear
    # Data parallelism on top: it sees plain parameters.
    DataParallel(split, group=groups[rank])
    refused = []
    for model in (
        split,
        nn.Sequential(nn.Linear(3, 2), nn.Conv2d(1, 2, 3)),
        build_model(ModelSpec(name="gpt-mini", heads=2), classes=3, seed=0),
    ):
        with pytest.raises(UsageError) as caught:
            apply_tensor_parallel(model)
        refused.append(str(caught.value))
    for engine in ("torch", "toch"):
        with pytest.raises(UsageError) as caught:
            apply_tensor_parallel(nn.Sequential(nn.Conv2d(1, 4, 3)), engine=engine)
        refused.append(str(caught.value))
    return refused


def test_other_matters(run_ranks):
    for said in run_ranks(other_matters, 3):
        assert said[0] == "the model is split already; give apply_tensor_parallel a whole one"
        assert said[1] == (
            "no layer of Sequential can be split over 3 ranks: a linear layer or convolution with "
            "at least 3 outputs is needed, not tied and without hooks; use fewer ranks, or another "
            "kind of parallelism"
        )
        assert said[2] == (
            "attention has 2 heads, which cannot be split over 3 ranks: each needs at least one; "
            "split over at most 2 ranks, or build the model with heads=4"
        )
        assert said[3].startswith("engine torch splits linear layers, and Sequential has none")
        assert said[4] == "no engine 'toch' among drumline, torch; did you mean 'torch'?"


GATHERED = LayerSplit(how=How.GATHERED)


def pair(first, second, blocks):
    return {
        first: LayerSplit(how=How.COLUMN, blocks=blocks),
        second: LayerSplit(how=How.ROW, blocks=blocks),
    }


def test_plans_of_the_built_in_models():
    assert build_plan(build("mlp"), 4) == {**pair("fc1", "fc2", 7), "fc3": GATHERED}
    assert build_plan(build("linear"), 4) == {"fc": GATHERED}
    assert build_plan(build("lenet"), 3) == {
        **pair("c3", "c5", 16),
        **pair("f6", "output", 84),
    }
    assert build_plan(build("cnn"), 3) == {
        **pair("conv2", "fc1", 64),
        "dropout1": LayerSplit(how=How.DROPOUT, blocks=64),
        "fc2": GATHERED,
    }
    heads = LayerSplit(how=How.HEADS, blocks=4)
    blocks = {
        "blocks.0.attention": heads,
        **pair("blocks.0.fc1", "blocks.0.fc2", 48),
        "blocks.1.attention": heads,
        **pair("blocks.1.fc1", "blocks.1.fc2", 48),
    }
    assert build_plan(build("gpt-mini"), 3) == blocks
    assert build_plan(build("untied"), 3)["head"] == GATHERED
    # a part of the model, as a pipeline's stage has it
    assert build_plan(nn.Sequential(build("gpt-mini").blocks[0]), 3)["0.attention"] == heads


def test_what_is_too_small_stays_whole():
    assert build_plan(build("mlp"), 8) == {"fc3": GATHERED}  # 7 and 5 hidden features
    assert build_plan(build("mlp"), 11) == {}
    assert build_plan(build("cnn"), 65) == {"fc1": GATHERED}


def test_plans_of_other_models_leave_alone_what_somebody_relies_on():
    assert build_plan(Unknown(), 3) == {"features.0": GATHERED, "again": GATHERED, "last": GATHERED}
    # a class derived from a known one may do anything
    derived = type("Mine", (type(build("mlp")),), {})
    assert build_plan(derived(classes=10, hidden1=7), 2) == dict.fromkeys(
        ("fc1", "fc2", "fc3"), GATHERED
    )
    # so may a known one in which somebody has put something else
    changed = build("mlp")
    changed.fc2 = type("Adapter", (nn.Linear,), {})(7, 5)
    assert build_plan(changed, 2) == {"fc1": GATHERED, "fc3": GATHERED}
    hooked = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    hooked[0].register_forward_hook(lambda *_: None)
    assert build_plan(hooked, 2) == {"1": GATHERED}
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4))
    assert build_plan(normed, 2) == {"1": GATHERED}
    # torch's own composites use their layers' weights directly
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    assert build_plan(nn.Sequential(layer, nn.Linear(8, 4)), 2) == {"1": GATHERED}


PROGRAM = """
import os, sys
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
import torch, torch.distributed as dist
from drumline.comm.store import serve_store
from drumline.optim import SGD
from drumline.parallel.dynamo import postpone_dynamo
from drumline.spec.mesh import Mesh
from drumline.parallel.axes import build_axes
from drumline.parallel.shard_spec import clip_split_gradients
from drumline.parallel.tensor.exchange import Exchange
from drumline.parallel.tensor.layers import ColumnLinear
from drumline.parallel.shard_spec import describe_shard
dist.init_process_group("gloo", store=serve_store("127.0.0.1", 0, 10), rank=0, world_size=1)
postpone_dynamo()
model = torch.nn.Sequential(ColumnLinear(torch.nn.Linear(3, 4), Exchange()))
optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
model(torch.ones(1, 3)).sum().backward()
axes = build_axes(Mesh(), timeout_s=10)
holding = describe_shard(model, axes)
clip_split_gradients(model, 1.0, axes, holding.counts)
optimizer.step()
holding.gather("0.weight", model[0].weight)
print([name for name in ("torch._dynamo", "torch.distributed.tensor") if name in sys.modules])
os._exit(0)
"""


def test_our_own_engine_imports_neither_the_compiler_nor_dtensor():
    done = subprocess.run(
        [sys.executable, "-uc", PROGRAM], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
