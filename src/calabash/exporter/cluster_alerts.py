"""Alert rules over the metrics of a cluster's own programs. Each fires once for a pod, however many jobs scrape it."""

from __future__ import annotations

from typing import Any

from calabash.api import part_metrics as m
from calabash.exporter.alerts import Alert, rules_of
from calabash.exporter.cluster_panels import of_pods, quantile

_DAY_S = 86400
_FAILED = 'result="failed"'

CLUSTER_ALERTS = (
    Alert(
        name="CalabashNoPlannerLeads",
        expression=f"sum({of_pods(m.PLANNER_LEADS)}) == 0",
        lasting="2m",
        severity="critical",
        summary="No planner is the leader: no pod with devices is placed",
        help="`/readyz` of the planners shows the cause; see their logs and the Lease calabash-planner.",
    ),
    Alert(
        name="CalabashPlannerDown",
        expression=f"absent({m.PLANNER_LEADS.name})",
        lasting="5m",
        severity="critical",
        summary="No planner of Calabash is scraped",
        help="Either no planner runs or Prometheus does not reach it: see networkPolicies.prometheus of the chart.",
    ),
    Alert(
        name="CalabashDecisionsFail",
        expression=f"{of_pods(m.PLANNER_FAILURES, over='increase 10m')} > 0",
        lasting="0m",
        severity="warning",
        summary="Decisions of planner {{ $labels.pod }} failed",
        help="Its log names the pods that it skips; a pod is tried again when its request changes.",
    ),
    Alert(
        name="CalabashDecisionsSlow",
        expression=f"{quantile(0.99, m.PLANNER_DECISIONS)} > 1",
        lasting="10m",
        severity="warning",
        summary="The slowest decisions of the planner take {{ $value | humanizeDuration }}",
        help="Give the planner more processor time, or share the cluster among planners (planner.shards).",
    ),
    Alert(
        name="CalabashAdmissionFails",
        expression=f"{of_pods(m.ADMISSION_REQUESTS, _FAILED, over='increase 10m')} > 0",
        lasting="0m",
        severity="warning",
        summary="Admission {{ $labels.pod }} could not answer reviews ({{ $labels.path }})",
        help="Its log has the error; API servers then refuse the objects.",
    ),
    Alert(
        name="CalabashCertificateEnds",
        expression=f"{of_pods(m.CERTIFICATE_EXPIRY)} - time() < {3 * _DAY_S}",
        lasting="1h",
        severity="warning",
        summary="The certificate of {{ $labels.pod }} ends in {{ $value | humanizeDuration }}",
        help="Programs renew their certificates by themselves: see the log for the error, or cert-manager.",
    ),
    Alert(
        name="CalabashAgentNotServing",
        expression=f"{of_pods(m.AGENT_READY)} == 0",
        lasting="10m",
        severity="warning",
        summary="Agent {{ $labels.pod }} does not serve the devices of its node",
        help="`kubectl describe gpunode` shows the cause.",
    ),
    Alert(
        name="CalabashAgentReconnects",
        expression=f"{of_pods(m.AGENT_REGISTRATIONS, over='increase 30m')} > 5",
        lasting="0m",
        severity="warning",
        summary="Agent {{ $labels.pod }} registers with its kubelet again and again",
        help="See the logs of the kubelet and of the agent; pods that start meanwhile wait.",
    ),
    Alert(
        name="CalabashUsageWaits",
        expression=f"{of_pods(m.AGENT_USAGE_WAITING)} > 10000",
        lasting="15m",
        severity="warning",
        summary="{{ $value }} usage records wait on the node of {{ $labels.pod }}",
        help="The node does not reach the server of the cluster. At 200,000 records it makes no new allocations.",
    ),
    Alert(
        name="CalabashNodeReportsLate",
        expression=f"max({of_pods(m.SERVER_OLDEST_REPORT)}) > 900",
        lasting="5m",
        severity="warning",
        summary="A node has sent no usage for {{ $value | humanizeDuration }}",
        help="`calabash_agent_usage_records_waiting` shows which agent cannot send its records.",
    ),
    Alert(
        name="CalabashApiServerSilent",
        expression=f"{of_pods(m.KUBE_SILENT)} > 300",
        lasting="5m",
        severity="warning",
        summary="{{ $labels.pod }} has received no update of {{ $labels.kind }} for {{ $value | humanizeDuration }}",
        help="Its view of these objects is old. See its log: permissions may be missing, or the API server is unreachable.",
    ),
)


def cluster_rules() -> dict[str, Any]:
    """Return the rule file of a cluster's alerts, as a structure for YAML."""
    return rules_of("calabash-cluster", CLUSTER_ALERTS)
