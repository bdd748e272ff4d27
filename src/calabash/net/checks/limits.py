"""Limits on the number of objects of each kind in a VPC and in the pool, and on the length of lists in one object.

Every object costs memory and time on every host, so objects beyond the limits are refused.
"""

from __future__ import annotations

from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind

VPCS_MAX = 4096
PER_VPC: dict[NetworkKind, int] = {
    NetworkKind.SUBNET: 64,
    NetworkKind.PORT: 4096,
    NetworkKind.SECURITY_GROUP: 128,
    NetworkKind.GATEWAY: 1,
    NetworkKind.EIP: 16,
    NetworkKind.NAT_RULE: 256,
    NetworkKind.LOAD_BALANCER: 64,
    NetworkKind.PEERING: 16,
    NetworkKind.SERVICE_ENDPOINT: 64,
    NetworkKind.ROUTE: 256,
    NetworkKind.DEDICATED_LINE: 8,
    NetworkKind.DNS_RECORD: 1024,
    NetworkKind.QOS_POLICY: 64,
}
POOL: dict[NetworkKind, int] = {NetworkKind.VPC: VPCS_MAX, NetworkKind.UPLINK: 255, NetworkKind.PORT: 100_000}

CIDRS_PER_VPC = 8
GROUPS_PER_PORT = 8
RULES_PER_GROUP = 128
BACKENDS_PER_BALANCER = 64
HOSTS_PER_UPLINK = 16
ROUTES_PER_PEER = 32
ADDRESSES_PER_RECORD = 16
PARENTS_PER_PORT = 8
OFFERS_PER_BALANCER = 64


def check_count(found: int, most: int, what: str) -> None:
    """Raise CalabashError (NO_CAPACITY) if ``found`` is greater than ``most``; ``what`` names the counted objects."""
    if found > most:
        raise CalabashError(f"{what}: {found}, the limit is {most}", reason=Reason.NO_CAPACITY)
