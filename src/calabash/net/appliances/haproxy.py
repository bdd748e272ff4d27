"""Configuration of HAProxy for an L7 balancer, and what its statistics say of backends.

What a tenant chose are numbers, labels and one path, which stands between single quotes, where HAProxy takes every letter
for itself; a path with any letter that a URL's path has not is refused.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping

from calabash.model.addresses import Address
from calabash.model.errors import CalabashError
from calabash.model.network_services import CheckKind, HealthCheck
from calabash.net.appliances.model import BalancerReplica

BACKEND = "targets"
CONNECTIONS_MAX = 8_000  # two descriptors each; where a host allows fewer, fewer
_PATH = re.compile(r"/[A-Za-z0-9/_.~%!$&()*+,;=:@?-]{0,255}")
_NOBODY = 65534
_STATISTICS_MAX = 1 << 20


def check_path(path: str, whose: str) -> str:
    """The path of a health check. Raises CalabashError where it is not a plain one."""
    if not _PATH.fullmatch(path):
        raise CalabashError(
            f"{whose}: {path[:80]!r} is no path to check",
            hint="write it as /healthz: letters, digits and what URLs have, at most 256",
        )
    return path


def of_balancer(replica: BalancerReplica, directory: str) -> str:
    """The file, with its socket and certificate in ``directory`` (absolute, without spaces)."""
    tls = f" ssl crt {directory}/{replica.certificate}.pem alpn h2,http/1.1" if replica.certificate else ""
    checked = replica.check.kind is not CheckKind.NONE
    lines = [
        "global",
        f"    uid {_NOBODY}",
        f"    gid {_NOBODY}",
        f"    maxconn {CONNECTIONS_MAX}",
        "    no strict-limits",
        "    nbthread 1",
        "    hard-stop-after 1h",
        f"    stats socket {directory}/haproxy.ctl mode 600 level user",
        *(["    ssl-default-bind-options ssl-min-ver TLSv1.2"] if tls else []),
        "defaults",
        "    mode http",
        "    timeout connect 2s",
        "    timeout client 1m",
        "    timeout server 1m",
        "    timeout tunnel 1h",
        "    timeout http-request 10s",
        "    option forwardfor",
        "    option idle-close-on-response",  # who has a connection open learns of a reload by an answer, not by a reset
        "    retries 2",
        "    option redispatch",
        "frontend public",
        f"    bind {_at(replica.seat.virtual)}:{replica.number}{tls}",
        *(["    http-request set-header X-Forwarded-Proto https"] if tls else []),
        f"    default_backend {BACKEND}",
        f"backend {BACKEND}",
        "    balance leastconn",
        *_check(replica.check, replica.balancer),
    ]
    for label, address, number in replica.targets:
        probe = f" check inter {_ms(replica.check)} fall {replica.check.failures} rise 1" if checked else ""
        lines.append(f"    server {label}-{number} {_at(address)}:{number}{probe}")
    return "\n".join([*lines, ""])


def states(statistics: str) -> Mapping[str, bool]:
    """Whether each backend is well, by ``SUBNET.PORT-NUMBER``, from the answer to ``show stat``; without a check it is."""
    text = statistics[:_STATISTICS_MAX].removeprefix("# ")
    rows = csv.DictReader(text.splitlines())
    return {
        row["svname"]: (row.get("status") or "").startswith(("UP", "no check"))
        for row in rows
        if row.get("pxname") == BACKEND and row.get("svname") not in (None, "BACKEND")
    }


def _check(check: HealthCheck, whose: str) -> list[str]:
    if check.kind is not CheckKind.HTTP:
        return []
    return [
        "    option httpchk",
        f"    http-check send meth GET uri '{check_path(check.path, whose)}' ver HTTP/1.1 hdr Host localhost",
        "    http-check expect status 200-399",
    ]


def _ms(check: HealthCheck) -> int:
    return max(100, round(check.interval_s * 1000))


def _at(address: Address) -> str:
    return str(address) if address.version == 4 else f"[{address}]"
