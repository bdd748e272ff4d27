"""API views of devices, allocations, requests and events, restricted to what a principal may read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from calabash.adapters.store import Store
from calabash.api import replies, requests
from calabash.binder.local.requests import WaitingRequest
from calabash.model.allocation import AllocationRecord
from calabash.model.device import DeviceUuid, Health
from calabash.model.errors import CalabashError
from calabash.model.request import AllocationId
from calabash.node.agent import Grant, NodeAgent
from calabash.node.slots.names import LEASE_FILE
from calabash.node.snapshot import AllocationSnapshot, DeviceSnapshot, NodeSnapshot, SliceUse
from calabash.platform.access.visibility import Visibility
from calabash.pool.pool import Pool
from calabash.pool.requests.explanations import RequestExplanation, unhealthy_device
from calabash.sharing.registry import SHARING_MODES

EXPLAINED_MAX = 20  # waiting requests that a list explains; `why` explains any
PAGE_BYTES_MAX = 512 * 1024
LOOKED_AT_ONCE = 256  # allocations per snapshot with processes


def devices(agent: NodeAgent, visibility: Visibility) -> replies.DeviceList:
    """Return all devices with their readings and occupancy."""
    return replies.DeviceList(items=shown_devices(agent.devices(), visibility))


def shown_devices(states: Iterable[DeviceSnapshot], visibility: Visibility) -> list[replies.DeviceView]:
    """Return the views of devices, redacted for the principal."""
    return [_device(state, visibility) for state in states]


def device(agent: NodeAgent, name: str, visibility: Visibility) -> replies.DeviceDetail:
    """Return a device and its health, by index or UUID. Raises NOT_FOUND."""
    found = agent.administration.find(name)
    state = next(state for state in agent.devices() if state.device.uuid == found.uuid)
    entry = agent.administration.entry(found)
    condition = entry.condition
    return replies.DeviceDetail(
        device=_device(state, visibility),
        since=entry.since_s or None,
        needs=condition.need.name.lower() if condition.need else "",
        drained=condition.drained,
        drained_why=entry.drained_why,
        evict_at=entry.evict_at_s or None,
        hold_until=condition.hold_until_s or None,
        figures=entry.figures,
        parts=[replies.PartView(name=part, health=c.health) for part, c in sorted(entry.parts.items())],
        history=[
            replies.HappeningView(at=h.at, health=h.health, cause=visibility.text(h.cause_text)) for h in entry.history
        ],
    )


def _device(state: DeviceSnapshot, visibility: Visibility) -> replies.DeviceView:
    device, reading = state.device, state.reading
    mode = SHARING_MODES.get(state.mode) if state.mode else None
    occupancy = mode.occupancy(device, state.held) if mode else None
    view = replies.DeviceView(
        uuid=device.uuid,
        index=device.index,
        vendor=device.vendor,
        model=device.model,
        compute_capability=".".join(map(str, device.compute_capability)) if any(device.compute_capability) else "",
        memory_mib=device.memory_mib,
        memory_used_mib=reading.memory_used_mib if reading else 0,
        memory_allocated_mib=occupancy.memory_mib if occupancy else 0,
        memory_free_mib=max(0, (occupancy.memory_free_mib if occupancy else device.memory_mib) - state.foreign_mib),
        core_allocated_percent=occupancy.core_percent if occupancy else 0,
        utilization_percent=reading.utilization_percent if reading else 0,
        temperature_c=reading.temperature_c if reading else 0,
        power_w=reading.power_w if reading else 0.0,
        health=device.health,
        cause=visibility.text(state.cause),
        mode=state.mode or "",
        pinned=device.pinned,
        replicas=device.replicas,
        interval=device.interval,
        spill_mib=device.spill_mib,
        allocations=list(state.allocations),
        unmanaged_processes=[
            replies.UnmanagedProcessView(
                pid=s.process.pid, uid=s.uid, command=s.command, memory_mib=s.used_mib, allocation=s.allocation or ""
            )
            for s in state.unmanaged
        ],
    )
    return visibility.shown_device(view)


def allocations(
    pool: Pool, page: requests.AllocationPage, visibility: Visibility, pid: int = 0
) -> replies.AllocationList:
    """Return a page of allocations and waiting requests; with ``page.all`` also ended ones, with ``page.ended`` only these.

    Args:
        pid: return only the request that this process waits for, or the allocations of which it is a member process;
            0: return those of all processes.
    """
    if page.ended:
        return _ended_page(pool, page, visibility)
    devices = pool.agent.devices()
    index = {d.device.uuid: d.device.index for d in devices}
    records = [record for record in pool.agent.records() if visibility.record(record)]
    shown: list[replies.AllocationView] = []
    if page.all and not page.after:
        held = {record.id for record in records}
        over = pool.store.allocations(ended=True, limit=page.limit, seen=visibility.allocations_seen())
        shown = [_allocation(r, (), index, (), visibility) for r in over if r.id not in held]
    # A request that is being granted is in both lists.
    line = pool.binder.waiting()
    waiting = [w for w in line if is_visible(w, visibility)]
    if pid:
        waiting = [w for w in waiting if w.requester.process and w.requester.process.pid == pid]
        records = [] if waiting else records
    live = list(dict.fromkeys([*(record.id for record in records), *(w.id for w in waiting)]))
    begin = live.index(AllocationId(page.after)) + 1 if page.after in live else 0
    rows = _live(pool, devices, index, live[begin:], positions(line), visibility=visibility, ended=page.all)
    found = (row for row in rows if not pid or pid in row.pids)
    return _page(found, page.limit, shown)


def positions(waiting: Iterable[WaitingRequest]) -> dict[AllocationId, int]:
    """Return the position of each waiting request in its queue, by priority and age, from 1."""
    reached: Counter[str] = Counter()
    found = {}
    for one in sorted(waiting, key=lambda w: (-w.request.priority, w.created_at)):
        reached[one.request.queue] += 1
        found[one.id] = reached[one.request.queue]
    return found


def _ended_page(pool: Pool, page: requests.AllocationPage, visibility: Visibility) -> replies.AllocationList:
    index = {d.device.uuid: d.device.index for d in pool.agent.devices()}
    found = pool.store.ended_before(AllocationId(page.after), limit=page.limit + 1, seen=visibility.allocations_seen())
    return _page((_allocation(r, (), index, (), visibility) for r in found), page.limit, [])


def is_visible(waiting: WaitingRequest, visibility: Visibility) -> bool:
    """Return True if the principal may read a waiting request."""
    asker = waiting.requester
    return visibility.sees(tenant=waiting.request.tenant, uid=asker.uid, user=asker.user)


def _page(
    items: Iterable[replies.AllocationView], limit: int, first: list[replies.AllocationView]
) -> replies.AllocationList:
    """Return a page of up to ``limit`` items and about PAGE_BYTES_MAX bytes; ``next`` is set if there are more.

    Args:
        first: items at the beginning of the page, which do not count towards these limits.
    """
    shown: list[replies.AllocationView] = []
    size = 0
    for item in items:
        if len(shown) >= limit or size > PAGE_BYTES_MAX:
            return replies.AllocationList(items=first + shown, next=shown[-1].id)
        size += len(msgspec.json.encode(item))
        shown.append(item)
    return replies.AllocationList(items=first + shown)


def _live(
    pool: Pool,
    devices: Sequence[DeviceSnapshot],
    index: Mapping[DeviceUuid, int],
    wanted: Sequence[AllocationId],
    places: Mapping[AllocationId, int],
    *,
    visibility: Visibility,
    ended: bool,
) -> Iterator[replies.AllocationView]:
    explained = 0
    for begin in range(0, len(wanted), LOOKED_AT_ONCE):
        names = wanted[begin : begin + LOOKED_AT_ONCE]
        snapshot = pool.agent.snapshot(pids=True, only=frozenset(names))
        held = {a.record.id: a for a in snapshot.allocations}
        for name in names:
            if name in held:
                yield _held(held[name], snapshot, index, visibility)
                continue
            waiting = pool.binder.find(name)
            if waiting is None:
                over = pool.store.allocation(name) if ended else None
                if over is not None:
                    yield _allocation(over, (), index, (), visibility)
                continue  # granted or ended in the meantime
            why = RequestExplanation(id=name, state="pending", reason="", text="")
            if explained < EXPLAINED_MAX:
                explained += 1
                try:
                    why = pool.explanations.explain(name, devices)
                except CalabashError:
                    continue
                if why.state != "pending":
                    continue
            yield _waiting(waiting, why, places.get(name, 0), visibility)


def events(store: Store, page: requests.EventPage, visibility: Visibility) -> replies.EventList:
    """Return a page of visible events."""
    found = store.events(after=page.after, limit=page.limit, seen=visibility.events_seen())
    return replies.EventList(
        items=[
            replies.EventView(
                id=e.id,
                at=e.at,
                kind=e.kind,
                reason=e.reason,
                allocation=e.allocation,
                device=e.device,
                message=visibility.text(e.message),
            )
            for e in found
        ]
    )


def granted(
    answer: Grant, simulation: dict[str, str], visibility: Visibility, *, state: str, entry_socket: str = ""
) -> replies.GrantReply:
    """Return the reply to a granted request, with the environment of its program.

    Args:
        answer: the grant.
        simulation: environment of programs on the simulated node; {} if the devices are real.
        visibility: visibility of the requesting principal, for which warnings are redacted.
        state: state of the allocation.
        entry_socket: socket of the process that starts the program in the network of its ports; "" if it has none.
    """
    record = answer.record
    lease = Path(record.slot) / LEASE_FILE
    worker = answer.edits.worker_socket
    known = {device.uuid: device for device in answer.devices}
    return replies.GrantReply(
        id=record.id,
        state=state,
        environment=dict(answer.edits.environment) | ({} if worker else simulation),
        slot="" if worker else record.slot,
        lease=str(lease) if lease.exists() and not worker else "",
        worker_socket=worker,
        entry_socket=entry_socket,
        mode=record.placement.mode,
        policy=record.request.policy,
        warnings=[visibility.text(warning) for warning in answer.warnings],
        slices=[
            replies.SliceView(
                device=part.device,
                memory_mib=part.memory_mib,
                core_percent=part.core_percent,
                profile=part.profile or part.vf,
                start=part.start,
                part=part.part,
                spill_mib=part.spill_mib,
                device_index=known[part.device].index if part.device in known else -1,
                device_model=known[part.device].model if part.device in known else "",
            )
            for part in record.placement.slices
        ],
    )


def held(agent: NodeAgent, visibility: Visibility) -> list[replies.AllocationView]:
    """Return all visible allocations."""
    snapshot = agent.snapshot(only={r.id for r in agent.records() if visibility.record(r)})
    index = {d.device.uuid: d.device.index for d in snapshot.devices}
    return [_held(a, snapshot, index, visibility) for a in snapshot.allocations]


def _held(
    held: AllocationSnapshot, snapshot: NodeSnapshot, index: Mapping[DeviceUuid, int], visibility: Visibility
) -> replies.AllocationView:
    shown = _allocation(held.record, held.pids, index, held.use, visibility)
    if held.ending:
        return msgspec.structs.replace(shown, reason="ending", explanation="its programs are being ended")
    for part in held.record.placement.slices:
        state = snapshot.device(part.device)
        if state is not None and state.device.health is not Health.HEALTHY and not shown.reason:
            told = visibility.text(unhealthy_device(state))
            return msgspec.structs.replace(shown, reason="unhealthy", explanation=told)
    return shown


def _allocation(
    record: AllocationRecord,
    pids: Sequence[int],
    index: Mapping[DeviceUuid, int],
    use: Sequence[SliceUse],
    visibility: Visibility,
) -> replies.AllocationView:
    request = record.request
    slices = record.placement.slices
    used = [*use, *(SliceUse() for _ in range(len(slices) - len(use)))]
    return replies.AllocationView(
        id=record.id,
        tenant=request.tenant,
        queue=request.queue,
        user=record.user,
        uid=record.uid,
        command=list(record.command),
        mode=record.placement.mode,
        policy=request.policy,
        priority=request.priority,
        gang=request.gang,
        state=record.state,
        reason=record.reason,
        explanation=visibility.text(record.explanation),
        created_at=record.created_at,
        started_at=record.started_at or None,
        ended_at=record.ended_at or None,
        pids=list(pids),
        slices=[
            replies.SliceUseView(
                device=part.device,
                device_index=index.get(part.device, -1),
                memory_mib=part.memory_mib,
                core_percent=part.core_percent,
                memory_used_mib=seen.memory_used_mib,
                core_used_percent=seen.core_used_percent,
                denied=seen.denied,
                throttled_s=seen.throttled_s,
                profile=part.profile or part.vf,
                start=part.start,
                part=part.part,
                spill_mib=part.spill_mib,
            )
            for part, seen in zip(slices, used, strict=True)
        ],
    )


def view_explanation(explanation: RequestExplanation, visibility: Visibility) -> replies.WhyReply:
    """Return the reply with an explanation of a request or allocation."""
    return replies.WhyReply(
        id=explanation.id,
        state=explanation.state,
        reason=explanation.reason,
        explanation=visibility.text(explanation.text),
        details=list(map(visibility.text, explanation.details)),
        suggestions=list(map(visibility.text, explanation.suggestions)),
    )


def _waiting(
    waiting: WaitingRequest, why: RequestExplanation, position: int, visibility: Visibility
) -> replies.AllocationView:
    request, requester = waiting.request, waiting.requester
    return replies.AllocationView(
        id=waiting.id,
        tenant=request.tenant,
        queue=request.queue,
        user=requester.user,
        uid=requester.uid,
        command=list(waiting.command),
        mode=request.mode,
        policy=request.policy,
        priority=request.priority,
        gang=request.gang,
        state="pending",
        reason=why.reason,
        explanation=visibility.text(why.text),
        created_at=waiting.created_at,
        started_at=None,
        ended_at=None,
        pids=[requester.process.pid] if requester.process else [],
        slices=[],
        position=position,
    )
