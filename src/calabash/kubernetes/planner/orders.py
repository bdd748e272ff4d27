"""What the planner writes to the API server: one call for each thing it wants done.

Every write names the pod by its uid, and the one that releases it also by its version, so that two planners, or one and
its own past, never write over each other: whoever comes second is refused and looks again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b

from calabash.kubernetes.names import PLAN, PLAN_GATE
from calabash.kubernetes.plan import PodPlan, write_plan
from calabash.kubernetes.planner.facts import PodName, Report
from calabash.model.errors import CalabashError, Reason
from calabash.seams.kube import EvictedAs, KubeClient
from calabash.seams.kube.objects import EVENT, POD, Pod

COMPONENT = "calabash-planner"
_TEXT_MAX = 1024


class Orders:
    """Writes of the planner.

    Args:
        nominates: whether pods are nominated before they are released: their node is then tried alone.
    """

    def __init__(self, client: KubeClient, *, nominates: bool = True) -> None:
        self._client = client
        self.nominates = nominates

    def nominate(self, pod: PodName, node: str) -> Pod:
        """Name the node in its status."""
        body = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}}
        return self._client.patch(POD, pod.name, pod.namespace, body=body, subresource="status")

    def release(self, pod: PodName, plan: PodPlan, seen: Pod | None) -> Pod:
        """Nominate, then write the plan and take the gate off, if nobody changed the pod in between.

        Args:
            seen: the pod as it was last seen; None asks for it. Raises KubeError: CONFLICT when it is no longer so.
        """
        if seen is None or seen.metadata.uid != pod.uid:
            seen = self._client.get(POD, pod.name, pod.namespace)
        if seen is None or seen.metadata.uid != pod.uid:
            raise CalabashError(f"pod {pod.text} is gone", reason=Reason.NOT_FOUND)
        if self.nominates and seen.status.nominated_node_name != plan.node:
            seen = self.nominate(pod, plan.node)
        meta = {
            "uid": pod.uid,
            "resourceVersion": seen.metadata.resource_version,
            "annotations": {PLAN: write_plan(plan)},
        }
        body: dict[str, object] = {"metadata": meta}
        gates = [gate.name for gate in seen.spec.scheduling_gates]
        if PLAN_GATE in gates:
            body["spec"] = {"schedulingGates": [{"name": name} for name in gates if name != PLAN_GATE] or None}
        return self._client.patch(POD, pod.name, pod.namespace, body=body)

    def bind(self, pod: PodName, node: str, plan: PodPlan | None = None) -> None:
        """Give it its node; first the plan, which its annotation has not got yet."""
        if plan is not None:
            meta = {"uid": pod.uid, "annotations": {PLAN: write_plan(plan)}}
            self._client.patch(POD, pod.name, pod.namespace, body={"metadata": meta})
        try:
            self._client.bind(pod.namespace, pod.name, pod.uid, node)
        except CalabashError as error:
            if error.reason is not Reason.CONFLICT:
                raise
            now = self._client.get(POD, pod.name, pod.namespace)
            if now is None or now.metadata.uid != pod.uid or now.spec.node_name != node:
                raise

    def evict(self, pod: PodName) -> tuple[EvictedAs, str]:
        """Ask for it to be taken away."""
        answer = self._client.evict(pod.namespace, pod.name, pod.uid)
        return answer.as_, answer.message

    def tell(self, pod: PodName, reason: str, message: str) -> None:
        """One event of it, which warns."""
        self._event(pod, reason, message[:_TEXT_MAX], stamp(), warning=True)

    def report(self, report: Report) -> None:
        """Its condition says why it waits, and one event of it, counted and renewed, says it to people."""
        pod, waits = report.pod, report.reason is not None
        reason = camel(report.reason) if report.reason is not None else "Planned"
        message = report.message[:_TEXT_MAX]
        now = stamp()
        if waits:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": reason,
                "message": message,
                "lastTransitionTime": now,
            }
            body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
            self._client.patch(POD, pod.name, pod.namespace, body=body, style="strategic", subresource="status")
        self._event(pod, reason, message, now, warning=waits)

    def _event(self, pod: PodName, reason: str, message: str, now: str, *, warning: bool) -> None:
        digest = blake2b(f"{pod.uid}/{reason}".encode(), digest_size=8).hexdigest()
        name = f"{pod.name[:200]}.{digest}"
        before = self._client.get(EVENT, name, pod.namespace)
        if before is not None:
            body = {"message": message, "count": before.count + 1, "lastTimestamp": now}
            self._client.patch(EVENT, name, pod.namespace, body=body)
            return
        self._client.create(
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
    """``no_memory`` as conditions and events write it: ``NoMemory``."""
    return "".join(word.capitalize() for word in reason.value.split("_"))


def stamp() -> str:
    """Now, RFC 3339."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
