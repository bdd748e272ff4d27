"""Sums over usage records, computed by the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.database import Database
from calabash.model.allocation import AllocationRecord, UsageSoFar
from calabash.model.request import AllocationId

IDS_AT_ONCE = 500  # SQLite takes so many variables in any build


class UsageSums:
    """Sums over usage records. Every method may raise CalabashError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all_so_far(self, records: Iterable[AllocationRecord]) -> dict[AllocationId, UsageSoFar]:
        """Return the sums of each allocation's records; allocations without records are left out.

        Makes one query for each IDS_AT_ONCE allocations that have the same number of slices.
        """
        by_count: dict[int, list[AllocationId]] = {}
        for record in records:
            by_count.setdefault(len(record.placement.slices), []).append(record.id)
        found: dict[AllocationId, UsageSoFar] = {}
        with self._database.transaction() as connection:
            for count, names in by_count.items():
                for begin in range(0, len(names), IDS_AT_ONCE):
                    found |= _summed(connection, names[begin : begin + IDS_AT_ONCE], count)
        return found


def _summed(connection: sa.Connection, names: Sequence[AllocationId], count: int) -> dict[AllocationId, UsageSoFar]:
    table = tables.usage
    part = (table.c.sequence % count).label("part")
    query = sa.select(
        table.c.allocation,
        part,
        sa.func.max(table.c.to_s),
        sa.func.max(table.c.sequence),
        sa.func.sum(table.c.used_gpu_s),
    )
    rows: dict[AllocationId, list[tuple[Any, ...]]] = {}
    for row in connection.execute(query.where(table.c.allocation.in_(names)).group_by(table.c.allocation, part)):
        rows.setdefault(AllocationId(row[0]), []).append(tuple(row))
    return {
        name: UsageSoFar(
            until_s=max(row[2] for row in parts),
            next_sequence=(max(row[3] for row in parts) // count + 1) * count,
            used_gpu_s={int(row[1]): float(row[4]) for row in parts},
        )
        for name, parts in rows.items()
    }
