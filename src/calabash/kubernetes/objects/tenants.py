"""Tenants in the API server: conversion of their objects, the names of their queues, and a namespace's tenant. Pure.

A tenant ``vision`` has the queue objects ``vision``, ``vision.default`` and, for each project, ``vision.PROJECT``.
Users, and the rest of the product, call the last one ``vision/PROJECT``; the names differ because an object name in the
API server must not contain a slash. A namespace belongs to the project whose queue its label names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from calabash.adapters.kube.objects.core import Namespace
from calabash.adapters.kube.objects.resources import KubeProject, KubeTenant, KubeTenantSpec
from calabash.kubernetes.objects import names
from calabash.model.allocation import QueueRecord
from calabash.model.errors import CalabashError, Reason
from calabash.model.money import parse_money
from calabash.model.tenancy import Project, Tenant, project_of
from calabash.platform.tenancy.directory import TenancyDirectory
from calabash.platform.tenancy.queues import tenant_queues

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,29}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePlace:
    """The tenant, the project and the queue to which pods of a namespace are charged.

    ``queue`` is the name that users see. ``tenant`` and ``project`` are empty if the queue belongs to no tenant.
    """

    tenant: str = ""
    project: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantMap:
    """The tenant and the project of each queue that belongs to a tenant.

    Args:
        queues: tenant and project by the name of the queue object in the API server. The project of a tenant's own
            queue is "".
    """

    queues: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def place(self, queue: str) -> NamespacePlace:
        """Return the tenant, the project and the displayed name of a queue, by the name of the queue object."""
        tenant, project = self.queues.get(queue, ("", ""))
        return NamespacePlace(tenant=tenant, project=project, queue=self.displayed_name(queue))

    def displayed_name(self, queue: str) -> str:
        """Return the name that users see, by the name of the queue object in the API server."""
        tenant, project = self.queues.get(queue, ("", ""))
        return f"{tenant}/{project}" if project else queue


def tenant_map(people: TenancyDirectory) -> TenantMap:
    """Return the map of the queues of all tenants."""
    found = {}
    for told, record in tenant_queues(people, ()).items():
        tenant = record.parent or told
        found[kube_queue(told)] = (tenant, project_of(tenant, told))
    return TenantMap(queues=found)


def kube_queue(told: str) -> str:
    """Return the name of the queue object in the API server for the name that users see: ``TENANT/PROJECT``."""
    return told.replace("/", ".")


def queue_of_namespace(namespace: Namespace | None) -> str:
    """Return the name of the queue object that the namespace's label names; "" if there is no label or namespace."""
    return namespace.metadata.labels.get(names.QUEUE, "") if namespace is not None else ""


def tenant_of(found: KubeTenant) -> Tenant:
    """Convert a Tenant object of the API server to a ``Tenant``.

    Raises:
        CalabashError: the object has an invalid value, which the schema of the API server should have refused.
    """
    spec = found.spec
    return Tenant(
        name=found.metadata.name,
        guarantee=spec.guarantee,
        limit=spec.limit,
        weight=spec.weight,
        budget=parse_money(spec.budget) if spec.budget else None,
    )


def projects_of(found: KubeTenant) -> list[Project]:
    """Convert the projects in a Tenant object of the API server to ``Project`` values.

    Raises:
        CalabashError: the object has an invalid value, which the schema of the API server should have refused.
    """
    tenant = found.metadata.name
    return [
        Project(tenant=tenant, name=p.name, guarantee=p.guarantee, limit=p.limit, weight=p.weight)
        for p in found.spec.projects
    ]


def spec_of(tenant: Tenant, projects: Iterable[Project]) -> KubeTenantSpec:
    """Convert a tenant and its projects to the specification of a Tenant object.

    Raises:
        CalabashError: BAD_REQUEST if a name cannot be that of an object, UNSUPPORTED if the tenant has limits that are
            not enforced in a cluster.
    """
    _require_name("tenant", tenant.name)
    plain = Tenant(name=tenant.name)
    for what in ("priorities", "modes", "models", "slices_per_user", "run_s_max", "groups", "networks"):
        if getattr(tenant, what) != getattr(plain, what):
            raise CalabashError(
                f"{what.replace('_', ' ')} of a tenant cannot be limited on Kubernetes",
                reason=Reason.UNSUPPORTED,
                hint="remove the limit; use ResourceQuota, PriorityClass and RBAC of the cluster instead",
            )
    found = sorted(projects, key=lambda p: p.name)
    for project in found:
        _require_name("project", project.name)
    return KubeTenantSpec(
        guarantee=tenant.guarantee,
        limit=tenant.limit,
        weight=tenant.weight,
        budget=str(tenant.budget or ""),
        projects=tuple(KubeProject(name=p.name, guarantee=p.guarantee, limit=p.limit, weight=p.weight) for p in found),
    )


def spec_body(spec: KubeTenantSpec) -> dict[str, Any]:
    """Return the body of a merge patch with the specification. It includes empty values, so that these are cleared."""
    return {
        "guarantee": spec.guarantee,
        "limit": spec.limit,
        "weight": spec.weight,
        "budget": spec.budget,
        "projects": [
            {"name": p.name, "guarantee": p.guarantee, "weight": p.weight}
            | ({} if p.limit is None else {"limit": p.limit})
            for p in spec.projects
        ],
    }


def wanted_queues(tenant: Tenant, projects: Iterable[Project]) -> dict[str, QueueRecord]:
    """Return the queues that a tenant must have, by the names of their objects in the API server."""
    people = TenancyDirectory(tenants={tenant.name: tenant}, projects={(p.tenant, p.name): p for p in projects})
    return {kube_queue(name): record for name, record in tenant_queues(people, ()).items()}


def _require_name(what: str, name: str) -> None:
    if _NAME.fullmatch(name) is None or (what, name) == ("tenant", "default"):
        raise CalabashError(
            f"{what} name {name[:80]!r} is not usable on Kubernetes",
            hint="at most 31 lower-case letters, digits and hyphens, without dots; `default` is reserved",
        )
