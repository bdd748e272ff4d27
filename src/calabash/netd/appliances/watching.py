"""What is seen of appliances: whether a replica has its address, and how the backends of a balancer are."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from calabash.model.network import NetworkKind
from calabash.model.network_status import ConditionKind, NetworkCondition
from calabash.net.appliances import haproxy
from calabash.net.appliances.model import Appliance
from calabash.net.objects.backends import health
from calabash.seams.links import namespaces

_ANSWER_S = 1.0
_ANSWER_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceSight:
    """One replica as it was seen.

    Args:
        item: name of the gateway or balancer; ``kind`` its kind's word.
        active: whether it has the address that moves.
        well: of a balancer, each backend by ``SUBNET.PORT-NUMBER``; empty where HAProxy did not answer.
        failure: why it is not as it should be, "" where it is.
    """

    item: str
    kind: str
    replica: str
    active: bool = False
    well: Mapping[str, bool] = field(default_factory=dict)
    failure: str = ""


def seen(appliance: Appliance, namespace: Path, directory: Path, failure: str) -> ApplianceSight:
    """What is so now."""
    well: Mapping[str, bool] = {}
    if (directory / "haproxy.ctl").exists():
        well = haproxy.states(_asked(directory / "haproxy.ctl", b"show stat\n"))
    active = False
    with contextlib.suppress(OSError):
        active = namespaces.inside(namespace, lambda: _has(appliance.virtual))
    return ApplianceSight(
        item=appliance.item, kind=appliance.kind, replica=appliance.name, active=active, well=well, failure=failure
    )


def condition(sights: Sequence[ApplianceSight], since_s: float) -> NetworkCondition:
    """READY of one gateway or balancer, of what is seen of its replicas: it works when one has the address, and of a balancer's
    backends one is well."""
    failures = [f"{one.replica}: {one.failure}" for one in sights if one.failure]
    active = [one for one in sights if one.active]
    if not active:
        return _condition(False, "no_active_replica", "; ".join(failures) or "no replica has the address", since_s)
    well: dict[str, bool] = {}
    for one in active:
        well |= one.well
    holds, reason, counts = health(well)
    if any(one.kind == NetworkKind.LOAD_BALANCER.value for one in active) and not well:
        holds, reason, counts = None, "backends_unknown", "HAProxy does not answer"
    if failures and holds is not False:
        return _condition(holds, "degraded", "; ".join(filter(None, (counts, *failures))), since_s)
    return _condition(holds, reason, counts, since_s)


def _condition(holds: bool | None, reason: str, message: str, since_s: float) -> NetworkCondition:
    return NetworkCondition(kind=ConditionKind.READY, holds=holds, reason=reason, message=message, since_s=since_s)


def _has(address: str) -> bool:
    """Whether the namespace of this thread has an address."""
    if ipaddress.ip_address(address).version == 6:
        digits = ipaddress.ip_address(address).exploded.replace(":", "")
        return digits in Path("/proc/thread-self/net/if_inet6").read_text()
    lines = Path("/proc/thread-self/net/fib_trie").read_text().splitlines()
    return any(line.strip() == f"|-- {address}" and "host LOCAL" in after for line, after in itertools.pairwise(lines))


def _asked(path: Path, question: bytes) -> str:
    """What HAProxy answers, "" where it does not in time."""
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
