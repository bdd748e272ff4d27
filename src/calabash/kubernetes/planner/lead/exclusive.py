"""A candidate that leads only while no planner of another lease leads over any of its nodes.

A lease's name says which nodes it is for. Each writes its own before it looks at those of others: of two that begin at once
at least one sees the other. Whoever sees one gives its lease back and tries again. One that leads already does not look
again; whoever comes later does.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects import core as kube
from calabash.adapters.kube.objects.core import KubeLease
from calabash.kubernetes.leader.colocated import Candidate
from calabash.kubernetes.leader.lease import CALL_S, TERM_S
from calabash.kubernetes.objects.shards import Shard
from calabash.model.errors import CalabashError

log = structlog.get_logger(__name__)


class Neighbours:
    """Leases of planners, and whether somebody holds them: by our own clock, for those of machines are never compared.

    Args:
        now_s: a clock that never jumps.
    """

    def __init__(self, client: KubeClient, *, namespace: str, now_s: Callable[[], float]) -> None:
        self._client = client.within(CALL_S)
        self._namespace = namespace
        self._now_s = now_s
        self._seen: dict[str, tuple[tuple[str | None, str | None], float]] = {}

    def lives(self, lease: str) -> bool:
        """Whether anybody may hold that lease. Raises CalabashError when it cannot be asked for."""
        found = self._client.get(kube.LEASE, lease, self._namespace)
        return found is not None and self._lives(found)

    def others(self, shard: Shard) -> dict[str, Shard]:
        """Leases that others may hold, and their parts of the cluster. Raises CalabashError when they cannot be asked for."""
        found = {}
        for lease in self._client.list(kube.LEASE, self._namespace).items:
            other = Shard.of_lease(lease.metadata.name)
            if other is not None and other != shard and self._lives(lease):
                found[lease.metadata.name] = other
        return found

    def _lives(self, lease: KubeLease) -> bool:
        name, spec = lease.metadata.name, lease.spec
        if not spec.holder_identity:
            self._seen.pop(name, None)
            return False
        seen, now_s = (spec.holder_identity, spec.renew_time), self._now_s()
        before, since_s = self._seen.get(name, (None, 0.0))
        if seen != before:
            self._seen[name] = seen, now_s
            return True
        return now_s < since_s + max(TERM_S, float(spec.lease_duration_seconds or 0))


class ApartFromOthers:
    """See the module's description."""

    def __init__(self, election: Candidate, neighbours: Neighbours, shard: Shard) -> None:
        self._election = election
        self._neighbours = neighbours
        self._shard = shard
        self._cleared = 0  # the term in which nobody else was there
        self._said = ""

    def leads(self) -> bool:
        return self._election.leads() and self._cleared == self._election.term()

    def step(self) -> bool:
        """Stand, and look whether anybody else has its nodes."""
        if self._election.step() and self._cleared != self._election.term():
            self._look()
        return self.leads()

    def term(self) -> int:
        return self._election.term()

    def in_touch(self) -> bool:
        return self._election.in_touch()

    def resign(self) -> None:
        self._election.resign()

    def holder(self) -> str:
        return self._election.holder()

    def _look(self) -> None:
        term = self._election.term()
        try:
            others = self._neighbours.others(self._shard)
        except CalabashError as error:
            log.warning("the leases of other planners cannot be read", error=error.message)
            return
        taken = sorted(name for name, other in others.items() if self._shard.overlaps(other))
        if not taken:
            self._cleared, self._said = term, ""
            return
        self._election.resign()
        if self._said != taken[0]:
            self._said = taken[0]
            theirs, ours = (shard.selector or "all" for shard in (others[taken[0]], self._shard))
            log.error("another planner has nodes of this one", lease=taken[0], its_nodes=theirs, nodes=ours)
