"""IDX files, the format of MNIST: a header that names type and shape, then the numbers.

    byte  0–1   zero
          2     type code of the elements (8: unsigned byte)
          3     number of dimensions d
          4–    d sizes of 4 bytes each, big-endian
          then  the elements, big-endian, last dimension fastest

Files may be gzipped; the first two bytes tell, not the name.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drumline.core.errors import DataError

_ELEMENTS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP = b"\x1f\x8b"
"""what a gzipped file begins with"""


def read_idx(path: Path, *, fix: str = "replace it with a good copy") -> npt.NDArray[Any]:
    """Read an IDX file, plain or gzipped, into an array of its shape in native byte order.

    `fix` is what the reader of an error can do about this very file.

    Raises:
        DataError: the file cannot be read, is damaged, or is no IDX file.
    """
    content = read_content(path, fix=fix)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _ELEMENTS:
        raise DataError(
            f"{path} is not an IDX file: it starts with {content[:4].hex(' ') or 'nothing'}, "
            f"expected 00 00, a type code such as 08, and the number of dimensions; {fix}",
            path=path,
        )
    element, dims = np.dtype(_ELEMENTS[content[2]]), content[3]
    header_bytes = 4 + 4 * dims
    if len(content) < header_bytes:
        raise _damaged(path, f"{len(content)} bytes", f"a header of {header_bytes}", fix)
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dims, offset=4))
    expected_bytes = header_bytes + math.prod(shape) * element.itemsize
    if len(content) != expected_bytes:
        shown = " x ".join(map(str, shape))
        raise _damaged(path, f"{len(content)} bytes", f"{expected_bytes} for {shown} elements", fix)
    elements = np.frombuffer(content, element, offset=header_bytes).reshape(shape)
    return elements.astype(element.newbyteorder("="))  # a copy, so that it can be written to


def write_idx(path: Path, array: npt.NDArray[np.uint8]) -> None:
    """Write an array of bytes as a gzipped IDX file; the same array gives the same file."""
    header = bytes((0, 0, 0x08, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes(), compresslevel=9, mtime=0))


def read_content(path: Path, *, fix: str = "replace it with a good copy") -> bytes:
    """Read a data set's file whole, decompressed if it is gzipped.

    Raises:
        DataError: the file cannot be read, or its compression is damaged.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(GZIP) else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, f"{error}".rstrip(".").lower(), "a whole gzip file", fix) from error
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror or error}; {fix}", path=path
        ) from error


def _damaged(path: Path, got: str, expected: str, fix: str) -> DataError:
    return DataError(f"{path} is damaged: got {got}, expected {expected}; {fix}", path=path)
