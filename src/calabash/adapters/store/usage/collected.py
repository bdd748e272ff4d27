"""Usage records that nodes have sent, and the number of the last record of each node.

Both are stored in one transaction, so that no record is lost or stored twice. A *source* is a node together with the
name of its database, the *epoch*. The number of a stored record combines the number of the source and the record's own
number, so that records of two sources never have the same number.
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
    """Database of a node.

    Args:
        node: name of the node.
        epoch: name of the node's database.
        last: number of the last record that is stored here.
        at_s: time of the last report in seconds since the epoch of Unix.
    """

    node: str
    epoch: str
    last: int = 0
    at_s: float = 0.0


class CollectedUsage:
    """Collected usage records. If a method raises CalabashError, it has written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def last(self, node: str, epoch: str) -> int:
        """Return the number of the last stored record of a source (``node``, ``epoch``); 0 for a new source."""
        table = tables.usage_sources
        query = sa.select(table.c.last).where(table.c.node == node, table.c.epoch == epoch)
        with self._database.transaction() as connection:
            return connection.execute(query).scalar_one_or_none() or 0

    def sources(self) -> list[UsageSource]:
        """Return all sources by node and age."""
        table = tables.usage_sources
        with self._database.transaction() as connection:
            rows = connection.execute(sa.select(table).order_by(table.c.node, table.c.id)).all()
        return [UsageSource(node=row.node, epoch=row.epoch, last=row.last, at_s=row.at_s) for row in rows]

    def commit(
        self, node: str, epoch: str, intervals: Sequence[NumberedUsage], *, after: int, lost: bool = False, at_s: float
    ) -> int:
        """Store the records of a source that are new; return the number up to which its records are stored now.

        Args:
            node: name of the node.
            epoch: name of the node's database.
            intervals: records of the source with their numbers.
            after: number of the record before the first of ``intervals``. If it is greater than the last stored number,
                records are missing, and nothing is written.
            lost: True to accept missing records, because the node does not have them any more.
            at_s: time of the report in seconds since the epoch of Unix.

        Raises CalabashError(CONFLICT) if a node has had more than EPOCHS_MAX databases.
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
        """Return the number of a source and the number of its last stored record; create the source if it is new.

        The row of the source is locked until the transaction ends.
        """
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
