"""Contract of ``KubeClient``: the API server in memory, and the real one if it can be started."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from calabash.adapters.kube import (
    EvictedAs,
    KubeClient,
    KubeError,
    Mirror,
    MirrorChange,
    WatchEventType,
    load_client,
)
from calabash.adapters.kube.objects.core import CONFIG_MAP, LEASE, NAMESPACE, NODE, PDB, POD, ConfigMap, Pod
from calabash.adapters.kube.objects.groups import VOLCANO_GROUP
from calabash.adapters.kube.objects.meta import Kind, ObjectMeta
from calabash.model.errors import Reason
from calabash_testing.api_server.client import MemoryKube

WAIT_S = 60.0


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.system)])
def kube(request: pytest.FixtureRequest) -> KubeClient:
    """Return a client of an API server."""
    if request.param == "memory":
        return MemoryKube()
    return load_client(request.getfixturevalue("control_plane").kubeconfig)


@pytest.fixture
def space(kube: KubeClient) -> Iterator[str]:
    """Create a namespace for the test."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kube.create(NAMESPACE, {"metadata": {"name": name}})
    yield name
    for pod in kube.list(POD, name).items:
        kube.delete(POD, pod.metadata.name, name, grace_s=0)
    kube.delete(NAMESPACE, name)


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """Return a pod that needs no service account."""
    containers = [{"name": "main", "image": "none.invalid/none"}]
    plain = {"containers": containers, "automountServiceAccountToken": False, "schedulerName": "nobody"}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": plain | spec}


def make(kube: KubeClient, space: str, name: str = "a", **spec: Any) -> Pod:
    """Create a pod; retry while a new namespace lacks its service account."""
    made: Pod = eventually(lambda: kube.create(POD, pod(name, **spec), space), KubeError)
    return made


