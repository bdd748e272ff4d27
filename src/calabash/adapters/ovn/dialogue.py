"""OVSDB protocol on one connection to one server: schema, state of the server, lock, tables and transactions."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calabash.adapters.ovn.pending import Pending
from calabash.adapters.ovn.replica import Replica
from calabash.adapters.ovn.schema import ColumnType, tables_of
from calabash.adapters.ovn.wire import LostError, Wire
from calabash.model.errors import CalabashError

ANSWER_S = 10.0  # for small answers
TABLES_S = 120.0  # for all tables
SILENT_S = 5.0  # of silence, after which an echo is sent
DEAD_S = 15.0  # of silence, after which the connection is lost
POLL_S = 1.0  # longest wait between checks for silence
_SERVER = "_Server"
_NEVER = "00000000-0000-0000-0000-000000000000"


class NotHereError(Exception):
    """Error: the server is not the leader of its cluster, or does not have the database now.

    Another server may be usable.
    """


@dataclass(slots=True)
class Told:
    """Summary of the messages that the server has sent since the last call of :meth:`Dialogue.next`.

    Args:
        updates: updates of tables, in order.
        last: ID of the last transaction in the updates; "" if there are none.
        locked: True if the lock was granted, False if another client has taken it; None if it is unchanged.
        answered: transactions whose answers have arrived.
    """

    updates: list[Mapping[str, Any]] = field(default_factory=list)
    last: str = ""
    locked: bool | None = None
    answered: list[Pending] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        return bool(self.updates or self.answered or self.locked is not None)


class Dialogue:
    """OVSDB protocol on a connection to a server, used only in the thread that created it.

    Args:
        wire: the connection.
        woken: descriptor that becomes readable when another thread has something to send.
        database: name of the database.
        stop: returns True when the connection is to end.
    """

    def __init__(self, wire: Wire, woken: int, database: str, *, stop: Callable[[], bool]) -> None:
        self._wire, self._woken, self._database, self._stop = wire, woken, database, stop
        self._ids = itertools.count(1)
        self._asked: dict[Any, Pending] = {}
        self._answers: dict[Any, Mapping[str, Any]] = {}
        self._told = Told()
        self._server = Replica()
        self._leader_only = True
        self._lock = ""
        self._probed_s = 0.0

    def begin(self, wanted: Mapping[str, Sequence[str]], *, leader_only: bool) -> dict[str, dict[str, ColumnType]]:
        """Read the schema and the state of the server; return the types of the wanted columns that the database has.

        Args:
            wanted: names of columns by table.
            leader_only: True to accept only the leader of a clustered database.

        Raises NotHereError, LostError, CalabashError.
        """
        self._leader_only = leader_only
        state = tables_of(self._ask("get_schema", [_SERVER]))
        columns = [c for c in ("name", "model", "connected", "leader", "schema") if c in state["Database"]]
        self._server.begin({"Database": {c: state["Database"][c] for c in columns}})
        self._server.take(
            self._ask("monitor_cond", [_SERVER, "server", {"Database": [{"columns": columns}]}])  # and what follows
        )
        self._require_here()
        self._ask("set_db_change_aware", [True])
        types = tables_of(self._ask("get_schema", [self._database]))
        missing = [table for table in wanted if table not in types]
        if missing:
            raise CalabashError(
                f"{self._database} has no table {missing[0]}", hint="the database is too old, or not the right one"
            )
        return {
            table: {name: kind for name, kind in types[table].items() if name in columns}
            for table, columns in wanted.items()
        }

    def lock(self, name: str) -> bool:
        """Request the lock; return True if the server grants it at once. Otherwise the server may grant it later."""
        self._lock = name
        self._told.locked = None
        given = bool(self._ask("lock", [name]).get("locked"))
        return self._told.locked if self._told.locked is not None else given

    def follow(
        self, types: Mapping[str, Mapping[str, ColumnType]], last: str
    ) -> tuple[bool, str, Mapping[str, Mapping[str, Mapping[str, Any]]]]:
        """Monitor the tables: all rows, or the changes since transaction ``last`` if the server still has them.

        Returns:
            True if the updates are only the changes since ``last``, False if they have all rows; the ID of the last
            transaction; and the updates by table and row.
        """
        request = {table: [{"columns": list(columns)}] for table, columns in types.items()}
        found, known, updates = self._ask(
            "monitor_cond_since", [self._database, "data", request, last or _NEVER], within_s=TABLES_S
        )
        return bool(found), str(known), updates

    def transact(self, pending: Pending) -> None:
        """Send a transaction; :meth:`next` returns it when its answer has arrived."""
        number = next(self._ids)
        self._asked[number] = pending
        self._wire.send({"method": "transact", "params": [self._database, *pending.operations], "id": number})

    def outstanding(self) -> list[Pending]:
        """Return the sent transactions that :meth:`next` has not returned yet, for example because no answer came."""
        return [*self._told.answered, *self._asked.values()]

    def next(self) -> Told:
        """Wait until messages have arrived or another thread has something to send; return the received messages.

        Raises NotHereError, LostError.
        """
        if not self._told.anything:
            now = time.monotonic()
            self._receive(max(self._wire.heard_s + SILENT_S, now + POLL_S))
        told, self._told = self._told, Told()
        return told

    def _ask(self, method: str, params: list[Any], *, within_s: float = ANSWER_S) -> Any:
        number = next(self._ids)
        self._wire.send({"method": method, "params": params, "id": number})
        deadline = time.monotonic() + within_s
        while number not in self._answers:
            if time.monotonic() > deadline:
                raise LostError(f"no answer to {method} within {within_s:g}s")
            self._receive(deadline)
        answer = self._answers.pop(number)
        if answer.get("error"):
            raise LostError(f"{method} is refused: {answer['error']!r:.300}")
        return answer["result"]

    def _receive(self, until_s: float) -> None:
        now = time.monotonic()
        self._wire.wait(self._woken, min(until_s, now + SILENT_S) - now)
        if self._stop():
            raise LostError("left")
        for message in self._wire.received():
            self._take(message)
        now = time.monotonic()
        if now - self._wire.heard_s > DEAD_S:
            raise LostError(f"the server sent nothing for {DEAD_S:g}s")
        if now - self._wire.heard_s >= SILENT_S and now - self._probed_s >= SILENT_S:
            self._probed_s = now
            self._wire.send({"method": "echo", "params": [], "id": "echo"})

    def _take(self, message: Mapping[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            number = message.get("id")
            pending = self._asked.pop(number, None)
            if pending is not None:
                pending.answer = message
                self._told.answered.append(pending)
            elif number != "echo":
                self._answers[number] = message
            return
        params = message.get("params") or []
        if method == "echo" and message.get("id") is not None:
            self._wire.send({"result": params, "error": None, "id": message["id"]})
        elif method == "update3" and params[0] == "data":
            self._told.last = str(params[1])
            self._told.updates.append(params[2])
        elif method == "update2" and params[0] == "server":
            self._server.take(params[1])
            self._require_here()
        elif method in {"locked", "stolen"} and params and params[0] == self._lock:
            self._told.locked = method == "locked"
        elif method == "monitor_canceled":
            raise NotHereError("the server no longer serves the database")

    def _require_here(self) -> None:
        for row in self._server.tables["Database"].values():
            if row["name"] != self._database:
                continue
            if row.get("model") == "clustered":
                if not row.get("connected") or row.get("schema") is None:
                    raise NotHereError("the server is not connected to its cluster")
                if self._leader_only and not row.get("leader"):
                    raise NotHereError("the server is not the leader")
            return
        raise NotHereError(f"the server has no database {self._database}")
