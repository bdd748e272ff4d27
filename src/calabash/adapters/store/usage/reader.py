"""Queries of usage for invoices and reports, page by page or summed by the database. They do not block writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from calabash.adapters.store.database import Database
from calabash.adapters.store.tables import usage
from calabash.model.allocation import UsageRecord

PAGE_ROWS = 20_000
BILLED = ("tenant", "project", "device_model", "mode", "preemptible")
MEASURED = ("from_s", "to_s", "core_percent", "memory_mib", "used_gpu_s", "idle_s")
EVIDENCE = ("allocation", "device", "user", "sequence", "id", "uncertain_s")
DIMENSIONS = {
    "tenant": usage.c.tenant,
    "project": usage.c.project,
    "user": usage.c.user,
    "device": usage.c.device,
    "model": usage.c.device_model,
    "mode": usage.c.mode,
}
SUMMED = ("allocated_gpu_s", "memory_mib_s", "used_gpu_s")


class UsageReader:
    """Reader of usage records. Every method may raise CalabashError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pages(self, *, from_s: float, to_s: float, tenant: str = "") -> Iterator[Sequence[Any]]:
        """Yield pages of the records that overlap a time range, in the order of insertion.

        Each row has the columns BILLED, MEASURED and EVIDENCE.
        """
        columns = [usage.c[name] for name in (*BILLED, *MEASURED, *EVIDENCE)]
        wanted = [usage.c.to_s > from_s, usage.c.from_s < to_s]
        if tenant:
            wanted.append(usage.c.tenant == tenant)
        with self._database.reading() as connection:
            ends = sa.select(sa.func.min(usage.c.id), sa.func.max(usage.c.id)).where(*wanted)
            first, last = connection.execute(ends).one()
        # Ranges of ids, not limits: each page is one walk along the table, whatever other index there is.
        for begin in range(first or 0, (last or -1) + 1, PAGE_ROWS):
            page = sa.select(*columns).where(usage.c.id >= begin, usage.c.id < begin + PAGE_ROWS, *wanted)
            page = page.order_by(usage.c.id)
            with self._database.reading() as connection:
                rows = connection.execute(page).all()
            if rows:
                yield rows

    def reached(self, since_s: float) -> dict[tuple[str, str], float]:
        """Return the latest end of the usage records of each allocation and device that end after ``since_s``."""
        with self._database.reading() as connection:
            return _reached(connection, since_s)

    def sums(
        self,
        by: Sequence[str],
        *,
        from_s: float,
        to_s: float,
        tenants: frozenset[str] | None = None,
        user: str = "",
        running: Sequence[UsageRecord] = (),
        limit: int = 1000,
    ) -> list[dict[str, Any]]:
        """Sum usage by dimensions, in seconds of whole devices and MiB-seconds.

        Only the time of a record within the time range counts. ``idle_gpu_s`` is idle time multiplied by the slice's
        share of the device, so it is never more than ``allocated_gpu_s``.

        ``uncertain_gpu_s`` is for allocations that ended in the time range at an estimated time: the time by which they
        may have ended later, multiplied by their shares.

        Args:
            by: names of the dimensions, such as ``tenant``; the result has a row for each combination of values.
            from_s, to_s: the time range, in seconds since 1970.
            tenants: count only usage of these tenants; None: of all.
            user: count also the usage of this user in any tenant.
            running: records of running allocations, which are added. Time that the store has already is not counted
                twice.
            limit: greatest number of rows.
        """
        length = usage.c.to_s - usage.c.from_s
        least, most = (
            (sa.func.max, sa.func.min)
            if self._database.engine.dialect.name == "sqlite"
            else (
                sa.func.greatest,
                sa.func.least,
            )
        )
        within = most(usage.c.to_s, to_s) - least(usage.c.from_s, from_s)
        part = sa.case((length > 0, within / length), else_=1.0)
        columns = [DIMENSIONS[name].label(name) for name in by]
        amounts = [sa.func.sum(usage.c[name] * part).label(name) for name in SUMMED]
        idle_gpu_s = most(usage.c.idle_s, length) * usage.c.core_percent / 100.0
        amounts.append(sa.func.sum(idle_gpu_s * part).label("idle_gpu_s"))
        late = sa.case((usage.c.to_s <= to_s, usage.c.uncertain_s * usage.c.core_percent / 100.0), else_=0.0)
        amounts.append(sa.func.sum(late).label("uncertain_gpu_s"))
        query = sa.select(*columns, *amounts).where(usage.c.to_s > from_s, usage.c.from_s < to_s)
        if tenants is not None:
            seen = usage.c.tenant.in_(sorted(tenants))
            query = query.where(sa.or_(seen, usage.c.user == user) if user else seen)
        if columns:
            query = query.group_by(*columns).order_by(*columns)
        with self._database.snapshot() as connection:
            rows = [dict(row) for row in connection.execute(query.limit(limit)).mappings()]
            reached = _reached(connection, min(one.from_s for one in running)) if running else {}
        more = [
            (one, max(from_s, one.from_s, reached.get((one.allocation, one.device), 0.0)))
            for one in running
            if tenants is None or one.tenant in tenants or (user and one.user == user)
        ]
        return _added(rows, more, by, to_s=to_s, limit=limit)


def _reached(connection: sa.Connection, since_s: float) -> dict[tuple[str, str], float]:
    query = sa.select(usage.c.allocation, usage.c.device, sa.func.max(usage.c.to_s)).where(usage.c.to_s > since_s)
    query = query.group_by(usage.c.allocation, usage.c.device)
    return {(name, device): until_s for name, device, until_s in connection.execute(query)}


def _added(
    rows: list[dict[str, Any]],
    running: Sequence[tuple[UsageRecord, float]],
    by: Sequence[str],
    *,
    to_s: float,
    limit: int,
) -> list[dict[str, Any]]:
    """Return the sums with the usage of running allocations added, which is not in the store yet.

    Args:
        rows: sums of the stored records.
        running: pairs of a running allocation's record and a time in seconds since 1970. The usage of the record from
            that time on is not in the store yet, and is added.
        by: names of the dimensions by which usage is summed.
        to_s: end of the time range.
        limit: greatest number of sums that the query returns.
    """
    found = {tuple(row[name] for name in by): row for row in rows}
    whole = len(rows) < limit  # else a name that is not there may be beyond the limit
    for one, begin_s in running:
        within_s, length_s = min(one.to_s, to_s) - begin_s, one.to_s - one.from_s
        key = tuple(getattr(one, DIMENSIONS[name].name) for name in by)
        if within_s <= 0 or (key not in found and not whole):
            continue
        row = found.setdefault(key, dict(zip(by, key, strict=True)))
        idle_gpu_s = min(one.idle_s, length_s) * one.core_percent / 100
        for name, amount in (*((name, getattr(one, name)) for name in SUMMED), ("idle_gpu_s", idle_gpu_s)):
            row[name] = (row.get(name) or 0.0) + amount * within_s / length_s
        late = one.uncertain_s * one.core_percent / 100 if one.to_s <= to_s else 0.0
        row["uncertain_gpu_s"] = (row.get("uncertain_gpu_s") or 0.0) + late
    return [found[key] for key in sorted(found)]
