"""The product's own kinds: schemas agree with the client's types, and a real API server accepts and keeps all fields."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest
import yaml
from tests.contract.crds import CRDS, DEFINITION, install
from tests.kube.cluster import Cluster

from calabash.adapters.kube import KubeClient, KubeError, load_client
from calabash.adapters.kube.objects.meta import Kind, KubeStruct
from calabash.adapters.kube.objects.resources import (
    GPU_NODE,
    QUEUE,
    TENANT,
    GpuNodeDevice,
    GpuNodeSlice,
    GpuNodeSpec,
    GpuNodeStatus,
    GpuNodeSummary,
    KubeProject,
    KubeQueueSpec,
    KubeQueueStatus,
    KubeTenantSpec,
    KubeTenantStatus,
)
from calabash.model.errors import Reason

SCHEMAS = {path.name.partition(".")[0]: yaml.safe_load(path.read_text()) for path in CRDS.glob("*.yaml")}


def schema(plural: str, *path: str) -> dict[str, Any]:
    (version,) = SCHEMAS[plural]["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    for part in path:
        found = found["items"] if part == "[]" else found["properties"][part]
    return found


@pytest.mark.parametrize(
    ("plural", "path", "type_"),
    [
        ("gpunodes", ("spec",), GpuNodeSpec),
        ("gpunodes", ("status",), GpuNodeStatus),
        ("gpunodes", ("status", "summary"), GpuNodeSummary),
        ("gpunodes", ("status", "devices", "[]"), GpuNodeDevice),
        ("gpunodes", ("status", "devices", "[]", "slices", "[]"), GpuNodeSlice),
        ("queues", ("spec",), KubeQueueSpec),
        ("queues", ("status",), KubeQueueStatus),
        ("tenants", ("spec",), KubeTenantSpec),
        ("tenants", ("spec", "projects", "[]"), KubeProject),
        ("tenants", ("status",), KubeTenantStatus),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_the_schema_and_the_type_have_the_same_fields(
    plural: str, path: tuple[str, ...], type_: type[KubeStruct]
) -> None:
    found = schema(plural, *path)
    fields = msgspec.structs.fields(type_)
    assert set(found["properties"]) == {field.encode_name for field in fields}
    assert set(found.get("required", ())) == {field.encode_name for field in fields if field.required}


@pytest.mark.parametrize("kind", [GPU_NODE, QUEUE, TENANT], ids=lambda kind: kind.plural)
def test_the_definition_names_the_kind_as_the_client_does(kind: Kind[Any]) -> None:
    spec = SCHEMAS[kind.plural]["spec"]
    assert f"{spec['group']}/{spec['versions'][0]['name']}" == kind.api_version
    assert (spec["names"]["kind"], spec["names"]["plural"]) == (kind.name, kind.plural)
    assert (spec["scope"] == "Namespaced") is kind.namespaced


def test_no_field_of_a_device_has_an_owner_of_its_own() -> None:
    """The agent writes all fields; their names in managedFields would be as large as the devices."""
    devices = schema("gpunodes", "status", "devices")
    lists = [devices, *(one for one in devices["items"]["properties"].values() if one["type"] == "array")]
    assert len(lists) >= 5
    assert {one["x-kubernetes-list-type"] for one in lists} == {"atomic"}


@pytest.fixture
def kube(control_plane: Cluster) -> KubeClient:
    """Return a client of a real API server with the product's kinds."""
    client = load_client(control_plane.kubeconfig)
    install(client)
    return client


def device(**more: Any) -> dict[str, Any]:
    return {"uuid": "GPU-1", "index": 0, "model": "H200", "memoryMib": 143771, "health": "healthy"} | more


def test_a_node_is_published_and_read_again_byte_for_byte(kube: KubeClient) -> None:
    name = f"n-{uuid.uuid4().hex[:8]}"
    slice_ = GpuNodeSlice(
        pod="ns/a",
        pod_uid="u",
        container="c",
        mode="vgpu",
        policy="fixed",
        allocation="al-1",
        memory_mib=8192,
        core_percent=30,
        memory_used_mib=4096,
        core_used_percent=27,
    )
    status = GpuNodeStatus(
        agent_version="0.1",
        observed_at="2026-01-02T03:04:05Z",
        used_at="2026-01-02T03:04:06Z",
        summary=GpuNodeSummary(devices="1/1", model="H200", memory="8/140 GiB", slices=1),
        devices=(msgspec.convert(device(slices=[msgspec.to_builtins(slice_)]), GpuNodeDevice),),
    )
    body = {"metadata": {"name": name}, "status": msgspec.to_builtins(status)}
    kube.patch(GPU_NODE, name, body={"metadata": {"name": name}}, style="apply", field_manager="t")
    kube.patch(GPU_NODE, name, body=body, style="apply", subresource="status", field_manager="t")
    first = kube.get(GPU_NODE, name)
    assert first is not None
    assert first.status == status
    again = kube.patch(GPU_NODE, name, body=body, style="apply", subresource="status", field_manager="t")
    assert again.metadata.resource_version == first.metadata.resource_version
    assert kube.delete(GPU_NODE, name)


