"""Time drumline's optimizers against torch.optim's, as ratios, on the parameters of real models.

    python benchmarks/optimizers.py [--rounds 60] [--device cpu] [--threads 1] [--json PATH]

Three rivals take turns within each round, so that a busy moment of the machine hits all of them:
torch.optim as it comes (on a CPU a loop over parameters, on a GPU foreach), torch.optim with
foreach=True, and drumline. The ratio is drumline's time over the rival's of the same round: below 1
drumline is faster. Printed are the median over the rounds and its quartiles.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from drumline.core.spec import ModelSpec
from drumline.models import build_model
from drumline.optim import GD, SGD, Adam

Stepper = Callable[[], object]
INNER = 5  # steps per turn, so that the clock is small against them


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One line of the table."""

    model: str
    rule: str
    rival: str
    rival_us: float
    drumline_us: float
    ratio: float
    low: float
    high: float


def rules() -> dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]]:
    """Return, by name, both classes and the options of each."""
    torch_sgd, torch_adam = torch.optim.SGD, torch.optim.Adam
    look_ahead = {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
    decay = {"weight_decay": 1e-2}
    return {
        "gd": (GD, torch_sgd, {}, {}),
        "sgd": (SGD, torch_sgd, {}, {}),
        "sgd momentum": (SGD, torch_sgd, {"momentum": 0.9}, {"momentum": 0.9}),
        "sgd nesterov+decay": (SGD, torch_sgd, look_ahead, look_ahead),
        "adam": (Adam, torch_adam, {}, {}),
        "adam+decay": (Adam, torch_adam, decay, decay),
        "adam decoupled": (Adam, torch.optim.AdamW, {**decay, "decoupled": True}, decay),
    }


def parameters(model: str, device: str) -> list[torch.nn.Parameter]:
    classes = 65 if model == "gpt-mini" else 10
    net = build_model(ModelSpec(name=model), classes=classes, seed=0).to(device)
    found = list(net.parameters())
    for parameter in found:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return found


def rivals(rule: str, model: str, device: str) -> dict[str, Stepper]:
    ours, theirs, our_options, their_options = rules()[rule]
    return {
        "torch default": theirs(parameters(model, device), lr=1e-4, **their_options).step,
        "torch foreach": theirs(
            parameters(model, device), lr=1e-4, foreach=True, **their_options
        ).step,
        "drumline": ours(parameters(model, device), lr=1e-4, **our_options).step,
    }


def seconds(step: Stepper, device: str) -> float:
    start = time.perf_counter()
    for _ in range(INNER):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / INNER


def race(steppers: dict[str, Stepper], device: str, rounds: int) -> dict[str, list[float]]:
    """Let the rivals take turns, another one first in each round."""
    for step in steppers.values():
        seconds(step, device)  # state is made, caches are warm
    times: dict[str, list[float]] = {name: [] for name in steppers}
    names = list(steppers)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(seconds(steppers[name], device))
    return times


def compare(model: str, rule: str, times: dict[str, list[float]]) -> Iterator[Ratio]:
    ours = times.pop("drumline")
    for rival, theirs in times.items():
        low, middle, high = statistics.quantiles(
            [a / b for a, b in zip(ours, theirs, strict=True)], n=4
        )
        yield Ratio(
            model=model,
            rule=rule,
            rival=rival,
            rival_us=round(statistics.median(theirs) * 1e6, 1),
            drumline_us=round(statistics.median(ours) * 1e6, 1),
            ratio=round(middle, 3),
            low=round(low, 3),
            high=round(high, 3),
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (a rank has few)")
    parser.add_argument("--json", type=Path, help="write the table here, too")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    rows: list[Ratio] = []
    print(f"torch {torch.__version__}, {args.device}, {args.threads} threads, {args.rounds} rounds")
    print(
        f"{'model':10}{'rule':20}{'rival':15}{'rival µs':>9}{'ours µs':>9}{'ratio':>7}  quartiles"
    )
    for model in ("cnn", "gpt-mini"):
        for rule in rules():
            times = race(rivals(rule, model, args.device), args.device, args.rounds)
            for row in compare(model, rule, times):
                rows.append(row)
                print(
                    f"{row.model:10}{row.rule:20}{row.rival:15}{row.rival_us:9.0f}"
                    f"{row.drumline_us:9.0f}{row.ratio:7.2f}  {row.low:.2f}–{row.high:.2f}"
                )
    if args.json:
        about = {"torch": torch.__version__, "machine": platform.machine(), "rounds": args.rounds}
        about |= {"device": args.device, "threads": args.threads}
        args.json.write_text(json.dumps({**about, "rows": [asdict(r) for r in rows]}, indent=2))


if __name__ == "__main__":
    main()
