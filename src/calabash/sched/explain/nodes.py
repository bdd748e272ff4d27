"""Verdict of the nodes on a shape: for how many nodes which reason holds, and changes that would let the request fit.

Theory of operation. ``reasons`` returns for every node the first condition that fails there. Nodes are counted per condition,
and each cause gives the largest free amount of the missing resource on any of its nodes. Changes that would help are found by
relaxing one condition of the shape at a time: on the nodes where the relaxed shape fits, the largest free amount is the amount
that the request could have. All steps are vectorised over the nodes, and take a few milliseconds per shape for a hundred
thousand devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from calabash.model.errors import Reason
from calabash.model.messages import Message, ModelName, Names, Text, names
from calabash.model.units import format_mib
from calabash.sched.cluster.arrays import Cluster
from calabash.sched.cluster.columns import Bools, Ints, Rows
from calabash.sched.cluster.fit import CompiledShape
from calabash.sched.cluster.shape import WHOLE_MILLI, Shape
from calabash.sched.decisions import Cause, Explanation
from calabash.sched.explain.reasons import REASONS, reasons

# Reasons that go away when other requests end. The others remain until the cluster or the request is changed.
PASSING = frozenset(
    (Reason.NO_CORES, Reason.NO_MEMORY, Reason.NO_CPU, Reason.NO_HOST_MEMORY, Reason.NO_CAPACITY, Reason.MODE_CONFLICT,
     Reason.TOPOLOGY)
)  # fmt: skip
_TEXT_OF_REASON = {
    Reason.SELECTOR_MISMATCH: "did not match the selected devices or labels",
    Reason.TAINTED: "had taints that are not tolerated",
    Reason.NO_DEVICES: "had no devices",
    Reason.TOO_LARGE: "too small for the request",
    Reason.UNHEALTHY: "unhealthy",
    Reason.CORDONED: "cordoned",
    Reason.MODE_CONFLICT: "devices in another sharing mode",
    Reason.NO_CPU: "insufficient CPU",
    Reason.NO_HOST_MEMORY: "insufficient host memory",
    Reason.NO_CORES: "insufficient GPU fraction",
    Reason.NO_CAPACITY: "insufficient free GPUs",
    Reason.NO_MEMORY: "insufficient GPU memory",
    Reason.TOPOLOGY: "devices not in one island",
    Reason.RESERVED: "reserved",
}

# Templates of causes about an amount of the shape.
_TEMPLATE_OF_AMOUNT = {
    Reason.NO_CORES: "largest free fraction {largest}, asked {asked}",
    Reason.NO_MEMORY: "largest free device memory {largest}, asked {asked}",
    Reason.NO_CPU: "most free CPU {largest}, asked {asked}",
    Reason.NO_HOST_MEMORY: "most free host memory {largest}, asked {asked}",
}

# Codes that callers compare.
OTHER_MODEL = "would fit on another device model{models}"
MODELS_DIFFER = "have {there}, asked {asked}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """Number of nodes on which one shape fits, and the reasons why it does not fit on the others.

    Args:
        nodes: number of nodes. fitting: number of nodes where the shape fits.
        causes: causes for the other nodes, most nodes first.
    """

    nodes: int
    fitting: int
    causes: tuple[Cause, ...]

    @property
    def summary(self) -> str:
        """Return a line in the form of kube-scheduler, such as "0/3 nodes are available: 2 insufficient CPU, 1 cordoned"."""
        parts = ", ".join(f"{c.nodes} {_TEXT_OF_REASON.get(c.reason, c.reason)}" for c in self.causes)
        return f"{self.fitting}/{self.nodes} nodes are available" + (f": {parts}" if parts else "")

    @property
    def dominant(self) -> Cause | None:
        """Return the cause that concerns the most nodes; None without causes.

        Causes that go away by waiting are preferred, if there are any.
        """
        passing = [c for c in self.causes if c.reason in PASSING]
        return max(passing or self.causes, key=lambda c: c.nodes, default=None)


def judge(compiled: CompiledShape) -> NodeVerdict:
    """Return the verdict of all nodes on a shape; removed nodes are not counted."""
    cluster = compiled.cluster
    codes = reasons(compiled)
    codes[list(cluster.removed)] = -1
    present = np.unique(codes)
    causes: list[Cause] = []
    for code in present[present > 0].tolist():
        rows = np.flatnonzero(codes == code)
        reason = REASONS[code - 1]
        if reason is Reason.UNHEALTHY:
            cordoned = rows[~cluster.schedulable[rows]]
            if len(cordoned):
                causes.append(Cause(reason=Reason.CORDONED, nodes=len(cordoned), text="cordoned"))
                rows = rows[cluster.schedulable[rows]]
            if not len(rows):
                continue
        causes.append(_cause(compiled, reason, rows))
    causes.sort(key=lambda c: (-c.nodes, c.reason))
    nodes = cluster.node_count - len(cluster.removed)
    return NodeVerdict(nodes=nodes, fitting=int((codes == 0).sum()), causes=tuple(causes))


def _cause(compiled: CompiledShape, reason: Reason, rows: Rows) -> Cause:
    """Return the cause for the nodes that refuse a shape for one reason."""
    shape, cluster = compiled.shape, compiled.cluster
    if reason is Reason.NO_CAPACITY:  # devices are full by the number of their slices
        return _no_slices(compiled, rows)
    if reason is Reason.NO_CORES and (shape.whole or shape.gpu_count > 1 or shape.mig_profile):
        reason = Reason.NO_CAPACITY
    if reason is Reason.NO_MEMORY and shape.whole:
        reason = Reason.NO_CAPACITY
    asked, largest, template = _amounts(compiled, reason, rows)
    text = Message(template, largest=_show(reason, largest), asked=_show(reason, asked), profile=shape.mig_profile)
    if reason is Reason.SELECTOR_MISMATCH and shape.models:
        there = sorted({m for m, code in cluster.models.items() if m and (cluster.gpu_model[rows] == code).any()})
        asked_models = Names(tuple(map(ModelName, sorted(shape.models))), " or ")
        text = Message(MODELS_DIFFER, there=names(ModelName, there) if there else "none", asked=asked_models)
    return Cause(reason=reason, nodes=len(rows), text=text, asked=asked, largest=largest)


def _no_slices(compiled: CompiledShape, rows: Rows) -> Cause:
    """Return the cause for nodes (``rows``) whose devices have too few slices left."""
    shape, cluster = compiled.shape, compiled.cluster
    free = shape.gpu_slices_max * cluster.gpu_services[rows].astype(np.int64) - cluster.gpu_slices[rows]
    largest = _largest_on_devices(compiled, free, _eligible(compiled, rows) & compiled.mode_allows(rows))
    text = Message(
        "most free slices of a device {largest:g}, asked {asked} of at most {most}",
        largest=largest,
        asked=shape.gpu_slices,
        most=shape.gpu_slices_max,
    )
    return Cause(reason=Reason.NO_CAPACITY, nodes=len(rows), text=text, asked=float(shape.gpu_slices), largest=largest)


def _amounts(compiled: CompiledShape, reason: Reason, rows: Rows) -> tuple[float, float, str]:
    """Return (requested amount, largest free amount on any of the rows, template of the text)."""
    shape, cluster = compiled.shape, compiled.cluster
    if reason in _TEMPLATE_OF_AMOUNT:
        return _asked(shape, reason), _largest_free(compiled, reason, rows), _TEMPLATE_OF_AMOUNT[reason]
    match reason:
        case Reason.NO_CAPACITY:
            what = "most devices with room for {profile}" if shape.mig_profile else "most free devices"
            return shape.gpu_count, _most_fitting_devices(compiled, rows), what + " {largest}, asked {asked}"
        case Reason.TOO_LARGE:
            return (
                shape.gpu_count,
                _largest(cluster.gpu_count[rows]),
                "largest node has {largest} devices, asked {asked}",
            )
    return 0.0, 0.0, _TEXT_OF_REASON.get(reason, reason.value)


def _asked(shape: Shape, reason: Reason) -> float:
    """Return the requested amount of the resource that is short: device compute, device memory, CPU or host memory.

    Args:
        reason: a reason in ``_TEMPLATE_OF_AMOUNT``; all of these name a resource that is short.
    """
    match reason:
        case Reason.NO_CORES:
            return shape.gpu_milli
        case Reason.NO_MEMORY:
            return shape.gpu_memory_mib
        case Reason.NO_CPU:
            return shape.cpu_milli
    return shape.memory_mib


def _largest_free(compiled: CompiledShape, reason: Reason, rows: Rows) -> float:
    """Return the largest amount that one of the nodes in ``rows`` has free of the resource that is short.

    Args:
        reason: a reason in ``_TEMPLATE_OF_AMOUNT``; all of these name a resource that is short.
    """
    cluster = compiled.cluster
    match reason:
        case Reason.NO_CORES:
            return _largest_on_devices(compiled, cluster.gpu_free_milli[rows], _usable(compiled, rows))
        case Reason.NO_MEMORY:
            return _largest_free_memory(compiled, rows)
        case Reason.NO_CPU:
            return _largest(cluster.cpu_free_milli[rows])
    return _largest(cluster.memory_free_mib[rows])


def restated(verdict: NodeVerdict, shape: Shape) -> NodeVerdict:
    """Return the verdict on a shape, made from the verdict on a similar shape.

    The two shapes differ in requested amounts only, and each node refuses both for the same reason or neither. So only
    the requested amounts of the causes are replaced.
    """
    causes = tuple(_restated(cause, shape) for cause in verdict.causes)
    return NodeVerdict(nodes=verdict.nodes, fitting=verdict.fitting, causes=causes)


def _restated(cause: Cause, shape: Shape) -> Cause:
    if cause.reason not in _TEMPLATE_OF_AMOUNT or isinstance(cause.text, str):
        return cause
    asked = _asked(shape, cause.reason)
    return replace(cause, text=cause.text.replaced(asked=_show(cause.reason, asked)), asked=asked)


def _largest(values: Ints) -> float:
    return float(values.max(initial=0))


def _eligible(compiled: CompiledShape, rows: Rows) -> Bools:
    """Return a mask of the devices that are healthy, and of the right model and card memory.

    Free amounts are not considered.
    """
    cluster = compiled.cluster
    mask: Bools = np.arange(cluster.width) < cluster.gpu_count[rows][:, None]
    if compiled.device_static is not None:
        mask &= compiled.device_static[rows]
    return mask & cluster.gpu_healthy[rows]


def _most_fitting_devices(compiled: CompiledShape, rows: Rows) -> float:
    return float(compiled.devices(rows).sum(axis=1).max(initial=0))


def _usable(compiled: CompiledShape, rows: Rows) -> Bools:
    """Return a mask of the eligible devices (``_eligible``) whose sharing mode and free slices admit the shape."""
    usable = _eligible(compiled, rows) & compiled.mode_allows(rows)
    return usable & compiled.slices_allow(rows) if compiled.shape.gpu_slices_max else usable


def _largest_on_devices(compiled: CompiledShape, free: Ints, usable: Bools) -> float:
    """Return the largest amount for which some node has ``gpu_count`` devices with at least this amount free.

    Args:
        free: free amount of each device, by node and device.
        usable: mask of the devices that count.
    """
    count = max(compiled.shape.gpu_count, 1)
    most = np.sort(np.where(usable, free, 0), axis=1)[:, ::-1]
    return _largest(most[:, count - 1]) if most.shape[1] >= count else 0.0


def _largest_free_memory(compiled: CompiledShape, rows: Rows) -> float:
    """Return the largest free device memory on usable devices that have enough free compute."""
    cluster = compiled.cluster
    enough = cluster.gpu_free_milli[rows] >= compiled.shape.gpu_milli
    return _largest_on_devices(compiled, cluster.gpu_free_mib[rows], _usable(compiled, rows) & enough)


def _show(reason: Reason, value: float) -> str:
    """Return an amount as text in the unit of a reason."""
    if reason is Reason.NO_CORES:
        return f"{value / WHOLE_MILLI:g}"
    if reason is Reason.NO_CPU:
        return f"{value / 1000:g}"
    if reason in (Reason.NO_MEMORY, Reason.NO_HOST_MEMORY):
        return format_mib(int(value))
    return f"{value:g}"


# ---- changes that would help --------------------------------------------------------------------------------------


def changes_for(cluster: Cluster, shape: Shape) -> tuple[Text, ...]:
    """Return changes of the request, each of which alone would let it fit now.

    An example is "would fit if memory <= 12GiB".
    """
    found: list[Text] = []
    for relax in (_less_memory, _less_compute, _fewer_devices, _less_cpu, _less_host_memory, _other_conditions):
        found.extend(relax(cluster, shape))
    return tuple(found)


def _fitting_rows(cluster: Cluster, shape: Shape) -> tuple[CompiledShape, Rows]:
    """Return the compiled shape and the rows where it fits now."""
    compiled = CompiledShape(cluster, shape)
    return compiled, np.flatnonzero(compiled.fitting())


def _less_memory(cluster: Cluster, shape: Shape) -> list[Text]:
    if not shape.gpu_memory_mib or shape.gpu_count != 1:
        return []
    milli = shape.gpu_milli
    compiled, rows = _fitting_rows(cluster, replace(shape, gpu_memory_mib=1))
    if not len(rows):
        return []
    fits = compiled.devices(rows)
    most = int(np.where(fits, cluster.gpu_free_mib[rows], 0).max())
    return (
        [Message("would fit if memory <= {most}", most=format_mib(most))]
        if 0 < most < shape.gpu_memory_mib or not milli
        else []
    )


def _less_compute(cluster: Cluster, shape: Shape) -> list[Text]:
    if shape.gpu_milli <= 1 or shape.gpu_count != 1 or (shape.whole and cluster.gpu_tracked):
        return []
    compiled, rows = _fitting_rows(cluster, replace(shape, gpu_milli=1))
    if not len(rows):
        return []
    fits = compiled.devices(rows)
    most = int(np.where(fits, cluster.gpu_free_milli[rows], 0).max())
    return (
        [Message("would fit if the fraction <= {most:g}", most=most / WHOLE_MILLI)]
        if 0 < most < shape.gpu_milli
        else []
    )


def _fewer_devices(cluster: Cluster, shape: Shape) -> list[Text]:
    if shape.gpu_count < 2:
        return []
    compiled, rows = _fitting_rows(cluster, replace(shape, gpu_count=1))
    if not len(rows):
        return []
    most = int(compiled.devices(rows).sum(axis=1).max())
    if shape.topology_required:
        while most > 1 and not len(_fitting_rows(cluster, replace(shape, gpu_count=most))[1]):
            most -= 1
    change = Message("would fit with {most} devices instead of {asked}", most=most, asked=shape.gpu_count)
    return [change] if 0 < most < shape.gpu_count else []


def _less_cpu(cluster: Cluster, shape: Shape) -> list[Text]:
    if not shape.cpu_milli:
        return []
    _, rows = _fitting_rows(cluster, replace(shape, cpu_milli=0))
    most = int(cluster.cpu_free_milli[rows].max(initial=0))
    return [Message("would fit if CPU <= {most:g}", most=most / 1000)] if 0 < most < shape.cpu_milli else []


def _less_host_memory(cluster: Cluster, shape: Shape) -> list[Text]:
    if not shape.memory_mib:
        return []
    _, rows = _fitting_rows(cluster, replace(shape, memory_mib=0))
    most = int(cluster.memory_free_mib[rows].max(initial=0))
    change = Message("would fit if host memory <= {most}", most=format_mib(most))
    return [change] if 0 < most < shape.memory_mib else []


def _other_conditions(cluster: Cluster, shape: Shape) -> list[Text]:
    """Return changes of the request that would let it fit, each of which leaves out one condition.

    The conditions are those on models, card memory, labels, taints and topology. Conditions on amounts are not
    considered here.
    """
    wanted = ", ".join(shape.selector)
    tries: list[tuple[bool, Shape, str]] = [
        (bool(shape.models), replace(shape, models=frozenset()), OTHER_MODEL),
        (
            bool(shape.card_memory_mib_min or shape.card_memory_mib_max),
            replace(shape, card_memory_mib_min=0, card_memory_mib_max=0),
            "would fit on a card outside the asked size range{models}",
        ),
        (bool(shape.selector), replace(shape, selector=()), "would fit without the selector {selector}{models}"),
        (any(cluster.taints), replace(shape, tolerations=frozenset(("*",))), "would fit if it tolerated the taints{models}"),
        (shape.topology_required, replace(shape, topology_required=False), "would fit across NVLink or NUMA islands{models}"),
    ]  # fmt: skip
    found: list[Text] = []
    for applies, relaxed, template in tries:
        if applies and relaxed != shape:
            _, rows = _fitting_rows(cluster, relaxed)
            if len(rows):
                models = _models(cluster, relaxed, rows, but=shape.models) if shape.models else ""
                found.append(Message(template, models=models, selector=wanted))
    return found


def _models(cluster: Cluster, shape: Shape, rows: Rows, *, but: frozenset[str]) -> Text:
    """Return text like `` (T4, V100)``: the models of the devices that would serve the shape on these nodes.

    Args:
        but: models to leave out.
    """
    fits = CompiledShape(cluster, shape).devices(rows) if shape.gpu_count else None
    codes = set(np.unique(cluster.gpu_model[rows][fits]).tolist()) if fits is not None else set()
    found = sorted(name for name, code in cluster.models.items() if code in codes and name and name not in but)
    return Message(" ({models})", models=names(ModelName, found)) if found else ""


def explanation(
    reason: Reason, summary: Text, verdict: NodeVerdict | None = None, changes: tuple[Text, ...] = ()
) -> Explanation:
    """Return an explanation with the causes of a verdict."""
    return Explanation(reason=reason, summary=summary, causes=verdict.causes if verdict else (), changes=changes)
