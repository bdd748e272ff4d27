"""Pods that their kubelet refused for good: they will never run, and stand in the way of nobody but people who look."""

from __future__ import annotations

from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.state.facts import PodSeen, SweepPod


def swept(pod: PodSeen) -> SweepPod:
    """What is to be done about one. Its devices are free already."""
    where = f"the kubelet of {pod.node or 'its node'} refused it for good ({pod.refusal})"
    remade = pod.remade and not pod.tied  # a DaemonSet deletes its failed pods itself, with growing delays
    if remade:
        what = "it is deleted, for its owner makes another"
    elif pod.remade:
        what = "its owner makes another on the same node"
    else:
        what = "nobody makes another; hint: delete it and create it again"
    name = PodName(uid=pod.uid, namespace=pod.namespace, name=pod.name)
    return SweepPod(pod=name, remade=remade, message=f"{where}: {what}")
