"""Read access to the cluster for API handlers: devices, queues, and pods shown as allocations.

Each answer is limited to what the principal may see.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from calabash.adapters.kube import ObjectMeta
from calabash.adapters.kube.objects.resources import KubeQueue
from calabash.api import replies, requests
from calabash.api.overview import OverviewReply
from calabash.kubernetes.objects.tenants import NamespacePlace, TenantMap, tenant_map
from calabash.kubernetes.server import views
from calabash.kubernetes.server.state import ClusterState, ServedPod
from calabash.model.allocation import QueueRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import DEFAULT_QUEUE, DEFAULT_TENANT, AllocationId, GpuRequest
from calabash.model.tenancy import DEFAULT_PROJECT, Principal
from calabash.platform.access.permission import Permission, not_found
from calabash.platform.access.visibility import Held, Visibility
from calabash.platform.http.change_feed import Key, Trace
from calabash.platform.overview import overview
from calabash.platform.tenancy.owners import AllocationOwner
from calabash.platform.tenancy.store import TenancyStore

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMoment:
    """A snapshot of the cluster.

    Args:
        devices: all devices with the numbers under which the API shows them.
        parts: the slices that pods have of devices, by pod UID.
        pods: all pods that ask for devices, oldest first.
        tenants: the tenant and project of each queue.
    """

    devices: list[views.NumberedDevice]
    parts: dict[str, list[views.HeldPart]]
    pods: list[ServedPod]
    tenants: TenantMap


class ClusterFace:
    """Queries of the cluster for API handlers. Thread-safe; every answer is from one snapshot.

    Args:
        state: mirrors of the objects in the API server.
        tenancy: tenants, users and roles.
        permission: the rules that decide what a principal may do.
    """

    def __init__(self, state: ClusterState, *, tenancy: TenancyStore, permission: Permission) -> None:
        self._state = state
        self._tenancy = tenancy
        self._permission = permission

    def moment(self) -> ClusterMoment:
        """Return a snapshot of the current state."""
        devices = views.numbered(self._state.nodes())
        return ClusterMoment(
            devices=devices,
            parts=views.parts_by_pod(devices),
            pods=self._state.pods(),
            tenants=tenant_map(self._tenancy.people()),
        )

    def place(self, pod: ServedPod, tenants: TenantMap) -> NamespacePlace:
        """Return the tenant, project and queue of a pod."""
        return tenants.place(self._state.queue_of(pod.facts))

    def tenant_of_queue(self, queue: str) -> tuple[str, str]:
        """Return the tenant and the project that pay for usage in a queue; both are "" if the queue has no tenant.

        Args:
            queue: name of the queue object in the API server.
        """
        place = tenant_map(self._tenancy.people()).place(queue)
        return place.tenant, (place.project or DEFAULT_PROJECT) if place.tenant else ""

    # -- who sees what -----------------------------------------------------------------------------------------

    def visibility(self, who: Principal) -> Visibility:
        """Return the visibility of a principal: the objects that it may read and the names that are redacted for it."""
        tenants = tenant_map(self._tenancy.people())
        return Visibility(
            who,
            people=self._tenancy.people(),
            live=lambda: self._live(tenants),
            queues=[_record(queue) for queue in self._state.queues() if queue.metadata.name not in tenants.queues],
            owner=lambda name: self._owner(name, tenants),
            permission=self._permission,
        )

    def _live(self, tenants: TenantMap) -> Iterator[Held]:
        for pod in self._state.pods():
            place = self.place(pod, tenants)
            plain = pod.facts.request.containers[0].request if pod.facts.request else GpuRequest()
            request = GpuRequest(tenant=place.tenant or DEFAULT_TENANT, queue=place.queue, gang=plain.gang)
            for name in (pod.facts.uid, f"{pod.facts.namespace}/{pod.facts.name}"):  # texts contain the second name
                yield AllocationId(name), request, -1, views.user_of(pod)

    def _owner(self, name: AllocationId, tenants: TenantMap) -> AllocationOwner | None:
        pod = self._state.pod(name)
        if pod is None:
            return None
        return AllocationOwner(tenant=self.place(pod, tenants).tenant, uid=-1, user=views.user_of(pod))

    def sees(self, visibility: Visibility, pod: ServedPod, tenants: TenantMap) -> bool:
        """Return True if the principal of ``visibility`` may see the pod."""
        return visibility.sees(tenant=self.place(pod, tenants).tenant, uid=-1, user=views.user_of(pod))

    # -- what there is -----------------------------------------------------------------------------------------

    def devices(self, visibility: Visibility) -> replies.DeviceList:
        found = self.moment().devices
        return replies.DeviceList(items=[visibility.shown_device(views.device_view(one)) for one in found])

    def device(self, name: str, visibility: Visibility) -> replies.DeviceDetail:
        """Return a device by number or UUID. Raises CalabashError(NOT_FOUND)."""
        detail = views.device_detail(self.numbered(name))
        return msgspec.structs.replace(detail, device=visibility.shown_device(detail.device))

    def numbered(self, name: str) -> views.NumberedDevice:
        """Return a device by number or UUID. Raises CalabashError(NOT_FOUND)."""
        for one in views.numbered(self._state.nodes()):
            if name in {str(one.number), one.device.uuid}:
                return one
        raise CalabashError(
            f"there is no device {name[:80]!r}",
            reason=Reason.NOT_FOUND,
            hint="use a number of `calabash smi`, or a UUID",
        )

    def allocations(self, page: requests.AllocationPage, visibility: Visibility) -> replies.AllocationList:
        """Return one page of the visible pods that have devices or wait for them, oldest first.

        A request for ended allocations, or for those of the caller's own process, gets an empty list. Ended pods appear
        only in usage records.
        """
        if page.ended or page.mine:
            return replies.AllocationList(items=[])
        moment = self.moment()
        seen = [pod for pod in moment.pods if self.sees(visibility, pod, moment.tenants)]
        ids = [pod.facts.uid for pod in seen]
        begin = ids.index(page.after) + 1 if page.after in ids else 0
        shown = [self._shown(pod, moment, visibility) for pod in seen[begin : begin + page.limit]]
        more = len(seen) > begin + page.limit
        return replies.AllocationList(items=shown, next=shown[-1].id if more else "")

    def explain(self, name: str, visibility: Visibility) -> replies.WhyReply:
        """Return the reason why a pod waits, or the devices on which it runs.

        Raises:
            CalabashError: NOT_FOUND if there is no such pod or it is not visible.
        """
        moment, pod = self.moment(), self._state.pod(name)
        if pod is None or not self.sees(visibility, pod, moment.tenants):
            raise not_found(name)
        shown = self._shown(pod, moment, visibility)
        told = shown.explanation
        if shown.state != views.PENDING:
            uuids = ", ".join(part.device for part in shown.slices)
            told = told or f"it is on node {pod.facts.node}" + (f", on {uuids}" if uuids else "")
        return replies.WhyReply(id=shown.id, state=shown.state, reason=shown.reason, explanation=told)

    def queues(self, visibility: Visibility) -> list[replies.QueueView]:
        """Return the visible queues, by name."""
        tenants = tenant_map(self._tenancy.people())
        there = {queue.metadata.name: queue for queue in self._state.queues()}
        found = [views.queue_view(queue, tenants) for queue in there.values()]
        if DEFAULT_QUEUE not in there:
            found.append(views.queue_view(KubeQueue(metadata=ObjectMeta(name=DEFAULT_QUEUE)), tenants))
        seen = (
            q for q in found if visibility.queue(QueueRecord(name=q.name, users=tuple(q.users), groups=tuple(q.groups)))
        )
        return sorted(seen, key=lambda q: q.name)

    def overview(self, visibility: Visibility) -> OverviewReply:
        moment = self.moment()
        pods = [
            self._shown(pod, moment, visibility) for pod in moment.pods if self.sees(visibility, pod, moment.tenants)
        ]
        waiting = [pod for pod in pods if pod.state == views.PENDING]
        return overview(
            [visibility.shown_device(views.device_view(one)) for one in moment.devices],
            [pod for pod in pods if pod.state != views.PENDING],
            pending=len(waiting),
            reasons=[pod.reason or UNKNOWN for pod in waiting],
            at_s=time.time(),
        )

    def counts(self, visibility: Visibility) -> tuple[int, int, int]:
        """Return the numbers of devices, of visible pods that have a node, and of visible pods that have none."""
        moment = self.moment()
        seen = [pod for pod in moment.pods if self.sees(visibility, pod, moment.tenants)]
        held = sum(bool(pod.facts.node) for pod in seen)
        return len(moment.devices), held, len(seen) - held

    def device_count(self) -> int:
        """Return the present number of devices."""
        return len(self.moment().devices)

    def settle(self) -> None:
        """Do nothing: the mirrors show by themselves which devices pods hold."""

    def traces(self) -> dict[Key, Trace]:
        """Return all objects that API clients can watch, by kind and name.

        Each object has a value (``Trace.mark``), which changes when the object has changed for its watchers.
        """
        moment = self.moment()
        found: dict[Key, Trace] = {}
        for one in moment.devices:
            shown = views.device_view(one)
            mark = (shown.health, shown.cause, shown.mode, tuple(shown.allocations))
            found["devices", str(one.number)] = Trace(mark=mark)
        for pod in moment.pods:
            state = views.state_of(pod, moment.parts.get(pod.facts.uid, ()))
            place = self.place(pod, moment.tenants)
            told = (state, views.waiting_reason(pod, state), place)
            found["allocations", pod.facts.uid] = Trace(mark=told, tenant=place.tenant, user=views.user_of(pod))
        for queue in self._state.queues():
            view = views.queue_view(queue, moment.tenants)
            tenant = moment.tenants.place(queue.metadata.name).tenant
            found["queues", view.name] = Trace(mark=view, tenant=tenant)
        return found

    def _shown(self, pod: ServedPod, moment: ClusterMoment, visibility: Visibility) -> replies.AllocationView:
        held = moment.parts.get(pod.facts.uid, [])
        return views.allocation_view(pod, held, moment.tenants, self._state.queue_of(pod.facts))


def _record(queue: KubeQueue) -> QueueRecord:
    return QueueRecord(name=queue.metadata.name, users=queue.spec.users, groups=queue.spec.groups)
