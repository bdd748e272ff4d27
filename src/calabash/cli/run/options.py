"""Options of ``calabash run`` as plain data, and the request that they make.

Two readers use this table: :mod:`calabash.cli.run.become` parses the command line by it without importing slow modules, and
the command tree makes its options, help and usage errors from it.
"""

from __future__ import annotations

import os
import re

from calabash.model.errors import CalabashError
from calabash.model.names import NAME_HINT, NAME_PATTERN
from calabash.model.units import parse_duration_s, parse_memory_mib, parse_percent

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

_SHOWN_CHARACTERS_MAX = 4096  # length to which the command line is cut for display by the pool


class Option:
    """Option: its flag, the field of the request, the parser of its text, and its help."""

    def __init__(  # a dataclass would import inspect
        self,
        flag: str,
        field: str,
        read: Callable[[str], Any],
        *,
        metavar: str,
        text: str,
        default: Any = None,
        several: bool = False,
    ) -> None:
        self.flag = flag
        self.field = field
        self.read = read
        self.metavar = metavar
        self.text = text
        self.default = default
        self.several = several


def _whole(flag: str, low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and low <= int(text) <= high):
            raise CalabashError(f"{flag} {text!r} is out of range", hint=f"give a whole number from {low} to {high}")
        return int(text)

    return read


