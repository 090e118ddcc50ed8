"""Losses and metrics as sums: what each is of, what a user's own may return, what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from drumline.core.errors import SpecError, UsageError
from drumline.spec.data import DataSpec
from drumline.spec.learning import LossSpec, MetricSpec
from drumline.trainer.loss import build_loss, counts_vary
from drumline.trainer.metrics import build_metric

SCORES = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([0, 1, 2, 2, 1, 0])
NUMBERS = torch.linspace(-1, 1, 6)
SMOOTHED = F.cross_entropy(SCORES, CLASSES, label_smoothing=0.1)
FLAT = torch.linspace(1, 0, 6)
WORDS = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(2))
TAGS = torch.tensor([[0] * 4, [1, -100, -100, -100], [-100] * 4, [2] * 4, [0, 2, 1, -100], [1] * 4])
OF_TAGS = F.cross_entropy(WORDS.flatten(0, 1), TAGS.flatten())
TAGGED = (WORDS.argmax(-1) == TAGS)[TAGS >= 0].double().mean()


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "mean"),
    [
        ("cross_entropy", SCORES, CLASSES, F.cross_entropy(SCORES, CLASSES)),
        ("cross_entropy", SCORES, CLASSES.int(), F.cross_entropy(SCORES, CLASSES)),
        ("cross_entropy", WORDS, TAGS, OF_TAGS),
        ("mse", FLAT[:, None], NUMBERS, F.mse_loss(FLAT, NUMBERS)),
        ("l1", FLAT, NUMBERS, F.l1_loss(FLAT, NUMBERS)),
        ("bce", FLAT, NUMBERS > 0, F.binary_cross_entropy_with_logits(FLAT, (NUMBERS > 0).float())),
        ("own_parts:smoothed", SCORES, CLASSES, None),
        ("own_parts:mean_loss", SCORES, CLASSES, None),
        ("own_parts:Weighted", SCORES, CLASSES, None),
        ("torch.nn:SmoothL1Loss", FLAT[:, None], NUMBERS, F.smooth_l1_loss(FLAT, NUMBERS)),
    ],
)
def test_sums_over_any_pieces_add_up_to_the_mean(name, outputs, targets, mean):
    if mean is None:
        mean = SMOOTHED
    loss = build_loss(LossSpec(name=name))
    cuts = [(outputs[:1], targets[:1]), (outputs[1:], targets[1:])]
    pieces = [(loss.summed(*piece), loss.count(piece[1])) for piece in cuts]
    total, count = (sum(part) for part in zip(*pieces, strict=True))
    torch.testing.assert_close(total / count, mean)


def test_a_loss_that_returns_a_sum_says_so():
    by_sum = build_loss(LossSpec(name="own_parts:sum_loss", reduction="sum"))
    by_mean = build_loss(LossSpec(name="own_parts:mean_loss"))
    torch.testing.assert_close(by_sum.summed(SCORES, CLASSES), by_mean.summed(SCORES, CLASSES))


@pytest.mark.parametrize(
    ("spec", "outputs", "targets", "words"),
    [
        ({}, SCORES, NUMBERS, "needs the number of a class .* set loss=mse"),
        (
            {},
            SCORES,
            CLASSES - 1,
            "number of a class as target, from 0 up, and one here is -1; num",
        ),
        ({}, SCORES[:, :2], CLASSES, r"tensor of \[6, 2\] where \[6, classes\] .* at least 3 here"),
        ({"name": "mse"}, SCORES, NUMBERS, r"\[6, 3\] where \[6\] is needed: a number for each"),
        ({"name": "own_parts:text_loss"}, SCORES, CLASSES, "returned 'str'; return one number"),
        ({"name": "own_parts:bias"}, FLAT, NUMBERS, "returned 'tuple'; return one number"),
    ],
)
def test_what_does_not_fit_is_told(spec, outputs, targets, words):
    loss = build_loss(LossSpec(**spec))
    with pytest.raises(UsageError, match=words):
        loss.summed(outputs, targets)


def test_a_loss_without_a_gradient_is_told():
    loss = build_loss(LossSpec(name="own_parts:detached"))
    with pytest.raises(UsageError, match="returned a tensor without a gradient"):
        loss.summed(SCORES.clone().requires_grad_(), CLASSES)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"smoothing": 0.1}, "cross_entropy has no option 'smoothing' .*label_smoothing"),
        ({"name": "own_parts:smoothed", "smooth": 1}, "no option 'smooth' .* it takes smoothing"),
        ({"name": "own_parts:Weighted", "wait": 1}, "no option 'wait'"),
        ({"name": "own_parts:trained_loss"}, "has parameters, which no optimizer would move"),
    ],
)
def test_a_loss_that_cannot_be_built_is_explained(spec, words):
    with pytest.raises(SpecError, match=words):
        build_loss(LossSpec(**spec))


@pytest.mark.parametrize(
    ("spec", "outputs", "targets", "expected"),
    [
        ({"name": "accuracy"}, SCORES, CLASSES, (SCORES.argmax(1) == CLASSES).double().mean()),
        ({"name": "accuracy"}, WORDS, TAGS, TAGGED),
        ({"name": "accuracy"}, FLAT - 0.5, NUMBERS > 0, 0.0),
        ({"name": "mae"}, FLAT[:, None], NUMBERS, (FLAT - NUMBERS).abs().mean()),
        ({"name": "rmse"}, FLAT, NUMBERS, (FLAT - NUMBERS).square().mean().sqrt()),
        ({"name": "own_parts:bias"}, FLAT, NUMBERS, (FLAT - NUMBERS).mean()),
        ({"name": "own_parts:far_off", "limit": 1.0}, FLAT, NUMBERS, 2 / 6),
        ({"name": "own_parts:mean_loss"}, SCORES, CLASSES, SMOOTHED),
        ({"name": "own_parts:F1"}, FLAT - 0.5, FLAT - 0.7, 0.8),
    ],
)
def test_a_metric_of_pieces_is_that_of_all(spec, outputs, targets, expected):
    """Not a mean of the pieces' means: they have one, two and three samples."""
    metric = build_metric(MetricSpec(**spec))
    sums = sum(
        metric.sums(outputs[a:b], targets[a:b]).double() for a, b in ((0, 1), (1, 3), (3, 6))
    )
    assert metric.compute(sums) == pytest.approx(float(expected), abs=1e-6)


