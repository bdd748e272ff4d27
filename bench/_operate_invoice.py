"""Time to rate an invoice of a million usage intervals, and comparison of its net amount with a plain recomputation.

Measures the processor time of the ledger alone and of the whole way from the database. The recomputation, in exact
fractions, is the reference of both, and the net amounts must agree to the cent.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from itertools import accumulate
from pathlib import Path

import msgspec
import sqlalchemy as sa

from bench import _plain_ledger as plain
from bench._report import Report
from calabash.adapters.store import open_store, tables
from calabash.adapters.store.database import Database
from calabash.api import billing
from calabash.ledger import GuaranteeChange, Usage, UsageInterval, invoice, month_period, rate
from calabash.ledger.calendar import SECOND_US, zone_of
from calabash.platform.billing.documents import tariff_of
from calabash.platform.billing.rating_process import RatingOrder, rate_month

# Goals: of the processor time of the plain recomputation.
LEDGER, FROM_DATABASE = 0.2, 0.8
MONTH, ZONE = "2026-10", "Europe/Berlin"
MINUTE_US = 60 * SECOND_US
MODELS, MODES = ("A100-80GB", "H100", "T4"), ("vgpu", "exclusive", "mig")
TARIFF = billing.TariffSettings(
    name="standard",
    currency="EUR",
    time_zone=ZONE,
    valid_from="2026-01-01",
    windows=[billing.WindowSettings(name="night", begin="22:00", end="06:00")],
    prices=[
        billing.PriceSettings(name="night", measure="guaranteed", price=Decimal("1.07"), window="night"),
        billing.PriceSettings(
            name="a100",
            measure="guaranteed",
            price=Decimal("2.113"),
            models=["A100"],
            tiers=[billing.TierSettings(above=Decimal(500), price=Decimal("1.931"))],
        ),
        billing.PriceSettings(name="day", measure="guaranteed", price=Decimal("1.409")),
        billing.PriceSettings(name="lent", measure="borrowed", price=Decimal("0.613")),
        billing.PriceSettings(name="memory", measure="memory", price=Decimal("0.0037")),
        billing.PriceSettings(name="busy", measure="busy", price=Decimal("0.011")),
    ],
    commitments=[billing.CommitmentSettings(of="day", hours=Decimal(100), price=Decimal("0.9"))],
    tax=billing.TaxSettings(name="VAT", percent=Decimal(19)),
)
GUARANTEE = 8.0


def minutes(count: int) -> Iterator[UsageInterval]:
    """Yield usage of slices that run for hours and are recorded every minute, over a month of 745 hours."""
    chance = random.Random(10)
    period = month_period(MONTH, zone_of(ZONE))
    made = 0
    while made < count:
        length = min(chance.randrange(2, 600), count - made)
        at = period.from_us + chance.randrange(period.length_us - (length + 1) * MINUTE_US)
        share, memory = chance.choice((10, 25, 30, 50, 100)), chance.choice((2048, 8192, 40_960))
        model, mode, project = chance.choice(MODELS), chance.choice(MODES), f"p{chance.randrange(5)}"
        for _ in range(length):
            end = at + MINUTE_US + chance.randrange(-999, 1000)
            yield UsageInterval(
                project=project,
                model=model,
                mode=mode,
                from_us=at,
                to_us=end,
                share_percent=share,
                memory_mib=memory,
                busy_us=chance.randrange(end - at),
            )
            at, made = end, made + 1


def measure_invoice(report: Report) -> None:
    """Measure all figures of invoices."""
    count = 100_000 if report.quick else 1_000_000
    intervals = list(minutes(count))
    tariff, period = tariff_of(TARIFF), month_period(MONTH, zone_of(ZONE))
    sure = [GuaranteeChange(at_us=0, guarantee_milli=round(GUARANTEE * 1000))]
    usage = Usage.from_intervals(intervals)
    began, worked = time.perf_counter(), time.process_time()
    lines = rate(usage, tenant="vision", tariffs=[tariff], guarantees=sure, period=period)
    issued = invoice(lines, tenant="vision", month=MONTH, time_zone=ZONE, period=period)
    ledger_s, ledger_core_s = time.perf_counter() - began, time.process_time() - worked
    worked = time.process_time()
    expected = plain.net(intervals, tariff=tariff, guarantees=sure, period=period)
    plain_core_s = time.process_time() - worked
    report.add("intervals of the invoice", count, "", detail=f"{len(lines)} lines, net {issued.net} EUR")
    report.add("invoice, from columns", ledger_s, "s")
    name, of = "invoice, from columns, processor time", "plain recomputation"
    report.add_ratio(name, ledger_core_s, plain_core_s, "s", of=of, at_most=LEDGER)
    report.add("invoice, off the plain recomputation", float(abs(issued.net - expected)), "EUR", at_most=0.0)
    with tempfile.TemporaryDirectory(prefix="calabash-bench-") as folder:
        from_store_s, worked_s, net = _from_a_database(Path(folder), intervals)
    report.add("invoice, from the database to the draft", from_store_s, "s", detail="SQLite")
    name = "invoice, from the database to the draft, processor time"
    report.add_ratio(name, worked_s, plain_core_s, "s", of=of, at_most=FROM_DATABASE)
    report.add("draft, off the plain recomputation", float(abs(Decimal(net) - expected)), "EUR", at_most=0.0)


def _from_a_database(folder: Path, intervals: list[UsageInterval]) -> tuple[float, float, str]:
    """Rate from a database; return the wall time, the processor time and the net amount of the draft."""
    store = open_store(f"sqlite:///{folder / 'pool.db'}")
    store.billing.put_tariff(TARIFF.name, TARIFF.valid_from, _document(), at=0.0)
    database = Database(store.url)
    with database.transaction() as connection:
        statement = "INSERT INTO guarantees (tenant, at_s, guarantee) VALUES ('vision', 0, :amount)"
        connection.execute(sa.text(statement), {"amount": GUARANTEE})
        for start in range(0, len(intervals), 50_000):
            connection.execute(sa.insert(tables.usage), _rows(intervals, start, start + 50_000))
    database.close()
    began, worked = time.perf_counter(), time.process_time()
    rated = rate_month(store, RatingOrder(url=store.url, month=MONTH), clock=lambda: 2e9)
    took_s, worked_s = time.perf_counter() - began, time.process_time() - worked
    store.close()
    return took_s, worked_s, rated.items[0].net


def _document() -> dict[str, object]:
    document: dict[str, object] = msgspec.to_builtins(TARIFF)
    return document


def _rows(intervals: list[UsageInterval], start: int, end: int) -> list[dict[str, object]]:
    runs = [number == 0 or intervals[number - 1].to_us != one.from_us for number, one in enumerate(intervals[:end])]
    run_of = list(accumulate(runs))
    return [
        {
            "allocation": f"a{run_of[number]}",
            "sequence": number,
            "device": "GPU-1",
            "tenant": "vision",
            "queue": "vision",
            "from_s": one.from_us / SECOND_US,
            "to_s": one.to_us / SECOND_US,
            "memory_mib": one.memory_mib,
            "core_percent": one.share_percent,
            "allocated_gpu_s": (one.to_us - one.from_us) * one.share_percent / 100 / SECOND_US,
            "used_gpu_s": one.busy_us / SECOND_US,
            "memory_mib_s": (one.to_us - one.from_us) * one.memory_mib / SECOND_US,
            "device_model": one.model,
            "mode": one.mode,
            "project": one.project,
        }
        for number, one in enumerate(intervals[start:end], start)
    ]
