"""Questions about usage records that the database answers better than whoever would read all of them."""

from __future__ import annotations

import sqlalchemy as sa

from calabash.model.allocation import AllocationRecord, UsageSoFar
from calabash.seams.store import tables
from calabash.seams.store.database import Database


class UsageBook:
    """Sums over the records. Every method may raise CalabashError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def so_far(self, record: AllocationRecord) -> UsageSoFar | None:
        """What is written of an allocation; None when nothing is."""
        table, count = tables.usage, len(record.placement.slices)
        part = (table.c.sequence % count).label("part")
        query = sa.select(
            part, sa.func.max(table.c.to_s), sa.func.max(table.c.sequence), sa.func.sum(table.c.used_gpu_s)
        )
        with self._database.transaction() as connection:
            rows = connection.execute(query.where(table.c.allocation == record.id).group_by(part)).all()
        if not rows:
            return None
        return UsageSoFar(
            until_s=max(row[1] for row in rows),
            next_sequence=(max(row[2] for row in rows) // count + 1) * count,
            used_gpu_s={int(row[0]): float(row[3]) for row in rows},
        )
