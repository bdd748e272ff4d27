"""Who leads where each planner has a kube-scheduler beside it, in one pod: the planner beside the one that leads.

kube-scheduler asks the planner of its own pod, over the loopback, where nobody else can. So the two must lead together.
kube-scheduler's replicas agree by a Lease of theirs; a planner stands for election only while the holder of that Lease is
in its own pod, and resigns when it is not. That no two planners decide at a time is its own election's doing, as ever.
"""

from __future__ import annotations

from typing import Protocol

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.core import LEASE
from calabash.kubernetes.leader.lease import CALL_S
from calabash.model.errors import CalabashError, Reason


class Candidate(Protocol):
    """One of several that may lead; see ``lease.Election``."""

    def leads(self) -> bool: ...

    def step(self) -> bool: ...

    def resign(self) -> None: ...

    def term(self) -> int: ...

    def in_touch(self) -> bool: ...

    def holder(self) -> str: ...


class BesideScheduler:
    """A candidate that stands only while the kube-scheduler of its host leads.

    Args:
        lease: kube-scheduler's Lease, in ``namespace``.
        host: the pod's host name, with which its kube-scheduler's identity begins.
    """

    def __init__(self, election: Candidate, client: KubeClient, *, namespace: str, lease: str, host: str) -> None:
        self._election = election
        self._client = client.within(CALL_S)
        self._namespace, self._lease = namespace, lease
        self._begins = f"{host}_"
        self._stands = self._in_touch = False

    def leads(self) -> bool:
        return self._election.leads()

    def step(self) -> bool:
        """Stand, or step down; where the Lease cannot be read, as before."""
        try:
            lease = self._client.get(LEASE, self._lease, self._namespace)
            self._stands = lease is not None and (lease.spec.holder_identity or "").startswith(self._begins)
            if not self._stands:
                self._election.resign()
            self._in_touch = True
        except CalabashError as error:
            self._in_touch = error.reason is not Reason.API_DOWN  # the election itself gives up by its own clock
        return self._stands and self._election.step()

    def term(self) -> int:
        return self._election.term()

    def in_touch(self) -> bool:
        return self._in_touch and (not self._stands or self._election.in_touch())

    def resign(self) -> None:
        self._election.resign()

    def holder(self) -> str:
        return self._election.holder()
