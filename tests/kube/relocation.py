"""Scenario for both allocation APIs: a pod of a Deployment is moved so that a large pod finds room."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.kube.api import Json
from tests.kube.planned import Planned

NAMESPACE = "moved"


def check_moved(
    planned: Planned, nodes: Sequence[str], *, first: Sequence[Json], web: Json, large: Json, check: Callable[[], None]
) -> None:
    """Check that a pod of a Deployment is moved for ``large``, which needs both devices of one node.

    Each of two nodes with two devices first has one pod of ``first`` and one of the Deployment. Then the pods of
    ``first`` are deleted, and ``large`` is created. At the end ``large`` is the only pod.

    Args:
        planned: the planner's cluster.
        nodes: the two nodes.
        first: one pod for each node.
        web: the pod of the Deployment, which may be moved.
        large: the pod that needs both devices of a node.
        check: called when all pods are bound.
    """
    cluster, api = planned.cluster, planned.api
    planned.create(NAMESPACE, list(first))
    planned.wait_bound(NAMESPACE, 2)
    template = {"metadata": {"labels": {"app": "web"}, **web["metadata"]}, "spec": web["spec"]}
    del template["metadata"]["name"]
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    api.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", {"metadata": {"name": "web"}, "spec": spec})
    before = {name: node for name, node in planned.wait_bound(NAMESPACE, 4).items() if name.startswith("web")}
    for pod in first:
        api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}")
    assert sorted(before.values()) == sorted(nodes)
    planned.create(NAMESPACE, [large])
    cluster.wait_for(
        lambda: "large" in planned.bound(NAMESPACE) and len(planned.bound(NAMESPACE)) == 3, "all have nodes"
    )
    after = planned.bound(NAMESPACE)
    (moved,) = set(before) - set(after)
    (replacement,) = set(after) - set(before) - {"large"}
    assert after["large"] == before[moved]
    assert after[replacement] == next(node for node in nodes if node != before[moved])
    check()
    (said,) = [e for e in api.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"] if e["reason"] == "Moved"]
    assert said["involvedObject"]["name"] == moved
    assert f"moved from {after['large']} to {after[replacement]}" in said["message"]
    api.delete(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/web", {"propagationPolicy": "Foreground"})
    cluster.wait_for(lambda: set(planned.pods(NAMESPACE)) == {"large"}, "the Deployment's end")
