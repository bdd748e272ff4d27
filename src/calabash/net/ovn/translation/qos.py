"""Translation of QoS policies to QoS rows, which limit the rate of a port on its own host."""

from __future__ import annotations

from calabash.model.network import Port, QosPolicy, Subnet
from calabash.net.ovn.northbound import naming
from calabash.net.ovn.northbound.draft import Draft
from calabash.net.ovn.northbound.rows import Ref
from calabash.net.ovn.translation.security_groups import FROM_PORT, TO_PORT
from calabash.net.ovn.translation.view import View

PRIORITY = 100
BURST_S = 1  # burst as seconds of the rate; with a tenth of it TCP reaches half the rate


def add_qos(view: View, draft: Draft) -> None:
    """Add the rate limits of all ports with a QoS policy."""
    policies, subnets = view.all(QosPolicy), view.all(Subnet)
    for port in view.all(Port).values():
        policy = policies.get(port.qos)
        if policy is None:
            continue
        switch = Ref("Logical_Switch", naming.switch(subnets[port.name.rsplit("/", 1)[0]].name))
        for direction, side, bits_per_s in (
            (FROM_PORT, "inport", policy.egress_bits_per_s),
            (TO_PORT, "outport", policy.ingress_bits_per_s),
        ):
            if not bits_per_s:
                continue
            rate_kbits = max(1, bits_per_s // 1000)
            draft.add(
                "QoS",
                f"{port.name}:{direction}",
                {
                    "priority": PRIORITY,
                    "direction": direction,
                    "match": f'{side} == "{port.name}"',
                    "bandwidth": {"rate": rate_kbits, "burst": rate_kbits * BURST_S},
                },
                under=(switch, "qos_rules"),
            )
