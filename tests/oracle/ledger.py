"""Independent checker of the scheduler's decisions: a ledger that refuses decisions that break a rule.

The ledger is told the requests, the events of nodes and the decisions. It shares the data types of the scheduler (``Request``,
``NodeSpec``, ``QueueSpec``, decisions) and none of its code; limits and the MIG table are numbers of its own.

Not covered: memory reserved for an MPS server or a context, spilled memory, compute instances (``1c.3g.40gb``), unused MIG
instances, topology, labels and taints. Starts of first requests are checked without reservations only, and missed reclaims in
flat queues with whole devices only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calabash.model.mig import MigPlace
from calabash.sched import Bind, Decision, Evict, Move, NodePlacement, NodeSpec, QueueSpec, Request, Shape

CARD_MIB = 81_920
"""Memory that is charged as a whole device."""
SLICES_MAX = {"vgpu": 64, "mps": 48, "timeslice": 4, "exclusive": 1}
MIG_PROFILES = {  # compute slices, memory slices, starts
    "1g.10gb": (1, 1, (0, 1, 2, 3, 4, 5, 6)),
    "2g.20gb": (2, 2, (0, 2, 4)),
    "3g.40gb": (3, 4, (0, 4)),
    "4g.40gb": (4, 4, (0,)),
    "7g.80gb": (7, 8, (0,)),
}
WHOLE = 1000
LATE_MAX_S = 1.0
"""Longest delay of a decision for a caller that runs cycles only at events and at ``wake_at_s``."""


class ViolationError(AssertionError):
    """A decision that breaks a rule; ``check`` is the name of the rule."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check


@dataclass(frozen=True, slots=True)
class Held:
    """A running request with its node, its devices and its start."""

    request: Request
    node: str
    placement: NodePlacement
    started_at_s: float = 0.0


def is_whole(shape: Shape) -> bool:
    """Return True if the shape takes whole devices, memory included."""
    return shape.gpu_milli == WHOLE and not shape.gpu_memory_mib


def mode_of(shape: Shape) -> str:
    """Return the sharing mode that the shape puts its devices in."""
    return "mig" if shape.mig_profile else shape.mode


