"""Tests of tariff files: the documented example is accepted, and each error names its line and a hint."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from calabash.cli.tenancy.tariff_file import read_tariff
from calabash.model.errors import CalabashError, Reason
from calabash.platform.billing.documents import tariff_of

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "tariff.yaml"


def test_the_example_is_a_tariff_with_exact_prices() -> None:
    found = tariff_of(read_tariff(EXAMPLE))
    assert (found.name, found.currency, found.time_zone) == ("standard", "EUR", "Europe/Berlin")
    assert [price.price for price in found.prices if price.name == "memory"] == [Decimal("0.004")]
    assert [(w.name, w.from_minute, w.to_minute) for w in found.windows] == [("night", 1320, 360), ("weekend", 0, 1440)]
    assert [tier.above_hours for tier in found.prices[1].tiers] == [500, 2000]


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("price: 2.20", "price: two", "Invalid decimal"),
        ("currency: EUR", "curency: EUR", "unknown field `curency`"),
        ("percent: 19", "percent: 19, percent: 20", "'percent' twice"),
        ("begin: 22:00", "begin: 25:00", "time of day '25:00'"),
        ("window: night", "window: nigth", "window nigth"),
        ("models: [A100]", "models: [[A100]]", "Expected `str`"),
        ("  - {name: memory", "\t- {name: memory", "cannot start any token"),
        ("valid_from: 2026-01-01", "valid_from: 2026-02-30", "no day 2026-02-30"),
        ("price: 1.95", "price: -1", "the invalid amount -1"),
        ("of: guaranteed,", "of: nothing,", "price nothing"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(right: str, wrong: str, words: str, tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    assert text.count(right) >= 1
    path = tmp_path / "tariff.yaml"
    path.write_text(text.replace(right, wrong, 1))
    with pytest.raises(CalabashError, match=words) as failure:
        read_tariff(path)
    assert failure.value.reason is Reason.BAD_FILE
    assert failure.value.hint
    line = int(failure.value.message.partition(", line ")[2].partition(":")[0])
    changed = text[: text.index(right)].count("\n") + 1
    assert abs(line - changed) <= 5, "it names that line or the object that it is in"


@pytest.mark.parametrize("text", ["", "[]", "a: &x [*x]", "{" * 50, "- 1\n" * 20_000, "? [a]\n: 1"])
def test_what_is_no_tariff_at_all_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tariff.yaml"
    path.write_text(text)
    with pytest.raises(CalabashError) as failure:
        read_tariff(path)
    assert failure.value.reason is Reason.BAD_FILE
    assert "\n" not in failure.value.message
