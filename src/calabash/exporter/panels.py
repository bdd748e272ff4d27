"""What the dashboards show: titles and queries over the catalogue's metrics, without a word of any dashboard's format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL expression; ``legend`` names its series by their labels in double braces."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. ``unit`` is Grafana's name of it; ``shape`` its kind of panel; ``width`` of 24."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    shape: str = "timeseries"
    width: int = 8
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard: ``variables`` are labels by which it can be narrowed, each with the metric that has its values."""

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
_TENANT = f'{_NODE}, tenant=~"$tenant", project=""'

POOL = Dashboard(
    name="calabash-pool",
    title="Calabash: the pool",
    text="What is promised, what is used, and what waits for it.",
    variables=(("node", "calabash_pool_info"),),
    panels=(
        Panel(title="Devices", shape="stat", width=4, queries=_one(f"count(calabash_device_info{{{_NODE}}})")),
        Panel(
            title="Not healthy",
            shape="stat",
            width=4,
            queries=_one(f"count(calabash_device_info{{{_NODE}}}) - sum(calabash_device_healthy{{{_NODE}}})"),
        ),
        Panel(title="Slices held", shape="stat", width=4, queries=_one(f"sum(calabash_device_slices{{{_NODE}}})")),
        Panel(
            title="Requests waiting",
            shape="stat",
            width=4,
            queries=_one(f"sum(calabash_requests_waiting{{{_NODE}}}) or vector(0)"),
        ),
        Panel(
            title="Memory allocated",
            shape="gauge",
            unit="percentunit",
            width=4,
            queries=_one(
                f"sum(calabash_device_memory_allocated_bytes{{{_NODE}}}) / sum(calabash_device_memory_bytes{{{_NODE}}})"
            ),
        ),
        Panel(
            title="Compute used",
            shape="gauge",
            unit="percentunit",
            width=4,
            queries=_one(f"avg(calabash_device_busy_ratio{{{_NODE}}})"),
        ),
        Panel(
            title="Compute: allocated and used",
            unit="percentunit",
            width=12,
            queries=(
                Query(expression=f"avg(calabash_device_core_allocated_ratio{{{_NODE}}})", legend="allocated"),
                Query(expression=f"avg(calabash_device_busy_ratio{{{_NODE}}})", legend="used"),
            ),
        ),
        Panel(
            title="Memory: allocated and used",
            unit="bytes",
            width=12,
            queries=(
                Query(expression=f"sum(calabash_device_memory_bytes{{{_NODE}}})", legend="there is"),
                Query(expression=f"sum(calabash_device_memory_allocated_bytes{{{_NODE}}})", legend="allocated"),
                Query(expression=f"sum(calabash_device_memory_used_bytes{{{_NODE}}})", legend="used"),
            ),
        ),
        Panel(
            title="Waiting, by reason",
            width=12,
            queries=_one(f"sum by (reason) (calabash_requests_waiting{{{_NODE}}}) or vector(0)", "{{reason}}"),
        ),
        Panel(
            title="Allocations, by sharing mode",
            width=12,
            queries=_one(f"sum by (sharing_mode) (calabash_allocations{{{_NODE}}})", "{{sharing_mode}}"),
        ),
    ),
)

DEVICES = Dashboard(
    name="calabash-devices",
    title="Calabash: devices",
    text="Each device: load, memory, temperature, power, health, strangers.",
    variables=(("node", "calabash_pool_info"),),
    panels=(
        Panel(
            title="Busy",
            unit="percentunit",
            width=12,
            queries=_one(f"calabash_device_busy_ratio{{{_NODE}}}", _DEVICE),
        ),
        Panel(
            title="Memory used",
            unit="percentunit",
            width=12,
            queries=_one(
                f"calabash_device_memory_used_bytes{{{_NODE}}} / calabash_device_memory_bytes{{{_NODE}}}", _DEVICE
            ),
        ),
        Panel(
            title="Temperature",
            unit="celsius",
            queries=_one(f"calabash_device_temperature_celsius{{{_NODE}}}", _DEVICE),
        ),
        Panel(title="Power", unit="watt", queries=_one(f"calabash_device_power_watts{{{_NODE}}}", _DEVICE)),
        Panel(
            title="Memory of strangers",
            unit="bytes",
            queries=_one(f"calabash_device_strangers_memory_bytes{{{_NODE}}}", _DEVICE),
        ),
        Panel(
            title="Health",
            shape="table",
            width=24,
            queries=_one(
                f"calabash_device_health_info{{{_NODE}}} * on (node, device_uuid) group_left (device_model)"
                f" calabash_device_info{{{_NODE}}}"
            ),
        ),
    ),
)

