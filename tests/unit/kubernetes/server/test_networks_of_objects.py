"""Tests of Kubernetes network objects: the server stores them, sets their condition, and removes deleted ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.kubernetes.planner.world import until
from tests.unit.kubernetes.server.served import ServedCluster

from calabash.adapters.kube.objects.network_resources import NETWORK_KINDS, KubeNetworkObject
from calabash.model.network import NetworkKind


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ServedCluster]:
    world = ServedCluster(tmp_path)
    world.start()
    yield world
    world.stop()


def write(cluster: ServedCluster, kind: NetworkKind, path: str, **spec: Any) -> None:
    resource = NETWORK_KINDS[kind]
    cluster.kube.patch(
        resource, path.replace("/", "."), body={"spec": spec}, style="apply", field_manager="ann", force=True
    )


def read(cluster: ServedCluster, kind: NetworkKind, path: str) -> KubeNetworkObject | None:
    return cluster.kube.get(NETWORK_KINDS[kind], path.replace("/", "."))


def valid_condition(cluster: ServedCluster, kind: NetworkKind, path: str) -> tuple[str, str]:
    """Return the Valid condition's status and message; both empty while the current generation was not observed."""
    found = read(cluster, kind, path)
    if found is None or found.status.observed_generation != found.metadata.generation:
        return "", ""
    (valid,) = (one for one in found.status.conditions if one.type == "Valid")
    return valid.status, valid.message


def names(cluster: ServedCluster) -> set[str]:
    return {item["name"] for item in cluster.admin.rows("/v1/networks/objects")}


def test_objects_are_stored_in_any_order_and_report_what_was_allocated(
    cluster: ServedCluster,
) -> None:
    write(cluster, NetworkKind.PORT, "red/a/web1")
    write(cluster, NetworkKind.SUBNET, "red/a", cidrs=["10.0.1.0/24"])
    until(
        lambda: valid_condition(cluster, NetworkKind.PORT, "red/a/web1")[0] == "False",
        "the port to say that it has no subnet",
    )
    cluster.admin.put("/v1/tenants/vision", {"guarantee": 0})
    write(cluster, NetworkKind.VPC, "red", cidrs=["10.0.0.0/16"], tenant="vision")
    until(lambda: valid_condition(cluster, NetworkKind.PORT, "red/a/web1") == ("True", ""), "the port to stand")
    found = read(cluster, NetworkKind.PORT, "red/a/web1")
    assert found is not None
    assert found.status.completed["addresses"] == ["10.0.1.2"]
    assert found.spec == {}
    assert names(cluster) >= {"red", "red/a", "red/a/web1", "red/default"}
    shown = cluster.admin.get("/v1/networks/objects/vpc?name=red")
    assert shown["tenant"] == "vision"


def test_invalid_object_gets_a_condition_and_the_store_is_unchanged(cluster: ServedCluster) -> None:
    cluster.admin.put("/v1/tenants/vision", {"guarantee": 0})
    write(cluster, NetworkKind.VPC, "red", cidrs=["10.0.0.0/16"], tenant="vision")
    write(cluster, NetworkKind.SUBNET, "red/a", cidrs=["10.9.0.0/24"])
    # The subnet may be checked before its VPC is known; its condition then says that there is no such VPC.
    until(
        lambda: "10.9.0.0/24" in valid_condition(cluster, NetworkKind.SUBNET, "red/a")[1],
        "the subnet's range to be refused",
    )
    assert valid_condition(cluster, NetworkKind.SUBNET, "red/a")[0] == "False"
    assert "red/a" not in names(cluster)
    write(cluster, NetworkKind.SUBNET, "red/a", cidrs=["10.0.9.0/24"])
    until(lambda: valid_condition(cluster, NetworkKind.SUBNET, "red/a")[0] == "True", "the subnet to stand")


def test_an_object_that_is_deleted_stays_until_nothing_needs_it(cluster: ServedCluster) -> None:
    cluster.admin.put("/v1/tenants/vision", {"guarantee": 0})
    write(cluster, NetworkKind.VPC, "red", cidrs=["10.0.0.0/16"], tenant="vision")
    write(cluster, NetworkKind.SUBNET, "red/a", cidrs=["10.0.1.0/24"])
    until(lambda: valid_condition(cluster, NetworkKind.SUBNET, "red/a")[0] == "True", "the subnet to stand")
    cluster.kube.delete(NETWORK_KINDS[NetworkKind.VPC], "red")
    until(lambda: "is used by" in valid_condition(cluster, NetworkKind.VPC, "red")[1], "the VPC to say what needs it")
    assert "red" in names(cluster)
    cluster.kube.delete(NETWORK_KINDS[NetworkKind.SUBNET], "red.a")
    until(lambda: read(cluster, NetworkKind.VPC, "red") is None, "the VPC to go")
    assert names(cluster) == set()


def test_what_was_deleted_while_no_server_ran_is_removed_by_the_next(cluster: ServedCluster) -> None:
    cluster.admin.put("/v1/tenants/vision", {"guarantee": 0})
    write(cluster, NetworkKind.VPC, "red", cidrs=["10.0.0.0/16"], tenant="vision")
    until(lambda: valid_condition(cluster, NetworkKind.VPC, "red")[0] == "True", "the VPC to stand")
    cluster.stop()
    cluster.kube.delete(NETWORK_KINDS[NetworkKind.VPC], "red")
    assert read(cluster, NetworkKind.VPC, "red") is not None
    cluster.start()
    until(lambda: read(cluster, NetworkKind.VPC, "red") is None, "the VPC to go")
    assert names(cluster) == set()


def test_what_the_api_made_is_left_alone(cluster: ServedCluster) -> None:
    cluster.admin.put("/v1/tenants/vision", {"guarantee": 0})
    order = {"kind": "vpc", "name": "blue", "spec": {"cidrs": ["10.0.0.0/16"], "tenant": "vision"}}
    cluster.admin.put("/v1/networks/objects", order)
    write(cluster, NetworkKind.VPC, "red", cidrs=["10.0.0.0/16"], tenant="vision")
    until(lambda: valid_condition(cluster, NetworkKind.VPC, "red")[0] == "True", "the VPC to stand")
    cluster.kube.delete(NETWORK_KINDS[NetworkKind.VPC], "red")
    until(lambda: read(cluster, NetworkKind.VPC, "red") is None, "the VPC to go")
    assert names(cluster) == {"blue", "blue/default"}
