"""Usage, guarantees and tariffs for tests of the ledger."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st

from calabash.ledger import Commitment, GuaranteeChange, Measure, Price, Tariff, Tax, Tier, TimeWindow, UsageInterval
from calabash.ledger.calendar import SECOND_US, month_period, zone_of

BERLIN = zone_of("Europe/Berlin")
NOVEMBER = month_period("2026-11", BERLIN)
NIGHT = TimeWindow(name="night", from_minute=22 * 60, to_minute=6 * 60)
WEEKEND = TimeWindow(name="weekend", days=frozenset({5, 6}))
MONTH_S = NOVEMBER.length_us // SECOND_US


def tariff(**changed: object) -> Tariff:
    """Return a tariff with every kind of price, in force without end; ``changed`` replaces fields."""
    settings: dict[str, object] = {
        "name": "standard",
        "currency": "EUR",
        "time_zone": "Europe/Berlin",
        "valid_from_us": 0,
        "windows": (NIGHT, WEEKEND),
        "prices": (
            Price(name="night", measure=Measure.GUARANTEED, price=Decimal("1.07"), window="night"),
            Price(
                name="a100",
                measure=Measure.GUARANTEED,
                price=Decimal("2.11"),
                models=("a100",),
                tiers=(
                    Tier(above_hours=Decimal(5), price=Decimal("1.93")),
                    Tier(above_hours=Decimal("31.5"), price=Decimal("1.7")),
                ),
            ),
            Price(name="gpu", measure=Measure.GUARANTEED, price=Decimal("0.83")),
            Price(name="lent", measure=Measure.BORROWED, price=Decimal("0.613")),
            Price(name="memory", measure=Measure.MEMORY, price=Decimal("0.0071"), window="weekend"),
            Price(name="busy", measure=Measure.BUSY, price=Decimal("0.11"), modes=("vgpu",)),
            Price(name="idle", measure=Measure.IDLE, price=Decimal("0.29")),
        ),
        "commitments": (Commitment(of_price="gpu", hours=Decimal(3), price=Decimal("0.5")),),
        "preemptible_discount_percent": Decimal("12.5"),
        "tax": Tax(name="VAT", percent=Decimal(19)),
    }
    return Tariff(**(settings | changed))  # type: ignore[arg-type]


def interval(from_s: float, to_s: float, share: int = 100, **more: object) -> UsageInterval:
    """Return a usage interval; seconds count from the begin of November 2026 in Berlin."""
    fields: dict[str, object] = {"model": "A100-80GB", "mode": "vgpu", "project": "p"}
    return UsageInterval(
        from_us=NOVEMBER.from_us + round(from_s * SECOND_US),
        to_us=NOVEMBER.from_us + round(to_s * SECOND_US),
        share_percent=share,
        **(fields | more),  # type: ignore[arg-type]
    )


@st.composite
def intervals(draw: st.DrawFn, *, beyond_s: int = 0) -> UsageInterval:
    """Generate intervals of microseconds to days within the month, or at most ``beyond_s`` seconds outside of it."""
    begin = draw(st.integers(-beyond_s * SECOND_US, (MONTH_S + beyond_s) * SECOND_US - 1))
    end = draw(st.integers(begin, min(begin + 3 * 86_400 * SECOND_US, (MONTH_S + beyond_s) * SECOND_US)))
    length = end - begin
    return UsageInterval(
        project=draw(st.sampled_from(["", "train", "serve"])),
        model=draw(st.sampled_from(["A100-80GB", "H100"])),
        mode=draw(st.sampled_from(["vgpu", "exclusive"])),
        preemptible=draw(st.booleans()),
        from_us=NOVEMBER.from_us + begin,
        to_us=NOVEMBER.from_us + end,
        share_percent=draw(st.integers(1, 100)),
        memory_mib=draw(st.integers(0, 81_920)),
        busy_us=draw(st.integers(0, length)),
        idle_us=draw(st.integers(0, length)),
    )


some = st.lists(intervals(), max_size=12)
changes = st.lists(
    st.builds(
        GuaranteeChange,
        at_us=st.integers(NOVEMBER.from_us - 10**12, NOVEMBER.to_us),
        guarantee_milli=st.integers(0, 2500),
    ),
    max_size=4,
    unique_by=lambda change: change.at_us,
)
