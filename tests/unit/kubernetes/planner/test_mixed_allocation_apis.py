"""Random operations on nodes of both allocation APIs: no device is held by both."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.examples import examples
from tests.unit.kubernetes.planner.claimed import CLAIMS, TOKENS, WHOLE, ClaimCluster, share
from tests.unit.kubernetes.planner.owners import MOVES

from calabash.kubernetes.planner.state.claims import is_allocated
from calabash.model.request import GpuRequest, Selector

OTHER_MODEL = "NVIDIA H100-SXM5-40GB"
OTHER = Selector(models=("h100",))
REQUESTS = st.sampled_from(
    [
        WHOLE,
        share(),
        share(20_480, 50),
        replace(WHOLE, count=2),
        replace(WHOLE, selector=OTHER),
        replace(share(), selector=OTHER),
        replace(share(), selector=Selector(models_excluded=("h100",))),
    ]
)
ZONES = st.sampled_from([(), (), ("zone in (a,c)",), ("zone!=c",)])


class MixedAllocationApis(RuleBasedStateMachine):
    """Random histories of pods with tokens or claims, other users of claims, changed nodes, and planner crashes."""

    def __init__(self) -> None:
        super().__init__()
        apis = {"a": "tokens", "b": "claims", "c": "claims"}
        self.cluster = ClaimCluster(
            {"a": 2, "b": 2, "c": 2}, allocation_apis=apis, options=MOVES, models={"c": OTHER_MODEL}
        )
        self.shared = 0

    @rule(request=REQUESTS, zones=ZONES)
    def ask_by_token(self, request: GpuRequest, zones: tuple[str, ...]) -> None:
        self.cluster.create(request, constraints=replace(TOKENS, selector=zones))

    @rule(request=REQUESTS, gang=st.booleans(), movable=st.booleans(), zones=ZONES)
    def ask_by_claim(self, request: GpuRequest, gang: bool, movable: bool, zones: tuple[str, ...]) -> None:
        terms = GpuRequest(gang=f"g{self.shared}", gang_size=2) if gang else None
        for _ in range(2 if gang else 1):
            constraints = replace(CLAIMS, selector=zones)
            self.cluster.with_own(request, terms=terms, owner="web", movable=movable, constraints=constraints)
        self.shared += 1

    @rule(request=REQUESTS, users=st.integers(1, 3))
    def share_a_claim(self, request: GpuRequest, users: int) -> None:
        self.shared += 1
        self.cluster.claim(f"shared-{self.shared}", request)
        for _ in range(users):
            self.cluster.claimer(f"shared-{self.shared}")

    @rule(request=REQUESTS, node=st.sampled_from("abc"), known=st.booleans())
    def another_scheduler_allocates(self, request: GpuRequest, node: str, known: bool) -> None:
        self.shared += 1
        name = f"alien-{self.shared}"
        self.cluster.claim(name, request)
        self.cluster.allocate_by_hand(name, node)
        if known and self.cluster.claims[name].node and self.cluster.claims[name].held:
            self.cluster.set_alien(f"pod-{name}", name, node)

    @rule(which=st.integers(0, 50))
    def end(self, which: int) -> None:
        if self.cluster.pods:
            self.cluster.end(sorted(self.cluster.pods)[which % len(self.cluster.pods)])

    @rule(node=st.sampled_from("abc"), allocation_api=st.sampled_from(["tokens", "claims"]))
    def change_allocation_api(self, node: str, allocation_api: str) -> None:
        self.cluster.change_allocation_api(node, allocation_api)

    @rule(count=st.integers(1, 3))
    def carry_out_some(self, count: int) -> None:
        self.cluster.decide()
        for _ in range(min(count, len(self.cluster.todo))):
            self.cluster.carry_out(self.cluster.todo.pop(0))

    @rule()
    def schedule(self) -> None:
        self.cluster.try_all()

    @rule()
    def settle(self) -> None:
        self.cluster.settle(4)

    @rule()
    def take_over(self) -> None:
        self.cluster.take_over()

    @invariant()
    def no_device_is_held_by_both_apis(self) -> None:
        self.cluster.check_allocation_apis()

    @invariant()
    def everybody_is_where_it_wished(self) -> None:
        self.cluster.check_constraints()

    @invariant()
    def store_counts_what_claims_have(self) -> None:
        cluster = self.cluster
        cluster.decide()
        cluster.check_store()
        store = cluster.core.store
        leaving = cluster.leaving()
        for claim in cluster.claims.values():
            holders = [
                e
                for e in store.entries.values()
                if store.scheduler.holds(e.id)
                and any(one.key == claim.key for one in store.claims.held_by(e.facts.uid))
            ]
            assert len(holders) <= 1
            users = [
                pod for pod in cluster.pods.values() if pod.node and any(c.claim == claim.name for c in pod.claims)
            ]
            if claim.held is not None and users and claim.name not in leaving:
                (holder,) = holders
                assert holder.plan is not None
                assert is_allocated(holder.plan)
                theirs = [c for c in holder.plan.containers if c.slices == claim.held.slices]
                assert theirs, (claim, holder.plan)

    def teardown(self) -> None:
        self.cluster.check_nobody_is_forgotten(self.cluster.take_over)


MixedAllocationApis.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=25, deadline=None)
TestMixedAllocationApis = MixedAllocationApis.TestCase
