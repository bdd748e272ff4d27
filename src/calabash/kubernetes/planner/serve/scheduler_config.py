"""Configuration of the unmodified kube-scheduler for pods that the planner plans.

There are several entries for one extender: the time-out of filter is short, that of bind long, because a gang is held
there. No entry is ignorable: where the planner does not answer, our pods wait.

kube-scheduler must not check the resources by which pods request devices; an entry without verbs names them. They are
not in the other entries, because an entry with resources is asked only about pods with these resources. Memory and
cores are no node's capacity. The kubelet does count ``calabash.dev/gpus``, but a pod that kube-scheduler itself refused
for too few of them would wait for minutes after they have come back (a node has none while its agent is replaced):
NodeResourcesFit then tries the pod again only if all its resources fit on the node, including those that it otherwise
ignores, memory and cores. So the planner refuses the node (``extender_answers``); a pod that an extender has refused is
tried again at any change of a node or of the pod.
"""

from __future__ import annotations

from typing import Any

from calabash.kubernetes.objects.names import CORES, GPUS, MEMORY, SCHEDULER

FILTER_TIMEOUT_S = 1
BIND_TIMEOUT_S = 60
REQUESTS_PER_S = 1000


def scheduler_configuration(url: str, *, name: str = SCHEDULER, **more: Any) -> dict[str, Any]:
    """Return a KubeSchedulerConfiguration.

    Args:
        url: URL of the planner's extender, "http://127.0.0.1:7070".
        name: name of the scheduler profile.
        more: further fields, ``leaderElection`` for example.
    """
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
        "clientConnection": {"qps": REQUESTS_PER_S, "burst": REQUESTS_PER_S},
        "profiles": [{"schedulerName": name}],
        "extenders": [
            {
                "urlPrefix": url,
                "filterVerb": "filter",
                "preemptVerb": "preempt",
                "nodeCacheCapable": True,
                "httpTimeout": f"{FILTER_TIMEOUT_S}s",
                "ignorable": False,
            },
            {
                "urlPrefix": url,
                "bindVerb": "bind",
                "nodeCacheCapable": True,
                "httpTimeout": f"{BIND_TIMEOUT_S}s",
                "ignorable": False,
            },
            {
                "urlPrefix": url,
                "nodeCacheCapable": True,
                "managedResources": [{"name": asked, "ignoredByScheduler": True} for asked in (GPUS, MEMORY, CORES)],
            },
        ],
        **more,
    }
