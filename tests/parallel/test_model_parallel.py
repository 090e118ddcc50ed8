"""`Pipeline` and `TensorParallel` in a plain training loop: the weights of one process."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from drumline.core.errors import UsageError
from drumline.parallel import Pipeline, TensorParallel

STEPS, BATCH, CLIP = 4, 12, 0.05


class Tied(nn.Module):
    """An embedding that is also the head: the first stage and the last one share a weight."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 8)
        self.register_buffer("shift", torch.full((8,), 0.1))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        x = torch.relu(self.first(self.tokens(x)))
        return self.head(self.second(x) + self.shift)


def build(seed=3):
    torch.manual_seed(seed)
    return Tied().double()


def batches():
    torch.manual_seed(7)
    return [(torch.randint(11, (BATCH,)), torch.randint(11, (BATCH,))) for _ in range(STEPS)]


def train_alone():
    model, losses = build(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def own_share(x, y, rank, world_size, parts):
    copies = world_size // parts
    return x.chunk(copies)[rank // parts], y.chunk(copies)[rank // parts]


def train_pipeline(rank, world_size, options):
    model = Pipeline(build(seed=3 + rank), 2, **options)  # rank 0's weights count
    losses = []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for x, y in batches():
        x, y = own_share(x, y, rank, world_size, 2)
        optimizer.zero_grad()
        losses.append(model.step(x, y, F.cross_entropy))
        model.clip_grad_norm_(CLIP)
        optimizer.step()
    whole = model.full_state_dict()
    again = Pipeline(build(seed=9), 2, **options)
    assert again.load_state_dict(whole) == ([], [])  # other stages' tensors are not unexpected
    x, _ = batches()[0]
    outputs = [each.eval()(x) for each in (model, again)]
    assert model.is_last == (outputs[0] is not None)
    if outputs[0] is not None:
        assert torch.equal(*outputs)
    assert set(model.state_dict()) < set(whole)
    return losses, whole


def train_shares(rank, world_size):
    model = TensorParallel(build(), ways=2)
    losses = []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for x, y in batches():
        x, y = own_share(x, y, rank, world_size, 2)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        model.finish()
        model.clip_grad_norm_(CLIP)
        optimizer.step()
        losses.append(loss.item())
    whole = model.full_state_dict()
    again = TensorParallel(build(seed=9), ways=2)
    again.load_state_dict(whole)
    own, other = model.state_dict(), again.state_dict()
    assert all(torch.equal(own[name], other[name]) for name in own)
    assert own["first.weight"].shape == (8, 8)
    return losses, whole


def check_same(found, parts):
    losses, weights = train_alone()
    copies = len(found) // parts
    for number, loss in enumerate(losses):  # each copy has its own samples
        mean = sum(found[copy * parts][0][number] for copy in range(copies)) / copies
        assert mean == pytest.approx(loss, rel=1e-9)
    for _, whole in found:
        assert whole.keys() == weights.keys()
        for name, tensor in weights.items():
            torch.testing.assert_close(whole[name], tensor, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {"microbatches": 5}),
        (2, {"schedule": "gpipe", "balance": [1, 3], "recompute": True}),
        (2, {"schedule": "interleaved", "microbatches": 4}),
        (4, {"microbatches": 3}),
    ],
)
def test_a_pipeline_trains_as_one_process_does(run_ranks, ranks, options):
    check_same(run_ranks(train_pipeline, ranks, options), 2)


@pytest.mark.parametrize("ranks", [2, 4])
def test_shares_train_as_one_process_does(run_ranks, ranks):
    check_same(run_ranks(train_shares, ranks), 2)


def refusals(rank, world_size):
    found = []
    for make in (
        lambda: Pipeline(build(), 3),
        lambda: TensorParallel(build(), 3),
        lambda: Pipeline(build(), 2, balance=[1, 1]),
        lambda: Pipeline(build(), 2, schedule="1f2b"),
        lambda: Pipeline(build(), 2, microbatches=0),
        lambda: TensorParallel(build(), 2).load_state_dict({"first.weight": torch.zeros(1)}),
        lambda: TensorParallel(build(), 2).load_state_dict({"frist.weight": torch.zeros(1)}),
        lambda: TensorParallel(build(), 2).load_state_dict({}, assign=True),
    ):
        with pytest.raises(UsageError) as raised:
            make()
        found.append(str(raised.value))
    model = TensorParallel(build(), 2)
    shift = torch.ones(8, dtype=torch.float64)
    missing, unexpected = model.load_state_dict({"x": shift, "shift": shift}, strict=False)
    assert unexpected == ["x"]
    assert set(missing) == set(model.state_dict()) - {"shift"}
    assert torch.equal(model.state_dict()["shift"], shift)
    return found


def test_what_cannot_be_is_refused_with_a_way_out(run_ranks):
    three, ways, balance, schedule, microbatches, shape, names, assign = run_ranks(refusals, 2)[0]
    assert "2 ranks cannot be shared out among copies of a model in 3 parts" in three
    assert "set stages to a divisor of 2" in three
    assert "set ways to a divisor of 2" in ways
    assert "adds up to 2" in balance
    assert "1f1b" in schedule
    assert microbatches == "microbatches=0: give a whole number, 1 or more"
    assert "a shape of [1] for first.weight, which is [8, 8] here; give what state_dict()" in shape
    assert "the state lacks shift, tokens.weight, " in names
    assert "has frist.weight that the model has not; give what" in names
    assert "assign=True would replace" in assign


def test_without_a_group_they_say_so():
    with pytest.raises(UsageError, match="Pipeline needs a process group"):
        Pipeline(build(), 2)
