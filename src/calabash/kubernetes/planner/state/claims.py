"""Claims, the pods that use them, and for whom of these each counts: what a pod that asks by claims asks for. Pure.

Theory of operation. A claim is one allocation, however many pods use it, so it counts once: for its *holder*, the first of
them. The holder stands in its queue with everything that it holds and nobody else has. Who only uses claims of others asks
for nothing; it waits until they are allocated, and Kubernetes' own scheduler keeps it on their node. When a holder is gone
and the claim is not, the next one holds it.

What is asked is read from the claims. What was allocated is the truth from then on: a pod whose claims are all allocated has
these for its plan, whatever had been planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec

from calabash.kubernetes.objects.allocation_api import NodeDoor
from calabash.kubernetes.objects.plan import PlannedContainer, PodPlan
from calabash.kubernetes.planner.state.facts import ClaimSeen, PodClaimSeen, PodSeen
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, PodRequest
from calabash.model.request import DEFAULT_QUEUE, GpuRequest, Selector

ClaimKey = tuple[str, str]
"""Namespace and name."""

BY_CLAIM = "claim-"  # begins the id of a plan that was read from allocations
_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class _Used:
    """A claim of ours as a pod calls it."""

    name: str
    claim: ClaimSeen


def is_allocated(plan: PodPlan | None) -> bool:
    """Whether a plan is what was allocated, not what somebody wants."""
    return plan is not None and plan.id.startswith(BY_CLAIM)


class Claims:
    """See the module's description."""

    def __init__(self) -> None:
        self.pods: dict[str, PodSeen] = {}  # that name claims, as they were told
        self._seen: dict[ClaimKey, ClaimSeen] = {}
        # The claim that was made for a pod: by its namespace and UID, and what the pod calls the claim. The owner reference of
        # a claim is its creator's word, so it counts for pods of the claim's namespace only.
        self._made: dict[tuple[str, str, str], ClaimKey] = {}
        self._users: dict[ClaimKey, dict[str, None]] = {}
        self._uses: dict[str, set[ClaimKey]] = {}
        self._holders: dict[ClaimKey, str] = {}
        self._on: dict[str, dict[ClaimKey, None]] = {}

    # ---- events ---------------------------------------------------------------------------------------------------

    def see(self, facts: ClaimSeen) -> ClaimSeen | None:
        """A claim is there, or is otherwise than it was; what it was."""
        before = self.lose(facts.key)
        self._seen[facts.key] = facts
        if facts.owner:
            self._made[facts.namespace, facts.owner, facts.pod_claim] = facts.key
        if facts.node:
            self._on.setdefault(facts.node, {})[facts.key] = None
        return before

    def lose(self, key: ClaimKey) -> ClaimSeen | None:
        """It is gone; what it was."""
        before = self._seen.pop(key, None)
        if before is not None:
            self._made.pop((before.namespace, before.owner, before.pod_claim), None)
            there = self._on.get(before.node, {})
            there.pop(key, None)
            if not there:
                self._on.pop(before.node, None)
        return before

    def forget(self, uid: str) -> None:
        """A pod is gone: what it held is the next one's."""
        self.pods.pop(uid, None)
        for key in self._uses.pop(uid, ()):
            users = self._users[key]
            users.pop(uid, None)
            if self._holders.get(key) == uid:
                del self._holders[key]
            if not users:
                del self._users[key]

    def users(self, key: ClaimKey) -> list[PodSeen]:
        """Pods that name a claim, the first of them first; the one for which it is made as well."""
        claim = self._seen.get(key)
        owner = [claim.owner] if claim is not None else []
        found = (self.pods.get(uid) for uid in dict.fromkeys([*self._users.get(key, ()), *owner]))
        return [pod for pod in found if pod is not None and pod.namespace == key[0]]

    # ---- what pods ask --------------------------------------------------------------------------------------------

    def resolved(self, facts: PodSeen) -> PodSeen | None:
        """The pod with what its claims say; None when it is nobody's business here."""
        self.pods[facts.uid] = facts
        used, missing = self._used(facts)
        asks = facts.request is not None and facts.request.door is NodeDoor.CLAIMS
        if not (asks or used):
            return facts if facts.request is not None or facts.fault else None
        if not asks and not facts.node and not facts.own:
            return None  # whoever places it has not asked, and it has nothing yet
        if used and not asks and facts.request is not None:
            fault = f"it asks by tokens and by claim {used[0].claim.name}; hint: a node gives devices by one of the two"
            return replace(facts, request=None, fault=fault)
        if missing and not facts.node:
            return replace(facts, waits_for=missing)
        return self._with_devices(facts, used)

    def held_by(self, uid: str) -> list[ClaimSeen]:
        """Claims that count for a pod."""
        keys = sorted(self._uses.get(uid, ()))
        return [self._seen[key] for key in keys if self._holders.get(key) == uid and key in self._seen]

    def sharers(self, uid: str) -> list[str]:
        """Other pods that use what counts for this one: its devices are free when all of them are gone."""
        found = (pod.uid for claim in self.held_by(uid) for pod in self.users(claim.key))
        return [other for other in dict.fromkeys(found) if other != uid]

    def is_kept(self, uid: str) -> bool:
        """Whether anything that counts for it is allocated."""
        return any(claim.node for claim in self.held_by(uid))

    # ---- nodes ----------------------------------------------------------------------------------------------------

    def on(self, node: str) -> Iterator[tuple[ClaimSeen, str]]:
        """Claims that are allocated on a node, and the pod for which each counts; "" for none."""
        for key in self._on.get(node, ()):
            yield self._seen[key], self._holders.get(key, "")

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _used(self, facts: PodSeen) -> tuple[list[_Used], str]:
        """Its claims of ours; and which are not there."""
        used: list[_Used] = []
        missing: list[str] = []
        for one in facts.claims:
            claim = self._find(facts, one)
            if claim is None:
                missing.append(one.claim or f"of template {one.template} for its {one.name}")
                self._name(facts, (facts.namespace, one.claim))
                continue
            self._name(facts, claim.key)
            if claim.is_ours:
                self._holders.setdefault(claim.key, facts.uid)
                used.append(_Used(one.name, claim))
        names = ", ".join(missing[:_NAMED_MAX])
        return used, f"claim {names} does not exist yet" if missing else ""

    def _name(self, facts: PodSeen, key: ClaimKey) -> None:
        if key[1]:
            self._users.setdefault(key, {})[facts.uid] = None
            self._uses.setdefault(facts.uid, set()).add(key)

    def _find(self, facts: PodSeen, one: PodClaimSeen) -> ClaimSeen | None:
        key = (facts.namespace, one.claim) if one.claim else self._made.get((facts.namespace, facts.uid, one.name))
        claim = self._seen.get(key) if key is not None else None
        if claim is None or (one.template and claim.owner != facts.uid):
            return None  # of that name there is one of somebody else
        return claim

    def _with_devices(self, facts: PodSeen, used: list[_Used]) -> PodSeen:
        own = [one for one in used if self._holders.get(one.claim.key) == facts.uid]
        shared = [one for one in used if one not in own]
        fault = next((f"claim {one.claim.name}: {one.claim.fault}" for one in own if one.claim.fault), "")
        if fault and not facts.node:
            return replace(facts, request=None, fault=fault)
        parts = [one for one in own if one.claim.request is not None]
        waits = next((one.claim for one in shared if not one.claim.node), None)
        if waits is not None and not facts.node:
            return replace(facts, waits_for=self._waits(waits), rides=not parts)
        if not parts:
            return replace(facts, rides=True, plan=None)
        theirs = [one.claim for one in used if one.claim.owner != facts.uid or not facts.node]
        pins = {claim.node for claim in theirs if claim.node}  # what was made for it leaves its node with it
        return replace(
            facts, request=_joined(facts, parts), plan=_allocated(facts, parts) or facts.plan, pins=tuple(sorted(pins))
        )

    def _waits(self, claim: ClaimSeen) -> str:
        holder = self.pods.get(self._holders.get(claim.key, ""))
        whose = f"{holder.namespace}/{holder.name}" if holder is not None else "another pod"
        return f"claim {claim.name} is shared with pod {whose}, for which it is not allocated yet"


