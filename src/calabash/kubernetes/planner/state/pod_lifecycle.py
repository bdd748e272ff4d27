"""Life cycle of a pod in the planner: its stages, the events, and the table of transitions.

``ClusterScheduler.holds`` is true for pods whose devices the scheduler counts as in use. These are the pods from PLACED
to EVICTED, except those whose node was deleted or whose devices are not known.
"""

from __future__ import annotations

from enum import StrEnum

from calabash.model.state_machine import StateMachine, leads_to


class Stage(StrEnum):
    """Stage of a pod, described in ``STAGES``."""

    ASIDE = "aside"
    WAITING = "waiting"
    PLACED = "placed"
    RELEASING = "releasing"
    RELEASED = "released"
    BINDING = "binding"
    BOUND = "bound"
    EVICTED = "evicted"
    RIDING = "riding"


STAGES = {
    Stage.ASIDE: "cannot be planned now: its queue or gang group does not exist, no device suits it, another gate holds it,"
    " or it requests no devices and its gang has no plan",
    Stage.WAITING: "waits in its queue for devices",
    Stage.PLACED: "has devices, and waits for the evicted pods that still hold them to end",
    Stage.RELEASING: "its plan is being written",
    Stage.RELEASED: "kube-scheduler may place it on the planned node",
    Stage.BINDING: "its binding is being written",
    Stage.BOUND: "is bound to its node",
    Stage.EVICTED: "its eviction was requested",
    Stage.RIDING: "has no plan and needs none: its claims are counted for other pods, or request no devices of ours, or it"
    " is a member without devices of a gang that starts",
}

UNBOUND = frozenset((Stage.PLACED, Stage.RELEASING, Stage.RELEASED))  # with a plan
SETTLED = frozenset((Stage.BINDING, Stage.BOUND, Stage.EVICTED))


class PodEvent(StrEnum):
    """Event in the life of a pod, described in ``EVENTS``."""

    # what the watches have shown
    SEEN_BOUND = "seen_bound"
    UNPLANNABLE = "unplannable"
    TERMINATING = "terminating"
    CLAIMS_ALLOCATED = "claims_allocated"
    CLAIMS_ALLOCATED_GATED = "claims_allocated_gated"
    PLAN_FOUND = "plan_found"
    # what the planner has decided
    SUBMITTED = "submitted"
    CONFINED = "confined"
    SHARES_CLAIMS = "shares_claims"
    ASSIGNED = "assigned"
    ASSIGNED_BUSY = "assigned_busy"
    REASSIGNED = "reassigned"
    DEVICES_FREED = "devices_freed"
    PLAN_UNUSED = "plan_unused"
    EVICTION_REQUESTED = "eviction_requested"
    # what kube-scheduler has requested
    BINDING_APPROVED = "binding_approved"
    # what the API server has answered
    PLAN_WRITTEN = "plan_written"
    WRITE_REFUSED = "write_refused"
    BINDING_WRITTEN = "binding_written"
    BINDING_REFUSED = "binding_refused"
    EVICTION_REFUSED = "eviction_refused"


EVENTS = {
    PodEvent.SEEN_BOUND: "the API server shows the pod on a node",
    PodEvent.UNPLANNABLE: "the request is invalid, or an object that it needs does not exist; a condition explains it",
    PodEvent.TERMINATING: "the pod is being deleted and is not bound; its devices are freed",
    PodEvent.CLAIMS_ALLOCATED: "Kubernetes has allocated the pod's claims; the allocated devices replace the planned ones",
    PodEvent.CLAIMS_ALLOCATED_GATED: "the same for a pod with our gate; the plan is written and the gate is removed",
    PodEvent.PLAN_FOUND: "a new leader has found a plan in the pod's annotation, and its devices are free",
    PodEvent.SUBMITTED: "the pod is added to its queue without a plan, for the first time or because it lost its devices",
    PodEvent.CONFINED: "the pod has no plan, and another scheduler may bind it to its candidate nodes only",
    PodEvent.SHARES_CLAIMS: "all claims of the pod are counted for other pods, or the gang of a pod without devices starts;"
    " the gate is removed",
    PodEvent.ASSIGNED: "the scheduler has assigned free devices; the plan is written and the gate is removed",
    PodEvent.ASSIGNED_BUSY: "the scheduler has assigned devices that evicted pods still use; the node is nominated",
    PodEvent.REASSIGNED: "free devices were assigned to a pod without our gate; the plan is written with the binding",
    PodEvent.DEVICES_FREED: "the last evicted pod on the planned devices has ended; as assigned",
    PodEvent.PLAN_UNUSED: "kube-scheduler has not used the plan in time; the devices are freed and the pod is deferred",
    PodEvent.EVICTION_REQUESTED: "another pod needs the devices, or the pod cannot start where it is; the pod is evicted",
    PodEvent.BINDING_APPROVED: "kube-scheduler has requested the binding, and it may be written",
    PodEvent.PLAN_WRITTEN: "the plan is in the pod's annotation",
    PodEvent.WRITE_REFUSED: "the API server refuses a write; the devices are freed and the pod is deferred",
    PodEvent.BINDING_WRITTEN: "the binding is written",
    PodEvent.BINDING_REFUSED: "the binding was not written",
    PodEvent.EVICTION_REFUSED: "a disruption budget refuses the eviction; the pod is protected for a time",
}

