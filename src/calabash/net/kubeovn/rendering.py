"""The book of networks as custom resources of Kube-OVN: the second back-end. Pure.

Every object becomes resources, or a part of one, or an ``Unsupported`` that says what of it cannot be had and why; what is
rendered in part has both. Ports are pods in the VPC's namespace: their annotations are in a ConfigMap ``calabash-ports`` there
(and ``calabash-ports-2`` and so on, as each has room for a MiB), by the port's name in the VPC.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from calabash.model.errors import CalabashError, Reason
from calabash.model.network import (
    KINDS,
    DedicatedLine,
    DnsRecord,
    Eip,
    NatRule,
    NetworkGateway,
    NetworkKind,
    NetworkObject,
    NetworkRoute,
    Peering,
    Port,
    QosPolicy,
    SecurityGroup,
    Subnet,
    Uplink,
    Vpc,
)
from calabash.model.network_services import LoadBalancer, ServiceEndpoint
from calabash.net.kubeovn.gateways import render_eip, render_gateway, render_line, render_nat, render_uplink
from calabash.net.kubeovn.resources import KubeOvnResource, Rendering, Unsupported
from calabash.net.kubeovn.services import (
    render_balancer,
    render_endpoint,
    render_peering,
    render_record,
    render_route,
)
from calabash.net.kubeovn.subnets import render_group, render_port, render_qos, render_subnet, vpc_spec
from calabash.net.objects.collection import NetworkObjects, VpcObjects

PORTS = "calabash-ports"
PORTS_PER_MAP = 1000
_SPACES: dict[type, Callable[[Rendering, Any], None]] = {
    SecurityGroup: render_group,
    Subnet: render_subnet,
    QosPolicy: render_qos,
    Port: render_port,
}
_OF_THE_VPC: dict[type, Callable[[Rendering, Any, dict[str, Any]], None]] = {
    NetworkGateway: render_gateway,
    DedicatedLine: render_line,
    NetworkRoute: render_route,
    Peering: render_peering,
}
_SERVICES: dict[type, Callable[[Rendering, Any], None]] = {
    Eip: render_eip,
    NatRule: render_nat,
    LoadBalancer: render_balancer,
    DnsRecord: render_record,
    ServiceEndpoint: render_endpoint,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeOvnRendering:
    """Resources in an order in which they can be applied, what cannot be had, annotations of pods by port, and of which
    resource those objects are a part that have none of their own."""

    resources: tuple[KubeOvnResource, ...]
    unsupported: tuple[Unsupported, ...] = ()
    pods: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    parts: Mapping[tuple[NetworkKind, str], str] = field(default_factory=dict)


def render_kube_ovn(networks: NetworkObjects, *, interfaces: Mapping[str, str] | None = None) -> KubeOvnRendering:
    """Everything in a book. ``interfaces``: the hosts' network card for each ``physical`` of uplinks and lines.

    Raises CalabashError for objects that the book has not completed.
    """
    into = Rendering(networks=networks, interfaces=interfaces or {})
    for uplink in networks.all(Uplink):
        render_uplink(into, uplink)
    for vpc in networks.all(Vpc):
        if not vpc.number:
            raise CalabashError(f"VPC {vpc.name} has no number", reason=Reason.BAD_REQUEST, hint="put it into a book")
        _vpc(into, vpc)
    return KubeOvnRendering(
        resources=tuple(into.resources),
        unsupported=tuple(sorted(into.unsupported)),
        pods=into.pods,
        parts=into.parts,
    )


def _vpc(into: Rendering, vpc: Vpc) -> None:
    """The Vpc itself stands before all that is in it, and is known only afterwards."""
    objects = into.objects(vpc.name)
    place = len(into.resources)
    spec = vpc_spec(into, vpc)
    for kind, render in _SPACES.items():
        for item in _of(objects, kind):
            render(into, item)
    for kind, part in _OF_THE_VPC.items():
        for item in _of(objects, kind):
            part(into, item, spec)
    for kind, render in _SERVICES.items():
        for item in _of(objects, kind):
            render(into, item)
    own = into.space(vpc.name)
    first = [_resource("Namespace", own, {}, vpc, api="v1"), _resource("Vpc", own, spec, vpc)]
    into.resources[place:place] = first
    noted = {
        name.split("/", 1)[1].replace("/", "."): json.dumps(found, sort_keys=True)
        for name, found in sorted(into.pods.items())
        if name.startswith(f"{vpc.name}/")
    }
    for begin in range(0, len(noted), PORTS_PER_MAP):
        name = PORTS if not begin else f"{PORTS}-{begin // PORTS_PER_MAP + 1}"
        some = dict(list(noted.items())[begin : begin + PORTS_PER_MAP])
        into.resources.append(_resource("ConfigMap", name, some, vpc, api="v1", namespace=own))


def _of(objects: VpcObjects, kind: type) -> list[NetworkObject]:
    """In the order of their names, so that the same book gives the same text."""
    return [item for _, item in sorted(objects.kinds.get(KINDS[kind], {}).items())]


def _resource(
    kind: str, name: str, spec: Mapping[str, Any], of: NetworkObject, *, api: str = "", namespace: str = ""
) -> KubeOvnResource:
    made = KubeOvnResource(kind=kind, name=name, spec=spec, of=of.name, namespace=namespace)
    return (
        made if not api else KubeOvnResource(kind=kind, name=name, spec=spec, of=of.name, namespace=namespace, api=api)
    )
