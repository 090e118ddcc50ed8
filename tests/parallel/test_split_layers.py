"""Models cut into layers, and stages that compute, bit for bit, what the whole model does."""

from __future__ import annotations

import copy
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.core.errors import UsageError
from drumline.models import build_model
from drumline.models.partial import build_outline, build_partial
from drumline.parallel.split.layers import Layer, find_layers
from drumline.parallel.split.stage import build_stage
from drumline.parallel.tied import tied_names
from drumline.spec.parts import ModelSpec

BUILT_IN = {
    "linear": ["fc"],
    "mlp": ["fc1", "fc2", "fc3"],
    "lenet": ["c1", "c3", "c5", "f6", "output"],
    "cnn": ["conv1", "conv2", "fc1", "fc2"],
    "gpt-mini": ["tokens", "positions", "blocks.0", "blocks.1", "norm", "head"],
}
WIDTH = 6


def build(name: str, **options: Any) -> nn.Module:
    return build_model(ModelSpec(name=name, **options), classes=10, seed=0)


def batch_for(name: str) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    if name == "gpt-mini":
        return torch.randint(10, (3, 20), generator=draw)
    return torch.rand(3, 1, 28, 28, generator=draw)


def cut_into_single_layers(model: nn.Module) -> tuple[list[Layer], list[nn.Module]]:
    layers = find_layers(model)
    return layers, [build_stage(model, layers, n, n + 1) for n in range(len(layers))]


def check_equal(model: nn.Module, batch: Tensor, cuts: list[int] | None = None) -> list[Layer]:
    """Compare stages with the whole model: output, gradients, buffers, names; return the layers."""
    layers = find_layers(model)
    cuts = cuts or list(range(len(layers) + 1))
    whole = copy.deepcopy(model)
    torch.manual_seed(0)
    expected = whole(batch)
    expected.pow(2).sum().backward()

    part = copy.deepcopy(model)
    stages = [build_stage(part, layers, a, b) for a, b in pairwise(cuts)]
    torch.manual_seed(0)
    inputs, outputs = [], []
    x = batch
    for stage in stages:
        x = x.detach().requires_grad_(x.is_floating_point())
        inputs.append(x)
        x = stage(x)
        outputs.append(x)
    assert torch.equal(x, expected)
    gradient = torch.autograd.grad(x.pow(2).sum(), x, retain_graph=True)[0]
    for given, out in zip(reversed(inputs), reversed(outputs), strict=True):
        out.backward(gradient)
        gradient = given.grad
    check_state(whole, stages)
    return layers


def check_state(whole: nn.Module, stages: list[nn.Module]) -> None:
    gradients: dict[str, Tensor] = {}
    state: dict[str, Tensor] = {}
    for stage in stages:
        for name, parameter in stage.named_parameters(remove_duplicate=False):
            assert name not in gradients, "a parameter's name is in one stage only"
            gradients[name] = parameter.grad
        state |= stage.state_dict()
    tied = {name: group for group in tied_names(whole) for name in group}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        found = {id(g): g for g in (gradients[n] for n in tied.get(name, (name,)))}
        summed = sum(g for g in found.values() if g is not None)
        if parameter.grad is None:
            assert gradients[name] is None
        else:
            assert torch.equal(torch.as_tensor(summed), parameter.grad), name
    assert state.keys() == whole.state_dict().keys()
    for name, values in whole.state_dict().items():
        assert torch.equal(state[name], values), name


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("training", [True, False])
def test_built_in_models_are_cut_as_finely_as_they_can_be(name: str, training: bool) -> None:
    options = {"dropout": 0.3, "width": 16} if name == "gpt-mini" else {}
    model = build(name, **options).train(training)
    layers = check_equal(model, batch_for(name))
    assert [layer.name for layer in layers] == BUILT_IN[name]
    check_equal(model, batch_for(name), cuts=sorted({0, 1, len(layers)}))


def test_the_layers_of_gpt_have_these_parameters() -> None:
    layers = find_layers(build("gpt-mini"))
    assert [layer.parameters for layer in (layers[0], layers[1], layers[4], layers[5])] == [
        ("tokens.weight",),
        ("positions.weight",),
        ("norm.weight", "norm.bias"),
        ("head.weight",),
    ]
    assert all(name.startswith("blocks.1.") for name in layers[3].parameters)
    assert len(layers[3].parameters) == 12
    assert layers == find_layers(build("gpt-mini")), "layers are values"


def test_tied_parameters_are_copies_where_stages_part_them() -> None:
    model = build("gpt-mini")
    assert tied_names(model) == [("tokens.weight", "head.weight")]
    assert tied_names(build("gpt-mini", tied=False)) == []
    layers = find_layers(model)
    first, last = build_stage(model, layers, 0, 3), build_stage(model, layers, 3, 6)
    assert first.tokens.weight is model.tokens.weight
    assert last.head.weight is not model.tokens.weight
    assert last.norm.weight is model.norm.weight
    assert torch.equal(last.head.weight, model.head.weight)
    assert model.head.weight is model.tokens.weight, "the model stays as it is"
    whole = build_stage(model, layers, 0, 6)
    assert whole.head.weight is whole.tokens.weight


