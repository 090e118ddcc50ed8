"""Jupyter and TensorBoard of a cluster: started on the leader, reached by a tunnel.

    browser ── 127.0.0.1:local ══ SSH ══▶ leader's 127.0.0.1:port

The tunnel lasts as long as the connection, which is as long as the command runs. The service itself
goes on, and is found again by the next command.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from drumline.cluster.provider import Say
from drumline.cluster.ssh.remote import Remote, node_python
from drumline.cluster.together import settled
from drumline.core.errors import HostError

ServiceName = Literal["jupyter", "tensorboard"]
MODULES: dict[ServiceName, str] = {"jupyter": "notebook", "tensorboard": "board"}
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


async def open_service(leader: Remote, name: ServiceName, say: Say) -> OpenService:
    """Start a service on the leader, or find the one that runs, and open a tunnel to it.

    Raises:
        MissingServiceError: it is not installed there.
        HostError: it does not start, or does not answer.
    """
    say(leader.machine.name, f"starting {name}")
    answer = await _ask(leader, name, "start")
    say(leader.machine.name, f"{name} listens on the node's loopback interface")
    port, token = await leader.forward(answer["port"]), answer.get("token", "")
    asked, page = _PAGES[name]
    await _wait_for_page(leader, name, port, asked, token)
    query = f"?token={token}" if token else ""
    return OpenService(port=port, url=f"http://127.0.0.1:{port}{page}{query}")


async def stay_busy(leader: Remote, remotes: Sequence[Remote]) -> None:
    """Keep nodes from ending themselves for idleness while a person works; until cancelled.

    Raises:
        HostError: the leader does not answer, twice in a row; nothing comes through the tunnel
            then either.
    """
    script = 'mkdir -p "$1/limits" && touch "$1/limits/busy"'
    nodes = {remote.machine.node: remote for remote in (leader, *remotes)}
    nodes.pop(leader.machine.node)
    failed = False
    while True:
        touched, *_ = await settled(  # another node may be lost: that is for the jobs to tell
            remote.run(["sh", "-c", script, "sh", remote.machine.root], timeout_s=20)
            for remote in (leader, *nodes.values())
        )
        if isinstance(touched, Exception) and (failed or not isinstance(touched, HostError)):
            raise touched
        failed = isinstance(touched, HostError)
        await asyncio.sleep(_AGAIN_S if failed else _TOUCH_S)


async def _ask(leader: Remote, name: ServiceName, word: str) -> dict[str, Any]:
    module = f"drumline.node.{MODULES[name]}"
    words = [node_python(leader.machine), "-m", module, leader.machine.root, word]
    done = await leader.run(words, timeout_s=_START_S)
    node = leader.machine.name
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.code}"
        raise HostError(
            f"{node}: {name} cannot be reached: {said[-600:]}; if the node is not set up yet, run: "
            f"drumline up",
            node=node,
        ) from None
    if answer.get("missing"):
        raise MissingServiceError(
            f"{node}: {answer['error']}; add it to the requirements file of your cluster.yaml and "
            f"run: drumline up",
            node=node,
            package=answer["missing"],
        )
    if "error" in answer:
        raise HostError(f"{node}: {answer['error']}", node=node)
    return answer


async def _wait_for_page(leader: Remote, name: str, port: int, path: str, token: str = "") -> None:
    """Ask for a page until it comes."""
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
