"""Store of queues with their guarantees and access lists: in memory and in the database.

It stores the queues that administrators have created. The queues of tenants are not stored: they are derived from the
tenants and their projects. The queue ``default`` always exists.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from calabash.adapters.store import Store
from calabash.api import replies
from calabash.api.requests import QueueSettings
from calabash.binder.local.binder import Binder
from calabash.model.allocation import QueueRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE
from calabash.platform.settings_changes import changed_queue, require_presence
from calabash.platform.tenancy.directory import TenancyDirectory
from calabash.platform.tenancy.queues import tenant_queues
from calabash.sched import UNLIMITED, Amount, QueueSpec


class Queues:
    """Queues of the pool. Safe for threads.

    Args:
        people: returns the present directory of tenants, from which their queues are derived.
    """

    def __init__(self, store: Store, people: Callable[[], TenancyDirectory] = TenancyDirectory) -> None:
        self._stored = store.administration
        self._people = people
        self._lock = threading.Lock()
        self._queues = {q.name: q for q in self._stored.queues()}

    def specs(self) -> list[QueueSpec]:
        """Return all queues in the scheduler's form."""
        return _specs(self._all(self._people()).values())

    def records(self) -> list[QueueRecord]:
        """Return the queues that an administrator has created."""
        return list(self._queues.values())

    def explicit(self) -> Collection[str]:
        """Return the names of the queues that an administrator has created."""
        return self._queues.keys()

    def require_explicit(self, name: str) -> None:
        """Raise NOT_FOUND unless the queue is ``default`` or created by an administrator."""
        if name != DEFAULT_QUEUE and name not in self._queues:
            raise _unknown("queue", name, "see `calabash queue list`")

    def queue(self, name: str) -> QueueRecord:
        """Return a queue that an administrator has created; for another name, a record with an empty access list."""
        return self._queues.get(name) or QueueRecord(name=name)

    def shown(self, binder: Binder, seen: Callable[[QueueRecord], bool]) -> list[replies.QueueView]:
        """Return the visible queues with the allocated and waiting amounts in devices, and their past use.

        Args:
            seen: returns True if a queue is visible.
        """
        known = {DEFAULT_QUEUE: QueueRecord(name=DEFAULT_QUEUE), **self._all(self._people())}
        past = binder.past_use()
        with binder.reading() as scheduler:
            tree = scheduler.scheduler.tree
            amounts = {name: (tree.used(name).gpu_milli, tree.waiting(name).gpu_milli) for name in known}
            fair = {name: tree.fair(name)[0] for name in known}
            half_life_s = tree.half_life_s
            weights = {name: tree.effective_weight(name) for name in known} if half_life_s > 0 else {}
        return [
            replies.QueueView(
                name=q.name,
                parent=q.parent,
                guarantee=q.deserved,
                deserved=q.deserved,
                limit=q.limit,
                weight=q.weight,
                allocated=amounts[q.name][0] / 1000,
                pending=amounts[q.name][1] / 1000,
                users=list(q.users),
                groups=list(q.groups),
                fair_share=round(fair[q.name] / 1000, 3),
                half_life_s=half_life_s,
                past_use_device_s=round(past.get(q.name, 0.0), 3),
                effective_weight=round(weights[q.name], 4) if weights else None,
            )
            for _, q in sorted(known.items())
            if seen(q)
        ]

    def put_queue(self, name: str, wanted: QueueSettings, binder: Binder) -> None:
        """Create a queue or change the settings that are given. If it raises CalabashError, nothing was changed."""
        tenant = name.partition("/")[0]
        if name not in self._queues and tenant in self._people().tenants:
            raise CalabashError(
                f"queue {name} would be of tenant {tenant}",
                reason=Reason.CONFLICT,
                hint=f"change the tenant, or its projects: calabash tenant set {tenant}",
            )
        with self._lock:
            exists = name == DEFAULT_QUEUE or name in self._queues
            require_presence("queue", name, exists=exists, new=wanted.new)
            record = changed_queue(self.queue(name), wanted)
            self._change(binder, {**self._queues, name: record}, lambda: self._stored.put_queue(record))

    def delete_queue(self, name: str, binder: Binder) -> None:
        """Delete an empty queue. If it raises CalabashError, nothing was changed."""
        with self._lock:
            if name not in self._queues:
                raise _unknown("queue", name, "see `calabash queue list`")
            left = {n: q for n, q in self._queues.items() if n != name}
            self._change(binder, left, lambda: self._stored.delete_queue(name))

    def _change(self, binder: Binder, wanted: dict[str, QueueRecord], write: Callable[[], object]) -> None:
        """Change the queues of the scheduler, the database and this store, all or none. The caller holds the lock.

        Args:
            wanted: the queues that administrators have created, after the change.
            write: writes the change to the database.
        """
        with self._formed(binder, self._all(self._people(), wanted)):
            write()
            self._queues = wanted

    @contextmanager
    def with_tenants(self, binder: Binder, people: TenancyDirectory) -> Iterator[None]:
        """Set the scheduler's queues for a change of tenants; restore the old ones if the body of the context raises.

        Raises CONFLICT if a new tenant has the name of a queue, and CalabashError if the queues are invalid.
        """
        taken = (people.tenants.keys() - self._people().tenants.keys()) & self._queues.keys()
        if taken:
            name = min(taken)
            raise CalabashError(
                f"tenant {name} would have a queue that is there already",
                reason=Reason.CONFLICT,
                hint=f"delete it with `calabash queue delete {name}`, or choose another name",
            )
        with self._lock, self._formed(binder, self._all(people)):
            yield

    @contextmanager
    def _formed(self, binder: Binder, wanted: dict[str, QueueRecord]) -> Iterator[None]:
        with binder.reading() as scheduler:
            before = self.specs()
            scheduler.set_queues(_specs(wanted.values()))
            try:
                yield
            except BaseException:
                scheduler.set_queues(before)
                raise

    def _all(self, people: TenancyDirectory, explicit: dict[str, QueueRecord] | None = None) -> dict[str, QueueRecord]:
        explicit = self._queues if explicit is None else explicit
        return {**tenant_queues(people, explicit), **explicit}


def _specs(records: Iterable[QueueRecord]) -> list[QueueSpec]:
    known = {record.name: record for record in records}
    known.setdefault(DEFAULT_QUEUE, QueueRecord(name=DEFAULT_QUEUE))
    return [
        QueueSpec(
            name=record.name,
            parent=record.parent,
            deserved=Amount(gpu_milli=round(record.deserved * 1000)),
            limit=UNLIMITED if record.limit is None else UNLIMITED._replace(gpu_milli=round(record.limit * 1000)),
            over_quota_weight=record.weight,
        )
        for record in known.values()
    ]


def _unknown(what: str, name: str, hint: str) -> CalabashError:
    return CalabashError(f"there is no {what} {name}", reason=Reason.NOT_FOUND, hint=hint)
