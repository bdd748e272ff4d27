"""Progress of a change: whether northd and all live hosts that it affects have carried it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calabash.adapters.ovn.southbound import Chassis
from calabash.model.network import NetworkKind, Port
from calabash.net.objects.collection import VpcObjects

SILENT_S = 6.0  # a host that has not carried out a change for so long counts as dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a change of one VPC.

    Args:
        waits_for: names of the hosts that respond but have not carried out the change, or "northd".
        silent: names of the affected hosts that do not respond; the change is realized without them.
    """

    waits_for: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def realized(self) -> bool:
        return not self.waits_for


def hosts_of(objects: VpcObjects, port_hosts: Mapping[str, str], gateways: Iterable[str]) -> frozenset[str]:
    """Return the hosts that changes of a VPC affect.

    The result has the hosts with ports of the VPC, and all gateway hosts if the VPC has a gateway or a dedicated line.

    Args:
        objects: the objects of the VPC.
        port_hosts: host of each port, by port name.
        gateways: names of the gateway hosts.
    """
    found = {port_hosts[name] for name in objects.all(Port) if name in port_hosts}
    if any(objects.kinds.get(kind) for kind in (NetworkKind.GATEWAY, NetworkKind.DEDICATED_LINE)):
        found |= set(gateways)
    return frozenset(found)


def progress(
    count: int, southbound_count: int, hosts: frozenset[str], chassis: Iterable[Chassis], *, silent_s: float = SILENT_S
) -> Progress:
    """Return the progress of a change.

    Args:
        count: number (``nb_cfg``) of the change.
        southbound_count: number of the last change that northd has written to the southbound database.
        hosts: names of the hosts that the change affects.
        chassis: all hosts that have registered in the southbound database.
        silent_s: seconds after which a host that has not carried out a change counts as silent.
    """
    known = {one.name: one for one in chassis if one.name in hosts}
    silent = tuple(sorted(host for host in hosts if host not in known or known[host].silent_s > silent_s))
    if southbound_count < count:
        return Progress(waits_for=("northd",), silent=silent)
    pending = (
        name
        for name, one in known.items()
        if one.silent_s <= silent_s
        and not count <= one.nb_cfg <= southbound_count  # a larger number is from a replaced database
    )
    return Progress(waits_for=tuple(sorted(pending)), silent=silent)
