"""Merge many short usage records of an account and device into few that last a quarter of an hour each.

An account is the combination of tenant, project, queue, user, device model, mode and preemptibility.

Theory of operation. Usage that may still be invoiced is never removed, however much it is, so a user who creates slices
without end would fill the disk. If there are too many records, those of one account and device within one quarter of an
hour are replaced by three or four records. The first one covers the whole quarter with the average amounts, rounded
down to whole percents and MiB. The others cover some microseconds with one percent or one MiB, so that they add up to
the remainders of the divisions. If the idle time is not divisible by the average percentage, one percent of the quarter
becomes a record of its own. Amounts are computed in the units of the ledger, percent-microseconds and MiB-microseconds,
so all sums are exactly the same. Quarters of an hour are used because hours, days and months of all time zones begin at
one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from calabash.adapters.store import tables
from calabash.adapters.store.database import Database
from calabash.adapters.store.usage.removed_usage import note_removed_usage, removing_usage
from calabash.model.allocation import AllocationState

QUARTER_S = 900
SETTLED_S = 7200.0  # records that ended before are final; a later one may be written again after a failure
ROWS_MIN = 8
GROUPS_AT_ONCE = 100
ROWS_AT_ONCE = 2000
WINDOW_S = 86_400.0  # length of the history that one query examines
AGAIN_S = 7 * 86_400.0
_MARK = "usage_spread"
_US = 1_000_000
_QUARTER_US = QUARTER_S * _US
_ACCOUNT = ("tenant", "project", "queue", "user", "device", "device_model", "mode", "preemptible")


def spread(rows: Sequence[Mapping[str, Any]], quarter: int) -> list[dict[str, Any]]:
    """Return few rows that have the same sums as the given rows, all within one quarter of an hour.

    Args:
        rows: usage records that lie within the quarter.
        quarter: number of the quarter of an hour since 1970.
    """
    lengths = [_us(row["to_s"]) - _us(row["from_s"]) for row in rows]
    core = sum(us * row["core_percent"] for us, row in zip(lengths, rows, strict=True))
    memory = sum(us * row["memory_mib"] for us, row in zip(lengths, rows, strict=True))
    idle = sum(min(_us(row["idle_s"]), us) * row["core_percent"] for us, row in zip(lengths, rows, strict=True))
    used_s = sum(_us(row["used_gpu_s"]) for row in rows) / _US
    percent, percent_us = divmod(core, _QUARTER_US)
    mib, mib_us = divmod(memory, _QUARTER_US)
    shares = [(percent, _QUARTER_US), (1, percent_us)]
    if idle < percent * _QUARTER_US and idle % percent > percent_us:
        shares[0:1] = [(percent - 1, _QUARTER_US), (1, _QUARTER_US)]  # so that the idle time is divisible
    found = []
    for share, length_us in shares:
        idle_us = min(length_us, idle // share) if share else 0
        idle -= idle_us * share
        if length_us:
            found.append(_row(quarter, length_us, share, 0) | {"idle_s": idle_us / _US})
    uncertain = sum(_us(row["uncertain_s"]) * row["core_percent"] for row in rows)
    if uncertain:
        largest = max(found, key=lambda row: row["core_percent"])
        largest["uncertain_s"] = uncertain / largest["core_percent"] / _US
    found[0] |= _memory(_QUARTER_US, mib) | {"used_gpu_s": used_s}
    if mib_us:
        found.append(_row(quarter, mib_us, 0, 1))
    return found


def flatten(database: Database, *, bound: int, now_s: float) -> int:
    """Merge records if the table has more than ``bound`` rows; return the number of removed rows.

    Each call continues the pass through the history where the last call stopped, and merges the largest groups of the
    next days. ``AGAIN_S`` seconds after a pass began, a new one begins, because usage may arrive late.
    """
    usage = tables.usage
    with database.reading() as connection:
        total = connection.execute(sa.select(sa.func.count()).select_from(usage)).scalar_one()
        if total <= bound:
            return 0
        pass_s, mark_s = _mark(connection)
        if not 0 <= now_s - pass_s < AGAIN_S:
            oldest_s = connection.execute(sa.select(sa.func.min(usage.c.to_s))).scalar_one()
            pass_s, mark_s = now_s, oldest_s // QUARTER_S * QUARTER_S
    end_s, gone, began_s = (now_s - SETTLED_S) // QUARTER_S * QUARTER_S, 0, mark_s
    while mark_s < end_s and not gone:
        until_s = min(mark_s + WINDOW_S, end_s)
        with database.reading() as connection:
            groups = connection.execute(_groups(database, mark_s, until_s)).mappings().all()
        gone = sum(_flatten(database, dict(group), now_s=now_s) for group in groups)
        if len(groups) < GROUPS_AT_ONCE:
            mark_s = until_s
    if mark_s != began_s or gone:
        with database.transaction() as connection:
            _set_mark(connection, pass_s, mark_s)
    return gone


def _groups(database: Database, from_s: float, to_s: float) -> sa.Select[Any]:
    """Return the query for the largest groups of records of one account in one quarter of an hour.

    Args:
        from_s, to_s: only records that end between these two times are grouped; each is the begin of a quarter.
    """
    usage = tables.usage
    quarter = _quarter(database).label("quarter")
    account = [usage.c[name] for name in _ACCOUNT]
    count = sa.func.count()
    inside = [usage.c.to_s > from_s, usage.c.to_s <= to_s, usage.c.to_s <= (quarter + 1) * float(QUARTER_S)]
    query = sa.select(*account, quarter).where(*inside, _released())
    query = query.group_by(*account, quarter).having(count > ROWS_MIN)
    return query.order_by(count.desc(), *account, quarter).limit(GROUPS_AT_ONCE)


def _flatten(database: Database, group: dict[str, Any], *, now_s: float) -> int:
    """Merge all rows of a group in short transactions; return the number of rows removed."""
    usage, quarter = tables.usage, int(group.pop("quarter"))
    begin_s, gone = float(quarter * QUARTER_S), 0
    mine = [usage.c[name] == value for name, value in group.items()]
    inside = [usage.c.from_s >= begin_s, usage.c.to_s >= begin_s, usage.c.to_s <= begin_s + QUARTER_S, _released()]
    query = sa.select(usage).where(*mine, *inside).order_by(usage.c.id).limit(ROWS_AT_ONCE)
    while True:
        with database.transaction() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
            if len(rows) <= ROWS_MIN:
                return gone
            with removing_usage(connection):
                gone += _replace(connection, rows, group, quarter)
            note_removed_usage(connection, until_s=max(row["to_s"] for row in rows), at_s=now_s)


def _replace(connection: sa.Connection, rows: Sequence[Mapping[str, Any]], group: dict[str, Any], quarter: int) -> int:
    usage, numbers = tables.usage, [row["id"] for row in rows]
    for start in range(0, len(numbers), 500):
        connection.execute(sa.delete(usage).where(usage.c.id.in_(numbers[start : start + 500])))
    name = _name(group, quarter)
    made = [
        {**group, **row, "allocation": name, "sequence": 4 * numbers[-1] + place}
        for place, row in enumerate(spread(rows, quarter))
    ]
    connection.execute(sa.insert(usage), made)
    return len(rows) - len(made)


def _mark(connection: sa.Connection) -> tuple[float, float]:
    """Return the stored progress of ``flatten``: when the current pass began, and the end of the records reached last.

    Both are in seconds since 1970. Before the first pass they are minus infinity and 0.
    """
    table = tables.meta
    found = connection.execute(sa.select(table.c.value).where(table.c.key == _MARK)).scalar_one_or_none()
    pass_s, mark_s = (float(word) for word in (found or "-inf 0").split())
    return pass_s, mark_s


def _set_mark(connection: sa.Connection, pass_s: float, mark_s: float) -> None:
    table = tables.meta
    connection.execute(sa.delete(table).where(table.c.key == _MARK))
    connection.execute(sa.insert(table).values(key=_MARK, value=f"{pass_s!r} {mark_s!r}"))


def _released() -> sa.ColumnElement[bool]:
    """Return the condition that the record's allocation is released."""
    usage, journal = tables.usage, tables.allocations
    held = sa.select(journal.c.id).where(journal.c.state != AllocationState.RELEASED.value)
    return usage.c.allocation.not_in(held)


