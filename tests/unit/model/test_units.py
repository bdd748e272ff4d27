"""Tests of parsers and formatters of memory sizes, percentages and durations, and of the bounds of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.model.errors import CalabashError
from calabash.model.request import GpuRequest
from calabash.model.units import (
    exact_duration,
    format_duration,
    format_mib,
    parse_duration_s,
    parse_memory_mib,
    parse_percent,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("8GiB", 8192),
        ("8Gi", 8192),
        ("8gib", 8192),
        ("8GB", 7630),
        ("8G", 7630),
        ("8gb", 7630),
        ("512MiB", 512),
        ("512MB", 489),
        ("1.5GiB", 1536),
        ("0.1TB", 95368),
        ("1B", 1),
        ("1048577B", 2),
        ("2TiB", 2 << 20),
        ("1025KiB", 2),
        (" 8 GiB ", 8192),
    ],
)
def test_memory_size_is_parsed_with_its_unit_and_rounded_up_to_mib(text: str, mib: int) -> None:
    assert parse_memory_mib(text) == mib


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "-1GiB",
        "0MiB",
        "0.0GB",
        "8 apples",
        "1e3",
        "nan",
        "999999999999T",
        "8GiBGiB",
        "8iB",
        "٣GiB",
        "9" * 5000 + "B",
    ],
)
def test_invalid_memory_size_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(CalabashError) as caught:
        parse_memory_mib(text)
    assert caught.value.hint


@pytest.mark.parametrize("text", ["8", "512", "1.5", "0"])
def test_memory_size_without_a_unit_is_refused_with_possible_units(text: str) -> None:
    with pytest.raises(CalabashError, match="has no unit") as caught:
        parse_memory_mib(text)
    assert f"{text}GiB" in caught.value.hint


@given(st.integers(1, 1 << 30))
def test_formatted_mib_parse_to_the_same_number(mib: int) -> None:
    assert parse_memory_mib(f"{mib}MiB") == mib


@pytest.mark.parametrize(("text", "percent"), [("30", 30), ("30%", 30), (" 100 ", 100), ("1", 1)])
def test_percentage_is_parsed(text: str, percent: int) -> None:
    assert parse_percent(text) == percent


@pytest.mark.parametrize("text", ["0", "101", "-3", "thirty", "", "30.5"])
def test_percentage_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(CalabashError):
        parse_percent(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("1h30m", 5400), ("250ms", 0.25), ("0", 0), ("0.0", 0), ("2d", 172800)]
)
def test_duration_is_parsed_to_seconds(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


def test_duration_without_a_unit_is_refused_with_possible_units() -> None:
    with pytest.raises(CalabashError, match="duration '12' has no unit") as refused:
        parse_duration_s("12")
    assert "12s, 12m or 12h" in (refused.value.hint or "")


def test_number_without_a_unit_in_a_scenario_file_is_seconds() -> None:
    assert [parse_seconds(text) for text in ("30.0", "45", "1h", "0")] == [30, 45, 3600, 0]
    with pytest.raises(CalabashError, match="is not a duration"):
        parse_seconds("soon")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0"), (43200, "12h"), (5400, "1h30m"), (90061.5, "1d1h1m1.5s")])
def test_exact_duration_parses_to_the_same_number(seconds: float, text: str) -> None:
    assert exact_duration(seconds) == text
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "10x", "-5s", "1h 30m", "5m!", "45", "0.5", "1e3"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(CalabashError):
        parse_duration_s(text)


@pytest.mark.parametrize(("mib", "text"), [(512, "512MiB"), (8192, "8GiB"), (40345, "39.4GiB")])
def test_memory_size_is_formatted_for_people(mib: int, text: str) -> None:
    assert format_mib(mib) == text


@pytest.mark.parametrize(("seconds", "text"), [(12, "12s"), (190, "3m10s"), (7500, "2h5m"), (356400, "4d3h")])
def test_duration_is_formatted_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": 0},
        {"count": 65},
        {"core_percent": 0},
        {"core_percent": 101},
        {"memory_mib": 0},
        {"gang_size": 0},
        {"run_time_s": -1},
    ],
)
def test_request_out_of_range_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(CalabashError):
        GpuRequest(**wrong)  # type: ignore[arg-type]
