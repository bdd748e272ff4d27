"""Writes of the planner to the API server, one method for each kind of write.

Every write carries the UID of the pod, so it never changes a later pod of the same name. The release of a pod also
carries the pod's resource version. If another planner, or an earlier call of this one, has changed the pod in between,
the API server refuses the release instead of overwriting that change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b

from calabash.adapters.kube import EvictedAs, KubeClient, is_final, status_of
from calabash.adapters.kube.objects.core import EVENT, POD, Pod
from calabash.kubernetes.objects.names import EXPLANATION, PLAN, PLAN_GATE, PLANNED
from calabash.kubernetes.objects.plan import PodPlan, write_plan
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.state.affinity import restricted_affinity
from calabash.kubernetes.planner.state.component import COMPONENT
from calabash.kubernetes.planner.state.facts import Report
from calabash.model.errors import CalabashError, Reason
from calabash.model.message_codec import encode_text
from calabash.model.messages import Message, in_full

_TEXT_MAX = 1024
_AGAIN_S = 0.2
_GRACE_S = 30  # Kubernetes' default
_BIND_FAULTS_MAX = 4


class LeadsNoLonger(CalabashError):  # noqa: N818 - what is the case, not what went wrong
    """Raised instead of writing if this planner is not the leader any more."""

    def __init__(self) -> None:
        super().__init__("this planner does not lead; another answers", reason=Reason.CONFLICT)


class ApiWrites:
    """Writes of the planner to the API server.

    Args:
        nominates: write the planned node to ``status.nominatedNodeName`` of a pod before the pod is released.
            kube-scheduler then checks this node first, and the other nodes only if it does not fit.
        nominates_claims: nominate pods that name resource claims, even if ``nominates`` is False.
        bind_s: time limit of a binding in seconds. A binding must not arrive after another planner has begun to lead.
        may_write: called before every write; if it returns False, LeadsNoLonger is raised and nothing is written.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        nominates: bool = True,
        nominates_claims: bool = True,
        may_write: Callable[[], bool] = lambda: True,
        bind_s: float = 30.0,
    ) -> None:
        self._client = client
        self._binding = client.within(bind_s)
        self._nominates, self._nominates_claims = nominates, nominates_claims
        self._may_write = may_write

    def set_nomination(self, *, pods: bool, claims: bool) -> None:
        """Set whether all pods are nominated, and whether those are that name resource claims."""
        self._nominates, self._nominates_claims = pods, claims

    def is_to_be_nominated(self, pod: Pod | None) -> bool:
        """Return True if the planned node is to be written to the pod's status; ``pod`` is None if it is unknown."""
        return self._nominates or (self._nominates_claims and pod is not None and bool(pod.spec.resource_claims))

    def nominate(self, pod: PodName, node: str) -> Pod:
        """Write the nominated node to the pod's status, and return the changed pod."""
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
        return self._checked_client().patch(POD, pod.name, pod.namespace, body=body, subresource="status")

    def release(self, pod: PodName, plan: PodPlan, seen: Pod | None, *, nodes: Sequence[str] = ()) -> Pod:
        """Let a planned pod be scheduled: nominate the node, then write the plan and remove the planner's gate.

        Args:
            seen: the pod as last seen; None: it is read from the API server.
            nodes: candidate nodes. If there are any, the pod's affinity is restricted to them and no plan is written,
                because another scheduler chooses the node.

        Raises:
            CalabashError: NOT_FOUND if the pod is deleted, CONFLICT if it was changed after ``seen``.
        """
        if seen is None or seen.metadata.uid != pod.uid:
            seen = self._client.get(POD, pod.name, pod.namespace)
        if seen is None or seen.metadata.uid != pod.uid:
            raise CalabashError(f"pod {pod.text} is gone", reason=Reason.NOT_FOUND)
        if nodes and all(gate.name != PLAN_GATE for gate in seen.spec.scheduling_gates):
            return seen  # an earlier call succeeded, and its answer was lost
        if (nodes or self.is_to_be_nominated(seen)) and seen.status.nominated_node_name != plan.node:
            seen = self.nominate(pod, plan.node)
        meta: dict[str, object] = {"uid": pod.uid, "resourceVersion": seen.metadata.resource_version}
        spec: dict[str, object] = {}
        if nodes:
            spec["affinity"] = restricted_affinity(seen, nodes)
        else:
            meta["annotations"] = {PLAN: write_plan(plan)}
        gates = [gate.name for gate in seen.spec.scheduling_gates]
        if PLAN_GATE in gates:
            spec["schedulingGates"] = [{"name": name} for name in gates if name != PLAN_GATE] or None
        return self._checked_client().patch(POD, pod.name, pod.namespace, body={"metadata": meta, "spec": spec})

    def ungate(self, pod: PodName) -> None:
        """Remove the planner's scheduling gate from a pod that has no plan. Raises NOT_FOUND if the pod is deleted."""
        seen = self._client.get(POD, pod.name, pod.namespace)
        if seen is None or seen.metadata.uid != pod.uid:
            raise CalabashError(f"pod {pod.text} is gone", reason=Reason.NOT_FOUND)
        others = [{"name": gate.name} for gate in seen.spec.scheduling_gates if gate.name != PLAN_GATE]
        if len(others) < len(seen.spec.scheduling_gates):
            meta = {"uid": pod.uid, "resourceVersion": seen.metadata.resource_version}
            body = {"metadata": meta, "spec": {"schedulingGates": others or None}}
            self._checked_client().patch(POD, pod.name, pod.namespace, body=body)

    def write_plan(self, pod: PodName, plan: PodPlan) -> None:
        """Write the plan to the annotation of a pod that is bound already."""
        meta = {"uid": pod.uid, "annotations": {PLAN: write_plan(plan)}}
        self._checked_client().patch(POD, pod.name, pod.namespace, body={"metadata": meta})

    def bind(self, pod: PodName, node: str, plan: PodPlan | None = None) -> None:
        """Bind a pod to its node and write its plan in the same call, so that no pod is bound without its plan.

        The API server may make a binding although its answer is lost, and such a binding must not be taken for a failed
        one. Without an answer the call is therefore repeated until this planner ceases to lead. After an answer that
        leaves the result open (5xx), it is repeated a few times. ``plan`` is None for a pod without devices.
        """
        annotations = {PLAN: write_plan(plan)} if plan is not None else {}
        faults = 0
        while True:
            try:
                self._checked_client(self._binding).bind(
                    pod.namespace, pod.name, pod.uid, node, annotations=annotations
                )
            except LeadsNoLonger:
                raise
            except CalabashError as error:
                is_open = error.reason is Reason.API_DOWN
                faults += 1 if is_open and status_of(error) else 0
                if is_open and faults < _BIND_FAULTS_MAX:
                    time.sleep(_AGAIN_S * 2**faults)
                    continue
                if (is_open or error.reason is Reason.CONFLICT) and self._is_bound(pod, node, annotations):
                    return
                raise
            return

    def _is_bound(self, pod: PodName, node: str, annotations: Mapping[str, str]) -> bool:
        """Return True if the pod is bound to this node and has these annotations, which contain its plan.

        An earlier call has then succeeded without an answer.
        """
        while True:
            try:
                now = self._client.get(POD, pod.name, pod.namespace)
            except CalabashError as error:
                if error.reason is not Reason.API_DOWN or status_of(error) or not self._may_write():
                    raise
                time.sleep(_AGAIN_S)
                continue
            there = now is not None and now.metadata.uid == pod.uid and now.spec.node_name == node
            return there and now is not None and annotations.items() <= now.metadata.annotations.items()

    def evict(self, pod: PodName, *, grace_max_s: int | None = None) -> tuple[EvictedAs, str]:
        """Request the pod's eviction; return the result and the API server's message.

        The grace period is the pod's own, but at most ``grace_max_s`` seconds (None: no maximum).
        """
        grace_s = self._grace_s(pod, grace_max_s)
        answer = self._checked_client().evict(pod.namespace, pod.name, pod.uid, grace_s=grace_s)
        return answer.as_, answer.message

    def delete(self, pod: PodName, *, grace_max_s: int | None = None) -> None:
        """Delete the pod regardless of disruption budgets; ``grace_max_s`` is the longest grace period in seconds."""
        grace_s = self._grace_s(pod, grace_max_s)
        self._checked_client().delete(POD, pod.name, pod.namespace, uid=pod.uid, grace_s=grace_s)

    def _grace_s(self, pod: PodName, grace_max_s: int | None) -> int | None:
        """Return the grace period to request for an eviction or deletion, in seconds.

        None requests no particular period: the pod's own is not longer than ``grace_max_s``, or the pod is not found.
        """
        if grace_max_s is None:
            return None
        seen = self._client.get(POD, pod.name, pod.namespace)
        if seen is None or seen.metadata.uid != pod.uid:
            return None
        own_s = seen.spec.termination_grace_period_seconds
        given_s = max(_GRACE_S if own_s is None else own_s, seen.metadata.deletion_grace_period_seconds or 0)
        return grace_max_s if given_s > grace_max_s else None

    def write_event(self, pod: PodName, reason: str, message: str) -> None:
        """Write a warning event of the pod."""
        self._event(pod, reason, message[:_TEXT_MAX], stamp(), warning=True)

    def report(self, report: Report) -> None:
        """Write a condition that says why the pod waits, and an event with the same text.

        If the text names queues, the condition ``EXPLANATION`` has it with the names marked, for the cluster's server. A
        repeated report increases the count of the existing event. If the API server refuses the condition, the text of
        the event says so.
        """
        pod, waits = report.pod, report.reason is not None
        reason = camel(report.reason) if report.reason is not None else "Planned"
        message = in_full(report.message)[:_TEXT_MAX]
        now = stamp()
        if waits or report.own_condition:
            condition = {
                "type": PLANNED if report.own_condition else "PodScheduled",
                "status": "False" if waits else "True",
                "reason": reason,
                "message": message,
                "lastTransitionTime": now,
            }
            conditions = [condition]
            if isinstance(report.message, Message) and not report.own_condition:
                marked = encode_text(report.message)[:_TEXT_MAX]
                conditions.append(condition | {"type": EXPLANATION, "message": marked})
            body = {"metadata": {"uid": pod.uid}, "status": {"conditions": conditions}}
            try:
                self._checked_client().patch(
                    POD, pod.name, pod.namespace, body=body, style="strategic", subresource="status"
                )
            except CalabashError as error:
                if not is_final(error):
                    raise
                message = f"{message} (its condition was refused: {error.message})"[:_TEXT_MAX]
        self._event(pod, reason, message, now, warning=waits)

    def _checked_client(self, client: KubeClient | None = None) -> KubeClient:
        if not self._may_write():
            raise LeadsNoLonger
        return client or self._client

    def _event(self, pod: PodName, reason: str, message: str, now: str, *, warning: bool) -> None:
        digest = blake2b(f"{pod.uid}/{reason}".encode(), digest_size=8).hexdigest()
        name = f"{pod.name[:200]}.{digest}"
        before = self._client.get(EVENT, name, pod.namespace)
        if before is not None:
            body = {"message": message, "count": before.count + 1, "lastTimestamp": now}
            self._checked_client().patch(EVENT, name, pod.namespace, body=body)
            return
        self._checked_client().create(
            EVENT,
            {
                "metadata": {"name": name, "namespace": pod.namespace},
                "involvedObject": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod.name,
                    "namespace": pod.namespace,
                    "uid": pod.uid,
                },
                "type": "Warning" if warning else "Normal",
                "reason": reason,
                "message": message,
                "count": 1,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "source": {"component": COMPONENT},
                "reportingComponent": COMPONENT,
            },
            pod.namespace,
        )


def camel(reason: Reason) -> str:
    """Return a reason as conditions and events write it: ``no_memory`` is ``NoMemory``."""
    return "".join(word.capitalize() for word in reason.value.split("_"))


def stamp() -> str:
    """Return the current time in RFC 3339."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
