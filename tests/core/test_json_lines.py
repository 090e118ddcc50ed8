"""Messages and frames survive any cut of the stream between them."""

from __future__ import annotations

import io
import random

import pytest

from drumline.core.json_lines import (
    FRAME_BYTES,
    JsonLines,
    JsonStream,
    encode,
    pack_frames,
    unpack_frame,
)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_messages_come_whole_however_they_are_cut(size):
    messages = [{"text": "ü\n" * number, "number": number} for number in range(20)]
    sent = b"".join(encode(**message) for message in messages)
    lines, received = JsonLines(), []
    for start in range(0, len(sent), size):
        lines.feed(sent[start : start + size])
        received += lines.messages()
    assert received == messages
    assert len(lines) == 0


def test_lines_and_bytes_may_alternate():
    lines = JsonLines()
    lines.feed(encode(size=3) + b"\n\nx" + b"half a li")
    assert lines.line() == b'{"size":3}'
    assert lines.take(3) == b"\n\nx"
    assert lines.line() is None
    lines.feed(b"ne\n")
    assert lines.line() == b"half a line"


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"a" * FRAME_BYTES, b"b" * 10],
        [random.Random(1).randbytes(5000), b"a" * 5000],
        [b"a" * 5000, random.Random(1).randbytes(5000)],
    ],
)
def test_a_file_travels_between_messages(pieces):
    out = io.BytesIO()
    sender = JsonStream(io.BytesIO(), out)
    sender.send(send="name")
    sender.write_frames(pieces)
    sender.send(sent="name")
    receiver = JsonStream(io.BytesIO(out.getvalue()), io.BytesIO())
    assert receiver.receive() == {"send": "name"}
    assert list(receiver.read_frames()) == pieces
    assert list(receiver) == [{"sent": "name"}]
    assert receiver.receive() is None


def test_what_does_not_shrink_is_not_compressed():
    noise = random.Random(1).randbytes(1000)
    frames = list(pack_frames([noise, noise]))
    assert [len(frame) for frame in frames] == [1005, 1005, 5]
    assert len(next(pack_frames([b"a" * 1000]))) < 100


def test_what_is_cut_off_or_no_frame_is_an_error():
    whole = b"".join(pack_frames([b"content"]))
    with pytest.raises(EOFError):
        list(JsonStream(io.BytesIO(whole[:-1]), io.BytesIO()).read_frames())
    with pytest.raises(ValueError, match="no frame"):
        unpack_frame(ord("e"), b"yJh")
