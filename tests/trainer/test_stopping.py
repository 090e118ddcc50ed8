"""Which epoch was the best, and when a run ends early: functions of the scores so far."""

from math import nan

import pytest

from drumline.spec.learning import MetricSpec
from drumline.spec.load import validate_spec
from drumline.trainer.metrics import build_metric
from drumline.trainer.stopping import best_epoch, find_best_step, why_stop


def epochs(name, *values):
    return [{"step": 10 * (n + 1), name: value} for n, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "more", "delta", "best"),
    [
        ((), False, 0, None),
        ((nan, nan), True, 0, None),
        ((3.0, 2.0, 2.0, 4.0), False, 0, 1),
        ((3.0, 2.0, 2.0, 4.0), True, 0, 3),
        ((3.0, 2.95, 2.8, 2.75), False, 0.1, 2),
        ((nan, 1.0, nan), True, 0, 1),
    ],
)
def test_the_best_epoch_is_the_first_of_equal_ones(values, more, delta, best):
    found = best_epoch(epochs("x", *values), "x", more_is_better=more, min_delta=delta)
    assert found == best


def test_a_run_ends_after_its_patience():
    spec = validate_spec({"early_stopping": {"metric": "accuracy", "patience": 2}})
    metrics = [build_metric(MetricSpec())]
    scores = epochs("accuracy", 0.5, 0.7, 0.6, 0.7)
    assert [why_stop(spec, metrics, scores[:n]) for n in range(4)] == [None] * 4
    assert why_stop(spec, metrics, scores) == "no better accuracy for 2 epochs"
    assert find_best_step(spec, metrics, scores) == 20
    assert find_best_step(validate_spec({}), metrics, scores) is None
    best = validate_spec({"checkpoint": {"best": "accuracy"}, "early_stopping": "loss"})
    assert find_best_step(best, metrics, scores) == 20, "what checkpoint.best says goes first"
