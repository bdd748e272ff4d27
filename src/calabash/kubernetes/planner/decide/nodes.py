"""Nodes that come, change and go: a node takes part once both its Node and its GpuNode are there.

A node's agent may give whole devices to pods that the planner is never told of (``node.wholecards``). It heeds the plans of
pods that are bound to it; what was planned in the same moment, and has not begun, is planned anew.
"""

from __future__ import annotations

from dataclasses import replace

from calabash.binder.cluster.device_kinds import NodeDevice
from calabash.binder.cluster.nodes import ClusterNode, same_devices
from calabash.kubernetes.objects.allocation_api import NodeDoor, door_named
from calabash.kubernetes.planner.decide.pods import Pods, displace, holders
from calabash.kubernetes.planner.decide.relocations import Heirs
from calabash.kubernetes.planner.state.affinity import HOSTNAME
from calabash.kubernetes.planner.state.facts import GpuNodeSeen, NodeSeen
from calabash.kubernetes.planner.state.store import SETTLED, UNBOUND, Book, Entry, Stage, devices_of
from calabash.kubernetes.pod_request import ContainerKind
from calabash.model.device import Health, NodeName


class Fleet:
    """Events of nodes. A slice whose pod the book does not count is memory that somebody unknown holds: whoever the book
    can count is therefore counted first, else it would find its own memory held by a stranger."""

    def __init__(self, book: Book, pods: Pods, heirs: Heirs) -> None:
        self._book = book
        self._pods = pods
        self._heirs = heirs
        self._nodes: dict[str, NodeSeen] = {}
        self._devices: dict[str, GpuNodeSeen] = {}
        self._claimed: set[str] = set()  # nodes on which claims are or were allocated

    def see_node(self, facts: NodeSeen, now_s: float) -> None:
        if self._nodes.get(facts.name) != facts:
            self._nodes[facts.name] = facts
            self._put(facts.name, now_s)

    def see_devices(self, facts: GpuNodeSeen, now_s: float) -> None:
        if self._devices.get(facts.name) != facts:
            self._devices[facts.name] = facts
            self._put(facts.name, now_s)

    def node_gone(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._take_away(name)

    def devices_gone(self, name: str) -> None:
        self._devices.pop(name, None)
        self._take_away(name)

    def nodes(self) -> list[ClusterNode]:
        """All nodes that take part, as they are now, and nothing on them; ``recount`` each once pods hold what is theirs."""
        return [found for name in self._nodes if (found := self._described(name, empty=True)) is not None]

    def recount(self, name: str, now_s: float) -> None:
        """Who is counted on a node has changed."""
        told = self._devices.get(name)
        if told is not None and (told.slices or name in self._claimed):
            self._put(name, now_s)

    def claimed(self, name: str) -> None:
        """A claim is allocated there."""
        self._claimed.add(name)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _described(self, name: str, *, empty: bool = False) -> ClusterNode | None:
        node, devices = self._nodes.get(name), self._devices.get(name)
        if node is not None:
            self._book.hostnames[name] = node.labels.get(HOSTNAME, name)
        if node is None or devices is None or not devices.devices:
            self._book.unready.discard(name)
            return None
        door = door_named(node.door, devices.door)
        offers = (node.offers and not self._all_in_use(node)) or door is NodeDoor.CLAIMS
        if offers:
            self._book.unready.discard(name)
        else:  # the kubelet would fail a pod that was bound to the node now
            self._book.unready.add(name)
        found = tuple(replace(one, door=door) for one in devices.devices)
        return ClusterNode(
            name=NodeName(name),
            devices=found if empty else tuple(self._with_strangers(one, devices) for one in found),
            labels=node.labels,
            taints=node.taints,
            schedulable=node.schedulable and offers and devices.schedulable,
        )

    def _all_in_use(self, node: NodeSeen) -> bool:
        """Return True if the kubelet counts no more tokens than the pods bound to the node have: an agent that gives out
        nothing leaves the kubelet just these, and the kubelet would fail a pod that came to the node now."""
        if node.tokens is None:
            return False
        bound = [entry for entry in holders(self._book, node.name) if entry.facts.node == node.name]
        return node.tokens <= sum(map(_tokens, bound))

    def _with_strangers(self, found: NodeDevice, node: GpuNodeSeen) -> NodeDevice:
        book = self._book
        unknown = 0
        for part in node.slices:
            if part.device == found.device.uuid:
                entry = book.entries.get(part.pod_uid)
                if entry is None or not book.scheduler.holds(entry.id):
                    unknown += part.memory_mib or found.device.memory_mib
        unknown += self._claimed_mib(found, node.name)
        return replace(found, foreign_mib=found.foreign_mib + unknown) if unknown else found

    def _claimed_mib(self, found: NodeDevice, node: str) -> int:
        """What claims have of a device that count for nobody: their pods are not known, or gone, or wait."""
        book = self._book
        unknown = 0
        for claim, holder in book.claims.on(node):
            entry = book.entries.get(holder)
            if claim.held is None or (entry is not None and book.scheduler.holds(entry.id)):
                continue
            for part in claim.held.slices:
                if part.device == found.device.uuid and claim.held.mode:
                    unknown += max(0, part.memory_mib - part.spill_mib) or found.device.memory_mib
        return unknown

    def _put(self, name: str, now_s: float) -> None:
        book = self._book
        if not book.started:
            return
        empty = self._described(name, empty=True)
        if empty is None:
            self._take_away(name)
            return
        before = book.scheduler.nodes.get(empty.name)
        anew = before is None or not same_devices(before, empty)
        if anew and before is not None:
            self._take_away(name)
        back = SETTLED if anew else SETTLED - {Stage.EVICTED}  # whose devices may be another's already
        anew_soon = self._displaced(name)
        on_it = [e for e in holders(book, name) if e.stage in back and e.facts.uid not in anew_soon]
        uncounted = [e for e in on_it if not book.scheduler.holds(e.id)]
        if uncounted:
            book.scheduler.put_node(empty)
            for entry in uncounted:  # what is bound there holds its devices again
                if self._pods.adopt(entry, entry.plan or entry.facts.plan, now_s):
                    book.late.pop(entry.facts.uid, None)
        self._leave_taken_devices(name)  # else the scheduler has no room to count their new holders in
        now = self._described(name)
        if now is not None:
            book.scheduler.put_node(now)
            if not anew:
                self._leave_ill_devices(now)

    def _displaced(self, name: str) -> set[str]:
        """Pods that are to be planned anew and have not begun with the plan that they had."""
        late = self._book.late
        return late.keys() - {part.pod_uid for part in self._devices[name].slices} if late else set()

    def _leave_ill_devices(self, node: ClusterNode) -> None:
        """What has not begun on a device that takes nothing new goes elsewhere. Of a node that Kubernetes itself lets nobody
        onto, kube-scheduler says so."""
        cordoned = not self._devices[node.name].schedulable
        ill = {d.device.uuid for d in node.devices if cordoned or d.device.health is not Health.HEALTHY}
        if not ill:
            return
        self._heirs.lose(node.name, ill)
        for entry in holders(self._book, node.name):
            if entry.stage in UNBOUND and entry.plan is not None and not ill.isdisjoint(devices_of(entry.plan)):
                self._pods.drop(entry)

    def _leave_taken_devices(self, name: str) -> None:
        """What was planned on devices that pods nobody told of have whole, and has not begun, goes elsewhere; on its own
        node, if it is bound."""
        slices, book = self._devices[name].slices, self._book
        taken = {part.device for part in slices if part.whole and part.pod_uid and not book.knew(part.pod_uid)}
        begun = {part.pod_uid for part in slices}
        for entry in holders(book, name) if taken else ():
            plan = entry.plan or entry.facts.plan
            if plan is None or plan.node != name or taken.isdisjoint(devices_of(plan)):
                continue
            if entry.stage in UNBOUND:
                self._pods.drop(entry)
            elif entry.stage is Stage.BOUND and entry.facts.uid not in begun:
                displace(book, entry)

    def _take_away(self, name: str) -> None:
        book = self._book
        book.unready.discard(name)
        if not book.started or NodeName(name) not in book.scheduler.nodes:
            return
        self._heirs.lose(name)
        for entry in holders(book, name):
            self._pods.drop(entry)
        book.scheduler.remove_node(NodeName(name))


def _tokens(entry: Entry) -> int:
    """Return how many tokens a pod has once all its containers have started. Init containers pass theirs on."""
    plan, request = entry.plan or entry.facts.plan, entry.facts.request
    early = {c.container for c in request.containers if c.kind is ContainerKind.INIT} if request is not None else set()
    return sum(len(c.slices) for c in plan.containers if c.name not in early) if plan is not None else 0
