"""Specs from YAML and overrides: what is read, and what is said of what cannot be."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.core.errors import SpecError
from drumline.spec.data import PartitionSpec
from drumline.spec.load import dump_spec, load_spec, validate_spec
from drumline.spec.parts import SlowRank
from drumline.spec.run_spec import BUILTIN_MODELS, RunSpec

DESIGN = """\
name: mnist-ring
model: cnn                      # a comment
data: {name: mnist-mini, partition: random, batch: 128}
optimizer: {name: sgd, lr: 0.01, momentum: 0.5}
strategy: {kind: chunked_ring, average: mean, bucket_bytes: 4MiB}
epochs: 2
seed: 1234
dtype: float32
device: auto
workers: 4
slow_ranks: {3: {delay_ms: 50}}
backend: gloo
init: env
"""


@pytest.fixture
def spec_of(tmp_path):
    """Load a spec from text: spec_of(text, *overrides)."""

    def load(text: str | bytes, *overrides: str) -> RunSpec:
        path = tmp_path / "spec.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return load_spec(path, overrides)

    return load


@pytest.fixture
def refusal(spec_of):
    """What is said of a spec that cannot be: refusal(text, *overrides)."""

    def load(text: str | bytes, *overrides: str) -> str:
        with pytest.raises(SpecError) as caught:
            spec_of(text, *overrides)
        assert caught.value.exit_code == 2
        return caught.value.message

    return load


def in_file(message: str) -> tuple[int, str]:
    """Split `…/spec.yaml, line N: what` into N and what."""
    match = re.fullmatch(r"\S+/spec\.yaml, line (\d+): (.+)", message)
    assert match is not None, message
    return int(match.group(1)), match.group(2)


# What is read


def test_the_spec_of_the_design_is_read_word_by_word(spec_of):
    spec = spec_of(DESIGN)
    assert (spec.name, spec.model.name, spec.model.options) == ("mnist-ring", "cnn", {})
    assert (spec.data.name, spec.data.partition.kind, spec.data.batch) == (
        "mnist-mini",
        "random",
        128,
    )
    assert (spec.optimizer.name, spec.optimizer.lr, spec.optimizer.momentum) == ("sgd", 0.01, 0.5)
    assert (spec.strategy.kind, spec.strategy.bucket_bytes) == ("chunked_ring", 4 * 2**20)
    assert (spec.epochs, spec.max_steps, spec.world_size) == (2, None, 4)
    assert spec.slow_ranks == {3: SlowRank(delay_ms=50)}


def test_dump_and_load_give_an_equal_spec(spec_of):
    spec = spec_of(DESIGN, "model.dropout=0.25", "data.partition.sizes=[4,3,2,1]")
    assert spec_of(dump_spec(spec)) == spec


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "---\n", "\ufeff"])
def test_an_empty_file_is_the_defaults(spec_of, text):
    assert spec_of(text) == RunSpec()
    assert RunSpec().epochs == 4


def test_a_run_is_one_epoch_long_unless_it_says_otherwise():
    assert load_spec(None).epochs == 4
    assert load_spec(None, ["max_steps=5"]).epochs is None
    assert load_spec(None, ["epochs=null"]).epochs == 4
    both = load_spec(None, ["epochs=3", "max_steps=5"])
    assert (both.epochs, both.max_steps) == (3, 5)


def test_one_word_stands_for_the_key_that_names_the_part():
    spec = load_spec(None, ["model=mlp", "data=synthetic", "strategy=ring", "schedule=cosine"])
    assert spec.model.name == "mlp"
    assert spec.data.name == "synthetic"
    assert spec.strategy.kind == "ring"
    assert spec.schedule.name == "cosine"


def test_a_word_opens_when_a_key_is_set_inside_it(spec_of):
    spec = spec_of("model: cnn\ndata: mnist-mini\n", "model.dropout=0", "data.batch=64")
    assert (spec.model.name, spec.model.options) == ("cnn", {"dropout": 0})
    assert (spec.data.name, spec.data.batch) == ("mnist-mini", 64)


def test_a_partition_is_named_and_then_refined():
    spec = load_spec(None, ["data.partition=random", "data.partition.alpha=1"])
    assert spec.data.partition == PartitionSpec(kind="random", alpha=1)


def test_a_word_over_a_mapping_keeps_the_other_keys(spec_of):
    spec = spec_of("strategy: {kind: allreduce, average: sum}\n", "strategy=ring")
    assert (spec.strategy.kind, spec.strategy.average) == ("ring", "sum")


def test_overrides_win_over_the_file_and_the_last_one_over_the_others(spec_of):
    text = "workers: 4\noptimizer: {lr: 0.5}\n"
    spec = spec_of(text, "workers=3", "optimizer.lr=1e-3", "workers=1")
    assert (spec.workers, spec.optimizer.lr) == (1, 0.001)


def test_numbers_with_an_exponent_are_numbers_wherever_they_stand(spec_of):
    spec = spec_of("model: {name: cnn, dropout: 1e-1}\n", "model.scale=2E3", "optimizer.eps=1e-9")
    assert spec.model.options == {"dropout": 0.1, "scale": 2000.0}
    assert spec.optimizer.eps == 1e-9


def test_a_key_of_a_dict_can_be_overridden(spec_of):
    spec = spec_of("slow_ranks: {1: {delay_ms: 5}}\n", "slow_ranks.0.delay_ms=7")
    assert spec.slow_ranks == {0: SlowRank(delay_ms=7), 1: SlowRank(delay_ms=5)}


@pytest.mark.parametrize("text", ["1e5", "1e+3", "+.5e3", "no", "null", "2024-01-01", "a\x85b", ""])
def test_text_that_looks_like_something_else_stays_text(spec_of, text):
    spec = validate_spec({"model": {"name": "cnn", "option": text}})
    assert spec_of(dump_spec(spec)).model.options == {"option": text}


# Random specs


@st.composite
def specs(draw) -> RunSpec:
    workers, nodes = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    world = workers * nodes
    partition = draw(
        st.one_of(
            st.sampled_from(["shuffle", "sampling", "contiguous"]),
            st.fixed_dictionaries(
                {
                    "kind": st.just("random"),
                    "sizes": st.lists(st.floats(0.01, 1), min_size=world, max_size=world),
                }
            ),
            st.fixed_dictionaries(
                {
                    "kind": st.just("by_label"),
                    "labels": st.lists(
                        st.lists(st.integers(0, 9), max_size=3), min_size=world, max_size=world
                    ),
                }
            ),
        )
    )
    name = draw(st.sampled_from([*BUILTIN_MODELS[:-1], "my.module:Modèle"]))
    options = draw(st.dictionaries(st.from_regex(r"[a-z]{1,6}x", fullmatch=True), _options))
    return validate_spec(
        {
            "name": draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)),
            "model": {"name": name, **options},
            "data": {"batch": draw(st.integers(world, 10**6)), "partition": partition},
            "optimizer": {"lr": draw(st.floats(1e-12, 1e6)), "momentum": draw(st.floats(0, 0.99))},
            "strategy": {"kind": draw(st.sampled_from(["ring", "all_gather"]))},
            "seed": draw(st.integers(0, 2**63 - 1)),
            "max_steps": draw(st.none() | st.integers(1, 10**9)),
            "slow_ranks": draw(
                st.dictionaries(
                    st.integers(0, world - 1),
                    st.fixed_dictionaries({"delay_ms": st.floats(0, 1e9)}),
                )
            ),
            "workers": workers,
            "nodes": nodes,
        }
    )


_options = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), st.none()
)


@settings(max_examples=50)
@given(spec=specs())
def test_any_spec_survives_yaml(spec, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(dump_spec(spec), encoding="utf-8")
    assert load_spec(path) == spec


# What is refused: each message names the place, what it got and the way out

MUST_BE = "but must be"
CHOICES = (
    "ddp, allreduce, ring, chunked_ring, tree, halving_doubling, hierarchical, reduce_broadcast, "
    "gather_scatter, all_gather, parameter_server, pipeline, tensor or"
)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("epochs: 1\nwrokers: 2\n", 2, "unknown key 'wrokers'; did you mean 'workers'?"),
        ("data:\n  btach: 3\n", 2, "unknown key 'data.btach'; did you mean 'data.batch'?"),
        (
            "data:\n  partition:\n    knid: random\n",
            3,
            "unknown key 'data.partition.knid'; did you mean 'data.partition.kind'?",
        ),
        ("lr: 0.1\n", 1, "unknown key 'lr'; did you mean 'optimizer.lr'?"),
        ("batch_size: 3\n", 1, "unknown key 'batch_size'; did you mean 'data.batch'?"),
        (
            "workers: 2\nslow_ranks:\n  1: {delay: 3}\n",
            3,
            "unknown key 'slow_ranks.1.delay'; did you mean 'slow_ranks.1.delay_ms'?",
        ),
        (
            "checkpoint: {zzz: 1}\n",
            1,
            "unknown key 'checkpoint.zzz'; the keys here are every_steps",
        ),
        ("1: 2\n", 1, "unknown key '1'; the keys here are name, model, data"),
        ("link: {foo: 1}\n", 1, "unknown key 'link.foo'; the keys here are rate, delay_ms"),
        ("foo: 1\n", 1, "unknown key 'foo'; the keys here are name, model, data"),
        (
            "checkpoint: {every: 5}\n",
            1,
            "unknown key 'checkpoint.every'; did you mean 'checkpoint.every_steps'?",
        ),
        ("link: {momentun: 1}\n", 1, "unknown key 'link.momentun'; did you mean 'optimizer.mom"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(refusal, text, line, said):
    at, message = in_file(refusal(text))
    assert at == line
    assert message.startswith(said)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (
            "\nworkers: two\n",
            2,
            "workers is 'two', but must be a whole number; write e.g. workers=2",
        ),
        ("workers: 2.5\n", 1, "workers is 2.5, but must be a whole number; write e.g. workers=2"),
        ("workers: 0\n", 1, "workers is 0, but must be 1 or more; write e.g. workers=2"),
        (
            "nodes: 999\n",
            1,
            "nodes: got 999, but the simulated network 10.77.0.0/24 has addresses for 1 to 254 "
            "nodes; write e.g. nodes=4, and more workers on each",
        ),
        (
            "nodes: 2\nlink: fast\n",
            2,
            "link.rate: expected a rate such as 100mbit, 1gbit or 12.5MB/s, got 'fast'",
        ),
        (
            "nodes: 2\nlink: {rate: 0}\n",
            2,
            "link.rate: 0 is no rate for a link; give one from 1mbit to 400gbit, such as 100mbit "
            "or 1gbit",
        ),
        (
            "nodes: 2\nslow_nodes: {1: {rate: 999kbit}}\n",
            2,
            "slow_nodes.1.rate: '999kbit' is no rate for a link; give one from 1mbit to 400gbit, "
            "such as 100mbit or 1gbit",
        ),
        (
            "nodes: 2\nslow_nodes: {1: {cpu: 0}}\n",
            2,
            "slow_nodes.1.cpu is 0, but must be 0.05 or more; write e.g. slow_nodes.1.cpu=1.0",
        ),
        (
            "nodes: 2\nslow_nodes: {2: {cpu: 0.5}}\n",
            2,
            "slow_nodes names node 2, but nodes run from 0 to 1; name one of those or raise nodes",
        ),
        (
            "link: {rate: 1gbit}\n",
            1,
            "link is about simulated nodes, but all workers are on one; set nodes=2 or more",
        ),
        (
            "nodes: 2\ninit: tcp://127.0.0.1:29500\n",
            2,
            "init: tcp://127.0.0.1: simulated nodes meet at node 0, whose address is 10.77.0.1; "
            "write init: tcp, or tcp://10.77.0.1:PORT",
        ),
        ("epochs: x\n", 1, "epochs is 'x', but must be a whole number; write e.g. epochs=1"),
        (
            "data: {batch: 0}\n",
            1,
            "data.batch is 0, but must be 1 or more; write e.g. data.batch=128",
        ),
        (
            "optimizer:\n  lr: fast\n",
            2,
            "optimizer.lr is 'fast', but must be a number; write e.g. optimizer.lr=0.1",
        ),
        (
            "optimizer: {lr: .inf}\n",
            1,
            "optimizer.lr is inf, but must be a finite number; write e.g. optimizer.lr=0.1",
        ),
        (
            "optimizer:\n  betas: [0.9]\n",
            2,
            "optimizer.betas is [0.9], but must be a list of the right length; "
            "write e.g. optimizer.betas=[0.9, 0.999]",
        ),
        (
            "optimizer:\n  betas:\n  - 0.9\n  - x\n",
            4,
            "optimizer.betas.1 is 'x', but must be a number; "
            "write e.g. optimizer.betas=[0.9, 0.999]",
        ),
        (
            "data: {partition: {sizes: 3}}\n",
            1,
            "data.partition.sizes is 3, but must be a list; "
            "write e.g. data.partition.sizes=[0.7, 0.3]",
        ),
        (
            "evaluate: maybe\n",
            1,
            "evaluate is 'maybe', but must be true or false; write e.g. evaluate=true",
        ),
        (
            "name: no\n",
            1,
            "name is false, but must be text (in quotes where YAML reads something else); "
            "write e.g. name=mnist-ring",
        ),
        (
            "name: a/b\n",
            1,
            "name is 'a/b', but must be letters, digits, '.', '_' and '-', a letter or digit "
            "first; write e.g. name=mnist-ring",
        ),
        (
            "model: [cnn]\n",
            1,
            "model is ['cnn'], but must be one word or a mapping of keys; write e.g. model=cnn",
        ),
        (
            "epochs: 1\nmodel:\n",
            2,
            "model is empty, but must be one word or a mapping of keys; write e.g. model=cnn",
        ),
        (
            "checkpoint: 3\n",
            1,
            "checkpoint is 3, but must be a mapping of keys; write e.g. checkpoint={keep: 2}",
        ),
        (
            "slow_ranks: {x: {}}\n",
            1,
            "slow_ranks has the key 'x', but keys here must be a whole number",
        ),
        (
            "strategy: {bucket_bytes: 1.5}\n",
            1,
            "strategy.bucket_bytes: expected a size such as 1MiB, 25MB or 4096, got 1.5",
        ),
        (
            "strategy:\n  bucket_bytes: [1]\n",
            2,
            "strategy.bucket_bytes: expected a size such as 1MiB, 25MB or 4096, got [1]",
        ),
        (
            "init: tcp://host:99999\n",
            1,
            "init: 'tcp://host:99999' is no way for ranks to meet; "
            "use env, tcp, file, tcp://HOST:PORT or file:///ABSOLUTE/PATH",
        ),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(refusal, text, line, said):
    assert in_file(refusal(text)) == (line, said)


@pytest.mark.parametrize("word", ["Input", "string", "integer", "valid ", "pydantic", "dictionary"])
def test_no_jargon_of_the_validator_comes_through(refusal, word):
    text = "workers: x\nepochs: []\nevaluate: 7\nname: {}\ncheckpoint: x\nclip_norm: x\nseed: -1\n"
    lines = refusal(text).splitlines()
    assert len(lines) == 7
    assert not any(word in line for line in lines)
    assert [in_file(line)[0] for line in lines] == [4, 5, 2, 6, 3, 7, 1]  # as the spec is ordered


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (
            "epochs: 1\nstrategy: rign\n",
            2,
            f"strategy.kind is 'rign', {MUST_BE} {CHOICES} rpc; did you mean 'ring'?",
        ),
        (
            "strategy:\n  kind: xyzzy\n",
            2,
            f"strategy.kind is 'xyzzy', {MUST_BE} {CHOICES} rpc; choose one of these",
        ),
        (
            "dtype: float46\n",
            1,
            f"dtype is 'float46', {MUST_BE} float32 or float64; did you mean 'float64'?",
        ),
        (
            "model: cnnn\n",
            1,
            "model 'cnnn' is none of linear, mlp, lenet, cnn, gpt-mini, "
            "nor package.module:factory of your own; did you mean 'cnn'?",
        ),
    ],
)
def test_a_wrong_choice_lists_the_choices(refusal, text, line, said):
    assert in_file(refusal(text)) == (line, said)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (
            "workers: 4\ndata:\n  name: mnist-mini\n  batch: 3\n",
            4,
            "data.batch is 3, less than one sample for each of 4 ranks; "
            "set data.batch=4 or more, or start fewer ranks",
        ),
        (
            "epochs: 1\nworkers: 80\nnodes: 2\n",
            3,
            "data.batch is 128, less than one sample for each of 160 ranks; "
            "set data.batch=160 or more, or start fewer ranks",
        ),
        (
            "data:\n  partition:\n    kind: random\n    sizes: [0.7, 0.2, 0.1]\n",
            4,
            "data.partition.sizes names 3 ranks, but 2 will start; "
            "start 3 ranks, or give 2 entries",
        ),
        (
            "data:\n  partition:\n    kind: by_label\n    labels: [[0, 1], [2], [3]]\n",
            4,
            "data.partition.labels names 3 ranks, but 2 will start; "
            "start 3 ranks, or give 2 entries",
        ),
        (
            "epochs: 1\nslow_ranks:\n  0: {}\n  2: {delay_ms: 1}\n",
            4,
            "slow_ranks names rank 2, but ranks run from 0 to 1; "
            "name one of those, or start more ranks",
        ),
        (
            "dtype: float64\nprecision: bf16\n",
            2,
            "precision: bf16 goes with dtype: float32, not float64; drop one of the two",
        ),
        (
            "backend: nccl\ndevice: cpu\n",
            2,
            "backend: nccl moves GPU tensors only; set device: cuda or backend: gloo",
        ),
        (
            "device: cuda\nbackend: shm\n",
            2,
            "backend: shm moves CPU tensors only; set device: cpu or backend: auto",
        ),
        (
            "backend: mpi\nnodes: 2\n",
            2,
            "backend: mpi joins one mpirun's ranks on one node, not on 2; "
            "set nodes: 1 or backend: gloo",
        ),
        (
            "backend: shm\nnodes: 3\n",
            2,
            "backend: shm joins ranks that share memory on one node, not on 3; "
            "set nodes: 1 or backend: gloo",
        ),
        (
            "backend: mpi\nrestarts: 1\n",
            2,
            "mpirun ends all ranks when one dies, so backend: mpi has no restarts; "
            "set restarts: 0 or another backend",
        ),
        (
            "optimizer: gd\naccumulate: 2\n",
            2,
            "gd accumulates by itself, in chunks of data.batch; leave accumulate out",
        ),
        (
            "epochs: 2\nmodel: gpt-mini\n",
            2,
            "gpt-mini does not read mnist-mini (images); set data=shakespeare",
        ),
        (
            "model: cnn\ndata:\n  name: shakespeare\n",
            3,
            "cnn does not read shakespeare (text); set model=gpt-mini",
        ),
        (
            "model: gpt-mini\ndata:\n  name: shakespeare\n  partition: dirichlet\n",
            4,
            "shakespeare has no labels to partition by; set data.partition=random",
        ),
        (
            "data:\n  partition: by_label\n",
            2,
            "data.partition: by_label needs the labels of each rank; "
            "add labels: [[0, 1, 2], [3, 4, 5], …]",
        ),
        (
            "data:\n  partition:\n    labels: [[0], [1]]\n",
            3,
            "data.partition: labels go with by_label, not shuffle; "
            "set kind: by_label, or leave them out",
        ),
        (
            "data:\n  partition:\n    kind: sampling\n    sizes: [1, 2]\n",
            4,
            "data.partition: sizes go with shuffle, random or contiguous, not sampling; "
            "leave them out",
        ),
        (
            "data:\n  partition:\n    sizes: [0, 0]\n",
            3,
            "data.partition: sizes are [0.0, 0.0], but must be shares ≥ 0 that are not all 0; "
            "write them as in [0.7, 0.2, 0.1]",
        ),
        (
            "optimizer:\n  name: adam\n  momentum: 0.9\n",
            3,
            "optimizer: momentum and nesterov belong to sgd, not adam; set name: sgd, or drop them",
        ),
        (
            "optimizer:\n  nesterov: true\n",
            2,
            "optimizer: nesterov needs momentum > 0; set momentum: 0.9",
        ),
        (
            "optimizer:\n  decoupled: true\n",
            2,
            "optimizer: decoupled decay belongs to adam, not sgd; set name: adam, or drop it",
        ),
        (
            "optimizer:\n  name: adam\n  betas: [0.9, 1]\n",
            3,
            "optimizer: betas are [0.9, 1.0], but must be at least 0 and less than 1; "
            "the usual ones are [0.9, 0.999]",
        ),
        (
            "strategy:\n  of: parameters\n",
            2,
            "strategy: ddp averages gradients only; set kind: allreduce for of: parameters",
        ),
        (
            "strategy:\n  bucketed: false\n",
            2,
            "strategy: ddp is always bucketed; set kind: allreduce for bucketed: false",
        ),
    ],
)
def test_keys_that_clash_are_told_at_the_line_of_one_of_them(refusal, text, line, said):
    assert in_file(refusal(text)) == (line, said)


def test_a_clash_with_an_override_is_told_of_the_override(refusal):
    assert refusal("data: {batch: 3}\n", "workers=4").startswith("'workers=4': data.batch is 3,")


def test_a_clash_without_a_file_is_told_without_a_place():
    with pytest.raises(SpecError, match=r"^data\.batch is 1, less than"):
        validate_spec({"data": {"batch": 1}})


def test_the_full_batch_may_be_cut_smaller_than_the_ranks():
    assert load_spec(None, ["optimizer=gd", "data.batch=1", "workers=2"]).data.batch == 1


# The file itself


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("epochs: 1\nmodel: cnn: mlp\n", 2, "mapping values are not allowed here"),
        ("data:\n\tbatch: 3\n", 2, "indent with spaces, not tabs"),
        ("epochs: 1\nname: 'run\n", 3, "found unexpected end of stream"),
        ("a: [1, 2\nb: 3\n", 2, "expected ',' or ']'"),
        ("a: 1\nb: \x07\n", 2, "special characters are not allowed"),
        ("a: 1\n---\nb: 2\n", 2, "but found another document"),
        ("? [a]\n: 1\n", 1, "found unhashable key"),
        ("a: *nowhere\n", 1, "found undefined alias"),
        ("a: !!python/name:os.system\n", 1, "could not determine a constructor"),
    ],
)
def test_yaml_that_cannot_be_parsed_is_told_with_its_line(refusal, text, line, said):
    at, message = in_file(refusal(text))
    assert at == line
    assert message.startswith("this is not valid YAML (")
    assert said in message


def test_a_date_that_is_none_is_no_traceback(refusal):
    assert "this is not valid YAML (month must be in 1..12)" in refusal("name: 2024-99-99\n")


def test_an_alias_that_holds_itself_does_not_hang(refusal):
    assert in_file(refusal("model: &m\n  name: *m\n"))[0] == 2


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("workers: 2\nseed: 1\nworkers: 3\n", 3, "workers"),
        ("data:\n  batch: 1\n  batch: 2\n", 3, "data.batch"),
    ],
)
def test_a_key_given_twice_is_refused(refusal, text, line, key):
    assert in_file(refusal(text)) == (line, f"{key} is given twice; keep one of them")


@pytest.mark.parametrize(
    ("text", "kind"), [("\n- a\n- b\n", "a list"), ("\ncnn\n", "a single value")]
)
def test_something_that_is_no_mapping_is_refused(refusal, text, kind):
    fix = "but a spec is a mapping of keys; write lines such as workers: 2"
    assert in_file(refusal(text)) == (2, f"this is {kind}, {fix}")


def test_bytes_that_are_not_utf8_are_refused_with_their_line(refusal):
    said = (2, "this is not UTF-8 text; save it as UTF-8")
    assert in_file(refusal("epochs: 1\nname: café\n".encode("latin-1"))) == said


def test_a_missing_file_is_answered_with_an_example(tmp_path):
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "nowhere.yaml")
    assert caught.value.message == (
        f"no spec file {tmp_path}/nowhere.yaml; write one, or give keys alone: "
        "drumline train model=cnn workers=2 strategy.kind=ring"
    )


def test_a_folder_is_no_spec(tmp_path):
    with pytest.raises(SpecError, match=r"cannot read the spec .+: Is a directory; give a file"):
        load_spec(tmp_path)


def test_an_unreadable_file_is_refused(tmp_path):
    path = tmp_path / "secret.yaml"
    path.write_text("epochs: 1\n")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file (root)")
    with pytest.raises(SpecError, match=r"secret\.yaml: Permission denied; give a file"):
        load_spec(path)


# Overrides

EXAMPLE = "write it as in drumline train model=cnn workers=2 strategy.kind=ring"


@pytest.mark.parametrize("override", ["workers", "=2", ".workers=2", "data..batch=2", "model.=x"])
def test_an_override_is_key_and_value(override):
    with pytest.raises(SpecError) as caught:
        load_spec(None, [override])
    assert caught.value.message == f"{override!r} is not key=value; {EXAMPLE}"


def test_an_override_into_a_scalar_says_what_stands_there(refusal):
    fix = "which has no keys in it; write workers=VALUE"
    assert refusal("workers: 2\n", "workers.x=3") == f"'workers.x=3': workers is 2, {fix}"


def test_an_override_into_a_key_that_has_no_keys_is_refused_without_a_file_too():
    with pytest.raises(SpecError) as caught:
        load_spec(None, ["workers.x=3"])
    assert caught.value.message == (
        "'workers.x=3': workers is {'x': 3}, but must be a whole number; write e.g. workers=2"
    )


@pytest.mark.parametrize("override", ["model={", "name=2024-99-99", "name=*x"])
def test_an_override_that_yaml_cannot_read_is_refused(override):
    key = override.partition("=")[0]
    with pytest.raises(SpecError) as caught:
        load_spec(None, [override])
    assert caught.value.message == (
        f"the value in {override!r} is not valid YAML; quote it: '{key}=\"…\"'"
    )


def test_an_override_is_named_in_place_of_the_line_it_replaces(refusal):
    text = "workers: 2\n"
    said = "'workers=two': workers is 'two', but must be a whole number; write e.g. workers=2"
    assert refusal(text, "workers=two") == said
    assert (
        refusal(text, "wrokers=3") == "'wrokers=3': unknown key 'wrokers'; did you mean 'workers'?"
    )


def test_every_error_is_told_at_once(refusal):
    first, second = refusal("wrokers: 2\nepochs: 0\n").splitlines()
    assert in_file(first) == (2, "epochs is 0, but must be 1 or more; write e.g. epochs=1")
    assert in_file(second)[0] == 1


def test_the_examples_in_messages_are_specs_themselves(refusal):
    """A way out that is pasted must work."""
    for key in RunSpec.model_fields:
        for line in refusal(f"{key}: [[]]\n").splitlines():
            for fix in re.findall(r"write e\.g\. (.+)$", line):
                several = ["nodes=2"] if key in ("link", "slow_nodes") else []
                load_spec(None, [*several, fix])


def test_spec_files_in_the_examples_are_valid():
    folder = Path(__file__).parents[2] / "examples"
    for path in sorted(folder.rglob("*.yaml")):
        if "model" in (yaml.safe_load(path.read_text()) or {}) and "hydra" not in str(path):
            assert load_spec(path).world_size >= 1
