"""Conversion of network objects to plain data: round trips, and errors that name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from calabash.model.addresses import parse_address, parse_network
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import (
    KINDS,
    PATH_PARTS,
    DedicatedLine,
    Direction,
    DnsRecord,
    Eip,
    GatewayKind,
    NatKind,
    NatRule,
    NetworkGateway,
    NetworkKind,
    NetworkObject,
    NetworkRoute,
    Peering,
    Port,
    QosPolicy,
    SecurityGroup,
    SecurityRule,
    Subnet,
    Uplink,
    Vpc,
    kind_of,
)
from calabash.model.network_services import (
    Backend,
    CheckKind,
    HealthCheck,
    Layer,
    LoadBalancer,
    ServiceEndpoint,
    TransportProtocol,
)
from calabash.model.strict_types import ITEMS_MAX, NUMBER_MAX, TEXT_MAX
from calabash.net.objects.specs import decode, encode, parse_kind

RANGE, ADDRESS = parse_network("10.0.0.0/16"), parse_address("10.0.1.11")
SIX = parse_network("fd00::/64")
OBJECTS: tuple[NetworkObject, ...] = (
    Vpc(name="red", cidrs=(RANGE, SIX), tenant="vision", mtu_bytes=8900, number=3),
    Subnet(name="red/a", cidrs=(RANGE,), gateways=(ADDRESS,), dhcp=True, dns=True),
    Port(name="red/a/web1", addresses=(ADDRESS,), mac="0a:00:00:00:00:01", security_groups=("red/web",), qos="red/q"),
    SecurityGroup(
        name="red/web",
        rules=(
            SecurityRule(
                direction=Direction.INGRESS, protocol=TransportProtocol.TCP, ports=(443, 443), peer=SIX, peer_group=""
            ),
            SecurityRule(direction=Direction.EGRESS, peer_group="red/web"),
        ),
    ),
    Uplink(name="up", cidr=RANGE, gateway=ADDRESS, vlan=7, hosts=("g1", "g2")),
    NetworkGateway(name="red/out", kind=GatewayKind.NFV, snat=True, address=ADDRESS, ports=("red/a/x-1",)),
    Eip(name="red/eip"),
    NatRule(name="red/ssh", kind=NatKind.DNAT, eip="red/eip", port="red/a/web1", outside_number=22, inside_number=22),
    LoadBalancer(
        name="red/lb",
        vip=ADDRESS,
        vip_number=443,
        backends=(Backend(port="red/a/web1", number=8080),),
        check=HealthCheck(kind=CheckKind.HTTP, path="/healthz", interval_s=0.5),
        layer=Layer.L7,
        certificate="red/cert",
    ),
    Peering(name="red/green", routes=(RANGE,)),
    ServiceEndpoint(name="blue/models", source="red/lb", vip=ADDRESS),
    NetworkRoute(name="red/drop", prefix=SIX, source=SIX, priority=7),
    DedicatedLine(name="red/dc1", vlan=100, cidr=RANGE, address=ADDRESS, peer=ADDRESS),
    DnsRecord(name="red/db", host="db.internal", addresses=(ADDRESS,)),
    QosPolicy(name="red/q", egress_bits_per_s=10**9),
)


def test_samples_cover_every_kind() -> None:
    assert {kind_of(item) for item in OBJECTS} == set(KINDS.values()) == set(NetworkKind)


@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: item.name)
def test_encoded_object_decodes_to_an_equal_object(item: NetworkObject) -> None:
    spec = json.loads(json.dumps(encode(item)))
    assert "name" not in spec
    assert decode(kind_of(item), item.name, spec) == item


SAID: tuple[tuple[str, Any, str], ...] = (
    ("vpc", {}, "vpc red: cidrs is missing"),
    ("vpc", {"cidrs": "10.0.0.0/16"}, "vpc red: cidrs is '10.0.0.0/16'"),
    ("vpc", {"cidrs": ["10.0.0.1/16"]}, "vpc red: cidrs[0]: '10.0.0.1/16' is not an IP range"),
    ("vpc", {"cidrs": ["10.0.0.0/8"], "color": "red"}, "vpc red: unknown field 'color'"),
    ("vpc", {"cidrs": ["10.0.0.0/8"], "name": "blue"}, "vpc red: the name does not belong in spec"),
    ("vpc", {"cidrs": ["10.0.0.0/8"], "mtu_bytes": True}, "vpc red: mtu_bytes is True"),
    ("vpc", {"cidrs": ["10.0.0.0/8"], "mtu_bytes": 10**400}, "vpc red: mtu_bytes is 1000"),
    ("vpc", {"cidrs": ["10.0.0.0/8"] * 2000}, "vpc red: cidrs has 2000 items"),
    ("vpc", [], "vpc red: spec is not a map"),
    ("port", {"mac": "ff:ff:ff:ff:ff:ff"}, "port red/a/b: mac: 'ff:ff:ff:ff:ff:ff' is not a unicast MAC address"),
    ("port", {"addresses": ["10.0.0.1%eth0"]}, "port red/a/b: addresses[0]: '10.0.0.1%eth0' is not an IP address"),
    ("sg", {"rules": [{"direction": "up"}]}, "sg red/a: rules[0].direction is 'up'"),
    ("sg", {"rules": [{"direction": "egress", "ports": [1]}]}, "sg red/a: rules[0].ports has 1 items, not 2"),
    ("sg", {"rules": [{"direction": "egress", "x": 1}]}, "sg red/a: unknown field rules[0].'x'"),
    ("lb", {"vip": "10.0.0.1", "vip_number": 80.5, "backends": []}, "lb red/a: vip_number is 80.5"),
    ("eip", {"address": 7}, "eip red/a: address is 7"),
    ("qos", {"egress_bits_per_s": "1Gbit"}, "qos red/a: egress_bits_per_s is '1Gbit'"),
)


@pytest.mark.parametrize(("kind", "spec", "message"), SAID)
def test_invalid_field_is_named_with_a_hint(kind: str, spec: Any, message: str) -> None:
    name = {"vpc": "red", "port": "red/a/b"}.get(kind, "red/a")
    with pytest.raises(CalabashError) as told:
        decode(parse_kind(kind), name, spec)
    assert told.value.message.startswith(message)
    assert told.value.reason is Reason.BAD_REQUEST
    assert told.value.hint
    assert "\n" not in told.value.message


@pytest.mark.parametrize("field", ["x` - at `$[0].rules", "a`b", "a\nb", "$[0]", 7])
def test_unknown_field_that_resembles_a_path_is_named_as_it_is(field: object) -> None:
    with pytest.raises(CalabashError) as told:
        decode(NetworkKind.SECURITY_GROUP, "red/a", {field: 1})
    assert told.value.message == f"sg red/a: unknown field {str(field)!r}"
    with pytest.raises(CalabashError) as told:
        decode(NetworkKind.SECURITY_GROUP, "red/a", {"rules": [{"direction": "egress", field: 1}]})
    assert told.value.message == f"sg red/a: unknown field rules[0].{str(field)!r}"
    assert told.value.hint == "fields: direction, protocol, ports, peer, peer_group"


HINTS: tuple[tuple[NetworkKind, dict[str, Any], str], ...] = (
    (NetworkKind.SUBNET, {"cidrs": [], "dhcp": 1}, "true or false"),
    (NetworkKind.SUBNET, {"cidrs": [], "number": 1 << 60}, "a whole number"),
    (NetworkKind.SUBNET, {"cidrs": 7}, "a list of: a range as text, like 10.0.0.0/16"),
    (NetworkKind.PORT, {"qos": "x" * 256}, "text in one line, at most 255 characters"),
    (NetworkKind.PORT, {"qos": "a\u202eb"}, "text in one line, at most 255 characters"),
    (NetworkKind.EIP, {"address": 7}, "an address as text, like 10.0.1.11"),
    (NetworkKind.SECURITY_GROUP, {"rules": [{}]}, "one of: ingress, egress"),
    (NetworkKind.SECURITY_GROUP, {"rules": [7]}, "a map of: direction, protocol, ports, peer, peer_group"),
    (NetworkKind.SECURITY_GROUP, {"rules": [{"direction": "egress", "ports": [1]}]}, "like [443, 443]"),
    (NetworkKind.PEERING, {"routes": ["10.0.0.0/8"] * 1025}, "at most 1024"),
    (NetworkKind.LOAD_BALANCER, {"check": {"interval_s": float("nan")}}, "a number"),
)


@pytest.mark.parametrize(("kind", "spec", "hint"), HINTS)
def test_hint_describes_the_accepted_values(kind: NetworkKind, spec: dict[str, Any], hint: str) -> None:
    with pytest.raises(CalabashError) as told:
        decode(kind, "/".join("rab"[: PATH_PARTS[kind]]), spec)
    assert told.value.hint == hint


@pytest.mark.parametrize("object_type", KINDS)
def test_every_field_has_limits_and_no_class_takes_unknown_fields(object_type: type) -> None:
    unlimited: list[str] = []

    def check(wanted: inspect.Type, place: str) -> None:
        match wanted:
            case inspect.StructType():
                unlimited.extend([] if wanted.forbid_unknown_fields else [place])
                for field in wanted.fields:
                    check(field.type, f"{place}.{field.name}")
            case inspect.VarTupleType():
                unlimited.extend([] if wanted.max_length == ITEMS_MAX else [place])
                check(wanted.item_type, f"{place}[]")
            case inspect.TupleType(item_types=types) | inspect.UnionType(types=types):
                for one in types:
                    check(one, place)
            case inspect.IntType() | inspect.FloatType():
                unlimited.extend([] if (wanted.ge, wanted.le) == (-NUMBER_MAX, NUMBER_MAX) else [place])
            case inspect.StrType():
                unlimited.extend([] if wanted.max_length == TEXT_MAX and wanted.pattern else [place])
            case _:
                assert isinstance(wanted, (inspect.CustomType, inspect.EnumType, inspect.BoolType, inspect.NoneType))

    check(inspect.type_info(object_type), object_type.__name__)
    assert unlimited == []


def test_unknown_kind_is_refused_with_the_known_kinds() -> None:
    with pytest.raises(CalabashError, match="kind 'pod' is unknown") as told:
        parse_kind("pod")
    assert "subnet" in told.value.hint


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted({field for item in OBJECTS for field in encode(item)})


@given(kind=st.sampled_from(NetworkKind), data=st.data())
def test_any_data_is_decoded_or_refused_with_a_one_line_message(kind: NetworkKind, data: st.DataObject) -> None:
    example = next(item for item in OBJECTS if kind_of(item) is kind)
    spec: Any = dict(encode(example))
    for field in data.draw(st.lists(st.sampled_from([*spec, *FIELDS]), max_size=3)):
        spec[field] = data.draw(json_values)
    name = data.draw(st.just(example.name) | st.text(max_size=60))
    found, told = _read(kind, name, spec)
    if told is not None:
        assert told.hint
        assert len(told.message) < 600
        assert told.message.isprintable(), told.message
    if found is not None:
        assert decode(kind, found.name, encode(found)) == found
    assert (found is None) != (told is None)


def _read(kind: NetworkKind, name: str, spec: Any) -> tuple[NetworkObject | None, CalabashError | None]:
    try:
        return decode(kind, name, spec), None
    except CalabashError as error:
        return None, error
