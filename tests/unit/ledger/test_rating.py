"""Tests of rating: all use is charged once, and order and splits of the intervals do not change any amount."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from bench import _plain_ledger as plain
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.ledger.worlds import BERLIN, MONTH_S, NIGHT, NOVEMBER, changes, interval, intervals, some, tariff

from calabash.ledger import (
    GuaranteeChange,
    Measure,
    OpenCredit,
    Period,
    Price,
    RatedLine,
    Tariff,
    Tax,
    Tier,
    Usage,
    UsageInterval,
    credit_note,
    invoice,
    month_period,
    rate,
    rate_itemised,
    reverse,
    settle_with_credits,
)
from calabash.ledger.calendar import HOUR_US, window_edges
from calabash.ledger.money import apportion
from calabash.model.errors import CalabashError

GPU = {Measure.GUARANTEED, Measure.BORROWED}


def rated(
    usage: Sequence[UsageInterval],
    *tariffs: Tariff,
    guarantees: Sequence[GuaranteeChange] = (),
    period: Period = NOVEMBER,
) -> list[RatedLine]:
    return rate(Usage.from_intervals(usage), tenant="vision", tariffs=tariffs, guarantees=guarantees, period=period)


def quantity(lines: Sequence[RatedLine], *measures: Measure) -> int:
    return sum(line.quantity for line in lines if line.measure in measures)


def cut(draw: st.DataObject, whole: UsageInterval) -> list[UsageInterval]:
    """Return the interval split in two at a random time, with random shares of the measured quantities."""
    at = draw.draw(st.integers(whole.from_us, whole.to_us))
    busy, idle = draw.draw(st.integers(0, whole.busy_us)), draw.draw(st.integers(0, whole.idle_us))
    if at == whole.from_us:
        busy = idle = 0
    elif at == whole.to_us:
        busy, idle = whole.busy_us, whole.idle_us
    return [
        replace(whole, to_us=at, busy_us=busy, idle_us=idle),
        replace(whole, from_us=at, busy_us=whole.busy_us - busy, idle_us=whole.idle_us - idle),
    ]


@given(usage=some, guarantees=changes)
def test_quantities_of_lines_add_up_to_those_of_the_intervals(
    usage: list[UsageInterval], guarantees: list[GuaranteeChange]
) -> None:
    lines = rated(usage, tariff(), guarantees=guarantees)
    assert quantity(lines, *GPU) == sum((i.to_us - i.from_us) * i.share_percent for i in usage)
    assert quantity(lines, Measure.BUSY) == sum(i.busy_us for i in usage if i.mode == "vgpu")
    assert quantity(lines, Measure.IDLE) == sum(i.idle_us * i.share_percent for i in usage)
    assert all(line.quantity >= 0 for line in lines)


@given(usage=some, guarantees=changes, data=st.data())
def test_order_and_splits_of_intervals_do_not_change_the_lines(
    usage: list[UsageInterval], guarantees: list[GuaranteeChange], data: st.DataObject
) -> None:
    pieces = [piece for whole in usage for half in cut(data, whole) for piece in cut(data, half)]
    pieces = data.draw(st.permutations(pieces))
    assert rated(pieces, tariff(), guarantees=guarantees) == rated(usage, tariff(), guarantees=guarantees)


@given(usage=some, guarantees=changes)
def test_net_amount_equals_a_plain_recomputation(usage: list[UsageInterval], guarantees: list[GuaranteeChange]) -> None:
    prices = tuple(replace(price, tiers=()) for price in tariff().prices)
    one = tariff(prices=prices, preemptible_discount_percent=Decimal(0))
    lines = rated(usage, one, guarantees=guarantees)
    draft = invoice(lines, tenant="vision", month="2026-11", time_zone="Europe/Berlin", period=NOVEMBER)
    assert draft.net == plain.net(usage, tariff=one, guarantees=guarantees, period=NOVEMBER)


@given(usage=st.lists(intervals().map(lambda i: replace(i, preemptible=False)), max_size=8), guarantees=changes)
def test_tiers_and_commitments_equal_a_plain_recomputation(
    usage: list[UsageInterval], guarantees: list[GuaranteeChange]
) -> None:
    lines = rated(usage, tariff(), guarantees=guarantees)
    total = sum((line.amount for line in lines), Decimal(0))
    assert total == plain.net(usage, tariff=tariff(), guarantees=guarantees, period=NOVEMBER)


@given(usage=st.lists(intervals(beyond_s=200_000), max_size=8), guarantees=changes)
def test_interval_across_the_end_of_a_month_is_rated_once(
    usage: list[UsageInterval], guarantees: list[GuaranteeChange]
) -> None:
    months = [month_period(month, BERLIN) for month in ("2026-10", "2026-11", "2026-12")]
    lines = [line for month in months for line in rated(usage, tariff(), guarantees=guarantees, period=month)]
    assert quantity(lines, *GPU) == sum((i.to_us - i.from_us) * i.share_percent for i in usage)
    assert quantity(lines, Measure.IDLE) == sum(i.idle_us * i.share_percent for i in usage)


@given(usage=some, guarantees=changes)
def test_reversal_negates_all_amounts_of_an_invoice(
    usage: list[UsageInterval], guarantees: list[GuaranteeChange]
) -> None:
    lines = rated(usage, tariff(), guarantees=guarantees)
    draft = invoice(lines, tenant="vision", month="2026-11", time_zone="Europe/Berlin", period=NOVEMBER)
    issued = replace(draft, number="2026-000001")
    back = reverse(issued)
    assert back.reverses == "2026-000001"
    assert [a.amount + b.amount for a, b in zip(issued.lines, back.lines, strict=True)] == [0] * len(lines)
    assert [a.quantity + b.quantity for a, b in zip(issued.lines, back.lines, strict=True)] == [0] * len(lines)
    assert issued.net + back.net == issued.total + back.total == 0
    assert sum((t.amount for t in (*issued.taxes, *back.taxes)), Decimal(0)) == 0


@given(usage=some, guarantees=changes, share=st.fractions(0, 1))
def test_credit_note_has_the_taxes_of_its_invoice_in_proportion(
    usage: list[UsageInterval], guarantees: list[GuaranteeChange], share: Fraction
) -> None:
    seven = tariff(valid_from_us=NOVEMBER.from_us + 14 * 24 * HOUR_US, tax=Tax(name="low", percent=Decimal(7)))
    lines = rated(usage, tariff(), seven, guarantees=guarantees)
    draft = invoice(lines, tenant="vision", month="2026-11", time_zone="Europe/Berlin", period=NOVEMBER)
    issued = replace(draft, number="2026-000001")
    cents = max(1, int(Fraction(draft.net) * 100 * share))
    note = credit_note(issued, amount=Decimal(cents) / 100, reason="r", credited=Decimal(0))
    assert (note.net, note.kind.value, note.credits) == (-Decimal(cents) / 100, "credit", "2026-000001")
    nets = {tax.name: Fraction(tax.net) for tax in issued.taxes}
    for tax in note.taxes:
        assert abs(-Fraction(tax.net) - nets[tax.name] * cents / 100 / Fraction(draft.net)) < Fraction(1, 100)
        assert abs(Fraction(tax.amount) - Fraction(tax.net) * Fraction(tax.percent) / 100) <= Fraction(1, 200)
    assert note.total == note.net + sum(tax.amount for tax in note.taxes)


def test_invoice_is_paid_with_credit_notes_in_order_up_to_its_total() -> None:
    notes = [
        OpenCredit(number=f"C{i}", reason="r", amount=Decimal(amount)) for i, amount in enumerate(("3.00", "5.00"))
    ]
    assert [(s.number, s.amount) for s in settle_with_credits(Decimal("4.50"), notes, "EUR")] == [
        ("C0", Decimal("3.00")),
        ("C1", Decimal("1.50")),
    ]
    assert settle_with_credits(Decimal("0.00"), notes, "EUR") == settle_with_credits(Decimal("4.50"), [], "EUR") == ()


@given(usage=some, guarantees=changes, numbers=st.data())
def test_items_of_an_invoice_add_up_to_its_lines(
    usage: list[UsageInterval], guarantees: list[GuaranteeChange], numbers: st.DataObject
) -> None:
    whole = Usage.from_intervals(usage)
    items = [int(key) * 3 + numbers.draw(st.integers(0, 2)) for key in whole.key]
    itemised = Usage(
        **{f.name: getattr(whole, f.name) for f in fields(Usage)} | {"item": np.array(items, dtype=np.int64)}
    )
    own = [
        tariff(),
        tariff(valid_from_us=NOVEMBER.from_us + 14 * 24 * HOUR_US, tax=Tax(name="VAT", percent=Decimal(7))),
    ]
    asked = {"tenant": "vision", "tariffs": own, "guarantees": guarantees, "period": NOVEMBER}
    lines, parts = rate_itemised(itemised, **asked)  # type: ignore[arg-type]
    assert lines == rate(whole, **asked)  # type: ignore[arg-type]
    assert sum((part.amount for part in parts), Decimal(0)) == sum((line.amount for line in lines), Decimal(0))
    assert all(part.amount >= 0 and part.quantity >= 0 for part in parts)
    assert all(part.amount.as_tuple().exponent == -6 for part in parts)
    of_lines, of_items = Counter[tuple[Measure, str, str]](), Counter[tuple[Measure, str, str]]()
    for line in lines:
        of_lines[line.measure, line.tariff, line.price] += line.quantity
    for part in parts:
        of_items[part.measure, part.tariff, part.price] += part.quantity
    assert of_lines == of_items


def test_items_divide_the_amount_of_a_price_in_proportion_to_their_use() -> None:
    price = Price(name="gpu", measure=Measure.BORROWED, price=Decimal("0.10"))
    usage = Usage.from_intervals([interval(0, 3600), interval(0, 2 * 3600), interval(7200, 3 * 3600)])
    numbered = Usage(**{f.name: getattr(usage, f.name) for f in fields(Usage)} | {"item": np.array([4, 9, 4])})
    own = [tariff(prices=(price,), commitments=())]
    lines, items = rate_itemised(numbered, tenant="vision", tariffs=own, guarantees=[], period=NOVEMBER)
    assert [line.amount for line in lines] == [Decimal("0.40")]
    assert [(i.item, i.quantity // (100 * HOUR_US), i.amount) for i in items] == [
        (4, 2, Decimal("0.200000")),
        (9, 2, Decimal("0.200000")),
    ]


@given(st.lists(st.fractions(0, 10**6), max_size=30), st.sampled_from(["EUR", "JPY", "KWD"]))
def test_apportioned_amounts_add_up_and_differ_by_less_than_one_unit(amounts: list[Fraction], currency: str) -> None:
    parts = apportion(amounts, currency)
    coin = {"EUR": Fraction(1, 100), "JPY": Fraction(1), "KWD": Fraction(1, 1000)}[currency]
    assert sum(map(Fraction, parts)) == round(sum(amounts, Fraction(0)) / coin) * coin
    assert all(abs(Fraction(part) - exact) < coin for part, exact in zip(parts, amounts, strict=True))


def test_use_beyond_the_guarantee_is_borrowed_at_every_time() -> None:
    usage = [interval(0, 7200), interval(3600, 7200), interval(5400, 7200, 50)]
    lines = rated(usage, tariff(), guarantees=[GuaranteeChange(at_us=0, guarantee_milli=1500)])
    # One device for an hour and a half is within 1.5; then 2 for half an hour and 2.5 for half an hour.
    assert quantity(lines, Measure.BORROWED) / (100 * HOUR_US) == pytest.approx(0.5 * 0.5 + 1.0 * 0.5)
    assert quantity(lines, *GPU) == (7200 + 3600 + 900) * 100 * 1_000_000


def test_guarantee_counts_from_the_time_of_its_change() -> None:
    raised = [GuaranteeChange(at_us=NOVEMBER.from_us + HOUR_US, guarantee_milli=1000)]
    assert quantity(rated([interval(0, 7200)], tariff(), guarantees=raised), Measure.BORROWED) == 100 * HOUR_US


def test_tiers_are_used_in_order_and_divided_among_projects_in_proportion() -> None:
    tiers = (Tier(above_hours=Decimal(10), price=Decimal(1)),)
    price = Price(name="gpu", measure=Measure.BORROWED, price=Decimal(2), tiers=tiers)
    usage = [interval(0, 3600 * 30, project="a"), interval(0, 3600 * 10, project="b")]
    lines = rated(usage, tariff(prices=(price,), commitments=()))
    found = {(line.project, line.tier): line.hours for line in lines}
    assert found == {
        ("a", 0): Decimal("7.5"),
        ("b", 0): Decimal("2.5"),
        ("a", 1): Decimal("22.5"),
        ("b", 1): Decimal("7.5"),
    }
    assert sum(line.amount for line in lines) == 10 * 2 + 30 * 1


@given(usage=some, guarantees=changes, days=st.lists(st.integers(1, 29), max_size=3, unique=True))
def test_tariff_that_is_applied_again_during_the_month_changes_no_line(
    usage: list[UsageInterval], guarantees: list[GuaranteeChange], days: list[int]
) -> None:
    again = [tariff(valid_from_us=NOVEMBER.from_us + day * 24 * HOUR_US) for day in days]
    assert rated(usage, tariff(), *again, guarantees=guarantees) == rated(usage, tariff(), guarantees=guarantees)


def versions(first: Tariff, **changed: object) -> list[Tariff]:
    """Return the tariff and a changed version of it from the middle of the month on."""
    return [first, replace(first, valid_from_us=NOVEMBER.from_us + NOVEMBER.length_us // 2, **changed)]  # type: ignore[arg-type]


DAY_S = 86_400
GPU_TIERS = Price(
    name="gpu",
    measure=Measure.BORROWED,
    price=Decimal(2),
    tiers=(Tier(above_hours=Decimal(100), price=Decimal(1)),),
)


def amounts(usage: Sequence[UsageInterval], *tariffs: Tariff) -> list[tuple[str, int, bool, Decimal, Decimal]]:
    return [(line.price, line.tier, line.committed, line.hours, line.amount) for line in rated(usage, *tariffs)]


def test_tiers_count_the_hours_of_a_month_over_all_versions_of_a_tariff() -> None:
    usage = [interval(0, 80 * 3600), interval(20 * DAY_S, 20 * DAY_S + 50 * 3600)]
    own = tariff(prices=(GPU_TIERS,), commitments=())
    both = [("gpu", 0, False, Decimal(100), Decimal(200)), ("gpu", 1, False, Decimal(30), Decimal(30))]
    assert amounts(usage, own) == both
    assert amounts(usage, *versions(own)) == both
    tax = versions(
        own, tax=replace(own.tax, percent=Decimal(7))
    )  # the price is the same, but its lines have another tax
    assert amounts(usage, *tax) == [
        ("gpu", 0, False, Decimal(80), Decimal(160)),
        ("gpu", 0, False, Decimal(20), Decimal(40)),
        ("gpu", 1, False, Decimal(30), Decimal(30)),
    ]


def test_use_under_a_new_version_begins_in_the_tiers_where_the_use_before_it_ended() -> None:
    usage = [interval(0, 120 * 3600), interval(20 * DAY_S, 20 * DAY_S + 50 * 3600)]
    own = tariff(prices=(GPU_TIERS,), commitments=())
    later = replace(
        GPU_TIERS,
        price=Decimal(4),
        models=("A100",),
        tiers=(Tier(above_hours=Decimal(150), price=Decimal(3)),),
    )
    assert amounts(usage, *versions(own, prices=(later,))) == [
        ("gpu", 0, False, Decimal(100), Decimal(200)),
        ("gpu", 1, False, Decimal(20), Decimal(20)),
        ("gpu", 0, False, Decimal(30), Decimal(120)),
        ("gpu", 1, False, Decimal(20), Decimal(60)),
    ]


def test_price_of_another_name_or_of_another_tariff_begins_its_tiers_anew() -> None:
    usage = [interval(0, 120 * 3600), interval(20 * DAY_S, 20 * DAY_S + 50 * 3600)]
    own = tariff(prices=(GPU_TIERS,), commitments=())
    anew = [
        (0, False, Decimal(100), Decimal(200)),
        (1, False, Decimal(20), Decimal(20)),
        (0, False, Decimal(50), Decimal(100)),
    ]
    renamed = versions(own, prices=(replace(GPU_TIERS, name="new"),))
    assert [line[1:] for line in amounts(usage, *renamed)] == anew
    assert [line[1:] for line in amounts(usage, *versions(own, name="other"))] == anew


def test_commitment_covers_the_use_of_the_month_over_all_versions_of_a_tariff() -> None:
    gpu = replace(GPU_TIERS, tiers=())
    commitment = replace(tariff().commitments[0], hours=Decimal(100), price=Decimal(1))
    own = tariff(prices=(gpu,), commitments=(commitment,))
    usage = [interval(0, 80 * 3600), interval(20 * DAY_S, 20 * DAY_S + 10 * 3600)]
    raised = versions(own, prices=(replace(gpu, price=Decimal(5)),))
    for tariffs in ([own], versions(own), raised):
        assert sum(line.amount for line in rated(usage, *tariffs)) == 100
        assert sum(line.amount for line in rated([*usage, interval(25 * DAY_S, 25 * DAY_S + 36_000)], *tariffs)) == 100
    assert sum(line.amount for line in rated([interval(0, 130 * 3600)], *raised)) == 100 + 30 * 2
    assert sum(line.amount for line in rated([interval(20 * DAY_S, 25 * DAY_S + 36_000)], *raised)) == 100 + 30 * 5


def test_commitment_is_paid_without_use_and_covers_use() -> None:
    own = tariff(prices=(Price(name="gpu", measure=Measure.BORROWED, price=Decimal(2)),))
    commitment = replace(tariff().commitments[0], hours=Decimal(100), price=Decimal(1))
    own = replace(own, commitments=(commitment,))
    assert sum(line.amount for line in rated([], own)) == 100
    assert sum(line.amount for line in rated([interval(0, 3600 * 60)], own)) == 100
    assert sum(line.amount for line in rated([interval(0, 3600 * 130)], own)) == 100 + 30 * 2
    first_half = replace(own, valid_to_us=NOVEMBER.from_us + NOVEMBER.length_us // 2)
    assert sum(line.amount for line in rated([], first_half)) == 50


def test_preemptible_use_gets_the_discount() -> None:
    own = tariff(
        prices=(Price(name="gpu", measure=Measure.BORROWED, price=Decimal(2)),),
        commitments=(),
        preemptible_discount_percent=Decimal(25),
    )
    lines = rated([interval(0, 36_000), interval(0, 36_000, preemptible=True)], own)
    assert {line.preemptible: line.amount for line in lines} == {False: Decimal("20.00"), True: Decimal("15.00")}


def test_tariff_in_force_is_used_and_one_that_names_the_tenant_precedes() -> None:
    def one(name: str, price: int, **more: object) -> Tariff:
        prices = (Price(name="gpu", measure=Measure.BORROWED, price=Decimal(price)),)
        return tariff(name=name, prices=prices, commitments=(), **more)

    tariffs = [
        one("all", 1),
        one("mine", 5, tenants=("vision",), valid_to_us=NOVEMBER.from_us + HOUR_US),
        one("later", 2, valid_from_us=NOVEMBER.from_us + 2 * HOUR_US),
        one("others", 9, tenants=("speech",)),
    ]
    lines = rated([interval(0, 3 * 3600)], *tariffs)
    assert {line.tariff: line.amount for line in lines} == {"mine": 5, "all": 1, "later": 2}


def test_hours_without_a_tariff_or_price_have_lines_without_an_amount() -> None:
    lines = rated([interval(0, 3600)], tariff(prices=(), commitments=()))
    assert [(float(line.hours), float(line.amount), line.price) for line in lines] == [(1, 0, "")]
    assert [(float(line.hours), line.tariff) for line in rated([interval(0, 3600)])] == [(1, "")]


def test_tariffs_of_two_currencies_in_one_month_are_refused() -> None:
    dollars = tariff(name="us", currency="USD", valid_from_us=NOVEMBER.from_us + HOUR_US)
    with pytest.raises(CalabashError, match="EUR and USD"):
        rated([interval(0, 7200)], tariff(), dollars)


@pytest.mark.parametrize(
    ("month", "hours", "night_hours"),
    [("2026-03", 743, 31 * 8 - 1), ("2026-10", 745, 31 * 8 + 1), ("2026-11", 720, 240)],
)
def test_months_and_nights_with_a_clock_change_have_their_real_length(month: str, hours: int, night_hours: int) -> None:
    period = month_period(month, BERLIN)
    assert period.length_us == hours * HOUR_US
    edges = [*window_edges(period, [NIGHT], BERLIN), (period.to_us, frozenset[str]())]
    night = sum(until - at for (at, opened), (until, _) in pairwise(edges) if opened)
    assert night == night_hours * HOUR_US
    whole = UsageInterval(from_us=period.from_us, to_us=period.to_us, share_percent=100, model="T4", mode="exclusive")
    sure = [GuaranteeChange(at_us=0, guarantee_milli=1000)]
    lines = rated([whole], tariff(commitments=()), guarantees=sure, period=period)
    by_price = {line.price: line.hours for line in lines}
    assert by_price["night"] == night_hours
    assert by_price["gpu"] == hours - night_hours


def test_days_of_23_and_25_hours_are_charged_with_their_real_length() -> None:
    for month, first, hours in (("2026-03", 29, 23), ("2026-10", 25, 25)):
        period = month_period(month, BERLIN)
        sunday = period.from_us + (first - 1) * 24 * HOUR_US
        whole = UsageInterval(from_us=sunday, to_us=sunday + hours * HOUR_US, share_percent=100, memory_mib=1024)
        memory = [line for line in rated([whole], tariff(), period=period) if line.measure is Measure.MEMORY]
        assert [(line.window, float(line.hours)) for line in memory] == [("weekend", hours)]


def test_intervals_of_a_minute_are_rated_like_one_interval_of_a_week() -> None:
    minutes = [interval(60 * i, 60 * (i + 1), 30, busy_us=1_000_000) for i in range(10_080)]
    random.Random(1).shuffle(minutes)
    week = interval(0, 60 * 10_080, 30, busy_us=10_080 * 1_000_000)
    sure = [GuaranteeChange(at_us=0, guarantee_milli=100)]
    assert rated(minutes, tariff(), guarantees=sure) == rated([week], tariff(), guarantees=sure)
    assert week.to_us < NOVEMBER.from_us + MONTH_S * 1_000_000


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"currency": "Euro"}, "currency 'Euro'"),
        ({"time_zone": "Mars/Olympus"}, "time zone 'Mars/Olympus'"),
        ({"windows": ()}, "names window night"),
        ({"prices": ()}, "names price gpu"),
        ({"valid_to_us": 0}, "ends before it begins"),
        ({"preemptible_discount_percent": Decimal(101)}, "101 percent"),
        ({"windows": (NIGHT, NIGHT)}, "twice"),
    ],
)
def test_invalid_tariff_is_refused_with_its_numbers(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(CalabashError, match=words):
        tariff(**wrong)


def test_draft_and_reversal_cannot_be_reversed() -> None:
    draft = invoice([], tenant="vision", month="2026-11", time_zone="Europe/Berlin", period=NOVEMBER)
    with pytest.raises(CalabashError, match="never issued"):
        reverse(draft)
    with pytest.raises(CalabashError, match="is a reversal"):
        reverse(replace(reverse(replace(draft, number="2026-000001")), number="2026-000002"))
