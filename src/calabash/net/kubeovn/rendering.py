"""Rendering of a store of networks as custom resources of Kube-OVN.

Every object is rendered as resources, as a part of another resource, or as an ``Unsupported`` with the reason. A partly
supported object has resources and an ``Unsupported``. With Kube-OVN a port is the network interface of a pod, and its
settings are annotations of this pod. The annotations for each port are therefore written to a ConfigMap
``calabash-ports`` in the VPC's namespace, and must be copied to the pods from there. A ConfigMap is limited to 1 MiB;
further annotations are in ``calabash-ports-2`` and so on.
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
_SUBNET_RENDERERS: dict[type, Callable[[Rendering, Any], None]] = {
    SecurityGroup: render_group,
    Subnet: render_subnet,
    QosPolicy: render_qos,
    Port: render_port,
}
_VPC_RENDERERS: dict[type, Callable[[Rendering, Any, dict[str, Any]], None]] = {
    NetworkGateway: render_gateway,
    DedicatedLine: render_line,
    NetworkRoute: render_route,
    Peering: render_peering,
}
_SERVICE_RENDERERS: dict[type, Callable[[Rendering, Any], None]] = {
    Eip: render_eip,
    NatRule: render_nat,
    LoadBalancer: render_balancer,
    DnsRecord: render_record,
    ServiceEndpoint: render_endpoint,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeOvnRendering:
    """Result of a rendering.

    Args:
        resources: the resources, in an order in which they can be applied.
        unsupported: objects, or properties of objects, that Kube-OVN does not support.
        pods: annotations of the pod of each port, by port name.
        parts: for each object without a resource of its own, a text that names the resource which contains it.
    """

    resources: tuple[KubeOvnResource, ...]
    unsupported: tuple[Unsupported, ...] = ()
    pods: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    parts: Mapping[tuple[NetworkKind, str], str] = field(default_factory=dict)


def render_kube_ovn(networks: NetworkObjects, *, interfaces: Mapping[str, str] | None = None) -> KubeOvnRendering:
    """Render all objects of a store.

    Args:
        interfaces: network interface of the hosts for each ``physical`` name of uplinks and lines.

    Raises:
        CalabashError: an object was not completed by a store.
    """
    into = Rendering(networks=networks, interfaces=interfaces or {})
    for uplink in networks.all(Uplink):
        render_uplink(into, uplink)
    for vpc in networks.all(Vpc):
        if not vpc.number:
            raise CalabashError(
                f"VPC {vpc.name} has no number",
                reason=Reason.BAD_REQUEST,
                hint="render networks of a pool, or objects read by `calabash net render -f`",
            )
        _vpc(into, vpc)
    return KubeOvnRendering(
        resources=tuple(into.resources),
        unsupported=tuple(sorted(into.unsupported)),
        pods=into.pods,
        parts=into.parts,
    )


def _vpc(into: Rendering, vpc: Vpc) -> None:
    """Render a VPC and its objects.

    The Vpc resource precedes the resources in the VPC, but its spec is complete only after these are rendered.
    """
    objects = into.objects(vpc.name)
    place = len(into.resources)
    spec = vpc_spec(into, vpc)
    for kind, render in _SUBNET_RENDERERS.items():
        for item in _sorted_objects(objects, kind):
            render(into, item)
    for kind, part in _VPC_RENDERERS.items():
        for item in _sorted_objects(objects, kind):
            part(into, item, spec)
    for kind, render in _SERVICE_RENDERERS.items():
        for item in _sorted_objects(objects, kind):
            render(into, item)
    own = into.space(vpc.name)
    first = [_resource("Namespace", own, {}, vpc, api="v1"), _resource("Vpc", own, spec, vpc)]
    into.resources[place:place] = first
    annotations = {
        name.split("/", 1)[1].replace("/", "."): json.dumps(found, sort_keys=True)
        for name, found in sorted(into.pods.items())
        if name.startswith(f"{vpc.name}/")
    }
    for begin in range(0, len(annotations), PORTS_PER_MAP):
        name = PORTS if not begin else f"{PORTS}-{begin // PORTS_PER_MAP + 1}"
        chunk = dict(list(annotations.items())[begin : begin + PORTS_PER_MAP])
        into.resources.append(_resource("ConfigMap", name, chunk, vpc, api="v1", namespace=own))


def _sorted_objects(objects: VpcObjects, kind: type) -> list[NetworkObject]:
    """Return the objects of one class sorted by name, so that the output is deterministic."""
    return [item for _, item in sorted(objects.kinds.get(KINDS[kind], {}).items())]


def _resource(
    kind: str, name: str, spec: Mapping[str, Any], of: NetworkObject, *, api: str = "", namespace: str = ""
) -> KubeOvnResource:
    made = KubeOvnResource(kind=kind, name=name, spec=spec, of=of.name, namespace=namespace)
    return (
        made if not api else KubeOvnResource(kind=kind, name=name, spec=spec, of=of.name, namespace=namespace, api=api)
    )
