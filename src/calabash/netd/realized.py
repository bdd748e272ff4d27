"""Whether a change has been carried out, judged by the hosts that live and that it concerns. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calabash.model.network import NetworkKind, Port
from calabash.net.objects.collection import VpcObjects
from calabash.seams.ovn.southbound import Chassis

SILENT_S = 6.0  # what a host has not carried out for so long it never will: it is counted as dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Of one VPC: ``waits_for`` are northd or hosts that live and have it not; ``silent`` dead ones that it concerns."""

    waits_for: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def realized(self) -> bool:
        return not self.waits_for


def hosts_of(objects: VpcObjects, port_hosts: Mapping[str, str], gateways: Iterable[str]) -> frozenset[str]:
    """The hosts that a VPC concerns: those with ports of it, and gateway hosts where it leaves."""
    found = {port_hosts[name] for name in objects.all(Port) if name in port_hosts}
    if any(objects.kinds.get(kind) for kind in (NetworkKind.GATEWAY, NetworkKind.DEDICATED_LINE)):
        found |= set(gateways)
    return frozenset(found)


def progress(
    count: int, southbound_count: int, hosts: frozenset[str], chassis: Iterable[Chassis], *, silent_s: float = SILENT_S
) -> Progress:
    """How far the change that was counted as ``count`` has come.

    Args:
        southbound_count: what northd has carried to the southbound database.
        hosts: those that it concerns.
    """
    known = {one.name: one for one in chassis if one.name in hosts}
    silent = tuple(sorted(host for host in hosts if host not in known or known[host].silent_s > silent_s))
    if southbound_count < count:
        return Progress(waits_for=("northd",), silent=silent)
    late = (
        name
        for name, one in known.items()
        if one.silent_s <= silent_s
        and not count <= one.nb_cfg <= southbound_count  # more is of a database that is no more
    )
    return Progress(waits_for=tuple(sorted(late)), silent=silent)
