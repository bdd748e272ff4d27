"""Admission of requests: determine tenant and queue, and check permissions and limits before the request is queued."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from calabash.api import requests
from calabash.binder.local.binder import Binder
from calabash.model.access import Action
from calabash.model.errors import CalabashError, Reason
from calabash.model.request import GpuRequest
from calabash.model.tenancy import Principal, Tenant
from calabash.node.agent import NodeAgent
from calabash.platform.access.permission import Permission
from calabash.platform.home.limits import Limits
from calabash.platform.tenancy.directory import TenancyDirectory
from calabash.platform.tenancy.queues import apply_tenant_limits, queue_of
from calabash.platform.tenancy.store import TenancyStore
from calabash.pool.networks.ports import TenantPorts
from calabash.pool.queues import Queues
from calabash.pool.requests.waiting_limit import UserLocks, WaitingLimit


class EntryBounds:
    """Admission checks of one pool. Safe for threads."""

    def __init__(
        self,
        *,
        permission: Permission,
        tenancy: TenancyStore,
        queues: Queues,
        agent: NodeAgent,
        binder: Binder,
        limits: Limits,
        ports: TenantPorts,
    ) -> None:
        self._permission = permission
        self._tenancy = tenancy
        self._queues = queues
        self._agent = agent
        self._binder = binder
        self._users = WaitingLimit(limits.waiting)
        self._tenants = WaitingLimit(limits.waiting_of_tenant, what="tenant", setting="waiting_of_tenant")
        self._user_locks = UserLocks()
        self._ports = ports

    def admit(self, wanted: requests.AllocationRequest, who: Principal) -> GpuRequest:
        """Return a request in the scheduler's form, with its tenant, queue and limits.

        Raises CalabashError if the request is not permitted.

        Args:
            wanted: body of the API request.
            who: the requesting principal.
        """
        if who.uid < 0:
            raise CalabashError(
                f"user {who.user} has no account on this machine that programs could run as",
                reason=Reason.NOT_PERMITTED,
                hint=f"ask an administrator for: calabash user set {who.user} --login NAME",
            )
        people = self._tenancy.people()
        tenant = self._permission.tenant(who, wanted.tenant)
        if not wanted.standing:  # standing requests of brokers name users of other machines
            self._require_account(people, who, tenant)
        queue, project = queue_of(
            people, self._queues.explicit(), who, tenant, queue=wanted.queue, project=wanted.project
        )
        if wanted.standing:
            self._permission.require(who, Action.OPERATE, "keep devices for virtual machines")
        if project:
            self._permission.require(
                who, Action.RUN, f"request slices of project {project}", tenant=tenant, project=project
            )
        else:
            record = self._queues.queue(queue)
            self._permission.require_queue(who, queue, record.users, record.groups)
            self._queues.require_explicit(queue)
        request = wanted.request(tenant=tenant, queue=queue)
        self._ports.require(request, who)
        bounds = people.tenants.get(tenant)
        return (
            apply_tenant_limits(request, bounds, [state.device for state in self._agent.devices()])
            if bounds
            else request
        )

    @contextmanager
    def joining(self, request: GpuRequest, who: Principal) -> Iterator[None]:
        """Count a request as waiting; the body of the context adds it to its queue. Raises USER_LIMIT beyond a limit.

        If the body raises, the request is not counted any more. Otherwise the caller calls ``left`` after the request
        was granted or withdrawn.
        """
        exempt = self._permission.administrator(who)
        bounds = self._tenancy.people().tenants.get(request.tenant)
        counted = bounds is not None and bounds.slices_per_user > 0 and not exempt
        with self._user_locks.locked(request.tenant, who.key) if counted else nullcontext():
            if bounds is not None and counted:
                self._require_slices(request, bounds, who)
            self._users.join(who.user, exempt=exempt)
            try:
                self._tenants.join(request.tenant, exempt=exempt)
            except CalabashError:
                self._users.leave(who.user)
                raise
            try:
                yield
            except BaseException:
                self.left(request, who)
                raise

    def _require_account(self, people: TenancyDirectory, who: Principal, tenant: str) -> None:
        """Raise NOT_FOUND if there is neither a tenant of that name nor a user of that name.

        A user who is a member of no tenant has an implicit tenant of the same name.
        """
        if tenant in people.tenants or tenant == who.own or tenant in people.users:
            return
        if self._permission.account_of(tenant) < 0:
            raise CalabashError(
                f"there is no tenant {tenant}",
                reason=Reason.NOT_FOUND,
                hint=f"see `calabash tenant list`, or create it with `calabash tenant create {tenant}`",
            )

    def left(self, request: GpuRequest, who: Principal) -> None:
        """Count a request as not waiting any more, because it was granted or withdrawn."""
        self._users.leave(who.user)
        self._tenants.leave(request.tenant)

    def _require_slices(self, request: GpuRequest, tenant: Tenant, who: Principal) -> None:
        mine = {r.id: r.request for r in self._agent.records() if r.uid == who.uid}
        mine |= {w.id: w.request for w in self._binder.waiting() if w.requester.uid == who.uid}
        has = sum(r.count for r in mine.values() if r.tenant == tenant.name)
        if has + request.count > tenant.slices_per_user:
            raise CalabashError(
                f"user {who.user} of tenant {tenant.name} has {has} slices and asks for {request.count},"
                f" at most {tenant.slices_per_user}",
                reason=Reason.USER_LIMIT,
                hint="give some back first; see `calabash ps`",
            )
