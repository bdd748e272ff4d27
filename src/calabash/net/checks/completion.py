"""Checks common to all kinds: names, limits, existence of the VPC; then dispatch to the check of the kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calabash.model.addresses import check_path
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import PATH_PARTS, NetworkKind, NetworkObject, kind_of, vpc_of
from calabash.net.checks.common import PLATFORM_LABEL, describe, describe_kind, is_reserved_name
from calabash.net.checks.gateways import check_eip, check_gateway, check_nat, check_uplink
from calabash.net.checks.limits import PER_VPC, POOL
from calabash.net.checks.load_balancers import check_balancer, check_endpoint
from calabash.net.checks.ports import check_group, check_port
from calabash.net.checks.qos_dns import check_qos, check_record
from calabash.net.checks.routes import check_line, check_peering, check_route
from calabash.net.checks.subnets import check_subnet, check_vpc
from calabash.net.objects.collection import NetworkObjects

Check = Callable[[NetworkObjects, Any, Any], NetworkObject]
CHECKS: dict[NetworkKind, Check] = {
    NetworkKind.VPC: check_vpc,
    NetworkKind.SUBNET: check_subnet,
    NetworkKind.PORT: check_port,
    NetworkKind.SECURITY_GROUP: check_group,
    NetworkKind.UPLINK: check_uplink,
    NetworkKind.GATEWAY: check_gateway,
    NetworkKind.EIP: check_eip,
    NetworkKind.NAT_RULE: check_nat,
    NetworkKind.LOAD_BALANCER: check_balancer,
    NetworkKind.PEERING: check_peering,
    NetworkKind.SERVICE_ENDPOINT: check_endpoint,
    NetworkKind.ROUTE: check_route,
    NetworkKind.DEDICATED_LINE: check_line,
    NetworkKind.DNS_RECORD: check_record,
    NetworkKind.QOS_POLICY: check_qos,
}
POOL_KINDS = (NetworkKind.VPC, NetworkKind.UPLINK)  # kinds of objects that are not in a VPC


def complete_object(
    networks: NetworkObjects, item: NetworkObject, old: NetworkObject | None, *, platform: bool
) -> NetworkObject:
    """Return ``item`` with all empty fields completed.

    Args:
        networks: all existing objects.
        item: the object as requested.
        old: current version of the object; None for a new object.
        platform: True if the platform creates the object, which may then have a reserved name.

    Raises:
        CalabashError: the object is invalid, or a limit is reached.
    """
    kind = kind_of(item)
    labels = check_path(item.name, PATH_PARTS[kind], kind.value)
    if is_reserved_name(item.name) and not platform:
        raise CalabashError(
            f"{describe(item)}: names that begin with {PLATFORM_LABEL} are reserved",
            reason=Reason.NOT_PERMITTED,
            hint="choose another name",
        )
    if kind not in POOL_KINDS and not networks.of_vpc(labels[0]).kinds:
        raise CalabashError(
            f"{describe(item)}: {describe_kind(NetworkKind.VPC, labels[0])} does not exist",
            reason=Reason.NOT_FOUND,
            hint=f"calabash net vpc create {labels[0]} --cidr 10.0.0.0/16",
        )
    if old is None:
        _check_limits(networks, item, kind)
    return CHECKS[kind](networks, item, old)


def _check_limits(networks: NetworkObjects, item: NetworkObject, kind: NetworkKind) -> None:
    if (most := PER_VPC.get(kind)) is not None:
        found = len(networks.of_vpc(vpc_of(item.name)).kinds.get(kind, {}))
        if found >= most:
            raise _limit_error(item, found, f"VPC {vpc_of(item.name)} has", kind)
    if (most := POOL.get(kind)) is not None:
        found = sum(len(objects.kinds.get(kind, ())) for objects in networks.vpcs.values())
        if found >= most:
            raise _limit_error(item, found, "the pool has", kind)


def _limit_error(item: NetworkObject, found: int, where: str, kind: NetworkKind) -> CalabashError:
    return CalabashError(
        f"{describe(item)}: {where} reached the limit of {found} objects of kind {kind.value}",
        reason=Reason.NO_CAPACITY,
        hint="delete objects that are not needed",
    )
