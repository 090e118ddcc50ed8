"""The node's side of the sync: makes R/code identical to the laptop's folder.

    laptop                                   node
      │ {"hash": …}                            │ scans R/code meanwhile
      │ ──────────────────────────────────────▶│
      │◀────────────────────────── {"same": true}     or {"need": "manifest"}
      │ {"manifest": bytes} + zlib             │
      │ ──────────────────────────────────────▶│
      │◀─────────────────────── {"want": [numbers]}
      │ the files, as frames (core/json_lines) │ into R/code.incoming, each under its digest
      │ ──────────────────────────────────────▶│
      │◀── {"done": …}  or {"changed": [numbers]}: those do not match the manifest

Nothing of R/code is touched before all content has arrived and matches its digest; files are
replaced by renaming, never written into, since others may be reading them. What an interrupted sync
has brought is used by the next. Standard library only, Python 3.8.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import zlib
from contextlib import suppress

from drumline.core.json_lines import JsonStream
from drumline.node.folder import BusySign, Code, Entry, lock_code, wanted_folders


def _missing(code: Code, entries: list[Entry]) -> list[int]:
    """Copy what is on this node already to the incoming folder; return what is not."""
    os.makedirs(code.incoming, exist_ok=True)
    here = {digest: path for path, (digest, _) in code.files.items() if digest}
    want, seen = [], set(os.listdir(code.incoming))
    for number, entry in enumerate(entries):
        if entry.kind != "file" or code.has(entry):
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


def _receive(code: Code, entry: Entry, stream: JsonStream, busy: BusySign) -> bool:
    """Receive one file; returns whether it is what the manifest says."""
    digest = hashlib.sha256()
    draft = code.incoming + b"/draft"
    with open(draft, "wb") as file:
        for content in stream.read_frames():
            busy.tick()
            digest.update(content)
            file.write(content)
    if digest.hexdigest() != entry.digest:
        os.unlink(draft)
        return False
    os.replace(draft, code.incoming + b"/" + entry.digest.encode())
    return True


def _put_in_place(code: Code, entries: list[Entry]) -> int:
    """Make the folder what the manifest says; returns how many files and links were removed."""
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
    if code.has(entry):
        return
    if not is_last:  # others have the same content
        shutil.copyfile(source, code.incoming + b"/copy")
        source = code.incoming + b"/copy"
    os.chmod(source, 0o755 if entry.executable else 0o644)
    os.replace(source, code.at(entry.path))


def _serve(root: str, stream: JsonStream) -> None:
    """Do one sync, as drawn above."""
    os.makedirs(root, exist_ok=True)
    code, busy = Code(root), BusySign(root)
    with lock_code(root):
        code.scan()
        request = stream.receive()
        if not request:
            return
        busy.tick()
        if request["hash"] == code.hash:
            stream.send(same=True)
            return
        stream.send(need="manifest")
        length = (stream.receive() or {"manifest": 0})["manifest"]
        packed = zlib.decompress(stream.read_exactly(length))
        if hashlib.sha256(packed).hexdigest() != request["hash"]:
            raise ValueError("the manifest came damaged")
        entries = [Entry(*values) for values in json.loads(packed)]
        want = _missing(code, entries)
        stream.send(want=want)
        changed = [number for number in want if not _receive(code, entries[number], stream, busy)]
        if changed:
            stream.send(changed=changed)
            return
        removed = _put_in_place(code, entries)
        shutil.rmtree(code.incoming)
        code.write_note(request["hash"], entries)
        stream.send(done=True, removed=removed)


def main(argv: list[str]) -> int:
    """Receive a sync on the node, below its folder R; errors are sent to the laptop."""
    stream = JsonStream(sys.stdin.buffer, sys.stdout.buffer)
    try:
        _serve(argv[0], stream)
    except (OSError, ValueError, zlib.error) as error:
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.strerror}: {os.fsdecode(error.filename or argv[0])}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                # for who is to make room there: a full disk takes no other command either
                shutil.rmtree(Code(argv[0]).incoming, ignore_errors=True)
                text += " (make room there, or write what is large into .drumlineignore)"
        stream.send(error=text)
        return 1
    except EOFError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
