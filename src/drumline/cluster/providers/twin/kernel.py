"""The system calls that nodes are made of, which Python has late or not at all. Only Linux's."""

from __future__ import annotations

import ctypes
import os

NEW_MOUNTS = 0x00020000
NEW_HOST_NAME = 0x04000000
NEW_IPC = 0x08000000
NEW_PROCESSES = 0x20000000
NEW_NETWORK = 0x40000000

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_PR_CAP_AMBIENT, _AMBIENT_RAISE, _AMBIENT_CLEAR = 47, 2, 4
_CAP_NET_BIND_SERVICE = 10


def unshare(kinds: int) -> None:
    """Leave the namespaces of these kinds for new ones."""
    _call("unshare", kinds)


def detach_mounts() -> None:
    """Keep what is mounted from here on from being seen in other mount namespaces."""
    _call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)


def mount_processes() -> None:
    """Make /proc show this namespace's processes."""
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _call("mount", b"proc", b"/proc", b"proc", flags, None)


def mount_memory(target: str, options: str) -> None:
    """Mount an empty file system that lives in memory."""
    flags = _MS_NOSUID | _MS_NODEV
    _call("mount", b"tmpfs", os.fsencode(target), b"tmpfs", flags, options.encode())


def mount_bind(source: str, target: str) -> None:
    """Show a file or folder at another place, too."""
    _call("mount", os.fsencode(source), os.fsencode(target), None, _MS_BIND, None)


def set_host_name(name: str) -> None:
    """Call this machine, as the namespace has it, by another name."""
    _call("sethostname", name.encode(), len(name.encode()))


def keep_only_low_ports() -> None:
    """Let programs that are started from here keep one right: to listen on ports below 1024.

    In a user namespace a process has all rights over it, and by those over its own read-only
    files; programs on a node are to find what they would find on a machine.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, _CAP_NET_BIND_SERVICE, 0, 0)


def _call(name: str, *arguments: int | bytes | None) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
