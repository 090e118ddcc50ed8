"""TensorBoard: scalars in the run directory's `tensorboard/`, without TensorBoard.

An event file is a sequence of TFRecords, each of which frames one protobuf message (`Event`):

    length of the message   uint64   ┐
    masked CRC-32C of it    uint32   │  little-endian
    message                 bytes    │
    masked CRC-32C of it    uint32   ┘

Four fields of two messages are all that scalars need, so they are encoded here: the viewer, its
protobuf and its gRPC are no dependency of training, but the extra `drumline[tensorboard]`.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types


class TensorBoardLogger:
    """The logger that is built in: event files in the run directory."""

    def __init__(self, run_dir: Path) -> None:
        self._scalars = ScalarWriter(run_dir / "tensorboard")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a step's numbers."""
        self._scalars.write(step, values)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Close the file; what is in the summary is in the run directory already."""
        self._scalars.close()


class ScalarWriter:
    """Append scalars to one TensorBoard event file, which is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one point of each curve."""
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            made = f"{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.0"
            self._file = (self._folder / f"events.out.tfevents.{made}").open("ab")
            self._file.write(_event(_field(3, _BYTES, b"brain.Event:2")))  # the format's version
        points = b"".join(
            _field(1, _BYTES, _field(1, _BYTES, tag.encode()) + _field(2, _FIXED32, _float(value)))
            for tag, value in values.items()
        )
        self._file.write(_event(_field(2, _VARINT, _varint(step)) + _field(5, _BYTES, points)))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _event(fields: bytes) -> bytes:
    """Frame an `Event` that has the time of now."""
    message = _field(1, _FIXED64, struct.pack("<d", time.time())) + fields
    length = struct.pack("<Q", len(message))
    return length + _masked_crc(length) + message + _masked_crc(message)


def _field(number: int, wire_type: int, value: bytes) -> bytes:
    length = _varint(len(value)) if wire_type == _BYTES else b""
    return _varint(number << 3 | wire_type) + length + value


def _varint(number: int) -> bytes:
    """Encode seven bits per byte, the lowest first; all but the last byte have the top bit."""
    septets = bytearray()
    while number > 0x7F:
        septets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*septets, number])


def _float(value: float) -> bytes:
    return bytes(ctypes.c_float.__ctype_le__(value))  # beyond float32 infinite, no OverflowError


def _masked_crc(data: bytes) -> bytes:
    """Compute CRC-32C (Castagnoli), rotated and offset as TFRecords want it."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _crc_table() -> tuple[int, ...]:
    def entry(crc: int) -> int:
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        return crc

    return tuple(map(entry, range(256)))
