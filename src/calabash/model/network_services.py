"""Services of a tenant network: one address in front of several ports, within a VPC and across."""

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
    """L4: OVN spreads connections. L7: a pair of HAProxy ends TLS or reads HTTP."""

    L4 = "l4"
    L7 = "l7"


class CheckKind(StrEnum):
    NONE = "none"
    TCP = "tcp"
    HTTP = "http"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """How a backend is seen to be well. HTTP, for L7 only: ``path`` answers 200 to 399."""

    kind: CheckKind = CheckKind.NONE
    path: str = ""
    interval_s: float = 1.0
    failures: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A port of the same VPC, and the number at which it serves."""

    port: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancer:
    """``VPC/LB``: one address and number in front of several ports.

    Args:
        vip, vip_number: in a subnet of the VPC and free there, or the address of one of its EIPs.
        protocol: TCP or UDP; L7 is TCP.
        certificate: of L7: name of the secret with certificate and key that end TLS; "" plain HTTP.
        ports: of L7: the pair's own two ports, and the virtual one that moves between them; allocated.
        offered_to: tenants beside its own whose VPCs may have an endpoint of it; "*" all.
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
    """``VPC/ENDPOINT``: a load balancer of another VPC under an address of this one, whatever ranges both have.

    Args:
        source: ``VPC/LB`` of the provider.
        vip: in a subnet of this VPC; None: to be allocated in ``subnet``.
        subnet: ``VPC/SUBNET``; "": the first.
        number: 1..4095, unique; 0: to be allocated.
    """

    name: str
    source: str
    vip: Address | None = None
    subnet: str = ""
    number: int = 0