def test_a_metric_of_another_form_is_told():
    metric = build_metric(MetricSpec(name="own_parts:text_loss"))
    with pytest.raises(UsageError, match=r"a value for each of 6 samples, one number, \(sum"):
        metric.sums(SCORES, CLASSES)
    with pytest.raises(UsageError, match=r"accuracy needs classes, or 0 and 1.*metrics=mae"):
        build_metric(MetricSpec(name="accuracy")).sums(FLAT[:, None], NUMBERS)
    with pytest.raises(SpecError, match=r'write metrics=\[{name: "own_parts:StopAfter", epochs'):
        build_metric(MetricSpec(name="own_parts:StopAfter"))
    with pytest.raises(SpecError, match="accuracy' takes no options; leave top out"):
        build_metric(MetricSpec(name="accuracy", top=5))
    with pytest.raises(
        SpecError, match="compute\\(\\) that takes no sums, as torchmetrics' do; name"
    ):
        build_metric(MetricSpec(name="own_parts:Torchmetrics"))


@pytest.mark.parametrize(
    ("loss", "data", "labels", "vary"),
    [
        ("cross_entropy", {}, [0, 1], False),
        ("cross_entropy", {"name": "shakespeare"}, None, False),
        # what a factory's data has as labels need not be what its samples have
        ("cross_entropy", {"name": "own_parts:points"}, [0, 1], True),
        ("cross_entropy", {"name": "photos/"}, [0, 1], False),
        ("cross_entropy", {"name": "tags.npz"}, [0, -100], True),
        ("cross_entropy", {"name": "tags.npz"}, None, True),
        ("mse", {"name": "own_parts:points"}, None, False),
        ("mse", {"name": "own_parts:points", "collate": "own_parts:padded"}, None, True),
        ("own_parts:smoothed", {"name": "own_parts:points"}, None, False),
    ],
)
def test_ranks_add_up_their_counts_only_where_samples_may_differ(loss, data, labels, vary):
    train = SimpleNamespace(labels=None if labels is None else np.array(labels))
    assert counts_vary(LossSpec(name=loss), DataSpec(**data), train) is vary
