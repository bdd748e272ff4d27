"""Pages of tenant networks: the VPCs that the visitor may see, and the objects of one VPC by kind with their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calabash.api import network_routes
from calabash.api.networks import NetworkObjectView
from calabash.gateway.web.lists import ListPart, matching, part_of
from calabash.gateway.web.pages.page import ConsolePage, Shown, Visit
from calabash.model.errors import CalabashError, Reason
from calabash.model.network import NetworkKind
from calabash.model.network_status import ConditionKind

SHOWN_MAX = 20  # rows of each kind on the page of a VPC; the rest are on the page of the kind
PLATFORMS = "x-"  # prefix of labels of objects that the platform creates
_PROGRESS = ((ConditionKind.READY, "good"), (ConditionKind.REALIZED, "good"), (ConditionKind.VALID, "warn"))
Spec = Mapping[str, Any]
Cell = Callable[[Spec], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownState:
    """State of an object as a word, with its colour and the reason of a failure."""

    word: str
    tone: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRow:
    """Network object as a row of a table.

    Args:
        kind: kind of the object.
        name: full name.
        label: name within the VPC.
        cells: texts of the columns.
        state: its state.
        host: host of the object; "" for none.
        own: True if a user created the object, so that it can be deleted here; False if the platform created it.
    """

    kind: str
    name: str
    label: str
    cells: tuple[str, ...]
    state: ShownState
    host: str
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTable:
    """Table of the objects of one kind in a VPC."""

    kind: str
    title: str
    columns: tuple[str, ...]
    part: ListPart


def state_of(item: NetworkObjectView) -> ShownState:
    """Return the state of an object, in the same words as the command line.

    The state is the first condition that has failed; otherwise ``waits`` if the controller has not seen the last
    change; otherwise the most advanced condition that holds.
    """
    conditions = {one.kind: one for one in item.status.conditions}
    for one in conditions.values():
        if one.holds is False:
            return ShownState(word=one.reason or str(one.kind), tone="bad", why=one.message)
    if item.status.observed_generation < item.generation:
        return ShownState(word="waits", tone="warn")
    for kind, tone in _PROGRESS:
        if kind in conditions and conditions[kind].holds:
            return ShownState(word=str(kind), tone=tone)
    return ShownState(word="waits", tone="warn")


def _said(field: str) -> Cell:
    return lambda spec: _text(spec.get(field))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(one) for one in value)
    return "" if value in (None, 0) else str(value)


def _backends(spec: Spec) -> str:
    found = spec.get("backends", ())
    parts = [one for one in found if isinstance(one, Mapping)] if isinstance(found, (list, tuple)) else []
    return ", ".join(f"{str(one.get('port', '')).partition('/')[2]}:{one.get('number', '')}" for one in parts)


def _rules(spec: Spec) -> str:
    found = spec.get("rules", ())
    return str(len(found)) if isinstance(found, (list, tuple)) else ""


KINDS: tuple[tuple[NetworkKind, str, tuple[tuple[str, Cell], ...]], ...] = (
    (
        NetworkKind.SUBNET,
        "Subnets",
        (("Ranges", _said("cidrs")), ("Gateways", _said("gateways")), ("DHCP", _said("dhcp"))),
    ),
    (
        NetworkKind.PORT,
        "Ports",
        (("Addresses", _said("addresses")), ("MAC", _said("mac")), ("Groups", _said("security_groups"))),
    ),
    (
        NetworkKind.LOAD_BALANCER,
        "Load balancers",
        (
            ("Address", lambda spec: f"{_text(spec.get('vip'))}:{_text(spec.get('vip_number'))}"),
            ("Backends", _backends),
            ("Layer", _said("layer")),
        ),
    ),
    (
        NetworkKind.GATEWAY,
        "Gateways",
        (("Address", _said("address")), ("Kind", _said("kind")), ("SNAT", _said("snat"))),
    ),
    (NetworkKind.EIP, "Outside addresses", (("Address", _said("address")),)),
    (
        NetworkKind.NAT_RULE,
        "Translations",
        (("Outside", _said("eip")), ("Port", _said("port")), ("Kind", _said("kind"))),
    ),
    (NetworkKind.SECURITY_GROUP, "Security groups", (("Rules", _rules),)),
    (NetworkKind.PEERING, "Peerings", (("Routes", _said("routes")),)),
    (NetworkKind.SERVICE_ENDPOINT, "Endpoints", (("Of", _said("source")), ("Address", _said("vip")))),
    (NetworkKind.ROUTE, "Routes", (("To", _said("prefix")), ("By", _said("next_hop")))),
    (NetworkKind.DNS_RECORD, "Names", (("Host", _said("host")), ("Addresses", _said("addresses")))),
    (NetworkKind.DEDICATED_LINE, "Lines", (("VLAN", _said("vlan")), ("Range", _said("cidr")))),
    (NetworkKind.QOS_POLICY, "Rates", ()),
)


def listed(vpcs: Sequence[NetworkObjectView], visit: Visit) -> Shown:
    """Return the data of the list of VPCs."""
    facets = {"name": lambda v: v.name, "tenant": lambda v: v.tenant, "cidrs": lambda v: _text(v.spec.get("cidrs"))}
    found = part_of(matching(vpcs, visit.query, facets), visit.query, total=len(vpcs))
    rows = [
        {"name": v.name, "tenant": v.tenant, "ranges": _text(v.spec.get("cidrs")), "state": state_of(v)}
        for v in found.items
    ]
    return {"part": found, "rows": rows}


def tables(items: Sequence[NetworkObjectView], visit: Visit) -> list[NetworkTable]:
    """Return a table for each kind of which the VPC has objects, with at most SHOWN_MAX of them.

    If the URL has ``kind``, only the table of this kind is returned, one page of it at a time.
    """
    only, found = visit.query.get("kind", ""), []
    for kind, title, columns in KINDS:
        rows = [_row(item, columns) for item in items if item.kind == kind]
        if not rows or (only in set(NetworkKind) and only != kind):
            continue
        query = visit.query if only == kind else {"rows": str(SHOWN_MAX)}
        facets: dict[str, Callable[[NetworkRow], str]] = {
            "label": lambda r: r.label,
            "said": lambda r: " ".join(r.cells),
        }
        part = part_of(matching(rows, {"q": visit.query.get("q", "")}, facets), query, total=len(rows))
        names = tuple(name for name, _ in columns)
        found.append(NetworkTable(kind=str(kind), title=title, columns=names, part=part))
    return found


def _row(item: NetworkObjectView, columns: Sequence[tuple[str, Cell]]) -> NetworkRow:
    label = item.name.partition("/")[2] or item.name
    kept = item.kind == NetworkKind.SECURITY_GROUP and label == "default"
    return NetworkRow(
        kind=str(item.kind),
        name=item.name,
        label=label,
        cells=tuple(cell(item.spec) for _, cell in columns),
        state=state_of(item),
        host=item.status.host,
        own=not kept and not label.rpartition("/")[2].startswith(PLATFORMS),
    )


async def _listed(visit: Visit) -> Shown:
    try:
        vpcs = await visit.pool.pages(network_routes.LIST_NETWORK_OBJECTS, query={"kind": "vpc"})
    except CalabashError as error:
        if error.reason is not Reason.UNSUPPORTED:
            raise
        return {**listed((), visit), "missing": error.message}
    return {**listed(vpcs, visit), "missing": ""}


async def _one(visit: Visit) -> Shown:
    name = visit.path["name"]
    vpc = await visit.pool.get(network_routes.SHOW_NETWORK_OBJECT, "vpc", query={"name": name})
    items = await visit.pool.pages(network_routes.LIST_NETWORK_OBJECTS, query={"vpc": name})
    ranges = _text(vpc.spec.get("cidrs"))
    shown = {"name": vpc.name, "tenant": vpc.tenant, "ranges": ranges, "state": state_of(vpc)}
    subnets = [item.name.partition("/")[2] for item in items if item.kind == NetworkKind.SUBNET]
    return {"vpc": shown, "tables": tables(items, visit), "subnets": subnets, "pairs": [(one, one) for one in subnets]}


NETWORK_PAGES = (
    ConsolePage(path="/networks", title="Networks", template="networks.html", read=_listed, section="networks"),
    ConsolePage(path="/networks/{name}", title="Network", template="network.html", read=_one, section="networks"),
)
