"""Load balancers of tenant networks, and endpoints for them in other VPCs."""

from __future__ import annotations

from enum import StrEnum

from calabash.model.addresses import Address
from calabash.model.strict_types import Integer, Items, Real, StrictStruct, Text


class TransportProtocol(StrEnum):
    ANY = "any"
    TCP = "tcp"
    UDP = "udp"
    SCTP = "sctp"
    ICMP = "icmp"


class Layer(StrEnum):
    """Layer of a load balancer.

    L4: OVN distributes connections. L7: a pair of HAProxy processes terminates TLS or proxies HTTP.
    """

    L4 = "l4"
    L7 = "l7"


class CheckKind(StrEnum):
    NONE = "none"
    TCP = "tcp"
    HTTP = "http"


class HealthCheck(StrictStruct, frozen=True, kw_only=True):
    """Health check of the backends of a load balancer.

    Args:
        kind: HTTP is for L7 only; a backend is healthy if ``path`` answers with status 200 to 399.
        interval_s: time between two checks.
        failures: number of consecutive failures after which a backend is unhealthy.
    """

    kind: CheckKind = CheckKind.NONE
    path: Text = ""
    interval_s: Real = 1.0
    failures: Integer = 2


class Backend(StrictStruct, frozen=True, kw_only=True):
    """Backend of a load balancer: a port of the same VPC, and the TCP or UDP port number of its service."""

    port: Text
    number: Integer


class LoadBalancer(StrictStruct, frozen=True, kw_only=True):
    """Load balancer ``VPC/LB``: one virtual address (VIP) and port number in front of several ports.

    Args:
        vip: a free address in a subnet of the VPC, or the address of one of the VPC's EIPs.
        vip_number: the TCP or UDP port number of the service.
        protocol: TCP or UDP; L7 is TCP.
        certificate: L7 only: name of the secret with the TLS certificate and key; "" for plain HTTP.
        ports: L7 only: the network ports of the two HAProxy processes, and the virtual port that moves between them; allocated.
        offered_to: other tenants whose VPCs may have an endpoint for it; "*" for all.
    """

    name: Text
    vip: Address
    vip_number: Integer
    backends: Items[Backend]
    protocol: TransportProtocol = TransportProtocol.TCP
    check: HealthCheck = HealthCheck()
    layer: Layer = Layer.L4
    certificate: Text = ""
    ports: Items[Text] = ()
    offered_to: Items[Text] = ()


class ServiceEndpoint(StrictStruct, frozen=True, kw_only=True):
    """Service endpoint ``VPC/ENDPOINT``: an address of this VPC that leads to a load balancer of another VPC.

    The IP ranges of the two VPCs may overlap.

    Args:
        source: ``VPC/LB``, the load balancer of the provider.
        vip: an address in a subnet of this VPC; None: allocated in ``subnet``.
        subnet: ``VPC/SUBNET``; "": the first subnet.
        number: 1..4095, unique; 0: allocated.
    """

    name: Text
    source: Text
    vip: Address | None = None
    subnet: Text = ""
    number: Integer = 0
