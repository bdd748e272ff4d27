"""Alert rules over the catalogue's metrics, as Prometheus reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule: it fires when ``expression`` has had a result for ``lasting``."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    help: str


ALERTS = (
    Alert(
        name="CalabashPoolDown",
        expression="calabash_up == 0",
        lasting="1m",
        severity="critical",
        summary="The pool on {{ $labels.instance }} does not answer",
        help="What runs keeps its slices and limits; nothing new is given out. See pool.log, and `calabash doctor`.",
    ),
    Alert(
        name="CalabashExporterDown",
        expression="absent(calabash_up)",
        lasting="5m",
        severity="critical",
        summary="No exporter of Calabash is scraped",
        help="Either the exporter does not run or the scrape job does not reach it.",
    ),
    Alert(
        name="CalabashDeviceNotHealthy",
        expression="calabash_device_healthy == 0",
        lasting="5m",
        severity="warning",
        summary="Device {{ $labels.device_index }} of {{ $labels.node }} takes no new work",
        help="`calabash device show` says why and what it needs.",
    ),
    Alert(
        name="CalabashStrangerOnDevice",
        expression="calabash_device_strangers > 0",
        lasting="5m",
        severity="warning",
        summary="{{ $value }} processes without a slice on device {{ $labels.device_index }} of {{ $labels.node }}",
        help="`calabash smi` names them; `calabash up --strangers` says what is done about them.",
    ),
    Alert(
        name="CalabashMemoryDenied",
        expression="increase(calabash_slice_memory_denied_total[10m]) > 0",
        lasting="0m",
        severity="info",
        summary="Allocation {{ $labels.allocation }} of {{ $labels.tenant }} asks for more memory than it has",
        help="The program gets CUDA's error for no memory; a larger slice, or --spill, helps.",
    ),
    Alert(
        name="CalabashHeldWithoutUse",
        expression=(
            "(max_over_time(calabash_slice_core_used_ratio[1h]) == 0)"
            " and on (node, allocation) (min_over_time(calabash_slice_info[1h]) == 1)"
            " and on (node, allocation) (calabash_slice_info offset 1h)"
        ),
        lasting="0m",
        severity="info",
        summary="Allocation {{ $labels.allocation }} of {{ $labels.tenant }} has not computed for an hour",
        help="It holds its slice without use.",
    ),
    Alert(
        name="CalabashWaitingLong",
        expression="min_over_time(calabash_queue_pending_devices[30m]) > 0",
        lasting="0m",
        severity="info",
        summary="Requests wait in queue {{ $labels.queue }} for more than half an hour",
        help="`calabash why` says what each waits for.",
    ),
    Alert(
        name="CalabashTenantBelowGuarantee",
        expression=(
            '(min_over_time(calabash_tenant_pending_devices{project=""}[15m]) > 0)'
            " and (calabash_tenant_allocated_devices < calabash_tenant_guarantee_devices)"
        ),
        lasting="15m",
        severity="warning",
        summary="Tenant {{ $labels.tenant }} waits, and holds less than it is guaranteed",
        help="`calabash why` says what its requests wait for; guarantees may be more than there are devices.",
    ),
    Alert(
        name="CalabashBudgetNearlySpent",
        expression="calabash_tenant_spent / (calabash_tenant_budget > 0) > 0.9",
        lasting="0m",
        severity="warning",
        summary="Tenant {{ $labels.tenant }} has spent {{ $value | humanizePercentage }} of its budget",
        help="`calabash quota show` has the figures; what happens beyond it is the pool's policy of over-use.",
    ),
    Alert(
        name="CalabashDeviceHot",
        expression="calabash_device_temperature_celsius > 88",
        lasting="10m",
        severity="warning",
        summary="Device {{ $labels.device_index }} of {{ $labels.node }} has {{ $value }} degrees",
        help="Cards slow down by themselves near 90 degrees.",
    ),
)


def rules() -> dict[str, Any]:
    """A rule file, before it becomes YAML."""
    return {
        "groups": [
            {
                "name": "calabash",
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.expression,
                        "for": alert.lasting,
                        "labels": {"severity": alert.severity},
                        "annotations": {"summary": alert.summary, "description": alert.help},
                    }
                    for alert in ALERTS
                ],
            }
        ]
    }
