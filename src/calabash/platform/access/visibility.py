"""Visibility: redact objects and names of other tenants from the replies to a principal.

A principal with permission SEE_PLATFORM reads everything. Every other principal reads its own objects and those of its
tenants: other allocations are neither listed nor found, a device shows only its properties and free amounts, and only
the queues that the principal may use are listed. A name inside a text is a mention (``model.mentions``) and is redacted
by the same rules, by the kind and name of its object. Words of a text are never compared with names, so a text does not
reveal which names exist. The totals of devices, and of the queues that a principal may use, are visible, because users
need them to choose the size of their requests. If there are only two tenants, each can compute from the totals how much
the other one uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeVar

import msgspec

from calabash.adapters.store.event_filter import AllocationsSeen, EventsSeen
from calabash.api import mig as mig_messages
from calabash.api import replies
from calabash.model import access
from calabash.model.access import Action
from calabash.model.allocation import AllocationRecord, QueueRecord
from calabash.model.mentions import Mentioned, render
from calabash.model.request import DEFAULT_QUEUE, AllocationId, GpuRequest
from calabash.model.tenancy import Principal
from calabash.platform.tenancy.directory import People
from calabash.platform.tenancy.owners import AllocationOwner

PUBLIC_EVENTS = frozenset({"health", "mode", "layout"})

View = TypeVar("View", replies.AllocationView, replies.DeviceView, replies.EventView, replies.HappeningView)
Held = tuple[str, GpuRequest, int, str]  # ID, request, uid and user of an allocation or a waiting request


class Visibility:
    """Objects and names that one principal may read.

    Args:
        who: the principal.
        people: directory of tenants, users and roles.
        live: returns all allocations and waiting requests; called at most once, when it is first needed.
        queues: the queues that an administrator has created.
        owner: returns the owner of an allocation, also of one that has ended; None if it is unknown.
        listed: returns True if the principal is on the queue's access list.
    """

    def __init__(
        self,
        who: Principal,
        *,
        people: People,
        live: Callable[[], Iterable[Held]],
        queues: Iterable[QueueRecord],
        owner: Callable[[AllocationId], AllocationOwner | None],
        listed: Callable[[QueueRecord], bool],
    ) -> None:
        self.who = who
        self.all = access.is_allowed(who, Action.SEE_PLATFORM)
        self._people = people
        self._live = live
        self._queues = {q.name: q for q in queues}
        self._owner = owner
        self._listed = listed
        self._remembered: dict[str, bool] = {}
        self._tenants = access.visible_tenants(who) or frozenset()

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
        return self.all or queue.name == DEFAULT_QUEUE or self._listed(queue)

    # -- texts -------------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Return the text with each mention of a name that the principal may not read replaced by a general word."""
        return render(text, self._mentioned)

    def _mentioned(self, kind: str, name: str) -> bool:
        """Return True if the principal may read a name of that kind; False for unknown names too."""
        if self.all:
            return True
        match kind:
            case Mentioned.REQUEST:
                return self.allocation(name)
            case Mentioned.QUEUE:
                return self._queue_name(name)
            case Mentioned.TENANT:
                return name in self._tenants or name == self.who.own
            case Mentioned.USER:
                members = self._people.members.get(name, ())
                return name == self.who.user or any(member.tenant in self._tenants for member in members)
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

    def shown_allocation(self, view: replies.AllocationView) -> replies.AllocationView:
        return self._redacted(view, "explanation")

    def shown_why(self, why: replies.WhyReply) -> replies.WhyReply:
        return msgspec.structs.replace(
            why,
            explanation=self.text(why.explanation),
            details=[self.text(line) for line in why.details],
            suggestions=[self.text(line) for line in why.suggestions],
        )

    def shown_device(self, view: replies.DeviceView) -> replies.DeviceView:
        view = self._redacted(view, "cause")
        if self.all:
            return view
        return msgspec.structs.replace(
            view,
            allocations=[name for name in view.allocations if self.allocation(name)],
            unmanaged_processes=[s for s in view.unmanaged_processes if s.uid == self.who.uid],
        )

    def shown_detail(self, detail: replies.DeviceDetail) -> replies.DeviceDetail:
        return msgspec.structs.replace(
            detail,
            device=self.shown_device(detail.device),
            drained_why=self.text(detail.drained_why),
            history=[self._redacted(h, "cause") for h in detail.history],
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

    def shown_event(self, view: replies.EventView) -> replies.EventView:
        return self._redacted(view, "message")

    def _redacted(self, view: View, field: str) -> View:
        """Return the view with one of its texts redacted."""
        text = getattr(view, field)
        redacted = self.text(text)
        return view if redacted == text else msgspec.structs.replace(view, **{field: redacted})
