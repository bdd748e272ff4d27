"""A large pod comes, and one of a Deployment is moved so that it finds room: the same for either door."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.kube.api import Json
from tests.kube.planned import Planned

NAMESPACE = "moved"


def check_moved(
    planned: Planned, nodes: Sequence[str], *, first: Sequence[Json], web: Json, large: Json, check: Callable[[], None]
) -> None:
    """Of two nodes of two devices each loses the one of ``first``, beside which there is one of the Deployment; ``large`` asks
    for both devices of one. ``large`` alone is left.

    Args:
        web: a pod of the Deployment, which may be moved.
        check: what has to hold while all have their places.
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
    (heir,) = set(after) - set(before) - {"large"}
    assert after["large"] == before[moved]
    assert after[heir] == next(node for node in nodes if node != before[moved])
    check()
    (said,) = [e for e in api.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"] if e["reason"] == "Moved"]
    assert said["involvedObject"]["name"] == moved
    assert f"moved from {after['large']} to {after[heir]}" in said["message"]
    api.delete(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/web", {"propagationPolicy": "Foreground"})
    cluster.wait_for(lambda: set(planned.pods(NAMESPACE)) == {"large"}, "the Deployment's end")
