from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.core.formatting import (
    format_bytes,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("0", 0),
        ("1MiB", 2**20),
        (" 25 MB ", 25_000_000),
        ("1.5kB", 1500),
        ("0.5KiB", 512),
        ("2gib", 2**31),
        ("1TiB", 2**40),
        ("3 TB", 3 * 10**12),
        ("7b", 7),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes_are_read_as_people_write_them(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "big", "1 XB", "-1", "1e6", "1.5", "0.3b", 1.5, None, True, [1], "١MB"]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="expected a size such as 1MiB, 25MB or 4096, got "):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (1000, "1 kB"),
        (1_663_370, "1.66 MB"),
        (999_600, "1 MB"),
        (2**30, "1.07 GB"),
        (5e12, "5 TB"),
    ],
)
def test_sizes_are_written_with_three_digits(count, text):
    assert format_bytes(count) == text


@given(st.integers(0, 10**14))
def test_no_size_is_written_with_an_exponent(count):
    assert "e" not in format_bytes(count)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.85, "850 ms"),
        (0.9999, "1.0 s"),
        (12.34, "12.3 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (245, "4 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7260, "2 h 01 min"),
    ],
)
def test_durations_are_written_as_people_say_them(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100mbit", 10**8),
        (" 1 Gbit/s ", 10**9),
        ("1.5gbit", 1_500_000_000),
        ("12.5MB/s", 10**8),
        ("1MiB/s", 8 * 2**20),
        (9600, 9600),
    ],
)
def test_rates_are_read_as_people_write_them(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["fast", "10mb", "10mbps", "100", "-1mbit", "", "1e9bit", 1.5, None, True]
)
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(
        ValueError, match=r"expected a rate such as 100mbit, 1gbit or 12\.5MB/s, got"
    ):
        parse_rate(text)


@given(st.integers(0, 10**13))
def test_a_rate_is_written_so_that_it_reads_the_same(rate):
    assert parse_rate(format_rate(rate)) == rate
