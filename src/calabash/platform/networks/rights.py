"""Permissions and limits of tenant networks.

A VPC and its objects belong to a tenant: a principal who sees the tenant sees them, and members of the tenant change
them. Uplinks belong to the platform. A dedicated line uses a VLAN of the provider's network, so only an administrator
creates it. The existence of a VPC that a principal may not see is revealed in one case only: when the principal creates
a VPC of the same name, the error says that the name is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from calabash.adapters.store.networks import StoredNetworkObject
from calabash.model.access import Action, is_allowed
from calabash.model.errors import CalabashError, Reason
from calabash.model.messages import FilteringViewer, Name, NetworkName, render
from calabash.model.network import NetworkKind, NetworkObject, Vpc, kind_of, vpc_of
from calabash.model.tenancy import Principal
from calabash.net.checks.common import is_reserved_name
from calabash.net.checks.subnets import DEFAULT_GROUP
from calabash.platform.access.permission import Permission
from calabash.platform.tenancy.directory import TenancyDirectory
from calabash.platform.tenancy.store import missing

Key = tuple[str, str]
Kept = Mapping[Key, StoredNetworkObject]

VPCS_PER_TENANT_MAX = 64
OBJECTS_PER_TENANT_MAX = 10_000
# Hints for errors without one.
_HINTS = {
    Reason.BAD_REQUEST: "see `calabash {command} --help`",
    Reason.NOT_PERMITTED: "ask an administrator",
    Reason.NO_CAPACITY: "remove what is not needed: `calabash {command} list`",
}
_PLATFORMS = frozenset({NetworkKind.UPLINK, NetworkKind.DEDICATED_LINE})


def bounded(kind: str, name: str) -> bool:
    """Return True if the object counts towards its tenant's limits. Objects that the platform creates do not count."""
    return not is_reserved_name(name) and not (
        kind == NetworkKind.SECURITY_GROUP and name.endswith(f"/{DEFAULT_GROUP}")
    )


