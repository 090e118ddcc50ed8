"""What a user might bring along to train by: named in specs as `own_parts:…`."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LinearLR, SequentialLR
from torch.utils.data import TensorDataset


def points(count=101, tests=37, held_out=0):
    """A regression: the targets are floats, [n]."""
    x = torch.randn(count + tests + held_out, 3, generator=torch.Generator().manual_seed(5))
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * x.prod(1)
    parts = [t.split([count, tests, held_out]) for t in (x, y)]
    sets = [TensorDataset(*pair) for pair in zip(*parts, strict=True)]
    return tuple(sets) if held_out else tuple(sets[:2])


def net(width=8):
    """Gives [n, 1], where the targets are [n]."""
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))


def normed():
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))


def sentences(count=23):
    """Tokens and the class of each, of sentences of 1 to 9 tokens, some of them without a class."""
    random = torch.Generator().manual_seed(7)
    found = []
    for _ in range(count):
        length = int(torch.randint(1, 10, (), generator=random))
        tokens = torch.randint(6, (length,), generator=random)
        found.append((tokens, torch.where(tokens == 0, -100, tokens % 4)))
    return found, found[:5]


def padded(samples):
    """A collate: one batch, padded to its longest sentence by what does not count."""
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    tokens, classes = zip(*samples, strict=True)
    return pad(tokens), pad(classes, padding_value=-100)


def tagger():
    return nn.Sequential(nn.Embedding(6, 5), nn.Linear(5, 4))


def smoothed(outputs, targets, smoothing=0.1):
    """A value for each sample."""
    return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)


def mean_loss(outputs, targets):
    return smoothed(outputs, targets).mean()


def sum_loss(outputs, targets):
    return smoothed(outputs, targets).sum()


def detached(outputs, targets):
    return (outputs.detach().argmax(1) != targets).float()


def text_loss(outputs, targets):
    return "a loss"


class Weighted(nn.Module):
    """A factory of a loss."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = weight

    def forward(self, outputs, targets):
        return self.weight * smoothed(outputs, targets)


def trained_loss():
    return nn.Bilinear(2, 2, 1)


class SignDescent(Optimizer):
    """An optimizer of one's own, with a group's options."""

    def __init__(self, params, lr=0.01, decay=0.0):
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.mul_(1 - group["lr"] * group["decay"])
                    p.add_(torch.tanh(p.grad), alpha=-group["lr"])


def by_name(named_parameters, lr=0.01):
    """A factory that makes groups of its own."""
    weights = [p for name, p in named_parameters if p.dim() > 1]
    others = [p for name, p in named_parameters if p.dim() <= 1]
    return torch.optim.RMSprop([{"params": weights}, {"params": others, "lr": lr / 2}], lr=lr)


def with_closure(params):
    return torch.optim.LBFGS(params)


def falling(step, total_steps, floor=0.1):
    """A schedule that is a function of the step."""
    return floor + (1 - floor) * (1 - step / total_steps) ** 2


def warmed_up(optimizer, steps_per_epoch):
    """A schedule that is one of torch's, made of two."""
    rising = LinearLR(optimizer, start_factor=0.1, total_iters=3)
    return SequentialLR(optimizer, [rising, ExponentialLR(optimizer, 0.9)], milestones=[3])


def bias(outputs, targets):
    """A metric as (sum, count)."""
    return (outputs.flatten() - targets).sum(), len(targets)


def far_off(outputs, targets, limit=0.5):
    """A metric as a value for each sample."""
    return ((outputs.flatten() - targets).abs() > limit).float()


class F1:
    """A metric of sums: of true positives, and of both kinds of errors."""

    def __call__(self, outputs, targets):
        said, true = outputs.flatten() > 0, targets > 0
        return torch.stack([(said & true).sum(), (said != true).sum()])

    def compute(self, sums):
        right, wrong = sums
        return 2 * right / (2 * right + wrong)


class Torchmetrics(F1):
    """A metric that keeps its sums itself, as those of torchmetrics do."""

    def compute(self):
        return torch.tensor(0.5)


class StopAfter:
    """A callback that ends the run, on one rank alone."""

    def __init__(self, epochs, rank=0):
        self.epochs, self.rank = epochs, rank

    def on_epoch_end(self, moment):
        return moment.epoch + 1 == self.epochs and moment.rank == self.rank


class FailOn:
    """A callback that fails, or takes for ever, on one rank alone."""

    def __init__(self, rank, how):
        self.rank, self.how = rank, how

    def on_step_end(self, moment):
        if (moment.rank, moment.step) == (self.rank, 2):
            if self.how == "raise":
                raise ZeroDivisionError("a callback divides by zero")
            time.sleep(60)


def on_one_rank(outputs, targets):
    """A metric that fails on rank 1 alone."""
    return 1 / (int(os.environ["RANK"]) != 1)


class Notes:
    """A callback that writes down what it was called with."""

    def __init__(self, path):
        self.path = Path(path)

    def _note(self, method, moment):
        with self.path.with_suffix(f".{moment.rank}").open("a") as file:
            known = sorted(moment.scores)
            file.write(json.dumps([method, moment.step, moment.epoch, known]) + "\n")

    def on_train_begin(self, moment):
        self._note("begin", moment)

    def on_step_end(self, moment):
        assert moment.loss > 0
        self._note("step", moment)

    def on_epoch_end(self, moment):
        self._note("epoch", moment)

    def on_train_end(self, moment):
        self._note("end", moment)


class Lines:
    """A logger that writes lines."""

    def __init__(self, run_dir, name, spec, to):
        self.file = (run_dir / to).open("w")
        self.note("start", name, spec["model"]["name"], os.environ.get("RANK"))

    def note(self, *what):
        print(json.dumps(what), file=self.file, flush=True)

    def log(self, step, values):
        self.note("log", step, values)

    def finish(self, summary):
        self.note("finish", summary)
        self.file.close()


class Slow:
    """A logger whose service takes its time."""

    def __init__(self, seconds, run_dir):
        self.seconds, self.file = seconds, run_dir / "slow"

    def log(self, step, values):
        time.sleep(self.seconds)
        with self.file.open("a") as file:
            print(step, file=file)

    def finish(self, summary):
        with self.file.open("a") as file:
            print("finish", file=file)


class Table:
    """A logger that writes rows of a database, which belongs to the thread that opened it."""

    def __init__(self, run_dir):
        self.table = sqlite3.connect(run_dir / "table")
        self.table.execute("create table seen (step, loss)")

    def log(self, step, values):
        self.table.execute("insert into seen values (?, ?)", (step, values["loss"]))

    def finish(self, summary):
        self.table.commit()
        self.table.close()


class Broken:
    """A logger whose service is away."""

    def log(self, step, values):
        raise ConnectionError("the server is away")

    def finish(self, summary):
        raise AssertionError("a logger that failed is not called again")
