from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from drumline.core.errors import DataError
from drumline.data.idx import read_content, read_idx, write_idx

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
HEADER = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4])
ZIPPED = gzip.compress(HEADER + bytes(24), mtime=0)


def test_reads_plain_and_gzipped_alike(tmp_path: Path) -> None:
    plain, zipped = tmp_path / "plain", tmp_path / "zipped-without-suffix"
    plain.write_bytes(HEADER + IMAGES.tobytes())
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, zipped):
        array = read_idx(path)
        np.testing.assert_array_equal(array, IMAGES)
        assert array.dtype == np.uint8
        assert array.flags.writeable


@pytest.mark.parametrize(
    ("code", "element"), [(9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")]
)
def test_reads_every_element_type(tmp_path: Path, code: int, element: str) -> None:
    values = np.array([-1, 0, 100], dtype=element)
    path = tmp_path / "values"
    path.write_bytes(bytes([0, 0, code, 1, 0, 0, 0, 3]) + values.tobytes())
    array = read_idx(path)
    np.testing.assert_array_equal(array, values)
    assert array.dtype.isnative


@pytest.mark.parametrize("shape", [(0,), (5,), (0, 28, 28), (2, 3, 4)])
def test_what_is_written_is_read_back(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype=np.uint8)
    write_idx(tmp_path / "a.gz", array)
    np.testing.assert_array_equal(read_idx(tmp_path / "a.gz"), array)


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_idx(tmp_path / name, IMAGES)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not an IDX file: it starts with nothing"),
        (b"<!DOCTYPE html>", "is not an IDX file: it starts with 3c 21 44 4f"),
        (b"\0\0\x07\x01\0\0\0\0", "is not an IDX file: it starts with 00 00 07 01"),
        (HEADER[:9], "is damaged: got 9 bytes, expected a header of 16"),
        (HEADER + b"12345", "is damaged: got 21 bytes, expected 40 for 2 x 3 x 4 elements"),
        (HEADER + bytes(25), "is damaged: got 41 bytes, expected 40"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "is damaged: got 16 bytes, expected"),
        (ZIPPED[:-9], "expected a whole gzip file"),
        (ZIPPED[:12] + b"\xff" * 20, "expected a whole gzip file"),
        (ZIPPED[:-8] + bytes(8), "expected a whole gzip file"),
    ],
)
def test_a_bad_file_is_named_with_the_way_out(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_idx(path, fix="delete it and run `drumline data fetch mnist`")
    assert str(path) in caught.value.message
    assert said in caught.value.message
    assert caught.value.message.endswith("; delete it and run `drumline data fetch mnist`")
    assert caught.value.fields["path"] == path


def test_an_unreadable_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*: Is a directory; replace it"):
        read_content(tmp_path)
    with pytest.raises(DataError, match=r"cannot read .*: No such file"):
        read_idx(tmp_path / "nothing")
