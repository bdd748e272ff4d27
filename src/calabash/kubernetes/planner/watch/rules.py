"""Mirrors of queues, namespaces, disruption budgets, gang groups and claims."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any

from calabash.adapters.kube import KubeClient, Mirror, MirrorChange, MirrorObserver
from calabash.adapters.kube.objects.core import NAMESPACE, PDB, Namespace, PodDisruptionBudget
from calabash.adapters.kube.objects.groups import MemberGroup, PodGroup
from calabash.adapters.kube.objects.resources import QUEUE, KubeQueue
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.watch.claims import ClaimEvents, Emit, LeaveOut
from calabash.kubernetes.planner.watch.facts_from_objects import (
    all_queues,
    budget_facts,
    group_size,
    namespace_facts,
    queue_facts,
)
from calabash.kubernetes.planner.watch.groups import GroupMirrors
from calabash.kubernetes.planner.watch.pruning import keep_budget, keep_namespace
from calabash.kubernetes.pod_request import GangSource


def past_uses(queues: Iterable[KubeQueue]) -> dict[str, tuple[float, float]]:
    """Return the past use in the status of the queues: device-seconds and the time at which they were counted, by name."""
    found = {}
    for queue in queues:
        status = queue.status
        if status.past_use_device_seconds and status.past_use_at:
            with suppress(ValueError):
                at_s = datetime.fromisoformat(status.past_use_at).timestamp()
                found[queue.metadata.name] = (max(0.0, status.past_use_device_seconds), at_s)
    return found


class RuleMirrors:
    """Mirrors of everything besides pods and nodes; see the module's description.

    Args:
        emit: passes an event to the core; does nothing while another planner leads.
        claims: receives the changes of claims and device classes.
        observer: gets the failures of the mirrors.
    """

    def __init__(self, client: KubeClient, emit: Emit, claims: ClaimEvents, observer: MirrorObserver) -> None:
        self._emit = emit
        self._queues: Mirror[KubeQueue] = Mirror(client, QUEUE, on_change=self._queue_changed, observer=observer)
        self._namespaces: Mirror[Namespace] = Mirror(
            client, NAMESPACE, on_change=self._namespace_changed, observer=observer, keep=keep_namespace
        )
        self._budgets: Mirror[PodDisruptionBudget] = Mirror(
            client, PDB, on_change=self._budget_changed, observer=observer, keep=keep_budget
        )
        self._claims = claims
        self.groups = GroupMirrors(client, self._optional_changed, observer)

    def mirrors(self) -> list[Mirror[Any]]:
        """Return the mirrors of queues, namespaces and budgets. Those of optional kinds are in ``groups``."""
        return [self._queues, self._namespaces, self._budgets]

    def emit_all(self, core: Core, leave_out: LeaveOut) -> None:
        """Pass all objects to a new core. Each is converted within ``leave_out``, which skips objects that fail."""
        for namespace in self._namespaces.snapshot().values():
            with leave_out(NAMESPACE, namespace):
                core.namespace_changed(namespace_facts(namespace))
        core.set_queues(all_queues(self._queues.snapshot().values()))
        core.set_past_use(past_uses(self._queues.snapshot().values()))
        for source, kind, group in self.groups.snapshot():
            with leave_out(kind, group):
                core.group_changed((source, group.metadata.namespace, group.metadata.name), group_size(group))
        for budget in self._budgets.snapshot().values():
            with leave_out(PDB, budget):
                core.budget_changed(budget_facts(budget))

    def _queue_changed(self, change: MirrorChange[KubeQueue]) -> None:
        now, before = change.after, change.before
        if now is not None and before is not None and queue_facts(now) == queue_facts(before):
            return  # only its status has changed, which we write
        facts = all_queues(self._queues.snapshot().values())
        self._emit(lambda core: core.set_queues(facts))

    def _namespace_changed(self, change: MirrorChange[Namespace]) -> None:
        if change.after is not None:
            facts = namespace_facts(change.after)
            self._emit(lambda core: core.namespace_changed(facts))

    def _budget_changed(self, change: MirrorChange[PodDisruptionBudget]) -> None:
        budget = change.after or change.before
        if budget is None:
            return
        facts, there = budget_facts(budget), change.after is not None
        self._emit(lambda core: core.budget_changed(facts, there=there))

    def _optional_changed(self, source: str, change: MirrorChange[Any]) -> None:
        if source == "claims":
            self._claims.claim_changed(change)
        elif source == "classes":
            self._claims.class_changed(change)
        else:
            self._group_changed(GangSource(source), change)

    def _group_changed(self, source: GangSource, change: MirrorChange[PodGroup | MemberGroup]) -> None:
        group = change.after or change.before
        if group is not None:
            name = (source, group.metadata.namespace, group.metadata.name)
            needed = group_size(group) if change.after is not None else None
            self._emit(lambda core: core.group_changed(name, needed))
