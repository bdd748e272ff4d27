"""Checks of load balancers and of service endpoints."""

from __future__ import annotations

import re

from msgspec.structs import replace

from calabash.model.addresses import Address, check_label
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import Eip, NatKind, NatRule, Port, Subnet, vpc_of
from calabash.model.network_services import CheckKind, Layer, LoadBalancer, ServiceEndpoint, TransportProtocol
from calabash.net.addresses.allocation import allocated_number, check_host_address, free_address
from calabash.net.addresses.ranges import range_of
from calabash.net.checks.common import (
    NUMBER_MAX,
    check_between,
    check_distinct,
    check_immutable,
    conflict_error,
    describe,
    require_object,
)
from calabash.net.checks.limits import BACKENDS_PER_BALANCER, OFFERS_PER_BALANCER, check_count
from calabash.net.checks.managed_objects import check_managed_names, virtual_port
from calabash.net.checks.ports import AddressHolders
from calabash.net.objects.acceptance import ALL_TENANTS, offered_balancer
from calabash.net.objects.collection import NetworkObjects, VpcObjects

ENDPOINTS_MAX = 4095
INTERVAL_MIN_S = {Layer.L4: 1.0, Layer.L7: 0.1}  # OVN accepts whole seconds only
INTERVAL_MAX_S = 3600.0
FAILURES_MAX = 10
TENANT_LENGTH_MAX = 200
_PATH = re.compile(r"/[-A-Za-z0-9/._~%?&=+]{0,255}")
_SECRET = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]{0,99}")
SERVED = (TransportProtocol.TCP, TransportProtocol.UDP)


