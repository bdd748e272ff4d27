"""Page of the exporter's metrics (docs/reference/metrics.md), from the catalogue."""

from __future__ import annotations

from calabash.api.part_metrics import EVERY, PART_METRICS
from calabash.binder.local.wait_times import BOUNDS_S
from calabash.exporter.alerts import ALERTS
from calabash.exporter.catalogue import CATALOGUE, Scope
from calabash.exporter.cluster_alerts import CLUSTER_ALERTS
from calabash.exporter.cluster_panels import CLUSTER
from calabash.exporter.dcgm import FIELDS
from calabash.exporter.panels import BOARDS

_HEAD = """\
# Metrics

`calabash serve exporter` serves these metrics at `/metrics`, in Prometheus' text format. Names end with the base unit; a ratio
is 0 to 1. Values are read from the pool at each scrape; scrapes within a second share one reading.
"""
_SERIES = """\
## Number of series

| one series | metrics |
|---|---|
{rows}

A node with 8 devices, 40 slices and 5 queues has {example} series. Labels that describe (model, user, policy, cause)
are on `_info` series only: `metric * on (node, device_uuid) group_left (device_model) calabash_device_info` joins them.
"""


def metrics_page() -> str:
    """Return the page: one row for each metric, grouped by what one series stands for."""
    lines = [_HEAD]
    for scope in Scope:
        found = [spec for spec in CATALOGUE if spec.scope is scope]
        if not found:
            continue
        lines += [f"## {scope.value.capitalize()}\n", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        lines += [f"| `{s.name}` | {s.kind} | {', '.join(f'`{n}`' for n in s.labels)} | {s.help} |" for s in found]
        lines.append("")
    counts = {scope: sum(spec.scope is scope for spec in CATALOGUE) for scope in Scope}
    rows = "\n".join(f"| {scope.value} | {count} |" for scope, count in counts.items() if count)
    example = counts[Scope.POOL] + 8 * counts[Scope.DEVICE] + 40 * counts[Scope.SLICE] + 5 * counts[Scope.QUEUE]
    example += 5 * 2 * (len(BOUNDS_S) + 3)
    lines.append(_SERIES.format(rows=rows, example=f"about {example}"))
    lines += ["## Compatible names\n", "`--compatible dcgm`: " + ", ".join(f"`{name}`" for name in FIELDS) + ".", ""]
    lines.append(
        "`--compatible hami`: the `hami_gpu_*`, `hami_vgpu_*` and `hami_container_device_utilization_ratio` series"
    )
    lines += ["for which a pool has data; the label namespace contains the tenant, the label pod the allocation.", ""]
    lines += [
        "## Programs of a cluster\n",
        "Each program of a cluster serves `/metrics` without a credential. No label names an object of a tenant. Ports: the",
        "planner at port 7071, admission and the adapter for autoscalers at their `probePort` (8081), the agent at 7072,",
        "the server at 7073. [Monitor a cluster](../how-to/monitor-a-cluster.md) configures Prometheus.\n",
        "| metric | served by | type | labels | meaning |",
        "|---|---|---|---|---|",
    ]
    for m in PART_METRICS:
        parts = "all" if m.parts == EVERY else ", ".join(sorted(m.parts))
        lines.append(f"| `{m.name}` | {parts} | {m.kind} | {', '.join(f'`{n}`' for n in m.labels)} | {m.help} |")
    lines.append("")
    lines += [
        "## Dashboards and alerts\n",
        "`calabash dashboards export DIR` writes them. A pool that two exporters or two jobs scrape is counted once.",
        "`CalabashPoolDown` fires for each exporter, because an exporter without a connection does not know its pool.\n",
        "| dashboard | panels |",
        "|---|---|",
    ]
    lines += [f"| {board.title} | {', '.join(panel.title for panel in board.panels)} |" for board in (*BOARDS, CLUSTER)]
    every = (*ALERTS, *CLUSTER_ALERTS)
    lines += ["", "| alert | severity | fires after | when |", "|---|---|---|---|"]
    lines += [
        f"| `{a.name}` | {a.severity} | {a.lasting} | `{a.expression.replace('|', chr(92) + '|')}` |" for a in every
    ]
    return "\n".join(lines) + "\n"
