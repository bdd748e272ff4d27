"""Usage that nodes have sent, and how far each has sent: both change in one transaction, so nothing is lost or there twice.

A *source* is a node and the name of its database. The number of an interval in ``usage`` is made of the source's number and the
interval's own, so intervals of two sources never meet, whatever they say of themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.database import Database
from calabash.adapters.store.usage.outbox import NumberedUsage
from calabash.model.errors import CalabashError, Reason

NUMBER_BITS = 32
EPOCHS_MAX = 4096  # of one node


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSource:
    """A node's database, and the number up to which its intervals are here."""

    node: str
    epoch: str
    last: int = 0
    at_s: float = 0.0


class CollectedUsage:
    """Every method may raise CalabashError; then nothing of that call was written."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def last(self, node: str, epoch: str) -> int:
        """Up to which number the intervals of that source are here; 0 when it is new."""
        table = tables.usage_sources
        query = sa.select(table.c.last).where(table.c.node == node, table.c.epoch == epoch)
        with self._database.transaction() as connection:
            return connection.execute(query).scalar_one_or_none() or 0

    def sources(self) -> list[UsageSource]:
        """All of them, by node and age."""
        table = tables.usage_sources
        with self._database.transaction() as connection:
            rows = connection.execute(sa.select(table).order_by(table.c.node, table.c.id)).all()
        return [UsageSource(node=row.node, epoch=row.epoch, last=row.last, at_s=row.at_s) for row in rows]

    def commit(
        self, node: str, epoch: str, intervals: Sequence[NumberedUsage], *, after: int, lost: bool = False, at_s: float
    ) -> int:
        """Write those that are new; up to which number all are here now.

        Args:
            after: the number before the first of them; when it is beyond what is here nothing is written.
            lost: what lies between is gone on the node, and is not waited for.

        Raises CalabashError: CONFLICT when a node has had more databases than anybody installs.
        """
        with self._database.transaction() as connection:
            source, last = self._source(connection, node, epoch, at_s)
            if after > last and not lost:
                return last
            new = [one for one in intervals if one.number > last]
            numbered = [asdict(replace(one.record, sequence=source << NUMBER_BITS | one.number)) for one in new]
            if numbered:
                connection.execute(sa.insert(tables.usage), numbered)
            last = max(last, after, *(one.number for one in new))
            table = tables.usage_sources
            connection.execute(sa.update(table).where(table.c.id == source).values(last=last, at_s=at_s))
        return last

    def _source(self, connection: sa.Connection, node: str, epoch: str, at_s: float) -> tuple[int, int]:
        """Its number, and how far it is. Nobody else writes it before this transaction ends."""
        table = tables.usage_sources
        of_node = table.c.node == node
        mine = sa.select(table.c.id, table.c.last).where(of_node, table.c.epoch == epoch).with_for_update()
        row = connection.execute(mine).one_or_none()
        if row is None:
            count = connection.execute(sa.select(sa.func.count()).select_from(table).where(of_node)).scalar_one()
            if count >= EPOCHS_MAX:
                raise CalabashError(
                    f"node {node} has begun {count} databases, at most {EPOCHS_MAX} are told apart",
                    reason=Reason.CONFLICT,
                    hint="see why its agent loses its directory at every start",
                )
            added = self._database.insert_or_ignore(table, ["node", "epoch"])
            connection.execute(added.values(node=node, epoch=epoch, last=0, at_s=at_s))
            row = connection.execute(mine).one()
        return row.id, row.last
