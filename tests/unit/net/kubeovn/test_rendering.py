"""Rendering of networks for Kube-OVN: every object, unique names, and security groups."""

from __future__ import annotations

import json
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.net.sample_network import every_network

from calabash.model.errors import CalabashError
from calabash.model.network import (
    Direction,
    NatRule,
    NetworkKind,
    NetworkObject,
    QosPolicy,
    SecurityGroup,
    SecurityRule,
    Uplink,
    Vpc,
    kind_of,
)
from calabash.model.network_services import LoadBalancer, TransportProtocol
from calabash.net.kubeovn.rendering import KubeOvnRendering, render_kube_ovn
from calabash.net.kubeovn.resources import Unsupported
from calabash.net.objects.collection import NetworkObjects


def mentioned_names(rendering: KubeOvnRendering) -> set[str]:
    """Return the names of all objects that were rendered or reported as unsupported."""
    return (
        {resource.of for resource in rendering.resources}
        | set(rendering.pods)
        | {name for _, name in rendering.parts}
        | {refused.name for refused in rendering.unsupported}
    )


def spec(rendering: KubeOvnRendering, kind: str, name: str) -> dict[str, Any]:
    (found,) = (one for one in rendering.resources if (one.kind, one.name) == (kind, name))
    return dict(found.spec)


def reasons(rendering: KubeOvnRendering, name: str, kind: NetworkKind) -> list[Unsupported]:
    return [refused for refused in rendering.unsupported if (refused.name, refused.kind) == (name, kind)]


def with_changed(*items: NetworkObject) -> NetworkObjects:
    networks = every_network()
    for item in items:
        networks = networks.replaced(kind_of(item), item.name, item)
    return networks


RENDERED = render_kube_ovn(every_network())


def test_every_object_is_rendered_or_reported_as_unsupported() -> None:
    assert {item.name for item in every_network().items()} <= mentioned_names(RENDERED)


def test_names_of_resources_are_unique() -> None:
    keys = [(one.kind, one.namespace, one.name) for one in RENDERED.resources]
    assert len(keys) == len(set(keys))


def test_resources_refer_only_to_preceding_resources_or_groups() -> None:
    seen: set[tuple[str, str]] = set()
    refers = {
        "vpc": "Vpc",
        "vlan": "Vlan",
        "provider": "ProviderNetwork",
        "externalSubnet": "Subnet",
        "natGwDp": "VpcNatGateway",
    }
    for one in RENDERED.resources:
        for key, kind in refers.items():
            if key in one.spec:
                assert (kind, one.spec[key]) in seen, f"{one.kind} {one.name} names {kind} {one.spec[key]}"
        seen.add((one.kind, one.name))


def test_names_that_differ_only_in_dashes_stay_distinct() -> None:
    """Kube-OVN replaces dashes by dots in names of security groups, so joined names of two tenants would collide."""
    one, other = Vpc(name="red", cidrs=(), number=1), Vpc(name="red-a", cidrs=(), number=2)
    groups_of_both = SecurityGroup(name="red/a-b"), SecurityGroup(name="red-a/b")
    found = render_kube_ovn(NetworkObjects.from_objects([one, other, *groups_of_both], 1))
    groups = [resource.name.replace("-", ".") for resource in found.resources if resource.kind == "SecurityGroup"]
    assert len(set(groups)) == 2


def test_port_is_rendered_as_annotations_of_a_pod() -> None:
    assert RENDERED.pods["red/a/web1"] == {
        "ovn.kubernetes.io/logical_switch": "cb1-a",
        "ovn.kubernetes.io/ip_address": "10.1.1.11,fd00:1::11",
        "ovn.kubernetes.io/mac_address": "0a:00:01:00:00:01",
        "ovn.kubernetes.io/port_security": "true",
        "ovn.kubernetes.io/security_groups": "cb1-default,cb1-web",
        "ovn.kubernetes.io/egress_rate": "100",
        "ovn.kubernetes.io/ingress_rate": "20",
        "ovn.kubernetes.io/aaps": "cb1-a.shared",
    }
    (stored,) = (one for one in RENDERED.resources if one.kind == "ConfigMap" and one.namespace == "cb1")
    assert json.loads(stored.spec["a.web1"]) == RENDERED.pods["red/a/web1"]


def test_security_group_has_one_rule_for_each_ip_version() -> None:
    found = spec(RENDERED, "SecurityGroup", "cb1-web")
    assert [
        (r["ipVersion"], r["protocol"], r.get("remoteAddress"), r.get("portRangeMin")) for r in found["ingressRules"]
    ] == [
        ("ipv4", "tcp", "0.0.0.0/0", 80),
        ("ipv6", "icmp", "::/0", None),
    ]
    assert [(r["ipVersion"], r["protocol"], r["remoteSecurityGroup"]) for r in found["egressRules"]] == [
        ("ipv4", "udp", "cb1-default"),
        ("ipv6", "udp", "cb1-default"),
    ]
    assert all(r["policy"] == "allow" and 1 <= r["priority"] <= 200 for side in found.values() for r in side)


