"""What lab 1 runs, each on one worker with the machine's threads, or on a rank of each node.

    <optimizer>-<n>            ours, for each seed
    <optimizer>-torch-<n>      torch's, with the same options
    <optimizer>-lr<rate>       another learning rate, for fewer steps
    <optimizer>-order-<kind>   the same first weights, the samples in another order (gd, sgd)
    gd-whole                   gradient descent with all samples at once, not in chunks

GD takes one step for all samples, so it gets many epochs, and still fewer steps than the others.
On simulated nodes ranks share each batch and average their gradients: the same steps, at another
price.
"""

from __future__ import annotations

from dataclasses import dataclass

from drumline.labs.experiment import LabSettings, Options, Training, build_training, train_samples

ENGINES = {"drumline": "", "torch": "-torch"}
"""whose optimizer it is, and what is behind its name in that of a run"""
OPTIMIZERS = ("gd", "sgd", "momentum", "adam")
RATES = {"gd": 0.1, "sgd": 0.1, "momentum": 0.02, "adam": 0.001}
"""learning rates"""
MOMENTUM = 0.9
BATCH = 64
CHUNK = 1_000
"""samples that GD computes at once; its step is that of all of them"""
ORDERS = ("shuffle", "random", "contiguous")
"""partitions that give one worker all samples, each in another order; the first is the usual one"""
ORDERED = ("gd", "sgd")
WHOLE = "gd-whole"
_SHARED: Options = {
    "model": "mlp",
    "device": "cpu",
    "checkpoint": {"every_steps": 1_000_000, "keep": 1},
}
"""checkpoints at the end only: steps are timed"""


@dataclass(frozen=True, kw_only=True)
class OptimizersPlan:
    """How large the lab is; in its long form unless told otherwise."""

    repeats: int = 5
    """seeds"""
    epochs: int = 8
    """of those that step after each batch"""
    gd_steps: int = 100
    short_epochs: int = 3
    """of runs with another learning rate"""
    short_gd_steps: int = 30
    factors: tuple[float, ...]
    """what learning rates are multiplied by; 1 is among them"""

    def length(self, optimizer: str, *, short: bool = False) -> int:
        """Return the epochs of a run; an epoch of GD is one step."""
        if optimizer == "gd":
            return self.short_gd_steps if short else self.gd_steps
        return self.short_epochs if short else self.epochs


def plan(settings: LabSettings) -> OptimizersPlan:
    """Say how large lab 1 is with these settings: repeats, epochs, learning rates."""
    if settings.full:
        return OptimizersPlan(factors=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30))
    factors = (0.01, 0.1, 1, 10)
    lengths = {"epochs": 4, "gd_steps": 40, "short_epochs": 2, "short_gd_steps": 20}
    return OptimizersPlan(repeats=3, factors=factors, **lengths)


def learning_rate(optimizer: str, factor: float) -> float:
    """Return lab 1's learning rate at a multiple of the usual one, rounded: 0.3 for 3 · 0.1."""
    return float(f"{RATES[optimizer] * factor:g}")


def rate_name(optimizer: str, factor: float) -> str:
    """Name lab 1's run at another learning rate; at the usual one it is that of the first seed."""
    return f"{optimizer}-" + ("1" if factor == 1 else f"lr{learning_rate(optimizer, factor):g}")


def order_name(optimizer: str, order: str) -> str:
    """Name lab 1's run that takes the samples in another order."""
    return f"{optimizer}-1" if order == ORDERS[0] else f"{optimizer}-order-{order}"


def plan_experiments(settings: LabSettings) -> list[Training]:
    """List the runs of lab 1; rivals lie side by side, as the machine may change."""
    of = plan(settings)
    found: list[Training] = []
    for number in range(of.repeats):
        for optimizer in OPTIMIZERS:
            for engine, end in ENGINES.items():
                name = f"{optimizer}{end}-{number + 1}"
                options = {"seed": settings.seed + number, "optimizer": {"engine": engine}}
                found.append(_train(settings, name, optimizer, of.length(optimizer), options))
    for optimizer in ORDERED:
        epochs = of.length(optimizer, short=optimizer != "gd")
        for order in ORDERS[1:]:
            name, data = order_name(optimizer, order), {"data": {"partition": order}}
            found.append(_train(settings, name, optimizer, epochs, data))
    whole = {"data": {"batch": train_samples(settings)}}
    found.append(_train(settings, WHOLE, "gd", of.short_gd_steps, whole))
    for optimizer in OPTIMIZERS:
        epochs = of.length(optimizer, short=True)
        for factor in of.factors:
            if factor != 1:
                name = rate_name(optimizer, factor)
                found.append(_train(settings, name, optimizer, epochs, {}, factor=factor))
    return found


def _train(
    settings: LabSettings,
    name: str,
    optimizer: str,
    epochs: int,
    options: Options,
    *,
    factor: float = 1,
) -> Training:
    momentum = optimizer == "momentum"
    rule: Options = {
        "name": "sgd" if momentum else optimizer,
        "lr": learning_rate(optimizer, factor),
        "momentum": MOMENTUM if momentum else 0.0,
    }
    batch = {"batch": CHUNK if optimizer == "gd" else BATCH}
    usual: Options = {**_SHARED, "optimizer": rule, "data": batch, "epochs": epochs}
    ranks, diverges = settings.nodes, factor != 1
    return build_training(settings, name, usual, options, ranks=ranks, may_diverge=diverges)
