"""Leadership without overlap: no node is ever planned by two planners.

A cluster may be divided between planners. Each part has its own lease, and the name of the lease identifies the nodes
of the part. Parts may overlap by mistake, for example while an administrator changes the division. Therefore a
candidate first writes its own lease and then reads those of the other parts. If two candidates begin at the same time,
at least one sees the other. A candidate that sees the lease of an overlapping part resigns and tries again. A planner
that leads does not check again, because every later candidate checks.
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


class PlannerLeases:
    """Leases of planners, with the information which of them may be held.

    Expiry is measured with the local clock only, because the clocks of two machines may differ.

    Args:
        now_s: monotonic clock in seconds.
    """

    def __init__(self, client: KubeClient, *, namespace: str, now_s: Callable[[], float]) -> None:
        self._client = client.within(CALL_S)
        self._namespace = namespace
        self._now_s = now_s
        self._observed: dict[str, tuple[tuple[str | None, str | None], float]] = {}

    def is_held(self, lease: str) -> bool:
        """Return True if a planner may hold the lease. Raises CalabashError if the lease cannot be read."""
        found = self._client.get(kube.LEASE, lease, self._namespace)
        return found is not None and self._may_be_held(found)

    def other_holders(self, shard: Shard) -> dict[str, Shard]:
        """Return the other parts of the cluster whose leases may be held by planners, by name of the lease.

        Raises CalabashError if the leases cannot be listed.
        """
        found = {}
        for lease in self._client.list(kube.LEASE, self._namespace).items:
            other = Shard.of_lease(lease.metadata.name)
            if other is not None and other != shard and self._may_be_held(lease):
                found[lease.metadata.name] = other
        return found

    def _may_be_held(self, lease: KubeLease) -> bool:
        name, spec = lease.metadata.name, lease.spec
        if not spec.holder_identity:
            self._observed.pop(name, None)
            return False
        seen, now_s = (spec.holder_identity, spec.renew_time), self._now_s()
        before, since_s = self._observed.get(name, (None, 0.0))
        if seen != before:
            self._observed[name] = seen, now_s
            return True
        return now_s < since_s + max(TERM_S, float(spec.lease_duration_seconds or 0))


class ExclusiveCandidate:
    """Candidate that resigns while another planner leads an overlapping part; see the module's description.

    Args:
        election: candidate for the lease of this planner's part.
        shard: the part of the cluster for which this planner decides.
    """

    def __init__(self, election: Candidate, leases: PlannerLeases, shard: Shard) -> None:
        self._election = election
        self._leases = leases
        self._shard = shard
        self._checked_term = 0  # the term in which no other planner had any of the nodes
        self._logged = ""

    def leads(self) -> bool:
        return self._election.leads() and self._checked_term == self._election.term()

    def step(self) -> bool:
        """Renew or acquire the lease; return True if this candidate leads.

        At the beginning of each term, the candidate checks that no planner of another part may plan any of its nodes.
        """
        if self._election.step() and self._checked_term != self._election.term():
            self._check_others()
        return self.leads()

    def term(self) -> int:
        return self._election.term()

    def in_touch(self) -> bool:
        return self._election.in_touch()

    def resign(self) -> None:
        self._election.resign()

    def holder(self) -> str:
        return self._election.holder()

    def _check_others(self) -> None:
        term = self._election.term()
        try:
            others = self._leases.other_holders(self._shard)
        except CalabashError as error:
            log.warning("the leases of other planners cannot be read", error=error.message)
            return
        taken = sorted(name for name, other in others.items() if self._shard.overlaps(other))
        if not taken:
            self._checked_term, self._logged = term, ""
            return
        self._election.resign()
        if self._logged != taken[0]:
            self._logged = taken[0]
            theirs, ours = (shard.selector or "all" for shard in (others[taken[0]], self._shard))
            log.error("another planner has nodes of this one", lease=taken[0], its_nodes=theirs, nodes=ours)
