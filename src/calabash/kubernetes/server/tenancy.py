"""Tenancy tables of a cluster: tenants and projects in the API server, everything else in the database.

Theory of operation. The ``Tenant`` objects of the Kubernetes API server are authoritative, whichever client writes
them. The server's HTTP API changes a tenant by writing its object in the version that was read, so that the API server
refuses the write if another client changed the object in between. The database has a copy of tenants and projects for
invoices; it is written after the object. ``TenantKeeper`` updates that copy from the objects, and also the tenancy in
memory by which requests are authorized.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.resources import TENANT, KubeTenant
from calabash.adapters.store.tenancy import TenancyTables
from calabash.kubernetes.objects.tenants import kube_queue, projects_of, spec_body, spec_of, tenant_of
from calabash.kubernetes.server.state import ClusterState
from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import Member, Project, Tenant


class ClusterTenancy(TenancyTables):
    """Tables of ``TenancyStore`` in which tenants and projects are read from, and written to, the API server.

    Methods that write raise CalabashError: CONFLICT if another client changed the object in between.

    Args:
        tables: tables of the database.
        client: client of the API server.
        state: the server's mirrors.
    """

    def __init__(self, tables: TenancyTables, client: KubeClient, state: ClusterState) -> None:
        super().__init__(tables.database)
        self._client = client
        self._state = state

    def tenants(self) -> list[Tenant]:
        return readable(self._state.tenants())[0]

    def projects(self) -> list[Project]:
        return readable(self._state.tenants())[1]

    def copied(self) -> tuple[list[Tenant], list[Project]]:
        """Return the database's copy of the tenants and projects."""
        return super().tenants(), super().projects()

    def put_tenant(self, tenant: Tenant, *, members: Sequence[Member] | None = None) -> None:
        known = self._state.tenant(tenant.name)
        self._write(known, tenant, projects_of(known) if known is not None else [])
        super().put_tenant(tenant, members=members)

    def copy_tenant(self, tenant: Tenant) -> None:
        """Write a tenant to the database's copy only, after another client has changed its object."""
        super().put_tenant(tenant)

    def delete_tenant(self, name: str) -> bool:
        known = self._state.tenant(name)
        self._require_empty(f"tenant {name}", name, *(_queues(name, projects_of(known)) if known is not None else ()))
        gone = known is not None and self._client.delete(TENANT, name, uid=known.metadata.uid)
        if known is not None:
            uid = known.metadata.uid
            self._state.wait_for_tenant(name, lambda now: now is None or now.metadata.uid != uid)
        return self.forget_tenant(name) or gone

    def forget_tenant(self, name: str) -> bool:
        """Delete a tenant from the database's copy only, after its object was deleted; return True if it was there."""
        return super().delete_tenant(name)

    def put_project(self, project: Project) -> None:
        known = self._known(project.tenant)
        others = [p for p in projects_of(known) if p.name != project.name]
        self._write(known, tenant_of(known), [*others, project])
        super().put_project(project)

    def copy_project(self, project: Project) -> None:
        super().put_project(project)

    def delete_project(self, tenant: str, name: str) -> bool:
        known = self._known(tenant)
        self._require_empty(f"project {tenant}/{name}", f"{tenant}/{name}")
        self._write(known, tenant_of(known), [p for p in projects_of(known) if p.name != name])
        return self.forget_project(tenant, name)

    def forget_project(self, tenant: str, name: str) -> bool:
        return super().delete_project(tenant, name)

    # -- inside ------------------------------------------------------------------------------------------------

    def _known(self, name: str) -> KubeTenant:
        found = self._state.tenant(name)
        if found is None:
            raise CalabashError(f"there is no tenant {name}", reason=Reason.NOT_FOUND, hint="kubectl get tenants")
        return found

    def _write(self, known: KubeTenant | None, tenant: Tenant, projects: Iterable[Project]) -> None:
        """Create or change a tenant's object. Wait until the mirror has it, so that later requests see the change."""
        body: dict[str, Any] = {"spec": spec_body(spec_of(tenant, projects))}
        if known is None:
            body["spec"] = {name: value for name, value in body["spec"].items() if value is not None}
            body |= {"apiVersion": TENANT.api_version, "kind": TENANT.name, "metadata": {"name": tenant.name}}
            written = self._client.create(TENANT, body)
        else:
            body["metadata"] = {"resourceVersion": known.metadata.resource_version, "uid": known.metadata.uid}
            written = self._client.patch(TENANT, tenant.name, body=body)
        uid, generation = written.metadata.uid, written.metadata.generation

        def seen(now: KubeTenant | None) -> bool:
            return now is not None and (now.metadata.uid != uid or now.metadata.generation >= generation)

        self._state.wait_for_tenant(tenant.name, seen)

    def _require_empty(self, what: str, *queues: str) -> None:
        there = {kube_queue(name) for name in queues}
        pods = sum(self._state.queue_of(pod.facts) in there for pod in self._state.pods())
        if pods:
            raise CalabashError(
                f"{what} has {pods} pod{'s' if pods != 1 else ''} that use devices or wait for them",
                reason=Reason.CONFLICT,
                hint="delete them first, or give their namespace another queue",
            )


def readable(found: Iterable[KubeTenant]) -> tuple[list[Tenant], list[Project]]:
    """Return the tenants and projects that tenant objects describe.

    Invalid objects, and objects that are being deleted, are left out.
    """
    tenants: list[Tenant] = []
    projects: list[Project] = []
    for one in found:
        if one.metadata.deletion_timestamp is not None:
            continue
        try:
            tenant, parts = tenant_of(one), projects_of(one)
            spec_of(tenant, parts)
        except CalabashError:
            continue  # reported by its condition
        tenants.append(tenant)
        projects += parts
    return tenants, projects


def _queues(tenant: str, projects: Iterable[Project]) -> list[str]:
    return [f"{tenant}/default", *(p.queue for p in projects)]
