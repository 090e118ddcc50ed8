"""Requests of notebooks on the leader: the laptop starts the jobs that they ask for.

It runs beside the tunnel to Jupyter. `drumline.node.asking` has the other side, and the picture.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from drumline.cluster.ssh.remote import Flow, Remote, last_line, node_python
from drumline.cluster.together import all_of
from drumline.core.errors import DrumlineError, HostError

_PLACE_S, _STOP_S = 120.0, 10.0


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What a notebook wants to run on all nodes."""

    argv: tuple[str, ...]
    workers: int | None = None


Submit = Callable[[LaunchRequest], Awaitable[str]]
"""starts a job on all nodes from the code that they have, and returns its id"""


async def serve_requests(remotes: Sequence[Remote], submit: Submit) -> None:
    """Start what notebooks ask for, until cancelled or the connection ends.

    Raises:
        HostError: the connection to the leader ended.
    """
    leader = remotes[0]
    words = [node_python(leader.machine), "-m", "drumline.node.asking", leader.machine.root]
    flow = await leader.start(words)
    try:
        async for line in flow.lines():
            await _serve(line, remotes, submit, flow)
        done = await flow.wait()
        said = done.stderr.decode(errors="replace").strip()[-400:] or "the connection ended"
        name = leader.machine.name
        raise HostError(f"{name} takes no more requests of notebooks: {said}", node=name)
    finally:
        flow.stop()
        with contextlib.suppress(HostError, TimeoutError):
            await asyncio.wait_for(flow.wait(), _STOP_S)


async def _serve(line: bytes, remotes: Sequence[Remote], submit: Submit, flow: Flow) -> None:
    """Serve one request; what goes wrong is told to whoever asked."""
    answer: dict[str, Any] = {}
    try:
        asked = json.loads(line)
        answer["id"] = str(asked["id"])
        request = LaunchRequest(
            argv=tuple(str(word) for word in asked["argv"]),
            workers=None if asked["workers"] is None else int(asked["workers"]),
        )
        files = json.dumps(asked["files"]).encode()
        await all_of(_place(remote, files) for remote in remotes[1:])
        answer["job"] = await submit(request)
    except DrumlineError as error:
        answer["error"] = error.message
    except (ValueError, KeyError, TypeError) as error:
        answer["error"] = f"this is no request: {error}"
    if "id" in answer:
        await flow.write(json.dumps(answer).encode() + b"\n")


async def _place(remote: Remote, files: bytes) -> None:
    """Put the leader's changed files into another node's project folder."""
    words = [node_python(remote.machine), "-m", "drumline.node.asking", remote.machine.root]
    done = await remote.run([*words, "place"], given=files, timeout_s=_PLACE_S)
    if done.code:
        name = remote.machine.name
        said = last_line(done.stderr)
        raise HostError(f"{name} did not take the leader's files: {said}", node=name)
