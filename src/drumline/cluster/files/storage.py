"""The permanent storage of a cluster, and where a job goes on from: runs that outlive the nodes.

    during and after a run   node (its own role)  ──▶  storage      `keep_copies`
    or by the laptop         pull, then           ──▶  storage      `store_run`
    another cluster          storage ──▶ a run directory again      `latest_run`, `fetch_run`
    a job that resumes       leader, laptop or storage ──▶ leader   `offer_checkpoints`

What lies there, and why it is whole at every moment, says `drumline.node.storage`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from drumline.cluster.life.limits import kept_busy
from drumline.cluster.providers import Reporter
from drumline.cluster.ssh.remote import Note, Remote, all_of, host_error, node_python
from drumline.core.errors import ClusterError, HostError, UsageError
from drumline.core.formatting import listed
from drumline.core.json_lines import encode
from drumline.node.keeper import CopyRequest
from drumline.node.storage import Manifest, Store, shown_url

LAPTOP = "laptop"
EVERY_S = 30.0
_ANSWER_S = 60.0


async def keep_copies(
    remotes: Sequence[Remote],
    url: str,
    job_id: str,
    *,
    every_s: float = EVERY_S,
    check: bool = True,
) -> None:
    """Have every node copy a job's files (its run directory) to the storage until the job ends.

    `check`: wait for each to see whether it may use the storage, which can take a while; else
    one that may not only notes so beside the run (storage.json), and `pull` does its part.
    """

    async def ask(remote: Remote) -> str:
        root, writer = remote.machine.root, remote.machine.name
        request = CopyRequest(
            root=root, job=job_id, url=url, writer=writer, every_s=every_s, check=check
        )
        argv = [node_python(remote.machine), "-m", "drumline.node.keeper"]
        done = await remote.run(argv, given=encode(**request.to_json()), timeout_s=_ANSWER_S)
        if (answer := done.message) is None:
            return done.complaint[-600:] or "no answer"
        return str(answer.get("error", ""))

    refused: dict[str, list[str]] = {}
    for remote, why in zip(remotes, await all_of(map(ask, remotes)), strict=True):
        if why:
            refused.setdefault(why, []).append(remote.machine.name)
    if refused:
        told = (f"{listed(who)} cannot copy to the storage: {why}" for why, who in refused.items())
        raise HostError("; ".join(told))


def store_run(
    url: str, job_id: str, folder: Path, report: Reporter, *, stored: bool, ended: bool
) -> None:
    """Copy a pulled job's run from here to the storage, unless its nodes have (`stored`)."""
    try:
        if stored and _seen_here(Store(url), job_id):
            return
        report(job_id, f"to {shown_url(url)}")
        Store(url).copy(folder / "run", job_id, LAPTOP, ended=ended)
    except ClusterError as error:
        if not stored:
            raise
        report(job_id, f"the nodes have stored it, but from here: {error.message}")


def _seen_here(store: Store, run: str) -> bool:
    """Whether the laptop sees, at the storage's URL, the files that the nodes have stored there.

    A folder of the nodes' own disks has the same address, and goes with them.
    """
    if not store.is_folder:
        return True
    return any(copy.ended for copy in store.manifests(run) if copy.writer != LAPTOP)


def stored_by_nodes(folder: Path, *, nodes: int) -> bool:
    """Whether as many nodes say in a pulled job that they brought all of it to the storage."""
    notes = [folder / "storage.json", *folder.glob("nodes/*/storage.json")]
    try:
        told = [json.loads(note.read_text()) for note in notes]
    except (OSError, ValueError):
        return False
    return len(told) >= nodes and all(note["ended"] and not note["error"] for note in told)


def latest_run(url: str) -> str | None:
    """Return the run in the storage that was at work last and has checkpoints, or None."""
    changed: dict[str, float] = {}
    resumable: set[str] = set()
    for copy in Store(url).manifests():
        for name, file in copy.files.items():
            changed[copy.run] = max(file.mtime, changed.get(copy.run, 0.0))
            if name.startswith("checkpoints/step-"):
                resumable.add(copy.run)
    return max((run for run in changed if run in resumable), key=changed.__getitem__, default=None)


