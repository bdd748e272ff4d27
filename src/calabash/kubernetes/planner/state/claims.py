"""Resource claims and their users: derive a pod's request and plan from the claims that it names. Pure.

Theory of operation. Several pods may use one claim, but its devices must be counted once. They are counted for the
*holder* of the claim, the first pod that uses it. The holder requests the sum of all claims that it holds. A pod that
only uses claims of other holders requests nothing (stage RIDING). It waits until these claims are allocated, and
kube-scheduler then places it on their node. If a holder is deleted but not its claim, the next user becomes the holder.

Until the claims are allocated, the pod's request is read from them. Once all claims of a pod are allocated, the
allocated devices are its plan and replace any plan that the planner made before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b

import msgspec

from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.plan import PlannedContainer, PodPlan
from calabash.kubernetes.planner.state.facts import ClaimFacts, PodClaimFacts, PodFacts
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, PodRequest
from calabash.model.request import DEFAULT_QUEUE, GpuRequest, Selector

ClaimKey = tuple[str, str]
"""Namespace and name."""

BY_CLAIM = "claim-"  # prefix of IDs of plans that were read from allocations
_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class _Used:
    """A claim that a pod uses for devices of this product's driver; ``name`` is the pod's own name for it."""

    name: str
    claim: ClaimFacts


def is_allocated(plan: PodPlan | None) -> bool:
    """Return True if the plan was read from allocated claims, not made by the planner."""
    return plan is not None and plan.id.startswith(BY_CLAIM)


class Claims:
    """Store of claims, their users and their holders; see the module's description."""

    def __init__(self) -> None:
        self.pods: dict[str, PodFacts] = {}  # that name claims, before ``resolve``
        self._claims: dict[ClaimKey, ClaimFacts] = {}
        # Claims created for pods, by the pod's namespace, its UID, and its name for the claim. The owner reference of a claim
        # is written by its creator, so it counts for pods of the claim's namespace only.
        self._made_for: dict[tuple[str, str, str], ClaimKey] = {}
        self._users: dict[ClaimKey, dict[str, None]] = {}
        self._uses: dict[str, set[ClaimKey]] = {}
        self._holders: dict[ClaimKey, str] = {}
        self._by_node: dict[str, dict[ClaimKey, None]] = {}

    # ---- events ---------------------------------------------------------------------------------------------------

    def put(self, facts: ClaimFacts) -> ClaimFacts | None:
        """Insert or update a claim; return its previous state."""
        before = self.remove(facts.key)
        self._claims[facts.key] = facts
        if facts.owner:
            self._made_for[facts.namespace, facts.owner, facts.pod_claim] = facts.key
        if facts.node:
            self._by_node.setdefault(facts.node, {})[facts.key] = None
        return before

    def remove(self, key: ClaimKey) -> ClaimFacts | None:
        """Delete a claim; return its previous state."""
        before = self._claims.pop(key, None)
        if before is not None:
            self._made_for.pop((before.namespace, before.owner, before.pod_claim), None)
            there = self._by_node.get(before.node, {})
            there.pop(key, None)
            if not there:
                self._by_node.pop(before.node, None)
        return before

    def put_pod(self, facts: PodFacts) -> None:
        """Insert or update the facts of a pod that names claims."""
        self.pods[facts.uid] = facts

    def pod_deleted(self, uid: str) -> None:
        """Remove a deleted pod from its claims. For each claim that it held, the next user becomes the holder."""
        self.pods.pop(uid, None)
        for key in self._uses.pop(uid, ()):
            users = self._users[key]
            users.pop(uid, None)
            if self._holders.get(key) == uid:
                del self._holders[key]
            if not users:
                del self._users[key]

    def users(self, key: ClaimKey) -> list[PodFacts]:
        """Return the pods that use the claim, in the order in which they were seen.

        The pod for which the claim was created is included even if it was not seen as a user; it is then the last one.
        """
        claim = self._claims.get(key)
        owner = [claim.owner] if claim is not None else []
        found = (self.pods.get(uid) for uid in dict.fromkeys([*self._users.get(key, ()), *owner]))
        return [pod for pod in found if pod is not None and pod.namespace == key[0]]

    # ---- what pods ask --------------------------------------------------------------------------------------------

    def resolve(self, facts: PodFacts) -> PodFacts | None:
        """Return the pod's facts with the request, plan and waiting reason that follow from its claims.

        Returns None if the pod uses no devices of this product, or if another scheduler places the pod and has not
        allocated its claims yet.
        """
        self.put_pod(facts)
        used, missing = self._used(facts)
        asks = facts.request is not None and facts.request.allocation_api is AllocationApi.CLAIMS
        if not (asks or used):
            return facts if facts.request is not None or facts.fault or facts.rides else None
        if not asks and not facts.node and not facts.uses_our_scheduler:
            return None  # the pod's scheduler has not allocated anything for it yet
        if used and not asks and facts.request is not None:
            fault = f"the pod requests devices as resources and by claim {used[0].claim.name}; hint: use one of the two"
            return replace(facts, request=None, fault=fault)
        if missing and not facts.node:
            return replace(facts, waits_for=missing)
        return self._with_devices(facts, used)

    def held_by(self, uid: str) -> list[ClaimFacts]:
        """Return the claims of which the pod is the holder."""
        keys = sorted(self._uses.get(uid, ()))
        return [self._claims[key] for key in keys if self._holders.get(key) == uid and key in self._claims]

    def sharers(self, uid: str) -> list[str]:
        """Return the UIDs of other pods that use claims held by this pod.

        The devices of these claims become free only when all of the pods are deleted.
        """
        found = (pod.uid for claim in self.held_by(uid) for pod in self.users(claim.key))
        return [other for other in dict.fromkeys(found) if other != uid]

    def has_allocated(self, uid: str) -> bool:
        """Return True if a claim that the pod holds is allocated."""
        return any(claim.node for claim in self.held_by(uid))

    # ---- nodes ----------------------------------------------------------------------------------------------------

    def allocated_on(self, node: str) -> Iterator[tuple[ClaimFacts, str]]:
        """Yield the claims that are allocated on the node, each with its holder's UID; "" for none."""
        for key in self._by_node.get(node, ()):
            yield self._claims[key], self._holders.get(key, "")

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _used(self, facts: PodFacts) -> tuple[list[_Used], str]:
        """Return the pod's claims for this product's devices, and a text that names the missing claims; "" for none."""
        used: list[_Used] = []
        missing: list[str] = []
        for one in facts.claims:
            claim = self._find(facts, one)
            if claim is None:
                missing.append(one.claim or f"of template {one.template} for its {one.name}")
                self._add_user(facts, (facts.namespace, one.claim))
                continue
            self._add_user(facts, claim.key)
            if claim.is_ours:
                self._holders.setdefault(claim.key, facts.uid)
                used.append(_Used(one.name, claim))
        names = ", ".join(missing[:_NAMED_MAX])
        return used, f"claim {names} does not exist yet" if missing else ""

    def _add_user(self, facts: PodFacts, key: ClaimKey) -> None:
        if key[1]:
            self._users.setdefault(key, {})[facts.uid] = None
            self._uses.setdefault(facts.uid, set()).add(key)

    def _find(self, facts: PodFacts, one: PodClaimFacts) -> ClaimFacts | None:
        key = (facts.namespace, one.claim) if one.claim else self._made_for.get((facts.namespace, facts.uid, one.name))
        claim = self._claims.get(key) if key is not None else None
        if claim is None or (one.template and claim.owner != facts.uid):
            return None  # the claim of that name was created for another pod
        return claim

    def _with_devices(self, facts: PodFacts, used: list[_Used]) -> PodFacts:
        """Return the facts with the request of the claims that the pod holds, and their plan if they are allocated.

        ``rides`` is set if the pod holds no claim, and ``waits_for`` while a claim of another holder is not allocated.
        """
        own = [one for one in used if self._holders.get(one.claim.key) == facts.uid]
        shared = [one for one in used if one not in own]
        fault = next((f"claim {one.claim.name}: {one.claim.fault}" for one in own if one.claim.fault), "")
        if fault and not facts.node:
            return replace(facts, request=None, fault=fault)
        parts = [one for one in own if one.claim.request is not None]
        waits = next((one.claim for one in shared if not one.claim.node), None)
        if waits is not None and not facts.node:
            return replace(facts, waits_for=self._waiting_reason(waits), rides=not parts)
        if not parts:
            return replace(facts, rides=True, plan=None)
        theirs = [one.claim for one in used if one.claim.owner != facts.uid or not facts.node]
        pins = {claim.node for claim in theirs if claim.node}  # claims created for a bound pod end with it
        return replace(
            facts,
            request=_joined(facts, parts),
            plan=_allocated(facts, parts) or facts.plan,
            pins=tuple(sorted(pins)),
            rides=False,
        )

    def _waiting_reason(self, claim: ClaimFacts) -> str:
        holder = self.pods.get(self._holders.get(claim.key, ""))
        whose = f"{holder.namespace}/{holder.name}" if holder is not None else "another pod"
        return f"claim {claim.name} is held by pod {whose} and not allocated yet"


