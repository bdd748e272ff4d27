"""The configuration of the stock kube-scheduler that serves our pods.

Several entries for one extender: the filter's time-out is short, the bind's long, because a gang is held there. Nothing is
ignorable: where the planner does not answer, our pods wait. The nominal resources (memory, cores) are no node's capacity;
an entry that is asked nothing names them, so that kube-scheduler does not look for them. They do not stand in the other
entries, for an entry with resources is asked about pods with these resources only.
"""

from __future__ import annotations

from typing import Any

from calabash.kubernetes.names import CORES, MEMORY, SCHEDULER

FILTER_TIMEOUT_S = 1
BIND_TIMEOUT_S = 60
REQUESTS_PER_S = 1000


def scheduler_configuration(url: str, *, name: str = SCHEDULER, **more: Any) -> dict[str, Any]:
    """A KubeSchedulerConfiguration.

    Args:
        url: where the planner's extender is, "http://127.0.0.1:7070".
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
                "managedResources": [{"name": nominal, "ignoredByScheduler": True} for nominal in (MEMORY, CORES)],
            },
        ],
        **more,
    }
