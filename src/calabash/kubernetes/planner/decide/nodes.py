"""Events of nodes: a node takes part in scheduling once both its Node and its GpuNode exist.

A node's agent may assign whole devices to pods that the planner does not know
(``node_plugin.devices.whole_devices``). The agent leaves out devices that are planned for pods bound to its node. It
cannot know the plans of pods that are not bound yet; such a pod loses its plan and is planned again.
"""

from __future__ import annotations

from dataclasses import replace

from calabash.binder.cluster.device_kinds import NodeDevice
from calabash.binder.cluster.nodes import ClusterNode, same_devices
from calabash.kubernetes.gangs.near import domains_of
from calabash.kubernetes.objects.allocation_api import AllocationApi, allocation_api_named
from calabash.kubernetes.objects.names import GPUS, HOSTNAME
from calabash.kubernetes.planner.decide.pods import Pods, displace, pods_on_node
from calabash.kubernetes.planner.decide.relocations import Relocations
from calabash.kubernetes.planner.state.facts import GpuNodeFacts, NodeFacts
from calabash.kubernetes.planner.state.pod_entry import PodEntry, devices_of
from calabash.kubernetes.planner.state.pod_lifecycle import SETTLED, UNBOUND, Stage
from calabash.kubernetes.planner.state.store import PodStore
from calabash.kubernetes.pod_request import ContainerKind
from calabash.model.device import Health, NodeName
from calabash.model.versions import agent_error


