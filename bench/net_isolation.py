"""Isolation of tenants with equal addresses, by OVN's own northd and ``ovn-trace``: packets that reach another tenant.

No packet is sent. Random ports try random ports of others, with their addresses, their MACs, forged senders, tags and frames
of no protocol; a sender on the provider's segment tries the tenants' own addresses. OVN treats every connection as
established, which is the worst case. In between, ports try their own tenant's: these must arrive.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from tests.net.control_plane import ControlPlane
from tests.net.leaks import attempts, leaks, tenants

from bench._report import Report, run
from calabash.model.network import Port
from calabash.net.store.networks import Networks

TENANTS = 100
PACKETS, QUICK_PACKETS = 50_000, 10_000
OWN = 1000


def measure(report: Report) -> None:
    """Measure all; the short form has as many tenants and fewer packets."""
    seed = random.SystemRandom().randrange(1 << 30)
    report.fact("tenants", f"{TENANTS}, 3 ports each, all with the same addresses")
    report.fact("seed", str(seed))
    networks = tenants(TENANTS)
    with tempfile.TemporaryDirectory() as directory, ControlPlane(Path(directory)) as plane:
        begun = time.monotonic()
        plane.put(networks)
        report.add("all networks in OVN's databases", time.monotonic() - begun, "s", detail="northd included")
        plane.trace()
        packets = QUICK_PACKETS if report.quick else PACKETS
        across = 0
        begun = time.monotonic()
        for attempt in attempts(networks, packets, seed):
            across += bool(leaks(plane.outputs(attempt.switch, attempt.flow), attempt))
        passed = time.monotonic() - begun
        report.add("packets tried", packets, "", at_least=10_000, detail=f"{packets / passed:,.0f}/s")
        report.add("packets that came to another tenant", across, "", at_most=0)
        arrived = sum(_arrives(plane, networks, number) for number in range(OWN))
        report.add("packets that came to their own tenant's port", arrived / OWN, "", at_least=1, detail=f"of {OWN}")


def _arrives(plane: ControlPlane, networks: Networks, number: int) -> bool:
    vpc = f"t{number % TENANTS + 1}"
    one, other = list(networks.of_vpc(vpc).all(Port).values())[:2]
    flow = (
        f'inport == "{one.name}" && eth.src == {one.mac} && eth.dst == {other.mac} && ip.ttl == 64 && '
        f"ip4.src == {one.addresses[0]} && ip4.dst == {other.addresses[0]} && tcp && tcp.dst == {number + 1}"
    )
    return plane.outputs(f"cb-{vpc}/a", flow) == [other.name]


if __name__ == "__main__":
    run("net_isolation", "Tenants with equal addresses", measure)
