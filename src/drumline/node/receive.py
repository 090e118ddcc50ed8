"""The node's side of the sync: makes R/code the same as the laptop's folder.

    laptop                                   node
      │ {"hash": …}                            │ looks at R/code meanwhile
      │ ──────────────────────────────────────▶│
      │◀────────────────────────── {"same": true}     or {"need": "manifest"}
      │ {"manifest": bytes} + zlib             │
      │ ──────────────────────────────────────▶│
      │◀─────────────────────── {"want": [numbers]}
      │ frames: kind, length, content … 0      │ into R/code.incoming, each under its digest
      │ ──────────────────────────────────────▶│
      │◀── {"done": …}  or {"changed": [numbers]}: those were not what the manifest says

Nothing of R/code is touched before all content is here and proved by its digest; files are replaced
by renaming, never written into, for whoever reads them just then. What an interrupted sync has
brought is used by the next. Nothing but the standard library, Python 3.8.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import struct
import sys
import zlib
from contextlib import suppress
from typing import Any, BinaryIO

from drumline.node.folder import Busy, Code, Entry, locked, wanted_folders

FRAME = struct.Struct(">BI")
RAW, PACKED = 0, 1


def missing(code: Code, entries: list[Entry]) -> list[int]:
    """Bring what is on this node already to the incoming folder; return what is not."""
    os.makedirs(code.incoming, exist_ok=True)
    here = {digest: path for path, (digest, _) in code.files.items() if digest}
    want, seen = [], set(os.listdir(code.incoming))
    for number, entry in enumerate(entries):
        if entry.kind != "file" or code.files.get(entry.path) == (entry.digest, entry.executable):
            continue
        name = entry.digest.encode()
        if name in seen:
            continue
        seen.add(name)
        if entry.digest in here:
            draft = code.incoming + b"/draft"
            shutil.copyfile(code.at(here[entry.digest]), draft)
            os.replace(draft, code.incoming + b"/" + name)
        else:
            want.append(number)
    return want


def receive(code: Code, entry: Entry, stream: BinaryIO, busy: Busy) -> bool:
    """Take one file's frames; returns whether they are what the manifest says."""
    digest = hashlib.sha256()
    draft = code.incoming + b"/draft"
    with open(draft, "wb") as file:
        while True:
            kind, length = FRAME.unpack(exactly(stream, FRAME.size))
            if not length:
                break
            busy.tick()
            content = exactly(stream, length)
            content = zlib.decompress(content) if kind == PACKED else content
            digest.update(content)
            file.write(content)
    if digest.hexdigest() != entry.digest:
        os.unlink(draft)
        return False
    os.replace(draft, code.incoming + b"/" + entry.digest.encode())
    return True


def put_in_place(code: Code, entries: list[Entry]) -> int:
    """Make the folder what the manifest says; returns how many files and links went."""
    wanted = {entry.path: entry.kind for entry in entries}
    folders = set(wanted_folders(entries))
    code.intend(entries)
    os.makedirs(code.folder, exist_ok=True)
    gone = [path for path in code.files if wanted.get(path) != "file"]
    gone += [path for path in code.links if wanted.get(path) != "link"]
    gone = [path for path in gone if path in code.ours]
    for path in gone:
        os.unlink(code.at(path))
    for path in sorted(code.ours.intersection(code.folders) - folders, key=len, reverse=True):
        with suppress(OSError):  # somebody has put something of theirs into it
            os.rmdir(code.at(path))
    for path in sorted(folders, key=len):
        if os.path.lexists(code.at(path)) and not os.path.isdir(code.at(path)):
            os.unlink(code.at(path))
        os.makedirs(code.at(path), exist_ok=True)
    last = {entry.digest: number for number, entry in enumerate(entries)}
    for number, entry in enumerate(entries):
        if entry.kind == "file":
            _place_file(code, entry, last[entry.digest] == number)
        elif entry.kind == "link" and code.links.get(entry.path) != entry.digest:
            draft = code.incoming + b"/link"
            os.symlink(entry.digest.encode("utf-8", "surrogateescape"), draft)
            os.replace(draft, code.at(entry.path))
    return sum(path not in wanted for path in gone)


def _place_file(code: Code, entry: Entry, is_last: bool) -> None:
    source = code.incoming + b"/" + entry.digest.encode()
    if code.files.get(entry.path) == (entry.digest, entry.executable):
        return
    if not is_last:  # others have the same content
        shutil.copyfile(source, code.incoming + b"/copy")
        source = code.incoming + b"/copy"
    os.chmod(source, 0o755 if entry.executable else 0o644)
    os.replace(source, code.at(entry.path))


def exactly(stream: BinaryIO, count: int) -> bytes:
    """Read so many bytes."""
    content = stream.read(count)
    if len(content) < count:
        raise EOFError("the laptop hung up")
    return content


def tell(**facts: Any) -> None:
    """Answer the laptop."""
    sys.stdout.write(json.dumps(facts, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def serve(root: str, stream: BinaryIO) -> None:
    """Do one sync, as drawn above."""
    os.makedirs(root, exist_ok=True)
    code, busy = Code(root), Busy(root)
    with locked(root):
        code.look()
        asked = json.loads(stream.readline() or b"{}")
        if not asked:
            return
        busy.tick()
        if asked["hash"] == code.hash:
            tell(same=True)
            return
        tell(need="manifest")
        length = json.loads(stream.readline() or b'{"manifest":0}')["manifest"]
        packed = zlib.decompress(exactly(stream, length))
        if hashlib.sha256(packed).hexdigest() != asked["hash"]:
            raise ValueError("the manifest came damaged")
        entries = [Entry(*values) for values in json.loads(packed)]
        want = missing(code, entries)
        tell(want=want)
        changed = [number for number in want if not receive(code, entries[number], stream, busy)]
        if changed:
            tell(changed=changed)
            return
        removed = put_in_place(code, entries)
        shutil.rmtree(code.incoming)
        code.write_note(asked["hash"], entries)
        tell(done=True, removed=removed)


def main(argv: list[str]) -> int:
    """Sync below the folder R; errors are told to the laptop."""
    try:
        serve(argv[0], sys.stdin.buffer)
    except (OSError, ValueError, zlib.error) as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.strerror}: {os.fsdecode(error.filename or argv[0])}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                # for who is to make room there: a full disk takes no other command either
                shutil.rmtree(Code(argv[0]).incoming, ignore_errors=True)
                text += " (make room there, or write what is large into .drumlineignore)"
        tell(error=text)
        return 1
    except EOFError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