class Nodes:
    """Handlers of node events.

    The memory of a slice is counted as unmanaged memory of the device, unless the scheduler counts it for the slice's
    pod. So pods with a known plan get its devices (``Pods.adopt``) before unmanaged memory is computed. Otherwise a
    pod's own memory would be counted as unmanaged, and the pod would not fit any more.
    """

    def __init__(self, store: PodStore, pods: Pods, relocations: Relocations) -> None:
        self._store = store
        self._pods = pods
        self._relocations = relocations
        self._nodes: dict[str, NodeFacts] = {}
        self._devices: dict[str, GpuNodeFacts] = {}
        self._with_claims: set[str] = set()  # nodes on which claims are or were allocated

    def node_changed(self, facts: NodeFacts, now_s: float) -> None:
        """Insert or update a Node."""
        if self._nodes.get(facts.name) != facts:
            self._nodes[facts.name] = facts
            self._update(facts.name, now_s)

    def devices_changed(self, facts: GpuNodeFacts, now_s: float) -> None:
        """Insert or update a GpuNode."""
        if self._devices.get(facts.name) != facts:
            self._devices[facts.name] = facts
            self._update(facts.name, now_s)

    def node_deleted(self, name: str) -> None:
        """Delete a Node; the pods on it lose their devices."""
        self._nodes.pop(name, None)
        self._remove(name)

    def devices_deleted(self, name: str) -> None:
        """Delete a GpuNode; the pods on the node lose their devices."""
        self._devices.pop(name, None)
        self._remove(name)

    def cluster_nodes(self) -> list[ClusterNode]:
        """Return all nodes that have a Node and devices, without any memory in use.

        Call ``recount`` for each node after its pods got their devices (``Pods.adopt``); it adds the unmanaged memory.
        """
        return [found for name in self._nodes if (found := self._cluster_node(name, empty=True)) is not None]

    def recount(self, name: str, now_s: float) -> None:
        """Compute the unmanaged memory of a node again, because the pods that are counted on it have changed."""
        told = self._devices.get(name)
        if told is not None and (told.slices or name in self._with_claims):
            self._update(name, now_s)

    def claim_allocated_on(self, name: str) -> None:
        """Record that a claim is or was allocated on the node, so that ``recount`` does not skip the node."""
        self._with_claims.add(name)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _cluster_node(self, name: str, *, empty: bool = False) -> ClusterNode | None:
        """Return the node in the scheduler's form; None if its Node or its devices are unknown.

        Also updates ``store.unready``. With ``empty``, no unmanaged memory is counted.
        """
        node, devices = self._nodes.get(name), self._devices.get(name)
        if node is not None:
            self._store.set_hostname(name, node.labels.get(HOSTNAME, name))
        if node is None or devices is None or not devices.devices:
            self._store.set_unready(name, "")
            return None
        allocation_api = allocation_api_named(node.allocation_api, devices.allocation_api)
        offers = (node.offers_device_ids and not self._all_in_use(node)) or allocation_api is AllocationApi.CLAIMS
        unready = agent_error(devices.agent_version, node=name)
        if not offers and not unready:  # the kubelet would fail a pod that was bound to the node now
            unready = f"the kubelet of {name} offers no {GPUS} now"
        self._store.set_unready(name, unready)
        found = tuple(replace(one, allocation_api=allocation_api) for one in devices.devices)
        return ClusterNode(
            name=NodeName(name),
            devices=found if empty else tuple(self._with_unmanaged_memory(one, devices) for one in found),
            labels=node.labels,
            taints=node.taints,
            schedulable=node.schedulable and not unready and devices.schedulable,
            domains=domains_of(node.labels, self._store.scheduler.scheduler.cluster.levels),
        )

    def _all_in_use(self, node: NodeFacts) -> bool:
        """Return True if the kubelet counts no more device IDs than the pods bound to the node have.

        While an agent offers no devices, the kubelet counts only the IDs in use, and would reject a pod that is bound
        to the node now.
        """
        if node.device_ids is None:
            return False
        bound = [entry for entry in pods_on_node(self._store, node.name) if entry.facts.node == node.name]
        return node.device_ids <= sum(map(_tokens, bound))

    def _with_unmanaged_memory(self, found: NodeDevice, node: GpuNodeFacts) -> NodeDevice:
        """Return the device with the memory of slices and claims that the scheduler counts for no pod as unmanaged."""
        store = self._store
        unknown = 0
        for part in node.slices:
            if part.device == found.device.uuid:
                entry = store.entries.get(part.pod_uid)
                if entry is None or not store.scheduler.holds(entry.id):
                    unknown += part.memory_mib or found.device.memory_mib
        unknown += self._unassigned_claim_mib(found, node.name)
        return replace(found, foreign_mib=found.foreign_mib + unknown) if unknown else found

    def _unassigned_claim_mib(self, found: NodeDevice, node: str) -> int:
        """Return the device memory in MiB of claims for whose pods the scheduler counts no devices.

        The pod of such a claim is unknown or deleted, or its devices could not be assigned to it.
        """
        store = self._store
        unknown = 0
        for claim, holder in store.claims.allocated_on(node):
            entry = store.entries.get(holder)
            if claim.held is None or (entry is not None and store.scheduler.holds(entry.id)):
                continue
            for part in claim.held.slices:
                if part.device == found.device.uuid and claim.held.mode:
                    unknown += max(0, part.memory_mib - part.spill_mib) or found.device.memory_mib
        return unknown

    def _update(self, name: str, now_s: float) -> None:
        """Pass the present state of the node to the scheduler.

        Bound pods that the scheduler does not count yet get the devices of their plans. Plans of unbound pods are
        withdrawn if their devices are unhealthy, or were given to pods that the planner does not know.
        """
        store = self._store
        if not store.started:
            return
        empty = self._cluster_node(name, empty=True)
        if empty is None:
            self._remove(name)
            return
        before = store.scheduler.nodes.get(empty.name)
        anew = before is None or not same_devices(before, empty)
        if anew and before is not None:
            self._remove(name)
        back = SETTLED if anew else SETTLED - {Stage.EVICTED}  # an evicted pod's devices may be another pod's already
        anew_soon = self._displaced(name)
        on_it = [e for e in pods_on_node(store, name) if e.stage in back and e.facts.uid not in anew_soon]
        uncounted = [e for e in on_it if not store.scheduler.holds(e.id)]
        if uncounted:
            store.scheduler.put_node(empty)
            for entry in uncounted:  # bound pods hold their devices again
                if self._pods.adopt(entry, entry.plan or entry.facts.plan, now_s):
                    store.unplanned.remove(entry.facts.uid)
        self._drop_plans_on_taken_devices(name)  # else the scheduler has no room to count their new holders in
        now = self._cluster_node(name)
        if now is not None:
            store.scheduler.put_node(now)
            if not anew:
                self._drop_plans_on_unhealthy_devices(now)

    def _displaced(self, name: str) -> set[str]:
        """Return the UIDs of pods in ``store.unplanned`` for which the agent of node ``name`` reports no slice.

        The node's agent may have given their planned devices to other pods, so the plans with which they were bound are
        not counted.
        """
        late = self._store.unplanned
        return late.uids() - {part.pod_uid for part in self._devices[name].slices} if late else set()

    def _drop_plans_on_unhealthy_devices(self, node: ClusterNode) -> None:
        """Withdraw plans of unbound pods on devices that are unhealthy, cordoned in the GpuNode, or of an unsupported agent.

        If the Node itself is cordoned in Kubernetes, kube-scheduler refuses the pods, so nothing is done here.
        """
        told = self._devices[node.name]
        cordoned = not told.schedulable or bool(agent_error(told.agent_version, node=node.name))
        unusable = {d.device.uuid for d in node.devices if cordoned or d.device.health is not Health.HEALTHY}
        if not unusable:
            return
        self._relocations.cancel_reservations(node.name, unusable)
        for entry in pods_on_node(self._store, node.name):
            if entry.stage in UNBOUND and entry.plan is not None and not unusable.isdisjoint(devices_of(entry.plan)):
                self._pods.drop_placement(entry)

    def _drop_plans_on_taken_devices(self, name: str) -> None:
        """Withdraw plans on devices that the node's agent gave whole to pods unknown to the planner.

        An unbound pod is planned on any node. A bound pod that has no slice yet is planned again on its node.
        """
        slices, store = self._devices[name].slices, self._store
        taken = {
            part.device for part in slices if part.whole and part.pod_uid and not store.is_or_was_known(part.pod_uid)
        }
        begun = {part.pod_uid for part in slices}
        for entry in pods_on_node(store, name) if taken else ():
            plan = entry.plan or entry.facts.plan
            if plan is None or plan.node != name or taken.isdisjoint(devices_of(plan)):
                continue
            if entry.stage in UNBOUND:
                self._pods.drop_placement(entry)
            elif entry.stage is Stage.BOUND and entry.facts.uid not in begun:
                displace(store, entry)

    def _remove(self, name: str) -> None:
        """Remove a node from the scheduler; the pods on it lose their devices."""
        store = self._store
        store.set_unready(name, "")
        if not store.started or NodeName(name) not in store.scheduler.nodes:
            return
        self._relocations.cancel_reservations(name)
        for entry in pods_on_node(store, name):
            self._pods.drop_placement(entry)
        store.scheduler.remove_node(NodeName(name))


def _tokens(entry: PodEntry) -> int:
    """Return how many device IDs a pod has once all its containers have started.

    Init containers are not counted, because the kubelet reuses their IDs for the main containers.
    """
    plan, request = entry.plan or entry.facts.plan, entry.facts.request
    early = {c.container for c in request.containers if c.kind is ContainerKind.INIT} if request is not None else set()
    return sum(len(c.slices) for c in plan.containers if c.name not in early) if plan is not None else 0
