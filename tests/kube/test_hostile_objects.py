"""Tests of hostile objects of a user with the role ``edit`` in one namespace: the planner still serves all other users.

API server, planner and kube-scheduler are real. The user is a service account of the namespace ``mallory``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.kube.api import Json
from tests.kube.cluster import Cluster
from tests.kube.planned import Planned, planned_pod
from tests.kube.planner_faults import resident_mib

from calabash.kubernetes.skipped_objects import REASON
from calabash.model.request import GpuRequest

USER, VICTIM = "mallory", "alice"
STATUS_PORT = 7071
SHARE = GpuRequest(memory_mib=1024, core_percent=5)
WHOLE = GpuRequest()
DEEP = "[" * 1200 + "]" * 1200
CLAIM_PARAMETERS = {
    "deep-lists": '{"a":' + DEEP + "}",
    "deep-maps": '{"a":' * 1200 + "1" + "}" * 1200,
    "surrogate": '{"a":"' + "\\ud800" + '"}',
    "large-number": '{"a":1e300}',
}


@pytest.fixture(scope="module")
def planned(own_control_plane: Cluster) -> Iterator[Planned]:
    options = {"--identity": "first", "--status": f"127.0.0.1:{STATUS_PORT}"}
    with Planned(own_control_plane, 4, 2, prefix="hostile", planner=options) as found:
        for name in (USER, VICTIM):
            found.make_namespace(name)
        account = f"/api/v1/namespaces/{USER}/serviceaccounts"
        found.api.create(account, {"metadata": {"name": USER}})
        binding = {
            "metadata": {"name": "edit"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "name": USER, "namespace": USER}],
        }
        found.api.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{USER}/rolebindings", binding)
        found.cluster.wait_for(lambda: readyz(found)[0] == 200, "the planner leads")
        yield found


@pytest.fixture(autouse=True)
def no_pods(planned: Planned) -> Iterator[None]:
    """Delete all pods after each test."""
    yield
    for namespace in (USER, VICTIM):
        planned.clear(namespace)


PATHS = {
    "ResourceClaim": f"/apis/resource.k8s.io/v1/namespaces/{USER}/resourceclaims",
    "PodDisruptionBudget": f"/apis/policy/v1/namespaces/{USER}/poddisruptionbudgets",
    "Pod": f"/api/v1/namespaces/{USER}/pods",
}


def as_user(planned: Planned, kind: str, text: str) -> None:
    """Create an object as the hostile user; the text is sent to the API server unchanged."""
    user = f"--as=system:serviceaccount:{USER}:{USER}"
    planned.cluster.kubectl(user, "create", "--raw", PATHS[kind], "-f", "-", text=text)


def claim(name: str, parameters: str) -> str:
    return (
        '{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"' + name + '"},'
        '"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"none"}}],'
        '"config":[{"opaque":{"driver":"gpu.example.com","parameters":' + parameters + "}}]}}}"
    )


def ask(planned: Planned, path: str) -> tuple[int, str]:
    """Return the status and the body of the planner's answer to a GET request; (0, "") if it does not answer."""
    try:
        with planned.cluster.namespaces.connect(STATUS_PORT) as line:
            line.settimeout(10)
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: planner\r\nConnection: close\r\n\r\n".encode())
            text = b""
            while part := line.recv(65536):
                text += part
    except OSError:
        return 0, ""
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def scheduled(pod: Json) -> Json:
    """Return the condition that says why a pod waits.

    Its reason is ``SchedulingGated``, which the API server writes, until the planner has written another.
    """
    gated = {"type": "PodScheduled", "reason": "SchedulingGated", "message": ""}
    found: list[Json] = pod.get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == "PodScheduled"), gated)


def readyz(planned: Planned) -> tuple[int, str]:
    return ask(planned, "/readyz")


def events(planned: Planned, namespace: str, reason: str = "") -> list[Json]:
    found = planned.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return [event for event in found if reason in ("", event["reason"])]


def restart_planner(planned: Planned) -> None:
    planned.cluster.restart("planner")
    planned.cluster.wait_for(lambda: readyz(planned)[0] == 200, "the planner leads again")


