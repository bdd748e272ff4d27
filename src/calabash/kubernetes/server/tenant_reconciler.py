"""Reconcile Tenant objects: keep the queues of tenants, the server's copy of tenants, and the status of the objects."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog

from calabash.adapters.kube import KubeClient, KubeError
from calabash.adapters.kube.objects.core import Condition
from calabash.adapters.kube.objects.resources import QUEUE, TENANT, KubeQueue, KubeTenant, KubeTenantStatus
from calabash.kubernetes.objects import names
from calabash.kubernetes.objects.tenants import kube_queue, projects_of, spec_of, tenant_of, wanted_queues
from calabash.kubernetes.server.state import ClusterState
from calabash.kubernetes.server.tenancy import ClusterTenancy, readable
from calabash.model.allocation import QueueRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import Project, Tenant
from calabash.platform.tenancy.directory import TenancyDirectory
from calabash.platform.tenancy.store import TenancyStore

COMPONENT = "calabash-server"
POLL_S = 3.0  # greatest age of the figures in the status
READY = "Ready"

log = structlog.get_logger(__name__)


class TenantKeeper:
    """Thread that reconciles tenants when ``due`` is set, and at least every ``POLL_S`` seconds.

    Args:
        client: client of the API server.
        state: the server's mirrors.
        tables: the tables with the database's copy of tenants and projects.
        tenancy: the tenancy in memory by which requests are authorized.
        due: set by the mirrors after a change of a tenant, a queue or a namespace.
    """

    def __init__(
        self,
        client: KubeClient,
        state: ClusterState,
        *,
        tables: ClusterTenancy,
        tenancy: TenancyStore,
        due: threading.Event,
    ) -> None:
        self._client = client
        self._state = state
        self._tables = tables
        self._tenancy = tenancy
        self._stopping = threading.Event()
        self._due = due
        self._thread = threading.Thread(target=self._run, name="tenants", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.reconcile()
            except CalabashError as error:
                log.warning("cannot reconcile tenants", error=error.message)
            except Exception:
                log.exception("cannot reconcile tenants")
            self._due.wait(POLL_S)
            self._due.clear()

    def reconcile(self) -> None:
        """Reconcile all tenants.

        Raises:
            CalabashError: the API server or the database refused a write; the next call continues.
        """
        self._adopt()
        faults = self._keep_queues(self._state.tenants())
        for tenant in self._state.tenants():
            self._write_status(tenant, faults.get(tenant.metadata.name, ""))

    # -- what requests are judged by -----------------------------------------------------------------------------

    def _adopt(self) -> None:
        self._tenancy.adopt(lambda: readable(self._state.tenants()), self._copy)

    def _copy(self, now: TenancyDirectory) -> None:
        """Update the database's copy of tenants and projects."""
        tenants, projects = self._tables.copied()
        copied = {t.name: t for t in tenants}
        parts = {(p.tenant, p.name): p for p in projects}
        for name in copied.keys() - now.tenants.keys():
            self._tables.forget_tenant(name)
        for tenant, name in parts.keys() - now.projects.keys():
            if tenant in now.tenants:
                self._tables.forget_project(tenant, name)
        for tenant_here in now.tenants.values():
            if copied.get(tenant_here.name) != tenant_here:
                self._tables.copy_tenant(tenant_here)
        for project in now.projects.values():
            if parts.get((project.tenant, project.name)) != project:
                self._tables.copy_project(project)

    # -- queues --------------------------------------------------------------------------------------------------

    def _keep_queues(self, tenants: Iterable[KubeTenant]) -> dict[str, str]:
        """Create, change and delete the queues of tenants.

        Returns:
            An error message for each tenant that is invalid or whose queues were refused, by the tenant's name.
        """
        there = {queue.metadata.name: queue for queue in self._state.queues()}
        faults: dict[str, str] = {}
        wanted: set[str] = set()
        for tenant in tenants:
            name = tenant.metadata.name
            if tenant.metadata.deletion_timestamp is not None:
                continue
            try:
                queues = _queues_of(tenant)
                wanted |= queues.keys()
                for queue, record in queues.items():  # a parent precedes its children
                    self._keep_queue(there.get(queue), queue, record, tenant)
            except KubeError as error:
                log.info("cannot write a queue of a tenant", tenant=name, error=error.message)
                if error.reason is Reason.BAD_REQUEST:
                    faults[name] = error.message
            except CalabashError as error:
                faults[name] = error.message
        theirs = [queue for queue in there.values() if names.TENANT in queue.metadata.labels]
        for queue_gone in sorted(theirs, key=lambda q: -q.metadata.name.count(".")):  # children first
            meta = queue_gone.metadata
            if meta.name not in wanted and meta.labels[names.TENANT] not in faults:
                self._client.delete(QUEUE, meta.name, uid=meta.uid)
        return faults

    def _keep_queue(self, known: KubeQueue | None, name: str, record: QueueRecord, tenant: KubeTenant) -> None:
        whose = tenant.metadata.name
        if known is not None and known.metadata.labels.get(names.TENANT) != whose:
            raise CalabashError(
                f"queue {name} is there already and is not the tenant's",
                hint=f"delete it, or label it {names.TENANT}={whose}",
            )
        spec: dict[str, Any] = {
            "parent": kube_queue(record.parent),
            "deserved": record.deserved,
            "limit": record.limit,
            "weight": record.weight,
        }
        if known is None:
            owner = {"apiVersion": TENANT.api_version, "kind": TENANT.name, "name": whose, "uid": tenant.metadata.uid}
            body = {
                "apiVersion": QUEUE.api_version,
                "kind": QUEUE.name,
                "metadata": {"name": name, "labels": {names.TENANT: whose}, "ownerReferences": [owner]},
                "spec": {key: value for key, value in spec.items() if value is not None},
            }
            self._client.create(QUEUE, body)
        elif (known.spec.parent, known.spec.deserved, known.spec.limit, known.spec.weight) != tuple(spec.values()):
            meta = {"resourceVersion": known.metadata.resource_version}
            self._client.patch(QUEUE, name, body={"metadata": meta, "spec": spec})

    # -- status --------------------------------------------------------------------------------------------------

    def _write_status(self, tenant: KubeTenant, fault: str) -> None:
        name = tenant.metadata.name
        status = self._status(tenant, fault)
        if _same(tenant.status, status):
            return
        body = {"status": status}
        self._client.patch(
            TENANT, name, body=body, style="apply", subresource="status", field_manager=COMPONENT, force=True
        )

    def _status(self, tenant: KubeTenant, fault: str) -> dict[str, Any]:
        name = tenant.metadata.name
        queue = self._state.queue(name)
        used = queue.status if queue is not None else None
        try:
            queues = _queues_of(tenant)
        except CalabashError:
            queues = {}
        before = next((c for c in tenant.status.conditions if c.type == READY), None)
        ready = "False" if fault else "True"
        since = before.last_transition_time if before is not None and before.status == ready else None
        return {
            "observedGeneration": tenant.metadata.generation,
            "allocated": used.allocated if used else 0.0,
            "borrowed": max(0.0, used.allocated - tenant.spec.guarantee) if used else 0.0,
            "waiting": used.waiting if used else 0,
            "namespaces": sum(self._state.namespaces_in(one) for one in queues),
            "conditions": [
                {
                    "type": READY,
                    "status": ready,
                    "reason": "QueuesRefused" if fault else "QueuesStand",
                    "message": fault[:1024],
                    "lastTransitionTime": since or _stamp(),
                    "observedGeneration": tenant.metadata.generation,
                }
            ],
        }


def _queues_of(tenant: KubeTenant) -> Mapping[str, QueueRecord]:
    """Return the queues that a tenant must have, by their names in the API server.

    Raises:
        CalabashError: the tenant is invalid.
    """
    model: Tenant = tenant_of(tenant)
    parts: list[Project] = projects_of(tenant)
    spec_of(model, parts)
    return wanted_queues(model, parts)


def _same(told: KubeTenantStatus, status: dict[str, Any]) -> bool:
    (ready,) = status["conditions"]
    known: Condition | None = next((c for c in told.conditions if c.type == READY), None)
    figures = (told.observed_generation, told.allocated, told.borrowed, told.waiting, told.namespaces)
    if figures != tuple(
        status[key] for key in ("observedGeneration", "allocated", "borrowed", "waiting", "namespaces")
    ):
        return False
    return known is not None and (known.status, known.message) == (ready["status"], ready["message"])


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