TENANTS = Dashboard(
    name="calabash-tenants",
    title="Calabash: tenants and queues",
    text="What each tenant and each queue is promised, holds, uses, waits for and spends.",
    variables=(("node", "calabash_pool_info"), ("tenant", "calabash_tenant_guarantee_devices")),
    panels=(
        Panel(
            title="Guaranteed, held, limit",
            unit="none",
            width=12,
            queries=(
                Query(expression=f"calabash_tenant_guarantee_devices{{{_TENANT}}}", legend="{{tenant}} is guaranteed"),
                Query(expression=f"calabash_tenant_allocated_devices{{{_TENANT}}}", legend="{{tenant}} holds"),
                Query(expression=f"calabash_tenant_limit_devices{{{_TENANT}}}", legend="{{tenant}} at most"),
            ),
            text="In devices.",
        ),
        Panel(
            title="Borrowed and waited for",
            unit="none",
            width=12,
            queries=(
                Query(expression=f"calabash_tenant_borrowed_devices{{{_TENANT}}}", legend="{{tenant}} borrows"),
                Query(expression=f"calabash_tenant_pending_devices{{{_TENANT}}}", legend="{{tenant}} waits for"),
            ),
            text="In devices.",
        ),
        Panel(
            title="Budget and what is spent of it",
            unit="none",
            width=12,
            queries=_one(
                f'{{__name__=~"calabash_tenant_(budget|spent)", {_NODE}, tenant=~"$tenant"}}',
                "{{tenant}} {{__name__}} {{currency}}",
            ),
            text="This month, without tax.",
        ),
        Panel(
            title="Projects: held",
            unit="none",
            width=12,
            queries=_one(
                f'calabash_tenant_allocated_devices{{{_NODE}, tenant=~"$tenant", project!=""}}',
                "{{tenant}} {{project}}",
            ),
            text="In devices.",
        ),
        Panel(
            title="Compute used, by tenant",
            unit="none",
            width=12,
            queries=_one(
                f'sum by (tenant) (calabash_slice_core_used_ratio{{{_NODE}, tenant=~"$tenant"}})', "{{tenant}}"
            ),
            text="In devices.",
        ),
        Panel(
            title="Held without use",
            unit="none",
            width=12,
            queries=_one(
                f'sum by (tenant) (calabash_slice_core_limit_ratio{{{_NODE}, tenant=~"$tenant"}})'
                f' - sum by (tenant) (calabash_slice_core_used_ratio{{{_NODE}, tenant=~"$tenant"}})',
                "{{tenant}}",
            ),
            text="In devices: what is promised less what is used.",
        ),
        Panel(
            title="Memory used of its limit",
            unit="percentunit",
            width=12,
            queries=_one(
                f'calabash_slice_memory_used_bytes{{{_NODE}, tenant=~"$tenant"}}'
                f' / calabash_slice_memory_limit_bytes{{{_NODE}, tenant=~"$tenant"}}',
                _SLICE,
            ),
        ),
        Panel(
            title="Waiting for their turn",
            unit="percentunit",
            width=12,
            queries=_one(f'rate(calabash_slice_throttled_seconds_total{{{_NODE}, tenant=~"$tenant"}}[5m])', _SLICE),
            text="Part of the time in which launches were held back.",
        ),
        Panel(
            title="Queues: held and guaranteed",
            unit="none",
            width=12,
            queries=(
                Query(expression=f"calabash_queue_allocated_devices{{{_NODE}}}", legend="{{queue}} holds"),
                Query(expression=f"calabash_queue_deserved_devices{{{_NODE}}}", legend="{{queue}} is guaranteed"),
            ),
        ),
        Panel(
            title="Queues: waiting",
            unit="none",
            width=12,
            queries=_one(f"calabash_queue_pending_devices{{{_NODE}}}", "{{queue}}"),
        ),
    ),
)

BOARDS = (POOL, DEVICES, TENANTS)
