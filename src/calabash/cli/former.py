"""Former names of commands and of options, which are accepted with a warning for one release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """Present form of a command with a former name.

    Args:
        path: words after ``calabash`` that the warning names, and that replace the former name unless ``rewrite`` is given.
        rewrite: returns all words of the present form for the words after the former name.
    """

    path: str
    rewrite: Callable[[list[str]], list[str]] | None = None

    def words(self, rest: list[str]) -> list[str]:
        """Return the words of the present form for the words after the former name."""
        return self.rewrite(rest) if self.rewrite else [*self.path.split(), *rest]


def _take(option: str, words: list[str]) -> tuple[list[str], list[str]]:
    """Return the values of an option, and the words without the option and its values."""
    values, rest = [], []
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if name == option:
            values.append(value if equals else next(left, ""))
        else:
            rest.append(word)
    return values, rest


def _quota_set(words: list[str]) -> list[str]:
    projects, rest = _take("--project", words)
    return ["tenant", "project", "set", *rest, projects[-1]] if any(projects) else ["tenant", "set", *rest]


def _vpc_peer(words: list[str]) -> list[str]:
    routes, rest = _take("--routes", words)
    names = [word for word in rest if not word.startswith("-")]
    options = [word for word in rest if word.startswith("-")]
    return ["net", "peer", "create", *options, "/".join(names), *(w for r in routes for w in ("--routes", r))]


_NETWORK_KINDS = (
    *("vpc", "subnet", "port", "sg", "lb", "gateway", "eip", "nat", "fip", "peer", "line", "endpoint", "route", "dns"),
    *("qos", "uplink", "certificate"),
)
_DAEMONS = ("agent", "plugin-relay", "admission", "metrics", "planner", "cluster", "exporter")

FORMER: dict[str, Former] = {
    **{name: Former(path=f"serve {name}") for name in _DAEMONS},
    **{name: Former(path=f"net {name}") for name in _NETWORK_KINDS},
    "vpc peer": Former(path="net peer create VPC/OTHER", rewrite=_vpc_peer),
    "net fabric run": Former(path="serve fabric"),
    "cluster-cleanup": Former(path="uninstall cluster"),
    "node purge": Former(path="uninstall node"),
    "node": Former(path="uninstall"),
    "server": Former(path="remote server"),
    "bench remote": Former(path="remote bench"),
    "bench": Former(path="remote"),
    "mig": Former(path="device mig"),
    "vm": Former(path="device vm"),
    "project": Former(path="tenant project"),
    "quota show": Former(path="tenant quota"),
    "quota set": Former(path="tenant set", rewrite=_quota_set),
    "quota": Former(path="tenant"),
    "usage": Former(path="tenant usage"),
    "token": Former(path="user token"),
    "tariff": Former(path="invoice tariff"),
    "restore": Former(path="backup restore"),
    "login-link": Former(path="login --link"),
    "simulate": Former(path="sim"),
}

# Path of a command -> present name of each former option name.
FORMER_OPTIONS: dict[str, dict[str, str]] = {
    "audit list": {"--limit": "--lines"},
    "device mig apply": {"--check": "--dry-run"},
    "device set": {"--interval": "--timeslice", "--spill": "--allow-spill"},
    "device vm attach": {"--to": "--machine", "--gpu": "--device"},
    "invoice items": {"--file": "--output-file"},
    "invoice show": {"--file": "--output-file"},
    "net endpoint create": {"--from": "--balancer", "--vip": "--address"},
    "net fip create": {"--to": "--target"},
    "net fip set": {"--to": "--target"},
    "net gateway create": {"--eip": "--address"},
    "net lb create": {"--to": "--backends"},
    "net lb set": {"--to": "--backends"},
    "net nat dnat": {"--to": "--forward-to"},
    "net route create": {"--to": "--destination", "--from": "--source"},
    "net route set": {"--to": "--destination", "--from": "--source"},
    "net up": {"--hosts": "--host-count"},
    "notify create": {"--on": "--event"},
    "notify set": {"--on": "--event"},
    "queue create": {"--deserved": "--guarantee"},
    "queue set": {"--deserved": "--guarantee"},
    "remote bench": {"--json": "--output=json"},
    "remote server token create": {"--server": "--advertise"},
    "remote server up": {"--grace": "--reconnect-within"},
    "serve fabric": {"--file": "--settings"},
    "serve metrics": {"--host": "--listen-address", "--port": "--listen-port"},
    "serve planner": {"--beside": "--scheduler-lease", "--move-rest": "--move-interval", "--nodes": "--node-selector"},
    "sim openb": {"--policy": "--placement", "--json": "--results", "--failures": "--node-failures"},
    "sim trace": {"--policy": "--placement", "--json": "--results", "--failures": "--node-failures"},
    "tenant usage": {"--from": "--since", "--to": "--until"},
    "up": {"--strangers": "--unmanaged"},
    "user token create": {"--login": "--link"},
}
