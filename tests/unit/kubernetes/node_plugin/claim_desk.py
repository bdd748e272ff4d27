"""A node that prepares claims without a kubelet, devices or an API server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import structs
from tests.unit.kubernetes.claims.claims_world import NODE, allocated, card
from tests.unit.kubernetes.node_plugin.node_world import Agent, GivenPods

from calabash.adapters.cdi import ContainerEdits, list_specs
from calabash.adapters.kube import MirrorChange
from calabash.adapters.kube.objects.claims import ClaimConsumer, ResourceClaim
from calabash.adapters.kube.objects.core import Pod
from calabash.adapters.kubelet import ClaimRef
from calabash.kubernetes.node_plugin.claims.prepare import ClaimPreparer
from calabash.kubernetes.node_plugin.claims.prepared_files import ClaimNotes
from calabash.kubernetes.node_plugin.claims.resources import CLAIM_PREFIX, ClaimDesk
from calabash.kubernetes.node_plugin.claims.store import ClaimStore
from calabash.kubernetes.node_plugin.containers.retry import Patience
from calabash.model.device import Device, DeviceUuid
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.agent import Grant
from calabash.node.membership.container import claim_allocation
from calabash_testing.clock import VirtualClock

CLAIM_UID = "11111111-2222-3333-4444-555555555555"
REF = ClaimRef(namespace="ml", uid=CLAIM_UID, name="c")
POD_UID = "0f8fad5b-d9cb-469f-a165-70867728950e"


@dataclass(frozen=True)
class State:
    """The part of a device's state that the preparer uses."""

    device: Device
    cause: str = ""


class ClaimAgent(Agent):
    """Agent with devices, whose allocations end after a number of polls."""

    node = NODE

    def __init__(self, *cards: Device) -> None:
        super().__init__()
        self.cards = cards
        self.grants = 0
        self.ending: dict[AllocationId, int] = {}
        self.polls_to_end = 3

    def devices(self) -> list[State]:
        return [State(one) for one in self.cards]

    def record(self, allocation: AllocationId) -> Any:
        if allocation in self.ending:
            self.ending[allocation] -= 1
            if self.ending[allocation] <= 0:
                del self.ending[allocation]
                self.held.pop(allocation, None)
        return super().record(allocation)

    def grant(self, record: Any, *, instead_of: Any = frozenset()) -> Grant:
        self.grants += 1
        return super().grant(record, instead_of=instead_of)

    def end(self, allocation: AllocationId, *, reason: str, explanation: str, gently: bool = False) -> bool:
        if allocation not in self.held:
            return False
        self.ending[allocation] = self.polls_to_end
        return True


class Edits:
    """CDI edits with a variable that shows their arguments."""

    def for_grant(self, grant: Grant, wanted: Sequence[DeviceUuid] | None = None) -> ContainerEdits:
        return ContainerEdits(env=(("SLOT", grant.record.id), ("CARDS", ",".join(wanted or ()))))

    def for_observer(self, wanted: Sequence[DeviceUuid]) -> ContainerEdits:
        return ContainerEdits(env=(("SEES", ",".join(wanted)),))


class Desk:
    """The claim desk and the preparer of a node; ``claims`` are the claims in the API server."""

    def __init__(self, home: Path, *cards: Device) -> None:
        self.home = home
        self.agent = ClaimAgent(*(cards or (card(0), card(1))))
        self.claims: dict[tuple[str, str], ResourceClaim] = {}
        self.refusal: CalabashError | None = None
        self.reported: list[ResourceClaim] = []
        self.clock = VirtualClock()
        self.start()

    def start(self) -> None:
        """Start a new process on the same disk."""
        self.store = ClaimStore()
        self.pods = GivenPods(complete=True, users=self.store.users)
        self.desk = ClaimDesk(notes=ClaimNotes(self.home / "claims"), store=self.store, specs=self.home / "cdi")
        self.preparer = ClaimPreparer(
            cast("Any", self.agent),
            self.pods,
            self.desk,
            self.clock,
            fetch=lambda namespace, name: self.claims.get((namespace, name)),
            edits=Edits(),
            rules=self,
            patience=Patience(clock=self.clock, leaving=self.desk.locks.any_ends, pause=self.clock.advance),
        )

    def allocate(self, *results: dict[str, Any], uses: tuple[str, ...] = (POD_UID,), **changes: Any) -> ResourceClaim:
        """Create a claim with these results, reserved for pods of these UIDs."""
        claim = allocated(*results, configs=changes.pop("configs", ()))
        reserved = tuple(ClaimConsumer(resource="pods", name=f"p{n}", uid=uid) for n, uid in enumerate(uses))
        claim = structs.replace(
            claim,
            metadata=structs.replace(claim.metadata, **changes),
            status=structs.replace(claim.status, reserved_for=reserved),
        )
        self.claims[claim.metadata.namespace, claim.metadata.name] = claim
        return claim

    def observe(self, pod: Pod) -> None:
        self.pods.changed(MirrorChange(before=None, after=pod))

    def go(self, pod: Pod) -> None:
        """Delete a pod from the API server."""
        self.pods.changed(MirrorChange(before=pod, after=None))

    @property
    def held(self) -> Any:
        """Return the allocation record of the claim ``c``."""
        return self.agent.held.get(claim_allocation(CLAIM_UID))

    def specs(self) -> dict[str, dict[str, str]]:
        """Return the variables of all CDI devices, by device name."""
        found: dict[str, dict[str, str]] = {}
        for file in list_specs(self.home / "cdi", CLAIM_PREFIX):
            text = msgspec.json.decode((self.home / "cdi" / f"{file.name}.json").read_bytes())
            for device in text["devices"]:
                env = device["containerEdits"]["env"]
                found[device["name"]] = dict(one.split("=", 1) for one in env)
        return found

    def require(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def prepared(self, claim: ResourceClaim) -> None:
        self.reported.append(claim)


def pod_with(*containers: dict[str, list[dict[str, str]]], uid: str = POD_UID, **claims: str) -> Pod:
    """Return a pod whose containers use claims; ``claims``: names of claim objects by the names in the pod's spec."""
    value = {
        "metadata": {"name": "p0", "namespace": "ml", "uid": uid},
        "spec": {
            "nodeName": NODE,
            "containers": [
                {"name": name, "resources": {"claims": used}} for one in containers for name, used in one.items()
            ],
            "resourceClaims": [{"name": name, "resourceClaimTemplateName": "t"} for name in claims],
        },
        "status": {"resourceClaimStatuses": [{"name": n, "resourceClaimName": c} for n, c in claims.items()]},
    }
    return msgspec.convert(value, Pod)
