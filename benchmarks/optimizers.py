"""Time drumline's optimizers against torch.optim's, as ratios, on the parameters of real models.

    python benchmarks/optimizers.py [--rounds 60] [--device cpu] [--threads 1] [--json PATH]

Three rivals take turns within each round, so that a busy moment of the machine hits all of them:
torch.optim as it comes (on a CPU a loop over parameters, on a GPU foreach), torch.optim with
foreach=True, and drumline. The ratio is drumline's time over the rival's of the same round: below 1
drumline is faster. Printed are the median over the rounds and its quartiles.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from measure import Row, arguments, compare, report, turns

from drumline.models import build_model
from drumline.optim import GD, SGD, Adam
from drumline.spec.parts import ModelSpec

Stepper = Callable[[], object]
INNER = 5  # steps per turn, so that the clock is small against them


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
    """Let the rivals take turns; returns µs a step."""
    for step in steppers.values():
        seconds(step, device)  # state is made, caches are warm
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for name in turns(list(steppers), rounds):
        times[name].append(seconds(steppers[name], device) * 1e6)
    return times


def main() -> None:
    parser = arguments(__doc__, rounds=60)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (a rank has few)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows: list[Row] = []
    for model in ("cnn", "gpt-mini"):
        for rule in rules():
            times = race(rivals(rule, model, args.device), args.device, args.rounds)
            rows += [
                compare(times, "drumline", rival, case=f"{model}, {rule}", unit="µs")
                for rival in ("torch default", "torch foreach")
            ]
    note = f"One step over a model's parameters, on {args.device}, {args.threads} thread(s)."
    report("Optimizers over torch.optim", note, rows, args.json)


if __name__ == "__main__":
    main()
