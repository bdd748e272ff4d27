"""Cleanup of pods that their kubelet has refused at admission. Such a pod has failed and never runs."""

from __future__ import annotations

from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.state.facts import PodFacts, SweepPod


def swept(pod: PodFacts) -> SweepPod:
    """Return the action for a pod that its kubelet refused.

    The action writes an event, and evicts the pod if its controller then creates another one on any node.
    """
    where = f"the kubelet of {pod.node or 'its node'} refused it for good ({pod.refusal})"
    is_recreated = (
        pod.is_recreated and not pod.recreated_on_same_node
    )  # a DaemonSet deletes its failed pods itself, with growing delays
    if is_recreated:
        what = "the pod is deleted, and its controller creates another"
    elif pod.is_recreated:
        what = "its controller creates another on the same node"
    else:
        what = "no controller creates another; hint: delete the pod and create it again"
    name = PodName(uid=pod.uid, namespace=pod.namespace, name=pod.name)
    return SweepPod(pod=name, is_recreated=is_recreated, message=f"{where}: {what}")
