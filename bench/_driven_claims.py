"""Agent of a node whose devices are requested by claims (DRA), behind a driven kubelet, with pods that come and go.

Claims and pods are objects of a real API server; this module writes what a scheduler would write. The kubelet finds the driver
in its registry, prepares a claim before the first container that uses it, gives each container the CDI devices of the
requests that it names, and releases the claim when the last pod that uses it is deleted.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

import grpc
from tests.contract.fake_dra_kubelet import FakeDraKubelet
from tests.kube.api import Json, RefusedError
from tests.kube.cluster import Cluster
from tests.kube.gpu_node import PODS
from tests.native.simnode import simctl

from bench._driven import NotNowError, Resolver
from bench._driven_node import DrivenNode, serving
from bench._starts import START_S, Shaper
from bench._starts_left import Left, cards, specs_in
from calabash.kubernetes.claims.capacity import reserve_mib
from calabash.kubernetes.claims.device_names import DRIVER, card_names
from calabash.kubernetes.node_plugin.claims.resources import CLAIM_PREFIX
from calabash.kubernetes.objects.plan import PlannedContainer, PlannedSlice
from calabash.model.device import Device, DeviceUuid
from calabash.sharing.vgpu import MODE as VGPU

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLASS = "vgpu.calabash.dev"
STEP_MIB = 128
PODS_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A container that uses a claim; ``request`` is the request of the claim that it names, "" for all of them."""

    pod: int
    name: str
    request: str = ""