def charge(shape: Shape) -> tuple[float, int, int]:
    """Return the device milli, CPU milli and host MiB that a queue is charged for the shape."""
    milli: float = shape.gpu_milli
    if shape.mig_profile:
        milli = -(-MIG_PROFILES[shape.mig_profile][0] * WHOLE // 7)
    elif not is_whole(shape):
        by_memory = min(WHOLE, -(-shape.gpu_memory_mib * WHOLE // CARD_MIB))
        parts = 1 << 20
        by_count = shape.gpu_slices * WHOLE * parts // shape.gpu_slices_max / parts if shape.gpu_slices_max else 0
        milli = max(milli, by_memory, by_count)
    return shape.gpu_count * milli, shape.cpu_milli, shape.memory_mib


class Ledger:
    """Running requests, nodes and queues. Methods for events and cycles raise ViolationError if a rule is broken."""

    def __init__(self, nodes: Iterable[NodeSpec], queues: Sequence[QueueSpec], *, min_run_time_s: float = 0.0) -> None:
        self._min_run_time_s = min_run_time_s
        self._now_s = 0.0
        self.nodes = {node.name: node for node in nodes}
        self.queues = {queue.name: queue for queue in queues}
        self.requests: dict[str, Request] = {}
        self.running: dict[str, Held] = {}
        self.unhealthy: set[tuple[str, int]] = set()
        self.cordoned: set[str] = set()
        self.owed: list[tuple[Held, Request]] = []
        """Evicted requests, each with the request for which it was evicted and that has not started yet."""
        self._broken: set[tuple[str, str]] = set()
        self._event = True
        self._cycle_at_s = 0.0
        self._wake_at_s: float | None = None

    # ---- events -------------------------------------------------------------------------------------------------

    def submitted(self, request: Request) -> None:
        """Record a submitted request."""
        self._event = True
        self.requests[request.id] = request

    def ended(self, name: str) -> None:
        """Record that a request ended or was cancelled."""
        self._event = True
        request = self.requests.pop(name)
        if self.running.pop(name, None):
            self._note_broken([request])
        self.owed = [(held, by) for held, by in self.owed if by.id != name]

    def node_added(self, node: NodeSpec) -> None:
        """Record an added node."""
        self._event = True
        self.nodes[node.name] = node

    def node_lost(self, name: str) -> set[str]:
        """Record a removed node; return the requests that ran there, which wait again."""
        self._event = True
        del self.nodes[name]
        lost = [held for held in self.running.values() if held.node == name]
        for held in lost:
            del self.running[held.request.id]
        self._note_broken(held.request for held in lost)
        self.unhealthy = {(node, device) for node, device in self.unhealthy if node != name}
        self.cordoned.discard(name)
        self.owed = [(held, by) for held, by in self.owed if held.node != name]
        return {held.request.id for held in lost}

    def health(self, node: str, device: int, *, healthy: bool) -> None:
        """Record the health of a device."""
        self._event = True
        (self.unhealthy.discard if healthy else self.unhealthy.add)((node, device))

    def cordon(self, node: str, *, schedulable: bool) -> None:
        """Record that a node is cordoned, or schedulable again."""
        self._event = True
        (self.cordoned.discard if schedulable else self.cordoned.add)(node)

    def asked(self) -> None:
        """Record that the next decisions are those of ``decide``, not of a cycle that was due."""
        self._event = True

    def adopted(self, request: Request, node: str, placement: NodePlacement, started_at_s: float) -> None:
        """Record an adopted request, for which limits are not checked."""
        self._event = True
        self.requests[request.id] = request
        self._check_placement(request, node, placement)
        self.running[request.id] = Held(request, node, placement, started_at_s)
        self.check_room(node)

    def unbound(self, name: str) -> None:
        """Record a failed bind: the request waits again."""
        self._event = True
        self._note_broken([self.running.pop(name).request])

    def queues_set(self, queues: Sequence[QueueSpec]) -> None:
        """Record changed queues. Running requests are not affected."""
        self._event = True
        self.queues = {queue.name: queue for queue in queues}

    # ---- a cycle ------------------------------------------------------------------------------------------------

    def decided(self, decisions: Iterable[Decision], now_s: float, wake_at_s: float | None) -> bool:
        """Apply and check the decisions of one cycle; return True if any of them starts, evicts or moves a request."""
        self._now_s = now_s
        acts = [d for d in decisions if isinstance(d, Bind | Evict | Move)]
        if acts and not self._event and not self._was_due(now_s):
            raise ViolationError("wake", f"{acts[0]} at {now_s} s without an event, named wake-up: {self._wake_at_s}")
        seen: dict[str, type] = {}
        touched: set[tuple[str, str]] = set()
        for act in acts:
            before = seen.setdefault(act.id, type(act))
            if before is not type(act):
                raise ViolationError("once", f"{act.id}: {before.__name__} and {type(act).__name__} in one cycle")
            request = self.requests.get(act.id)
            if request is None:
                raise ViolationError("known", f"{act.id} does not exist")
            if request.gang:
                touched.add((request.queue, request.gang))
            if isinstance(act, Bind):
                self._bind(act, request)
            else:
                self._stop(act)
        self.check_room()
        self.check_gangs(touched)
        self._event, self._cycle_at_s, self._wake_at_s = False, now_s, wake_at_s
        return bool(acts)

    def _was_due(self, now_s: float) -> bool:
        """Return True if the wake-up time has passed, or is within ``LATE_MAX_S`` of the last cycle."""
        wake_at_s = self._wake_at_s
        return wake_at_s is not None and (wake_at_s <= now_s or wake_at_s <= self._cycle_at_s + LATE_MAX_S)

    def finish(self) -> None:
        """Check that the request of each eviction has started."""
        if self.owed:
            held, by = self.owed[0]
            raise ViolationError("eviction", f"{held.request.id} was evicted for {by.id}, which did not start")

    def _bind(self, act: Bind, request: Request) -> None:
        if act.id in self.running:
            raise ViolationError("once", f"{act.id} is bound and runs already")
        self._check_placement(request, act.node, act.placement)
        for held, by in self.owed:
            mates = by.id == act.id or (by.gang and (by.queue, by.gang) == (request.queue, request.gang))
            shared = held.node == act.node and set(held.placement.devices) & set(act.placement.devices)
            if shared and not mates and not self._fits_beside(request, act, held):
                raise ViolationError("eviction", f"{act.id} takes devices of {held.request.id}, evicted for {by.id}")
        self.running[act.id] = Held(request, act.node, act.placement, self._now_s)
        self.owed = [(held, by) for held, by in self.owed if by.id != act.id]
        self.check_room(act.node)
        self._check_limits(request)

    def _fits_beside(self, request: Request, act: Bind, held: Held) -> bool:
        """Return True if the request fits on its devices beside the evicted request."""
        saved = dict(self.running)
        self.running[held.request.id] = held
        self.running[act.id] = Held(request, act.node, act.placement)
        try:
            self.check_room(act.node)
        except ViolationError:
            return False
        finally:
            self.running = saved
        return True

    def _stop(self, act: Evict | Move) -> None:
        held = self.running.pop(act.id, None)
        if held is None:
            raise ViolationError("known", f"{act.id} is stopped and does not run")
        if not held.request.evictable:
            raise ViolationError("known", f"{act.id} is stopped and is not evictable")
        if self._now_s < held.started_at_s + self._min_run_time_s:
            raise ViolationError("rest", f"{act.id} is stopped at {self._now_s} s, started at {held.started_at_s} s")
        by = self.requests.get(act.by)
        if by is None:
            raise ViolationError("eviction", f"{act.id} is stopped for {act.by}, which does not exist")
        if act.by in self.running:
            raise ViolationError("eviction", f"{act.id} is stopped for {act.by}, which runs already")
        self.owed.append((held, by))
        if isinstance(act, Move):
            self._check_placement(held.request, act.node, act.placement)
            self.running[act.id] = Held(held.request, act.node, act.placement, held.started_at_s)

    def _check_placement(self, request: Request, node: str, placement: NodePlacement) -> None:
        spec, shape = self.nodes.get(node), request.shape
        if spec is None or node in self.cordoned:
            raise ViolationError("placer", f"{request.id} is placed on {node}, which does not exist or is cordoned")
        devices = placement.devices
        if len(set(devices)) != shape.gpu_count or len(devices) != shape.gpu_count:
            raise ViolationError("placer", f"{request.id} needs {shape.gpu_count} devices and has {devices}")
        for device in devices:
            if not 0 <= device < len(spec.gpus) or (node, device) in self.unhealthy:
                raise ViolationError(
                    "placer", f"{request.id} is placed on device {device} of {node}, which is not usable"
                )
            if shape.models and spec.gpus[device].model not in shape.models:
                raise ViolationError("placer", f"{request.id} is placed on a {spec.gpus[device].model}")
            gpu = spec.gpus[device]
            if shape.mig_profile and gpu.mode != "mig" and gpu.geometry is None:
                raise ViolationError("placer", f"{request.id} needs MIG, {node}/{device} has none")
            if spec.gpus[device].mode and spec.gpus[device].mode != mode_of(shape):
                raise ViolationError("placer", f"{request.id}: {node}/{device} is pinned to {spec.gpus[device].mode}")

    # ---- rules ----------------------------------------------------------------------------------------------------

    def check_room(self, only: str = "") -> None:
        """Check that no node and no device is over-committed; only those of one node if ``only`` names it."""
        for name in [only] if only else list(self.nodes):
            here = [held for held in self.running.values() if held.node == name]
            spec = self.nodes[name]
            if sum(h.request.shape.cpu_milli for h in here) > spec.cpu_milli:
                raise ViolationError("placer", f"{name}: CPU is over-committed")
            if sum(h.request.shape.memory_mib for h in here) > spec.memory_mib:
                raise ViolationError("placer", f"{name}: host memory is over-committed")
            for device in range(len(spec.gpus)):
                users = [h for h in here if device in h.placement.devices]
                if users:
                    self._check_device(f"{name}/{device}", spec.gpus[device].memory_mib, users, device)

    def _check_device(self, name: str, card_mib: int, users: list[Held], device: int) -> None:
        shapes = [held.request.shape for held in users]
        if len({mode_of(shape) for shape in shapes}) > 1:
            raise ViolationError("mode", f"{name} is in several modes: {sorted({mode_of(shape) for shape in shapes})}")
        if any(is_whole(shape) for shape in shapes) and len(shapes) > 1:
            raise ViolationError("compute", f"{name} is allocated as a whole and to others")
        if sum(shape.gpu_milli for shape in shapes) > WHOLE:
            raise ViolationError("compute", f"{name}: compute is over-committed")
        if sum(shape.gpu_memory_mib for shape in shapes) > card_mib:
            raise ViolationError("memory", f"{name}: more than {card_mib} MiB of memory are allocated")
        most = SLICES_MAX.get(mode_of(shapes[0]))
        if most is not None and sum(shape.gpu_slices for shape in shapes) > most:
            raise ViolationError("slices", f"{name} has more than {most} slices")
        if mode_of(shapes[0]) == "mig":
            self._check_mig(name, users, device)

    @staticmethod
    def _check_mig(name: str, users: list[Held], device: int) -> None:
        taken: set[int] = set()
        compute = 0
        for held in users:
            places = held.placement.mig_places[held.placement.devices.index(device)]
            cores, slices, starts = MIG_PROFILES[held.request.shape.mig_profile]
            if len(places) != 1 or places[0].start not in starts:
                raise ViolationError("mig", f"{name}: {held.request.shape.mig_profile} cannot be placed at {places}")
            run = set(range(places[0].start, places[0].start + slices))
            if run & taken:
                raise ViolationError("mig", f"{name}: MIG instances overlap at {sorted(run & taken)}")
            taken |= run
            compute += cores
        if compute > 7:
            raise ViolationError("mig", f"{name}: {compute} of 7 compute slices are allocated")

    def used(self, queue: str) -> list[float]:
        """Return the amounts that a queue and the queues below it are charged."""
        sums: list[float] = [0, 0, 0]
        for held in self.running.values():
            if queue in self._path(held.request.queue):
                sums = [a + b for a, b in zip(sums, charge(held.request.shape), strict=True)]
        return sums

    def _path(self, queue: str) -> list[str]:
        path = []
        while queue:
            path.append(queue)
            queue = self.queues[queue].parent
        return path

    def _check_limits(self, started: Request) -> None:
        """Check that a started request is within the limits of its queue and of its ancestors."""
        asked = charge(started.shape)
        for queue in self._path(started.queue):
            used, limit = self.used(queue), self.queues[queue].limit
            if any(mine > most for mine, most, amount in zip(used, limit, asked, strict=True) if amount):
                raise ViolationError("limit", f"queue {queue} uses {used} of at most {tuple(limit)}")

    def check_gangs(self, touched: Iterable[tuple[str, str]]) -> None:
        """Check that the gangs whose members started or stopped run with at least ``min_member`` members, or not at all."""
        for key in touched:
            mates = [r for r in self.requests.values() if (r.queue, r.gang) == key]
            count = sum(r.id in self.running for r in mates)
            if count == 0 or count >= mates[0].min_member:
                self._broken.discard(key)
            elif key not in self._broken:
                raise ViolationError(
                    "gang", f"{count} members of {key} run, at least {mates[0].min_member} start together"
                )

    def _note_broken(self, stopped: Iterable[Request]) -> None:
        """Allow the gangs of requests that an event has stopped to run with fewer members."""
        self._broken |= {(request.queue, request.gang) for request in stopped if request.gang}

    # ---- requests that must have started --------------------------------------------------------------------------

    def waiting(self) -> list[Request]:
        """Return the requests that wait, in the order of their submission."""
        return [request for name, request in self.requests.items() if name not in self.running]

    def first(self, queue: str) -> Request | None:
        """Return the first waiting request of a queue by priority and submission; None if there is none or a tie."""
        mine = [request for request in self.waiting() if request.queue == queue]
        ranked = sorted(mine, key=lambda r: (-r.priority, r.submitted_at_s))
        if len(ranked) > 1 and ranked[0].submitted_at_s == ranked[1].submitted_at_s:
            return None  # the order of the two is not specified
        return ranked[0] if ranked else None

    def check_starts(self) -> None:
        """Check that no first request of a queue, for one device, waits while it fits on a device within the limits."""
        for queue in self.queues:
            first = self.first(queue)
            if first is None or first.gang or first.shape.gpu_count != 1 or not self._within_limits(first):
                continue
            if place := self._fitting_device(first):
                raise ViolationError("starts", f"{first.id} is first in {queue} and waits, but fits on {place}")

    def _within_limits(self, request: Request) -> bool:
        amount = charge(request.shape)
        return all(
            u + a <= most
            for queue in self._path(request.queue)
            for u, a, most in zip(self.used(queue), amount, self.queues[queue].limit, strict=True)
            if a
        )

    def _fitting_device(self, request: Request) -> str:
        """Return a device on which a request for one device fits, as node/device; "" if there is none."""
        places: list[int] = [-1]
        if request.shape.mig_profile:
            places = list(MIG_PROFILES[request.shape.mig_profile][2])
        for name, spec in self.nodes.items():
            for device in range(len(spec.gpus)):
                if any(self._fits(request, name, device, start) for start in places):
                    return f"{name}/{device}"
        return ""

    def _fits(self, request: Request, node: str, device: int, start: int) -> bool:
        placement = NodePlacement(
            node=0, devices=(device,), mig_places=((MigPlace(start),),) if request.shape.mig_profile else ()
        )
        saved = dict(self.running)
        try:
            self._check_placement(request, node, placement)
            if self.nodes[node].gpus[device].memory_mib < request.shape.gpu_memory_mib:
                return False
            self.running[request.id] = Held(request, node, placement)
            self.check_room(node)
        except ViolationError:
            return False
        finally:
            self.running = saved
        return True

    def check_reclaim(self) -> None:
        """Check that no request within its queue's deserved amount waits while another queue borrows.

        Only for flat trees whose deserved amounts fit in the healthy devices, and requests for one whole device each.
        """
        lost = self.unhealthy | {(name, d) for name in self.cordoned for d in range(len(self.nodes[name].gpus))}
        healthy = sum(len(n.gpus) for n in self.nodes.values()) - len(lost)
        if sum(q.deserved.gpu_milli for q in self.queues.values()) > healthy * WHOLE:
            return
        for queue, spec in self.queues.items():
            first = self.first(queue)
            if first is None or self.used(queue)[0] + WHOLE > spec.deserved.gpu_milli or not self._within_limits(first):
                continue
            for other, borrower in self.queues.items():
                if other == queue or self.used(other)[0] - WHOLE < borrower.deserved.gpu_milli:
                    continue
                mine = [h for h in self.running.values() if h.request.queue == other]
                if all(h.request.evictable and not lost & {(h.node, d) for d in h.placement.devices} for h in mine):
                    raise ViolationError(
                        "reclaim", f"{first.id} waits below the deserved amount of {queue}, {other} borrows"
                    )
