"""Configuration of HAProxy for an L7 load balancer, and states of backends from its statistics.

Values chosen by tenants are numbers, labels and one path. The path is written in single quotes, in which HAProxy interprets no
character, and a path with characters that are not valid in a URL is refused.
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
CONNECTIONS_MAX = 8_000  # two file descriptors each; lower if the limit of the host is lower
_PATH = re.compile(r"/[A-Za-z0-9/_.~%!$&()*+,;=:@?-]{0,255}")
_NOBODY = 65534
_STATISTICS_MAX = 1 << 20


def check_path(path: str, subject: str) -> str:
    """Return the path of a health check if it has only characters that are valid in a URL.

    Raises CalabashError otherwise; ``subject`` names the load balancer in the message.
    """
    if not _PATH.fullmatch(path):
        raise CalabashError(
            f"{subject}: {path[:80]!r} is not a valid path",
            hint="use a path such as /healthz: at most 256 letters, digits and URL punctuation",
        )
    return path


def configuration(replica: BalancerReplica, directory: str) -> str:
    """Return the configuration file of HAProxy.

    ``directory``, an absolute path without spaces, contains HAProxy's socket and its certificate.
    """
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
        "    option idle-close-on-response",  # announces a reload to idle clients in a reply instead of resetting
        "    retries 2",
        "    option redispatch",
        "frontend public",
        f"    bind {_host(replica.member.virtual)}:{replica.number}{tls}",
        *(["    http-request set-header X-Forwarded-Proto https"] if tls else []),
        f"    default_backend {BACKEND}",
        f"backend {BACKEND}",
        "    balance leastconn",
        *_check_lines(replica.check, replica.balancer),
    ]
    for label, address, number in replica.targets:
        probe = f" check inter {_interval_ms(replica.check)} fall {replica.check.failures} rise 1" if checked else ""
        lines.append(f"    server {label}-{number} {_host(address)}:{number}{probe}")
    return "\n".join([*lines, ""])


def parse_states(statistics: str) -> Mapping[str, bool]:
    """Parse the output of ``show stat``: True for each healthy backend, by ``SUBNET.PORT-NUMBER``.

    Backends without a check count as healthy.
    """
    text = statistics[:_STATISTICS_MAX].removeprefix("# ")
    rows = csv.DictReader(text.splitlines())
    return {
        row["svname"]: (row.get("status") or "").startswith(("UP", "no check"))
        for row in rows
        if row.get("pxname") == BACKEND and row.get("svname") not in (None, "BACKEND")
    }


def _check_lines(check: HealthCheck, subject: str) -> list[str]:
    if check.kind is not CheckKind.HTTP:
        return []
    return [
        "    option httpchk",
        f"    http-check send meth GET uri '{check_path(check.path, subject)}' ver HTTP/1.1 hdr Host localhost",
        "    http-check expect status 200-399",
    ]


def _interval_ms(check: HealthCheck) -> int:
    return max(100, round(check.interval_s * 1000))


def _host(address: Address) -> str:
    return str(address) if address.version == 4 else f"[{address}]"
