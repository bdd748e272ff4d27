"""Requests and host ports of a pod, as kube-scheduler counts them.

All containers run together, and each sidecar (an init container that is restarted) runs from its start to the end of
the pod. While init container ``i`` runs, the sidecars before it run too. The pod requests of each resource the largest
amount of these phases (KEP 753). Amounts for the whole pod replace those of its containers, and the overhead of its
runtime class is added. Sums are exact; the sum of a resource is rounded up to whole bytes, pieces or millicores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from calabash.kubernetes.node_filters.wire import WireContainer, WireContainerStatus, WirePod, WireResources
from calabash.kubernetes.objects.quantity import Written, parse_quantity
from calabash.model.errors import CalabashError

CPU = "cpu"
PODS = "pods"
ANY_ADDRESS = "0.0.0.0"  # noqa: S104
_NANO = 10**9
_OF_PODS = ("cpu", "memory")  # resources that can be requested for a whole pod, besides huge pages
_HUGE_PAGES = "hugepages-"
_INFEASIBLE = ("PodResizePending", "Infeasible")

_Nanos = dict[str, int]


@dataclass(frozen=True, slots=True)
class HostPort:
    """Port of the node: address (``0.0.0.0`` for all), protocol and number."""

    address: str
    protocol: str
    number: int


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests of a pod.

    Args:
        amounts: positive amounts by resource, in millicores for ``cpu`` and else in bytes or pieces.
        ports: host ports.
    """

    amounts: tuple[tuple[str, int], ...] = ()
    ports: tuple[HostPort, ...] = ()


def pod_demand(pod: WirePod, *, with_status: bool) -> Demand:
    """Return the requests of a pod.

    Args:
        with_status: True for a pod that has a node. If its containers are being resized, the larger of the requested
            and the allocated amounts counts.

    Raises:
        CalabashError: an amount is not valid.
    """
    requests = _requests(pod, with_status)
    return Demand(
        amounts=tuple((name, rounded(name, amount)) for name, amount in sorted(requests.items()) if amount > 0),
        ports=tuple(_host_ports(pod)),
    )


def capacity(allocatable: Mapping[str, Written]) -> dict[str, int]:
    """Return the allocatable amounts of a node, in the units of ``Demand``. Raises CalabashError if one is not valid."""
    return {name: rounded(name, amount) for name, amount in nanos(allocatable).items()}


def rounded(name: str, amount: int) -> int:
    """Return an amount in billionths as millicores for ``cpu`` and else as bytes or pieces, rounded up."""
    return -(-amount // (_NANO // 1000 if name == CPU else _NANO))


def _requests(pod: WirePod, with_status: bool) -> _Nanos:
    spec, status = pod.spec, pod.status
    statuses: dict[str, WireContainerStatus] = {}
    infeasible = False
    if with_status:
        statuses = {s.name: s for s in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))}
        infeasible = _is_infeasible(pod)
    total: _Nanos = {}
    for container in spec.containers or ():
        _add(total, _of_container(container, statuses, infeasible))
    sidecars: _Nanos = {}
    peak: _Nanos = {}
    for container in spec.init_containers or ():
        if container.is_sidecar:
            amounts = _of_container(container, statuses, infeasible)
            _add(total, amounts)
            _add(sidecars, amounts)
        else:
            phase = nanos(container.requests)
            _add(phase, sidecars)
            _raise(peak, phase)
    _raise(total, peak)
    total.update(_of_whole_pod(pod, with_status, infeasible))
    _add(total, nanos(spec.overhead or {}))
    return total


def _of_container(container: WireContainer, statuses: Mapping[str, WireContainerStatus], infeasible: bool) -> _Nanos:
    asked = nanos(container.requests)
    status = statuses.get(container.name)
    if status is None or status.resources is None:
        return asked
    return _effective(asked, status.resources, status.allocated_resources, infeasible)


def _of_whole_pod(pod: WirePod, with_status: bool, infeasible: bool) -> _Nanos:
    if pod.spec.resources is None:
        return {}
    asked = {
        name: amount
        for name, amount in nanos(pod.spec.resources.requests or {}).items()
        if name in _OF_PODS or name.startswith(_HUGE_PAGES)
    }
    if not with_status or pod.status.resources is None:
        return asked
    effective = _effective(asked, pod.status.resources, pod.status.allocated_resources, infeasible)
    return {name: effective.get(name, 0) for name in asked}


def _effective(
    asked: _Nanos, actual: WireResources, allocated: Mapping[str, Written] | None, infeasible: bool
) -> _Nanos:
    """Return the amounts of a container or pod that may be about to be resized.

    ``infeasible``: the kubelet has refused the new amounts, which then do not count.
    """
    found = nanos(actual.requests or {})
    _raise(found, nanos(allocated or {}))
    if not infeasible:
        _raise(found, asked)
    return found


def _is_infeasible(pod: WirePod) -> bool:
    kind, reason = _INFEASIBLE
    found = next((c for c in pod.status.conditions or () if c.type == kind), None)
    return found is not None and found.reason == reason


def _host_ports(pod: WirePod) -> Iterable[HostPort]:
    """Yield the host ports of all containers that run until the pod ends, each once.

    With the host's network, each port of a container is one of the host. The API server writes that into the pod.
    """
    spec = pod.spec
    sidecars = [c for c in spec.init_containers or () if c.is_sidecar]
    seen: dict[HostPort, None] = {}
    for container in (*sidecars, *(spec.containers or ())):
        for port in container.ports or ():
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number:
                seen[HostPort(port.host_ip or ANY_ADDRESS, port.protocol or "TCP", number)] = None
    return seen


def nanos(amounts: Mapping[str, Written]) -> _Nanos:
    """Return amounts in billionths. Raises CalabashError if one is not valid."""
    return {name: _nano(written, name) for name, written in amounts.items()}


@lru_cache(maxsize=4096)
def _nano(written: Written, what: str) -> int:
    """Return an amount in billionths, rounded up, which is the precision of the API server."""
    amount = parse_quantity(written, what=what)
    if amount < 0:
        raise CalabashError(f"{what} {written!r} is negative", hint="write an amount of 0 or more")
    return -(-amount.numerator * _NANO // amount.denominator)


def _add(total: _Nanos, amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: _Nanos, amounts: Mapping[str, int]) -> None:
    """Set each resource of ``total`` to the larger of both amounts."""
    for name, amount in amounts.items():
        total[name] = max(total.get(name, 0), amount)
