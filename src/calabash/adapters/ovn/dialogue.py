"""What is said on one connection to one server of OVSDB: schema, state of the server, lock, tables, transactions."""

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

ANSWER_S = 10.0  # of a server, for what is small
TABLES_S = 120.0  # for all tables
SILENT_S = 5.0  # then it is asked whether it is there
DEAD_S = 15.0  # of silence
LOOK_S = 1.0  # how often it is looked whether it is still silent
_SERVER = "_Server"
_NEVER = "00000000-0000-0000-0000-000000000000"


class NotHereError(Exception):
    """This server does not lead, or has not the database now; another may."""


@dataclass(slots=True)
class Told:
    """What came since the last time."""

    updates: list[Mapping[str, Any]] = field(default_factory=list)
    last: str = ""
    locked: bool | None = None
    answered: list[Pending] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        return bool(self.updates or self.answered or self.locked is not None)


class Dialogue:
    """One connection, in the thread that made it.

    Args:
        woken: a descriptor that becomes readable when there is something to send.
        stop: whether to end.
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
        self.leave = False

    def begin(self, wanted: Mapping[str, Sequence[str]], *, leader_only: bool) -> dict[str, dict[str, ColumnType]]:
        """The types of the wanted columns that the database has. Raises NotHereError, LostError, CalabashError."""
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
                f"{self._database} has no table {missing[0]}", hint="it is of a version that is too old, or another one"
            )
        return {
            table: {name: kind for name, kind in types[table].items() if name in columns}
            for table, columns in wanted.items()
        }

    def lock(self, name: str) -> bool:
        """Ask for the lock; whether it was free. It may be given later."""
        self._lock = name
        self._told.locked = None
        given = bool(self._ask("lock", [name]).get("locked"))
        return self._told.locked if self._told.locked is not None else given

    def follow(
        self, types: Mapping[str, Mapping[str, ColumnType]], last: str
    ) -> tuple[bool, str, Mapping[str, Mapping[str, Mapping[str, Any]]]]:
        """All rows, or what changed since the transaction ``last`` where the server still knows: (whether, last, updates)."""
        request = {table: [{"columns": list(columns)}] for table, columns in types.items()}
        found, known, updates = self._ask(
            "monitor_cond_since", [self._database, "data", request, last or _NEVER], within_s=TABLES_S
        )
        return bool(found), str(known), updates

    def transact(self, pending: Pending) -> None:
        """Send it; ``next`` tells its answer."""
        number = next(self._ids)
        self._asked[number] = pending
        self._wire.send({"method": "transact", "params": [self._database, *pending.operations], "id": number})

    def outstanding(self) -> list[Pending]:
        """Transactions that were sent, and whose answers nobody was told."""
        return [*self._told.answered, *self._asked.values()]

    def next(self) -> Told:
        """Wait for something to come or to be sent. Raises NotHereError, LostError."""
        if not self._told.anything:
            now = time.monotonic()
            self._look(max(self._wire.heard_s + SILENT_S, now + LOOK_S))
        told, self._told = self._told, Told()
        return told

    def _ask(self, method: str, params: list[Any], *, within_s: float = ANSWER_S) -> Any:
        number = next(self._ids)
        self._wire.send({"method": method, "params": params, "id": number})
        deadline = time.monotonic() + within_s
        while number not in self._answers:
            if time.monotonic() > deadline:
                raise LostError(f"no answer to {method} within {within_s:g}s")
            self._look(deadline)
        answer = self._answers.pop(number)
        if answer.get("error"):
            raise LostError(f"{method} is refused: {answer['error']!r:.300}")
        return answer["result"]

    def _look(self, until_s: float) -> None:
        now = time.monotonic()
        self._wire.wait(self._woken, min(until_s, now + SILENT_S) - now)
        if self._stop() or self.leave:
            raise LostError("left")
        for message in self._wire.received():
            self._take(message)
        now = time.monotonic()
        if now - self._wire.heard_s > DEAD_S:
            raise LostError(f"the server said nothing for {DEAD_S:g}s")
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
            raise NotHereError("the server gave the database up")

    def _require_here(self) -> None:
        for row in self._server.tables["Database"].values():
            if row["name"] != self._database:
                continue
            if row.get("model") == "clustered":
                if not row.get("connected") or row.get("schema") is None:
                    raise NotHereError("it is not with the others of its cluster")
                if self._leader_only and not row.get("leader"):
                    raise NotHereError("it is not the leader")
            return
        raise NotHereError(f"it has no database {self._database}")
