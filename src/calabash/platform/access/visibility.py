"""Visibility: redact objects and names of other tenants from the replies to a principal.

A principal with permission SEE_PLATFORM reads everything. Every other principal reads its own objects and those of its
tenants: other allocations are neither listed nor found, a device shows only its properties and free amounts, and only
the queues that the principal may use are listed. A name in a message (``model.messages``) is redacted by the same rules, by
its type and value. The words of a message are never compared with names, so a message does not reveal which names exist. The
totals of devices, and of the queues that a principal may use, are visible, because users need them to choose the size of
their requests. If there are only two tenants, each can compute from the totals how much the other one uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import msgspec

from calabash.adapters.store.event_filter import AllocationsSeen, EventsSeen
from calabash.api import mig as mig_messages
from calabash.api import replies
from calabash.model import access
from calabash.model.access import Action
from calabash.model.allocation import AllocationRecord, QueueRecord
from calabash.model.messages import (
    FilteringViewer,
    Name,
    QueueName,
    RequestName,
    TenantName,
    Text,
    UserName,
    render,
)
from calabash.model.request import DEFAULT_QUEUE, AllocationId, GpuRequest
from calabash.model.tenancy import Principal
from calabash.platform.access.permission import Permission
from calabash.platform.tenancy.directory import TenancyDirectory
from calabash.platform.tenancy.owners import AllocationOwner

PUBLIC_EVENTS = frozenset({"health", "mode", "layout"})

Held = tuple[str, GpuRequest, int, str]  # ID, request, uid and user of an allocation or a waiting request


class Visibility:
    """Objects and names that one principal may read.

    Args:
        who: the principal.
        people: directory of tenants, users and roles.
        live: returns all allocations and waiting requests; called at most once, when it is first needed.
        queues: the queues that an administrator has created.
        owner: returns the owner of an allocation, also of one that has ended; None if it is unknown.
        permission: decides whether the principal is on the access list of a queue.
    """

    def __init__(
        self,
        who: Principal,
        *,
        people: TenancyDirectory,
        live: Callable[[], Iterable[Held]],
        queues: Iterable[QueueRecord],
        owner: Callable[[AllocationId], AllocationOwner | None],
        permission: Permission,
    ) -> None:
        self.who = who
        self.all = access.is_allowed(who, Action.SEE_PLATFORM)
        self._people = people
        self._live = live
        self._queues = {q.name: q for q in queues}
        self._owner = owner
        self._permission = permission
        self._remembered: dict[str, bool] = {}
        self._tenants = access.visible_tenants(who) or frozenset()
        self._viewer = FilteringViewer(self._may_read)

    def sees(self, *, tenant: str, uid: int, user: str) -> bool:
        """Return True if the principal may read the objects that a user has in a tenant.

        Args:
            tenant: the tenant.
            uid: uid of the user; negative if only the name is known.
            user: name of the user.
        """
        if self.all or tenant in self._tenants:
            return True
        own = uid == self.who.uid if uid >= 0 else user == self.who.user
        return own and access.in_scope(self.who, Action.SEE)

    def record(self, record: AllocationRecord) -> bool:
        return self.sees(tenant=record.request.tenant, uid=record.uid, user=record.user)

    def allocation(self, name: str) -> bool:
        """Return True if the principal may read the allocation or request with this ID; False for an unknown ID."""
        if self.all:
            return True
        if name not in self._remembered:
            if name in self._seen:
                return self._seen[name]
            owner = self._owner(AllocationId(name))
            self._remembered[name] = owner is not None and self.sees(
                tenant=owner.tenant, uid=owner.uid, user=owner.user
            )
        return self._remembered[name]

    def queue(self, queue: QueueRecord) -> bool:
        tenant = queue.name.partition("/")[0]
        if queue.name not in self._queues and tenant in self._people.tenants:
            return self.all or tenant in self._tenants
        if self.all or queue.name == DEFAULT_QUEUE:
            return True
        return self._permission.listed(self.who, queue.users, queue.groups)

    # -- texts -------------------------------------------------------------------------------------------------

    def text(self, text: Text) -> str:
        """Return the text with each name that the principal may not read replaced by a general word."""
        return render(text, self._viewer)

    def _may_read(self, name: Name) -> bool:
        """Return True if the principal may read a name; False for unknown names too."""
        if self.all:
            return True
        match name:
            case RequestName(value):
                return self.allocation(value)
            case QueueName(value):
                return self._queue_name(value)
            case TenantName(value):
                return value in self._tenants or value == self.who.own
            case UserName(value):
                members = self._people.members.get(value, ())
                return value == self.who.user or any(member.tenant in self._tenants for member in members)
        return False

    def _queue_name(self, name: str) -> bool:
        known = self._queues.get(name)
        if known is not None:
            return self.queue(known)
        return name == DEFAULT_QUEUE or name.partition("/")[0] in self._tenants

    @cached_property
    def _seen(self) -> dict[str, bool]:
        return {name: self.sees(tenant=request.tenant, uid=uid, user=user) for name, request, uid, user in self._live()}

    # -- replies -----------------------------------------------------------------------------------------------

    def shown_device(self, view: replies.DeviceView) -> replies.DeviceView:
        if self.all:
            return view
        return msgspec.structs.replace(
            view,
            allocations=[name for name in view.allocations if self.allocation(name)],
            unmanaged_processes=[s for s in view.unmanaged_processes if s.uid == self.who.uid],
        )

    def shown_card(self, card: mig_messages.MigCardView) -> mig_messages.MigCardView:
        if self.all:
            return card
        instances = [
            msgspec.structs.replace(
                i,
                allocations=[name for name in i.allocations if self.allocation(name)],
                parts=[
                    msgspec.structs.replace(p, allocation=p.allocation if self.allocation(p.allocation) else "")
                    for p in i.parts
                ],
            )
            for i in card.instances
        ]
        return msgspec.structs.replace(card, instances=instances)

    def shown_queue(self, view: replies.QueueView) -> replies.QueueView:
        if self.all:
            return view
        mine = [user for user in view.users if user == self.who.user]
        return msgspec.structs.replace(view, users=mine, groups=[])

    def allocations_seen(self) -> AllocationsSeen | None:
        """Return the filter of visible allocations for queries of the journal; None if all are visible."""
        if self.all:
            return None
        own = access.in_scope(self.who, Action.SEE)
        return AllocationsSeen(tenants=self._tenants, uid=self.who.uid, user=self.who.user, own=own)

    def events_seen(self) -> EventsSeen | None:
        """Return the filter of visible events: those of visible allocations and of PUBLIC_EVENTS; None if all are visible."""
        allocations = self.allocations_seen()
        if allocations is None:
            return None
        return EventsSeen(
            allocations=allocations,
            waiting=frozenset(name for name, seen in self._seen.items() if seen),
            kinds=PUBLIC_EVENTS,
        )
