"""OVN's northbound database: read owned rows as values, and apply many changes in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from calabash.adapters.ovn.index import OwnedRows
from calabash.adapters.ovn.replica import Replica, Row, RowEvent
from calabash.adapters.ovn.schema import Cardinality, ColumnType, RowId
from calabash.adapters.ovn.session import Session
from calabash.adapters.ovn.wire import Credentials
from calabash.adapters.ovn.writing import Writer, bumped, shared_pairs, stamped
from calabash.model.errors import CalabashError, Reason
from calabash.net.objects.backends import ClosedBackends, parse_closed
from calabash.net.ovn.northbound.rows import (
    CLOSED,
    GATEWAYS,
    OWNER,
    PLATFORM,
    RESTING,
    REVISION,
    Change,
    Delete,
    Insert,
    Ref,
    Rows,
    Update,
    Value,
)
from calabash.net.ovn.northbound.tables import SINGLE, TABLES, OwnedTable

LOCK = "calabash_netd"
GLOBAL = Ref("NB_Global", SINGLE)  # the one row of its table
_ALSO = {"NB_Global": ("nb_cfg", "sb_cfg"), "Logical_Switch_Port": ("up",)}


class Northbound:
    """Client of the northbound database.

    Args:
        remotes: addresses of its servers.
        lock: name of the lock that only one writer can hold; "" for readers.
        credentials: TLS files, for ``ssl:`` servers.
        touched: called when columns that the product writes were changed, with the owners of the changed rows; must not
            block.
        synchronized: called after each (re)connection, when all rows are known; must not block.
    """

    def __init__(
        self,
        remotes: str,
        *,
        lock: str = LOCK,
        credentials: Credentials | None = None,
        touched: Callable[[frozenset[str]], None] = lambda _: None,
        synchronized: Callable[[], None] = lambda: None,
    ) -> None:
        self._touched, self._synchronized = touched, synchronized
        self._owned = OwnedRows()
        tables = {
            name: tuple({*table.columns, *table.shared, *(("name",) if table.named else ()), *_ALSO.get(name, ())})
            for name, table in TABLES.items()
        }
        self.session = Session(remotes, "OVN_Northbound", tables, lock=lock, credentials=credentials, told=self._told)

    def close(self) -> None:
        self.session.close()

    def owners(self) -> frozenset[str]:
        """Return the owners of rows: VPCs, and PLATFORM."""
        with self.session.reading():
            return self._owned.owners()

    def actual(self, owner: str) -> Rows:
        """Return the rows of a VPC or of PLATFORM, with the columns that the product writes.

        If several rows have the same key, the first one is returned under the key, and the others under their UUIDs.
        """
        with self.session.reading() as replica:
            found: dict[Ref, Mapping[str, Value]] = {
                self._owned.ref(row, table): self._shown(replica, table, replica.tables[table][row])
                for row, table in self._owned.of_owner(owner).items()
            }
            if owner == PLATFORM:
                for columns in replica.tables.get("NB_Global", {}).values():
                    found[GLOBAL] = {name: columns[name] for name in TABLES["NB_Global"].columns}
            return found

    def revision(self, vpc: str) -> int:
        """Return the network store's revision that was last written to the VPC's router; -1 without a router."""
        with self.session.reading() as replica:
            row = self._owned.row(_router(vpc))
            told = replica.tables["Logical_Router"][row]["external_ids"].get(REVISION, "") if row is not None else ""
            return int(told) if told.isdigit() else -1

    def apply(
        self, changes: Sequence[Change], *, revisions: Mapping[str, int] | None = None, timeout_s: float = 10.0
    ) -> int:
        """Apply all changes or none, in one transaction that also increments ``nb_cfg``; return its new value.

        Args:
            changes: the changes.
            revisions: revision of the network store by VPC, which is written to the router of the VPC if there is one.
            timeout_s: longest time to wait for the answer.

        Raises CalabashError: BAD_REQUEST or UNSUPPORTED if a change cannot be written, CONFLICT, UNREACHABLE or TIMEOUT
        as ``Session.transact``.
        """
        ours = [change for change in changes if change.row != GLOBAL]
        for change in ours:
            if isinstance(change, Insert):
                _require_marked(change)
        self.session.wait_ready(timeout_s)
        with self.session.reading() as replica:
            writer = Writer(replica, self._owned, ours)
            operations: list[Mapping[str, Any]] = list(writer.operations)
            operations += [_set_for_all(change) for change in changes if change.row == GLOBAL]
            written = {change.row for change in ours if not isinstance(change, Delete)}
            for vpc, revision in (revisions or {}).items():
                if _router(vpc) in written:  # otherwise northd would recompute everything
                    operations.append(stamped(_router(vpc).key, revision))
            operations += bumped(next(iter(replica.tables["NB_Global"]), None))
        results = self.session.transact(operations, timeout_s=timeout_s)
        for operation, result in zip(writer.operations, results, strict=False):
            if operation["op"] in {"update", "mutate"} and not result.get("count"):
                raise CalabashError(
                    f"a row of {operation['table']} was deleted by another program meanwhile", reason=Reason.CONFLICT
                )
        self._require_there(writer.inserted)
        return int(results[-1]["rows"][0]["nb_cfg"])

    def beat(self, *, timeout_s: float = 10.0) -> int:
        """Increment ``nb_cfg`` without other changes, and return the new value.

        Live hosts then report the new value, which shows that they still follow the database.
        """
        return self.apply((), timeout_s=timeout_s)

    def counts(self) -> tuple[int, int]:
        """Return the numbers of the last change (``nb_cfg``) and of the last one that northd handled (``sb_cfg``)."""
        with self.session.reading() as replica:
            for row in replica.tables.get("NB_Global", {}).values():
                return int(row["nb_cfg"]), int(row["sb_cfg"])
        return 0, 0

    def gateways(self) -> frozenset[str]:
        """Return the hosts that are gateways in the rows of the product."""
        with self.session.reading() as replica:
            rows = replica.tables.get("Gateway_Chassis", {}).values()
            return frozenset(str(row["chassis_name"]) for row in rows if row["external_ids"].get(OWNER))

    def known_gateways(self) -> tuple[str, ...]:
        """Return the gateway hosts that the controller knew at its last write; () if it never wrote."""
        return self._told_of_all(GATEWAYS)

    def resting(self) -> tuple[str, ...]:
        """Return the gateway hosts that have the lowest priorities after a loss, in the stored order."""
        return self._told_of_all(RESTING)

    def _told_of_all(self, key: str) -> tuple[str, ...]:
        with self.session.reading() as replica:
            rows = replica.tables.get("NB_Global", {}).values()
            names = next((str(row["external_ids"].get(key, "")) for row in rows), "")
            return tuple(name for name in names.split(",") if name)

    def closed(self) -> ClosedBackends:
        """Return the load balancer backends that got no new connections when the rows were written."""
        with self.session.reading() as replica:
            rows = replica.tables.get("Load_Balancer", {}).values()
            return parse_closed(str(row["external_ids"].get(CLOSED, "")) for row in rows)

    def gateway_orders(self) -> dict[str, tuple[str, ...]]:
        """Return the gateway hosts of each router port of the product that has any, highest priority first."""
        found = {}
        with self.session.reading() as replica:
            chassis = replica.tables.get("Gateway_Chassis", {})
            for row in replica.tables.get("Logical_Router_Port", {}).values():
                rows = [chassis[one] for one in row["gateway_chassis"] if one in chassis]
                if rows and row["external_ids"].get(OWNER):
                    rows.sort(key=lambda one: (-int(one["priority"]), one["chassis_name"]))
                    found[str(row["name"])] = tuple(str(one["chassis_name"]) for one in rows)
        return found

    def _told(self, replica: Replica, events: Sequence[RowEvent]) -> None:
        if not events:
            self._owned.rebuild(replica)
            self._synchronized()
            return
        self._owned.take(events)
        owners = frozenset(owner for event in events for owner in self._concerned(event))
        if owners:
            self._touched(owners)

    def _concerned(self, event: RowEvent) -> Iterable[str]:
        before, after = event.before or {}, event.after or {}
        table = TABLES[event.table]
        if event.before is not None and event.after is not None and not _differ(table, before, after):
            return ()
        if table.single:
            return (PLATFORM,)
        told = (row.get("external_ids", {}).get(OWNER, "") for row in (before, after))
        return (owner for owner in told if owner)

    def _shown(self, replica: Replica, table: str, row: Row) -> dict[str, Value]:
        types = replica.types[table]
        names = (*TABLES[table].columns, *TABLES[table].shared)
        return {name: self._value(types[name], row[name]) for name in names if name in types}

    def _value(self, kind: ColumnType, value: Any) -> Any:
        if kind.key != "uuid" or kind.shape is Cardinality.MAP or value is None:
            return value
        if isinstance(value, frozenset):
            return frozenset(self._owned.ref(row, kind.refers) for row in value)
        return self._owned.ref(RowId(value), kind.refers)

    def _require_there(self, refs: Iterable[Ref]) -> None:
        with self.session.reading():
            lost = [ref for ref in refs if self._owned.row(ref) is None]
        if lost:
            raise CalabashError(
                f"{lost[0].table} {lost[0].key} was inserted and removed at once, because no row refers to it",
                reason=Reason.CONFLICT,
            )


def _router(vpc: str) -> Ref:
    return Ref("Logical_Router", f"cb-{vpc}")


def _differ(table: OwnedTable, before: Row, after: Row) -> bool:
    """Return True if a column that the product writes differs between two states of a row."""
    if any(before.get(name) != after.get(name) for name in table.columns if name not in table.shared):
        return True
    return any(
        before.get(name, {}).get(key) != after.get(name, {}).get(key)
        for name, keys in table.shared.items()
        for key in keys
    )


def _require_marked(change: Insert) -> None:
    marks = change.columns.get("external_ids")
    if not isinstance(marks, Mapping) or not marks.get(OWNER):
        raise CalabashError(
            f"{change.row.table} {change.row.key} has no owner, and would never be found again",
            hint=f'set external_ids["{OWNER}"]',
        )


def _set_for_all(change: Change) -> dict[str, Any]:
    shared = TABLES["NB_Global"].shared
    if not isinstance(change, Update) or not change.columns.keys() <= shared.keys():
        raise CalabashError(f"only {' and '.join(shared)} of NB_Global can be set")
    pairs = [
        mutation
        for name, value in change.columns.items()
        for mutation in shared_pairs(name, shared[name], cast(Mapping[str, str], value))
    ]
    return {"op": "mutate", "table": "NB_Global", "where": [], "mutations": pairs}
