"""Tests of the server of a cluster: views of pods, devices and queues, their visibility, and refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench._console_session import ConsoleSession
from tests.receiver import receiving
from tests.unit.kubernetes.planner.world import until
from tests.unit.kubernetes.server.served import OFF, SYSTEM, ServedCluster

from calabash.adapters.kube.objects.core import POD
from calabash.adapters.kube.objects.resources import GPU_NODE, QUEUE, TENANT
from calabash.api.gateway import ConsoleSettings
from calabash.api.routes import ROUTES
from calabash.gateway.web.pages import PAGES
from calabash.kubernetes.objects.pod_name import PodName
from calabash.kubernetes.planner.apply.api_writes import ApiWrites
from calabash.kubernetes.planner.state.facts import Report
from calabash.kubernetes.server import run
from calabash.kubernetes.server.run import ClusterProgram
from calabash.kubernetes.server.settings import ClusterOrder, ClusterSettings
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import Message, QueueName
from calabash.platform.http.server import Server
from calabash.platform.notifications.settings import NotificationSettings


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ServedCluster]:
    world = ServedCluster(tmp_path)
    world.start()
    yield world
    world.stop()


def two_tenants(cluster: ServedCluster) -> tuple[str, str]:
    """Create tenants vision and speech with a running pod and a member each; return the tokens of the members."""
    for tenant in ("vision", "speech"):
        cluster.admin.put(f"/v1/tenants/{tenant}", {"guarantee": 1})
        cluster.namespace(f"{tenant}-ns", f"{tenant}.default")
        cluster.running(f"{tenant}-pod", f"{tenant}-ns")
    until(lambda: len(running(cluster)) == 2, "both pods to be seen as running")
    return cluster.member("ann", "vision"), cluster.member("bob", "speech")


def running(cluster: ServedCluster) -> list[Any]:
    return [a for a in cluster.admin.rows("/v1/allocations") if a["state"] == "running"]


def test_pods_are_allocations_of_the_tenant_whose_queue_their_namespace_names(cluster: ServedCluster) -> None:
    two_tenants(cluster)
    (shown,) = [a for a in running(cluster) if a["tenant"] == "vision"]
    assert (shown["queue"], shown["command"], shown["mode"]) == ("vision/default", ["vision-ns/vision-pod"], "vgpu")
    (part,) = shown["slices"]
    assert (part["device"], part["memory_mib"], part["core_percent"], part["core_used_percent"]) == (
        "GPU-a0",
        8192,
        25,
        0.0,
    )
    devices = cluster.admin.get("/v1/devices")["items"]
    assert [(d["index"], d["node"], d["uuid"]) for d in devices] == [
        (0, "a", "GPU-a0"), (1, "a", "GPU-a1"), (2, "b", "GPU-b0"), (3, "b", "GPU-b1"),
    ]  # fmt: skip
    assert (devices[0]["memory_allocated_mib"], devices[0]["memory_free_mib"]) == (16384, 24576)
    assert cluster.admin.get("/v1/devices/3")["device"]["uuid"] == "GPU-b1"
    seen = cluster.admin.get("/v1/overview")
    assert (seen["devices"], seen["allocations"], seen["given"]) == (4, 2, 0.5)


def test_a_tenant_sees_its_own_and_nothing_of_another(cluster: ServedCluster) -> None:
    ann, bob = two_tenants(cluster)
    # The planner writes the condition for readers of the pod's namespace; the API shows that very text.
    condition = "0/2 nodes are available: 2 insufficient GPU memory, 2 pods of other namespaces hold devices"
    waiting = cluster.pod("more", "vision-ns", waits=condition)
    until(lambda: len(cluster.admin.rows("/v1/allocations")) == 3, "the waiting pod to be seen")
    for token, mine, other in ((ann, "vision", "speech"), (bob, "speech", "vision")):
        for path in ("/v1/allocations", "/v1/tenants", "/v1/queues", "/v1/quota", "/v1/devices", "/v1/events"):
            status, answer = cluster.ask(token, "GET", path)
            assert status == 200
            assert other not in str(answer), path
        _, shown = cluster.ask(token, "GET", "/v1/allocations")
        assert {a["tenant"] for a in shown["items"]} == {mine}
    _, why = cluster.ask(ann, "GET", f"/v1/allocations/{waiting.metadata.uid}/why")
    assert (why["state"], why["reason"]) == ("pending", "no_capacity")
    assert why["explanation"] == condition
    status, refused = cluster.ask(bob, "GET", f"/v1/allocations/{waiting.metadata.uid}/why")
    assert (status, refused["reason"]) == (404, "not_found")


def test_queues_in_the_planners_message_have_the_names_that_users_see(cluster: ServedCluster) -> None:
    ann, _ = two_tenants(cluster)
    pod = cluster.pod("more", "vision-ns").metadata
    name = PodName(uid=pod.uid, namespace="vision-ns", name="more")
    message = Message("queue {queue} uses 1 of 1, vision.default does not", queue=QueueName("vision.default"))

    def explanation() -> str:
        return str(cluster.ask(ann, "GET", f"/v1/allocations/{pod.uid}/why")[1].get("explanation", ""))

    until(lambda: explanation() == "it waits for its plan", "the pod")
    ApiWrites(cluster.kube).report(Report(pod=name, reason=Reason.NO_CAPACITY, message=message))
    until(lambda: explanation() == "queue vision/default uses 1 of 1, vision.default does not", "the explanation")
    written = cluster.kube.get(POD, "more", "vision-ns")
    assert written is not None
    messages = {c.type: c.message for c in written.status.conditions}
    assert messages["PodScheduled"] == "queue vision.default uses 1 of 1, vision.default does not"
    ApiWrites(cluster.kube).report(Report(pod=name, reason=Reason.NO_MEMORY, message="node vision.default is full"))
    until(lambda: explanation() == "node vision.default is full", "a later message, which is not that of the condition")


def test_pods_of_no_tenant_are_seen_by_the_platform_only(cluster: ServedCluster) -> None:
    ann, _ = two_tenants(cluster)
    cluster.running("lone", "team")
    until(lambda: len(running(cluster)) == 3, "the third pod")
    assert len(cluster.ask(ann, "GET", "/v1/allocations")[1]["items"]) == 1


def test_without_a_token_that_is_known_nobody_is_answered(cluster: ServedCluster) -> None:
    status, answer = cluster.ask("cal_abc_def", "GET", "/v1/allocations")
    assert (status, answer["reason"]) == (401, "not_authenticated")


def test_a_tenant_of_the_api_is_an_object_with_its_queues(cluster: ServedCluster) -> None:
    cluster.admin.put("/v1/tenants/vision", {"guarantee": 4, "limit": 8, "budget": "5000EUR"})
    cluster.admin.put("/v1/tenants/vision/projects/train", {"guarantee": 3})
    made = cluster.tenant("vision")
    assert made is not None
    assert (made.spec.guarantee, made.spec.limit, made.spec.budget) == (4.0, 8.0, "5000EUR")
    assert [(p.name, p.guarantee) for p in made.spec.projects] == [("train", 3.0)]
    wanted = {"vision": ("", 4.0, 8.0), "vision.default": ("vision", 1.0, None), "vision.train": ("vision", 3.0, None)}
    until(lambda: cluster.queues() == wanted, "the queues")
    until(lambda: ready(cluster, "vision") == ("True", ""), "its status")
    cluster.admin.put("/v1/tenants/vision", {"limit": None})
    until(lambda: cluster.queues()["vision"] == ("", 4.0, None), "the limit to be gone")
    cluster.admin.delete("/v1/tenants/vision/projects/train")
    until(lambda: set(cluster.queues()) == {"vision", "vision.default"}, "the project's queue to be gone")
    cluster.admin.delete("/v1/tenants/vision")
    assert cluster.tenant("vision") is None
    until(lambda: cluster.queues() == {}, "all queues to be gone")


def test_queue_of_the_api_that_would_be_below_the_last_level_is_refused_and_not_written(cluster: ServedCluster) -> None:
    for i in range(1, 33):
        parent = f"c{i - 1}" if i > 1 else ""
        cluster.kube.create(QUEUE, {"metadata": {"name": f"c{i}"}, "spec": {"parent": parent}})

    def shown() -> set[str]:
        return {queue["name"] for queue in cluster.admin.rows("/v1/queues")}

    until(lambda: shown() >= {f"c{i}" for i in range(1, 33)}, "the queues")
    with pytest.raises(CalabashError, match="queue c33 is at level 33 of the queue tree, the limit is 32"):
        cluster.admin.put("/v1/queues/c33", {"parent": "c32"})
    cluster.admin.put("/v1/queues/top", {})
    until(lambda: "top" in shown(), "the queue")
    with pytest.raises(CalabashError, match="queue c32 is at level 33"):
        cluster.admin.put("/v1/queues/c1", {"parent": "top"})
    assert "c33" not in cluster.queues()
    assert cluster.queues()["c1"] == ("", 0.0, None)


def ready(cluster: ServedCluster, name: str) -> tuple[str, str]:
    found = cluster.tenant(name)
    conditions = found.status.conditions if found is not None else ()
    return next(((c.status, c.message) for c in conditions if c.type == "Ready"), ("", ""))


def test_a_tenant_of_kubectl_is_seen_in_the_api_and_its_members_go_with_it(cluster: ServedCluster) -> None:
    cluster.kube.create(TENANT, {"metadata": {"name": "vision"}, "spec": {"guarantee": 2, "projects": [{"name": "p"}]}})
    until(lambda: [t["name"] for t in cluster.admin.rows("/v1/tenants")] == ["vision"], "the tenant")
    until(lambda: set(cluster.queues()) == {"vision", "vision.default", "vision.p"}, "its queues")
    token = cluster.member("ann", "vision")
    assert cluster.ask(token, "GET", "/v1/me")[1]["tenants"] == ["vision"]
    until(lambda: len(cluster.admin.get("/v1/quota")["items"]) == 3, "quota")
    assert {q["queue"]: q["guarantee"] for q in cluster.admin.get("/v1/quota")["items"]}["vision"] == 2.0
    cluster.kube.delete(TENANT, "vision")
    until(lambda: cluster.ask(token, "GET", "/v1/me")[1]["tenants"] == [], "the membership to be gone")
    until(lambda: cluster.queues() == {}, "its queues to be gone")


def test_what_was_kept_is_there_again_after_a_restart(cluster: ServedCluster) -> None:
    cluster.admin.put("/v1/tenants/vision", {"guarantee": 1})
    token = cluster.member("ann", "vision")
    cluster.stop()
    cluster.kube.patch(TENANT, "vision", body={"spec": {"guarantee": 3}})
    cluster.start()
    assert cluster.ask(token, "GET", "/v1/me")[1]["tenants"] == ["vision"]
    assert cluster.admin.get("/v1/tenants/vision")["guarantee"] == 3.0


def test_a_tenant_with_pods_stays(cluster: ServedCluster) -> None:
    two_tenants(cluster)
    with pytest.raises(CalabashError, match="tenant vision has 1 pod") as refused:
        cluster.admin.delete("/v1/tenants/vision")
    assert refused.value.reason is Reason.CONFLICT
    assert cluster.tenant("vision") is not None
    cluster.kube.delete(POD, "vision-pod", "vision-ns", grace_s=0)
    until(lambda: len(running(cluster)) == 1, "the pod to be gone")
    cluster.admin.delete("/v1/tenants/vision")


def test_a_queue_of_another_owner_is_not_taken_over(cluster: ServedCluster) -> None:
    cluster.kube.create(QUEUE, {"metadata": {"name": "vision"}, "spec": {"deserved": 1}})
    cluster.kube.create(TENANT, {"metadata": {"name": "vision"}, "spec": {"guarantee": 2}})
    until(lambda: ready(cluster, "vision")[0] == "False", "its status")
    assert "queue vision is there already" in ready(cluster, "vision")[1]
    assert cluster.queues() == {"vision": ("", 1.0, None)}


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/tenants/Vision", {}, Reason.BAD_REQUEST),
        ("/v1/tenants/a.b", {}, Reason.BAD_REQUEST),
        ("/v1/tenants/default", {}, Reason.BAD_REQUEST),
        ("/v1/tenants/vision", {"modes": ["mig"]}, Reason.UNSUPPORTED),
        ("/v1/tenants/vision", {"groups": ["staff"]}, Reason.UNSUPPORTED),
        ("/v1/tenants/vision", {"guarantee": 4, "limit": 2}, Reason.BAD_REQUEST),
    ],
)
def test_a_tenant_that_cannot_be_is_refused(cluster: ServedCluster, path: str, body: Any, reason: Reason) -> None:
    with pytest.raises(CalabashError) as refused:
        cluster.admin.put(path, body)
    assert refused.value.reason is reason
    assert cluster.kube.list(TENANT).items == ()


def test_queues_that_are_no_tenants_are_objects_too(cluster: ServedCluster) -> None:
    cluster.admin.put("/v1/queues/batch", {"deserved": 2, "limit": 4})
    until(lambda: cluster.queues().get("batch") == ("", 2.0, 4.0), "the queue")
    until(lambda: "batch" in {q["name"] for q in cluster.admin.rows("/v1/queues")}, "the mirror")
    cluster.admin.delete("/v1/queues/batch")
    assert "batch" not in cluster.queues()
    cluster.admin.put("/v1/tenants/vision", {})
    until(lambda: "vision.default" in cluster.queues(), "the tenant's queue")
    with pytest.raises(CalabashError, match="belongs to tenant vision"):
        cluster.admin.put("/v1/queues/vision.default", {"deserved": 9})


def test_subscribers_are_notified_that_a_device_has_failed(tmp_path: Path) -> None:
    world = ServedCluster(tmp_path)
    with receiving() as receiver:
        world.start(ClusterSettings(console=OFF.console, notifications=NotificationSettings(allow=["127.0.0.0/8"])))
        try:
            world.admin.put("/v1/notifications/hook", {"webhook": receiver.url, "kinds": ["device-failed"]})
            world.running("first", "team")
            until(lambda: world.admin.get("/v1/events")["items"], "what happens to be looked at")
            world.devices("b", health="lost")
            until(lambda: receiver.taken, "the notice", timeout_s=60)
            assert b"of node b is lost" in receiver.taken[0][1]
        finally:
            world.stop()


def test_an_operator_drains_a_device_and_puts_it_back(cluster: ServedCluster) -> None:
    cluster.admin.put("/v1/tenants/vision", {})
    token = cluster.member("ann", "vision")
    assert cluster.ask(token, "POST", "/v1/devices/3/drain", {})[0] == 403
    detail = cluster.admin.post("/v1/devices/3/drain", {"reason": "fan"})
    assert (detail["drained"], detail["drained_why"], detail["device"]["uuid"]) == (True, "fan", "GPU-b1")
    assert cluster.admin.post("/v1/devices/GPU-b1/undrain")["drained"] is False
    node = cluster.kube.get(GPU_NODE, "b")
    assert node is not None
    order = node.spec.devices["GPU-b1"].order
    assert order is not None
    assert order.what == "undrain"
    with pytest.raises(CalabashError, match="cannot be evicted from a device"):
        cluster.admin.post("/v1/devices/3/drain", {"evict": True})


def test_a_tenant_is_told_of_its_pod_that_waits(tmp_path: Path) -> None:
    world = ServedCluster(tmp_path)
    told = NotificationSettings(allow=["127.0.0.1"], waiting_minutes=1e-6)
    world.start(msgspec.structs.replace(OFF, notifications=told))
    try:
        with receiving() as receiver:
            ann, _ = two_tenants(world)
            waiting = world.pod("more", "vision-ns", waits="it waits")
            until(lambda: len(world.admin.rows("/v1/allocations")) == 3, "the waiting pod to be seen")
            world.admin.put("/v1/members", {"user": "ann", "tenant": "vision", "role": "tenant-admin"})
            status, made = world.ask(ann, "PUT", "/v1/notifications/hook", {"webhook": receiver.url})
            assert (status, made["tenant"]) == (200, "vision")
            until(lambda: receiver.taken, "the notice")
            (told_of,) = [json.loads(body) for _, body in receiver.taken]
            assert (told_of["type"], told_of["data"]["tenant"]) == ("waiting-long", "vision")
            assert told_of["data"]["about"] == waiting.metadata.uid
    finally:
        world.stop()


def test_every_route_is_answered_or_refused_with_what_to_do_instead(cluster: ServedCluster) -> None:
    token = cluster.admin.post("/v1/tokens", {"note": "all"})["secret"]
    unserved = set()
    for known in ROUTES:
        if known.path == "/v1/sessions/current":
            continue  # it would revoke the token of this test
        path = known.path.replace("{name}", "x").replace("{device}", "0").replace("{", "").replace("}", "")
        status, answer = cluster.ask(token, known.method, path, {} if known.method in {"PUT", "POST"} else None)
        assert status < 500, (known.name, answer)
        if status >= 400 and answer["reason"] == "unsupported":
            assert answer["hint"], known.name
            unserved.add(known.path.split("/")[2])
    assert {"allocations", "mig", "simulator", "shutdown", "scenario", "counters"} <= unserved
    assert unserved.isdisjoint(
        {"tenants", "users", "tokens", "usage", "quota", "me", "audit", "overview", "queues", "notifications"}
    )


def test_what_happens_to_pods_is_in_the_journal_and_who_changed_what_in_the_audit_log(cluster: ServedCluster) -> None:
    ann, _ = two_tenants(cluster)

    def told(kind: str) -> list[str]:
        events = cluster.admin.get("/v1/events")["items"]
        return [e["message"] for e in events if e["kind"] == kind]

    until(lambda: len(told("running")) == 2, "both to be told as running")
    cluster.kube.delete(POD, "vision-pod", "vision-ns", grace_s=0)
    until(lambda: told("released"), "the event")
    assert told("released") == ["pod vision-ns/vision-pod on node a"]
    lines = cluster.admin.get("/v1/audit")["items"]
    assert ("PUT", "/v1/tenants/vision", 200) in {(line["action"], line["target"], line["outcome"]) for line in lines}
    assert cluster.ask(ann, "GET", "/v1/audit")[0] == 403


def test_of_two_servers_one_serves(cluster: ServedCluster, tmp_path: Path) -> None:
    home = tmp_path / "second"
    database = f"sqlite:///{home / 'pool.db'}"
    second = ClusterProgram(
        cluster.kube, ClusterOrder(home=home, namespace=SYSTEM, database=database, settings=OFF, identity="two")
    )
    thread = threading.Thread(target=second.run, daemon=True)
    thread.start()
    until((home / "pool.db").exists, "the second to have begun")
    assert not (home / "pool.sock").exists()
    cluster.stop()
    until((home / "pool.sock").exists, "the second to serve when the first has ended")
    second.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_server_that_is_stopped_before_it_serves_ends(
    cluster: ServedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "stopped"
    database = f"sqlite:///{home / 'pool.db'}"
    order = ClusterOrder(home=home, namespace=SYSTEM, database=database, settings=OFF, identity="two")
    program = ClusterProgram(cluster.kube, order)

    def stopping(*parts: Any) -> Server:
        program.stop()
        return sockets(*parts)

    sockets = run._sockets
    monkeypatch.setattr(run, "_sockets", stopping)
    cluster.stop()
    thread = threading.Thread(target=program.run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_every_page_of_the_console_is_drawn_for_a_cluster(tmp_path: Path) -> None:
    world = ServedCluster(tmp_path)
    world.start(ClusterSettings(console=ConsoleSettings(listen="127.0.0.1:0")))
    try:
        two_tenants(world)
        waiting = world.pod("more", "vision-ns", waits="0 of 4 devices have room")
        until(lambda: len(world.admin.rows("/v1/allocations")) == 3, "the waiting pod to be seen")
        host, _, port = world.admin.get("/v1/status")["console"].removeprefix("http://").rpartition(":")
        session = ConsoleSession.begun((host, int(port)), world.admin.post("/v1/tokens", {"login": True})["secret"])
        some = {"/devices": "0", "/tenants": "vision", "/workloads": waiting.metadata.uid}
        drawn: dict[str, str] = {}
        statuses: dict[str, int] = {}
        for page in PAGES:
            above, _, name = page.path.partition("/{")
            if not name or above in some:
                reply = session.ask("GET", f"{above}/{some[above]}" if name else page.path)
                drawn[page.path] = reply.content.decode()
                statuses[page.path] = reply.status
        assert {path: status for path, status in statuses.items() if status != 200} == {
            "/simulator": 409,
            "/jobs": 409,
        }
        assert "not served by a cluster" in drawn["/simulator"]
        assert "vision-ns/vision-pod" in drawn["/workloads"]
        assert "0 of 4 devices have room" in drawn["/waiting"]
        assert "vision/default" in drawn["/queues"]
    finally:
        world.stop()
