"""`reach.py FOLDER NAME [PORT]`: standard input and output become a connection to a node.

OpenSSH's ProxyCommand, and asyncssh's. The host connects inside its network and hands over the
connected socket; from there on bytes are copied here alone. It ends with the connection, or as
soon as the host lets go: the node, or the host, is no more.

Standard library only, run by its path without `site`, on `_socket`: it stands before each
connection, and what `socket` adds to that takes longer than all the rest.
"""

from __future__ import annotations

import _socket
import _thread
import json
import os
import signal
import sys

_CHUNK = 1 << 18
_FD_BYTES = 4


def main(arguments: list[str]) -> int:
    """Connect standard input and output to a twin node, until one side ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever uses the connection
    folder, name = arguments[:2]
    port = int(arguments[2]) if len(arguments) > 2 else 22
    try:
        control = dial(folder)
        request = {"do": "reach", "name": name, "port": port}
        control.sendall(json.dumps(request).encode() + b"\n")
        said, handed, _, _ = control.recvmsg(65536, _socket.CMSG_LEN(_FD_BYTES))
        answer = json.loads(said or b"{}")
    except (OSError, ValueError) as error:
        answer, handed = {"error": f"the simulated nodes of {folder} do not run ({error})"}, []
    if not handed:
        print(answer.get("error", "the simulated nodes have just ended"), file=sys.stderr)
        return 1
    node = _socket.socket(fileno=int.from_bytes(handed[0][2][:_FD_BYTES], sys.byteorder))
    _thread.start_new_thread(_watch, (control,))
    _thread.start_new_thread(_send, (node,))
    try:
        while chunk := node.recv(_CHUNK):
            while chunk:
                chunk = chunk[os.write(1, chunk) :]
    except OSError:
        pass  # one of the two is gone
    os._exit(0)  # the threads have nothing to tidy


def dial(folder: str) -> _socket.socket:
    """Connect to the host process of a twin cluster's folder; raises OSError where none listens.

    The folder's path may be longer than a socket's may be.
    """
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    line = _socket.socket(_socket.AF_UNIX)
    try:
        line.connect(f"/proc/self/fd/{place}/control")
    except BaseException:
        line.close()
        raise
    finally:
        os.close(place)
    return line


def _send(node: _socket.socket) -> None:
    try:
        while chunk := os.read(0, _CHUNK):
            node.sendall(chunk)
        node.shutdown(_socket.SHUT_WR)
    except OSError:
        pass  # the reading side sees it, too


def _watch(control: _socket.socket) -> None:
    try:
        control.recv(1)
    finally:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
