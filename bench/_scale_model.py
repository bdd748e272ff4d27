"""Events in a cluster of many nodes, their rates and their needs: the sums of ``docs/concepts/scale.md``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench._scale_fit import Line
from bench._scale_objects import GPUS, gpu_node_status, json_bytes, resource_slices

PARTS = (4, 16)  # pools that share a cluster
SIZES = (1_000, 10_000, 50_000)
USE_EVERY_S = 15.0  # the default of agents
LEASE_EVERY_S = 10.0  # a kubelet's
NODE_STATUS_EVERY_S = 300.0  # a kubelet's, where nothing changes
POD_LIFE_S = 4 * 3600.0
POD_EVENTS = 6  # created, planned, bound, running, ended, deleted
WATCHERS = 4  # of GpuNodes: two planners, the server, metrics
CORES = 8.0  # of API servers, for the product's load; as fast as those of the measurements
ETCD_BYTES = 8 * 2**30  # the most that etcd's makers advise
PLANNER_MIB = 1024.0  # the chart's limit
WRITES_PER_S = 1000.0  # of one etcd on one disk, taken as safe
START_UNITS = 60_000.0  # CPU units of a planner's start
WATCH_BYTES_PER_S = 100e6  # of one API server's network, for the product's load


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Measured cost of one operation each: ``_ms`` is CPU time of an API server unless named otherwise; lists are wall time."""

    write_ms: float
    event_ms: float
    pod_ms: float
    planner_event_ms: float
    listed_us: float
    pod_listed_us: float
    etcd_bytes: Line
    planner_mib: Line
    planner_start_s: Line
    passed_over_us: float
    cpu_unit_s: float  # of `bench._reference`, on the machine of these measurements


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Need of a cluster, and the amount that is available."""

    what: str
    value: float
    unit: str
    how: str = ""
    at_most: float | None = None


def demands(nodes: int, costs: Costs, *, use_every_s: float = USE_EVERY_S) -> Iterator[Demand]:
    """Yield the needs of ``nodes`` nodes with a pod on each of their cards."""
    pods = nodes * GPUS
    event_bytes = 630 + json_bytes(gpu_node_status(1))
    told = nodes / use_every_s
    starts = pods / POD_LIFE_S
    kubelets = nodes / LEASE_EVERY_S + nodes / NODE_STATUS_EVERY_S
    slices = resource_slices(1, mig=True)
    yield Demand(
        what="objects", value=nodes * (3 + GPUS + len(slices)), unit="objects", how="Node, Lease, GpuNode, pods"
    )
    slice_bytes = nodes * json_bytes(*slices)
    yield Demand(what="ResourceSlices with places of MIG", value=slice_bytes / 1e6, unit="MB", how="as JSON")
    yield Demand(what="etcd's file", value=costs.etcd_bytes.at(nodes) / 1e9, unit="GB", at_most=ETCD_BYTES / 1e9)
    yield Demand(what="writes of kubelets", value=kubelets, unit="1/s", how="Lease each 10 s, Node each 5 min")
    yield Demand(what="pods started and ended", value=starts, unit="1/s", how=f"each runs {POD_LIFE_S / 3600:.0f} h")
    writes = told + kubelets + starts * POD_EVENTS
    how = f"use told every {use_every_s:.0f} s by all"
    yield Demand(what="all writes, at most", value=writes, unit="1/s", how=how, at_most=WRITES_PER_S)
    watched = told * WATCHERS * event_bytes
    yield Demand(
        what="GpuNodes to watchers", value=watched / 1e6, unit="MB/s", how=how, at_most=WATCH_BYTES_PER_S / 1e6
    )
    cores = (told * (costs.write_ms + WATCHERS * costs.event_ms) + starts * costs.pod_ms) / 1000
    yield Demand(what="CPU of API servers for what is ours", value=cores, unit="cores", how=how, at_most=CORES)
    never = starts * costs.pod_ms / 1000
    yield Demand(what="the same, where use is not told", value=never, unit="cores", at_most=CORES)
    planner = told * costs.planner_event_ms / 1000
    yield Demand(what="CPU of a planner for what it is told", value=planner, unit="cores", how=how, at_most=0.5)
    listed = (nodes * 2 * costs.listed_us + pods * costs.pod_listed_us) / 1e6
    yield Demand(what="lists at a planner's start", value=listed, unit="s", how="one after the other")
    yield _start("planner's CPU until it decides", costs.planner_start_s.at(nodes), costs)
    for parts in PARTS if nodes > SIZES[0] else ():
        yield from _divided(nodes, parts, costs)
    memory = costs.planner_mib.at(nodes)
    yield Demand(what="planner's memory", value=memory, unit="MiB", at_most=PLANNER_MIB)
    yield Demand(what="planners that each have at most that", value=-(-memory // PLANNER_MIB), unit="")


def _start(what: str, cpu_s: float, costs: Costs) -> Demand:
    """Return a planner's start in CPU units, so that its limit does not depend on the machine of the measurements."""
    units = cpu_s / costs.cpu_unit_s
    return Demand(what=what, value=units, unit="units", how=f"{cpu_s:.1f} s on this machine", at_most=START_UNITS)


def _divided(nodes: int, parts: int, costs: Costs) -> Iterator[Demand]:
    """Yield the needs of each of several planners that share the nodes.

    The API server cannot select pods by the pool of their node: every planner lists and receives all bound pods and keeps those
    of its own nodes.
    """
    pods, own = nodes * GPUS, nodes / parts
    each = f"each of {parts} planners"
    memory = costs.planner_mib.at(own)
    yield Demand(what=f"memory of {each}", value=memory, unit="MiB", at_most=PLANNER_MIB)
    cpu = costs.planner_start_s.at(own) + pods * (1 - 1 / parts) * costs.passed_over_us / 1e6
    yield _start(f"CPU of {each} until it decides", cpu, costs)
    listed = (own * 2 * costs.listed_us + pods * costs.pod_listed_us) / 1e6
    yield Demand(what=f"lists at the start of {each}", value=listed, unit="s", how="one after the other")
    labels = own * costs.write_ms / 1000
    how = "of API servers, once, when the cluster is divided"
    yield Demand(what=f"CPU to label the nodes of {each}", value=labels, unit="s", how=how)
