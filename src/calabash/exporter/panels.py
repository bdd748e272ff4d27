"""Content of the dashboards: titles and queries over the catalogue's metrics, in no particular dashboard format.

A pool may be scraped more than once: by two exporters for availability, or by two jobs of one Prometheus. Its series
then differ in ``instance`` and ``job`` alone. Every query reduces these to one series with ``once``, before it adds or
divides.
"""

from __future__ import annotations

from dataclasses import dataclass

from calabash.exporter import catalogue as c
from calabash.exporter.catalogue import MetricSpec, Scope
from calabash.exporter.distinct_series import once


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A PromQL expression; ``legend`` is the name of its series, with labels in double braces: ``{{node}}``."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Panel of a dashboard.

    Args:
        title: title.
        queries: its series.
        unit: Grafana's name of the unit.
        shape: Grafana's type of panel: ``timeseries``, ``stat``, ``gauge`` or ``table``.
        width: width in columns; a dashboard has 24.
        text: description.
    """

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    shape: str = "timeseries"
    width: int = 8
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """Dashboard with its panels.

    Args:
        name: identifier.
        title: title.
        text: description.
        panels: panels from left to right and from top to bottom.
        variables: labels by which the user can filter, each with the metric from which Grafana reads the label's
            values.
    """

    name: str
    title: str
    text: str
    panels: tuple[Panel, ...]
    variables: tuple[tuple[str, str], ...] = ()


def _one(expression: str, legend: str = "") -> tuple[Query, ...]:
    return (Query(expression=expression, legend=legend),)


_NODE = 'node=~"$node"'
_DEVICE = "{{node}} {{device_index}}"
_SLICE = "{{tenant}} {{allocation}}"
_HELD = ("node", "allocation", "device_uuid", "tenant")
_TENANT = f'{_NODE}, tenant=~"$tenant"'


def _sum(labels: str, spec: MetricSpec, selector: str = _NODE) -> str:
    """Return the query of the sum of a metric, with one series for each value of ``labels``.

    When an allocation changes its queue, its slice has a series for both queues for some minutes; it is counted once.
    """
    by = _HELD if spec.scope is Scope.SLICE else ()
    return f"sum by ({labels}) ({once(spec, selector, by=by)})"


POOL = Dashboard(
    name="calabash-pool",
    title="Calabash: the pool",
    text="Allocated and used amounts, and waiting requests.",
    variables=(("node", "calabash_pool_info"),),
    panels=(
        Panel(
            title="Devices", shape="stat", width=4, queries=_one(f"count({once(c.DEVICE_INFO, _NODE, by=c.DEVICE)})")
        ),
        Panel(
            title="Not healthy",
            shape="stat",
            width=4,
            queries=_one(f"count({once(c.DEVICE_INFO, _NODE, by=c.DEVICE)}) - sum({once(c.DEVICE_HEALTHY, _NODE)})"),
        ),
        Panel(title="Slices held", shape="stat", width=4, queries=_one(f"sum({once(c.DEVICE_SLICES, _NODE)})")),
        Panel(
            title="Requests waiting",
            shape="stat",
            width=4,
            queries=_one(f"sum({once(c.WAITING, _NODE)}) or vector(0)"),
        ),
        Panel(
            title="Memory allocated",
            shape="gauge",
            unit="percentunit",
            width=4,
            queries=_one(f"sum({once(c.DEVICE_MEMORY_ALLOCATED, _NODE)}) / sum({once(c.DEVICE_MEMORY, _NODE)})"),
        ),
        Panel(
            title="Compute used",
            shape="gauge",
            unit="percentunit",
            width=4,
            queries=_one(f"avg({once(c.DEVICE_BUSY, _NODE)})"),
        ),
        Panel(
            title="Compute: allocated and used",
            unit="percentunit",
            width=12,
            queries=(
                Query(expression=f"avg({once(c.DEVICE_CORE_ALLOCATED, _NODE)})", legend="allocated"),
                Query(expression=f"avg({once(c.DEVICE_BUSY, _NODE)})", legend="used"),
            ),
        ),
        Panel(
            title="Memory: allocated and used",
            unit="bytes",
            width=12,
            queries=(
                Query(expression=f"sum({once(c.DEVICE_MEMORY, _NODE)})", legend="there is"),
                Query(expression=f"sum({once(c.DEVICE_MEMORY_ALLOCATED, _NODE)})", legend="allocated"),
                Query(expression=f"sum({once(c.DEVICE_MEMORY_USED, _NODE)})", legend="used"),
            ),
        ),
        Panel(
            title="Waiting, by reason",
            width=12,
            queries=_one(_sum("reason", c.WAITING) + " or vector(0)", "{{reason}}"),
        ),
        Panel(
            title="Allocations, by sharing mode",
            width=12,
            queries=_one(_sum("sharing_mode", c.HELD), "{{sharing_mode}}"),
        ),
    ),
)

DEVICES = Dashboard(
    name="calabash-devices",
    title="Calabash: devices",
    text="Each device: load, memory, temperature, power, health, unmanaged processes.",
    variables=(("node", "calabash_pool_info"),),
    panels=(
        Panel(
            title="Busy",
            unit="percentunit",
            width=12,
            queries=_one(once(c.DEVICE_BUSY, _NODE), _DEVICE),
        ),
        Panel(
            title="Memory used",
            unit="percentunit",
            width=12,
            queries=_one(f"{once(c.DEVICE_MEMORY_USED, _NODE)} / {once(c.DEVICE_MEMORY, _NODE)}", _DEVICE),
        ),
        Panel(
            title="Temperature",
            unit="celsius",
            queries=_one(once(c.DEVICE_TEMPERATURE, _NODE), _DEVICE),
        ),
        Panel(title="Power", unit="watt", queries=_one(once(c.DEVICE_POWER, _NODE), _DEVICE)),
        Panel(
            title="Memory of unmanaged processes",
            unit="bytes",
            queries=_one(once(c.DEVICE_STRANGERS_MEMORY, _NODE), _DEVICE),
        ),
        Panel(
            title="Health",
            shape="table",
            width=24,
            queries=_one(
                f"{once(c.DEVICE_HEALTH_INFO, _NODE)} * on (node, device_uuid) group_left (device_model)"
                f" {once(c.DEVICE_INFO, _NODE, by=('node', 'device_uuid', 'device_model'))}"
            ),
        ),
    ),
)

TENANTS = Dashboard(
    name="calabash-tenants",
    title="Calabash: tenants and queues",
    text="Guarantees, held and used amounts, waiting requests and spending of tenants and queues.",
    variables=(("node", "calabash_pool_info"), ("tenant", "calabash_tenant_guarantee_devices")),
    panels=(
        Panel(
            title="Guaranteed, held, limit",
            unit="none",
            width=12,
            queries=(
                Query(expression=_sum("tenant", c.TENANT_GUARANTEE, _TENANT), legend="{{tenant}} is guaranteed"),
                Query(expression=_sum("tenant", c.TENANT_ALLOCATED, _TENANT), legend="{{tenant}} holds"),
                Query(expression=_sum("tenant", c.TENANT_LIMIT, _TENANT), legend="{{tenant}} at most"),
            ),
            text="In devices.",
        ),
        Panel(
            title="Borrowed and waited for",
            unit="none",
            width=12,
            queries=(
                Query(expression=_sum("tenant", c.TENANT_BORROWED, _TENANT), legend="{{tenant}} borrows"),
                Query(expression=_sum("tenant", c.TENANT_PENDING, _TENANT), legend="{{tenant}} waits for"),
            ),
            text="In devices.",
        ),
        Panel(
            title="GPU time: allocated, used, idle",
            unit="none",
            width=12,
            queries=tuple(
                Query(
                    expression=f"sum by (tenant) ({once(spec, _TENANT, over='rate 5m')})",
                    legend=f"{{{{tenant}}}} {what}",
                )
                for spec, what in (
                    (c.TENANT_GPU_SECONDS, "is allocated"),
                    (c.TENANT_GPU_USED, "uses"),
                    (c.TENANT_GPU_IDLE, "has idle"),
                )
            ),
            text="In devices, on average over five minutes.",
        ),
        Panel(
            title="Budget and spending",
            unit="none",
            width=12,
            queries=(
                Query(
                    expression=_sum("tenant, currency", c.TENANT_BUDGET, _TENANT),
                    legend="{{tenant}}: budget in {{currency}}",
                ),
                Query(
                    expression=_sum("tenant, currency", c.TENANT_SPENT, _TENANT),
                    legend="{{tenant}}: spent in {{currency}}",
                ),
            ),
            text="This month, without tax.",
        ),
        Panel(
            title="Projects: held",
            unit="none",
            width=12,
            queries=_one(
                _sum("tenant, project", c.PROJECT_ALLOCATED, _TENANT),
                "{{tenant}} {{project}}",
            ),
            text="In devices.",
        ),
        Panel(
            title="Compute used, by tenant",
            unit="none",
            width=12,
            queries=_one(_sum("tenant", c.SLICE_CORE_USED, _TENANT), "{{tenant}}"),
            text="In devices.",
        ),
        Panel(
            title="Held without use",
            unit="none",
            width=12,
            queries=_one(
                _sum("tenant", c.SLICE_CORE_LIMIT, _TENANT) + " - " + _sum("tenant", c.SLICE_CORE_USED, _TENANT),
                "{{tenant}}",
            ),
            text="In devices: allocated less used compute.",
        ),
        Panel(
            title="Memory used of its limit",
            unit="percentunit",
            width=12,
            queries=_one(
                _sum("tenant, allocation", c.SLICE_MEMORY_USED, _TENANT)
                + " / "
                + _sum("tenant, allocation", c.SLICE_MEMORY_LIMIT, _TENANT),
                _SLICE,
            ),
        ),
        Panel(
            title="Launches held back",
            unit="percentunit",
            width=12,
            queries=_one(once(c.SLICE_THROTTLED, _TENANT, by=("tenant", "allocation"), over="rate 5m"), _SLICE),
            text="Part of the time in which launches were held back.",
        ),
        Panel(
            title="Queues: held and guaranteed",
            unit="none",
            width=12,
            queries=(
                Query(expression=_sum("queue", c.QUEUE_ALLOCATED), legend="{{queue}} holds"),
                Query(expression=_sum("queue", c.QUEUE_DESERVED), legend="{{queue}} is guaranteed"),
            ),
            text="In devices; each queue without its child queues.",
        ),
        Panel(
            title="Queues: waiting",
            unit="none",
            width=12,
            queries=_one(_sum("queue", c.QUEUE_PENDING), "{{queue}}"),
            text="In devices; each queue without its child queues.",
        ),
        Panel(
            title="Queues: longest wait",
            unit="s",
            width=12,
            queries=_one(once(c.QUEUE_LONGEST_WAIT, _NODE, by=("queue",)), "{{queue}}"),
            text="Age of the oldest request that waits in the queue itself.",
        ),
        Panel(
            title="Queues: waiting time of nine in ten",
            unit="s",
            width=12,
            queries=_one(
                f"histogram_quantile(0.9, sum by (queue, outcome, le) ({once(c.QUEUE_WAIT, _NODE, over='rate 1h')}))",
                "{{queue}} {{outcome}}",
            ),
            text="Of the requests that were answered within the last hour.",
        ),
    ),
)

BOARDS = (POOL, DEVICES, TENANTS)
