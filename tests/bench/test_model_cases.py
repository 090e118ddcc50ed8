"""Which runs a bench of split models is made of, and what is read from their events."""

from __future__ import annotations

import pytest
import torch

from drumline.bench.model_parallel.rows import link_bytes, payload_bytes
from drumline.bench.model_parallel.spec import ModelParallelSpec, cuttable_layers, plan_cases
from drumline.core.errors import SpecError
from drumline.models import build_outline
from drumline.parallel.split.layers import find_layers
from drumline.spec.load import read_spec
from drumline.spec.parts import ModelSpec


def read(*words: str) -> ModelParallelSpec:
    return read_spec(ModelParallelSpec, words, "an example")


def labels(*words: str) -> list[str]:
    return [case.label for case in plan_cases(read(*words)).cases]


def test_all_that_fit():
    plan = plan_cases(read())
    assert [case.label for case in plan.cases] == [
        "alone",
        "data",
        "rpc ×1",
        "rpc ×4",
        "pipeline ×1",
        "pipeline gpipe ×4",
        "pipeline 1f1b ×4",
        "pipeline interleaved ×4",
        "tensor",
    ]
    (skipped,) = plan.skipped
    assert skipped.case == "mixed 1f1b ×4"
    assert skipped.why.endswith("but 2 will start; set workers=4")
    specs = [case.spec for case in plan.cases]
    assert {spec.data.batch for spec in specs} == {32}
    assert {(spec.seed, spec.dtype, spec.evaluate) for spec in specs} == {(1234, "float32", False)}
    assert len({spec.threads for spec in specs}) == 1
    assert [spec.world_size for spec in specs] == [1] + [2] * 8
    assert plan.cases[-2].slug == "pipeline-interleaved-x4"


def test_four_ranks_have_a_mixed_form():
    words = ("workers=4", "forms=mixed", "schedules=gpipe", "microbatches=2,4")
    (case,) = plan_cases(read(*words)).cases
    assert case.label == "mixed gpipe ×4"
    assert str(case.spec.axes) == "data(2) × pipeline(2) × tensor(1)"


def test_engines_double_what_has_two():
    found = labels("engines=drumline,torch", "microbatches=4", "schedules=1f1b")
    assert found == [
        "alone",
        "data",
        "data torch",
        "rpc ×4",
        "pipeline 1f1b ×4",
        "pipeline 1f1b ×4 torch",
        "tensor",
        "tensor torch",
    ]
    cases = plan_cases(read("engines=torch", "forms=data")).cases
    assert [case.spec.strategy.kind for case in cases] == ["ddp"]


def test_nodes_have_a_rank_each_and_alone_has_none():
    cases = plan_cases(read("nodes=2", "link=100mbit", "forms=alone,tensor")).cases
    assert [(case.spec.nodes, case.spec.workers) for case in cases] == [(1, 1), (2, 1)]
    assert cases[1].spec.link.rate == 10**8


def test_words_that_follow_from_the_model():
    assert read("model.width=64").model.options == {"layers": 4, "width": 64}
    assert read("model=mlp").data.name == "mnist-mini"
    assert "pipeline interleaved ×4" not in labels("model=mlp")  # three layers


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("linear", {}),
        ("mlp", {}),
        ("lenet", {}),
        ("cnn", {}),
        ("gpt-mini", {}),
        ("gpt-mini", {"layers": 4}),
    ],
)
def test_the_layers_that_the_command_line_counts_are_those_of_the_model(name, options):
    model = ModelSpec(name=name, **options)
    outline = build_outline(model, classes=10, seed=1, dtype=torch.float32)
    assert cuttable_layers(model) == len(find_layers(outline))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("forms=mixed",), "'forms=mixed': mixed is 2 copies of a pipeline, which takes 4 ranks"),
        (("forms=pipeline", "model=linear"), "needs 2 parts, but linear can be cut into 1"),
        (("schedules=interleaved", "model=mlp"), "needs 4 parts, but mlp can be cut into 3"),
        (
            ("microbatches=5",),
            "a batch of 32 cannot be cut into 5 equal microbatches; set batch=30",
        ),
        (("batch=1", "microbatches=1"), "less than one sample for each of 2 ranks"),
        (("data.batch=64",), "write batch=64"),
        (("data=mnist-mini",), "gpt-mini does not read mnist-mini (images); set data=shakespeare"),
        (("workers=1",), "communication needs 2"),
    ],
)
def test_words_that_make_no_bench(words, why):
    with pytest.raises(SpecError) as caught:
        read(*words)
    assert why in caught.value.message


def test_a_message_counts_where_it_is_sent():
    first = {"spans": [["send", 100, 0, 1, [0, 1]], ["receive", 60, 0, 1, [1, 0]]]}
    second = {"spans": [["receive", 100, 0, 1, [0, 1]], ["send", 60, 0, 1, [1, 0]]]}
    assert payload_bytes([[first, second], [first, second]]) == [100, 60]
    assert payload_bytes([[{"spans": [["allreduce", 8, 0, 1]]}] * 2]) == [8, 8]
    assert payload_bytes([[{"spans": []}] * 2]) is None


def test_links_are_told_by_the_first_rank_of_each_node():
    logs = [[{"event": "end", "step": 10, "sent": sent}] for sent in (1000, 1001, 500, 501)]
    assert link_bytes(logs, 2) == [100, 50]
    assert link_bytes(logs, 1) is None