def test_stages_of_models_that_are_there_in_parts() -> None:
    """Layers are found on the outline; each process builds what its stage has, and no more."""
    spec = ModelSpec(name="gpt-mini")
    options: dict[str, Any] = {"classes": 10, "seed": 0, "dtype": torch.float64}
    outline = build_outline(spec, **options)
    layers = find_layers(outline)
    x = batch_for("gpt-mini")
    for first, last in [(0, 2), (2, 5), (5, 6)]:
        names = {name for layer in layers[first:last] for name in layer.parameters}
        part = build_partial(spec, **options, wanted=names.__contains__)
        stage = build_stage(part, layers, first, last)
        assert set(dict(stage.named_parameters())) == names
        x = stage(x)
    whole = build_model(spec, **options)
    assert torch.equal(x, whole(batch_for("gpt-mini")))


# Models of the user's own


class Net(nn.Module):
    """Has what the forwards below need."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)
        self.c = nn.Linear(WIDTH, WIDTH)
        self.act = nn.ReLU()
        self.many = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.inner = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Tanh())
        )
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("mask", torch.rand(WIDTH))
        self.register_buffer("hint", torch.rand(WIDTH), persistent=False)
        self.plain = torch.rand(WIDTH)


class InsideOut(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.inner[:2](x)
        x = self.act(self.inner[2:](x))
        for layer in reversed(self.many):
            x = F.dropout(layer(x), 0.5, self.training)
        return self.act(self.a(x))


class RootState(Net):
    def forward(self, x: Tensor, gain: float | None = None) -> Tensor:
        x = self.a(x.view(x.shape[0], -1)) * self.mask + self.plain
        x = self.b(x) * self.mask * torch.tensor(2.0) + self.hint
        x = x * self.scale if gain is None else x * gain
        b, width = x.shape
        return self.c(x.reshape(b, width))


class SkipInTheMiddle(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = x + self.c(self.act(self.b(x)))
        x = self.many[0](x)
        return self.many[1](x) + x.mean()


class SameTwice(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.act(self.a(x)))
        return self.c(self.act(self.b(self.act(x))))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (InsideOut, ["inner.0", "inner.2.0", "many.2", "many.1", "many.0", "a"]),
        (RootState, ["a", "b", "scale", "c"]),
        (SkipInTheMiddle, ["a", "b…c", "many.0", "many.1"]),
        (SameTwice, ["a", "b", "c"]),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_models_of_the_users_own(kind: type[Net], names: list[str], training: bool) -> None:
    before = torch.get_rng_state()
    layers = check_equal(kind().train(training), torch.rand(4, WIDTH))
    assert [layer.name for layer in layers] == names
    everything = {name for layer in layers for name in layer.parameters}
    assert everything == set(dict(kind().named_parameters()))
    torch.set_rng_state(before)


def test_tracing_changes_neither_model_nor_random_state() -> None:
    class Remembers(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.last = x
            return self.b(self.a(x) + torch.ones(WIDTH))

    model = Remembers()
    keys, state = set(vars(model)), torch.get_rng_state()
    find_layers(model)
    assert set(vars(model)) == keys
    assert torch.equal(torch.get_rng_state(), state)


def test_a_sequential_is_cut_between_its_members() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 2), nn.Softmax(1))
    layers = check_equal(model, torch.rand(2, 3, 3))
    assert [(layer.name, layer.parameters) for layer in layers] == [
        ("1", ("1.weight", "1.bias")),
        ("3", ("3.weight", "3.bias")),
    ]


def test_what_has_no_parameters_joins_the_layer_before() -> None:
    _, stages = cut_into_single_layers(build("cnn"))
    assert stages[1](torch.rand(2, 32, 14, 14)).shape == (2, 64 * 7 * 7), "flatten is in it"
    assert hasattr(stages[1], "dropout1")
    assert not hasattr(stages[2], "dropout1")


def test_stages_follow_train_and_eval_each_on_its_own() -> None:
    model = InsideOut()
    layers = find_layers(model)
    stage = build_stage(model, layers, 2, 4)
    x = torch.rand(50, WIDTH)
    assert (stage(x) == 0).any()
    stage.eval()
    assert torch.equal(stage(x), model.many[1](model.many[2](x)))
    stage.train()
    assert (stage(x) == 0).any()
    inner = build_stage(model, layers, 0, 2)
    inner.eval()
    assert not model.inner[2][0].training, "submodules are the model's own"


def test_a_stage_can_be_copied_and_moved() -> None:
    model = RootState()
    layers = find_layers(model)
    stage = copy.deepcopy(build_stage(model, layers, 0, 3)).double()
    assert stage.mask.dtype == stage.scale.dtype == torch.float64
    assert model.mask.dtype == torch.float32
    assert "hint" not in stage.state_dict()
    assert "hint" in dict(stage.named_buffers())


def test_a_name_with_the_same_tensor_goes_with_it() -> None:
    class TwoNames(Net):
        def __init__(self) -> None:
            super().__init__()
            self.alias = self.a
            self.c.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.act(self.b(self.a(x))))

    model = TwoNames()
    layers = check_equal(model, torch.rand(2, WIDTH))
    assert layers[0].parameters == ("a.weight", "a.bias", "alias.weight", "alias.bias")
    assert layers[2].parameters[:3] == ("scale", "c.weight", "c.bias"), "and all that is not used"
    stage = build_stage(model, layers, 0, 2)
    assert stage.alias.weight is stage.a.weight


def test_looking_does_not_load_the_compiler() -> None:
    code = (
        "import sys; from torch import nn; from drumline.parallel.split.layers import find_layers;"
        "find_layers(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)));"
        "print('torch._dynamo' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == "False"


# What cannot be cut


class Asks(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        if x.sum() > 0:
            x = -x
        return self.b(x)


class Counts(Net):
    def forward(self, x: Tensor) -> Tensor:
        half = int(x.shape[0]) // 2
        return self.a(x[:half])


class Loops(Net):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.shape[0]):
            x = self.a(x)
        return x


class TwoInputs(Net):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.a(left) + self.b(right)


class Answers(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


class LongSkip(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x))) + x


class Overlapping(Net):
    def forward(self, x: Tensor) -> Tensor:
        double = x * 2
        early = self.b(self.a(x))
        late = self.c(early) + double
        return self.many[0](late) * early


class TiedByHand(Net):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.b(self.a(x)), self.a.weight)


class WithoutGradients(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.a(x)
        return self.b(x)


class Noisy(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) + torch.randn(WIDTH))


class OnlyInTraining(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        if self.training:
            x = self.act(x)
        return self.b(x)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            Asks,
            r"cannot cut Asks into stages: test_split_layers.py:\d+: `if x.sum\(\) > 0:` asks for "
            r"values of a tensor, .*; make the model an nn.Sequential, or put that operation into "
            r"a submodule of its own, which stays whole",
        ),
        (Counts, r"`half = int\(x.shape\[0\]\) // 2` cannot be followed without data \(TypeError"),
        (Loops, r"`for _ in range\(x.shape\[0\]\):` cannot be followed"),
        (TwoInputs, r"takes 2 inputs \(left, right\), but a stage maps one tensor to one"),
        (Answers, r"returns tuple, but a stage gives one tensor"),
        (LongSkip, r"its input is still needed after the layers that follow \(a skip connection"),
        (
            Overlapping,
            r"the result of mul \(test_split_layers.py:\d+: `double = x \* 2`\) and the output of "
            r"b are still needed",
        ),
        (TiedByHand, r"a.weight is used in its first layers and in its last ones, but only one"),
        (WithoutGradients, r"`x = self.a\(x\)` runs under no_grad, autocast or the like"),
        (Noisy, r"makes a tensor by itself that is another one each time \(shape \[6\]; random"),
        (OnlyInTraining, r"other operations in training than in evaluation .*`x = self.act\(x\)`"),
    ],
)
def test_what_cannot_be_cut_is_explained(kind: type[Net], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        find_layers(kind())
    assert "\n" not in str(caught.value)


def test_hooks_on_the_model_are_refused_and_on_parts_of_it_kept() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    assert [layer.name for layer in find_layers(model)] == ["0", "1.0", "1.1"]
    model[1].register_forward_hook(lambda module, args, out: out + 1)
    assert [layer.name for layer in check_equal(model, torch.rand(1, 2))] == ["0", "1"]
    model.register_forward_hook(lambda module, args, out: out + 1)
    with pytest.raises(UsageError, match="has forward hooks"):
        find_layers(model)


def test_a_stage_that_gives_no_tensor_is_named_when_it_runs() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            x = x[0] if isinstance(x, tuple) else x
            return self.fc(x), x

    model = nn.Sequential(Pair(), Pair(), nn.LSTM(2, 2))
    layers, stages = cut_into_single_layers(model)
    with pytest.raises(UsageError, match="stage of 0 gives tuple, but one tensor must go"):
        stages[0](torch.rand(1, 2))
    assert len(layers) == 3


def test_a_stage_without_anything_to_train_is_refused() -> None:
    model = build("mlp")
    layers = find_layers(model)
    model.fc1.requires_grad_(False)
    with pytest.raises(UsageError, match=r"0 to 0 \(fc1\) would have no parameter to train"):
        build_stage(model, layers, 0, 1)
    build_stage(model, layers, 0, 2)
