"""Bounded size of usage: after any number of slices it stays within its bound, and every sum is unchanged."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.test_store import _record

from calabash.adapters.store import Retention, Store
from calabash.adapters.store.usage.merging import AGAIN_S, QUARTER_S, ROWS_MIN, SETTLED_S, spread
from calabash.model.allocation import UsageRecord
from calabash.model.device import DeviceUuid
from calabash.model.request import AllocationId
from calabash.platform.billing.rating_process import month_usage

US = 1_000_000
BEGIN_S = 1_793_620_800  # in November 2026, where a quarter begins
NOW_S = BEGIN_S + 86_400.0
LONG = Retention(usage=100, usage_days=1000, allocation_days=1000, event_days=1000)


def used(
    number: int,
    from_us: int,
    length_us: int,
    *,
    user: str = "mallory",
    core: int = 30,
    mib: int = 1024,
    busy_us: int = 0,
    idle_us: int = 0,
) -> UsageRecord:
    length_s = length_us / US
    return UsageRecord(
        allocation=AllocationId(f"a{number}"), device=DeviceUuid("GPU-0"), device_model="A100", mode="vgpu",
        tenant="vision", project="train", queue="vision/train", user=user, preemptible=False,
        from_s=BEGIN_S + from_us / US, to_s=BEGIN_S + (from_us + length_us) / US, memory_mib=mib, core_percent=core,
        allocated_gpu_s=length_s * core / 100, used_gpu_s=busy_us / US, idle_s=idle_us / US, memory_mib_s=length_s * mib,
    )  # fmt: skip


def units(records: Sequence[UsageRecord]) -> dict[str, Counter[str]]:
    """Return sums in the ledger's units, by user."""
    found: dict[str, Counter[str]] = {}
    for one in records:
        length_us = round(one.to_s * US) - round(one.from_s * US)
        found.setdefault(one.user, Counter()).update(
            core=length_us * one.core_percent,
            memory=length_us * one.memory_mib,
            busy=round(one.used_gpu_s * US),
            idle=min(round(one.idle_s * US), length_us) * one.core_percent,
        )
    return found


def of_ledger(store: Store) -> dict[str, tuple[int, ...]]:
    """Return the amounts from which invoices are made."""
    found = {}
    month = month_usage(store, "2026-11")
    for tenant in month.tenants:
        usage = month.usage_of(tenant)
        lengths = usage.length_us.astype(object)
        columns = (
            lengths * usage.share_percent,
            lengths * usage.memory_mib,
            usage.busy_us,
            usage.idle_us * usage.share_percent,
        )
        found[tenant] = tuple(int(column.sum()) for column in columns)
    return found


def trimmed(store: Store, now_s: float = NOW_S) -> None:
    while store.trim(LONG, now_s=now_s):
        pass


def test_a_user_who_makes_slices_without_end_leaves_few_rows_and_every_second(store: Store) -> None:
    dice = random.Random(1)
    many = [
        used(i, dice.randrange(0, 899_000_000), dice.randrange(1, 900_000), core=dice.randrange(1, 101),
             mib=dice.randrange(1, 80_000), busy_us=dice.randrange(0, 900), idle_us=dice.randrange(0, 900_000))
        for i in range(2500)
    ]  # fmt: skip
    store.add_usage([replace(one, uncertain_s=float(i % 7)) for i, one in enumerate(many)])
    honest = [used(5000 + i, 60_000_000 * i, 60_000_000, user="ann") for i in range(ROWS_MIN)]
    store.add_usage(honest)
    before, billed = units(store.usage()), of_ledger(store)
    sums = store.usage_reader.sums(["user"], from_s=BEGIN_S, to_s=BEGIN_S + QUARTER_S)
    trimmed(store)
    rows = store.usage()
    assert len(rows) <= len(honest) + 4
    assert [one for one in rows if one.user == "ann"] == honest, "what is little is left as it is"
    assert units(rows) == before
    assert of_ledger(store) == billed
    for now, then in zip(
        store.usage_reader.sums(["user"], from_s=BEGIN_S, to_s=BEGIN_S + QUARTER_S), sums, strict=True
    ):
        assert now == pytest.approx(then)
    store.add_usage([used(9000 + i, 1000 * i, 1000) for i in range(300)])
    before = units(store.usage())
    trimmed(store)
    assert len(store.usage()) > 300, "that time was looked at"
    trimmed(store, NOW_S + AGAIN_S)
    assert len(store.usage()) <= len(honest) + 4, "what comes later joins what is there"
    assert units(store.usage()) == before


def test_held_young_and_quarter_crossing_intervals_are_not_merged(store: Store) -> None:
    kept = []
    store.grant(_record("a0"))
    kept += [replace(used(0, 1_000_000 * i, 1_000_000), sequence=i) for i in range(40)]
    kept += [used(100 + i, 899_000_000 + i, 2_000_000) for i in range(40)]
    young_us = round((NOW_S - SETTLED_S - BEGIN_S) * US) + 1_000_000
    kept += [used(200 + i, young_us + i, 1000) for i in range(40)]
    store.add_usage(kept)
    trimmed(store)
    assert store.usage() == kept


def test_below_the_bound_every_interval_stays_as_it_was_written(store: Store) -> None:
    records = [used(i, 1000 * i, 1000) for i in range(90)]
    store.add_usage(records)
    trimmed(store)
    assert store.usage() == records


@given(
    st.lists(
        st.tuples(
            st.integers(0, 899_000_000),
            st.integers(0, 1_000_000),
            st.integers(0, 100),
            st.integers(0, 200_000),
            st.integers(0, 1_000_000),
            st.integers(0, 1_000_001),
        ),
        max_size=60,
    )
)
def test_spreading_changes_no_sum_by_a_single_unit(held: list[tuple[int, int, int, int, int, int]]) -> None:
    records = [used(i, a, n, core=c, mib=m, busy_us=b, idle_us=d) for i, (a, n, c, m, b, d) in enumerate(held)]
    rows = [{name: getattr(one, name) for name in UsageRecord.__dataclass_fields__} for one in records]
    quarter = BEGIN_S // QUARTER_S
    made = [UsageRecord(**{**rows[0], **row}) for row in spread(rows, quarter)] if rows else []
    assert len(made) <= 4
    assert units(made) == units(records)
    for one in made:
        assert BEGIN_S <= one.from_s <= one.to_s <= BEGIN_S + QUARTER_S
