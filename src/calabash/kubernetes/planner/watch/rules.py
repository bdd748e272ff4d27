"""Mirrors of what binds pods besides nodes: queues, namespaces, disruption budgets, claims, and how large gangs are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calabash.adapters.kube import KubeClient, Mirror, MirrorChange, SkippedObject
from calabash.adapters.kube.objects.core import NAMESPACE, PDB, Namespace, PodDisruptionBudget
from calabash.adapters.kube.objects.groups import MemberGroup, PodGroup
from calabash.adapters.kube.objects.resources import QUEUE, KubeQueue
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.watch.claims import KnownClaims, LeaveOut, Tell
from calabash.kubernetes.planner.watch.facts_from_objects import (
    all_queues,
    budget_facts,
    group_size,
    namespace_facts,
    queue_facts,
)
from calabash.kubernetes.planner.watch.groups import GROUPS, GroupMirrors
from calabash.kubernetes.planner.watch.pruning import keep_budget, keep_namespace
from calabash.kubernetes.pod_request import GangSource


class RuleMirrors:
    """See the module's description.

    Args:
        tell: tells the core, when there is one.
        claims: is told of claims and their classes.
        lost: told of every failure of a watch.
        skipped: told of every object that is left out.
    """

    def __init__(
        self,
        client: KubeClient,
        tell: Tell,
        claims: KnownClaims,
        lost: Callable[[Exception], None],
        skipped: Callable[[SkippedObject], None],
    ) -> None:
        self._tell = tell
        self._queues: Mirror[KubeQueue] = Mirror(
            client, QUEUE, on_change=self._queue, on_error=lost, on_skipped=skipped
        )
        self._namespaces: Mirror[Namespace] = Mirror(
            client, NAMESPACE, on_change=self._namespace, on_error=lost, on_skipped=skipped, keep=keep_namespace
        )
        self._budgets: Mirror[PodDisruptionBudget] = Mirror(
            client, PDB, on_change=self._budget, on_error=lost, on_skipped=skipped, keep=keep_budget
        )
        self._claims = claims
        self.groups = GroupMirrors(client, self._installed, lost, skipped)

    def mirrors(self) -> list[Mirror[Any]]:
        """All but those of groups, which come when their kinds are installed."""
        return [self._queues, self._namespaces, self._budgets]

    def tell_all(self, core: Core, leave_out: LeaveOut) -> None:
        """Tell a new core everything but objects on which this fails: each is told within ``leave_out``."""
        for namespace in self._namespaces.snapshot().values():
            with leave_out(NAMESPACE, namespace):
                core.namespace(namespace_facts(namespace))
        core.set_queues(all_queues(self._queues.snapshot().values()))
        kinds = dict(GROUPS)
        for source, group in self.groups.snapshot():
            with leave_out(kinds[source], group):
                core.group((source, group.metadata.namespace, group.metadata.name), group_size(group))
        for budget in self._budgets.snapshot().values():
            with leave_out(PDB, budget):
                core.budget(budget_facts(budget))

    def _queue(self, change: MirrorChange[KubeQueue]) -> None:
        now, before = change.after, change.before
        if now is not None and before is not None and queue_facts(now) == queue_facts(before):
            return  # our own writing of its status
        facts = all_queues(self._queues.snapshot().values())
        self._tell(lambda core: core.set_queues(facts))

    def _namespace(self, change: MirrorChange[Namespace]) -> None:
        if change.after is not None:
            facts = namespace_facts(change.after)
            self._tell(lambda core: core.namespace(facts))

    def _budget(self, change: MirrorChange[PodDisruptionBudget]) -> None:
        budget = change.after or change.before
        if budget is None:
            return
        facts, there = budget_facts(budget), change.after is not None
        self._tell(lambda core: core.budget(facts, there=there))

    def _installed(self, source: str, change: MirrorChange[Any]) -> None:
        if source == "claims":
            self._claims.claim(change)
        elif source == "classes":
            self._claims.device_class(change)
        else:
            self._group(GangSource(source), change)

    def _group(self, source: GangSource, change: MirrorChange[PodGroup | MemberGroup]) -> None:
        group = change.after or change.before
        if group is not None:
            name = (source, group.metadata.namespace, group.metadata.name)
            needed = group_size(group) if change.after is not None else None
            self._tell(lambda core: core.group(name, needed))
