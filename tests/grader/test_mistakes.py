"""Every mistake that the checks know, made once, and named; and solutions, which pass."""

from __future__ import annotations

import shutil

import pytest

from drumline.labs.catalogue import LABS, starter_files
from drumline.labs.check import check_title, explain_verdict, load_pointers
from drumline.launcher.grader import Status
from drumline.report.page.translator import Language
from wrong import ALL, SOLUTIONS, Wrong

ANYWHERE = {
    "missing-file",
    "missing-name",
    "raises",
    "exits",
    "died",
    "hangs",
    "left-processes",
    "needs-import",
    "out-of-time",
    "examiner-died",
}
"""mistakes that test_bad_behaviour makes"""
UNSEEN = {"timing-differs", "gradients-differ"}
"""catch-alls beside mistakes that have names"""


def test_every_mistake_is_made_here():
    assert {wrong.mistake for wrong in ALL} | ANYWHERE | UNSEEN == set(load_pointers())


FAMOUS = {
    "adam-step-counter-index",
    "adam-bias-correction",
    "adam-correction-kept",
    "momentum-ignored",
    "gd-is-sgd",
    "gradients-pile-up",
    "step-without-gradient",
    "aliased-gather",
    "missing-division",
    "divided-twice",
    "not-its-name-all-reduce",
    "not-its-name-star",
    "timing-not-synchronised",
    "timing-wait-inside",
    "partition-overlap-own-random-numbers",
    "partition-coverage",
    "same-order",
    "wrong-len",
    "sampling-same-draws",
    "parameters-not-broadcast",
    "never-overlaps",
    "gradients-lost",
    "bytes-zero",
}
"""made in every run of the tests; the others by `make test-long`"""


def test_the_famous_ones_exist():
    assert {str(wrong) for wrong in ALL} >= FAMOUS


def marked(wrong: Wrong) -> object:
    rare = [] if str(wrong) in FAMOUS else [pytest.mark.slow]
    return pytest.param(wrong, id=str(wrong), marks=rare)


@pytest.mark.parametrize("wrong", [marked(wrong) for wrong in ALL])
def test_a_mistake_is_named(wrong: Wrong, ask, tmp_path):
    """Checks that start ranks are asked alone; of the others of a file only one may complain."""
    folder = wrong.write(tmp_path / "lab")
    verdicts = ask(wrong.lab, folder, *ASKED.get(wrong.file, [wrong.check]))
    found = verdicts[wrong.check]
    assert (found.status, found.mistake) == (Status.WRONG, wrong.mistake), found
    others = {v.check: v.mistake for v in verdicts.values() if v.status is not Status.PASS}
    del others[wrong.check]
    assert set(others.values()) <= ALSO.get(str(wrong), set()), others
    for language in Language:
        told = explain_verdict(found, language)
        lines = "\n".join(told.lines())
        assert told.expected
        assert told.seen
        assert told.belief
        given = str(found.facts.get("got"))
        assert "{" not in lines.replace("{'worker1': 4096}", "").replace(given, "")
        assert "—" not in told.expected + told.belief, "a fact is missing"


ASKED = {
    "optimizers.py": ["gd.step", "sgd.step", "adam.step", "optimizers.without-gradient"],
    "training.py": ["train.gd", "train.sgd"],
    "samplers.py": [
        *(f"partition.{what}" for what in ("parts", "epochs", "len")),
        *(f"sampling.{what}" for what in ("draws", "epochs", "len")),
    ],
}
"""checks that start no ranks, by the file that they look at"""
ALSO = {
    "gradients-pile-up": {"gradients-pile-up"},  # for SGD as well as for GD
    "step-without-gradient": {"step-without-gradient"},
    "step-without-gradient-thrown-away": {"step-without-gradient"},
    "wrong-len": {"wrong-len", "sampling-count"},  # of both samplers; one draws by its own len()
    "sampling-count": {"wrong-len"},
    "partition-overlap-own-random-numbers": {"epoch-not-repeatable"},
    "partition-overlap-filled-up": {"wrong-len"},
    "partition-coverage": {"wrong-len"},
    "partition-unequal": {"wrong-len"},
    "partition-not-random": {"same-order"},
}
"""what one mistake makes other checks say, too"""


@pytest.mark.parametrize("lab", [1, 2, 3, 4])
def test_a_solution_passes(lab, ask):
    verdicts = ask(lab, SOLUTIONS / str(lab))
    assert [verdict for verdict in verdicts.values() if verdict.status is not Status.PASS] == []


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_holes_are_to_do(lab, ask, tmp_path):
    for name, text in starter_files(lab).items():
        (tmp_path / name).write_text(text)
    verdicts = ask(lab.number, tmp_path)
    imports = {f"{module}.import" for module in lab.modules}
    for check, verdict in verdicts.items():
        assert verdict.status is (Status.PASS if check in imports else Status.TO_DO), verdict
        assert check_title(check, Language.ZH) != check_title(check, Language.EN)


def test_a_full_batch_in_chunks_is_gd(ask, tmp_path):
    folder = tmp_path / "lab"
    shutil.copytree(SOLUTIONS / "1", folder)
    text = (folder / "training.py").read_text()
    old = "        loss = loss_fn(model(inputs[batch]), targets[batch])\n        loss.backward()\n"
    assert old in text
    new = """        for part in batch.split(5):
            loss = loss_fn(model(inputs[part]), targets[part]) * len(part) / len(batch)
            loss.backward()
"""
    (folder / "training.py").write_text(text.replace(old, new))
    verdicts = ask(1, folder)
    assert all(verdict.status is Status.PASS for verdict in verdicts.values())


RING_IN_PIECES = """
def average_by_ring(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = list(tensor.tensor_split(n))
    for step in range(2 * (n - 1)):
        k = (rank - 1 - step) % n
        work = dist.isend(pieces[(rank - step) % n].clone(), (rank + 1) % n)
        incoming = torch.empty_like(pieces[k])
        dist.recv(incoming, (rank - 1) % n)
        work.wait()
        pieces[k].copy_(incoming + pieces[k] if step < n - 1 else incoming)
    tensor /= n
"""


RING_TO_THE_LEFT = """
def average_by_ring(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    outgoing, total = tensor.clone(), tensor.clone()
    for _ in range(n - 1):
        incoming = torch.empty_like(tensor)
        both = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, outgoing, (rank - 1) % n),
                dist.P2POp(dist.irecv, incoming, (rank + 1) % n),
            ]
        )
        for work in both:
            work.wait()
        total += incoming
        outgoing = incoming
    tensor.copy_(total / n)
"""


@pytest.mark.parametrize("ring", [RING_IN_PIECES, RING_TO_THE_LEFT], ids=["pieces", "left"])
def test_other_rings_are_rings(ring, ask, tmp_path):
    folder = tmp_path / "lab"
    shutil.copytree(SOLUTIONS / "2", folder)
    with (folder / "aggregation.py").open("a") as file:
        file.write(ring)
    found = ask(2, folder, "average.ring")["average.ring"]
    assert found.status is Status.PASS, found


TORCH_STYLE = """
class GD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.add_(param.grad, alpha=-group["lr"])
"""


def test_an_optimizer_may_be_one_of_torchs_kind(ask, tmp_path):
    folder = tmp_path / "lab"
    shutil.copytree(SOLUTIONS / "1", folder)
    with (folder / "optimizers.py").open("a") as file:
        file.write(TORCH_STYLE)
    verdicts = ask(1, folder, "gd.step", "optimizers.without-gradient", "train.gd")
    assert {verdict.status for verdict in verdicts.values()} == {Status.PASS}, verdicts