def _joined(facts: PodFacts, parts: list[_Used]) -> PodRequest:
    """Return one request for all claims that the pod holds, with the pod's own tenant, queue, gang and run time."""
    said = facts.request
    terms = said.containers[0].request if said is not None else GpuRequest()
    requests = [one.claim.request for one in parts if one.claim.request is not None]
    alike = all(request.selector == requests[0].selector for request in requests)
    containers = tuple(
        ContainerRequest(
            container=one.name,
            kind=ContainerKind.MAIN,  # a claim is held for the pod's whole life
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
    return PodRequest(dialect="claims", containers=containers, allocation_api=AllocationApi.CLAIMS)


def _allocated(facts: PodFacts, parts: list[_Used]) -> PodPlan | None:
    """Return the devices of the allocated claims as a plan.

    Returns None unless all claims are allocated on the same node and the node's agent has reported their devices.
    """
    nodes = {one.claim.node for one in parts}
    containers = tuple(
        msgspec.structs.replace(one.claim.held, name=one.name) for one in parts if one.claim.held is not None
    )
    node = nodes.pop()
    if nodes or not node or len(containers) < len(parts):
        return None
    return PodPlan(id=_id(containers), pod_uid=facts.uid, node=node, containers=containers)


def _id(containers: tuple[PlannedContainer, ...]) -> str:
    """Return a plan ID that is computed from the devices, so that equal allocations have equal IDs."""
    return BY_CLAIM + blake2b(msgspec.json.encode(containers), digest_size=8).hexdigest()
