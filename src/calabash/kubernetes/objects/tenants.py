"""Tenants as they stand in the API server, their queues there, and whose a namespace is. Pure.

A tenant ``vision`` has the queues ``vision``, ``vision.default`` and ``vision.PROJECT``; the product's other parts call the
latter ``vision/PROJECT``, which names in the API server cannot be. A namespace is of the project whose queue its label names.
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
from calabash.platform.tenancy.directory import People
from calabash.platform.tenancy.queues import tenant_queues

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,29}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePlace:
    """Where pods of a namespace are counted: ``queue`` as people are told it. ``tenant`` and ``project`` are empty where it
    is nobody's."""

    tenant: str = ""
    project: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantMap:
    """Which queues are tenants', by name in the API server: (tenant, project), project empty for the tenant's own."""

    queues: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def place(self, queue: str) -> NamespacePlace:
        """Where pods in that queue are counted."""
        tenant, project = self.queues.get(queue, ("", ""))
        return NamespacePlace(tenant=tenant, project=project, queue=self.told(queue))

    def told(self, queue: str) -> str:
        """The queue as people are told it."""
        tenant, project = self.queues.get(queue, ("", ""))
        return f"{tenant}/{project}" if project else queue


def tenant_map(people: People) -> TenantMap:
    """Of all tenants that there are."""
    found = {}
    for told, record in tenant_queues(people, ()).items():
        tenant = record.parent or told
        found[kube_queue(told)] = (tenant, project_of(tenant, told))
    return TenantMap(queues=found)


def kube_queue(told: str) -> str:
    """The name in the API server of a queue that people are told as ``TENANT/PROJECT``."""
    return told.replace("/", ".")


def queue_of_namespace(namespace: Namespace | None) -> str:
    """The queue that its label names, in the API server's words; empty where it names none."""
    return namespace.metadata.labels.get(names.QUEUE, "") if namespace is not None else ""


def tenant_of(found: KubeTenant) -> Tenant:
    """In the words of the model. Raises CalabashError for what a schema would have refused."""
    spec = found.spec
    return Tenant(
        name=found.metadata.name,
        guarantee=spec.guarantee,
        limit=spec.limit,
        weight=spec.weight,
        budget=parse_money(spec.budget) if spec.budget else None,
    )


def projects_of(found: KubeTenant) -> list[Project]:
    """In the words of the model. Raises CalabashError."""
    tenant = found.metadata.name
    return [
        Project(tenant=tenant, name=p.name, guarantee=p.guarantee, limit=p.limit, weight=p.weight)
        for p in found.spec.projects
    ]


def spec_of(tenant: Tenant, projects: Iterable[Project]) -> KubeTenantSpec:
    """As the API server is to have it. Raises BAD_REQUEST for names that cannot be there, UNSUPPORTED for bounds that
    nothing in a cluster would keep."""
    _require_name("tenant", tenant.name)
    plain = Tenant(name=tenant.name)
    for what in ("priorities", "modes", "models", "slices_per_user", "run_s_max", "groups", "networks"):
        if getattr(tenant, what) != getattr(plain, what):
            raise CalabashError(
                f"{what.replace('_', ' ')} of a tenant are not bounded on Kubernetes",
                reason=Reason.UNSUPPORTED,
                hint="leave it out; ResourceQuota, PriorityClass and RBAC of the cluster say it there",
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
    """Of a merge patch: what is none is said to be none."""
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
    """The queues that a tenant has, by name in the API server."""
    people = People(tenants={tenant.name: tenant}, projects={(p.tenant, p.name): p for p in projects})
    return {kube_queue(name): record for name, record in tenant_queues(people, ()).items()}


def _require_name(what: str, name: str) -> None:
    if _NAME.fullmatch(name) is None or (what, name) == ("tenant", "default"):
        raise CalabashError(
            f"{what} name {name[:80]!r} is not usable on Kubernetes",
            hint="at most 31 small letters, digits and -, no dot; `default` is everybody's",
        )