class NetworkRights:
    """Permission checks of network objects.

    Methods whose names begin with ``require`` raise CalabashError on refusal. Of the parameters, ``who`` is the
    requesting principal, and ``kept`` has the stored rows of all network objects by kind and name.
    """

    def __init__(self, permission: Permission, people: Callable[[], TenancyDirectory]) -> None:
        self._permission = permission
        self._people = people

    def platform(self, who: Principal) -> bool:
        """Return True if the principal may change uplinks and other objects of the platform."""
        return is_allowed(who, Action.MANAGE_UPLINKS)

    def require_platform(self, who: Principal, what: str) -> None:
        self._permission.require(who, Action.MANAGE_UPLINKS, what)

    def require_local(self, who: Principal, what: str) -> None:
        """Raise NOT_PERMITTED unless the principal is an administrator's process of this machine."""
        self.require_platform(who, what)
        self._permission.require_process(who, what)

    def sees(self, who: Principal, kept: StoredNetworkObject) -> bool:
        if kept.kind == NetworkKind.UPLINK:
            return is_allowed(who, Action.SEE_PLATFORM)
        return is_allowed(who, Action.SEE, tenant=kept.tenant)

    def found(self, who: Principal, kept: Kept, kind: NetworkKind, name: str) -> StoredNetworkObject:
        """Return the object. Raises NOT_FOUND if there is none or the principal may not see it."""
        item = kept.get((kind, name))
        if item is None or not self.sees(who, item):
            raise missing(kind, name[:200])
        return item

    def tenant_for(self, who: Principal, wanted: str) -> str:
        """Return the tenant of a new VPC. Raises NOT_FOUND, NOT_PERMITTED."""
        tenant = self._permission.tenant(who, wanted)
        people = self._people()
        if tenant != who.own and tenant not in people.tenants and tenant not in people.users:
            raise missing("tenant", tenant)
        self._permission.require(who, Action.MANAGE_NETWORKS, f"create networks in tenant {tenant}", tenant=tenant)
        return tenant

    def require_change(self, who: Principal, kept: Kept, kind: NetworkKind, name: str) -> str:
        """Check that the principal may change or remove an object, and return its tenant ("" for an uplink).

        Raises NOT_FOUND, NOT_PERMITTED.
        """
        tenant = ""
        if kind is not NetworkKind.UPLINK:
            vpc = self.found(who, kept, NetworkKind.VPC, vpc_of(name))
            tenant = vpc.tenant
            self._permission.require(who, Action.MANAGE_NETWORKS, "change its networks", tenant=tenant)
        if kind in _PLATFORMS:
            self.require_platform(who, f"change a {kind}, which uses the provider's network")
        return tenant

    def require_put(self, who: Principal, kept: Kept, wanted: NetworkObject, *, room: bool = True) -> None:
        """Raise CalabashError unless the principal may create or change this object.

        Args:
            who: the principal.
            kept: the stored rows.
            wanted: the object.
            room: True to check the limits of the tenant as well.
        """
        kind, key = kind_of(wanted), (kind_of(wanted), wanted.name)
        if isinstance(wanted, Vpc):
            known = kept.get(key)
            if known is not None and not self.sees(who, known):
                raise CalabashError(
                    f"the name {wanted.name} is taken", reason=Reason.CONFLICT, hint="choose another name for the VPC"
                )
            tenant = known.tenant if known is not None else self.tenant_for(who, wanted.tenant)
            if known is not None:
                self._permission.require(who, Action.MANAGE_NETWORKS, "change its networks", tenant=tenant)
        else:
            tenant = self.require_change(who, kept, kind, wanted.name)
        if room and key not in kept:
            self.require_room(who, kept, tenant, {kind: 1})

    def require_room(
        self,
        who: Principal,
        kept: Kept,
        tenant: str,
        fresh: Mapping[NetworkKind, int],
        *,
        gone: Mapping[NetworkKind, int] = MappingProxyType({}),
    ) -> None:
        """Raise USER_LIMIT if new objects would exceed the tenant's limits. Administrators have no limits.

        Args:
            fresh: number of new objects by kind.
            gone: number of objects by kind that the same change removes.
        """
        if self.platform(who):
            return
        mine = Counter(i.kind for i in kept.values() if i.tenant == tenant and bounded(i.kind, i.name))
        there, objects = mine[NetworkKind.VPC], mine.total()
        more = sum(fresh.values())
        if objects + more > OBJECTS_PER_TENANT_MAX or there + fresh.get(NetworkKind.VPC, 0) > VPCS_PER_TENANT_MAX:
            raise CalabashError(
                f"tenant {tenant} has {there} VPCs and {objects} objects in all",
                reason=Reason.USER_LIMIT,
                hint=f"at most {VPCS_PER_TENANT_MAX} and {OBJECTS_PER_TENANT_MAX}: remove some, or ask an administrator",
            )
        bounds = self._people().tenants.get(tenant)
        for kind, most in bounds.networks if bounds is not None else ():
            wanted, has = fresh.get(kind, 0), mine[kind] - gone.get(kind, 0)
            if wanted and has + wanted > most:
                raise CalabashError(
                    f"tenant {tenant} has {has} of kind {kind} and requests {wanted} more, at most {most}",
                    reason=Reason.USER_LIMIT,
                    hint="remove what is not needed, or ask an administrator:"
                    f" calabash tenant set {tenant} --networks {kind}={has + wanted}",
                )

    def redacted_error(self, who: Principal, kept: Kept, error: CalabashError, kind: str = "") -> CalabashError:
        """Return the error without names of objects that the principal may not see, and with a hint.

        Args:
            kind: kind of the objects, for the hint; "" for several.
        """
        command = f"net {kind}" if kind else "net"
        hint = error.hint or _HINTS.get(error.reason, "see `calabash {command} list`").format(command=command)

        def shown(name: Name) -> bool:
            vpc = kept.get((NetworkKind.VPC, vpc_of(name.value))) if isinstance(name, NetworkName) else None
            return vpc is not None and self.sees(who, vpc)

        viewer = FilteringViewer(shown)
        return CalabashError(
            render(error.message_text, viewer),
            reason=error.reason,
            hint=render(error.hint_text if error.hint else hint, viewer),
        )
