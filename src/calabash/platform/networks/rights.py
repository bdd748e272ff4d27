"""Who may see and change which object of a network.

A VPC is a tenant's, and so is everything in it: who sees the tenant sees it, its members change it. Uplinks are the
platform's; lines take a VLAN of the provider's network, which an administrator gives. Of a VPC that somebody does not see it
learns nothing, but that a name is taken when it wants the same for its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from calabash.adapters.store.networks import StoredNetworkObject
from calabash.model.access import Action, is_allowed
from calabash.model.errors import CalabashError, Reason
from calabash.model.mentions import Mentioned, render
from calabash.model.network import NetworkKind, NetworkObject, Vpc, kind_of, vpc_of
from calabash.model.tenancy import Principal
from calabash.net.checks.common import is_reserved_name
from calabash.net.checks.subnets import DEFAULT_GROUP
from calabash.platform.access.permission import Permission
from calabash.platform.tenancy.directory import People
from calabash.platform.tenancy.store import missing

Key = tuple[str, str]
Kept = Mapping[Key, StoredNetworkObject]

VPCS_PER_TENANT_MAX = 64
OBJECTS_PER_TENANT_MAX = 10_000
# Where whoever has found something wrong has said no more than what.
_HINTS = {
    Reason.BAD_REQUEST: "see `calabash {kind} --help`",
    Reason.NOT_PERMITTED: "ask an administrator",
    Reason.NO_CAPACITY: "remove what is not needed: `calabash {kind} list`",
}
_PLATFORMS = frozenset({NetworkKind.UPLINK, NetworkKind.DEDICATED_LINE})


def bounded(kind: str, name: str) -> bool:
    """Whether it counts as a tenant's: not what the platform puts beside its objects."""
    return not is_reserved_name(name) and not (
        kind == NetworkKind.SECURITY_GROUP and name.endswith(f"/{DEFAULT_GROUP}")
    )


class NetworkRights:
    """The rules; methods named ``require`` raise CalabashError."""

    def __init__(self, permission: Permission, people: Callable[[], People]) -> None:
        self._permission = permission
        self._people = people

    def platform(self, who: Principal) -> bool:
        """Whether it changes what networks share."""
        return is_allowed(who, Action.MANAGE_UPLINKS)

    def require_platform(self, who: Principal, what: str) -> None:
        self._permission.require(who, Action.MANAGE_UPLINKS, what)

    def require_local(self, who: Principal, what: str) -> None:
        """Of processes of this machine, and administrators', alone."""
        self.require_platform(who, what)
        self._permission.require_process(who, what)

    def sees(self, who: Principal, kept: StoredNetworkObject) -> bool:
        if kept.kind == NetworkKind.UPLINK:
            return is_allowed(who, Action.SEE_PLATFORM)
        return is_allowed(who, Action.SEE, tenant=kept.tenant)

    def found(self, who: Principal, kept: Kept, kind: NetworkKind, name: str) -> StoredNetworkObject:
        """The object. Raises NOT_FOUND where there is none, as far as it may know."""
        item = kept.get((kind, name))
        if item is None or not self.sees(who, item):
            raise missing(kind, name[:200])
        return item

    def tenant_for(self, who: Principal, wanted: str) -> str:
        """Whose a new VPC is."""
        tenant = self._permission.tenant(who, wanted)
        people = self._people()
        if tenant != who.own and tenant not in people.tenants and tenant not in people.users:
            raise missing("tenant", tenant)
        self._permission.require(who, Action.MANAGE_NETWORKS, "make networks there", tenant=tenant)
        return tenant

    def require_change(self, who: Principal, kept: Kept, kind: NetworkKind, name: str) -> str:
        """That it may put or remove that object; whose it is."""
        tenant = ""
        if kind is not NetworkKind.UPLINK:
            vpc = self.found(who, kept, NetworkKind.VPC, vpc_of(name))
            tenant = vpc.tenant
            self._permission.require(who, Action.MANAGE_NETWORKS, "change its networks", tenant=tenant)
        if kind in _PLATFORMS:
            self.require_platform(who, f"change a {kind}, which takes a part of the provider's network")
        return tenant

    def require_put(self, who: Principal, kept: Kept, wanted: NetworkObject, *, room: bool = True) -> None:
        """That it may put this object there, which may be a new VPC; ``room``: and that there is room for it."""
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
        """That a tenant may have so many more of each kind, while ``gone`` go; administrators are not bound."""
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
                    f"tenant {tenant} has {has} of kind {kind} and asks for {wanted} more, at most {most}",
                    reason=Reason.USER_LIMIT,
                    hint="remove what is not needed, or ask an administrator:"
                    f" calabash tenant set {tenant} --networks {kind}={has + wanted}",
                )

    def told(self, who: Principal, kept: Kept, error: CalabashError, kind: str = "") -> CalabashError:
        """The error without mentions of objects that the principal does not see; always with a hint.

        Args:
            kind: what it was about, "" for several.
        """
        hint = error.hint or _HINTS.get(error.reason, "see `calabash {kind} list`").format(kind=kind or "net")

        def shown(named: str, name: str) -> bool:
            vpc = kept.get((NetworkKind.VPC, vpc_of(name))) if named == Mentioned.NETWORK else None
            return vpc is not None and self.sees(who, vpc)

        message = render(error.marked_message, shown)
        return CalabashError(
            message, reason=error.reason, hint=render(error.marked_hint if error.hint else hint, shown)
        )
