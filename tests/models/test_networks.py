"""Shapes, sizes and options of the built-in models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import drumline.models
from drumline.core.errors import UsageError
from drumline.models import CNN, GPT, build_model, parameter_count
from drumline.models.build import _BUILTIN
from drumline.spec.parts import ModelSpec
from drumline.spec.run_spec import BUILTIN_MODELS

IMAGES = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(65, (3, 20), generator=torch.Generator().manual_seed(0))


def build(name: str, classes: int = 10, **options: Any) -> nn.Module:
    return build_model(ModelSpec(name=name, **options), classes=classes, seed=0)


def test_the_public_names() -> None:
    names = drumline.models.__all__
    assert len(names) == 11
    assert all(hasattr(drumline.models, name) for name in names)


def test_the_models_are_those_that_the_spec_promises() -> None:
    assert tuple(_BUILTIN) == BUILTIN_MODELS


@pytest.mark.parametrize(
    ("name", "count"), [("linear", 7_850), ("mlp", 136_074), ("lenet", 61_706), ("cnn", 421_642)]
)
def test_images_to_logits(name: str, count: int) -> None:
    model = build(name)
    assert parameter_count(model) == count
    logits = model(IMAGES)
    assert logits.shape == (3, 10)
    assert logits.exp().sum(1).sub(1).abs().min() > 1e-3, "logits, not log-probabilities"
    assert build(name, classes=7)(IMAGES).shape == (3, 7)


@pytest.mark.parametrize("name", ["linear", "mlp", "lenet", "cnn", "gpt-mini"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_learns_a_batch_by_heart(name: str, dtype: torch.dtype) -> None:
    options = {"dropout": 0.0} if name in ("cnn", "gpt-mini") else {}
    model = build_model(ModelSpec(name=name, **options), classes=65, seed=0, dtype=dtype)
    x = TOKENS if name == "gpt-mini" else IMAGES.to(dtype)
    y = TOKENS.roll(-1, 1).flatten() if name == "gpt-mini" else torch.tensor([1, 2, 3])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).flatten(0, -2), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
    assert all(p.grad is not None and p.dtype == dtype for p in model.parameters())


def test_images_may_lie_in_channels_last() -> None:
    model = build("cnn").eval().to(memory_format=torch.channels_last)
    torch.testing.assert_close(
        model(IMAGES.to(memory_format=torch.channels_last)), build("cnn").eval()(IMAGES)
    )


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, (0.25, 0.5)),
        ({"dropout": 0}, (0, 0)),
        ({"dropout": 0.1}, (0.1, 0.1)),
        ({"dropout2": 0.3}, (0.25, 0.3)),
    ],
)
def test_dropout_of_the_cnn(options: dict[str, Any], shares: tuple[float, float]) -> None:
    model = build("cnn", **options)
    assert isinstance(model, CNN)
    assert (model.dropout1.p, model.dropout2.p) == shares


def test_gpt_gives_a_score_per_token_and_character() -> None:
    assert build("gpt-mini", classes=65)(TOKENS).shape == (3, 20, 65)


def test_gpt_never_looks_ahead() -> None:
    model = build("gpt-mini", classes=65)
    changed = TOKENS.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 65
    before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert (before[:, 12:] - after[:, 12:]).abs().max() > 1e-3


def test_gpt_tied_shares_one_parameter_between_both_ends() -> None:
    tied, untied = build("gpt-mini", classes=65), build("gpt-mini", classes=65, tied=False)
    assert isinstance(tied, GPT)
    assert tied.head.weight is tied.tokens.weight
    assert parameter_count(untied) - parameter_count(tied) == 65 * 128


def test_gpt_starts_near_a_uniform_guess() -> None:
    logits = build("gpt-mini", classes=65)(TOKENS)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS.roll(-1, 1).flatten())
    assert loss.item() == pytest.approx(torch.tensor(65.0).log().item(), abs=0.3)


def test_gpt_dropout_is_off_in_evaluation() -> None:
    model = build("gpt-mini", classes=65, dropout=0.5)
    assert not torch.equal(model(TOKENS), model(TOKENS))
    model.eval()
    assert torch.equal(model(TOKENS), model(TOKENS))


def test_gpt_says_what_to_do_about_a_long_sequence() -> None:
    model = build("gpt-mini", classes=65, context=16)
    words = r"has 20 tokens, but .* is 16; set model.context=20 or data.sequence=16"
    with pytest.raises(UsageError, match=words):
        model(TOKENS)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gpt-mini", {"heads": 6}, "width 128 into 6 heads.* e.g. 2"),
        ("gpt-mini", {"dropout": 1}, r"dropout must lie in \[0, 1\), got 1"),
        ("cnn", {"dropout1": -0.1}, r"dropout must lie in \[0, 1\), got -0.1"),
    ],
)
def test_options_that_make_no_model(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(name, **options)
