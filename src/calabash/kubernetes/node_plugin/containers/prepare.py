"""PreStartContainer of the device plug-ins: grant a container its slices and write its CDI spec.

The kubelet calls PreStartContainer before every start of a container and repeats the call until it succeeds. Every step
can therefore be repeated. Errors appear word for word in the events of the pod.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from calabash.adapters.cdi import ContainerEdits
from calabash.adapters.clock import Clock
from calabash.adapters.host.processes import Process
from calabash.adapters.kube.objects.core import Pod
from calabash.adapters.kubelet.protocol import Allocated
from calabash.kubernetes.node_plugin.containers.device_id_owners import Claimant, Owners
from calabash.kubernetes.node_plugin.containers.device_ids import device_name, new_name, qualified
from calabash.kubernetes.node_plugin.containers.retry import Patience
from calabash.kubernetes.node_plugin.containers.slice_choice import Placing
from calabash.kubernetes.node_plugin.containers.specs import SlotSpecs
from calabash.kubernetes.node_plugin.pods import done, init_names, never_together, start_order
from calabash.kubernetes.objects.names import REQUEST
from calabash.kubernetes.objects.plan import PlannedContainer
from calabash.kubernetes.pod_request import read_request
from calabash.model.allocation import AllocationRecord, AllocationState
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE, MIG_MODE, GpuRequest, ModeName
from calabash.node.agent import Grant, NodeAgent
from calabash.node.membership.container import container_allocation
from calabash.sharing.brokered import MODE as BROKERED
from calabash.sharing.exclusive import MODE as EXCLUSIVE


class GrantEdits(Protocol):
    """CDI edits for containers; see ``edits.NodeEdits``."""

    def for_grant(self, grant: Grant) -> ContainerEdits:
        """Return the edits for a container that uses the devices of a grant."""
        ...


class Sandboxes(Protocol):
    """Sandboxes of the pods of a node; see ``ContainerMembership``."""

    def sandbox_since_s(self, pod_uid: str) -> float:
        """Return the time at which the current sandbox of a pod started, in seconds since the epoch."""
        ...

    def sandbox(self, pod_uid: str) -> Process | None:
        """Return the sandbox process of a pod; None if it is not visible yet."""
        ...


class GrantRules(Protocol):
    """Interface by which ``Preparer`` asks if the node makes new grants, and reports that a container was prepared."""

    def require(self) -> None:
        """Return if the node makes new grants. Raises CalabashError if it makes none."""
        ...

    def prepared(self) -> None:
        """Called after the spec of a container was written."""
        ...


class Preparer:
    """Answer the kubelet's calls of the device-plugin API for one resource.

    Args:
        agent: grants allocations on the node.
        owners: finds the containers that have given device IDs of the resource.
        clock: the clock.
        placing: chooses the slices of a container.
        edits: makes the CDI edits of a grant.
        specs: CDI spec files of containers.
        sandboxes: the sandboxes of the node's pods.
        rules: refuses new grants while the node makes none; asked before each new grant.
        patience: retries a grant for which there are not enough free devices while a pod of the node is terminating.
    """

    def __init__(
        self,
        agent: NodeAgent,
        owners: Owners,
        clock: Clock,
        *,
        placing: Placing,
        edits: GrantEdits,
        specs: SlotSpecs,
        sandboxes: Sandboxes,
        rules: GrantRules,
        patience: Patience,
    ) -> None:
        self._agent = agent
        self._owners = owners
        self._clock = clock
        self._placing = placing
        self._edits = edits
        self._specs = specs
        self._sandboxes = sandboxes
        self._rules = rules
        self._patience = patience
        self._lock = threading.Lock()

    def allocate(self, device_ids: tuple[str, ...]) -> Allocated:
        """Return the answer to the kubelet's call of ``Allocate``: a new CDI name for the container.

        The devices behind the name are granted later, by ``pre_start``.
        """
        name = new_name(device_ids)
        self._owners.answered(device_ids, name)
        return Allocated(cdi_names=(qualified(name),))

    def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> list[str]:
        """Return the ``size`` device IDs that the kubelet should use: all of ``must``, and the lowest available ones.

        Low IDs are preferred so that the same IDs, and with them the same CDI spec files, are used again and again.
        """
        rest = sorted(set(available) - set(must))
        return [*must, *rest][:size]

    def pre_start(self, device_ids: tuple[str, ...], answered: tuple[str, ...] = ()) -> None:
        """Grant the container that has these device IDs its slices, and write its CDI spec.

        Args:
            device_ids: device IDs of the container.
            answered: the CDI names with which the relay process answered ``Allocate`` on behalf of this agent.

        Raises:
            CalabashError: the slices cannot be granted now; the kubelet calls again.
        """
        for name in filter(None, map(device_name, answered)):
            self._owners.answered(device_ids, name)
        claimants = self._owners.claimants(device_ids)
        if not claimants:
            raise CalabashError(
                f"the kubelet lists no container with these device IDs ({len(device_ids)} of {self._owners.resource})",
                reason=Reason.NOT_FOUND,
                hint="the kubelet tries again; if this persists, the version of its checkpoint is not supported",
            )
        found = [(self._placing.pod(c), c) for c in claimants]  # may block
        for pod, claimant in found:
            self._require_known(pod, claimant)
        self._patience.until_there_is_room(lambda: self._prepare(found, device_ids))

    def _prepare(self, found: Sequence[tuple[Pod, Claimant]], device_ids: tuple[str, ...]) -> None:
        devices: dict[str, ContainerEdits] = {}
        with self._lock:  # containers of one pod may start one after the other with the same device IDs
            for pod, claimant in self._due(found):
                edits = self._edits.for_grant(self._grant(pod, claimant.container, len(device_ids)))
                devices |= dict.fromkeys(claimant.names, edits)
            self._specs.write(device_ids, devices)
        self._rules.prepared()

    def _due(self, found: Sequence[tuple[Pod, Claimant]]) -> list[tuple[Pod, Claimant]]:
        """Return the containers that the kubelet may be about to create, out of those that have the same device IDs.

        Containers of a pod that have the same device IDs run one after the other, and each is prepared just before it
        is created. So the next one is a container that was prepared before and is not done, or the first one that was
        not prepared yet. If all are done, the last one is returned.
        """
        ordered = sorted(found, key=lambda entry: start_order(entry[0]).get(entry[1].container, 0))
        due = []
        for pod, claimant in ordered:
            if self._is_done(pod, claimant.container):
                continue
            due.append((pod, claimant))
            if self._agent.record(container_allocation(pod.metadata.uid, claimant.container)) is None:
                break
        return due or ordered[-1:]

    def _is_done(self, pod: Pod, container: str) -> bool:
        """Return True if the container is an init container that succeeded in the current sandbox of the pod."""
        return container in init_names(pod) and done(pod, container, self._sandboxes.sandbox_since_s(pod.metadata.uid))

    def _require_known(self, pod: Pod, claimant: Claimant) -> None:
        """Check that no other container of the pod may be starting now with the device IDs of this one.

        The kubelet's checkpoint names the container that starts. The pod-resources API, from which a claimant without
        ``pod_uid`` comes, does not list init containers. In that case all init containers must have succeeded before.

        Raises:
            CalabashError: NOT_FOUND if an init container may be starting instead.
        """
        if claimant.pod_uid:
            return
        coming = [name for name in init_names(pod) if not self._is_done(pod, name)]
        if coming:
            raise CalabashError(
                f"init container {coming[0]} of pod {claimant.pod} may have the device IDs of container {claimant.container},"
                " and the kubelet's checkpoint, which names the container that starts, cannot be read",
                reason=Reason.NOT_FOUND,
                hint="the kubelet tries again; supported are the kubelets of Kubernetes 1.34 to 1.36",
            )

    def _grant(self, pod: Pod, container: str, tokens: int) -> Grant:
        uid = pod.metadata.uid
        others = {container_allocation(uid, other) for other in never_together(pod, container)}
        if self._agent.record(container_allocation(uid, container)) is None:
            self._rules.require()
        planned = self._placing.slices_for(pod, container, tokens, others)
        placement, now_s = planned.placement(self._agent.node), self._clock.now_s()
        asker = self._asker(planned, uid)
        record = AllocationRecord(
            id=container_allocation(uid, container),
            state=AllocationState.GRANTED,
            request=replace(request_of(planned, pod.metadata.namespace), **account_of(pod)),
            placement=placement,
            user=f"{pod.metadata.namespace}/{pod.metadata.name}"[:128],
            command=(container,),
            client_pid=asker.pid if asker is not None else 0,
            client_start_time=asker.start_time if asker is not None else 0,
            created_at=now_s,
            granted_at=now_s,
        )
        return self._agent.grant(record, instead_of=others)

    def _asker(self, planned: PlannedContainer, uid: str) -> Process | None:
        """Return the sandbox process of the pod. When this process ends, the worker of the container is stopped.

        Returns None for sharing modes without a worker. Raises CalabashError if the sandbox has no process yet.
        """
        if planned.mode != BROKERED.name:
            return None
        sandbox = self._sandboxes.sandbox(uid)
        if sandbox is None:
            raise CalabashError(
                f"the sandbox of pod {uid} has no process yet, and the worker cannot be tied to it",
                reason=Reason.NOT_FOUND,
                hint="the kubelet tries again",
            )
        return sandbox


def account_of(pod: Pod) -> dict[str, Any]:
    """Return the queue and the priority of a pod as fields of the request in its allocation record."""
    text = pod.metadata.annotations.get(REQUEST)
    try:
        queue = read_request(text).queue if text is not None else ""
    except CalabashError:
        queue = ""
    return {"queue": queue or DEFAULT_QUEUE, "priority": pod.spec.priority or 0}


def request_of(planned: PlannedContainer, namespace: str) -> GpuRequest:
    """Return the request that corresponds to the slices of a planned container, for its allocation record.

    Raises:
        CalabashError: the slices differ in size.
    """
    amounts = {(s.memory_mib, s.spill_mib, s.core_percent, s.profile) for s in planned.slices}
    whole = planned.mode == EXCLUSIVE.name
    if len(amounts) != 1 and not whole:
        raise CalabashError(
            "the slices of one container differ in size", hint="delete the pod; its controller creates it again"
        )
    profile = planned.slices[0].profile
    if profile and planned.mode == MIG_MODE:
        return GpuRequest(count=len(planned.slices), mig=profile, policy=planned.policy, tenant=namespace)
    memory_mib, core_percent = planned.slices[0].memory_mib, planned.slices[0].core_percent or 100
    return GpuRequest(
        count=len(planned.slices),
        memory_mib=None if whole or not memory_mib else memory_mib,
        spill_mib=planned.slices[0].spill_mib,
        core_percent=core_percent,
        mode=ModeName(planned.mode),
        policy=planned.policy,
        tenant=namespace,
    )