@pytest.mark.parametrize(
    "bad",
    [
        {"devices": [device(health="fine")]},
        {"devices": [device(memoryMib=-1)]},
        {"devices": [{"uuid": "GPU-1"}]},
        {"devices": [device(slices=[{"pod": "a/b"}])]},
        {"observedAt": "yesterday"},
    ],
    ids=["health", "memory", "incomplete", "slice", "time"],
)
def test_a_bad_node_is_refused(kube: KubeClient, bad: dict[str, Any]) -> None:
    name = f"n-{uuid.uuid4().hex[:8]}"
    kube.create(GPU_NODE, {"metadata": {"name": name}})
    with pytest.raises(KubeError) as caught:
        kube.patch(GPU_NODE, name, body={"status": bad}, subresource="status")
    assert caught.value.reason is Reason.BAD_REQUEST
    kube.delete(GPU_NODE, name)


def test_a_queue_has_the_defaults_of_its_type(kube: KubeClient) -> None:
    name = f"q-{uuid.uuid4().hex[:8]}"
    made = kube.create(QUEUE, {"metadata": {"name": name}, "spec": {}})
    assert made.spec == KubeQueueSpec()
    changed = kube.patch(QUEUE, name, body={"status": {"allocated": 1.5, "running": 2}}, subresource="status")
    assert changed.status == KubeQueueStatus(allocated=1.5, running=2)
    assert kube.delete(QUEUE, name)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"deserved": 8, "limit": 4}, "limit is below the guarantee"),
        ({"deserved": -1}, "greater than or equal to 0"),
        ({"users": ["a", "a"]}, "Duplicate"),
        ({"parent": "Not A Name"}, "spec.parent"),
        ({"parent": "SELF"}, "not its own parent"),
        ({"weight": "much"}, "spec.weight"),
    ],
    ids=["limit", "deserved", "users", "parent", "self", "weight"],
)
def test_a_bad_queue_is_refused_with_the_reason(kube: KubeClient, spec: dict[str, Any], said: str) -> None:
    name = f"q-{uuid.uuid4().hex[:8]}"
    spec = {key: name if value == "SELF" else value for key, value in spec.items()}
    with pytest.raises(KubeError) as caught:
        kube.create(QUEUE, {"metadata": {"name": name}, "spec": spec})
    assert caught.value.reason is Reason.BAD_REQUEST
    assert said in caught.value.message


def test_the_definitions_are_kept_as_they_were_written(kube: KubeClient) -> None:
    for definition in kube.list(DEFINITION).items:
        if definition.metadata.name.endswith(".calabash.dev"):
            assert {c.type: c.status for c in definition.status.conditions}.get("NonStructuralSchema") is None


def test_kubectl_columns_have_the_essential_fields(control_plane: Cluster, kube: KubeClient) -> None:
    cluster = control_plane
    name = f"q-{uuid.uuid4().hex[:8]}"
    kube.create(QUEUE, {"metadata": {"name": name}, "spec": {"deserved": 8, "limit": 16}})
    shown = cluster.kubectl("get", "queues", name)
    assert shown.splitlines()[0].split() == [
        "NAME", "PARENT", "GUARANTEE", "LIMIT", "ALLOCATED", "BORROWED", "RUNNING", "WAITING", "AGE",
    ]  # fmt: skip
    assert shown.splitlines()[1].split()[:3] == [name, "8", "16"]
    kube.delete(QUEUE, name)


@pytest.mark.parametrize(
    ("name", "spec", "said"),
    [
        ("a", {"guarantee": 4, "limit": 2}, "limit is below guarantee"),
        ("a", {"guarantee": 1, "projects": [{"name": "p", "guarantee": 2}]}, "guaranteed more than the tenant"),
        ("a", {"projects": [{"name": "p"}, {"name": "p"}]}, "Duplicate"),
        ("a", {"projects": [{"name": "p.q"}]}, "spec.projects"),
        ("a", {"budget": "much"}, "spec.budget"),
        ("a.b", {}, "no dot"),
        ("default", {}, "everybody's queue"),
    ],
)
def test_a_bad_tenant_is_refused(kube: KubeClient, name: str, spec: dict[str, Any], said: str) -> None:
    with pytest.raises(KubeError, match=said) as caught:
        kube.create(TENANT, {"metadata": {"name": name}, "spec": spec})
    assert caught.value.reason is Reason.BAD_REQUEST


def test_a_tenant_has_the_defaults_of_its_type(kube: KubeClient) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    made = kube.create(TENANT, {"metadata": {"name": name}, "spec": {"projects": [{"name": "p"}]}})
    assert made.spec == KubeTenantSpec(projects=(KubeProject(name="p"),))
    assert kube.delete(TENANT, name)
