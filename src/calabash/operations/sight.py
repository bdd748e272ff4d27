"""What one principal is shown: the one place where replies lose what belongs to other tenants.

Theory of operation. Whoever sees the platform sees everything. Everybody else sees its own and that of the tenants it is in:
other allocations are not listed and not found, of a device only what it is and how much of it is free, and of the queues
those that it may use. Texts are written for people and may name anybody (what a request waits for, who took a device), so
every word in them that names somebody or something unseen is replaced. Totals of a device, and of a queue that it may use,
are shown to all, for requests are sized by them; between two tenants they tell one the sum of the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeVar

import msgspec

from calabash.api import replies
from calabash.model import access
from calabash.model.access import Action
from calabash.model.allocation import AllocationRecord, QueueRecord
from calabash.model.request import DEFAULT_QUEUE, AllocationId, GpuRequest
from calabash.model.tenancy import Principal, project_of
from calabash.operations.hidden import HiddenNames
from calabash.operations.owners import AllocationOwner
from calabash.operations.people import People
from calabash.seams.store.event_filter import AllocationsSeen, EventsSeen

ANOTHERS = "(another's)"
PUBLIC_EVENTS = frozenset({"health", "mode", "layout"})
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/@-]*[A-Za-z0-9_]|[A-Za-z0-9_]")

View = TypeVar("View", replies.AllocationView, replies.EventView, replies.HappeningView)
Held = tuple[str, GpuRequest, int, str]  # id, request, uid and user of whatever is held or waits


class Sight:
    """What ``who`` sees.

    Args:
        people: who there is. live: everything that is held or waits, asked for once and only where it matters.
        queues: those that an administrator has made. owner: whose an allocation is, also one that has ended.
        listed: whether a queue's access list names it. kept: the names that are not shown, as they were found before.
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
        kept: HiddenNames | None = None,
    ) -> None:
        self.who = who
        self.all = access.may(who, Action.SEE_PLATFORM)
        self._people = people
        self._live = live
        self._queues = {q.name: q for q in queues}
        self._owner = owner
        self._listed = listed
        self._kept = kept or HiddenNames()
        self._remembered: dict[str, bool] = {}
        self._tenants = access.tenants_seen(who) or frozenset()

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
        """The text without names of others."""
        if self.all or not text:
            return text
        return _WORD.sub(lambda match: self._word(match[0]), text)

    def _word(self, word: str) -> str:
        if word in self._hidden:
            return ANOTHERS
        if "/" in word and any(part in self._hidden for part in word.split("/")):
            return ANOTHERS
        stem = word.rstrip("._-@/")
        return ANOTHERS + word[len(stem) :] if stem in self._hidden else word

    @cached_property
    def _everything(self) -> list[Held]:
        return list(self._live())

    @cached_property
    def _seen(self) -> dict[str, bool]:
        return {
            name: self.sees(tenant=request.tenant, uid=uid, user=user) for name, request, uid, user in self._everything
        }

    @cached_property
    def _hidden(self) -> frozenset[str]:
        queues = tuple((queue, self.queue(queue)) for queue in self._queues.values())
        mark = (queues, tuple(name for name, *_ in self._everything))
        return self._kept.of(self.who, self._people, mark, self._found)

    def _found(self) -> frozenset[str]:
        """Names of what is not shown, unless something that is shown has the same."""
        hidden: set[str] = set()
        shown: set[str] = {self.who.user, str(self.who.uid), self.who.own, DEFAULT_QUEUE}
        for name, request, _, user in self._everything:
            names = {name, request.tenant, request.queue, request.gang, user, project_of(request.tenant, request.queue)}
            (shown if self._seen[name] else hidden).update(names)
            if self._seen[name]:
                shown.update(request.selector.models)  # said by whoever asked
        for queue in self._queues.values():
            (shown if self.queue(queue) else hidden).update({queue.name})
            hidden.update((*queue.users, *queue.groups))
        seen = self._tenants
        for tenant in self._people.tenants.values():
            parts = {p.name for p in self._people.projects_of(tenant.name)} | {tenant.name, *tenant.groups}
            (shown if tenant.name in seen else hidden).update(parts)
        for user, members in self._people.members.items():
            (shown if any(m.tenant in seen for m in members) else hidden).add(user)
        for known in self._people.users.values():
            hidden.update({known.name, known.login, known.subject, known.email})
        return frozenset(hidden - shown - {"", "default"})

    # -- replies -----------------------------------------------------------------------------------------------

    def shown_allocation(self, view: replies.AllocationView) -> replies.AllocationView:
        return self._told(view, "explanation")

    def shown_why(self, why: replies.WhyReply) -> replies.WhyReply:
        if self.all:
            return why
        return msgspec.structs.replace(
            why,
            explanation=self.text(why.explanation),
            details=[self.text(line) for line in why.details],
            suggestions=[self.text(line) for line in why.suggestions],
        )

    def shown_device(self, view: replies.DeviceView) -> replies.DeviceView:
        if self.all:
            return view
        return msgspec.structs.replace(
            view,
            cause=self.text(view.cause),
            allocations=[name for name in view.allocations if self.allocation(name)],
            strangers=[s for s in view.strangers if s.uid == self.who.uid],
        )

    def shown_detail(self, detail: replies.DeviceDetail) -> replies.DeviceDetail:
        if self.all:
            return detail
        return msgspec.structs.replace(
            detail,
            device=self.shown_device(detail.device),
            drained_why=self.text(detail.drained_why),
            history=[self._told(h, "cause") for h in detail.history],
        )

    def shown_card(self, card: replies.MigCardView) -> replies.MigCardView:
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
        return view if self.all else msgspec.structs.replace(view, **{field: self.text(getattr(view, field))})
