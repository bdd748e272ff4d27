"""Usage read for bills and reports: page by page or summed by the database, without holding up who writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from calabash.seams.store.database import Database
from calabash.seams.store.tables import usage

PAGE_ROWS = 20_000
BILLED = ("tenant", "project", "device_model", "mode", "preemptible")
MEASURED = ("from_s", "to_s", "core_percent", "memory_mib", "used_gpu_s", "idle_s")
EVIDENCE = ("allocation", "device", "user", "sequence", "id")
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
    """Every method may raise CalabashError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pages(self, *, from_s: float, to_s: float, tenant: str = "") -> Iterator[Sequence[Any]]:
        """All intervals that reach into that time, page by page in the order of writing: BILLED, MEASURED, EVIDENCE."""
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

    def sums(
        self,
        by: Sequence[str],
        *,
        from_s: float,
        to_s: float,
        tenants: frozenset[str] | None = None,
        user: str = "",
        limit: int = 1000,
    ) -> list[dict[str, Any]]:
        """Sum usage by dimensions, in seconds of whole devices and MiB-seconds; at most ``limit`` rows.

        A record that reaches over an end of the time counts with its part within. ``idle_gpu_s`` is idle time multiplied by the
        slice's share of the device, so it is never more than ``allocated_gpu_s``.

        Args:
            tenants: only of these, None: of all. user: also what that user used itself, of any tenant.
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
        query = sa.select(*columns, *amounts).where(usage.c.to_s > from_s, usage.c.from_s < to_s)
        if tenants is not None:
            seen = usage.c.tenant.in_(sorted(tenants))
            query = query.where(sa.or_(seen, usage.c.user == user) if user else seen)
        if columns:
            query = query.group_by(*columns).order_by(*columns)
        with self._database.reading() as connection:
            return [dict(row) for row in connection.execute(query.limit(limit)).mappings()]
