"""Jupyter and TensorBoard of a cluster: started on the leader, reached by a tunnel.

    browser ── 127.0.0.1:local ══ SSH ══▶ leader's 127.0.0.1:port

The tunnel lasts as long as the connection, which is as long as the command runs. The service itself
keeps running, and the next command finds it.

Beside the tunnel to Jupyter, the laptop starts the jobs that notebooks on the leader request;
`drumline.node.requests` has the other side, and the diagram.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from drumline.cluster.life.limits import touch_busy
from drumline.cluster.providers import Reporter
from drumline.cluster.ssh.remote import NodeSession, Remote, all_of, node_command, settled
from drumline.core.errors import DrumlineError, HostError
from drumline.core.json_lines import Message
from drumline.node.job import Request

ServiceName = Literal["jupyter", "tensorboard"]
_PAGES: dict[ServiceName, tuple[str, str]] = {
    "jupyter": ("/api/status", "/lab"),
    "tensorboard": ("/", "/"),
}
"""what to ask for until it answers, and what a person wants to see"""
_START_S, _PAGE_S, _PAUSE_S, _TOUCH_S, _AGAIN_S = 150.0, 60.0, 0.2, 30.0, 1.0


class MissingServiceError(HostError):
    """The leader lacks the package of a service (`package`): install it, and try again."""


@dataclass(frozen=True, kw_only=True)
class OpenService:
    """A service that answers."""

    port: int
    """on this machine"""
    url: str = field(repr=False)
    """for a person's browser; Jupyter's holds its token, so it belongs on a terminal, not in a log
    """


async def open_service(leader: Remote, name: ServiceName, report: Reporter) -> OpenService:
    """Start Jupyter or TensorBoard on the cluster's leader, unless it runs, and open a tunnel.

    Raises:
        MissingServiceError: it is not installed there.
    """
    report(leader.machine.name, f"starting {name}")
    answer = await _ask(leader, name)
    report(leader.machine.name, f"{name} listens on the node's loopback interface")
    port, token = await leader.forward(answer["port"]), answer.get("token", "")
    asked, page = _PAGES[name]
    await _wait_for_page(leader, name, port, asked, token)
    query = f"?token={token}" if token else ""
    return OpenService(port=port, url=f"http://127.0.0.1:{port}{page}{query}")


async def stay_busy(remotes: Sequence[Remote]) -> None:
    """Keep nodes from their idle shutdown while a person uses a service; until cancelled.

    Raises:
        HostError: the leader does not answer, twice in a row; nothing comes through the tunnel
            then either.
    """
    failed = False
    while True:
        # another node than the leader may be lost: that is for the jobs to tell
        touched, *_ = await settled(touch_busy(remote) for remote in remotes)
        if isinstance(touched, Exception) and (failed or not isinstance(touched, HostError)):
            raise touched
        failed = isinstance(touched, HostError)
        await asyncio.sleep(_AGAIN_S if failed else _TOUCH_S)


async def _ask(leader: Remote, name: ServiceName) -> Message:
    argv = node_command(leader.machine, "services", name, "start")
    done = await leader.run(argv, timeout_s=_START_S)
    node = leader.machine.name
    if (answer := done.message) is None:
        said = (done.complaint or f"exit code {done.code}")[-600:]
        raise HostError(
            f"{node}: {name} cannot be reached: {said}; if the node is not set up yet, run: "
            f"drumline up",
            node=node,
        )
    if package := answer.get("missing"):
        raise MissingServiceError(
            f"{node}: {answer['error']}; add it to the requirements file of your cluster.yaml and "
            f"run: drumline up",
            node=node,
            package=package,
        )
    if "error" in answer:
        raise HostError(f"{node}: {answer['error']}", node=node)
    return answer


async def _wait_for_page(leader: Remote, name: str, port: int, path: str, token: str) -> None:
    last = "nothing"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PAGE_S):
            while True:
                try:
                    last = await _first_line(port, path, token)
                except OSError as error:
                    last = str(error)
                if last.partition(" ")[2].startswith("200"):
                    return
                await asyncio.sleep(_PAUSE_S)
    raise HostError(
        f"{leader.machine.name}: {name} does not answer within {_PAGE_S:.0f} s (got {last}); look "
        f"at {leader.machine.root}/services/{name}/log there",
        node=leader.machine.name,
    )


async def _first_line(port: int, path: str, token: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        who = f"Authorization: token {token}\r\n" if token else ""
        request = f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n{who}\r\n"
        writer.write(request.encode())
        await writer.drain()
        return (await reader.readline()).decode(errors="replace").strip()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


_PLACE_S, _STOP_S = 120.0, 10.0
Submit = Callable[[Request], Awaitable[str]]
"""starts a job on all nodes from the code that they have, and returns its id"""


async def serve_requests(remotes: Sequence[Remote], submit: Submit) -> None:
    """Submit the jobs that notebooks on the leader request, until cancelled or disconnected."""
    leader = remotes[0]
    process = await leader.start(node_command(leader.machine, "requests"))
    session = NodeSession(leader.machine, process)
    try:
        while (request := await session.receive()) is not None:
            answer = await _serve(request, remotes, submit)
            if "id" in answer:
                await session.send(**answer)
        said = (await process.wait()).complaint[-400:] or "the connection ended"
        name = leader.machine.name
        raise HostError(f"{name} takes no more requests of notebooks: {said}", node=name)
    finally:
        await NodeSession.stop_all([session], _STOP_S)


async def _serve(request: Message, remotes: Sequence[Remote], submit: Submit) -> Message:
    """Serve one request, and return the answer; errors are part of it."""
    answer: Message = {}
    try:
        answer["id"] = str(request["id"])
        wanted = Request(
            argv=tuple(str(arg) for arg in request["argv"]),
            workers=None if request["workers"] is None else int(request["workers"]),
        )
        files = json.dumps(request["files"]).encode()
        await all_of(_place(remote, files) for remote in remotes[1:])
        answer["job"] = await submit(wanted)
    except DrumlineError as error:
        answer["error"] = error.message
    except (ValueError, KeyError, TypeError) as error:
        answer["error"] = f"this is no request: {error}"
    return answer


async def _place(remote: Remote, files: bytes) -> None:
    """Put the leader's changed files into another node's project folder."""
    argv = node_command(remote.machine, "requests", "place")
    done = await remote.run(argv, given=files, timeout_s=_PLACE_S)
    if done.code:
        name = remote.machine.name
        raise HostError(f"{name} did not take the leader's files: {done.last_complaint}", node=name)
