"""Load balancers of tenant networks, and endpoints for them in other VPCs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from calabash.model.addresses import Address


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """Health check of the backends of a load balancer.

    Args:
        kind: HTTP is for L7 only; a backend is healthy if ``path`` answers with status 200 to 399.
        interval_s: time between two checks.
        failures: number of consecutive failures after which a backend is unhealthy.
    """

    kind: CheckKind = CheckKind.NONE
    path: str = ""
    interval_s: float = 1.0
    failures: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Backend of a load balancer: a port of the same VPC, and the TCP or UDP port number of its service."""

    port: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancer:
    """Load balancer ``VPC/LB``: one virtual address (VIP) and port number in front of several ports.

    Args:
        vip: a free address in a subnet of the VPC, or the address of one of the VPC's EIPs.
        vip_number: the TCP or UDP port number of the service.
        protocol: TCP or UDP; L7 is TCP.
        certificate: L7 only: name of the secret with the TLS certificate and key; "" for plain HTTP.
        ports: L7 only: the network ports of the two HAProxy processes, and the virtual port that moves between them; allocated.
        offered_to: other tenants whose VPCs may have an endpoint for it; "*" for all.
    """

    name: str
    vip: Address
    vip_number: int
    backends: tuple[Backend, ...]
    protocol: TransportProtocol = TransportProtocol.TCP
    check: HealthCheck = field(default_factory=HealthCheck)
    layer: Layer = Layer.L4
    certificate: str = ""
    ports: tuple[str, ...] = ()
    offered_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceEndpoint:
    """Service endpoint ``VPC/ENDPOINT``: an address of this VPC that leads to a load balancer of another VPC.

    The IP ranges of the two VPCs may overlap.

    Args:
        source: ``VPC/LB``, the load balancer of the provider.
        vip: an address in a subnet of this VPC; None: allocated in ``subnet``.
        subnet: ``VPC/SUBNET``; "": the first subnet.
        number: 1..4095, unique; 0: allocated.
    """

    name: str
    source: str
    vip: Address | None = None
    subnet: str = ""
    number: int = 0