def _joined(facts: PodSeen, parts: list[_Used]) -> PodRequest:
    """All that counts for the pod, in its own terms."""
    said = facts.request
    terms = said.containers[0].request if said is not None else GpuRequest()
    requests = [one.claim.request for one in parts if one.claim.request is not None]
    alike = all(request.selector == requests[0].selector for request in requests)
    containers = tuple(
        ContainerRequest(
            container=one.name,
            kind=ContainerKind.MAIN,  # a claim is its pod's from beginning to end
            request=replace(
                request,
                selector=request.selector if alike else Selector(),
                tenant=terms.tenant,
                queue=terms.queue if said is not None else DEFAULT_QUEUE,
                gang=terms.gang,
                gang_size=terms.gang_size,
                run_time_s=terms.run_time_s,
            ),
        )
        for one, request in zip(parts, requests, strict=True)
    )
    if said is not None:
        return replace(said, containers=containers)
    return PodRequest(dialect="claims", containers=containers, door=NodeDoor.CLAIMS)


def _allocated(facts: PodSeen, parts: list[_Used]) -> PodPlan | None:
    """What its claims have, when they all have it on one node."""
    nodes = {one.claim.node for one in parts}
    containers = tuple(
        msgspec.structs.replace(one.claim.held, name=one.name) for one in parts if one.claim.held is not None
    )
    node = nodes.pop()
    if nodes or not node or len(containers) < len(parts):
        return None
    return PodPlan(id=_id(containers), pod_uid=facts.uid, node=node, containers=containers)


def _id(containers: tuple[PlannedContainer, ...]) -> str:
    """The same for the same devices."""
    return BY_CLAIM + blake2b(msgspec.json.encode(containers), digest_size=8).hexdigest()
