"""A container is about to be made: it is given its slices, and what it needs is written where its runtime reads it.

Called by the kubelet before every start of a container, again and again until it succeeds, so every step may be repeated.
What is refused is read by the pod's owner, word for word, in the pod's events.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

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
from calabash.model.request import DEFAULT_QUEUE, MIG_MODE, AllocationId, GpuRequest, ModeName
from calabash.node.agent import Grant, NodeAgent
from calabash.node.membership.container import container_allocation
from calabash.sharing.brokered import MODE as BROKERED
from calabash.sharing.exclusive import MODE as EXCLUSIVE


class Preparer:
    """Answers the kubelet for one resource, that of ``owners``.

    Args:
        placing: which slices a container has.
        edits: what a container needs to use a grant.
        specs: where those needs are written for the runtime.
        since_s: since when the pod of a UID runs as it does now (``ContainerMembership.sandbox_since_s``).
        sandbox: the process that such a pod lives as long as; None: it cannot be seen yet.
        refuse: called before anything new is granted; raises CalabashError while the node gives out nothing.
        prepared: called when a container has what it needs.
        leaving: whether the pod of any of these allocations is going; then who finds no room waits a few seconds.
        pause: sleeps for so many seconds.
    """

    def __init__(
        self,
        agent: NodeAgent,
        owners: Owners,
        clock: Clock,
        *,
        placing: Placing,
        edits: Callable[[Grant], ContainerEdits],
        specs: SlotSpecs,
        since_s: Callable[[str], float] = lambda _uid: 0.0,
        sandbox: Callable[[str], Process | None] = lambda _uid: None,
        refuse: Callable[[], None] = lambda: None,
        prepared: Callable[[], None] = lambda: None,
        leaving: Callable[[Iterable[AllocationId]], bool] = lambda _held: False,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._agent = agent
        self._owners = owners
        self._clock = clock
        self._placing = placing
        self._edits = edits
        self._specs = specs
        self._since_s = since_s
        self._sandbox = sandbox
        self._refuse = refuse
        self._prepared = prepared
        self._patience = Patience(
            clock=clock, leaving=lambda: leaving(record.id for record in agent.records()), pause=pause
        )
        self._lock = threading.Lock()

    def allocate(self, device_ids: tuple[str, ...]) -> Allocated:
        """Decides nothing, and answers at once with a name that nobody has had before."""
        name = new_name(device_ids)
        self._owners.answered(device_ids, name)
        return Allocated(cdi_names=(qualified(name),))

    def preferred(self, available: tuple[str, ...], must: tuple[str, ...], size: int) -> list[str]:
        """Any will do: the lowest, so that few files are ever in use."""
        rest = sorted(set(available) - set(must))
        return [*must, *rest][:size]

    def pre_start(self, device_ids: tuple[str, ...], answered: tuple[str, ...] = ()) -> None:
        """Give the container with these tokens its slices. Raises CalabashError; the kubelet asks again.

        Args:
            answered: the CDI names with which the relay answered Allocate in place of this agent.
        """
        for name in filter(None, map(device_name, answered)):
            self._owners.answered(device_ids, name)
        claimants = self._owners.of(device_ids)
        if not claimants:
            raise CalabashError(
                f"the kubelet names no container for {len(device_ids)} of {self._owners.resource}",
                reason=Reason.NOT_FOUND,
                hint="it is asked again; if this stays, the kubelet's checkpoint is of a version that is not known",
            )
        found = [(self._placing.pod(c), c) for c in claimants]  # may be waited for
        for pod, claimant in found:
            self._require_known(pod, claimant)
        self._patience.until_there_is_room(lambda: self._prepare(found, device_ids))

    def _prepare(self, found: Sequence[tuple[Pod, Claimant]], device_ids: tuple[str, ...]) -> None:
        devices: dict[str, ContainerEdits] = {}
        with self._lock:  # two containers of one pod may be started by one token, one after the other
            for pod, claimant in self._due(found):
                edits = self._edits(self._grant(pod, claimant.container, len(device_ids)))
                devices |= dict.fromkeys(claimant.names, edits)
            self._specs.write(device_ids, devices)
        self._prepared()

    def _due(self, found: Sequence[tuple[Pod, Claimant]]) -> list[tuple[Pod, Claimant]]:
        """Those that may be the one that starts now: each that was prepared before, and the first that was not.

        Containers that share tokens run one after the other, and a container is prepared only when those before it have
        been, so what comes after the first new one cannot be the one that the kubelet is about to make.
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
        """Whether it is an init container that has ended well in the sandbox that the pod has now."""
        return container in init_names(pod) and done(pod, container, self._since_s(pod.metadata.uid))

    def _require_known(self, pod: Pod, claimant: Claimant) -> None:
        """Pod-resources does not name init containers: while one may still start, it may be the one that is about to."""
        if claimant.pod_uid:
            return
        coming = [name for name in init_names(pod) if not self._is_done(pod, name)]
        if coming:
            raise CalabashError(
                f"init container {coming[0]} of pod {claimant.pod} may use the tokens of container {claimant.container}, and"
                " the kubelet's checkpoint, which would tell who is about to start, cannot be read",
                reason=Reason.NOT_FOUND,
                hint="it is asked again; supported are the kubelets of Kubernetes 1.34 to 1.36",
            )

    def _grant(self, pod: Pod, container: str, tokens: int) -> Grant:
        uid = pod.metadata.uid
        others = {container_allocation(uid, other) for other in never_together(pod, container)}
        if self._agent.record(container_allocation(uid, container)) is None:
            self._refuse()
        planned = self._placing.of(pod, container, tokens, others)
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
        """Whose end is the end of what runs for a container outside of it: its sandbox's."""
        if planned.mode != BROKERED.name:
            return None
        sandbox = self._sandbox(uid)
        if sandbox is None:
            raise CalabashError(
                f"pod {uid} has no process yet, so nothing can be started that ends with it",
                reason=Reason.NOT_FOUND,
                hint="it is tried again when its sandbox runs",
            )
        return sandbox


def account_of(pod: Pod) -> dict[str, Any]:
    """On whose account it is, as far as the pod itself says: its queue, and how important it is."""
    text = pod.metadata.annotations.get(REQUEST)
    try:
        queue = read_request(text).queue if text is not None else ""
    except CalabashError:
        queue = ""
    return {"queue": queue or DEFAULT_QUEUE, "priority": pod.spec.priority or 0}


def request_of(planned: PlannedContainer, namespace: str) -> GpuRequest:
    """The request that these slices answer."""
    amounts = {(s.memory_mib, s.spill_mib, s.core_percent, s.profile) for s in planned.slices}
    whole = planned.mode == EXCLUSIVE.name
    if len(amounts) != 1 and not whole:
        raise CalabashError(
            "the slices of one container differ in size", hint="delete the pod; its owner makes it again"
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