def test_claims_that_no_decoder_reads_stop_nothing(planned: Planned) -> None:
    """The running planner must continue, and a planner that starts while the claims exist must start."""
    for name, parameters in CLAIM_PARAMETERS.items():
        as_user(planned, "ResourceClaim", claim(name, parameters))
    planned.create(VICTIM, [planned_pod("before-restart", SHARE)])
    planned.wait_bound(VICTIM, 1)
    restart_planner(planned)
    planned.create(VICTIM, [planned_pod("after-restart", SHARE)])
    planned.wait_bound(VICTIM, 2)
    assert "calabash_planner_ready 1" in ask(planned, "/metrics")[1]


def test_budget_and_pods_of_hostile_values_stop_nothing(planned: Planned) -> None:
    """The values are accepted by the API server but extreme: huge quantities, and thousands of labels and selectors."""
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all"},
        "spec": {"maxUnavailable": 0, "selector": {}},
    }
    as_user(planned, "PodDisruptionBudget", json.dumps(budget))
    huge = planned_pod("huge", SHARE)
    huge["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1e15", "example.com/x": "9223372036854775807"}
    huge["spec"]["containers"][0]["resources"]["limits"]["example.com/x"] = "9223372036854775807"
    huge["metadata"]["labels"] = {f"l{number}": "x" * 60 for number in range(3000)}
    as_user(planned, "Pod", json.dumps(huge))
    odd = planned_pod("odd", SHARE)
    odd["spec"]["nodeSelector"] = {f"k{number}": "v" * 63 for number in range(3000)}
    as_user(planned, "Pod", json.dumps(odd))
    planned.create(VICTIM, [planned_pod("beside", SHARE)])
    planned.wait_bound(VICTIM, 1)

    def told() -> str:
        condition = scheduled(planned.pods(USER)["odd"])
        return str(condition["message"]) if condition["reason"] != "SchedulingGated" else ""

    message = planned.cluster.wait_for(told, "a condition of the pod that is too large")
    assert "at most" in message
    assert "hint:" in message
    assert events(planned, VICTIM, REASON) == []


def test_annotations_of_pods_cost_the_planner_no_memory(planned: Planned) -> None:
    """60 pods with 261 KB of annotations each have 15 MiB of text, of which the planner keeps almost nothing."""
    planned.create(
        USER, [planned_pod(f"small-{number}", SHARE, schedulingGates=[{"name": "a.b/c"}]) for number in range(60)]
    )
    planned.cluster.wait_for(lambda: len(planned.pods(USER)) == 60, "small pods")
    restart_planner(planned)
    small = resident_mib(planned.cluster, "planner")
    planned.clear(USER)
    for number in range(60):
        pod = planned_pod(f"large-{number}", SHARE, schedulingGates=[{"name": "a.b/c"}])
        pod["metadata"]["annotations"] |= {f"calabash.dev{number}/{part}": "x" * 1000 for part in range(240)}
        as_user(planned, "Pod", json.dumps(pod))
    restart_planner(planned)
    large = resident_mib(planned.cluster, "planner")
    assert large < small + 40, f"{small:.0f} MiB with small pods, {large:.0f} MiB with large ones"


def test_conditions_and_events_name_nothing_of_other_namespaces(planned: Planned) -> None:
    """Pods and disruption budgets of the victim's namespace have a marker in their names that no other user may see."""
    marker = "marker"
    planned.create(VICTIM, [planned_pod(f"{marker}-{number}", WHOLE) for number in range(8)])
    planned.wait_bound(VICTIM, 8)
    budget = {"metadata": {"name": f"{marker}-budget"}, "spec": {"maxUnavailable": 0, "selector": {}}}
    planned.api.create(f"/apis/policy/v1/namespaces/{VICTIM}/poddisruptionbudgets", budget)
    for number, request in enumerate((WHOLE, SHARE, GpuRequest(priority=100), GpuRequest(count=2))):
        as_user(planned, "Pod", json.dumps(planned_pod(f"p{number}", request)))

    def told() -> bool:
        pods = planned.pods(USER).values()
        return len(pods) == 4 and all(scheduled(pod)["reason"] != "SchedulingGated" for pod in pods)

    planned.cluster.wait_for(told, "why the pods wait")
    planned.cluster.wait_for(lambda: len(events(planned, USER)) >= 4, "their events")
    texts = [json.dumps(pod["status"]) for pod in planned.pods(USER).values()]
    texts += [event.get("message", "") for event in events(planned, USER)]
    for text in texts:
        assert marker not in text
        assert VICTIM not in text
