"""Writer of scenario files from a scheduler's snapshot, so that the state of a real cluster can be replayed.

Characters that scenario names cannot contain are replaced by dashes; request IDs have the form ``queue/name``. Equal nodes
share one statement. The file has all state on which placement and shares depend, except the decayed past usage of the queues.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from calabash.model.mig import MigGeometry
from calabash.scenario.clusters import CARD_MEMORY_MIB, OPTION_READERS
from calabash.scenario.mig import geometry_lines, places_text, stands_line
from calabash.scenario.topology import topology_text
from calabash.sched.amounts import ZERO, Amount
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.cluster.spec import GpuSpec, NodeSpec
from calabash.sched.decisions import Request, Running
from calabash.sched.queues.spec import UNLIMITED, QueueSpec
from calabash.sched.snapshot import Snapshot

_UNUSABLE = re.compile(r"[^A-Za-z0-9_.\-]")


def dump_scenario(snapshot: Snapshot, *, rule: str) -> str:
    """Return a scenario file whose first cycle makes the same decisions as the next cycle of the scheduler.

    The file expects ``nothing``; replace that line by the expected decisions.
    """
    lines = [f"rule   {rule}"]
    lines.extend(_options(snapshot))
    cut = dict.fromkeys(gpu.geometry for node in snapshot.nodes for gpu in node.gpus if gpu.geometry is not None)
    geometries = {geometry: f"g{number}" for number, geometry in enumerate(cut, 1)}
    lines.extend(geometry_lines(geometries))
    if snapshot.levels:
        lines.append("levels " + " ".join(map(_name, snapshot.levels)))
    lines.extend(_nodes(snapshot.nodes, geometries))
    if snapshot.queues:
        lines.append("queues " + " | ".join(_queue(spec) for spec in snapshot.queues))
    lines.extend(stands_line(_name(node), device, instances) for node, device, instances in snapshot.standing)
    lines.extend(_has(running, snapshot.now_s) for running in snapshot.running)
    lines.extend(f"cordon {_name(name)}" for name in snapshot.cordoned)
    lines.extend(_requests(request, snapshot.now_s) for request in snapshot.waiting)
    lines.append("then   nothing  # replace by the expected decisions")
    return "\n".join(lines) + "\n"


def _name(text: str) -> str:
    return _UNUSABLE.sub("-", text).lstrip("-._") or "x"


def _size(mib: int) -> str:
    return f"{mib}MiB"


def _options(snapshot: Snapshot) -> Iterable[str]:
    words = []
    for word, (field, _) in OPTION_READERS.items():
        value = getattr(snapshot.options, field)
        if value == getattr(type(snapshot.options)(), field):
            continue
        if isinstance(value, bool):
            words.append(f"{word}={'on' if value else 'off'}")
        elif field == "defragment_cost_max_milli":
            words.append(f"{word}={value / WHOLE_MILLI:g}")
        else:
            words.append(f"{word}={value}")
    return [f"options {' '.join(words)}"] if words else []


def _nodes(nodes: Iterable[NodeSpec], geometries: Mapping[MigGeometry, str]) -> list[str]:
    kinds: dict[str, list[str]] = {}
    for node in nodes:
        kinds.setdefault(_node_kind(node, geometries), []).append(_name(node.name))
    return [f"nodes  {' '.join(names)}: {kind}" for kind, names in kinds.items()]


def _node_kind(node: NodeSpec, geometries: Mapping[MigGeometry, str]) -> str:
    cards: list[tuple[str, int]] = []
    for gpu in node.gpus:
        card = _card(gpu, geometries)
        if cards and cards[-1][0] == card:
            cards[-1] = (card, cards[-1][1] + 1)
        else:
            cards.append((card, 1))
    parts = [f"{count} x {card}" for card, count in cards]
    modes = {gpu.mode for gpu in node.gpus if gpu.mode}
    if any(gpu.island >= 0 for gpu in node.gpus):
        parts[-1] += " nvlink"
    if "mig" in modes:
        parts[-1] += " mig"
    parts.append(f"{node.cpu_milli / 1000:g} cpu")
    parts.append(f"{_size(node.memory_mib)} memory")
    parts.extend(f"label {key}={value}" for key, value in node.labels.items())
    parts.extend(f"taint {taint}" for taint in node.taints)
    if node.domains:
        parts.append("topology " + "/".join(map(_name, node.domains)))
    parts.extend(f"mode {mode}" for mode in modes if mode != "mig")
    return ", ".join(parts)


def _card(gpu: GpuSpec, geometries: Mapping[MigGeometry, str]) -> str:
    model = _name(gpu.model or "card")
    size = _size(gpu.memory_mib) if gpu.memory_mib else "0"
    sized = model if CARD_MEMORY_MIB.get(model) == gpu.memory_mib else f"{model}@{size}"
    if gpu.geometry is not None:
        sized += f" cut {geometries[gpu.geometry]}"
    return f"{sized} is {_name(gpu.card)}" if gpu.card else sized


def _queue(spec: QueueSpec) -> str:
    words = [_name(spec.name)]
    if spec.parent:
        words.append(f"parent={_name(spec.parent)}")
    words.extend(_amounts("deserved", spec.deserved, ZERO))
    words.extend(_amounts("limit", spec.limit, UNLIMITED))
    if spec.over_quota_weight != 1:
        words.append(f"weight={spec.over_quota_weight:g}")
    return " ".join(words)


def _amounts(word: str, amount: Amount, default: Amount) -> list[str]:
    words = []
    if amount.gpu_milli != default.gpu_milli:
        words.append(f"{word}={amount.gpu_milli / 1000:g}")
    if amount.cpu_milli != default.cpu_milli:
        words.append(f"{word}_cpu={amount.cpu_milli / 1000:g}")
    if amount.host_memory_mib != default.host_memory_mib:
        words.append(f"{word}_memory={_size(amount.host_memory_mib)}")
    return words


def _has(running: Running, now_s: float) -> str:
    placed = running.placement
    places = [places_text(p) for p in placed.mig_places] or [""] * len(placed.devices)
    named = [f"{device}{place}" for device, place in zip(placed.devices, places, strict=True)]
    devices = ":" + "+".join(named) if named else ""
    ago = f"started {max(0.0, now_s - running.started_at_s):g}s ago, on {_name(running.node)}{devices}"
    return f"has    {_request(running.request)}, {ago}"


def _requests(request: Request, now_s: float) -> str:
    return f"asks   {_request(request)}, submitted {max(0.0, now_s - request.submitted_at_s):g}s ago"


def _request(request: Request) -> str:
    identity = request.id.partition("/")[2] if request.id.startswith(request.queue + "/") else request.id
    parts = [f"{_name(request.queue)}/{_name(identity)}: {_amount(request.shape)}", *_clauses(request.shape)]
    if request.gang:
        parts.append(f"gang named {_name(request.gang)} min {request.min_member}")
    if request.topology is not None:
        parts.append(topology_text(request.topology, _name))
    if request.rank is not None:
        parts.append(f"rank {request.rank}")
    if request.priority:
        parts.append(f"priority {request.priority}")
    if request.run_time_s is not None:
        parts.append(f"runs {request.run_time_s:g}s")
    if request.tenant:
        parts.append(f"tenant {_name(request.tenant)}")
    if request.owner:
        parts.append(f"owner {_name(request.owner)}")
    if not request.movable:
        parts.append("pinned")
    if request.guarded:
        parts.append("guarded")
    if not request.evictable:
        parts.append("unevictable")
    return ", ".join(parts)


def _amount(shape: Shape) -> str:
    words = []
    if shape.mig_profile:
        words.append(shape.mig_profile)
    elif shape.gpu_milli == WHOLE_MILLI:
        words.append(f"{shape.gpu_count} gpu")
    elif shape.gpu_milli:
        words.append(f"{shape.gpu_milli / WHOLE_MILLI:g} gpu")
    if shape.gpu_memory_mib:
        words.append(_size(shape.gpu_memory_mib))
    if shape.cpu_milli or not words:
        words.append(f"{shape.cpu_milli / 1000:g} cpu")
    if shape.models:
        words += ["of", "|".join(sorted(_name(m) for m in shape.models))]
    return " ".join(words)


def _clauses(shape: Shape) -> list[str]:
    parts = []
    if shape.gpu_count > 1 and shape.gpu_milli != WHOLE_MILLI:
        parts.append(f"devices {shape.gpu_count}")
    if shape.gpu_slices_max:
        parts.append(f"slices {shape.gpu_slices} of {shape.gpu_slices_max}")
    if shape.memory_mib:
        parts.append(f"memory {_size(shape.memory_mib)}")
    parts.extend(f"select {expression}" for expression in shape.selector)
    parts.extend(f"tolerates {taint}" for taint in sorted(shape.tolerations))
    if shape.card_memory_mib_min or shape.card_memory_mib_max:
        low = _size(shape.card_memory_mib_min) if shape.card_memory_mib_min else ""
        high = _size(shape.card_memory_mib_max) if shape.card_memory_mib_max else ""
        parts.append(f"card {low}..{high}")
    if shape.topology:
        parts.append(str(shape.topology) + (" required" if shape.topology_required else ""))
    if shape.mode:
        parts.append(f"mode {shape.mode}")
    return parts