def _quarter(database: Database) -> sa.ColumnElement[Any]:
    """Return the SQL expression for the quarter of an hour, counted since 1970, in which a record begins."""
    quarters = tables.usage.c.from_s / float(QUARTER_S)
    whole = quarters if database.engine.dialect.name == "sqlite" else sa.func.floor(quarters)
    return sa.cast(whole, sa.BigInteger)


def _row(quarter: int, length_us: int, core_percent: int, memory_mib: int) -> dict[str, Any]:
    begin_us = quarter * _QUARTER_US
    return {
        "from_s": begin_us / _US,
        "to_s": (begin_us + length_us) / _US,
        "core_percent": core_percent,
        "allocated_gpu_s": length_us * core_percent / (100 * _US),
        "used_gpu_s": 0.0,
        "idle_s": 0.0,
        "uncertain_s": 0.0,
        **_memory(length_us, memory_mib),
    }


def _memory(length_us: int, memory_mib: int) -> dict[str, Any]:
    return {"memory_mib": memory_mib, "memory_mib_s": length_us * memory_mib / _US}


def _name(group: Mapping[str, Any], quarter: int) -> str:
    account = "\0".join(str(group[name]) for name in _ACCOUNT)
    return f"quarter-{quarter}-{hashlib.sha256(account.encode()).hexdigest()[:16]}"


def _us(seconds: float) -> int:
    """Return microseconds, rounded as the ledger does."""
    return round(seconds * _US)
