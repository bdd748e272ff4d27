"""Leader election with a Lease object.

A leader renews its lease well before the term ends. If it cannot renew the lease, it stops leading MARGIN_S seconds
before the end of the term. Another candidate acquires the lease only when it has seen no renewal for a whole term. The
two rules together ensure that no two candidates lead at the same time. Each candidate measures the time since it saw a
renewal with its own clock, because the clocks of two machines may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from calabash.adapters.kube import KubeClient
from calabash.adapters.kube.objects.core import LEASE, KubeLease
from calabash.model.errors import CalabashError, Reason

TERM_S = 15.0
RENEW_EVERY_S = 2.0
MARGIN_S = 5.0  # a leader stops this long before its term ends
CALL_S = 3.0  # time limit of one call; a hanging API server is asked again on another connection


class Election:
    """One candidate for a lease. A single thread calls ``step`` every ``RENEW_EVERY_S`` seconds.

    Args:
        client: client of the API server.
        namespace, name: namespace and name of the Lease object.
        identity: name of the candidate in the Lease, unique among candidates.
        now_s: monotonic clock in seconds.
        term_s: term of the lease in seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        now_s: Callable[[], float],
        term_s: float = TERM_S,
    ) -> None:
        self._client = client.within(CALL_S)
        self._namespace, self._name, self._identity = namespace, name, identity
        self._now_s = now_s
        self._term_s = term_s
        self._observed: tuple[str | None, str | None] | None = None
        self._observed_at_s = 0.0
        self._renewed_at_s: float | None = None
        self._term = 0
        self._in_touch = False

    def leads(self) -> bool:
        """Return True while this candidate leads: from a renewal until MARGIN_S seconds before the end of the term."""
        margin_s = min(MARGIN_S, self._term_s / 3)
        return self._renewed_at_s is not None and self._now_s() < self._renewed_at_s + self._term_s - margin_s

    def term(self) -> int:
        """Return the number of the last term of this candidate; 0 before the first.

        If the lease is renewed too late, another term begins, because another candidate may have led in between.
        """
        return self._term

    def in_touch(self) -> bool:
        """Return True if the API server answered the last step."""
        return self._in_touch

    def step(self) -> bool:
        """Renew the lease or try to acquire it; return True if this candidate leads."""
        asked_at_s = self._now_s()
        try:
            taken = self._take(asked_at_s)
            self._in_touch = True
        except CalabashError as error:
            self._in_touch = error.reason is not Reason.API_DOWN
            if error.reason is Reason.CONFLICT:
                self._renewed_at_s = None  # another candidate wrote first
            return self.leads()
        if taken and not self.leads():
            self._term += 1
        self._renewed_at_s = asked_at_s if taken else None
        return self.leads()

    def resign(self) -> None:
        """Release the lease if this candidate holds it, so that another candidate can lead at once."""
        if self._renewed_at_s is None:
            return
        self._renewed_at_s = None
        lease = self._client.get(LEASE, self._name, self._namespace)
        if lease is not None and lease.spec.holder_identity == self._identity:
            self._write(lease, {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _stamp()})

    def holder(self) -> str:
        """Return the identity of the lease's holder at the last step; "" if the lease had no holder."""
        return (self._observed[0] if self._observed else None) or ""

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _take(self, now_s: float) -> bool:
        lease = self._client.get(LEASE, self._name, self._namespace)
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._term_s)),
            "renewTime": _stamp(),
        }
        if lease is None:
            spec["acquireTime"] = spec["renewTime"]
            body = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": spec}
            self._client.create(LEASE, body, self._namespace)
            return True
        holder = lease.spec.holder_identity
        seen = (holder, lease.spec.renew_time)
        if seen != self._observed:
            self._observed, self._observed_at_s = seen, now_s
        mine = holder == self._identity
        if holder and not mine:
            term_s = max(self._term_s, float(lease.spec.lease_duration_seconds or 0))
            if now_s < self._observed_at_s + term_s:
                return False
        if not mine:
            spec["acquireTime"] = spec["renewTime"]
            spec["leaseTransitions"] = lease.spec.lease_transitions + 1
        self._write(lease, spec)
        return True

    def _write(self, lease: KubeLease, spec: dict[str, object]) -> None:
        meta = {"resourceVersion": lease.metadata.resource_version}
        self._client.patch(LEASE, self._name, self._namespace, body={"metadata": meta, "spec": spec})


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
