"""Tests of the DRA driver of a node over a kubelet's sockets: when it offers devices, and how it serves claims."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.contract.fake_dra_kubelet import FakeDraKubelet, until
from tests.unit.kubernetes.claims.claims_world import NODE, card, share, snapshot
from tests.unit.kubernetes.node_plugin.claim_desk import CLAIM_UID, REF, Desk, Edits

from calabash.adapters.kube.objects.claims import RESOURCE_CLAIM, RESOURCE_SLICE
from calabash.adapters.kube.objects.core import NODE as NODES
from calabash.kubernetes.claims.device_names import CORDONED, card_names
from calabash.kubernetes.node_plugin.allocation_api import AllocationApiWatch
from calabash.kubernetes.node_plugin.claims.driver import ClaimDriver
from calabash.kubernetes.node_plugin.settings import AgentSettings
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.model.errors import CalabashError, Reason
from calabash.node.membership.container import claim_allocation
from calabash_testing.api_server.client import MemoryKube

CARD = card(0)
VGPU = f"{card_names([CARD])[CARD.uuid]}-vgpu"
CLAIM = ("ml", CLAIM_UID, "c")


class Api(MemoryKube):
    """API server with the allocated claims of a desk."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk

    def get(self, kind: Any, name: str, namespace: str = "") -> Any:
        if kind is RESOURCE_CLAIM:
            return self._desk.claims.get((namespace, name))
        return super().get(kind, name, namespace)


class World:
    """A node of one device with an allocated claim ``c``."""

    def __init__(self, home: Path) -> None:
        self.node = Desk(home, CARD)
        self.node.allocate(share(VGPU))
        self.kube = Api(self.node)
        self.kube.create(NODES, {"metadata": {"name": NODE}})
        self.kubelet = FakeDraKubelet(home / "kubelet")
        self.api_watch = AllocationApiWatch(cast("Any", self.kube), NODE, AllocationApi.TOKENS)
        self.closed = ""
        self.refusal: CalabashError | None = None
        self.driver = ClaimDriver(
            AgentSettings(node=NODE, home=home, kubelet=home / "kubelet", specs=home / "cdi", host=home),
            cast("Any", self.kube),
            cast("Any", self.node.agent),
            self.node.pods,
            self.node.desk,
            api_watch=self.api_watch,
            edits=Edits(),
            refuse=self._refuse,
            closed=lambda: self.closed,
        )

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def set_api(self, api: AllocationApi) -> None:
        self.api_watch.allocation_api = api
        self.reconcile()

    def reconcile(self) -> None:
        self.driver.reconcile(snapshot(CARD), refusal=self.refusal, driver="570.86.10")

    def register(self) -> None:
        """Register the driver with the kubelet."""
        self.kubelet.wait_for()
        until(lambda: self.driver.registered)

    def offered(self) -> dict[str, tuple[str, ...]]:
        """Return the taints of the devices in the node's slices, by device."""
        slices = self.kube.list(RESOURCE_SLICE, field_selector=f"spec.nodeName={NODE}").items
        return {device.name: tuple(t.key for t in device.taints) for one in slices for device in one.spec.devices or ()}

    def becomes(self, *taints: str) -> None:
        """Wait until a software slice is offered with these taints."""

        def told() -> bool:
            self.reconcile()
            return self.offered().get(VGPU) == taints

        until(told)

    def prepare(self) -> str:
        """Prepare the claim as the kubelet does; return the error, "" if there is none."""
        return str(self.kubelet.prepare(CLAIM).claims[CLAIM_UID].error)


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as home:  # a socket's path is short
        made = World(Path(home))
        made.driver.start()
        yield made
        made.driver.stop()


def test_a_node_of_tokens_serves_no_driver_and_offers_nothing(world: World) -> None:
    world.reconcile()
    assert world.kubelet.poll_registry() == []
    assert not world.driver.registered
    assert world.driver.degraded is None
    assert world.offered() == {}


def test_slices_come_when_a_kubelet_has_the_driver_and_go_with_the_allocation_api(world: World) -> None:
    world.set_api(AllocationApi.CLAIMS)
    assert world.offered() == {}, "no kubelet could prepare what is allocated of it"
    world.register()
    world.becomes()
    assert world.driver.degraded == ""
    world.set_api(AllocationApi.TOKENS)
    assert world.offered() == {}
    assert world.driver.degraded is None
    assert world.kubelet.poll_registry() == [], "nothing was prepared by it"


def test_prepared_claims_are_served_after_the_allocation_api_was_changed_and_no_new_ones(world: World) -> None:
    world.set_api(AllocationApi.CLAIMS)
    world.register()
    assert world.prepare() == ""
    assert world.node.agent.grants == 1
    world.set_api(AllocationApi.TOKENS)
    assert world.prepare() == "", "its containers may be started again"
    world.node.agent.held.clear()
    assert "are offered by device plug-ins, not to claims" in world.prepare()
    world.node.agent.held.clear()
    assert world.kubelet.unprepare(CLAIM).claims[CLAIM_UID].error == ""
    assert world.node.specs() == {}
    world.reconcile()
    assert world.kubelet.poll_registry() == []


def why_refused() -> CalabashError:
    return CalabashError("the agent is leaving the node", reason=Reason.CONFLICT)


@pytest.mark.parametrize(
    "how", [lambda w: setattr(w, "refusal", why_refused()), lambda w: setattr(w, "closed", "full")]
)
def test_nothing_new_is_allocated_on_a_node_that_gives_out_nothing(world: World, how: Callable[[World], None]) -> None:
    world.set_api(AllocationApi.CLAIMS)
    world.register()
    world.becomes()
    how(world)
    world.becomes(CORDONED)
    if world.refusal is not None:
        assert world.prepare().endswith(world.refusal.message)
        assert world.node.agent.grants == 0


def test_allocation_of_a_claim_without_a_note_is_ended_when_the_driver_starts(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.node.preparer.prepare(REF)
    world.node.desk.notes.remove(CLAIM_UID)
    world.driver.start()
    world.driver.stop()
    assert list(world.node.agent.ending) == [claim_allocation(CLAIM_UID)]