_PLANNED = (Stage.PLACED, Stage.RELEASING, Stage.RELEASED)
_QUEUED = (Stage.ASIDE, Stage.WAITING, *_PLANNED)
_PLANNABLE = (*_QUEUED, Stage.RIDING)
_NOT_EVICTED = (*_PLANNABLE, Stage.BINDING, Stage.BOUND)

POD_LIFECYCLE: StateMachine[Stage, PodEvent] = StateMachine(
    name="pod",
    summary=(
        "The planner keeps a stage for each pod that requests devices. It is not stored: a new leader derives it from the"
        " pod, its plan and the nodes. A pod leaves its life cycle from any stage when it is deleted or has ended. The"
        " metric `calabash_planner_pods` counts the pods of each stage."
    ),
    initial=Stage.ASIDE,
    stages=STAGES,
    events=EVENTS,
    table={
        **leads_to(Stage.BOUND, PodEvent.SEEN_BOUND, _NOT_EVICTED),
        **leads_to(Stage.ASIDE, PodEvent.UNPLANNABLE, (*_PLANNABLE, Stage.BOUND)),
        **leads_to(Stage.ASIDE, PodEvent.TERMINATING, _PLANNABLE),
        **leads_to(Stage.RELEASED, PodEvent.CLAIMS_ALLOCATED, _QUEUED),
        **{(stage, PodEvent.CLAIMS_ALLOCATED): stage for stage in (Stage.BINDING, Stage.BOUND)},
        **leads_to(Stage.RELEASING, PodEvent.CLAIMS_ALLOCATED_GATED, _QUEUED),
        **leads_to(Stage.RELEASED, PodEvent.PLAN_FOUND, (Stage.ASIDE,)),
        **leads_to(Stage.WAITING, PodEvent.SUBMITTED, _PLANNABLE),
        **leads_to(Stage.ASIDE, PodEvent.CONFINED, _PLANNABLE),
        **leads_to(Stage.RIDING, PodEvent.SHARES_CLAIMS, _QUEUED),
        **leads_to(Stage.RELEASING, PodEvent.ASSIGNED, (Stage.WAITING, Stage.PLACED, Stage.RELEASING)),
        **leads_to(Stage.PLACED, PodEvent.ASSIGNED_BUSY, (Stage.WAITING, *_PLANNED)),
        **leads_to(Stage.RELEASED, PodEvent.REASSIGNED, (Stage.ASIDE, Stage.RELEASING, Stage.RELEASED)),
        **leads_to(Stage.RELEASING, PodEvent.DEVICES_FREED, (Stage.PLACED,)),
        **leads_to(Stage.ASIDE, PodEvent.PLAN_UNUSED, (Stage.RELEASED,)),
        **leads_to(Stage.EVICTED, PodEvent.EVICTION_REQUESTED, _NOT_EVICTED),
        **leads_to(
            Stage.BINDING, PodEvent.BINDING_APPROVED, (Stage.RELEASING, Stage.RELEASED, Stage.BINDING, Stage.BOUND)
        ),
        **leads_to(Stage.RELEASED, PodEvent.PLAN_WRITTEN, (Stage.RELEASING,)),
        **leads_to(Stage.ASIDE, PodEvent.WRITE_REFUSED, (Stage.RELEASING, Stage.RELEASED, Stage.BOUND, Stage.RIDING)),
        **leads_to(Stage.BOUND, PodEvent.BINDING_WRITTEN, (Stage.BINDING,)),
        **leads_to(Stage.RELEASED, PodEvent.BINDING_REFUSED, (Stage.BINDING,)),
        **leads_to(Stage.BOUND, PodEvent.EVICTION_REFUSED, (Stage.EVICTED,)),
    },
)
