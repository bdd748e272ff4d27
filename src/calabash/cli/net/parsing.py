"""Parse arguments of network commands: addresses with port numbers, rules, rates, short names of ports."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from calabash.model.errors import CalabashError, Reason

NUMBER_MAX = 65535
BITS_MAX = 10**13
_RATE = re.compile(r"([0-9]{1,14}(?:\.[0-9]{1,3})?)(bit|kbit|Mbit|Gbit|Tbit)")
_BITS = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12}
_CHECKS = "tcp, http:/PATH or none"

Ports = Callable[[str], list[str]]  # all ports of a VPC by their whole names


def words(values: tuple[str, ...]) -> list[str]:
    """Return the words of an option that may be repeated and whose values are separated by commas."""
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def number(text: str, what: str) -> int:
    """Parse a port number, 1 to 65535. Raises CalabashError if it is not one."""
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= NUMBER_MAX):
        raise CalabashError(f"{what} {text[:40]!r} is not a port number", hint=f"give 1 to {NUMBER_MAX}")
    return int(text)


def address_and_number(text: str, what: str) -> tuple[str, int]:
    """Parse ``10.0.1.100:80`` or ``[fd00::100]:80``. Raises CalabashError if the text is neither."""
    host, colon, digits = text.rpartition(":")
    if not colon or not host or (":" in host) != host.startswith("["):
        raise CalabashError(
            f"{what} {text[:80]!r} is not ADDRESS:NUMBER", hint="write 10.0.1.100:80, or [fd00::100]:80"
        )
    return host.removeprefix("[").removesuffix("]"), number(digits, what)


def in_vpc(vpc: str, text: str, what: str) -> str:
    """Return ``red/web`` for ``web`` or ``red/web``. Raises CalabashError if it names another VPC."""
    if "/" not in text:
        return f"{vpc}/{text}"
    if text.split("/", 1)[0] != vpc:
        raise CalabashError(f"{what} {text[:120]!r} is not an object of VPC {vpc}", hint=f"give an object of {vpc}")
    return text


def port_named(vpc: str, text: str, what: str, ports: Ports) -> str:
    """Return the full name of a port given as ``web1``, ``a/web1`` or ``red/a/web1``. Raises NOT_FOUND or BAD_REQUEST."""
    parts = text.split("/")
    if len(parts) == 3:
        return in_vpc(vpc, text, what)
    if len(parts) == 2:
        return f"{vpc}/{text}"
    found = [name for name in ports(vpc) if name.rsplit("/", 1)[-1] == text]
    if not found:
        raise CalabashError(
            f"{what}: VPC {vpc} has no port {text[:80]!r}",
            reason=Reason.NOT_FOUND,
            hint=f"see `calabash net port list --vpc {vpc}`",
        )
    if len(found) > 1:
        raise CalabashError(
            f"{what}: VPC {vpc} has {len(found)} ports {text!r}: {', '.join(found[:3])}", hint="write the full name"
        )
    return found[0]


def backends(vpc: str, texts: list[str], ports: Ports) -> list[dict[str, Any]]:
    """Parse backends such as ``web1:8080``, a port and a port number. Raises CalabashError if one is invalid.

    Args:
        vpc: VPC of the load balancer.
        ports: returns the ports of a VPC, to resolve short names.
    """
    found = []
    for text in texts:
        name, colon, digits = text.rpartition(":")
        if not colon:
            raise CalabashError(
                f"--backends {text[:80]!r} has no port number", hint="write PORT:NUMBER, such as web1:8080"
            )
        found.append({"port": port_named(vpc, name, "--backends", ports), "number": number(digits, "--backends")})
    return found


def check(text: str, interval_s: float | None, failures: int | None) -> dict[str, Any]:
    """Parse a health check: ``tcp``, ``http:/healthz`` or ``none``. Raises CalabashError for another text.

    Args:
        interval_s: seconds between two checks; None: the field is left out.
        failures: number of failed checks after which a backend gets no connections; None: the field is left out.
    """
    kind, _, path = text.partition(":")
    if kind not in {"tcp", "http", "none"} or (kind == "http") != bool(path):
        raise CalabashError(f"--check {text[:80]!r} is not a health check", hint=f"give {_CHECKS}")
    found: dict[str, Any] = {"kind": kind, "path": path}
    if interval_s is not None:
        found["interval_s"] = interval_s
    if failures is not None:
        found["failures"] = failures
    return found


def rule(allow: str, peer: str, direction: str, vpc: str) -> dict[str, Any]:
    """Parse a rule such as ``tcp:443``, ``udp:5000-5010``, ``icmp`` or ``any``.

    Args:
        allow: protocol and port numbers of the rule.
        peer: address range or security group with which the traffic is allowed.
        direction: ``ingress`` or ``egress``.
        vpc: VPC of the group.

    Raises:
        CalabashError: if the protocol, ports or peer are invalid.
    """
    protocol, colon, numbers = allow.partition(":")
    if protocol not in {"any", "tcp", "udp", "sctp", "icmp"}:
        raise CalabashError(
            f"--allow {allow[:80]!r} is not PROTOCOL[:PORTS]", hint="write tcp:443, udp:5000-5010, icmp or any"
        )
    first, dash, last = numbers.partition("-")
    ports = [number(first, "--allow"), number(last if dash else first, "--allow")] if colon else [0, 0]
    is_range = "/" in peer and (peer[0].isdigit() or ":" in peer)
    return {
        "direction": direction,
        "protocol": protocol,
        "ports": ports,
        "peer": peer if is_range else None,
        "peer_group": "" if is_range else in_vpc(vpc, peer, "--from" if direction == "ingress" else "--to"),
    }


def rate(text: str) -> int:
    """Parse ``1Gbit``, ``500Mbit`` or ``none`` to bits per second; 0 is unlimited. Raises BAD_REQUEST if invalid."""
    if text == "none":
        return 0
    found = _RATE.fullmatch(text)
    bits = round(float(found[1]) * _BITS[found[2]]) if found else 0
    if not 1 <= bits <= BITS_MAX:
        raise CalabashError(f"{text[:40]!r} is not a rate", hint="write 1Gbit, 500Mbit, 64kbit, or none")
    return bits


def rate_text(bits: int) -> str:
    """Format a rate as :func:`rate` parses it; ``-`` for unlimited."""
    if not bits:
        return "-"
    unit = next(unit for unit in ("Tbit", "Gbit", "Mbit", "kbit", "bit") if bits % _BITS[unit] == 0)
    return f"{bits // _BITS[unit]}{unit}"


def policy_name(egress: int, ingress: int) -> str:
    """Return the default name of a policy with these rates."""
    each = [rate_text(bits).lower().replace("-", "none") for bits in (egress, ingress)]
    return f"rate-{each[0]}" if egress == ingress else f"rate-{each[0]}-{each[1]}"
