"""Configuration of the unmodified kube-scheduler for pods that the planner plans.

The configuration has several entries for one extender, because each entry has one time-out. The time-out of filter is
short; that of bind is long, because bind requests are held until a gang is complete. No entry is ignorable: while the
planner does not answer, pods that request devices wait.

kube-scheduler must not check the resources by which pods request devices, because the planner does. An entry without
verbs names these resources as ignored. The other entries do not name them: an extender entry with resources is asked
only about pods that request these resources.

* Device memory and cores are not part of any node's capacity, so no node would fit.
* The kubelet does count ``calabash.dev/gpus``, and a node has none while its agent is replaced. If kube-scheduler
  itself refused a pod for this, the pod would wait for minutes after the resource is back: NodeResourcesFit tries the
  pod again only if all its resources fit on the node, and here it includes memory and cores, although it ignores them
  elsewhere.

So the planner refuses such a node (``extender_answers``). A pod that an extender has refused is tried again at any
change of a node or of the pod.
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
        more: further top-level fields of the configuration, such as ``leaderElection``.
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
