"""Navigation menu of the console: the pages by group, and the permissions that they need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationLink:
    """Entry of the menu.

    ``key`` after g is its keyboard shortcut. ``needs`` are permissions of which the visitor needs one; empty: no
    permission is needed. ``simulated`` entries are shown for simulated nodes only.
    """

    section: str
    title: str
    path: str
    key: str = ""
    needs: tuple[str, ...] = ()
    simulated: bool = False


_INVOICE_PERMISSIONS = ("see-bills", "manage-bills")
_GROUPS: tuple[tuple[str, tuple[NavigationLink, ...]], ...] = (
    (
        "",
        (
            NavigationLink(section="overview", title="Overview", path="/", key="o"),
            NavigationLink(section="devices", title="Devices", path="/devices", key="d"),
            NavigationLink(section="workloads", title="Workloads", path="/workloads", key="w"),
            NavigationLink(section="jobs", title="Jobs", path="/jobs", key="j"),
            NavigationLink(section="waiting", title="Waiting", path="/waiting", key="l"),
            NavigationLink(section="queues", title="Queues", path="/queues", key="q"),
            NavigationLink(section="networks", title="Networks", path="/networks", key="v"),
        ),
    ),
    (
        "Teams",
        (
            NavigationLink(section="tenants", title="Tenants", path="/tenants", key="t"),
            NavigationLink(
                section="users", title="Users", path="/users", key="u", needs=("manage-users", "manage-members")
            ),
            NavigationLink(section="usage", title="Usage", path="/usage", key="e"),
            NavigationLink(section="invoices", title="Invoices", path="/invoices", key="i", needs=_INVOICE_PERMISSIONS),
            NavigationLink(section="tariffs", title="Tariffs", path="/tariffs", key="f", needs=_INVOICE_PERMISSIONS),
        ),
    ),
    (
        "Platform",
        (
            NavigationLink(section="audit", title="Audit", path="/audit", key="a", needs=("see-audit",)),
            NavigationLink(
                section="notifications",
                title="Notifications",
                path="/notifications",
                key="n",
                needs=("manage-notices",),
            ),
            NavigationLink(section="tokens", title="Tokens", path="/tokens", key="k"),
            NavigationLink(
                section="simulator",
                title="Simulated node",
                path="/simulator",
                key="s",
                needs=("shut-down",),
                simulated=True,
            ),
        ),
    ),
)


def navigation(may: frozenset[str], *, simulated: bool | str) -> list[tuple[str, list[NavigationLink]]]:
    """Return the groups with the entries that a visitor with these permissions sees; empty groups are left out.

    Args:
        may: permissions of the visitor, on the platform or in a tenant.
        simulated: true if the pool runs on a simulated node.
    """
    shown = []
    for group, links in _GROUPS:
        offered = [
            link
            for link in links
            if (not link.needs or may.intersection(link.needs)) and (simulated or not link.simulated)
        ]
        if offered:
            shown.append((group, offered))
    return shown
