"""Resources rendered for Kube-OVN are accepted by Kube-OVN's own types and schemas."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.go_programs import BUILD_S
from tests.contract.kube_ovn import wrong_shapes, wrong_types
from tests.unit.net.random_networks import RandomNetworks
from tests.unit.net.sample_network import every_network

from calabash.net.kubeovn.rendering import render_kube_ovn
from calabash.net.kubeovn.resources import API
from calabash.net.objects.collection import NetworkObjects
from calabash.net.store.networks import Networks

pytestmark = [pytest.mark.complete, pytest.mark.timeout(BUILD_S + 120)]


def documents(networks: NetworkObjects) -> list[dict[str, Any]]:
    """Return the rendered custom resources, without the built-in kinds of Kubernetes."""
    return [one.document() for one in render_kube_ovn(networks).resources if one.api == API]


def test_every_kind_of_object_is_rendered_as_kube_ovn_has_it() -> None:
    found = documents(every_network())
    assert {document["kind"] for document in found} == {
        "IptablesDnatRule",
        "IptablesEIP",
        "IptablesFIPRule",
        "IptablesSnatRule",
        "OvnDnatRule",
        "OvnEip",
        "OvnFip",
        "OvnSnatRule",
        "ProviderNetwork",
        "SecurityGroup",
        "Subnet",
        "SwitchLBRule",
        "Vip",
        "Vlan",
        "Vpc",
        "VpcDns",
        "VpcNatGateway",
    }
    assert wrong_types(found) == []
    assert wrong_shapes(found) == []


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Vpc", {"namespace": ["a"]}),
        ("Subnet", {"mtu": "1400"}),
        ("Subnet", {"mtu": 1}),
        ("Subnet", {"protocol": "IPv5"}),
        ("Vlan", {"id": 4096, "provider": "ext"}),
        ("SwitchLBRule", {"ports": [{"port": 80, "target": 80}]}),
    ],
)
def test_resource_that_kube_ovn_refuses_is_found(kind: str, spec: dict[str, Any]) -> None:
    document = {"apiVersion": API, "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    assert wrong_shapes([document])


def test_field_that_kube_ovns_types_lack_is_found() -> None:
    assert wrong_types([{"apiVersion": API, "kind": "Vpc", "metadata": {"name": "a"}, "spec": {"namespace": []}}])
    assert wrong_types([{"apiVersion": API, "kind": "Network", "metadata": {"name": "a"}}])


def test_name_that_is_too_long_for_a_bridge_is_found() -> None:
    document = {"apiVersion": API, "kind": "ProviderNetwork", "spec": {"defaultInterface": "eth1"}}
    assert wrong_shapes([document | {"metadata": {"name": "thirteen-char"}}])
    assert not wrong_shapes([document | {"metadata": {"name": "twelve-chars"}}])


def test_random_stores_are_rendered_as_kube_ovn_has_them() -> None:
    found = [document for seed in range(40) for document in documents(RandomNetworks(seed).made(Networks(), 120))]
    assert len(found) > 400
    assert wrong_types(found) == []
    assert wrong_shapes(found) == []