def fetch_run(url: str, run: str, into: Path) -> Path:
    """Download the files of a run from the cluster's storage: all of them, verified, or none."""
    if into.exists():
        raise ClusterError(f"{into} exists already; choose another folder for the copy of {run}")
    store = Store(url)
    copies = store.manifests(run)
    if not copies:
        known = ", ".join(dict.fromkeys(found.run for found in store.manifests()[:5]))
        raise ClusterError(
            f"the storage {shown_url(url)} has no run {run!r}; "
            + (f"the newest are {known}" if known else "it has none at all")
        )
    into.parent.mkdir(parents=True, exist_ok=True)
    part = into.with_name(f".{into.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        for name, copy in _choose(copies).items():
            store.restore(copy, name, part / name)
        part.rename(into)
    except OSError as error:
        raise ClusterError(f"cannot write {into}: {error.strerror}; make room there") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return into


def _choose(copies: Sequence[Manifest]) -> dict[str, Manifest]:
    """Say which writer's copy of each file to take: the one that was changed last."""
    chosen: dict[str, Manifest] = {}
    for copy in copies:
        for name, file in copy.files.items():
            if name not in chosen or chosen[name].files[name].mtime < file.mtime:
                chosen[name] = copy
    return chosen


LATEST = "latest"
_PIECE = 1 << 18
_ASK_S, _WRITE_S = 30.0, 300.0


async def offer_checkpoints(
    leader: Remote, job: str, *, pulled: Path | None, storage: str | None, note: Note
) -> str:
    """Bring an earlier job's checkpoints to the leader, for a job that resumes; returns the path.

    `job`: its id, or `latest`: the one that the storage got last.
    `pulled`: where its results are on this machine, if they are.
    `storage`: where run directories are copied to, if anywhere.
    """
    if job == LATEST:
        if storage is None:
            raise UsageError("latest means the storage's, but cluster.yaml names none; name a job")
        if (latest := await asyncio.to_thread(latest_run, storage)) is None:
            raise UsageError(
                f"the storage {shown_url(storage)} has no run with checkpoints yet; leave --resume "
                f"out"
            )
        job = latest
    place = f"jobs/{job}/run"
    there = ["sh", "-c", 'ls -d "$1"/step-*', "sh", f"{leader.machine.root}/{place}/checkpoints"]
    if (await leader.run(there, timeout_s=_ASK_S)).code == 0:
        return place
    if pulled is not None and any((pulled / "run" / "checkpoints").glob("step-*")):
        return await _send(leader, job, pulled / "run", note)
    if storage is None:
        raise UsageError(
            f"nobody has checkpoints of {job}: not the leader, and it was not pulled; name another "
            f"job (drumline status), or a storage in cluster.yaml"
        )
    with tempfile.TemporaryDirectory() as folder:
        note(f"{job}: from {shown_url(storage)}")
        run = await asyncio.to_thread(fetch_run, storage, job, Path(folder) / "run")
        return await _send(leader, job, run, note)


async def _send(leader: Remote, job: str, run: Path, note: Note) -> str:
    """Bring the newest checkpoint to the leader."""
    steps = sorted((run / "checkpoints").glob("step-*"))
    if not steps:
        raise UsageError(f"{job} has no checkpoint to go on from; start a new run")
    place = f"resumed/{job}"
    note(f"{job}: {steps[-1].name} to {leader.machine.name}")
    target = f"{leader.machine.root}/{place}/checkpoints"
    with tempfile.TemporaryFile() as packed:
        await asyncio.to_thread(_pack, steps[-1], packed)
        process = await leader.start(
            ["sh", "-c", 'mkdir -p "$1" && tar -xf - -C "$1"', "sh", target]
        )
        try:
            async with kept_busy([leader]):
                while piece := packed.read(_PIECE):
                    await asyncio.wait_for(process.write(piece), _WRITE_S)
                await process.end_input()
                done = await asyncio.wait_for(process.wait(), _WRITE_S)
        except TimeoutError:
            text = f"it has taken nothing of the checkpoint for {_WRITE_S:.0f} s; submit again"
            raise host_error(leader.machine, "stalled", text) from None
        finally:
            process.stop()
    if done.code:
        text = f"it cannot take the checkpoint: {done.complaint}; is its disk full?"
        raise host_error(leader.machine, "resume", text)
    return place


def _pack(step: Path, into: IO[bytes]) -> None:
    with tarfile.open(fileobj=into, mode="w") as archive:
        archive.add(step, arcname=step.name)
    into.seek(0)
