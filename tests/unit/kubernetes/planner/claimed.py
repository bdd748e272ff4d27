"""A simulated cluster with claims: the simulated allocator chooses devices in an order unknown to the planner."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from tests.unit.kubernetes.planner.virtual import Cluster, asked

from calabash.binder.cluster.device_kinds import PlacementConstraints
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice
from calabash.kubernetes.planner.decide.core import Core
from calabash.kubernetes.planner.decide.extender_answers import BindVerdict
from calabash.kubernetes.planner.state.facts import ClaimFacts, PodClaimFacts, PodFacts, QueueFacts, UngatePod
from calabash.kubernetes.planner.state.pod_lifecycle import Stage
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, GangSource, PodRequest
from calabash.model.request import ComputePolicy, GpuRequest
from calabash.sharing.protocol import HeldSlice
from calabash.sharing.registry import fits, resolve

TOKENS, CLAIMS = (
    PlacementConstraints(allocation_api=AllocationApi.TOKENS),
    PlacementConstraints(allocation_api=AllocationApi.CLAIMS),
)
WHOLE = GpuRequest(mode="exclusive")  # type: ignore[arg-type]


def share(memory_mib: int = 8192, cores: int = 25) -> GpuRequest:
    return GpuRequest(mode="vgpu", memory_mib=memory_mib, core_percent=cores)  # type: ignore[arg-type]


class ClaimCluster(Cluster):
    """Nodes of both allocation APIs.

    A pod's claims are allocated when kube-scheduler has found its node, and freed with their last pod.

    Args:
        allocation_apis: allocation API (``tokens`` or ``claims``) by node name; ``tokens`` by default.
    """

    def __init__(
        self,
        nodes: dict[str, int],
        queues: Iterable[QueueFacts] = (),
        *,
        allocation_apis: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        self.claims: dict[str, ClaimFacts] = {}
        self.reserved: dict[str, set[str]] = {}
        self._allocation_apis = allocation_apis or {}
        super().__init__(nodes, queues, **more)
        for name, allocation_api in self._allocation_apis.items():
            self.change_allocation_api(name, allocation_api)

    def change_allocation_api(self, name: str, allocation_api: str) -> None:
        node, told = self.nodes[name]
        self.nodes[name] = (
            replace(node, allocation_api=allocation_api, labels={**node.labels, "kubernetes.io/hostname": name}),
            told,
        )
        self.core.node_changed(self.nodes[name][0], self.now_s)

    def restarted(self) -> Core:
        core = super().restarted()
        for claim in self.claims.values():
            core.claim_changed(claim, self.now_s)
        return core

    def take_over(self) -> None:
        """Let another planner take over, which gets all objects before its first decision."""
        self.todo.clear()
        core = Core(new_id=lambda: f"plan-{next(self._numbers)}", hold_s=50.0, options=self.options)
        for node, gpus in self.nodes.values():
            core.node_changed(node, self.now_s)
            core.devices_changed(gpus, self.now_s)
        core.set_queues(self.queues)
        for namespace in self.namespaces:
            core.namespace_changed(namespace)
        for claim in self.claims.values():
            core.claim_changed(claim, self.now_s)
        for pod in self.pods.values():
            core.pod_changed(pod, self.now_s)
        core.start(self.now_s)
        self.core = core
        self.decide()

    # ---- claims ---------------------------------------------------------------------------------------------------

    def claim(self, name: str, request: GpuRequest | None = WHOLE, **more: Any) -> str:
        """Create a claim."""
        self.update_claim(ClaimFacts(uid=f"uid-{name}", namespace="team", name=name, request=request, **more))
        return name

    def update_claim(self, facts: ClaimFacts) -> None:
        self.claims[facts.name] = facts
        self.core.claim_changed(facts, self.now_s)

    def claimer(self, *claims: str, name: str = "", terms: GpuRequest | None = None, **more: Any) -> str:
        """Create a pod that names these claims, as admission leaves it."""
        return self.create(
            by_claims(claims, terms), name=name, **{"constraints": CLAIMS, "claims": named(claims), **more}
        )

    def with_own(self, request: GpuRequest = WHOLE, *, terms: GpuRequest | None = None, **more: Any) -> str:
        """Create a pod with a claim from a template."""
        number = next(self._numbers)
        name = more.pop("name", "") or f"pod-{number}"
        self.create(
            by_claims(["gpu"], terms),
            name=name,
            **{"constraints": CLAIMS, "claims": (PodClaimFacts(name="gpu", template="t"),), **more},
        )
        self.claim(f"{name}-gpu", request, owner=name, pod_claim="gpu")
        pod = self.pods.get(name)
        if pod is not None:
            self.set(replace(pod, claims=(PodClaimFacts(name="gpu", claim=f"{name}-gpu", template="t"),)))
        return name

    def allocate_by_hand(self, name: str, node: str) -> None:
        """Allocate a claim without the simulated scheduler, as any other scheduler could."""
        claim = self.claims[name]
        self.update_claim(replace(claim, node=node, held=self.could_allocate(claim, node)))

    def set_alien(self, name: str, claim: str, node: str) -> None:
        """Create a pod with a claim that another scheduler has bound to the node."""
        self.reserved.setdefault(claim, set()).add(name)
        self.now_s += 0.001
        self.set(
            PodFacts(
                uid=name,
                namespace="team",
                name=name,
                created_at_s=self.now_s,
                request=None,
                node=node,
                uses_our_scheduler=False,
                claims=named([claim]),
            )
        )

    def used_by(self, uid: str) -> list[ClaimFacts]:
        return [self.claims[one.claim] for one in self.pods[uid].claims if one.claim in self.claims]

    def end(self, uid: str) -> None:
        """Delete a pod. Kubernetes frees claims without users, and deletes those created for the pod."""
        super().end(uid)
        self.free()

    def free(self) -> None:
        for name, users in list(self.reserved.items()):
            users &= set(self.pods)
            if not users:
                del self.reserved[name]
                self.update_claim(replace(self.claims[name], node="", held=None))
        for claim in [c for c in self.claims.values() if c.owner and c.owner not in self.pods]:
            del self.claims[claim.name]
            self.core.claim_deleted("team", claim.name, self.now_s)

    # ---- the allocator --------------------------------------------------------------------------------------------

    def held_on(self, node: str, uuid: str, *, without: Collection[str] = ()) -> list[tuple[str, HeldSlice]]:
        """Return what is held of a device by either allocation API, according to the API server: (mode, slice).

        ``without``: claims to leave out.
        """
        found: list[tuple[str, HeldSlice]] = []
        for claim in self.claims.values():
            if claim.node == node and claim.held is not None and claim.name not in without:
                policy = ComputePolicy(claim.held.policy)
                found += [
                    (claim.held.mode, HeldSlice(slice=s.slice(), policy=policy))
                    for s in claim.held.slices
                    if s.device == uuid
                ]
        for pod in self.pods.values():
            if pod.node == node and pod.plan is not None and not pod.claims:
                for container in pod.plan.containers:
                    policy = ComputePolicy(container.policy)
                    found += [
                        (container.mode, HeldSlice(slice=s.slice(), policy=policy))
                        for s in container.slices
                        if s.device == uuid
                    ]
        return found

    def could_allocate(self, claim: ClaimFacts, node: str) -> PlannedContainer | None:
        """Return devices for a claim on a node, the first in a random order; None for none.

        Devices in use by the other allocation API are excluded.
        """
        request = claim.request
        if request is None or self.nodes[node][0].allocation_api != "claims":
            return None
        numbers = list(range(len(self.nodes[node][1].devices)))
        self.random.shuffle(numbers)
        slices: list[PlannedSlice] = []
        mode = ""
        for number in numbers:
            one = self.nodes[node][1].devices[number].device
            held = self.held_on(node, one.uuid)
            tokens = any(
                s.device == one.uuid
                for pod in self.pods.values()
                if pod.node == node and pod.plan is not None and not pod.claims
                for container in pod.plan.containers
                for s in container.slices
            )
            wanted = resolve(request).on(one).name
            if tokens or any(other != wanted for other, _ in held) or len(slices) == request.count:
                continue
            answer = fits(one, wanted if held else None, [h for _, h in held], request)
            if hasattr(answer, "memory_mib"):
                mode = wanted
                slices.append(PlannedSlice.from_slice(answer))  # type: ignore[arg-type]
        if len(slices) < request.count:
            return None
        return PlannedContainer(name=claim.name, mode=mode, policy=request.policy, slices=tuple(slices))

    def allocate(self, uid: str, node: str) -> bool:
        """Allocate all claims of a pod on the node that kube-scheduler has found, or none."""
        done: list[ClaimFacts] = []
        for claim in self.used_by(uid):
            if claim.node:
                if claim.node != node:
                    return False
                continue
            held = self.could_allocate(claim, node)
            if held is None:
                for one in done:
                    self.claims[one.name] = one
                return False
            done.append(claim)
            self.claims[claim.name] = replace(claim, node=node, held=held)
        for claim in self.used_by(uid):
            self.reserved.setdefault(claim.name, set()).add(uid)
        for claim in done:
            self.core.claim_changed(self.claims[claim.name], self.now_s)
        return True

    def rooms(self, uid: str) -> list[str]:
        """Return the nodes on which the pod's claims are or could be allocated."""
        found = []
        for node in self.nodes:
            ok = all(
                claim.node == node if claim.node else self.could_allocate(claim, node) is not None
                for claim in self.used_by(uid)
            )
            if ok and (not self.pods[uid].claims or self.nodes[node][0].allocation_api == "claims"):
                found.append(node)
        return found

    def try_one(self, uid: str, feasible: Iterable[str] | None = None) -> str | None:
        if not self.pods[uid].claims:
            offered = [
                n for n in (self.nodes if feasible is None else feasible) if self.nodes[n][0].allocation_api != "claims"
            ]
            return super().try_one(uid, offered)
        pod = self.pods[uid]
        rooms = [n for n in self.rooms(uid) if n not in self.full and self.accepts(pod, n)]
        tries = [[pod.nominated]] if pod.nominated in rooms else []
        for offered in [*tries, rooms]:
            answer = self.core.answers.filter(uid, offered, pod.nominated, self.now_s)
            node = offered[0] if answer.anywhere and offered else answer.node
            if node is not None and self.allocate(uid, node):
                return self.bind(uid, node)
        if pod.nominated:
            self.set(replace(self.pods[uid], nominated="", refused=True))
        return None

    def bind(self, uid: str, node: str = "") -> str | None:
        entry = self.core.store.entries.get(uid)
        if entry is None or entry.stage != "riding":
            return super().bind(uid, node)
        pod = self.pods[uid]
        node = node or next(iter(claim.node for claim in self.used_by(uid)), "")
        if pod.node or self.core.answers.bind(uid, node, self.now_s).verdict is not BindVerdict.GO:
            return None
        self.set(replace(pod, node=node))
        return node

    def carry_out(self, action: Any, *, fail: bool = False) -> None:
        pod = self.pods.get(action.pod.uid)
        if isinstance(action, UngatePod):
            if pod is not None:
                self.set(replace(pod, gated=False))
            return
        super().carry_out(action, fail=fail)

    # ---- what must always hold ------------------------------------------------------------------------------------

    def check_allocation_apis(self) -> None:
        """Check that no device is held by both allocation APIs, in two sharing modes, or beyond its capacity."""
        for node, (_, told) in self.nodes.items():
            for found in told.devices:
                held = self.held_on(node, found.device.uuid)
                assert len({mode for mode, _ in held}) <= 1, (node, found.device.uuid, held)
                memory = sum(h.slice.memory_mib for _, h in held)
                cores = sum(h.slice.core_percent for _, h in held)
                assert memory <= found.device.memory_mib
                assert cores <= 100

    def requests(self, pod: PodFacts) -> list[GpuRequest]:
        if not pod.claims:
            return super().requests(pod)
        return [claim.request for claim in self.used_by(pod.uid) if claim.request is not None]

    def leaving(self) -> set[str]:
        """Return the claims of evicted pods that have not ended."""
        asked = [e.facts.uid for e in self.core.store.entries.values() if e.stage is Stage.EVICTED]
        return {claim.name for uid in asked if uid in self.pods for claim in self.used_by(uid)}

    def check_store(self) -> None:
        """Check that the planner's store shows no more as free on a device than the API server's allocations leave.

        Claims of evicted pods that still run do not count as allocations here.
        """
        store = self.core.store
        store.scheduler.unmanaged_memory.catch_up()
        without = self.leaving()
        for node, (_, told) in self.nodes.items():
            row = store.scheduler.scheduler.cluster.row(node)
            for number, found in enumerate(told.devices):
                held = self.held_on(node, found.device.uuid, without=without)
                free = int(store.scheduler.scheduler.cluster.gpu_free_milli[row, number])
                free_mib = int(store.scheduler.scheduler.cluster.gpu_free_mib[row, number])
                if any(mode == "exclusive" for mode, _ in held):
                    assert free == 0 or free_mib == 0, (node, number, held)
                assert free_mib <= found.device.memory_mib - sum(h.slice.memory_mib for _, h in held), (node, number)


def by_claims(claims: Iterable[str], terms: GpuRequest | None = None) -> PodRequest:
    """Return the request as admission writes it: the pod's terms, and one device for each claim."""
    request = terms or GpuRequest()
    parts = tuple(ContainerRequest(container=name, kind=ContainerKind.MAIN, request=request) for name in claims)
    source = GangSource.ANNOTATION if request.gang else GangSource.NONE
    return PodRequest(dialect="claims", containers=parts, gang_source=source, allocation_api=AllocationApi.CLAIMS)


def named(claims: Iterable[str]) -> tuple[PodClaimFacts, ...]:
    return tuple(PodClaimFacts(name=name, claim=name) for name in claims)


__all__ = ["CLAIMS", "TOKENS", "WHOLE", "ClaimCluster", "asked", "by_claims", "named", "share"]
