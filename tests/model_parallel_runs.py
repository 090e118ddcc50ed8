"""Run directories as lab 4 leaves them, made up without training."""

from __future__ import annotations

import dataclasses
import json

from drumline.core.rundir import RunDir
from drumline.labs.experiment import LabSettings, Results
from drumline.labs.model_parallel.experiments import AGAIN, plan_named_cases
from drumline.spec.load import write_run_spec

MS = 1_000_000
STEPS = 4
STEP_MS = {"alone": 100, AGAIN: 102, "data": 60, "tensor": 101, "rpc-x1": 140, "rpc-x4": 90}
"""of the runs whose times matter to a test; others take 80"""


def make_runs(folder, *, without=(), apart=1e-7, settings=None):
    """Leave what all cases of the lab would, but those named."""
    settings = settings or LabSettings()
    for name, case in plan_named_cases(settings):
        if name not in without:
            _leave(folder / "runs" / name, name, case.spec, 0 if case.form == "alone" else apart)
    return Results(folder=folder, settings=settings)


def _leave(path, name, spec, apart):
    run = RunDir.create("", root=path.parent, exact=path)
    write_run_spec(run, spec)
    weights = "a" * 64 if apart == 0 or "x1" in name else name
    summary = {"mesh": dataclasses.asdict(spec.axes), "backend": "gloo", "weights_sha256": weights}
    run.write_json("summary.json", summary)
    for rank in range(spec.world_size):
        events = [{"event": "ready", "step": 0}]
        events += [_step(number, name, rank, spec, apart) for number in range(1, STEPS + 1)]
        end = {"event": "end", "step": STEPS, "peak_bytes": 10**6 * (100 - 9 * rank), "sent": 4000}
        lines = [json.dumps(event) + "\n" for event in (*events, end)]
        run.rank_events(rank).write_text("".join(lines))


def _step(number, name, rank, spec, apart):
    """A step of 80 ms: a microbatch takes equally long forward and backward, on each rank."""
    long = STEP_MS.get(name, 80) * MS
    began = 200 * MS * number
    event = {
        "event": "step",
        "step": number,
        "first": number == 1,
        "loss": 4 / number + apart,
        "samples": spec.data.batch // spec.axes.data,
        "t": began,
        "data": MS // 10,
        "total": long + number * MS // 10,
        "blocked": [],
        "spans": [],
    }
    if spec.world_size > 1:
        event["blocked"] = [[began + long - MS, began + long]]
        event["spans"] = [["send", 1000 * (1 + rank), began + long - MS, began + long]]
    if spec.axes.pipeline > 1:
        event["work"] = _pieces(began, long - MS, rank, spec)
    return event


def _pieces(began, long, rank, spec):
    stages, count = spec.axes.pipeline, spec.strategy.microbatches
    turns = 2 * (count + stages - 1)
    each = long // turns
    back = began + (count + stages - 1) * each
    forward = [began + (rank + n) * each for n in range(count)]
    backward = [back + (stages - 1 - rank + n) * each for n in range(count)]
    return [
        *(["forward", n, 0, at, at + each] for n, at in enumerate(forward)),
        *(["backward", n, 0, at, at + each] for n, at in enumerate(backward)),
    ]