def eventually(act: Callable[[], Any], refusal: type[Exception] = AssertionError) -> Any:
    """Return the result of ``act`` once it no longer raises ``refusal``."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return act()
        except refusal:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def settings(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name), data=data)


def test_created_object_is_found_with_its_uid(kube: KubeClient, space: str) -> None:
    made = kube.create(CONFIG_MAP, settings("a", k="v"), space)
    assert made.metadata.uid
    assert made.metadata.creation_timestamp
    assert kube.get(CONFIG_MAP, "a", space) == made
    assert kube.get(CONFIG_MAP, "b", space) is None


def test_a_name_that_exists_is_a_conflict(kube: KubeClient, space: str) -> None:
    kube.create(CONFIG_MAP, settings("a"), space)
    with pytest.raises(KubeError) as caught:
        kube.create(CONFIG_MAP, settings("a"), space)
    assert (caught.value.reason, caught.value.cause) == (Reason.CONFLICT, "AlreadyExists")


def test_generated_name_is_returned(kube: KubeClient, space: str) -> None:
    made = kube.create(CONFIG_MAP, {"metadata": {"generateName": "a-"}}, space)
    assert made.metadata.name.startswith("a-")
    assert len(made.metadata.name) > 2


def test_lists_hold_what_the_selectors_match(kube: KubeClient, space: str) -> None:
    for name in ("a", "b", "c"):
        make(kube, space, name)

    def names(**chosen: str) -> list[str]:
        return [p.metadata.name for p in kube.list(POD, space, **chosen).items]

    assert names() == ["a", "b", "c"]
    assert names(label_selector="app in (a,c)") == ["a", "c"]
    assert names(label_selector="app!=a") == ["b", "c"]
    assert names(label_selector="!app") == []
    assert names(field_selector="metadata.name=b") == ["b"]
    assert names(field_selector="spec.nodeName=") == ["a", "b", "c"]
    assert names(field_selector="spec.nodeName=x,spec.schedulerName=nobody") == []
    assert {p.metadata.name for p in kube.list(POD).items if p.metadata.namespace == space} == {"a", "b", "c"}


def test_a_list_of_more_than_one_page_is_whole(kube: KubeClient, space: str) -> None:
    for number in range(620):
        kube.create(CONFIG_MAP, settings(f"n{number:04}"), space)
    pages = list(kube.pages(CONFIG_MAP, space, field_selector="metadata.name!=kube-root-ca.crt"))
    assert [len(page.items) for page in pages] == [500, 120]
    assert len({page.resource_version for page in pages}) == 1
    assert len(kube.list(CONFIG_MAP, space, field_selector="metadata.name!=kube-root-ca.crt").items) == 620


def test_kind_that_is_not_installed_has_an_error_of_its_own(kube: KubeClient) -> None:
    if isinstance(kube, MemoryKube):
        kube.faults.absent.add("podgroups")
    assert kube.serves(POD)
    assert kube.serves(PDB)
    assert not kube.serves(VOLCANO_GROUP)
    with pytest.raises(KubeError) as caught:
        kube.list(VOLCANO_GROUP)
    assert caught.value.reason is Reason.NOT_FOUND


def test_a_merge_patch_changes_what_it_names_and_removes_what_it_nulls(kube: KubeClient, space: str) -> None:
    kube.create(CONFIG_MAP, settings("a", k="v", gone="x"), space)
    body = {"metadata": {"annotations": {"n": "1"}}, "data": {"gone": None, "new": "y"}}
    changed = kube.patch(CONFIG_MAP, "a", space, body=body)
    assert changed.data == {"k": "v", "new": "y"}
    assert changed.metadata.annotations == {"n": "1"}


def test_a_patch_of_another_version_or_object_is_a_conflict(kube: KubeClient, space: str) -> None:
    first = kube.create(CONFIG_MAP, settings("a"), space)
    version = {"resourceVersion": first.metadata.resource_version}
    kube.patch(CONFIG_MAP, "a", space, body={"metadata": version, "data": {"k": "1"}})
    for meta in (version, {"uid": str(uuid.uuid4())}):
        with pytest.raises(KubeError) as caught:
            kube.patch(CONFIG_MAP, "a", space, body={"metadata": meta, "data": {"k": "2"}})
        assert caught.value.reason is Reason.CONFLICT
    found = kube.get(CONFIG_MAP, "a", space)
    assert found is not None
    assert found.data == {"k": "1"}


def test_a_patch_of_nothing_is_not_found(kube: KubeClient, space: str) -> None:
    with pytest.raises(KubeError) as caught:
        kube.patch(CONFIG_MAP, "a", space, body={"data": {"k": "2"}})
    assert caught.value.reason is Reason.NOT_FOUND


def test_a_patch_that_changes_nothing_makes_no_new_version(kube: KubeClient, space: str) -> None:
    first = kube.create(CONFIG_MAP, settings("a", k="1"), space)
    again = kube.patch(CONFIG_MAP, "a", space, body={"data": {"k": "1"}})
    assert again.metadata.resource_version == first.metadata.resource_version


def test_a_json_patch_tests_before_it_changes(kube: KubeClient, space: str) -> None:
    kube.create(CONFIG_MAP, settings("a", k="v"), space)
    change = [{"op": "test", "path": "/data/k", "value": "v"}, {"op": "replace", "path": "/data/k", "value": "w"}]
    assert kube.patch(CONFIG_MAP, "a", space, body=change, style="json").data == {"k": "w"}
    with pytest.raises(KubeError) as caught:
        kube.patch(CONFIG_MAP, "a", space, body=change, style="json")
    assert caught.value.reason is Reason.BAD_REQUEST


def test_a_gate_is_taken_off_together_with_an_annotation(kube: KubeClient, space: str) -> None:
    gates = [{"name": "x/one"}, {"name": "x/two"}]
    assert len(make(kube, space, schedulingGates=gates).spec.scheduling_gates) == 2
    body = {
        "metadata": {"annotations": {"x/plan": "{}"}},
        "spec": {"schedulingGates": [{"$patch": "delete", "name": "x/one"}]},
    }
    changed = kube.patch(POD, "a", space, body=body, style="strategic")
    assert [gate.name for gate in changed.spec.scheduling_gates] == ["x/two"]
    assert changed.metadata.annotations == {"x/plan": "{}"}
    changed = kube.patch(POD, "a", space, body={"spec": {"schedulingGates": None}})
    assert changed.spec.scheduling_gates == ()
    with pytest.raises(KubeError) as caught:
        kube.patch(POD, "a", space, body={"spec": {"schedulingGates": [{"name": "x/one"}]}})
    assert caught.value.reason is Reason.BAD_REQUEST


def test_status_is_changed_only_through_its_own_path(kube: KubeClient, space: str) -> None:
    make(kube, space)
    body = {"status": {"nominatedNodeName": "n1"}, "metadata": {"annotations": {"k": "v"}}}
    beside = kube.patch(POD, "a", space, body=body)
    assert beside.status.nominated_node_name == ""
    assert beside.metadata.annotations == {"k": "v"}
    inside = kube.patch(POD, "a", space, body={"status": {"nominatedNodeName": "n1"}}, subresource="status")
    assert inside.status.nominated_node_name == "n1"
    assert inside.metadata.annotations == {"k": "v"}


def test_conditions_are_merged_by_type_in_a_strategic_patch(kube: KubeClient, space: str) -> None:
    make(kube, space)
    for kind, status in (("x.dev/A", "True"), ("x.dev/B", "True"), ("x.dev/A", "False")):
        condition = {"type": kind, "status": status, "lastTransitionTime": "2026-01-02T03:04:05Z"}
        changed = kube.patch(
            POD, "a", space, body={"status": {"conditions": [condition]}}, style="strategic", subresource="status"
        )
    found = {c.type: c.status for c in changed.status.conditions}
    assert (found["x.dev/A"], found["x.dev/B"]) == ("False", "True")


def test_apply_makes_an_object_and_later_removes_what_is_no_longer_wanted(kube: KubeClient, space: str) -> None:

    def apply(manager: str, **data: str) -> ConfigMap:
        return kube.patch(CONFIG_MAP, "a", space, body={"data": data}, style="apply", field_manager=manager)

    assert apply("one", a="1", b="1").data == {"a": "1", "b": "1"}
    assert apply("two", c="2").data == {"a": "1", "b": "1", "c": "2"}
    assert apply("one", a="9").data == {"a": "9", "c": "2"}
    with pytest.raises(KubeError):
        kube.patch(CONFIG_MAP, "a", space, body={"data": {}}, style="apply")


def test_delete_returns_true_only_if_the_object_existed(kube: KubeClient, space: str) -> None:
    made = kube.create(CONFIG_MAP, settings("a"), space)
    assert not kube.delete(CONFIG_MAP, "a", space, uid=str(uuid.uuid4()))
    assert kube.delete(CONFIG_MAP, "a", space, uid=made.metadata.uid)
    assert not kube.delete(CONFIG_MAP, "a", space)


def test_finalizer_keeps_a_deleted_object(kube: KubeClient, space: str) -> None:
    kube.create(CONFIG_MAP, {"metadata": {"name": "a", "finalizers": ["x.dev/hold"]}}, space)
    assert kube.delete(CONFIG_MAP, "a", space)
    held = kube.get(CONFIG_MAP, "a", space)
    assert held is not None
    assert held.metadata.deletion_timestamp
    kube.patch(CONFIG_MAP, "a", space, body={"metadata": {"finalizers": None}})
    assert kube.get(CONFIG_MAP, "a", space) is None


def test_a_pod_is_bound_once_and_only_the_one_that_was_meant(kube: KubeClient, space: str) -> None:
    made = make(kube, space)
    with pytest.raises(KubeError) as caught:
        kube.bind(space, "a", str(uuid.uuid4()), "n1")
    assert caught.value.reason is Reason.CONFLICT
    kube.bind(space, "a", made.metadata.uid, "n1")
    found = kube.get(POD, "a", space)
    assert found is not None
    assert found.spec.node_name == "n1"
    assert {c.type: c.status for c in found.status.conditions}["PodScheduled"] == "True"
    for node in ("n1", "n2"):
        with pytest.raises(KubeError) as caught:
            kube.bind(space, "a", made.metadata.uid, node)
        assert caught.value.reason is Reason.CONFLICT
    with pytest.raises(KubeError) as caught:
        kube.bind(space, "absent", "", "n1")
    assert caught.value.reason is Reason.NOT_FOUND


def test_a_binding_carries_annotations_which_come_with_the_node_or_not_at_all(kube: KubeClient, space: str) -> None:
    made = kube.create(
        POD, pod("a") | {"metadata": {"name": "a", "annotations": {"x.dev/a": "1", "x.dev/b": "1"}}}, space
    )
    kube.bind(space, "a", made.metadata.uid, "n1", annotations={"x.dev/b": "2", "x.dev/c": "2"})
    with pytest.raises(KubeError):
        kube.bind(space, "a", made.metadata.uid, "n1", annotations={"x.dev/b": "3"})
    found = kube.get(POD, "a", space)
    assert found is not None
    assert (found.spec.node_name, found.metadata.annotations) == (
        "n1",
        {"x.dev/a": "1", "x.dev/b": "2", "x.dev/c": "2"},
    )


def test_a_gated_pod_is_not_bound(kube: KubeClient, space: str) -> None:
    made = make(kube, space, schedulingGates=[{"name": "x/one"}])
    with pytest.raises(KubeError) as caught:
        kube.bind(space, "a", made.metadata.uid, "n1")
    assert caught.value.reason is Reason.CONFLICT


def test_a_pod_on_a_node_is_deleted_with_grace_and_one_without_at_once(kube: KubeClient, space: str) -> None:
    bound, waiting = make(kube, space, "a"), make(kube, space, "b")
    kube.bind(space, "a", bound.metadata.uid, "n1")
    assert kube.delete(POD, "a", space)
    assert kube.delete(POD, "b", space, uid=waiting.metadata.uid)
    held = kube.get(POD, "a", space)
    assert held is not None
    assert held.metadata.deletion_grace_period_seconds == 30
    assert kube.get(POD, "b", space) is None
    assert kube.delete(POD, "a", space, grace_s=0)
    assert kube.get(POD, "a", space) is None


def test_eviction_respects_the_disruption_budget(kube: KubeClient, space: str) -> None:
    made = make(kube, space)
    kube.bind(space, "a", made.metadata.uid, "n1")
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    kube.patch(POD, "a", space, body={"status": ready}, style="strategic", subresource="status")
    assert kube.evict(space, "a", str(uuid.uuid4())).as_ is EvictedAs.GONE
    budget = {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}, "metadata": {"name": "b"}}
    kube.create(PDB, budget, space)
    answer = kube.evict(space, "a", made.metadata.uid)
    assert answer.as_ is EvictedAs.BLOCKED
    assert "b" in answer.message
    kube.delete(PDB, "b", space)
    assert eventually(lambda: _evicted(kube, space, made.metadata.uid)).as_ is EvictedAs.OK
    held = kube.get(POD, "a", space)
    assert held is not None
    assert held.metadata.deletion_timestamp
    assert kube.evict(space, "absent", "").as_ is EvictedAs.GONE


def _evicted(kube: KubeClient, space: str, uid: str) -> Any:
    answer = kube.evict(space, "a", uid)
    assert answer.as_ is EvictedAs.OK
    return answer


def test_watch_reports_changes_after_the_list(kube: KubeClient, space: str) -> None:
    kube.create(CONFIG_MAP, settings("before"), space)
    version = kube.list(CONFIG_MAP, space).resource_version
    watch = kube.watch(CONFIG_MAP, version, space, field_selector="metadata.name!=kube-root-ca.crt")
    kube.create(CONFIG_MAP, settings("a"), space)
    kube.patch(CONFIG_MAP, "a", space, body={"data": {"k": "1"}})
    kube.delete(CONFIG_MAP, "a", space)
    seen: list[tuple[str, dict[str, str]]] = []
    versions = []
    for event in watch:
        if event.object is not None:
            seen.append((event.type.value, event.object.data))
            versions.append(int(event.resource_version))
        if len(seen) == 3:
            watch.close()
    assert seen == [("ADDED", {}), ("MODIFIED", {"k": "1"}), ("DELETED", {"k": "1"})]
    assert versions == sorted(set(versions))


def test_object_that_no_longer_matches_is_reported_as_deleted(kube: KubeClient, space: str) -> None:
    make(kube, space)
    version = kube.list(POD, space).resource_version
    watch = kube.watch(POD, version, space, label_selector="app=a")
    kube.patch(POD, "a", space, body={"metadata": {"labels": {"app": "b"}}})
    kube.patch(POD, "a", space, body={"metadata": {"labels": {"app": "a"}}})
    events = iter(watch)
    types = [next(event.type for event in events if event.object is not None) for _ in range(2)]
    watch.close()
    assert types == [WatchEventType.DELETED, WatchEventType.ADDED]


def test_a_watch_that_waits_ends_when_it_is_closed_from_elsewhere(kube: KubeClient, space: str) -> None:
    watch = kube.watch(CONFIG_MAP, kube.list(CONFIG_MAP, space).resource_version, space)
    ended = threading.Event()

    def read() -> None:
        for _ in watch:
            pass
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    watch.close()
    watch.close()
    assert ended.wait(WAIT_S)
    thread.join()


def test_a_lease_is_taken_by_one_of_two(kube: KubeClient, space: str) -> None:
    made = kube.create(LEASE, {"metadata": {"name": "leader"}, "spec": {"holderIdentity": ""}}, space)
    for name, wins in (("one", True), ("two", False)):
        body = {
            "metadata": {"resourceVersion": made.metadata.resource_version},
            "spec": {"holderIdentity": name, "renewTime": "2026-01-02T03:04:05.000000Z"},
        }
        if wins:
            assert kube.patch(LEASE, "leader", space, body=body).spec.holder_identity == name
        else:
            with pytest.raises(KubeError) as caught:
                kube.patch(LEASE, "leader", space, body=body)
            assert caught.value.reason is Reason.CONFLICT


def test_mirror_holds_all_objects_and_reports_every_change(kube: KubeClient, space: str) -> None:
    kube.create(CONFIG_MAP, settings("a", k="1"), space)
    told: list[tuple[str, str]] = []

    def note(change: MirrorChange[ConfigMap]) -> None:
        told.append((_said(change.before), _said(change.after)))

    mirror = Mirror(kube, CONFIG_MAP, on_change=note, namespace=space, field_selector="metadata.name!=kube-root-ca.crt")
    mirror.start()
    try:
        assert mirror.synced(WAIT_S)
        kube.patch(CONFIG_MAP, "a", space, body={"data": {"k": "2"}})
        kube.create(CONFIG_MAP, settings("b"), space)
        kube.delete(CONFIG_MAP, "a", space)
        eventually(lambda: _check(len(told) == 4))
    finally:
        mirror.stop()
    assert told == [("-", "a1"), ("a1", "a2"), ("-", "b"), ("a2", "-")]
    assert set(mirror.snapshot()) == {(space, "b")}


def _said(obj: ConfigMap | None) -> str:
    return "-" if obj is None else obj.metadata.name + obj.data.get("k", "")


def _check(condition: bool) -> None:
    assert condition


def test_nodes_have_no_namespace(kube: KubeClient) -> None:
    name = f"n-{uuid.uuid4().hex[:8]}"
    kube.create(NODE, {"metadata": {"name": name}, "spec": {"unschedulable": True}})
    status = {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3"}}
    kube.patch(NODE, name, body={"status": status}, subresource="status")
    found = kube.get(NODE, name)
    assert found is not None
    assert (found.spec.unschedulable, found.status.allocatable) == (True, {"cpu": "3"})
    assert kube.delete(NODE, name)


def test_a_name_cannot_lead_out_of_its_path() -> None:
    for bad in ("a/b", "..", "a?b", "", "é", "a b"):
        kind: Kind[Pod] = POD
        with pytest.raises(ValueError, match="not a valid name"):
            kind.path("default", bad) if bad else kind.path("a/b")
