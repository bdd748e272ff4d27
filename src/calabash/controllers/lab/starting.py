"""Start of a lab: the central part and all switches in parallel, then ovn-controllers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from calabash.controllers.lab.central import LabCentral
from calabash.controllers.lab.certificates import LabAuthority
from calabash.controllers.lab.host import LabHost

_CHASSIS_S = 60


def start(central: LabCentral, hosts: Sequence[LabHost], *, keys: Path) -> None:
    """Start the lab; return when every host is a chassis.

    ``keys``: directory of the certificate authority. Raises CalabashError.
    """
    if central.namespace:
        authority = LabAuthority(keys)
        authority.issue(central.keys, "central")
        for host in hosts:
            authority.issue(host.keys, host.name)
    with ThreadPoolExecutor(max_workers=len(hosts) + 1) as pool:
        ready = pool.submit(central.up)
        started = [pool.submit(_start_host, host, ready) for host in hosts]
    for outcome in (ready, *started):
        outcome.result()
    for host in hosts:
        central.sbctl("wait-until", "Chassis", host.name, timeout_s=_CHASSIS_S)


def _start_host(host: LabHost, central: Future[None]) -> None:
    host.up_switch()
    central.result()  # ovn-controller retries a failed connection only after a second
    host.start("ovn-controller")
