"""Forms of tenant networks: convert their fields to objects with kind, name and spec, as in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from calabash.api import endpoints
from calabash.gateway.web.forms import Form, Reader, flag, text, whole, words
from calabash.model.errors import CalabashError

Read = dict[str, Any]


def _object(kind: str, spec: Callable[[Read], Read]) -> Callable[[Read], Read]:
    def shaped(read: Read) -> Read:
        name = "/".join(str(read[part]) for part in ("vpc", "subnet", "label") if read.get(part))
        return {"kind": kind, "name": name, "spec": spec(read), "new": True}

    return shaped


def _some(*names: str) -> Callable[[Read], Read]:
    return lambda read: {name: read[name] for name in names if name in read}


def _port(read: Read) -> Read:
    found = _some("addresses")(read)
    groups = [f"{read.get('vpc', '')}/{one}" if "/" not in one else one for one in read.get("groups", ())]
    return found | ({"security_groups": groups} if groups else {})


def _balancer(read: Read) -> Read:
    backends = []
    for word in read.get("backends", ()):
        port, _, number = word.rpartition(":")
        if not number.isascii() or not number.isdigit():
            raise CalabashError(
                f"backend {word[:80]!r} has no port number",
                hint="write a/web1:8080, for example; separate backends by blanks",
            )
        backends.append({"port": f"{read.get('vpc', '')}/{port}", "number": int(number)})
    checked = {"check": {"kind": "tcp"}} if read.get("check") else {}
    return {**_some("vip", "vip_number")(read), "backends": backends, **checked}


def _gateway(read: Read) -> Read:
    return {**_some("snat", "uplink")(read), **({"kind": "nfv"} if read.get("nfv") else {})}


def _form(kind: str, fields: Mapping[str, Reader], spec: Callable[[Read], Read], said: str) -> Form:
    return Form(
        name=f"network-{kind}",
        needs="manage-networks",
        endpoint=endpoints.PUT_NETWORK_OBJECT,
        fields={"vpc": text, "label": text, **fields},
        back="/networks/{vpc}",
        said=said,
        shaped=_object(kind, spec),
    )


NETWORKS = (
    Form(
        name="network-vpc",
        needs="manage-networks",
        endpoint=endpoints.PUT_NETWORK_OBJECT,
        fields={"label": text, "cidrs": words, "tenant": text},
        back="/networks/{name}",
        said="Network {name} created.",
        shaped=_object("vpc", _some("cidrs", "tenant")),
    ),
    _form(
        "subnet", {"cidrs": words, "dhcp": flag, "dns": flag}, _some("cidrs", "dhcp", "dns"), "Subnet {name} created."
    ),
    _form("port", {"subnet": text, "addresses": words, "groups": words}, _port, "Port {name} created."),
    _form(
        "lb",
        {"vip": text, "vip_number": whole, "backends": words, "check": flag},
        _balancer,
        "Load balancer {name} created.",
    ),
    _form("gateway", {"snat": flag, "nfv": flag, "uplink": text}, _gateway, "Gateway {name} created."),
    _form("eip", {}, _some(), "Outside address {name} created."),
    Form(
        name="network-delete",
        needs="manage-networks",
        endpoint=endpoints.DELETE_NETWORK_OBJECT,
        query={"name": text},
        back="/networks/{vpc}",
        said="{name} deleted.",
    ),
    Form(
        name="network-vpc-delete",
        needs="manage-networks",
        endpoint=endpoints.DELETE_NETWORK_OBJECT,
        query={"name": text, "cascade": flag},
        back="/networks",
        said="Network {name} and all its objects deleted.",
    ),
)