SHAPES: tuple[tuple[Mapping[str, int], tuple[User, ...]], ...] = (  # cards by request, and the containers that use them
    ({"gpu": 1}, (User(pod=0, name="main"),)),
    ({"gpu": 2}, (User(pod=0, name="main"),)),
    ({"gpu": 1}, (User(pod=0, name="main"), User(pod=0, name="other"))),
    ({"gpu": 1}, (User(pod=0, name="main"), User(pod=1, name="main"))),
    (
        {"a": 1, "b": 2},
        (User(pod=0, name="main"), User(pod=0, name="first", request="a"), User(pod=1, name="late", request="b")),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A claim that was created and allocated."""

    uid: str
    name: str
    pods: Mapping[int, tuple[str, str]]  # name and UID of each pod
    slices: Mapping[str, tuple[PlannedSlice, ...]]

    def container_plan(self, user: User) -> PlannedContainer:
        """Return the plan of a container that uses the claim: the slices that it may see."""
        wanted = [user.request] if user.request else list(self.slices)
        return PlannedContainer(
            name=user.name, mode=VGPU.name, slices=tuple(part for r in wanted for part in self.slices[r])
        )


class ClaimsNode(DrivenNode):
    """Node whose workers hold one claim each at a time; see the module's description."""

    name = "claimed"
    agent = "claimed-agent"
    words = ("--allocation-api=claims",)

    def __init__(self, cluster: Cluster, *, workers: int, seed: int) -> None:
        super().__init__(cluster, workers=workers, seed=seed)
        self.first_s: list[float] = []  # durations of the preparation of claims that were new to the node
        self._known: set[str] = set()
        self.shared = self.forgotten = 0
        self._line = FakeDraKubelet(self._root / "kubelet")
        self._resolver = Resolver(self._specs)
        self._guard = threading.Lock()
        devices = [
            Device(uuid=DeviceUuid(card["uuid"]), index=i, vendor="nvidia", model="T4", memory_mib=card["memory_mib"])
            for i, card in enumerate(_shown(self._state))
        ]
        self._names = dict(card_names(devices))

    def wait_until_offered(self) -> None:
        end = time.monotonic() + START_S
        while not self._registered():
            assert time.monotonic() < end, "the driver of claims is not registered"
            time.sleep(0.05)

    def faults(self, rounds: int) -> list[Callable[[], None]]:
        """Return ``rounds`` faults of each kind."""

        def kill_agent() -> None:
            self.cluster.restart(self.agent)
            self.wait_until_offered()

        def restart_kubelet() -> None:
            with self._guard:
                self._line.restart()
            self.wait_until_offered()

        return [kill_agent, restart_kubelet] * rounds

    def until_tainted(self, card: int) -> float:
        """Return the seconds from a fault of a card until its devices are published as unhealthy; repair it afterwards."""
        began = time.monotonic()
        while not self._published():
            assert time.monotonic() - began < START_S, "the node's devices are not published"
            time.sleep(0.05)
        began = time.monotonic()
        assert simctl("inject", self._state, "--gpu", card, "xid", 48).returncode == 0
        while not any(device.get("taints") for device in self._published()):
            assert time.monotonic() - began < START_S, "a fault of a card is not published"
            time.sleep(0.01)
        took_s = time.monotonic() - began
        while any(device.get("taints") for device in self._published()):
            assert time.monotonic() - began < START_S, "a card that is idle does not become well again"
            time.sleep(0.05)
        return took_s

    def _published(self) -> list[Json]:
        found = self.cluster.api.get(f"{SLICES}?fieldSelector=spec.nodeName%3D{self._node}")["items"]
        return [device for part in found for device in part["spec"].get("devices") or []]

    def left(self) -> Left:
        found = super().left()
        return Left(
            specs=specs_in(self._specs, CLAIM_PREFIX),
            slots=found.slots,
            used_bytes=found.used_bytes,
            slices=found.slices,
        )

    # -- one worker ---------------------------------------------------------------------------------------------------

    def _pod(self, name: str, shaper: Shaper) -> None:
        """Run one claim from its creation to its end, with the pods that use it."""
        amounts, users = SHAPES[shaper.number(0, len(SHAPES) - 1)]
        held = self._claim(name, amounts, users, shaper)
        self.shared += len(held.pods) > 1
        connections: list[socket] = []
        try:
            for _ in range(shaper.number(1, 8)):
                for user in users:
                    self._use(held, user)
            if shaper.chance(0.2) and (last := self._use(held, users[0], hold=True)) is not None:
                connections.append(last)
        finally:
            self._give_back(held, connections, forgets=shaper.chance(0.1), by_force=shaper.chance(0.5))

    def _use(self, held: Held, user: User, *, hold: bool = False) -> socket | None:
        """Start a container and retry as a kubelet would; return the connection of its program if it is to stay."""
        _, pod_uid = held.pods[user.pod]

        def edits() -> Mapping[str, Any]:
            return self._resolver.all(self._prepared(held, user.request))

        return self._run(pod_uid, held.container_plan(user), edits, hold=hold)

    def _prepared(self, held: Held, request: str) -> set[str]:
        """Prepare the claim and return the CDI devices for a container that names this request, or all. Raises NotNowError."""
        began = time.monotonic()
        reply = self._call(lambda line: line.prepare(("default", held.uid, held.name)))
        answer = reply.claims[held.uid]
        if answer.error:
            raise NotNowError(answer.error)
        if held.uid not in self._known:
            self._known.add(held.uid)
            self.first_s.append(time.monotonic() - began)
        return {
            name
            for device in answer.devices
            if not request or request in device.request_names
            for name in device.cdi_device_ids
        }

    def _give_back(self, held: Held, connections: Sequence[socket], *, forgets: bool, by_force: bool) -> None:
        """Delete the claim's pods; delete some claims without unpreparing them, as happens when a node is away for long."""
        if connections and by_force:
            self.by_force += 1
            for name, _ in held.pods.values():
                self._delete(name)
            time.sleep(0.3)
        for connection in connections:
            connection.close()
        until = time.monotonic() + 20
        while not all(self._runtime.end(uid) for _, uid in held.pods.values()) and time.monotonic() < until:
            time.sleep(0.01)
        for name, _ in held.pods.values():
            self._delete(name)
        if forgets:
            self.forgotten += 1
        else:
            self._unprepare(held)
        with suppress(RefusedError):
            self.cluster.api.delete(f"{CLAIMS}/{held.name}")

    def _unprepare(self, held: Held) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            with suppress(NotNowError):
                reply = self._call(lambda line: line.unprepare(("default", held.uid, held.name)))
                if not reply.claims[held.uid].error:
                    return
            time.sleep(0.1)
        self.tally.gave_up(held.uid, "was never given back")

    # -- the kubelet --------------------------------------------------------------------------------------------------

    def _registered(self) -> bool:
        with self._guard, suppress(grpc.RpcError):
            return bool(self._line.poll_registry())
        return False

    def _call(self, question: Callable[[FakeDraKubelet], Any]) -> Any:
        """Call the driver. Raises NotNowError while none is registered."""
        if not self._line.infos:
            self._registered()
        try:
            return question(self._line)
        except (grpc.RpcError, IndexError, StopIteration, ValueError) as error:
            self._registered()
            raise NotNowError(repr(error)) from error

    # -- the API server -----------------------------------------------------------------------------------------------

    def _claim(self, name: str, amounts: Mapping[str, int], users: Sequence[User], shaper: Shaper) -> Held:
        """Create the claim with its pods and allocate it as a scheduler would."""
        requests = [{"name": r, "exactly": {"deviceClassName": CLASS, "count": count}} for r, count in amounts.items()]
        body = {"metadata": {"generateName": f"{name}-"}, "spec": {"devices": {"requests": requests}}}
        made = self.cluster.api.create(CLAIMS, body)["metadata"]
        pods = {n: self._user(made["name"], n, [u for u in users if u.pod == n]) for n in {u.pod for u in users}}
        memory_mib, cores = STEP_MIB * shaper.number(4, 10), shaper.number(1, 3)
        chosen = shaper.devices_of(sum(amounts.values()))
        taken = iter(chosen)
        slices = {
            r: tuple(PlannedSlice(device=next(taken), memory_mib=memory_mib, core_percent=cores) for _ in range(count))
            for r, count in amounts.items()
        }
        consumed = {"memory": f"{memory_mib + reserve_mib(VGPU.name)}Mi", "cores": str(cores), "slices": "1"}
        results = [
            {
                "request": r,
                "driver": DRIVER,
                "pool": self._node,
                "device": f"{self._names[DeviceUuid(part.device)]}-{VGPU.name}",
                "shareID": str(uuid.uuid4()),
                "consumedCapacity": consumed,
            }
            for r, parts in slices.items()
            for part in parts
        ]
        users_of = [{"resource": "pods", "name": pod, "uid": uid} for pod, uid in pods.values()]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": users_of}
        self.cluster.api.patch(f"{CLAIMS}/{made['name']}/status", {"status": status})
        return Held(uid=made["uid"], name=made["name"], pods=pods, slices=slices)

    def _user(self, claim: str, number: int, users: Collection[User]) -> tuple[str, str]:
        containers = [
            {
                "name": user.name,
                "image": "sees",
                "resources": {"claims": [{"name": "gpu"} | ({"request": user.request} if user.request else {})]},
            }
            for user in users
        ]
        spec: Json = {
            "nodeName": self._node,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
            "containers": containers,
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{claim}-{number}"}, "spec": spec}
        made = self.cluster.api.create(PODS, body)["metadata"]
        return made["name"], made["uid"]


def _shown(state: Path) -> list[Json]:
    return [{"uuid": card["uuid"], "memory_mib": int(card["memory_total_bytes"]) >> 20} for card in cards(state)]


def claims_node(cluster: Cluster, *, workers: int, seed: int) -> AbstractContextManager[ClaimsNode]:
    """Run a node whose devices are requested by claims; its agent serves in the block and is stopped afterwards."""
    return serving(ClaimsNode(cluster, workers=workers, seed=seed))
