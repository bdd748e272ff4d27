"""Tests of quantities: they are parsed exactly by Kubernetes' grammar."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calabash.kubernetes.objects.quantity import Written, mib_of, parse_quantity, whole
from calabash.model.errors import CalabashError


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        ("0", Fraction(0)),
        ("2", Fraction(2)),
        ("+2", Fraction(2)),
        ("-2", Fraction(-2)),
        (2, Fraction(2)),
        (0.5, Fraction(1, 2)),
        ("8Gi", Fraction(8 << 30)),
        ("500M", Fraction(500_000_000)),
        ("1.5Gi", Fraction(3 << 29)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("1500m", Fraction(3, 2)),
        ("100n", Fraction(1, 10_000_000)),
        ("7u", Fraction(7, 1_000_000)),
        ("2k", Fraction(2000)),
        ("1Ki", Fraction(1024)),
        ("12E", Fraction(0)),
        ("4Ei", Fraction(4 << 60)),
        ("3e3", Fraction(3000)),
        ("3E3", Fraction(3000)),
        ("25e-1", Fraction(5, 2)),
        ("1e+2", Fraction(100)),
    ],
)
def test_an_amount_is_read_exactly(written: Written, amount: Fraction) -> None:
    if written == "12E":  # exa, not an exponent: out of range
        with pytest.raises(CalabashError, match="out of range"):
            parse_quantity(written, what="x")
    else:
        assert parse_quantity(written, what="x") == amount


@pytest.mark.parametrize(
    "written",
    ["", " 1", "1 ", "inf", "1 Gi", "Gi", ".", "-", "1..2", "1K", "1mi", "1g", "1e", "1e1.5", "0x10", "1e99", "1e-99", "\u0661",
     "1_0", "nan", "1" * 65, "1e\u0663", float("inf"), float("nan")],
)  # fmt: skip
def test_anything_else_is_refused_with_its_name(written: Written) -> None:
    with pytest.raises(CalabashError, match=r"calabash\.dev/memory .* is (not an amount|out of range)"):
        parse_quantity(written, what="calabash.dev/memory")


@given(st.one_of(st.text(max_size=80), st.integers(), st.floats(), st.from_regex(r"[+-]?[0-9.]+[a-zA-Z0-9+-]*")))
def test_no_text_makes_the_parser_fail_otherwise_or_give_more_than_kubernetes_can_hold(written: Written) -> None:
    try:
        amount = parse_quantity(written, what="x")
    except CalabashError:
        return
    assert -(1 << 63) < amount < 1 << 63


def test_bytes_become_mib_rounded_up_and_less_than_one_is_a_forgotten_unit() -> None:
    assert mib_of(Fraction(8 << 30), what="m") == 8192
    assert mib_of(Fraction(8_000_000_000), what="m") == 7630
    assert mib_of(Fraction((1 << 20) + 1), what="m") == 2
    with pytest.raises(CalabashError, match="8192 bytes, less than 1Mi") as refused:
        mib_of(Fraction(8192), what="m")
    assert "8192Mi" in refused.value.hint


@pytest.mark.parametrize("amount", [Fraction(1, 2), Fraction(-1)])
def test_a_count_is_whole_and_not_negative(amount: Fraction) -> None:
    with pytest.raises(CalabashError, match="not a whole number"):
        whole(amount, what="x")
