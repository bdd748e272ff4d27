"""Replicas of NFV gateways and L7 load balancers, and the configuration of their programs."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv4Network

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.net.appliance_networks import UPLINK, build_networks, replicas, tenant

from calabash.model.errors import CalabashError
from calabash.model.network import NetworkGateway
from calabash.model.network_services import CheckKind, HealthCheck, Layer, LoadBalancer
from calabash.net.appliances import haproxy, keepalived, nft
from calabash.net.appliances.model import BalancerReplica, NfvReplica, Translation
from calabash.net.appliances.naming import is_pair, outside_mac, pair_ports
from calabash.net.appliances.rendering import build_appliance
from calabash.net.appliances.replicas import assign_hosts, placement_number, replicas_of

RED = tenant("red", 1)
ADDRESS = re.compile(r"(?<![0-9.])\d+\.\d+\.\d+\.\d+(?![0-9.])")
SHARED = {"0.0.0.0", "127.0.0.0", "127.0.0.1", "169.254.0.0"}  # in every replica's files


def nfv(number: int = 1) -> NfvReplica:
    return next(
        one for one in replicas(build_networks(RED)) if isinstance(one, NfvReplica) and one.member.rank == number
    )


def balancer(check: HealthCheck | None = None, certificate: str = "") -> BalancerReplica:
    of = build_networks(tenant("red", 1, check=check, certificate=certificate))
    return next(one for one in replicas(of) if isinstance(one, BalancerReplica))


def test_nfv_gateway_and_l7_balancer_have_two_replicas_each() -> None:
    found = list(replicas(build_networks(RED, tenant("blue", 2))))
    assert sorted(one.member.name for one in found) == sorted(
        f"{vpc}/a/x-{what}-{rank}" for vpc in ("red", "blue") for what in ("nfv", "lb") for rank in (1, 2)
    )


def test_replicas_of_a_pair_are_peers_and_share_the_virtual_address() -> None:
    one, other = nfv(1).member, nfv(2).member
    assert (one.own, one.peer) == (other.peer, other.own)
    assert one.virtual == other.virtual
    assert one.own != one.virtual != other.own


def test_external_macs_differ_by_replica_and_vpc() -> None:
    assert len({outside_mac(number, rank) for number in (1, 2, 255, 256, 65535) for rank in (1, 2)}) == 10


def test_pair_without_managed_ports_raises_an_error_with_the_count() -> None:
    gateway = next(item for item in RED if isinstance(item, NetworkGateway))
    assert is_pair(gateway)
    with pytest.raises(CalabashError, match="red/out has 1 managed ports, not 3"):
        pair_ports(msgspec.structs.replace(gateway, ports=gateway.ports[:1]))


def test_gateway_with_an_error_does_not_affect_other_gateways() -> None:
    broken = [msgspec.structs.replace(item, ports=()) if isinstance(item, NetworkGateway) else item for item in RED]
    assert {one.member.name for one in replicas(build_networks(broken))} == {"red/a/x-lb-1", "red/a/x-lb-2"}


def test_ruleset_replaces_its_table_atomically() -> None:
    text = nft.ruleset(nfv())
    assert text.splitlines()[:3] == ["table inet calabash", "delete table inet calabash", "table inet calabash {"]
    assert text.count("{") == text.count("}")


def test_ruleset_contains_the_translations_of_the_store_only() -> None:
    text = nft.ruleset(nfv())
    assert 'iifname "out0" ip daddr 198.51.100.11 tcp dport 80 dnat ip to 10.0.1.11:8080' in text
    assert 'iifname "out0" ip daddr 198.51.100.12 dnat ip to 10.0.1.12' in text
    assert 'oifname "out0" ip saddr 10.0.1.12 snat ip to 198.51.100.12' in text
    assert 'oifname "out0" ip saddr { 10.0.0.0/16 } snat ip to 198.51.100.10' in text
    assert text.count("dnat ip to") == 2
    assert text.count("snat ip to") == 2


def test_floating_address_precedes_the_gateway_address() -> None:
    lines = nft.ruleset(nfv()).splitlines()
    fip = next(at for at, line in enumerate(lines) if "snat ip to 198.51.100.12" in line)
    assert fip < next(at for at, line in enumerate(lines) if "snat ip to 198.51.100.10" in line)


def test_translation_of_one_port_precedes_that_of_the_whole_address() -> None:
    replica = nfv()
    whole, one = replica.translations[1], replica.translations[0]
    both = replace(replica, translations=(whole, replace(one, outside=whole.outside)))
    destinations = [line for line in nft.ruleset(both).splitlines() if "dnat ip to" in line]
    assert "dport 80" in destinations[0]


def test_gateway_without_snat_translates_floating_addresses_only() -> None:
    text = nft.ruleset(replace(nfv(), snat=False))
    assert text.count("snat ip to") == 1


def test_ranges_of_the_platform_are_dropped_before_any_packet_is_accepted() -> None:
    (replica,) = (
        one
        for one in replicas(build_networks(RED), [IPv4Network("172.31.0.0/24")])
        if isinstance(one, NfvReplica) and one.member.rank == 1
    )
    forward = nft.ruleset(replica).partition("chain forward")[2].splitlines()
    assert "172.31.0.0/24" in forward[2]
    assert forward[2].endswith("drop")
    assert "169.254.0.0/16" in forward[2]


@given(st.data())
def test_rules_of_a_tenant_contain_no_address_of_another_tenant(data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(1, 24), min_size=2, max_size=4, unique=True))
    of = build_networks(*(tenant(f"t{number}", number) for number in numbers))
    inside = {f"10.0.1.{last}" for last in (1, 11, 12, 200, 201, 202, 210, 211, 212)} | {"10.0.0.0"}
    for replica in replicas(of):
        number = replica.member.number
        own = inside | {f"198.51.100.{10 * number + at}" for at in range(3)} | {str(UPLINK.gateway)}
        made = build_appliance(replica, "/run/x")
        found = {address for text in made.files.values() for address in ADDRESS.findall(text)}
        assert found <= own | SHARED
        others = [f"t{other}" for other in numbers if other != number]
        assert not any(re.search(rf"\b{other}\b", text) for text in made.files.values() for other in others)


@given(st.text(max_size=40))
def test_path_of_a_check_cannot_inject_configuration(path: str) -> None:
    check = HealthCheck(kind=CheckKind.HTTP, path=path)
    try:
        text = haproxy.configuration(balancer(check), "/run/x")
    except CalabashError:
        return  # refused; that each hostile letter is, the next test says
    plain = haproxy.configuration(balancer(HealthCheck(kind=CheckKind.HTTP, path="/")), "/run/x")
    assert text.replace(f"uri '{path}'", "uri '/'") == plain
    assert not set(path) & set("'\"\\ #\n\r\t\0")


@pytest.mark.parametrize(
    "path",
    ["/a' ver HTTP/1.0\nserver evil 10.9.9.9:80", "/a b", "a", "/a\\n", "/#x", '/"', "/\x00", "/ü", "/" + "a" * 300],
)
def test_hostile_path_is_refused_with_a_one_line_message(path: str) -> None:
    with pytest.raises(CalabashError, match="is not a valid path") as refused:
        haproxy.configuration(balancer(HealthCheck(kind=CheckKind.HTTP, path=path)), "/run/x")
    assert "\n" not in refused.value.message


def test_tls_balancer_refers_to_its_private_certificate_file() -> None:
    made = build_appliance(balancer(certificate="site"), "/run/x")
    assert "bind 10.0.1.212:443 ssl crt /run/x/site.pem" in made.files["haproxy.cfg"]
    assert made.secrets == ("site",)
    assert not any("PRIVATE KEY" in text for text in made.files.values())


def test_balancer_without_a_check_does_not_probe_its_backends() -> None:
    text = haproxy.configuration(balancer(HealthCheck()), "/run/x")
    assert "check" not in text.replace("http-check", "")
    assert "server a.web1-8080 10.0.1.11:8080\n" in text


def test_backend_states_are_parsed_from_statistics() -> None:
    said = (
        "# pxname,svname,status,\npublic,FRONTEND,OPEN,\ntargets,a.web1-80,UP,\ntargets,a.web2-80,DOWN,\n"
        "targets,a.web3-80,no check,\ntargets,a.web4-80,UP 1/2,\ntargets,BACKEND,UP,\n"
    )
    assert haproxy.parse_states(said) == {"a.web1-80": True, "a.web2-80": False, "a.web3-80": True, "a.web4-80": True}


@given(st.text(max_size=300))
def test_parser_of_statistics_accepts_any_text(said: str) -> None:
    assert all(isinstance(healthy, bool) for healthy in haproxy.parse_states(said).values())


def test_external_addresses_move_with_the_virtual_address() -> None:
    text = keepalived.gateway_configuration(nfv())
    for moved in ("198.51.100.10/24 dev out0", "198.51.100.11/32 dev out0", "198.51.100.12/32 dev out0"):
        assert moved in text
    assert "0.0.0.0/0 via 198.51.100.1 dev out0" in text
    assert "10.0.1.202/32 dev in0" in text


def test_returning_replica_does_not_preempt_the_active_one() -> None:
    for rank in (1, 2):
        text = keepalived.gateway_configuration(nfv(rank))
        assert "nopreempt" in text
        assert "state BACKUP" in text


def test_replicas_of_a_pair_are_on_two_hosts_and_stay_when_others_change() -> None:
    of = build_networks(RED)
    gateway = next(item for item in RED if isinstance(item, NetworkGateway))
    pair = replicas_of(of, gateway)
    for hosts in (["g1", "g2"], ["g1", "g2", "g3"]):
        assert len(set(assign_hosts(pair, hosts, placement_number(gateway.name)).values())) == 2
    assert assign_hosts(pair, [], 1) == {}
    assert set(assign_hosts(pair, ["g1"], 7).values()) == {"g1"}


def test_l4_balancer_has_no_replicas() -> None:
    l4 = [msgspec.structs.replace(item, layer=Layer.L4) if isinstance(item, LoadBalancer) else item for item in RED]
    assert {type(one) for one in replicas(build_networks(l4))} == {NfvReplica}


def test_translation_of_a_whole_address_has_no_port_numbers() -> None:
    whole = nfv().translations[1]
    assert whole == Translation(outside=whole.outside, inside=whole.inside)
