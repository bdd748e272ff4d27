"""What the planner knows of every pod, and what it wants done: the state that its parts share.

| stage | the pod |
|---|---|
| ASIDE | cannot be decided: its queue is not there, its gang is not known, no device could serve it, another's gate holds it |
| WAITING | stands in its queue |
| PLACED | has its devices and waits for those who must leave them |
| RELEASING | its plan is being written |
| RELEASED | kube-scheduler may place it where the plan says |
| BINDING | its binding is being written |
| BOUND | has its node |
| EVICTED | has its node, and was asked to leave |
| RIDING | has no plan and needs none: its claims count for others, or ask nothing of ours |

``holds`` says whether the scheduler counts devices for it: from PLACED on, except where its node is gone or its devices
are not known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from calabash.binder.cluster.bundle import Bundle
from calabash.binder.cluster.cluster import ClusterScheduler
from calabash.kubernetes.objects.plan import PodPlan
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.objects.visibility import for_namespace
from calabash.kubernetes.planner.state.claims import Claims
from calabash.kubernetes.planner.state.deferrals import Deferrals
from calabash.kubernetes.planner.state.facts import Action, EvictPod, PodSeen, Report, SweepPod, UngatePod
from calabash.kubernetes.planner.state.gang_permits import GangName, Permits
from calabash.model.errors import Reason
from calabash.model.request import AllocationId


class Stage(StrEnum):
    """See the module's description."""

    ASIDE = "aside"
    WAITING = "waiting"
    PLACED = "placed"
    RELEASING = "releasing"
    RELEASED = "released"
    BINDING = "binding"
    BOUND = "bound"
    EVICTED = "evicted"
    RIDING = "riding"


REPORT_AFTER_S = 1.0  # who waits shorter than that is not told about
REPORT_AGAIN_S = 10.0  # so often the numbers of one reason are renewed
GONE_MAX = 4096  # pods that have gone and are remembered for a while
UNBOUND = frozenset((Stage.PLACED, Stage.RELEASING, Stage.RELEASED))
SETTLED = frozenset((Stage.BINDING, Stage.BOUND, Stage.EVICTED))


@dataclass(slots=True)
class Entry:
    """One pod. ``written`` is the id of the plan that its annotation holds, as far as is known; ``releases`` are the ids of
    the plans that were to take its gate off. ``told`` is why it waits (None: it does not), ``said`` what people were last
    told of that, and ``own_condition`` whether in a condition of our own. ``asked``: kube-scheduler was told its plan."""

    facts: PodSeen
    stage: Stage = Stage.ASIDE
    bundle: Bundle | None = None
    plan: PodPlan | None = None
    written: str = ""
    releases: tuple[str, ...] = ()
    after: frozenset[str] = frozenset()
    gang: GangName | None = None
    told: tuple[Reason | None, str] = (None, "")
    said: Reason | None = None
    protected_until_s: float = 0.0
    stale_refused: bool = False
    own_condition: bool = False
    asked: bool = False

    @property
    def is_written(self) -> bool:
        """Whether its annotation holds its plan. A gate goes only with the plan, so a pod that others see without it, and
        for which there was one plan, has that one, whatever has been heard of it here."""
        if self.plan is None:
            return False
        return self.written == self.plan.id or (self.facts.gated and self.releases == (self.plan.id,))

    @property
    def id(self) -> AllocationId:
        return AllocationId(self.facts.uid)

    @property
    def pod(self) -> PodName:
        return PodName(uid=self.facts.uid, namespace=self.facts.namespace, name=self.facts.name)

    @property
    def node(self) -> str:
        """Where it is, or is to be."""
        return self.facts.node or (self.plan.node if self.plan else "")


def devices_of(plan: PodPlan) -> set[str]:
    """The devices that a plan names, all of its node."""
    return {part.device for container in plan.containers for part in container.slices}


