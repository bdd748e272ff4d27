"""Leadership that follows kube-scheduler: the planner leads in the pod whose kube-scheduler leads.

Each replica of the control plane is a pod with one kube-scheduler and one planner. kube-scheduler calls the planner of
its own pod over the loopback interface, which no other pod can reach. The leading kube-scheduler and the leading
planner must therefore be in the same pod. The kube-schedulers elect their leader with a Lease of their own. A planner
stands for election only while the holder of that Lease is in its pod, and resigns otherwise. The planners' own election
still ensures that no two planners decide at the same time.
"""

from __future__ import annotations

from typing import Protocol

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.core import LEASE
from calabash.kubernetes.leader.lease import CALL_S
from calabash.model.errors import CalabashError, Reason


class Candidate(Protocol):
    """A candidate for leadership; ``leader.lease.Election`` describes the methods."""

    def leads(self) -> bool: ...

    def step(self) -> bool: ...

    def resign(self) -> None: ...

    def term(self) -> int: ...

    def in_touch(self) -> bool: ...

    def holder(self) -> str: ...


class ColocatedCandidate:
    """Candidate that stands for election only while the kube-scheduler of its pod leads.

    Args:
        election: the planner's own election.
        client: client of the API server.
        namespace: namespace of kube-scheduler's Lease.
        lease: name of kube-scheduler's Lease.
        host: host name of the pod. The identity of its kube-scheduler in the Lease begins with this name.
    """

    def __init__(self, election: Candidate, client: KubeClient, *, namespace: str, lease: str, host: str) -> None:
        self._election = election
        self._client = client.within(CALL_S)
        self._namespace, self._lease = namespace, lease
        self._identity_prefix = f"{host}_"
        self._stands = self._in_touch = False

    def leads(self) -> bool:
        return self._election.leads()

    def step(self) -> bool:
        """Stand for election if this pod's kube-scheduler leads, otherwise resign; return True if this planner leads.

        If kube-scheduler's Lease cannot be read, the result of the last successful read is used.
        """
        try:
            lease = self._client.get(LEASE, self._lease, self._namespace)
            self._stands = lease is not None and (lease.spec.holder_identity or "").startswith(self._identity_prefix)
            if not self._stands:
                self._election.resign()
            self._in_touch = True
        except CalabashError as error:
            self._in_touch = error.reason is not Reason.API_DOWN  # the election ends leadership by its own clock
        return self._stands and self._election.step()

    def term(self) -> int:
        return self._election.term()

    def in_touch(self) -> bool:
        return self._in_touch and (not self._stands or self._election.in_touch())

    def resign(self) -> None:
        self._election.resign()

    def holder(self) -> str:
        return self._election.holder()
