"""State of replicas: whether they are active, health of load balancer backends, and the condition READY."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from calabash.adapters.links import namespaces
from calabash.model.network import NetworkKind
from calabash.model.network_status import ConditionKind, NetworkCondition
from calabash.net.appliances import haproxy
from calabash.net.appliances.model import Appliance
from calabash.net.objects.backends import backends_condition

_ANSWER_S = 1.0
_ANSWER_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """State of one replica.

    Args:
        item, kind: name and kind of the gateway or load balancer.
        active: True if the replica has the virtual address.
        healthy: health of each backend of a load balancer, by ``SUBNET.PORT-NUMBER``; empty if HAProxy did not respond.
        replica: name of the replica; "" if the gateway or load balancer is invalid and has none.
        failure: error of the last reconciliation; "" for none.
    """

    item: str
    kind: str
    replica: str
    active: bool = False
    healthy: Mapping[str, bool] = field(default_factory=dict)
    failure: str = ""


def current_state(appliance: Appliance, namespace: Path, directory: Path, failure: str) -> ReplicaState:
    """Return the current state of a replica.

    Args:
        appliance: desired configuration of the replica.
        namespace: network namespace of the replica.
        directory: directory of its files.
        failure: error of the last reconciliation; "" for none.
    """
    healthy: Mapping[str, bool] = {}
    if (directory / "haproxy.ctl").exists():
        healthy = haproxy.parse_states(_haproxy_reply(directory / "haproxy.ctl", b"show stat\n"))
    active = False
    with contextlib.suppress(OSError):
        active = namespaces.inside(namespace, lambda: _has_address(appliance.virtual))
    return ReplicaState(
        item=appliance.item,
        kind=appliance.kind,
        replica=appliance.name,
        active=active,
        healthy=healthy,
        failure=failure,
    )


def ready_condition(states: Sequence[ReplicaState], since_s: float) -> NetworkCondition:
    """Return the condition READY of a gateway or load balancer, computed from the states of its replicas.

    The object is ready if a replica is active and, for a load balancer, a backend is healthy. ``since_s`` is the time
    of the condition in seconds since 1970.
    """
    failures = [f"{one.replica}: {one.failure}" for one in states if one.failure]
    active = [one for one in states if one.active]
    if not active:
        return _condition(
            False, "no_active_replica", "; ".join(failures) or "no replica has the virtual address", since_s
        )
    healthy: dict[str, bool] = {}
    for one in active:
        healthy |= one.healthy
    holds, reason, counts = backends_condition(healthy)
    if any(one.kind == NetworkKind.LOAD_BALANCER.value for one in active) and not healthy:
        holds, reason, counts = None, "backends_unknown", "HAProxy does not respond"
    if failures and holds is not False:
        return _condition(holds, "degraded", "; ".join(filter(None, (counts, *failures))), since_s)
    return _condition(holds, reason, counts, since_s)


def _condition(holds: bool | None, reason: str, message: str, since_s: float) -> NetworkCondition:
    return NetworkCondition(kind=ConditionKind.READY, holds=holds, reason=reason, message=message, since_s=since_s)


def _has_address(address: str) -> bool:
    """Return True if the namespace of this thread has the address."""
    if ipaddress.ip_address(address).version == 6:
        digits = ipaddress.ip_address(address).exploded.replace(":", "")
        return digits in Path("/proc/thread-self/net/if_inet6").read_text()
    lines = Path("/proc/thread-self/net/fib_trie").read_text().splitlines()
    return any(line.strip() == f"|-- {address}" and "host LOCAL" in after for line, after in itertools.pairwise(lines))


def _haproxy_reply(path: Path, question: bytes) -> str:
    """Return the reply of HAProxy, or "" if it does not respond in time."""
    answer = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(_ANSWER_S)
            asking.connect(str(path))
            asking.sendall(question)
            while len(answer) < _ANSWER_BYTES_MAX and (part := asking.recv(65536)):
                answer += part
    except OSError:
        return ""
    return answer.decode(errors="replace")
