"""Dashboard of a cluster's own programs: queries over ``api.part_metrics``.

The label ``pod``, which the chart's monitors set, distinguishes programs. A pod that two jobs scrape counts once: every
query reduces its series with ``of_pods`` before it adds or divides.
"""

from __future__ import annotations

from calabash.api import part_metrics as m
from calabash.api.part_metrics import PartMetric
from calabash.exporter.panels import Dashboard, Panel, Query

_WAITING = 'stage="waiting"'


def of_pods(metric: PartMetric, selector: str = "", *, over: str = "", suffix: str = "") -> str:
    """Return the query of a metric with one series for each pod, however many jobs scrape the pod.

    Args:
        metric: metric of a program; its own labels are kept, so there is a series for each of their values.
        selector: matchers of labels, without braces.
        over: a function over time and its range, for example ``rate 5m``; "" for the newest value.
        suffix: ``_bucket``, ``_sum`` or ``_count`` for a histogram; "" for other metrics.
    """
    series = f"{metric.name}{suffix}{{{selector}}}" if selector else f"{metric.name}{suffix}"
    if over:
        function, _, window = over.partition(" ")
        series = f"{function}({series}[{window}])"
    labels = ("pod", *metric.labels, *(("le",) if suffix == "_bucket" else ()))
    return f"max by ({', '.join(labels)}) ({series})"


def quantile(share: float, metric: PartMetric, *by: str) -> str:
    """Return the query of a quantile of a histogram over the last five minutes, over all pods.

    Args:
        share: the quantile, for example 0.99.
        metric: the histogram.
        by: labels that are kept; the quantile is computed for each of their values.
    """
    labels = ", ".join((*by, "le"))
    return f"histogram_quantile({share}, sum by ({labels}) ({of_pods(metric, over='rate 5m', suffix='_bucket')}))"


def _rate(by: str, metric: PartMetric, selector: str = "") -> str:
    return f"sum by ({by}) ({of_pods(metric, selector, over='rate 5m')})"


def _one(expression: str, legend: str = "") -> tuple[Query, ...]:
    return (Query(expression=expression, legend=legend),)


# Other programs serve ``process_*`` as well: only pods of the product are shown.
_OWN_MEMORY = f"{of_pods(m.PROCESS_MEMORY)} and on (pod) {of_pods(m.BUILD_INFO)}"

CLUSTER = Dashboard(
    name="calabash-cluster",
    title="Calabash: programs of a cluster",
    text="Planner, admission, agents and server: availability, latency and failures.",
    panels=(
        Panel(title="Planners that lead", shape="stat", width=4, queries=_one(f"sum({of_pods(m.PLANNER_LEADS)})")),
        Panel(
            title="Pods waiting",
            shape="stat",
            width=4,
            queries=_one(f"sum({of_pods(m.PLANNER_PODS, _WAITING)})"),
        ),
        Panel(
            title="Agents that serve",
            shape="stat",
            width=4,
            queries=_one(f"sum({of_pods(m.AGENT_READY)})"),
        ),
        Panel(
            title="Agents that do not",
            shape="stat",
            width=4,
            queries=_one(f"count({of_pods(m.AGENT_READY)}) - sum({of_pods(m.AGENT_READY)})"),
        ),
        Panel(title="Slices held", shape="stat", width=4, queries=_one(f"sum({of_pods(m.AGENT_SLICES)})")),
        Panel(
            title="Certificates end in",
            shape="stat",
            width=4,
            unit="s",
            queries=_one(f"min({of_pods(m.CERTIFICATE_EXPIRY)}) - time()"),
        ),
        Panel(
            title="Time of a decision",
            unit="s",
            queries=(
                Query(expression=quantile(0.5, m.PLANNER_DECISIONS), legend="half"),
                Query(expression=quantile(0.99, m.PLANNER_DECISIONS), legend="99 %"),
            ),
        ),
        Panel(title="Pods by stage", queries=_one(f"sum by (stage) ({of_pods(m.PLANNER_PODS)})", "{{stage}}")),
        Panel(
            title="Bindings",
            unit="ops",
            queries=(
                Query(expression=_rate("result", m.PLANNER_BINDINGS), legend="{{result}}"),
                Query(expression=f"sum({of_pods(m.PLANNER_FAILURES, over='rate 5m')})", legend="decisions that failed"),
            ),
        ),
        Panel(
            title="Admission reviews",
            unit="reqps",
            queries=_one(_rate("path, result", m.ADMISSION_REQUESTS), "{{path}} {{result}}"),
        ),
        Panel(
            title="Time of a review, 99 %",
            unit="s",
            queries=_one(quantile(0.99, m.ADMISSION_SECONDS, "path"), "{{path}}"),
        ),
        Panel(
            title="Requests to the adapter",
            unit="reqps",
            queries=_one(_rate("code", m.ADAPTER_REQUESTS), "{{code}}"),
        ),
        Panel(title="Devices by health", queries=_one(f"sum by (health) ({of_pods(m.AGENT_DEVICES)})", "{{health}}")),
        Panel(
            title="Limits that took effect",
            queries=(
                Query(expression=f"sum({of_pods(m.AGENT_DENIED, over='rate 5m')})", legend="memory denied a second"),
                Query(expression=f"sum({of_pods(m.AGENT_THROTTLED, over='rate 5m')})", legend="slices held back"),
            ),
        ),
        Panel(
            title="Registrations with the kubelet",
            queries=_one(of_pods(m.AGENT_REGISTRATIONS, over="increase 1h"), "{{pod}}"),
        ),
        Panel(
            title="Requests of the API",
            unit="reqps",
            queries=_one(_rate("code", m.SERVER_REQUESTS), "{{code}}"),
        ),
        Panel(
            title="Usage records",
            queries=(
                Query(expression=f"sum({of_pods(m.SERVER_USAGE_RECORDS, over='rate 5m')})", legend="taken a second"),
                Query(expression=f"sum({of_pods(m.AGENT_USAGE_WAITING)})", legend="wait on nodes"),
            ),
        ),
        Panel(title="Oldest report of a node", unit="s", queries=_one(f"max({of_pods(m.SERVER_OLDEST_REPORT)})")),
        Panel(
            title="Requests to the API server",
            unit="reqps",
            queries=_one(_rate("code", m.KUBE_REQUESTS), "{{code}}"),
        ),
        Panel(
            title="Lists and watches",
            unit="ops",
            queries=(
                Query(expression=_rate("kind", m.KUBE_LISTS), legend="lists of {{kind}}"),
                Query(expression=_rate("kind", m.KUBE_WATCHES), legend="watches of {{kind}}"),
            ),
        ),
        Panel(title="Memory of programs", unit="bytes", queries=_one(_OWN_MEMORY, "{{pod}}")),
    ),
)
