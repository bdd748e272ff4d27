"""Checks of DNS records and QoS policies."""

from __future__ import annotations

from msgspec.structs import replace

from calabash.model.addresses import check_label
from calabash.model.errors import CalabashError
from calabash.model.network import DnsRecord, QosPolicy, vpc_of
from calabash.net.checks.common import check_between, check_distinct, conflict_error, describe
from calabash.net.checks.limits import ADDRESSES_PER_RECORD, check_count
from calabash.net.objects.collection import NetworkObjects

HOST_LENGTH_MAX = 253
BITS_MIN, BITS_MAX = 1_000, 4_000_000_000_000  # OVN stores kbit/s in 32 bits
PORT_NAME_LABELS = 4  # number of labels of PORT.SUBNET.VPC.internal


def check_record(networks: NetworkObjects, item: DnsRecord, _old: DnsRecord | None) -> DnsRecord:
    """Check the host name and addresses of a DNS record, and that no other record of the VPC has this host name.

    Returns the record with the host name in lower case.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    host = item.host.lower().removesuffix(".")
    labels = host[: HOST_LENGTH_MAX + 1].split(".")
    for label in labels:
        check_label(label, f"host of {describe(item)}")
    check_between(len(host), 1, HOST_LENGTH_MAX, f"length of the host of {describe(item)}")
    vpc = vpc_of(item.name)
    if len(labels) == PORT_NAME_LABELS and labels[2:] == [vpc, "internal"]:
        raise CalabashError(
            f"{describe(item)}: {host} is a port's name", hint=f"use another, such as NAME.{vpc}.internal"
        )
    if not item.addresses:
        raise CalabashError(f"{describe(item)} has no address")
    check_count(len(item.addresses), ADDRESSES_PER_RECORD, f"addresses of {describe(item)}")
    check_distinct(item.addresses, f"addresses of {describe(item)}")
    for other in networks.of_vpc(vpc).all(DnsRecord).values():
        if other.name != item.name and other.host == host:
            raise conflict_error(f"{describe(item)}: {host} is the host of {describe(other)}", hint="change that one")
    return replace(item, host=host)


def check_qos(_networks: NetworkObjects, item: QosPolicy, _old: QosPolicy | None) -> QosPolicy:
    """Check that a QoS policy limits one direction, and that its rates are within the bounds of OVN.

    Raises:
        CalabashError: the object is invalid or conflicts with another one.
    """
    if not item.egress_bits_per_s and not item.ingress_bits_per_s:
        raise CalabashError(f"{describe(item)} limits no direction", hint="--rate 1Gbit")
    for bits in (item.egress_bits_per_s, item.ingress_bits_per_s):
        if bits:
            check_between(bits, BITS_MIN, BITS_MAX, f"bits per second of {describe(item)}")
    return item