class Book:
    """See the module's description.

    Args:
        new_id: makes the id of a plan.
    """

    def __init__(self, scheduler: ClusterScheduler, *, new_id: Callable[[], str], hold_s: float) -> None:
        self.scheduler = scheduler
        self.new_id = new_id
        self.permits = Permits(hold_s, self.kept_out)
        self.claims = Claims()
        self.hostnames: dict[str, str] = {}  # as nodes are labelled, by their names
        self.entries: dict[str, Entry] = {}
        self.on_node: dict[str, set[str]] = {}
        self.newcomers: dict[AllocationId, None] = {}
        self.aside: dict[str, None] = {}
        self.placed: dict[str, None] = {}
        self.broken: set[GangName] = set()
        self.late: dict[str, None] = {}  # whose node others chose, without a plan; see ``late``
        self.late_news = False
        self.listed: Counter[str] = Counter()  # how often a node was given to choose
        self.allocating: dict[str, str] = {}  # nodes on which kube-scheduler may be allocating claims now, by pods
        self.deferrals = Deferrals()
        self.unbound: dict[str, None] = {}  # pods that have a plan and no node
        self.refusals: list[tuple[str, str]] = []  # pods whose held binding is to be refused, with the text
        self.unready: set[str] = set()  # nodes whose kubelet offers no devices
        self._unsaid: dict[str, float] = {}  # who is to be told about, and when
        self.started = False
        self._actions: list[Action] = []
        self._gone: dict[str, None] = {}

    def want(self, action: Action) -> None:
        """Have an action carried out. Users of the pod's namespace read its message."""
        if isinstance(action, EvictPod | SweepPod):
            action = replace(action, message=self._readable(action.pod, action.message))
        self._actions.append(action)

    def take_actions(self) -> list[Action]:
        """What is to be done, in order; asked once."""
        actions, self._actions = self._actions, []
        return actions

    def add(self, facts: PodSeen) -> Entry:
        entry = self.entries[facts.uid] = Entry(facts)
        return entry

    def settle(self, entry: Entry, plan: PodPlan | None) -> None:
        """Its plan is this from now on."""
        self._leave(entry)
        entry.plan = plan
        entry.asked = False
        self._stand(entry)

    def see(self, entry: Entry, facts: PodSeen) -> None:
        """It looks like this now."""
        self._leave(entry)
        entry.facts = facts
        self._stand(entry)

    def binds_to(self, node: str) -> bool:
        """Whether a binding to that node is being written, or claims may be being allocated there."""
        if node in self.allocating.values():
            return True
        return any(self.entries[uid].stage is Stage.BINDING for uid in self.on_node.get(node, ()))

    def kept_out(self, uids: Collection[str]) -> frozenset[str]:
        """Return those of the pods whose planned nodes offer no device IDs now: their kubelets would fail the pods."""
        if not self.unready:
            return frozenset()
        return frozenset(uid for uid in uids if (e := self.entries.get(uid)) is not None and e.node in self.unready)

    def has_claims(self, uid: str) -> bool:
        """Return True if there is such a pod and it names claims, or kube-scheduler makes one for it."""
        entry = self.entries.get(uid)
        return entry is not None and entry.facts.by_claims

    def knew(self, uid: str) -> bool:
        """Whether there is such a pod, or was a while ago: its node may still tell of what it had."""
        return uid in self.entries or uid in self._gone

    def forget(self, entry: Entry) -> None:
        self._gone[entry.facts.uid] = None
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
        self._leave(entry)
        self.newcomers.pop(entry.id, None)
        self.aside.pop(entry.facts.uid, None)
        self.placed.pop(entry.facts.uid, None)
        self.late.pop(entry.facts.uid, None)
        self._unsaid.pop(entry.facts.uid, None)
        self.allocating.pop(entry.facts.uid, None)
        self.unbound.pop(entry.facts.uid, None)
        self.deferrals.forget(entry.facts.uid)
        if entry.gang is not None:
            self.permits.leave(entry.facts.uid, entry.gang)
        self.entries.pop(entry.facts.uid, None)

    def put_aside(self, entry: Entry, reason: Reason, message: str) -> None:
        """It cannot be decided until something else changes."""
        entry.stage = Stage.ASIDE
        entry.after = frozenset()
        self.aside[entry.facts.uid] = None
        if not entry.facts.leaving:
            self.tell(entry, reason, message)

    def give_back(self, entry: Entry, reason: Reason, message: str) -> None:
        """Its plan cannot be used: its devices are free, and it is set aside. A gang that has not begun to be bound loses the
        plans of its other members as well (``broken``)."""
        if entry.gang is not None:
            self.broken.add(entry.gang)
        self.refuse_held(entry, message)
        if self.scheduler.holds(entry.id):
            self.scheduler.unbind(entry.id)  # else a member of a gang would count as one that has ended
        self.scheduler.finished(entry.id)
        self.newcomers.pop(entry.id, None)
        self.placed.pop(entry.facts.uid, None)
        self.late.pop(entry.facts.uid, None)
        self.settle(entry, None)
        self.put_aside(entry, reason, message)

    def refuse_held(self, entry: Entry, message: str) -> None:
        """Have kube-scheduler told that the binding which is held for the pod's gang does not come."""
        if entry.gang is not None and self.permits.holds(entry.facts.uid, entry.gang):
            self.permits.give_up(entry.facts.uid, entry.gang)
            self.refusals.append((entry.facts.uid, message))

    def ride(self, entry: Entry) -> None:
        """Nothing is decided for it: Kubernetes' own scheduler knows where its claims are."""
        entry.stage = Stage.RIDING
        self.aside.pop(entry.facts.uid, None)
        self.tell(entry, None, "its claims are allocated")
        if entry.facts.gated:
            self.want(UngatePod(pod=entry.pod))

    def wait(self, entry: Entry) -> None:
        """The scheduler has it in its queue; it is looked at next."""
        if entry.gang is not None and entry.stage in UNBOUND:
            self.broken.add(entry.gang)
        self.settle(entry, None)
        entry.after = frozenset()
        if entry.facts.confined and not (entry.facts.own or entry.facts.gated):
            self.scheduler.finished(entry.id)  # nobody chooses any node for it any more
            entry.stage = Stage.ASIDE
            self.late[entry.facts.uid] = None
            self.late_news = True
            return
        entry.stage = Stage.WAITING
        self.aside.pop(entry.facts.uid, None)
        self.newcomers[entry.id] = None

    def tell(self, entry: Entry, reason: Reason | None, message: str) -> None:
        """Have it reported, unless that has been said; ``say`` does it when it has been so for a while. Users of the pod's
        namespace read the message."""
        message = self._readable(entry.pod, message)
        if entry.told != (reason, message):
            entry.told = (reason, message)
            if reason is not None or entry.said is not None:
                self._unsaid.setdefault(entry.facts.uid, math.inf)
            else:
                self._unsaid.pop(entry.facts.uid, None)

    def say(self, now_s: float) -> None:
        """Report why pods wait that have waited for a while, and of those the end of it: most are planned at once, and a
        write for each would cost the API server more than their plans."""
        for uid, before_s in list(self._unsaid.items()):
            entry = self.entries[uid]
            reason, message = entry.told
            if reason is not None:
                due_s = min(before_s, now_s + (REPORT_AGAIN_S if reason is entry.said else REPORT_AFTER_S))
                if due_s > now_s:
                    self._unsaid[uid] = due_s
                    continue
            del self._unsaid[uid]
            entry.said = reason
            own = bool(entry.facts.node) or entry.own_condition
            self.want(Report(pod=entry.pod, reason=reason, message=message, own_condition=own))

    def _readable(self, pod: PodName, message: str) -> str:
        """Return the message without names that users of the pod's namespace may not see."""

        def pod_of(uid: str) -> PodName | None:
            found = self.entries.get(uid)
            return found.pod if found is not None else None

        return for_namespace(message, pod.namespace, queues=lambda: self._queues_of(pod.uid), pod_of=pod_of)

    def _queues_of(self, uid: str) -> set[str]:
        """Return the queue of a pod and those above it."""
        entry, form = self.entries.get(uid), self.scheduler.scheduler.tree.form
        number = form.index.get(entry.bundle.request.queue) if entry is not None and entry.bundle is not None else None
        path = form.paths[number] if number is not None else ()
        return {name for name, one in form.index.items() if one in path}

    def _leave(self, entry: Entry) -> None:
        there = self.on_node.get(entry.node)
        if there is not None:
            there.discard(entry.facts.uid)
            if not there:
                del self.on_node[entry.node]

    def _stand(self, entry: Entry) -> None:
        if entry.node and entry.facts.uid in self.entries:
            self.on_node.setdefault(entry.node, set()).add(entry.facts.uid)
        if entry.plan is not None and not entry.facts.node:
            self.unbound[entry.facts.uid] = None
        else:
            self.unbound.pop(entry.facts.uid, None)
