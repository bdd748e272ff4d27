"""Alert rules over the catalogue's metrics, as Prometheus reads them.

Some conditions must last for some time before the alert fires. Such a rule compares the newest values, and the time is
in its ``for``: Prometheus counts from the first evaluation in which the condition is true. A function over a range,
such as ``min_over_time(x[30m])``, is not used for this, because it has a result after the first scrape already. Several
exporters may serve one pool. Every rule reduces their series to one (``once``), so it fires only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calabash.exporter import catalogue as c
from calabash.exporter.distinct_series import once

WAITING_LONG_S = 1800
_ALLOCATION = ("node", "tenant", "allocation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Alert rule: it fires when its expression has had a result for some time.

    Args:
        name: name of the alert.
        expression: PromQL expression.
        lasting: time for which the expression must have a result, as Prometheus writes it: ``5m``.
        severity: ``critical``, ``warning`` or ``info``.
        summary: text of the alert; ``$labels`` and ``$value`` are filled in by Prometheus.
        help: the effect of the condition and the remedy, for the runbook.
    """

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    help: str


ALERTS = (
    Alert(
        name="CalabashPoolDown",
        expression=f"{once(c.UP, by=('instance',))} == 0",
        lasting="1m",
        severity="critical",
        summary="The pool on {{ $labels.instance }} does not answer",
        help="Running programs keep their slices and limits; no new allocation is made. See pool.log, and `calabash doctor`.",
    ),
    Alert(
        name="CalabashExporterDown",
        expression=f"absent({c.UP.name})",
        lasting="5m",
        severity="critical",
        summary="No exporter of Calabash is scraped",
        help="Either the exporter does not run or the scrape job does not reach it.",
    ),
    Alert(
        name="CalabashDeviceNotHealthy",
        expression=f"{once(c.DEVICE_HEALTHY)} == 0",
        lasting="5m",
        severity="warning",
        summary="Device {{ $labels.device_index }} of {{ $labels.node }} accepts no new allocations",
        help="`calabash device show` shows the cause and the remedy.",
    ),
    Alert(
        name="CalabashStrangerOnDevice",
        expression=f"{once(c.DEVICE_STRANGERS)} > 0",
        lasting="5m",
        severity="warning",
        summary="{{ $value }} processes without a slice on device {{ $labels.device_index }} of {{ $labels.node }}",
        help="`calabash smi` names the processes; `calabash up --unmanaged` sets the policy for them.",
    ),
    Alert(
        name="CalabashMemoryDenied",
        expression=f"{once(c.SLICE_DENIED, by=_ALLOCATION, over='increase 10m')} > 0",
        lasting="0m",
        severity="info",
        summary="Allocation {{ $labels.allocation }} of {{ $labels.tenant }} was refused memory at its limit",
        help="The program gets CUDA's out-of-memory error. A larger slice, or --spill, helps.",
    ),
    Alert(
        name="CalabashHeldWithoutUse",
        expression=f"{once(c.SLICE_CORE_USED, by=_ALLOCATION, over='max_over_time 5m')} == 0",
        lasting="1h",
        severity="info",
        summary="Allocation {{ $labels.allocation }} of {{ $labels.tenant }} has not computed for an hour",
        help="The allocation holds its slice without using it.",
    ),
    Alert(
        name="CalabashWaitingLong",
        expression=f"{once(c.QUEUE_LONGEST_WAIT)} > {WAITING_LONG_S}",
        lasting="0m",
        severity="info",
        summary="A request has waited in queue {{ $labels.queue }} for {{ $value | humanizeDuration }}",
        help="`calabash why` shows the reason of each waiting request.",
    ),
    Alert(
        name="CalabashTenantBelowGuarantee",
        expression=(f"({once(c.TENANT_PENDING)} > 0) and ({once(c.TENANT_ALLOCATED)} < {once(c.TENANT_GUARANTEE)})"),
        lasting="15m",
        severity="warning",
        summary="Tenant {{ $labels.tenant }} has waiting requests and holds less than its guarantee",
        help="`calabash why` shows the reasons. The sum of guarantees may exceed the number of devices.",
    ),
    Alert(
        name="CalabashBudgetNearlySpent",
        expression=f"{once(c.TENANT_SPENT)} / ({once(c.TENANT_BUDGET)} > 0) > 0.9",
        lasting="0m",
        severity="warning",
        summary="Tenant {{ $labels.tenant }} has spent {{ $value | humanizePercentage }} of its budget",
        help="`calabash tenant quota` has the figures; the pool's policy of over-use applies beyond the budget.",
    ),
    Alert(
        name="CalabashNetworkDaemonDown",
        expression=f"{once(c.NETWORK_AFFECTED)} > 0",
        lasting="1m",
        severity="critical",
        summary="OVN does not answer on {{ $labels.node }}: {{ $labels.reason }}, which affects {{ $value }} VPCs",
        help=(
            "What stands goes on; no new port, rule or backend is carried out, and nothing passes on a host whose"
            " ovs-vswitchd is dead. `calabash net doctor` names the daemon or the host, `calabash net vpc show` the silent"
            " part. northbound_down, southbound_down: start the ovsdb-server of that database. northd_down: start"
            " ovn-northd. host_silent: start ovsdb-server, ovs-vswitchd and ovn-controller there, in this order. Of a network"
            " of `calabash net up`, `calabash net up` starts what does not run."
        ),
    ),
    Alert(
        name="CalabashDeviceHot",
        expression=f"{once(c.DEVICE_TEMPERATURE)} > 88",
        lasting="10m",
        severity="warning",
        summary="Device {{ $labels.device_index }} of {{ $labels.node }} has {{ $value }} degrees",
        help="Cards slow down by themselves near 90 degrees.",
    ),
)


def rules() -> dict[str, Any]:
    """Return the rule file of the pool's alerts, as a structure for YAML."""
    return rules_of("calabash", ALERTS)


def rules_of(group: str, alerts: Sequence[Alert]) -> dict[str, Any]:
    """Return a rule file with one group of alerts, as a structure for YAML."""
    return {
        "groups": [
            {
                "name": group,
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.expression,
                        "for": alert.lasting,
                        "labels": {"severity": alert.severity},
                        "annotations": {"summary": alert.summary, "description": alert.help},
                    }
                    for alert in alerts
                ],
            }
        ]
    }
