"""Networks of a pool with users of two tenants."""

from __future__ import annotations

from typing import Any

import pytest

from calabash.adapters.store import Store
from calabash.adapters.store.networks import StoredNetworkObject
from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import Member, Principal, Role, Tenant
from calabash.net.objects.specs import decode, parse_kind
from calabash.platform.access.permission import Permission
from calabash.platform.networks.rights import NetworkRights
from calabash.platform.networks.store import NetworkStore
from calabash.platform.tenancy.directory import TenancyDirectory

PEOPLE = TenancyDirectory(tenants={name: Tenant(name=name) for name in ("vision", "speech")})
ROOT = Principal(user="root", uid=0, roles=(Member(user="root", role=Role.ADMIN),), own="root")
ANN = Principal(user="ann", roles=(Member(user="ann", role=Role.MEMBER, tenant="vision"),))
EVE = Principal(user="eve", roles=(Member(user="eve", role=Role.MEMBER, tenant="speech"),))
GUEST = Principal(user="guest", roles=(Member(user="guest", role=Role.VIEWER, tenant="vision"),))
LONER = Principal(user="loner", uid=1007, own="loner")


def pool_networks(store: Store) -> NetworkStore:
    permission = Permission(0, everybody=True, people=lambda: PEOPLE)
    return NetworkStore(store.networks, NetworkRights(permission, lambda: PEOPLE))


def put(networks: NetworkStore, who: Principal, kind: str, name: str, /, **spec: Any) -> StoredNetworkObject:
    return networks.put(who, decode(parse_kind(kind), name, spec))


def red(networks: NetworkStore, who: Principal = ANN) -> None:
    put(networks, who, "vpc", "red", cidrs=["10.0.0.0/16"])
    put(networks, who, "subnet", "red/a", cidrs=["10.0.1.0/24"])


def refused(reason: Reason, call: Any, *given: Any, **named: Any) -> CalabashError:
    with pytest.raises(CalabashError) as told:
        call(*given, **named)
    assert told.value.reason is reason, told.value
    return told.value
