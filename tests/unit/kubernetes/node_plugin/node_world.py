"""A node without a kubelet, devices or an API server: pods as values, and an agent that records its calls."""

from __future__ import annotations

from collections.abc import Callable, Collection

from calabash.adapters.cdi import ContainerEdits
from calabash.adapters.kube.objects.core import (
    Container,
    ContainerState,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    StateRunning,
    StateTerminated,
)
from calabash.adapters.kube.objects.meta import ObjectMeta
from calabash.kubernetes.node_plugin.pods import NodePods
from calabash.kubernetes.objects.names import PLAN
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice, PodPlan, write_plan
from calabash.model.allocation import AllocationRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import AllocationId
from calabash.node.agent import Grant
from calabash.sharing.protocol import Edits
from calabash_testing.api_server.client import MemoryKube

NODE = "n1"
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER = "7c9e6679-7425-40de-944b-e07fc1f90ae7"


def planned(name: str, *, devices: int = 1, memory_mib: int = 1024, mode: str = "vgpu") -> PlannedContainer:
    """Return a planned container with slices on ``GPU-0``, ``GPU-1``, ..."""
    slices = tuple(
        PlannedSlice(device=f"GPU-{i}", memory_mib=memory_mib, core_percent=100 if mode == "exclusive" else 30)
        for i in range(devices)
    )
    return PlannedContainer(name=name, mode=mode, slices=slices)


def pod(
    *containers: PlannedContainer,
    uid: str = UID,
    init: tuple[str, ...] = (),
    sidecars: tuple[str, ...] = (),
    name: str = "p1",
    node: str = NODE,
    phase: str = "Pending",
    ended: tuple[str, ...] = (),
    running: tuple[str, ...] = (),
    at: str | None = None,
    plan: str | None = None,
) -> Pod:
    """Return a pod with a plan for these containers; those that are neither ``init`` nor ``sidecars`` are main ones."""
    early = [*init, *sidecars]
    text = write_plan(PodPlan(id="1", pod_uid=uid, node=node, containers=containers)) if containers else None
    text = text if plan is None else plan
    return Pod(
        metadata=ObjectMeta(name=name, namespace="team", uid=uid, annotations={PLAN: text} if text else {}),
        spec=PodSpec(
            node_name=node,
            init_containers=tuple(
                Container(name=c.name, restart_policy="Always" if c.name in sidecars else None)
                for c in containers
                if c.name in early
            ),
            containers=tuple(Container(name=c.name) for c in containers if c.name not in early),
        ),
        status=PodStatus(
            phase=phase,
            init_container_statuses=tuple(
                ContainerStatus(name=n, state=ContainerState(terminated=StateTerminated(exit_code=0, finished_at=at)))
                for n in ended
            ),
            container_statuses=tuple(
                ContainerStatus(name=n, state=ContainerState(running=StateRunning(started_at=at))) for n in running
            ),
        ),
    )


class GivenPods(NodePods):
    """Pods that a test passes to ``changed``, without a thread. They are complete while ``complete`` is True."""

    def __init__(
        self,
        *,
        complete: bool = False,
        users: Callable[[AllocationId], Collection[str] | None] = lambda _claim: None,
        plan_wait_s: float = 0.0,
    ) -> None:
        super().__init__(MemoryKube(), NODE, users=users, plan_wait_s=plan_wait_s)
        self.complete = complete

    @property
    def synced(self) -> bool:
        return self.complete


class Agent:
    """Agent that records its grants, each with the allocations that it replaces."""

    node = NODE

    def __init__(self) -> None:
        self.held: dict[AllocationId, AllocationRecord] = {}
        self.instead_of: dict[AllocationId, frozenset[AllocationId]] = {}
        self.full = False

    def record(self, allocation: AllocationId) -> AllocationRecord | None:
        return self.held.get(allocation)

    def records(self) -> list[AllocationRecord]:
        return list(self.held.values())

    def grant(self, record: AllocationRecord, *, instead_of: set[AllocationId]) -> Grant:
        if self.full:
            raise CalabashError("device 0 512MiB of 16GiB is free, asked 1GiB", reason=Reason.NO_MEMORY)
        self.held.setdefault(record.id, record)
        self.instead_of[record.id] = frozenset(instead_of)
        return Grant(record=self.held[record.id], edits=Edits())


class SlotEdits:
    """CDI edits with the allocation of the grant as a variable."""

    def for_grant(self, grant: Grant) -> ContainerEdits:
        return ContainerEdits(env=(("SLOT", grant.record.id),))
