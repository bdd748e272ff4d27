"""Build the services of the pool of one machine and connect them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from calabash.adapters.clock import Clock
from calabash.adapters.store import Store
from calabash.binder.local.binder import Binder
from calabash.node.agent import NodeAgent
from calabash.node.ports.protocol import HostPorts
from calabash.platform.access.identities import Identities
from calabash.platform.access.permission import Permission
from calabash.platform.access.tenancy_changes import TenancyChanges
from calabash.platform.access.tokens import Tokens
from calabash.platform.audit.trail import AuditTrail
from calabash.platform.billing.service import Billing
from calabash.platform.networks.store import NetworkStore
from calabash.platform.notifications.rules import NotificationRules
from calabash.platform.notifications.wiring import notifying
from calabash.platform.tenancy.owners import AllocationOwners
from calabash.platform.tenancy.store import TenancyStore, TenantDirectory
from calabash.pool.kept_allocations import StandingAllocations
from calabash.pool.networks.fabric import FabricHolds
from calabash.pool.networks.listening_ports import PlaceJournal, ServerPlaces
from calabash.pool.networks.ports import TenantPorts
from calabash.pool.notice_sources import over_use_notifier, waiting_long
from calabash.pool.overuse.watcher import OverUseWatch
from calabash.pool.past_use import PastUseKeeper
from calabash.pool.pool import Pool
from calabash.pool.queues import Queues
from calabash.pool.requests.entry import EntryBounds
from calabash.pool.requests.explanations import Explanations
from calabash.pool.settings import Settings
from calabash.sched import CycleLimit


def build_pool(
    stack: ExitStack,
    *,
    home: Path,
    settings: Settings,
    store: Store,
    clock: Clock,
    agent: NodeAgent,
    directory: TenantDirectory,
    permission: Permission,
    networks: NetworkStore,
    network: HostPorts,
    journal: PlaceJournal,
    audit: AuditTrail,
) -> tuple[Pool, NotificationRules]:
    """Build the services of a pool; return them and the rules of its notifications, whose threads are running.

    Args:
        stack: closes billing and stops the threads of notifications.
        home: directory of the pool.
        directory: present tenants and users, which ``permission`` uses too.
        networks: tenant networks.
        network: ports of tenant networks on this host, which the agent uses too.
        journal: ports on which servers of this host listen; ``network`` uses it too.

    Raises:
        CalabashError(BAD_FILE): the settings of notifications are invalid.
    """
    queues = Queues(store, directory.people)
    fabric = FabricHolds(agent.records, hold=settings.fabric.hold)
    limit = CycleLimit(clock=time.thread_time)
    half_life_s = settings.queues.half_life_s()
    binder = Binder(
        agent=agent, queues=queues.specs, clock=clock, limit=limit, half_life_s=half_life_s, granting=fabric.granting
    )
    past_use = PastUseKeeper(binder, store, clock, half_life_s=half_life_s)
    stack.callback(past_use.save)
    agent.subscribe(binder.room_may_have_appeared)
    tenancy = TenancyStore(
        store.tenancy, directory=directory, prepare=lambda people: queues.with_tenants(binder, people)
    )
    tokens = Tokens(store.tokens, clock)
    billing = Billing(store, clock, agent.open_usage)
    stack.callback(billing.close)
    notices = notifying(
        settings.notifications,
        stack,
        store=store,
        permission=permission,
        tenancy=tenancy,
        tokens=tokens,
        waiting=lambda: waiting_long(binder),
        clock=clock,
    )
    places = ServerPlaces(
        journal, network=network, network_store=networks, agent=agent, permission=permission, clock=clock
    )
    ports = TenantPorts(home=home, network=network, network_store=networks, agent=agent, places=places)
    pool = Pool(
        agent=agent,
        store=store,
        permission=permission,
        tenancy=tenancy,
        tokens=tokens,
        changes=TenancyChanges(
            tenancy=tenancy,
            tokens=tokens,
            permission=permission,
            identities=Identities(tenancy, settings.console.oidc),
            require_no_networks=networks.require_none_of,
        ),
        owners=AllocationOwners(store.allocation),
        queues=queues,
        past_use=past_use,
        billing=billing,
        binder=binder,
        explanations=Explanations(binder=binder, agent=agent, store=store),
        standing=StandingAllocations(agent, clock),
        fabric=fabric,
        entry=EntryBounds(
            permission=permission,
            tenancy=tenancy,
            queues=queues,
            agent=agent,
            binder=binder,
            limits=settings.user,
            ports=ports,
        ),
        ports=ports,
        over_use=OverUseWatch(
            agent=agent,
            binder=binder,
            tenancy=tenancy,
            billing=billing,
            policy_of=settings.over_use_policy,
            audit=audit,
            clock=clock,
            told=over_use_notifier(notices, clock),
        ),
    )
    return pool, notices
