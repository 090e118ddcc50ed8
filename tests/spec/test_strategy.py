"""The words of split models: what follows, and what is refused with a way out."""

import pytest

from drumline.core.errors import SpecError
from drumline.spec.load import load_spec

MICROBATCHES = "strategy.microbatches=4"


def load(*words):
    return load_spec(None, list(words))


@pytest.mark.parametrize(
    ("words", "shape", "aggregator", "microbatches"),
    [
        (("strategy=pipeline", "workers=4"), (1, 4, 1), "allreduce", 8),
        (("strategy=pipeline", "workers=3"), (1, 3, 1), "allreduce", 4),
        (("strategy=pipeline", "mesh.data=2", "workers=4"), (2, 2, 1), "allreduce", 4),
        (("mesh={data: 2, pipeline: 2}", "workers=4"), (2, 2, 1), "allreduce", 4),
        (("mesh.pipeline=2", "strategy=ring", "workers=4"), (2, 2, 1), "ring", 4),
        (("mesh.tensor=2", "workers=4"), (2, 1, 2), "ddp", None),
        (("strategy=tensor", "workers=3"), (1, 1, 3), "allreduce", None),
        (("strategy={kind: rpc, parts: 2}",), (1, 2, 1), "allreduce", 1),
        (("strategy=rpc", "strategy.microbatches=4"), (1, 2, 1), "allreduce", 4),
        (("strategy={kind: pipeline, balance: [2, 4]}",), (1, 2, 1), "allreduce", 4),
    ],
)
def test_what_follows(words, shape, aggregator, microbatches):
    spec = load(*words)
    assert spec.axes.shape == shape
    assert spec.strategy.aggregator == aggregator
    if microbatches is not None:
        assert spec.microbatches == microbatches
    again = load(f"strategy={spec.strategy.model_dump(mode='json')}".replace("None", "null"))
    assert again.strategy == spec.strategy


def test_copies_of_a_pipeline_may_be_summed():
    spec = load("strategy=pipeline", "strategy.average=sum", "mesh.data=2", "workers=4")
    assert spec.strategy.average == "sum"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("mesh={data: 4, pipeline: 2}", "workers=6"),
            "data(4) × pipeline(2) × tensor(1) = 8 ranks, but 6 workers = 6 will start; "
            "set workers=8 or mesh.data=3",
        ),
        (
            ("strategy=pipeline", "strategy.microbatches=3"),
            "a batch of 128 cannot be cut into 3 equal microbatches; "
            "set data.batch=129 or strategy.microbatches=2",
        ),
        (
            ("mesh={data: 2, pipeline: 2}", "workers=4", "data.batch=100", MICROBATCHES),
            "a batch of 100 over 2 copies of the model cannot be cut into 4 equal microbatches; "
            "set data.batch=96 or strategy.microbatches=2",
        ),
        (("strategy=pipeline", "accumulate=2"), "set strategy.microbatches=8"),
        (("strategy=ddp", "mesh.pipeline=2"), "set strategy: allreduce"),
        (("strategy={kind: rpc, parts: 3}",), "set workers=3 or strategy.parts=2"),
        (("strategy=rpc", "mesh.tensor=2"), "leave mesh out, or set strategy: pipeline"),
        (("strategy={kind: ring, parts: 2}",), "parts belong to rpc, not ring"),
        (("strategy={kind: ring, schedule: gpipe}",), "set strategy.kind=pipeline"),
        (("strategy={kind: tensor, balance: [1, 2]}",), "set strategy.kind=pipeline"),
        (("strategy={kind: pipeline, chunks: 2}",), "set schedule: interleaved"),
        (("strategy={kind: pipeline, of: parameters}",), "set of: gradients"),
        (("strategy={kind: rpc, engine: torch}",), "leave engine out"),
        (
            ("strategy={kind: rpc, schedule: gpipe}",),
            "'strategy={kind: rpc, schedule: gpipe}': schedule belongs to pipelines, and by rpc "
            "each part computes when its input comes; set strategy.kind=pipeline, or leave it out",
        ),
        (("strategy={kind: rpc, recompute: true}",), "recompute belongs to pipelines, and by rpc"),
        (
            ("strategy=pipeline", "strategy.average=sum"),
            "'strategy.average=sum': average is about copies of the model, which are averaged, and "
            "here is one, split over all ranks; leave it out, or have copies by mesh.data",
        ),
        (("mesh.tensor=2", "strategy.average=sum"), "average is about copies of the model"),
        (("strategy={kind: tensor, bucket_bytes: 4096}",), "bucket_bytes is about copies"),
        (("strategy={kind: rpc, bucketed: false}",), "bucketed is about copies"),
        (
            ("strategy={kind: rpc, parts: 1}",),
            "1 part, but 2 ranks will start; set workers=1 or strategy.parts=2",
        ),
        (
            ("mesh.tensor=2", "workers=1"),
            "= 2 ranks, but 1 worker = 1 will start; set workers=2",
        ),
        (
            ("strategy={kind: pipeline, balance: fair}",),
            "'fair' does not say where to cut; use auto, time, bytes, or",
        ),
        (("strategy={kind: pipeline, balance: [0, 3]}",), "[0, 3] does not say where to cut"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_way_out(words, said):
    with pytest.raises(SpecError) as caught:
        load(*words)
    assert said in str(caught.value)
