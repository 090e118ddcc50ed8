"""JSON lines: the protocol between laptop, nodes and simulated machines, with frames for files.

Each message is a JSON object on a line of its own. The content of a file travels between messages,
as binary frames; a frame of length 0 ends it:

    kind: 0 raw, 1 zlib (1 byte) │ length (4 bytes, big-endian) │ content

A `Record` is a dataclass that is a message, or part of one. `JsonLines` is the decoder, without I/O
of its own: for sockets and event loops. `JsonStream` is the same over a pair of blocking streams.
Standard library only, Python 3.8.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, ClassVar, Dict  # noqa: UP035

if TYPE_CHECKING:
    from typing import Self

Message = Dict[str, Any]  # noqa: UP006  evaluated by Python 3.8
FRAME_BYTES = 1 << 18
"""of content in a frame, at most, before it is compressed"""
HEADER = struct.Struct(">BI")
_RAW, _ZLIB = 0, 1


class Record:
    """Base of a dataclass that is sent or stored as a JSON object; its fields are plain values."""

    __dataclass_fields__: ClassVar[Message]

    def to_json(self) -> Message:
        """Return the fields."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, values: Message) -> Self:
        """Read it back, lists as tuples; fields that only another version knows are ignored."""
        known = {key: values[key] for key in cls.__dataclass_fields__ if key in values}
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in known.items()})


def encode(**fields: Any) -> bytes:
    """Encode a message as a JSON line."""
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def pack_frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pack a file into frames that go between JSON lines; compressed where that shrinks them."""
    shrinks = True
    for piece in pieces:
        packed = zlib.compress(piece, 1) if shrinks else piece
        shrinks = len(packed) < len(piece)
        content = packed if shrinks else piece
        yield HEADER.pack(_ZLIB if shrinks else _RAW, len(content)) + content
    yield HEADER.pack(_RAW, 0)


def unpack_frame(kind: int, content: bytes) -> bytes:
    """Return the content of a frame; raises ValueError or zlib.error if it is not one."""
    if kind not in (_RAW, _ZLIB):
        raise ValueError(f"this is no frame: it is of kind {kind}")
    return zlib.decompress(content) if kind == _ZLIB else content


class JsonLines:
    """Decodes what has been received so far."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0

    def __len__(self) -> int:
        """Count the bytes that were received, but not yet decoded."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> None:
        """Add what was received."""
        self._buffer += chunk

    def line(self) -> bytes | None:
        """Return the next line, without its end; None while it is incomplete."""
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            return None
        return self.take(end + 1)[:-1]

    def messages(self) -> Iterator[Message]:
        """Give the complete messages; raises ValueError for what is none."""
        return map(json.loads, iter(self.line, None))

    def take(self, count: int) -> bytes:
        """Return the next bytes: so many, or as many as there are."""
        self._searched = 0
        content = bytes(self._buffer[:count])
        del self._buffer[:count]
        return content


class JsonStream:
    """JSON lines over blocking streams: standard input and output, or a socket's file."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, **fields: Any) -> None:
        """Send a message."""
        self._writer.write(encode(**fields))
        self._writer.flush()

    def receive(self) -> Message | None:
        """Wait for a message; None where the other side has closed the stream."""
        line = self._reader.readline()
        return json.loads(line) if line else None

    def __iter__(self) -> Iterator[Message]:
        return iter(self.receive, None)

    def read_exactly(self, count: int) -> bytes:
        """Read so many bytes; raises EOFError if the other side closes the stream before that."""
        content = self._reader.read(count)
        if len(content) < count:
            raise EOFError("the laptop hung up")
        return content

    def read_frames(self) -> Iterator[bytes]:
        """Give the content of a file, frame by frame."""
        while True:
            kind, length = HEADER.unpack(self.read_exactly(HEADER.size))
            if not length:
                return
            yield unpack_frame(kind, self.read_exactly(length))

    def write_frames(self, pieces: Iterable[bytes]) -> None:
        """Write the content of a file, given in pieces of `FRAME_BYTES` at most."""
        for frame in pack_frames(pieces):
            self._writer.write(frame)
