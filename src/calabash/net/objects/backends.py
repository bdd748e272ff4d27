"""Load balancer backends: names, the condition that summarises their health, and the text form of closed backends.

A backend is *closed* if its program has stopped listening while the port of the network still exists. It is represented
by the port's name and the TCP or UDP port number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from calabash.model.network_services import Backend

ClosedBackends = frozenset[tuple[str, int]]
NONE_CLOSED: ClosedBackends = frozenset()
NAMED_MAX = 5
ALL_HEALTHY, SOME_UNHEALTHY, NONE_HEALTHY = "backends_well", "backends_ill", "no_backend"


def format_closed(closed: ClosedBackends) -> str:
    """Format closed backends as one line, the inverse of ``parse_closed``."""
    return ",".join(f"{port}:{number}" for port, number in sorted(closed))


def parse_closed(lines: Iterable[str]) -> ClosedBackends:
    """Parse lines of ``format_closed``. Items of another form are ignored."""
    split = (item.rpartition(":") for line in lines for item in line.split(","))
    return frozenset((port, int(number)) for port, _, number in split if port and number.isdigit())


def backend_name(backend: Backend) -> str:
    """Return the name of a backend in messages and in HAProxy: ``SUBNET.PORT-NUMBER``."""
    return f"{backend.port.partition('/')[2].replace('/', '.')}-{backend.number}"


def backends_condition(healthy_by_name: Mapping[str, bool]) -> tuple[bool | None, str, str]:
    """Return the condition of a load balancer: whether it has a healthy backend, a reason code, and a text with counts.

    Args:
        healthy_by_name: True for each healthy backend, by name. If it is empty, no health is known and the load
            balancer counts as working.
    """
    if not healthy_by_name:
        return True, "active", ""
    unhealthy = sorted(name for name, passed in healthy_by_name.items() if not passed)
    more = f" and {len(unhealthy) - NAMED_MAX} more" if len(unhealthy) > NAMED_MAX else ""
    named = ", ".join(unhealthy[:NAMED_MAX]) + more
    healthy = len(healthy_by_name) - len(unhealthy)
    text = f"{healthy} of {len(healthy_by_name)} backends are healthy" + (f"; unhealthy: {named}" if unhealthy else "")
    reason = ALL_HEALTHY if not unhealthy else SOME_UNHEALTHY if healthy else NONE_HEALTHY
    return healthy > 0, reason, text
