"""State of one pod in the planner."""

from __future__ import annotations

from dataclasses import dataclass

from calabash.binder.cluster.bundle import Bundle
from calabash.kubernetes.objects.plan import PodPlan
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.state.facts import PodFacts
from calabash.kubernetes.planner.state.gang_permits import GangName
from calabash.kubernetes.planner.state.pod_lifecycle import POD_LIFECYCLE, Stage
from calabash.model.errors import Reason
from calabash.model.messages import Text
from calabash.model.request import AllocationId


@dataclass(slots=True)
class PodEntry:
    """State of one pod. Only ``PodStore`` changes it; the stage changes by ``PodStore.advance``.

    Attributes:
        bundle: the pod's request in the scheduler's form; None if it has none.
        written: ID of the plan that the pod's annotation is known to have; "" if none is known.
        releases: IDs of all plans with which the removal of the pod's gate was requested.
        after: UIDs of evicted pods that still use the planned devices; the pod is released when they have ended.
        reason: why the pod waits; None if it does not wait.
        message: explanation of ``reason``, restricted to what users of the pod's namespace may read.
        reported: the reason in the last report to the API server; None if none was reported.
        protected_until_s: time until which the pod is not evicted, after a budget refused its eviction.
        stale_refused: kube-scheduler offered only an older nominated node, and this was refused once for this plan.
        own_condition: reports go to the condition ``names.PLANNED`` instead of ``PodScheduled``.
        asked: kube-scheduler has asked for the planned node and was told it.
    """

    facts: PodFacts
    stage: Stage = POD_LIFECYCLE.initial
    bundle: Bundle | None = None
    plan: PodPlan | None = None
    written: str = ""
    releases: tuple[str, ...] = ()
    after: frozenset[str] = frozenset()
    gang: GangName | None = None
    reason: Reason | None = None
    message: Text = ""
    reported: Reason | None = None
    protected_until_s: float = 0.0
    stale_refused: bool = False
    own_condition: bool = False
    asked: bool = False

    @property
    def is_written(self) -> bool:
        """Return True if the pod's annotation holds the current plan.

        The caller is answering kube-scheduler, which asks only about pods without a gate. One write removes the gate
        and writes the plan. So if the mirror still shows the gate, the write was made and the mirror is late. The
        written plan is then the current one if no other plan was ever released.
        """
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
        """Name of the node to which the pod is bound or planned; "" for none."""
        return self.facts.node or (self.plan.node if self.plan else "")


def devices_of(plan: PodPlan) -> set[str]:
    """Return the UUIDs of the devices that a plan names; all are on the plan's node."""
    return {part.device for container in plan.containers for part in container.slices}
