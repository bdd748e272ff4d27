"""``python -m tests.unit.kubernetes.usage.killed_round HOME STEP``: a node sends usage, and is killed at STEP.

The databases of the node and the server are kept below HOME. Without STEP the process continues from what they contain,
until all usage is sent.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.kubernetes.usage.usage_world import NOW_S, NodeSide, ServerSide, cluster

from calabash.adapters.store import open_store
from calabash.adapters.store.database import Database
from calabash.api.collected import UsageBatch, UsageTaken

STEPS = (
    "metering",
    "metered",
    "reading",
    "sending",
    "committing",
    "committed",
    "answered",
    "acknowledging",
    "acknowledged",
)
INTERVALS = 8
BEGIN_S = NOW_S - 10_000


def kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def dying_before_commit(database: Database) -> Iterator[None]:
    """Kill the process in the next transaction, when it is complete except for its commit."""
    original = database.transaction

    @contextmanager
    def transaction() -> Iterator[Any]:
        with original() as connection:
            yield connection
            kill()

    database.transaction = transaction  # type: ignore[method-assign]
    yield


def dying(store: Any, *, before_commit: bool, of: Callable[[], Any]) -> Any:
    """Call ``of``; with ``before_commit`` the process is killed before the transaction of the call is committed."""
    if not before_commit:
        return of()
    with dying_before_commit(store._database):
        return of()


def play(home: Path, step: str) -> None:
    server = ServerSide(open_store(f"sqlite:///{home / 'server.db'}"), cluster(("p0", "n1")))
    node = NodeSide("n1", home, server, entries=3)
    record = node.store.allocations()[0] if node.store.allocations() else node.grant(5, at_s=BEGIN_S)
    so_far = node.store.usage_sums.all_so_far([record]).get(record.id)
    node.until_s[record.id] = so_far.until_s if so_far else BEGIN_S
    written = round((node.until_s[record.id] - BEGIN_S) / 60)
    for number in range(written, INTERVALS):
        half = number == INTERVALS // 2
        dying(node.store, before_commit=half and step == "metering", of=lambda: node.meter(record, 60.0))
        if half and step == "metered":
            kill()

    def post(batch: UsageBatch) -> UsageTaken:
        second = batch.after > 0 and bool(batch.entries)
        if second and step == "sending":
            kill()
        body = msgspec.json.encode(batch)
        if second and step == "committing":
            # The first transactions only read.
            original = server.store.collected.commit

            def commit(*words: Any, **more: Any) -> int:
                with dying_before_commit(server.store._database):
                    return original(*words, **more)

            server.store.collected.commit = commit  # type: ignore[method-assign]
        taken = server.post("n1", body)
        if second and step in {"committed", "answered"}:
            kill()
        return taken

    node.sending._post = post
    if step in {"acknowledging", "acknowledged", "reading"}:
        name = "after" if step == "reading" else "acknowledge"
        original = getattr(node.store.outbox, name)
        calls = iter(range(100))

        def patched(*words: Any, **more: Any) -> Any:
            second = next(calls) == 1
            found = dying(
                node.store, before_commit=second and step != "acknowledged", of=lambda: original(*words, **more)
            )
            if second and step == "acknowledged":
                kill()
            return found

        setattr(node.store.outbox, name, patched)
    node.drain()
    node.sending.keep_bounded()
    node.store.close()
    server.store.close()


if __name__ == "__main__":
    play(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