def check_balancer(networks: NetworkObjects, item: LoadBalancer, old: LoadBalancer | None) -> LoadBalancer:
    """Check a load balancer: backends, health check, offers, certificate and virtual address.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    objects = networks.of_vpc(vpc_of(item.name))
    if item.protocol not in SERVED or (item.layer is Layer.L7 and item.protocol is not TransportProtocol.TCP):
        raise CalabashError(f"{describe(item)}: l4 balances tcp or udp, l7 only tcp")
    if item.layer is Layer.L7:
        check_managed_names(item)
    item = replace(item, ports=item.ports or (old.ports if old else ()))
    check_between(item.vip_number, 1, NUMBER_MAX, f"port number of {describe(item)}")
    _check_backends(objects, item)
    _check_health(item)
    check_count(len(item.offered_to), OFFERS_PER_BALANCER, f"tenants that {describe(item)} is offered to")
    check_distinct(item.offered_to, f"tenants that {describe(item)} is offered to")
    if any(not tenant or len(tenant) > TENANT_LENGTH_MAX for tenant in item.offered_to):
        raise CalabashError(
            f"{describe(item)}: a tenant to which it is offered has an invalid name",
            hint=f"{ALL_TENANTS} offers it to all tenants",
        )
    if item.certificate and (item.layer is Layer.L4 or not _SECRET.fullmatch(item.certificate)):
        raise CalabashError(
            f"{describe(item)}: certificate {item.certificate[:100]!r} is not the name of a secret, or the balancer is l4",
            hint="only l7 terminates TLS",
        )
    subnet = next((subnet for subnet in objects.all(Subnet).values() if range_of(item.vip, subnet.cidrs)), None)
    if subnet is None:
        _check_external_vip(objects, item)
    else:
        _check_internal_vip(objects, item, subnet)
    check_immutable(item, old, "vip", "protocol", "layer", "ports")
    return item


def _check_backends(objects: VpcObjects, item: LoadBalancer) -> None:
    if not item.backends:
        raise CalabashError(f"{describe(item)} has no backend", hint="--backends PORT:NUMBER")
    check_count(len(item.backends), BACKENDS_PER_BALANCER, f"backends of {describe(item)}")
    check_distinct(item.backends, f"backends of {describe(item)}")
    for backend in item.backends:
        check_between(backend.number, 1, NUMBER_MAX, f"port number of backend {backend.port[:150]} of {describe(item)}")
        port = require_object(objects, Port, backend.port, describe(item))
        if not any(address.version == item.vip.version for address in port.addresses):
            raise CalabashError(f"{describe(item)}: backend {port.name} has no address of the IP version of {item.vip}")
        if port.name in item.ports:
            raise CalabashError(f"{describe(item)}: port {port.name} of the load balancer itself cannot be a backend")


def _check_health(item: LoadBalancer) -> None:
    check = item.check
    if check.kind is CheckKind.HTTP and item.layer is Layer.L4:
        raise CalabashError(f"{describe(item)}: l4 does not support http checks", hint="use l7, or a tcp check")
    if check.kind is CheckKind.TCP and item.protocol is not TransportProtocol.TCP:
        raise CalabashError(f"{describe(item)}: a tcp check needs protocol tcp, not {item.protocol.value}")
    if check.kind is CheckKind.HTTP and not _PATH.fullmatch(check.path):
        raise CalabashError(
            f"{describe(item)}: {check.path[:100]!r} is not a valid path", hint="use a path such as /healthz"
        )
    if check.kind is not CheckKind.HTTP and check.path:
        raise CalabashError(f"{describe(item)}: only an http check has a path")
    least = INTERVAL_MIN_S[item.layer]
    if not least <= check.interval_s <= INTERVAL_MAX_S:
        raise CalabashError(
            f"{describe(item)}: check interval {check.interval_s} s is not between {least} s and {INTERVAL_MAX_S} s"
        )
    check_between(check.failures, 1, FAILURES_MAX, f"failures of {describe(item)}")


def _check_internal_vip(objects: VpcObjects, item: LoadBalancer, subnet: Subnet) -> None:
    cidr = range_of(item.vip, subnet.cidrs)
    if cidr is not None:
        check_host_address(item.vip, cidr, describe(item))
    own = virtual_port(item, subnet.name) if item.layer is Layer.L7 else ""
    AddressHolders(objects, own, balancers=False).check(item.vip, describe(item))
    for other in objects.all(LoadBalancer).values():
        if other.name == item.name or other.vip != item.vip:
            continue
        if Layer.L7 in (item.layer, other.layer) or _service_key(item) == _service_key(other):
            raise conflict_error(
                f"{describe(item)}: {item.vip} is taken by {describe(other)}", hint="use another address or number"
            )


def _check_external_vip(objects: VpcObjects, item: LoadBalancer) -> None:
    eip = next((eip for eip in objects.all(Eip).values() if eip.address == item.vip), None)
    if eip is None:
        raise CalabashError(
            f"{describe(item)}: {item.vip} is neither in a subnet of the VPC nor one of its outside addresses",
            reason=Reason.NOT_FOUND,
            hint="use a free address of a subnet, or create an EIP first",
        )
    if item.layer is Layer.L7:
        raise CalabashError(
            f"{describe(item)}: l7 needs an address in a subnet",
            hint=f"add a dnat rule from {eip.name} to the virtual port",
        )
    for rule in objects.all(NatRule).values():
        same = rule.kind is NatKind.FIP or (rule.protocol, rule.outside_number) == _service_key(item)
        if rule.eip == eip.name and same:
            raise conflict_error(f"{describe(item)}: {eip.name} is in use by {describe(rule)}")
    for other in objects.all(LoadBalancer).values():
        if other.name != item.name and other.vip == item.vip and _service_key(other) == _service_key(item):
            raise conflict_error(f"{describe(item)}: {item.vip}:{item.vip_number} is taken by {describe(other)}")


def _service_key(item: LoadBalancer) -> tuple[TransportProtocol, int]:
    return item.protocol, item.vip_number


def check_endpoint(networks: NetworkObjects, item: ServiceEndpoint, old: ServiceEndpoint | None) -> ServiceEndpoint:
    """Check a service endpoint and complete its address, subnet and number.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    vpc = vpc_of(item.name)
    objects = networks.of_vpc(vpc)
    for label in item.source.split("/")[:3]:
        check_label(label, f"source of {describe(item)}")
    if vpc_of(item.source) == vpc:
        raise CalabashError(
            f"{describe(item)}: {item.source} is in the same VPC", hint="use the address of the load balancer"
        )
    balancer = offered_balancer(networks, item.source, vpc)
    if balancer is None:
        raise CalabashError(
            f"{describe(item)}: no load balancer {item.source} is offered to the tenant of the VPC",
            reason=Reason.NOT_FOUND,
            hint="the owner can offer it with --offer TENANT",
        )
    subnet = _choose_subnet(objects, item, old, balancer.vip.version)
    cidr = next((cidr for cidr in subnet.cidrs if cidr.version == balancer.vip.version), None)
    if cidr is None:
        raise CalabashError(f"{describe(item)}: subnet {subnet.name} has no range of the IP version of {balancer.vip}")
    taken = AddressHolders(objects, item.name)
    vip: Address | None = item.vip or (old.vip if old else None)
    if vip is None:
        vip = free_address(cidr, taken, describe(item))
    check_host_address(vip, cidr, describe(item))
    taken.check(vip, describe(item))
    numbers = {other.number for other in networks.all(ServiceEndpoint) if other.name != item.name}
    number = allocated_number(item.number, old.number if old else 0, numbers, ENDPOINTS_MAX, describe(item))
    item = replace(item, vip=vip, subnet=subnet.name, number=number)
    check_immutable(item, old, "source", "vip", "subnet", "number")
    return item


def _choose_subnet(objects: VpcObjects, item: ServiceEndpoint, old: ServiceEndpoint | None, version: int) -> Subnet:
    name = item.subnet or (old.subnet if old else "")
    if name:
        return require_object(objects, Subnet, name, describe(item))
    for subnet in sorted(objects.all(Subnet).values(), key=lambda subnet: subnet.number):
        fitting = [cidr for cidr in subnet.cidrs if cidr.version == version]
        if fitting and (item.vip is None or item.vip in fitting[0]):
            return subnet
    raise CalabashError(
        f"{describe(item)}: no subnet of the VPC has {item.vip or f'an IPv{version} range'}", reason=Reason.NOT_FOUND
    )
