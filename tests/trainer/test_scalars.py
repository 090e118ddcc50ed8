"""Event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.trainer.loggers.tensorboard import ScalarWriter, _masked_crc, _varint


def read_scalars(folder):
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="the viewer is not installed: pip install 'drumline[tensorboard]'",
    )
    accumulator = accumulators.EventAccumulator(str(folder))
    accumulator.Reload()
    assert accumulator.file_version == 2.0
    return {
        tag: [(point.step, point.value) for point in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_reads_what_was_written(tmp_path):
    writer = ScalarWriter(tmp_path / "run" / "tensorboard")
    assert not (tmp_path / "run").exists(), "a run without an epoch leaves no file"
    writer.write(1, {"loss": 0.5, "lr": 0.125})
    writer.write(300, {"loss": -0.25, "test accuracy, 准确率": 1.0})
    assert read_scalars(tmp_path / "run" / "tensorboard")["loss"] == [(1, 0.5), (300, -0.25)]
    writer.write(2**40, {"loss": math.inf})
    writer.close()
    assert read_scalars(tmp_path / "run" / "tensorboard") == {
        "loss": [(1, 0.5), (300, -0.25), (2**40, math.inf)],
        "lr": [(1, 0.125)],
        "test accuracy, 准确率": [(300, 1.0)],
    }


def test_numbers_that_float32_does_not_have_are_written_all_the_same(tmp_path):
    writer = ScalarWriter(tmp_path)
    writer.write(1, {"diverged": 1e300, "broken": math.nan, "third": 1 / 3})
    writer.close()
    scalars = read_scalars(tmp_path)
    assert scalars["diverged"] == [(1, math.inf)]
    assert math.isnan(scalars["broken"][0][1])
    assert scalars["third"][0][1] == pytest.approx(1 / 3, abs=1e-7)


def test_a_resumed_run_goes_on_beside_what_was_there(tmp_path):
    for step in (1, 2):
        writer = ScalarWriter(tmp_path)
        writer.write(step, {"loss": float(step)})
        writer.close()
    assert read_scalars(tmp_path)["loss"] == [(1, 1.0), (2, 2.0)]


def test_a_writer_that_wrote_nothing_closes(tmp_path):
    ScalarWriter(tmp_path / "none").close()
    assert not (tmp_path / "none").exists()


def test_checksums_are_castagnoli():
    """The check value of CRC-32C is 0xE3069283 (RFC 3720, appendix B.4, has more)."""
    masked = struct.unpack("<I", _masked_crc(b"123456789"))[0]
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == 0xE3069283


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_varints_can_be_read_back(number):
    encoded = _varint(number)
    assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded)) == number
    assert [byte >> 7 for byte in encoded] == [1] * (len(encoded) - 1) + [0]
