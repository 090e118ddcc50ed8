"""`PeerConnection`: between the leader's process and a follower's; it is also the heartbeat.

Each follower connects to the leader's private address, and both prove by a handshake that they know
the job's secret, without sending it:

    leader   ──(1) challenge a──▶                             follower
             ◀──(2) node, challenge b, HMAC(follower, a, b)──
             ──(3) HMAC(leader, b, a)──▶

From then on both send JSON lines. Each side pings once a second: a peer that is silent for
`SILENCE_S`, or whose connection closes, is lost, and the job with it. Pings carry the clock, so
that the leader knows the offset of a follower's clock.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import select
import socket
import time
from typing import Any

from drumline.core.errors import ClusterError
from drumline.core.json_lines import JsonLines, Message, encode

PING_S = 1.0
SILENCE_S = 8.0
_HANDSHAKE_S = 5.0
_SEND_S = 5.0
_GREETING_BYTES = 4096
_MOST_BYTES = 64 << 20


class PeerConnection:
    """One end of a connection whose other end has proved who it is."""

    def __init__(self, connection: socket.socket, lines: JsonLines, node: int) -> None:
        self.node = node
        """at the other end"""
        self.lost: str | None = None
        """why the peer is gone"""
        self.ahead_s = 0.0
        """offset of its clock from ours"""
        self._connection = connection
        self._lines = lines
        self._heard = self._pinged = time.monotonic()
        self._best_s = float("inf")
        connection.settimeout(_SEND_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        """Let `select` wait for it."""
        return self._connection.fileno()

    def send(self, what: str, **fields: Any) -> None:
        """Send a message; the peer is lost where that is not possible."""
        if self.lost is None:
            try:
                self._connection.sendall(encode(what=what, **fields))
            except OSError as error:
                self._lose(f"cannot be reached any more ({error.strerror or error})")

    def tick(self) -> list[Message]:
        """Return the messages that have arrived, and keep the heartbeat; never blocks."""
        messages = [message for message in self._receive() if not self._beat(message)]
        now = time.monotonic()
        if now - self._pinged >= PING_S:
            self._pinged = now
            self.send("ping", at=time.time())
        if self.lost is None and now - self._heard > SILENCE_S:
            self._lose(f"has not been heard of for {SILENCE_S:g} s")
        return messages

    def close(self) -> None:
        """Hang up."""
        self._lose("was let go")

    def _receive(self) -> list[Message]:
        while self.lost is None and select.select([self._connection], [], [], 0)[0]:
            try:
                chunk = self._connection.recv(1 << 16)
            except OSError as error:
                chunk = b""
                self._lose(f"has lost the connection ({error.strerror or error})")
            if not chunk:
                self._lose("has closed the connection")
            self._lines.feed(chunk)
            self._heard = time.monotonic()
            if len(self._lines) > _MOST_BYTES:
                self._lose("sends what no node of ours would")
        return list(self._lines.messages())

    def _beat(self, message: Message) -> bool:
        """Answer a ping, or read the peer's clock from its pong; true if it was one of them."""
        if message["what"] == "ping":
            self.send("pong", sent=message["at"], at=time.time())
        elif message["what"] == "pong":
            now = time.time()
            took_s = now - message["sent"]
            if 0 <= took_s < self._best_s:
                self._best_s = took_s
                self.ahead_s = message["at"] - (now + message["sent"]) / 2
        else:
            return False
        return True

    def _lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = why
            self._connection.close()


def listen(address: str) -> socket.socket:
    """Listen on the leader's address for followers; a ClusterError if it is not this machine's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, 0), family=family, backlog=128)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while")[0]  # which names the address again
        raise ClusterError(
            f"the leader cannot listen on {address}: {why}; the address must be one of its own, by "
            f"which the other nodes reach it"
        ) from None


def accept_follower(connection: socket.socket, *, job: str, secret: bytes) -> PeerConnection | None:
    """Authenticate a follower node by the job's secret (leader); None for anybody else."""
    ours, lines = secrets.token_hex(16), JsonLines()
    connection.settimeout(_HANDSHAKE_S)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        connection.sendall(encode(challenge=ours))  # (1)
        answer = _receive(connection, lines)
        node, theirs = int(answer["node"]), str(answer["challenge"])
        proof = _prove(secret, "follower", job, node, ours, theirs)
        if hmac.compare_digest(proof, str(answer["proof"])):  # (2)
            proof = _prove(secret, "leader", job, node, theirs, ours)
            connection.sendall(encode(proof=proof))  # (3)
            return PeerConnection(connection, lines, node)
    connection.close()
    return None


def connect_to_leader(
    address: str, port: int, *, job: str, node: int, secret: bytes
) -> PeerConnection:
    """Connect a follower node to the job's leader node.

    Raises:
        ClusterError: nobody answers there, or somebody who does not know the secret.
    """
    try:
        connection = socket.create_connection((address, port), timeout=_HANDSHAKE_S)
    except OSError as error:
        raise ClusterError(
            f"node {node} cannot reach the leader at {address}:{port}: {error.strerror or error}; "
            f"must the network between the nodes be opened?"
        ) from None
    lines = JsonLines()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        theirs, ours = str(_receive(connection, lines)["challenge"]), secrets.token_hex(16)  # (1)
        proof = _prove(secret, "follower", job, node, theirs, ours)
        connection.sendall(encode(node=node, challenge=ours, proof=proof))  # (2)
        expected = _prove(secret, "leader", job, node, ours, theirs)
        if hmac.compare_digest(expected, str(_receive(connection, lines)["proof"])):  # (3)
            return PeerConnection(connection, lines, 0)
    connection.close()
    raise ClusterError(
        f"who listens at {address}:{port} does not know the secret of job {job}; submit it again"
    )


def _prove(secret: bytes, who: str, job: str, node: int, first: str, second: str) -> str:
    text = json.dumps([who, job, node, first, second]).encode()
    return hmac.new(secret, text, "sha256").hexdigest()


def _receive(connection: socket.socket, lines: JsonLines) -> Message:
    """Receive one short message; what follows it stays in `lines`, for the connection."""
    deadline = time.monotonic() + _HANDSHAKE_S
    while (line := lines.line()) is None:
        chunk = connection.recv(_GREETING_BYTES)
        lines.feed(chunk)
        if not chunk or len(lines) > _GREETING_BYTES or time.monotonic() > deadline:
            raise ValueError("no greeting")
    return dict(json.loads(line))
