"""Pods that wait for devices, for the notices that the server sends to users whose pods wait too long."""

from __future__ import annotations

from collections.abc import Iterator

from calabash.api.requests import PAGE_MAX, AllocationPage
from calabash.kubernetes.server import views
from calabash.kubernetes.server.cluster import ClusterFace
from calabash.model.request import AllocationId
from calabash.model.tenancy import Member, Principal, Role
from calabash.platform.notifications.collector import WaitingLong

_EVERYTHING = Principal(user="pool", roles=(Member(user="pool", role=Role.VIEWER),))


def waiting_pods(cluster: ClusterFace) -> Iterator[WaitingLong]:
    """Yield the pods that wait for devices now."""
    visibility, after = cluster.visibility(_EVERYTHING), ""
    while True:
        found = cluster.allocations(AllocationPage(limit=PAGE_MAX, after=after), visibility)
        for one in found.items:
            if one.state == views.PENDING:
                yield WaitingLong(id=AllocationId(one.id), tenant=one.tenant, since_s=one.created_at)
        after = found.next
        if not after:
            return
