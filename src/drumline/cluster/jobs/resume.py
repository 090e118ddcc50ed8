"""Where a job goes on from: an earlier one's checkpoints, wherever they are by now.

on the leader      jobs/<id>/run                     the same cluster
on this machine    what `pull` has brought           another cluster, or the nodes are gone
in the storage     s3://bucket/prefix/<id>           another cluster, another laptop
"""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from drumline.cluster.files.storage import fetch_run, latest_run
from drumline.cluster.life.limits import kept_busy
from drumline.cluster.ssh.remote import Note, Remote, host_error
from drumline.core.errors import UsageError
from drumline.node.storage import shown_url

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
        job = await asyncio.to_thread(_latest, storage)
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


def _latest(storage: str | None) -> str:
    if storage is None:
        raise UsageError("latest means the storage's, but cluster.yaml names none; name a job")
    found = latest_run(storage)
    if found is None:
        raise UsageError(
            f"the storage {shown_url(storage)} has no run with checkpoints yet; leave --resume out"
        )
    return found.run


async def _send(leader: Remote, job: str, run: Path, note: Note) -> str:
    """Bring the newest checkpoint to the leader."""
    steps = sorted((run / "checkpoints").glob("step-*"))
    if not steps:
        raise UsageError(f"{job} has no checkpoint to go on from; start a new run")
    place = f"resumed/{job}"
    note(f"{job}: {steps[-1].name} to {leader.machine.name}")
    target = f"{leader.machine.root}/{place}/checkpoints"
    with await asyncio.to_thread(_pack, steps[-1]) as packed:
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
            raise host_error(
                leader.machine,
                "stalled",
                f"it has taken nothing of the checkpoint for {_WRITE_S:.0f} s; submit again",
            ) from None
        finally:
            process.stop()
    if done.code:
        text = f"it cannot take the checkpoint: {done.complaint}; is its disk full?"
        raise host_error(leader.machine, "resume", text)
    return place


def _pack(step: Path) -> IO[bytes]:
    packed = tempfile.TemporaryFile()  # noqa: SIM115  closed by whoever reads it
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(step, arcname=step.name)
    packed.seek(0)
    return packed