def test_unsupported_rule_stays_closed_and_is_reported() -> None:
    rule = SecurityRule(direction=Direction.INGRESS, protocol=TransportProtocol.SCTP, peer=ip_network("0.0.0.0/0"))
    found = render_kube_ovn(with_changed(SecurityGroup(name="red/web", rules=(rule,))))
    assert (
        "ingressRules" not in spec(found, "SecurityGroup", "cb1-web")
        or not spec(found, "SecurityGroup", "cb1-web")["ingressRules"]
    )
    (told,) = reasons(found, "red/web", NetworkKind.SECURITY_GROUP)
    assert "sctp" in told.reason


def test_gateways_use_their_uplink_and_translate_addresses() -> None:
    assert spec(RENDERED, "Vpc", "cb1")["extraExternalSubnets"] == ["uplink.ext"]
    default = {"policy": "policyDst", "cidr": "0.0.0.0/0", "nextHopIP": "198.51.100.1"}
    assert default in spec(RENDERED, "Vpc", "cb1")["staticRoutes"]
    assert spec(RENDERED, "OvnEip", "cb1-uplink.ext")["v4Ip"] == "198.51.100.7"
    assert spec(RENDERED, "OvnDnatRule", "cb1-d")["ovnEip"] == "cb1-uplink.ext"
    assert default | {"nextHopIP": "10.2.1.5"} in spec(RENDERED, "Vpc", "cb2")["staticRoutes"]
    assert spec(RENDERED, "IptablesDnatRule", "cb2-d") == {
        "eip": "cb2-out.own",
        "externalPort": "80",
        "internalPort": "8080",
        "internalIp": "10.2.1.12",
        "protocol": "tcp",
    }


def test_accepted_peering_has_routes_at_both_ends_and_a_requested_one_none() -> None:
    red, blue = spec(RENDERED, "Vpc", "cb1"), spec(RENDERED, "Vpc", "cb2")
    assert [peer["remoteVpc"] for peer in red["vpcPeerings"]] == ["cb2"]
    here = {prefix.partition("/")[0] for prefix in red["vpcPeerings"][0]["localConnectIP"].split(",")}
    back = [route for route in blue["staticRoutes"] if route["cidr"] == "10.1.1.0/24"]
    assert len(back) == 1
    assert back[0]["nextHopIP"] in here
    assert RENDERED.parts[NetworkKind.PEERING, "red/green"] == "nothing, until VPC green requests the peering too"


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("red/tls", NetworkKind.LOAD_BALANCER, "terminates TLS"),
        ("red/mixed", NetworkKind.LOAD_BALANCER, "not 2"),
        ("red/drop", NetworkKind.ROUTE, "next hop"),
        ("red/db", NetworkKind.DNS_RECORD, "names of the cluster"),
        ("blue/models", NetworkKind.SERVICE_ENDPOINT, "another VPC"),
    ],
)
def test_unsupported_object_is_omitted_and_reported(name: str, kind: NetworkKind, said: str) -> None:
    (told,) = reasons(RENDERED, name, kind)
    assert said in told.reason
    assert told.whole
    assert name not in {resource.of for resource in RENDERED.resources}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            Uplink(
                name="ext", cidr=ip_network("198.51.100.0/24"), gateway=ip_address("198.51.100.1"), physical="a" * 13
            ),
            "12",
        ),
        (QosPolicy(name="red/slow", egress_bits_per_s=1_500_000), "1 Mbit/s"),
        (
            replace(every_network().all(LoadBalancer).__next__(), vip=ip_address("198.51.100.11")),
            "198.51.100.11 is external",
        ),
        (
            replace(next(n for n in every_network().all(NatRule) if n.name == "red/f"), distributed=True),
            "translated at the gateway",
        ),
    ],
)
def test_unsupported_value_is_reported(item: NetworkObject, said: str) -> None:
    found = render_kube_ovn(with_changed(item))
    (told,) = reasons(found, item.name, kind_of(item))
    assert said in told.reason


def test_objects_of_an_unsupported_uplink_are_reported() -> None:
    uplink = next(every_network().all(Uplink))
    found = render_kube_ovn(with_changed(replace(uplink, physical="a" * 13)))
    refused = {told.name for told in found.unsupported if told.whole}
    assert {"ext", "red/out", "red/e", "red/f", "red/d"} <= refused
    assert not [one for one in found.resources if one.kind.startswith(("Ovn", "Iptables", "VpcNat"))]


def test_interface_of_the_hosts_can_be_set() -> None:
    found = render_kube_ovn(every_network(), interfaces={"ext": "enp1s0"})
    assert spec(found, "ProviderNetwork", "ext") == {"defaultInterface": "enp1s0"}


def test_rendering_is_deterministic() -> None:
    again = render_kube_ovn(every_network())
    assert [one.document() for one in again.resources] == [one.document() for one in RENDERED.resources]


def test_incomplete_objects_are_refused() -> None:
    with pytest.raises(CalabashError, match="has no number"):
        render_kube_ovn(NetworkObjects.from_objects([Vpc(name="red", cidrs=())], 1))
