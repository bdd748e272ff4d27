"""A simulated cluster: pods, nodes, an executor and a kube-scheduler around one planner's core."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from calabash.binder.cluster.device_kinds import NodeDevice
from calabash.kubernetes.planner.decide.core import OPTIONS, Core
from calabash.kubernetes.planner.decide.decisions import REFUSED_MAX_S
from calabash.kubernetes.planner.decide.extender_answers import BindVerdict
from calabash.kubernetes.planner.state.facts import (
    Action,
    EvictPod,
    GpuNodeFacts,
    NamespaceFacts,
    NodeFacts,
    Nominate,
    PodFacts,
    QueueFacts,
    ReleasePod,
    Report,
    SliceFacts,
)
from calabash.kubernetes.pod_request import ContainerKind, ContainerRequest, GangSource, PodRequest
from calabash.model.device import Device, DeviceUuid, Health
from calabash.model.request import ComputePolicy, GpuRequest
from calabash.sched import Options
from calabash.sched.cluster.shape import parse_expression
from calabash.sharing.protocol import HeldSlice
from calabash.sharing.registry import fits, selector_misfit

MODEL, MEMORY_MIB = "NVIDIA A100-SXM4-40GB", 40960


def device(number: int, *, health: Health = Health.HEALTHY, model: str = MODEL) -> Device:
    return Device(
        uuid=DeviceUuid(f"GPU-{number}"),
        index=number,
        vendor="nvidia",
        model=model,
        memory_mib=MEMORY_MIB,
        health=health,
    )


def gpu_node(
    name: str, gpus: int = 2, *, unhealthy: Iterable[int] = (), model: str = MODEL, **more: object
) -> GpuNodeFacts:
    devices = tuple(
        NodeDevice(device=device(i, health=Health.LOST if i in unhealthy else Health.HEALTHY, model=model))
        for i in range(gpus)
    )
    return GpuNodeFacts(name=name, devices=devices, **more)  # type: ignore[arg-type]


def asked(request: GpuRequest | None = None, *others: tuple[ContainerKind, GpuRequest], queue: str = "") -> PodRequest:
    containers = [ContainerRequest(container="main", kind=ContainerKind.MAIN, request=request or GpuRequest())]
    containers += [ContainerRequest(container=f"c{i}", kind=k, request=r) for i, (k, r) in enumerate(others)]
    gang = containers[0].request.gang
    source = GangSource.ANNOTATION if gang else GangSource.NONE
    return PodRequest(dialect="native", containers=tuple(containers), queue=queue, gang_source=source)


class Cluster:
    """Objects of the API server, and the core of a planner that gets them as events.

    Args:
        nodes: number of devices of each node; its label ``zone`` is its name.
        options: options of the scheduler.
        models: device models of nodes; ``MODEL`` by default.
    """

    def __init__(
        self,
        nodes: dict[str, int],
        queues: Iterable[QueueFacts] = (),
        *,
        seed: int = 0,
        options: Options = OPTIONS,
        models: Mapping[str, str] | None = None,
        namespaces: Iterable[NamespaceFacts] = (),
    ) -> None:
        self.options = options
        self.models = models or {}
        self.namespaces = list(namespaces)
        self.random = random.Random(seed)
        self.pods: dict[str, PodFacts] = {}
        self.nodes = {name: self._node(name, gpus) for name, gpus in nodes.items()}
        self.queues = list(queues)
        self.todo: list[Action] = []
        self.reports: list[Report] = []
        self.evictions: list[str] = []
        self.protected: set[str] = set()
        self.past_use: Mapping[str, tuple[float, float]] = {}  # in the statuses of queues, for the next planner
        self.full: set[str] = set()  # nodes on which kube-scheduler has no room
        self.now_s = 1000.0  # times of bindings must not be 0, in whole seconds
        self._numbers = itertools.count(1)
        self.core = self.restarted()

    # ---- the world ------------------------------------------------------------------------------------------------

    def restarted(self) -> Core:
        """Let another planner take over; actions that its predecessor has not carried out are lost."""
        self.todo.clear()
        self.core = core = Core(new_id=lambda: f"plan-{next(self._numbers)}", hold_s=50.0, options=self.options)
        for node, gpus in self.nodes.values():
            core.node_changed(node, self.now_s)
            core.devices_changed(gpus, self.now_s)
        core.set_queues(self.queues)
        core.set_past_use(self.past_use)
        for namespace in self.namespaces:
            core.namespace_changed(namespace)
        for pod in self.pods.values():
            core.pod_changed(pod, self.now_s)
        core.start(self.now_s)
        self.decide()
        return core

    def create(self, request: PodRequest | GpuRequest, *, name: str = "", **more: object) -> str:
        """Create a pod as admission leaves it."""
        number = next(self._numbers)
        uid = name or f"pod-{number}"
        if isinstance(request, GpuRequest):
            request = asked(request)
        self.now_s += 0.001
        facts = PodFacts(
            uid=uid, namespace="team", name=uid, created_at_s=self.now_s, request=request, gated=True, is_recreated=True
        )
        self.set(replace(facts, **more))  # type: ignore[arg-type]
        return uid

    def set(self, facts: PodFacts) -> None:
        """Update a pod, and pass it to the core."""
        self.pods[facts.uid] = facts
        self.core.pod_changed(facts, self.now_s)

    def end(self, uid: str) -> None:
        if self.pods.pop(uid, None) is not None:
            self.core.pod_deleted(uid)

    def report_slices(self) -> None:
        """Let every agent report the slices of its node."""
        for name, (node, told) in self.nodes.items():
            slices = tuple(
                SliceFacts(pod_uid=pod.uid, device=part.device, memory_mib=part.memory_mib)
                for pod in self.pods.values()
                if pod.node == name and pod.plan is not None
                for container in pod.plan.containers
                for part in container.slices
            )
            self.nodes[name] = (node, replace(told, slices=slices))
            self.core.devices_changed(self.nodes[name][1], self.now_s)

    def lose_node(self, name: str) -> None:
        del self.nodes[name]
        self.core.node_deleted(name)
        self.core.devices_deleted(name)

    def add_node(self, name: str, gpus: int = 2) -> None:
        self.nodes[name] = self._node(name, gpus)
        self.core.devices_changed(self.nodes[name][1], self.now_s)
        self.core.node_changed(self.nodes[name][0], self.now_s)

    def _node(self, name: str, gpus: int) -> tuple[NodeFacts, GpuNodeFacts]:
        return NodeFacts(name=name, labels={"zone": name}), gpu_node(name, gpus, model=self.models.get(name, MODEL))

    # ---- the planner's hands ----------------------------------------------------------------------------------------

    def decide(self) -> None:
        self.now_s += 0.01
        self.core.decide(self.now_s)
        self.todo += self.core.take_actions()

    def carry_out(self, action: Action, *, fail: bool = False) -> None:
        pod = self.pods.get(action.pod.uid)
        match action:
            case ReleasePod(plan=plan):
                entry = self.core.store.entries.get(action.pod.uid)
                current = entry is not None and entry.plan is not None and entry.plan.id == plan.id
                ok = pod is not None and current and not fail
                if ok and pod is not None:
                    self.set(replace(pod, plan=plan, gated=False, nominated=plan.node))
                self.core.decisions.plan_written(action.pod.uid, plan.id, ok=ok)
            case Nominate(node=node):
                if pod is not None and not fail:
                    self.set(replace(pod, nominated=node, refused=False))
            case EvictPod():
                if action.pod.uid in self.protected:
                    self.core.decisions.eviction_refused(action.pod.uid, "budget", self.now_s)
                elif pod is not None:
                    self.evictions.append(action.pod.uid)
                    self.set(replace(pod, leaving=True))
            case Report():
                self.reports.append(action)

    def settle(self, rounds: int = 20) -> None:
        """Decide, carry out the actions, let kube-scheduler try, and let evicted pods end; all for some rounds."""
        for _ in range(rounds):
            self.decide()
            while self.todo:
                self.carry_out(self.todo.pop(0))
            self.try_all()
            for uid in [p.uid for p in self.pods.values() if p.leaving]:
                self.end(uid)

    # ---- kube-scheduler ---------------------------------------------------------------------------------------------

    def try_all(self) -> None:
        waiting = [p.uid for p in self.pods.values() if not (p.gated or p.node or p.leaving)]
        for uid in waiting:
            self.try_one(uid)
        for uid in self.core.answers.release_ready_holds():
            self.bind(uid)

    def accepts(self, pod: PodFacts, node: str) -> bool:
        """Return True if the pod's node selector accepts the node."""
        return all(parse_expression(one).holds(self.nodes[node][0].labels) for one in pod.constraints.selector)

    def try_one(self, uid: str, feasible: Iterable[str] | None = None) -> str | None:
        """Make one attempt of kube-scheduler: filter the nominated node, else all with room, and bind the pod."""
        pod = self.pods[uid]
        offered_to = self.nodes if feasible is None else feasible
        rooms = [n for n in offered_to if n not in self.full and self.accepts(pod, n)]
        tries = [[pod.nominated]] if pod.nominated in rooms else []
        for offered in [*tries, rooms]:
            answer = self.core.answers.filter(uid, offered, pod.nominated, self.now_s)
            if answer.node is not None:
                assert answer.node in offered
                assert self.core.answers.filter(uid, offered, pod.nominated, self.now_s) == answer
                return self.bind(uid, answer.node)
        if pod.nominated:
            self.set(replace(pod, nominated="", refused=True))
        return None

    def bind(self, uid: str, node: str = "") -> str | None:
        pod = self.pods.get(uid)
        entry = self.core.store.entries.get(uid)
        if pod is None or pod.node or entry is None:
            return None
        node = node or (entry.plan.node if entry.plan else "")
        answer = self.core.answers.bind(uid, node, self.now_s)
        if answer.verdict is not BindVerdict.GO:
            return None
        assert answer.plan is not None
        assert answer.plan.node == node
        assert self.core.answers.bind(uid, node, self.now_s).verdict is BindVerdict.GO  # asked again
        self.core.answers.binding_written(uid, answer.plan.id, ok=True)
        self.set(replace(pod, node=node, plan=answer.plan, nominated="", bound_at_s=float(int(self.now_s))))
        return node

    # ---- what must always hold ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that no device is used beyond its sharing mode, by bound pods alone and together with planned ones."""
        store = self.core.store
        bound = {p.uid: p.plan for p in self.pods.values() if p.node in self.nodes and p.plan is not None}
        free = {
            e.facts.uid: e.plan
            for e in store.entries.values()
            if e.plan is not None and e.stage != "placed" and e.facts.uid in self.pods
        }
        for plans in (bound, {**free, **bound}):
            on: dict[tuple[str, str], list[tuple[str, HeldSlice]]] = {}
            for plan in plans.values():
                for container in plan.containers:
                    for part in container.placement(plan.node).slices:
                        held = HeldSlice(slice=part, policy=ComputePolicy(container.policy))
                        on.setdefault((plan.node, part.device), []).append((container.mode, held))
            for (_, uuid), held_slices in on.items():
                assert len({mode for mode, _ in held_slices}) == 1
                before: list[HeldSlice] = []
                for mode, held in held_slices:
                    part = held.slice
                    whole = GpuRequest() if mode == "exclusive" else None
                    request = whole or GpuRequest(
                        memory_mib=part.memory_mib, core_percent=part.core_percent, policy=held.policy
                    )
                    card = device(int(uuid.removeprefix("GPU-")))
                    answer = fits(card, (before and mode) or None, before, request)  # type: ignore[arg-type]
                    assert answer == part, (uuid, held_slices)
                    before.append(held)

    def check_constraints(self) -> None:
        """Check that planned and bound pods are on nodes, and on devices of models, that they accept."""
        planned = {e.facts.uid: e.plan.node for e in self.core.store.entries.values() if e.plan is not None}
        for uid, node in {**planned, **self.bound()}.items():
            pod = self.pods.get(uid)
            if pod is None or node not in self.nodes:
                continue
            assert self.accepts(pod, node), (uid, node)
            for request in self.requests(pod):
                for found in self.nodes[node][1].devices:
                    assert selector_misfit(found.device, request.selector) is None, (uid, node)

    def check_nobody_is_forgotten(self, begin_anew: Callable[[], object]) -> None:
        """Check that a new planner, which begins with ``begin_anew``, places no waiting pod without evictions.

        Such a pod would have been forgotten by the old planner. The check is skipped while devices are reserved,
        because the result then depends on time.
        """
        self.full, self.protected = set(), set()
        self._settle_for_long()
        if self.core.store.scheduler.scheduler.state.reservations:
            return
        before, evictions = set(self.bound()), len(self.evictions)
        begin_anew()
        self._settle_for_long()
        if len(self.evictions) == evictions:
            assert set(self.bound()) <= before, set(self.bound()) - before

    def _settle_for_long(self) -> None:
        """Settle until all temporary reservations and deferrals are over."""
        for _ in range(3):
            self.now_s += max(self.options.reservation_hold_s + 100, REFUSED_MAX_S)
            for uid, _ in self.core.answers.take_expired(self.now_s):
                self.core.answers.cancel_hold(uid)
            self.settle(4)

    def requests(self, pod: PodFacts) -> list[GpuRequest]:
        """Return the pod's requests, each for devices of one node."""
        return [one.request for one in pod.request.containers] if pod.request is not None else []

    def bound(self) -> dict[str, str]:
        return {uid: pod.node for uid, pod in self.pods.items() if pod.node}