def _choice(flag: str, *choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise CalabashError(f"{flag} {text!r} is unknown", hint=f"one of: {', '.join(choices)}")
        return text

    return read


def _fault_signal(text: str) -> str:
    chosen = _choice("--on-fault", "SIGTERM", "SIGUSR1", "none")(text)
    return "" if chosen == "none" else chosen


def _text(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):  # bytes that are not UTF-8
        raise CalabashError(
            f"--model {text!r} is not the name of a model", hint="`calabash smi` shows the models of this pool"
        )
    return text


def _name(flag: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if re.match(NAME_PATTERN, text) is None:
            raise CalabashError(f"{flag} {text!r} is not a name", hint=NAME_HINT)
        return text

    return read


def _profile(text: str) -> str:
    if not text or len(text) > 32 or not (text.isascii() and text.isprintable()):
        raise CalabashError(
            f"--mig {text[:64]!r} is not a profile", hint="write 1g.10gb, for example; see `calabash device mig show`"
        )
    return text


def _port(text: str) -> str:
    if text.count("/") != 2 or len(text) > 128 or not text.isascii() or not all(text.split("/")):
        raise CalabashError(f"--port {text[:128]!r} is not a port", hint="write VPC/SUBNET/PORT, such as red/a/web1")
    return text


OPTIONS = (
    Option("--gpus", "gpus", _whole("--gpus", 1, 64), default=1, metavar="N", text="Number of devices. Default: 1."),
    Option(
        "--memory",
        "memory_mib",
        parse_memory_mib,
        metavar="SIZE",
        text="Device memory per device, with its unit: 8GiB, 512MiB, 8GB. Default: the whole device.",
    ),
    Option(
        "--spill",
        "spill_mib",
        parse_memory_mib,
        default=0,
        metavar="SIZE",
        text="Part of --memory that may be paged to host memory. Default: none.",
    ),
    Option(
        "--cores",
        "cores",
        parse_percent,
        metavar="PERCENT",
        text="Compute share per device, 1 to 100. Default: best-effort with --memory, else 100.",
    ),
    Option(
        "--mode",
        "mode",
        _name("--mode"),
        default="",
        metavar="MODE",
        text="exclusive, vgpu, brokered, mps, timeslice, mig, passthrough. Default: chosen by the amounts.",
    ),
    Option(
        "--mig",
        "mig",
        _profile,
        default="",
        metavar="PROFILE",
        text="Profile of a MIG GPU instance, such as 1g.10gb, or compute instance, such as 1c.3g.40gb. Excludes --memory and"
        " --cores.",
    ),
    Option(
        "--isolation",
        "isolation",
        _choice("--isolation", "cooperative", "brokered", "hardware"),
        default="",
        metavar="LEVEL",
        text="Minimum isolation between tenants: cooperative, brokered, hardware. Determines the mode.",
    ),
    Option(
        "--policy",
        "policy",
        _choice("--policy", "fixed", "burst", "best-effort"),
        metavar="POLICY",
        text="Policy of the compute share: fixed, burst (needs --cores), best-effort. Default: best-effort for --memory without"
        " --cores, else fixed.",
    ),
    Option(
        "--model",
        "models",
        _text,
        several=True,
        metavar="NAME",
        text="Use this device model only; repeat for several.",
    ),
    Option(
        "--tenant",
        "tenant",
        _name("--tenant"),
        default="",
        metavar="NAME",
        text="Tenant to which the slice is accounted. Default: your tenant, or your user name.",
    ),
    Option(
        "--project",
        "project",
        _name("--project"),
        default="",
        metavar="NAME",
        text="Project of the tenant. Default: none.",
    ),
    Option(
        "--queue",
        "queue",
        _name("--queue"),
        default="default",
        metavar="NAME",
        text="Queue of the request. Default: the tenant's queue, else default.",
    ),
    Option(
        "--priority",
        "priority",
        _whole("--priority", -1000, 1000),
        default=0,
        metavar="N",
        text="Priority, -1000 to 1000; higher priorities are served first. Default: 0.",
    ),
    Option(
        "--gang",
        "gang",
        _name("--gang"),
        default="",
        metavar="NAME",
        text="Start together with the other members of gang NAME; needs --gang-size.",
    ),
    Option(
        "--gang-size",
        "gang_size",
        _whole("--gang-size", 1, 100_000),
        default=1,
        metavar="N",
        text="Number of members that must be placeable before any of the gang starts.",
    ),
    Option(
        "--on-fault",
        "on_fault",
        _fault_signal,
        default="",
        metavar="SIGNAL",
        text="Signal sent to the programs when their device fails: SIGTERM, SIGUSR1, none. Default: none.",
    ),
    Option(
        "--port",
        "ports",
        _port,
        several=True,
        metavar="VPC/SUBNET/PORT",
        text="Run inside this port of a tenant network, with no other network; repeat for several.",
    ),
    Option(
        "--time",
        "run_time_s",
        parse_duration_s,
        default=0.0,
        metavar="TIME",
        text="Expected run time, with which the request can be started before earlier requests that it will not delay.",
    ),
    Option(
        "--wait",
        "wait_s",
        parse_duration_s,
        default=0.0,
        metavar="TIME",
        text="Maximum time to wait for free devices, such as 60s or 10m. Default: do not wait.",
    ),
)
QUIET = "--quiet"
VERBOSE = "--verbose"
_WITHOUT_VALUE = {"-q": QUIET, QUIET: QUIET, "-v": VERBOSE, VERBOSE: VERBOSE}
_BY_FLAG = {option.flag: option for option in OPTIONS}


def split(words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]] | None:
    """Parse the words after ``run`` to the values of each flag and the command; None if the command tree must parse them."""
    given: dict[str, list[str]] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--" or not word.startswith("-") or word == "-":
            command = list(words[at + 1 :] if word == "--" else words[at:])
            return (given, command) if command else None
        if word in _WITHOUT_VALUE:
            given[_WITHOUT_VALUE[word]] = ["1"]
            at += 1
            continue
        flag, equals, value = word.partition("=")
        if flag not in _BY_FLAG:
            return None
        if not equals:
            at += 1
            if at >= len(words):
                return None
            value = words[at]
        given.setdefault(flag, []).append(value)
        at += 1
    return None


def request(given: Mapping[str, Sequence[str]], command: Sequence[str]) -> dict[str, Any]:
    """Return the body of the request. Raises BAD_REQUEST if an amount is invalid."""
    if not command[0]:
        raise CalabashError("the program's name is empty", hint="give the program after --, such as -- python train.py")
    body: dict[str, Any] = {}
    for option in OPTIONS:
        values = [option.read(value) for value in given.get(option.flag, ())]
        value = values if option.several else values[-1] if values else option.default
        if value is not None:  # the pool chooses values of options that are not given
            body[option.field] = value
    if given.get("--gang") and not given.get("--gang-size"):
        raise CalabashError(
            f"--gang {body['gang']} is given without --gang-size, so it would not wait for other members",
            hint="give the number of members that start together, such as --gang-size 4",
        )
    body["command"] = _shown(command)
    return body


def _shown(command: Sequence[str]) -> list[str]:
    """Return the command line that the pool shows: the words as valid text, cut to a bounded length."""
    shown: list[str] = []
    left = _SHOWN_CHARACTERS_MAX
    for word in command:
        text = os.fsencode(word).decode(errors="replace")
        if len(text) > left:
            shown.append(text[:left] + "…")
            break
        shown.append(text)
        left -= len(text) + 1
        if left <= 0:
            break
    return shown
