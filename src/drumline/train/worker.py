"""What every rank runs: `python -m drumline.train RUNDIR`, or a warm worker calling `train_rank`.

It reads the spec from the run directory, joins the others, trains, and leaves its events, its log
and, on the leader, the summary there. Errors become an event too: the launcher reads it and tells
the user.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path

import torch
import torch.distributed as dist

from drumline.comm import BackendChoice, InterfaceCounter, measure_clock, ranks_with
from drumline.core.events import EventWriter
from drumline.core.rundir import RunDir
from drumline.core.task import PATIENCE_S
from drumline.data.coverage import coverage
from drumline.models import weights_sha256
from drumline.spec.load import read_run_spec
from drumline.spec.mesh import AXES
from drumline.spec.run_spec import RunSpec
from drumline.train.assembly import Assembly, assemble, load_material
from drumline.train.bf16 import settle_bf16
from drumline.train.checkpoint import STATE, Checkpoint, CheckpointStore
from drumline.train.cuts import note_statistics
from drumline.train.disks import Disks
from drumline.train.footprint import Footprint
from drumline.train.joining import (
    join_ranks,
    leader_address,
    learn_hosts,
    leave_ranks,
    meet_ranks,
    pick_device,
    set_threads,
)
from drumline.train.loop import Loop, Result
from drumline.train.memory import keep_freed_memory
from drumline.train.memory_limit import check_room, memory_budget
from drumline.train.place import Place
from drumline.train.process import rank_process
from drumline.train.scalars import ScalarWriter


def train_rank(run_path: str) -> None:
    """Train as one rank of the run in `run_path`; ends the process if it fails."""
    run = RunDir(Path(run_path))
    with rank_process(run) as (place, events):
        _train(run, read_run_spec(run), place, events)


def _train(run: RunDir, spec: RunSpec, place: Place, events: EventWriter) -> None:
    started = time.monotonic()
    device = pick_device(spec.device, place)
    if spec.precision == "bf16" and device.type == "cpu":
        note = settle_bf16()
        if note is not None:
            events.write("note", text=note)
    keep_freed_memory()
    meeting = meet_ranks(run, spec, place)
    hosts = learn_hosts(meeting, spec.timeout_s)
    threads = set_threads(spec, ranks_with(hosts, hosts[place.rank]))
    events.write("setup", device=str(device), threads=threads)
    footprint = Footprint(device)
    with memory_budget(spec) as held:
        material = load_material(spec, held)
        check_room(spec)
        note = note_statistics(spec, material.model)
        if note is not None:
            events.write("note", text=note)
        choice = join_ranks(meeting, spec, place, device, hosts)
        events.write("backend", backend=choice.backend, wanted=spec.backend, why=choice.why)
        clock_ahead = measure_clock(
            meeting.store,
            [host.clock for host in hosts],
            rank=place.rank,
            within_s=spec.timeout_s,
        )
        events.write("clock", ahead_ns=clock_ahead)
        parts = assemble(spec, place, device, material, leader_address(spec))
        held.append(parts.compute.model)
        del material
        checkpoints = CheckpointStore(run.checkpoints, keep=spec.checkpoint.keep)
        scalars = ScalarWriter(run.tensorboard) if place.leads else None

        patience_s = max(spec.timeout_s, PATIENCE_S)
        disks = Disks(run, place, meeting, device=device, within_s=patience_s)
        loop = Loop(
            spec,
            place,
            parts,
            events=events,
            checkpoints=checkpoints,
            scalars=scalars,
            started=started,
            wait_for_disk=disks.wait,
            gather_files=disks.collect,
        )
        checkpoint = _newest(checkpoints, place, device, events, disks)
        if checkpoint is not None:
            loop.restore(checkpoint)
            events.write("restore", step=checkpoint.progress.step, path=str(checkpoint.path))
        events.write(
            "ready",
            total_steps=loop.total_steps,
            steps_per_epoch=len(parts.sampler),
            **parts.describe(),
        )
        events.flush()
        wire = InterfaceCounter()
        sent = wire.sent_bytes() or 0
        result = loop.run()
    sent = (wire.sent_bytes() or 0) - sent
    events.write("end", step=result.steps, time=time.time(), sent=sent, **footprint.peak())
    events.flush()
    if place.leads:
        _write_results(run, spec, place, parts, result, choice, checkpoints)
    if scalars is not None:
        scalars.close()
    disks.wait()
    parts.compute.close()
    # DDP's destructor must not meet gloo's threads: free it before the group (torch can deadlock)
    del loop, parts
    gc.collect()
    leave_ranks()


def _newest(
    checkpoints: CheckpointStore,
    place: Place,
    device: torch.device,
    events: EventWriter,
    disks: Disks,
) -> Checkpoint | None:
    """Return the newest whole checkpoint: the leader looks, the others open the same one."""

    def damaged(path: Path, why: str) -> None:
        events.write("damaged", path=str(path), why=why)

    found = checkpoints.newest(damaged) if place.leads else None
    disks.wait()
    step = torch.tensor(-1 if found is None else found.progress.step, device=device)
    dist.broadcast(step, src=0)
    if step.item() < 0:
        return None
    disks.spread(checkpoints.path_of(int(step.item())), STATE)
    return checkpoints.at(int(step.item()))


def _write_results(
    run: RunDir,
    spec: RunSpec,
    place: Place,
    parts: Assembly,
    result: Result,
    choice: BackendChoice,
    checkpoints: CheckpointStore,
) -> None:
    train = parts.data.train
    run.write_json(
        "coverage.json",
        coverage(
            spec.data.partition,
            n=len(train),
            labels=train.labels,
            batch=parts.batch,
            world_size=parts.axes.mesh.data,
            seed=spec.seed,
            steps=result.steps,
        ),
    )
    score = result.score
    run.write_json(
        "summary.json",
        {
            "name": run.path.name,
            "world_size": place.world_size,
            "strategy": spec.strategy.kind,
            "backend": choice.backend,
            "backend_why": choice.why,
            "model": spec.model.name,
            "parameters": parts.parameters,
            "steps": result.steps,
            "epochs": result.epochs,
            "loss": result.loss,
            "test_loss": None if score is None else score.loss,
            "accuracy": None if score is None else score.accuracy,
            "time_s": result.time_s,
            "restarts": place.attempt,
            "train_s": result.train_s,
            "samples_per_s": result.samples / result.train_s if result.train_s else 0.0,
            "mesh": dict(zip(AXES, parts.axes.mesh.shape, strict=True)),
            "weights_sha256": _hash_weights(parts, checkpoints, result.steps),
        },
    )


def _hash_weights(parts: Assembly, checkpoints: CheckpointStore, step: int) -> str:
    """Hash the whole model, which a split run has in its checkpoint only."""
    if not parts.axes.mesh.splits_model:
        return weights_sha256(parts.compute.model)
    return checkpoints.at(step).weights_sha256()
