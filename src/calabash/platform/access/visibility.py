"""The replies that one principal is shown: objects and names of other tenants are left out of them.

A principal who sees the platform sees everything. Everybody else sees its own objects and those of its tenants: other
allocations are not listed and not found, of a device only what it is and how much of it is free, and of the queues those that
it may use. A name inside a text is a mention (``model.mentions``) and is shown or not by the same rules, by the kind and the
name of the object: no word of a text is compared with names, so a text tells nothing about the names that exist. Totals of a
device, and of a queue that a principal may use, are shown to all, because requests are sized by them; between two tenants they
tell one the sum of the other.
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
Held = tuple[str, GpuRequest, int, str]  # id, request, uid and user of whatever is held or waits


class Sight:
    """What ``who`` sees.

    Args:
        people: who there is. live: everything that is held or waits, asked for once and only where it matters.
        queues: those that an administrator has made. owner: whose an allocation is, also one that has ended.
        listed: whether a queue's access list names it.
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
        """Whether what that user has on that tenant's account is shown."""
        if self.all or tenant in self._tenants:
            return True
        own = uid == self.who.uid if uid >= 0 else user == self.who.user
        return own and access.in_scope(self.who, Action.SEE)

    def record(self, record: AllocationRecord) -> bool:
        return self.sees(tenant=record.request.tenant, uid=record.uid, user=record.user)

    def allocation(self, name: str) -> bool:
        """Whether an allocation or request of that id is shown; one that nobody knows is not."""
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
        """The text as this principal reads it."""
        return render(text, self._mentioned)

    def _mentioned(self, kind: str, name: str) -> bool:
        """Return True if a name of that kind is shown; a name that is unknown is treated like one that is not shown."""
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
        return self._told(view, "explanation")

    def shown_why(self, why: replies.WhyReply) -> replies.WhyReply:
        return msgspec.structs.replace(
            why,
            explanation=self.text(why.explanation),
            details=[self.text(line) for line in why.details],
            suggestions=[self.text(line) for line in why.suggestions],
        )

    def shown_device(self, view: replies.DeviceView) -> replies.DeviceView:
        view = self._told(view, "cause")
        if self.all:
            return view
        return msgspec.structs.replace(
            view,
            allocations=[name for name in view.allocations if self.allocation(name)],
            strangers=[s for s in view.strangers if s.uid == self.who.uid],
        )

    def shown_detail(self, detail: replies.DeviceDetail) -> replies.DeviceDetail:
        return msgspec.structs.replace(
            detail,
            device=self.shown_device(detail.device),
            drained_why=self.text(detail.drained_why),
            history=[self._told(h, "cause") for h in detail.history],
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
        """As ``record`` says it, for the journal; None: all."""
        if self.all:
            return None
        own = access.in_scope(self.who, Action.SEE)
        return AllocationsSeen(tenants=self._tenants, uid=self.who.uid, user=self.who.user, own=own)

    def events_seen(self) -> EventsSeen | None:
        """Those of an allocation that is seen, and of a device's health; None: all."""
        allocations = self.allocations_seen()
        if allocations is None:
            return None
        return EventsSeen(
            allocations=allocations,
            waiting=frozenset(name for name, seen in self._seen.items() if seen),
            kinds=PUBLIC_EVENTS,
        )

    def shown_event(self, view: replies.EventView) -> replies.EventView:
        return self._told(view, "message")

    def _told(self, view: View, field: str) -> View:
        text = getattr(view, field)
        told = self.text(text)
        return view if told == text else msgspec.structs.replace(view, **{field: told})
