"""``calabash serve``: group of the daemons; each daemon's module is imported only when it runs."""

from __future__ import annotations

import click

from calabash.cli.lazy import LazyGroup

_SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Programs of a cluster, which the chart starts": {
        "agent": ("programs.cluster:agent", "Serve the devices of one node."),
        "plugin-relay": ("programs.cluster:plugin_relay", "Keep devices registered while the agent restarts."),
        "admission": ("programs.cluster:admission", "Serve the webhooks for pods that request devices."),
        "metrics": ("programs.cluster:metrics", "Serve metrics of slices and queues to autoscalers."),
        "planner": ("programs.planner:planner", "Plan the devices and serve the kube-scheduler."),
        "cluster": ("programs.cluster:cluster", "Serve the API and the console of the cluster."),
    },
    "Beside a pool": {
        "exporter": ("pool.exporter:exporter", "Serve the pool's metrics to Prometheus."),
        "fabric": ("net.fabric:fabric_controller", "Isolate tenants on RDMA fabrics."),
    },
}


@click.group(cls=LazyGroup, sections=_SECTIONS)
def serve() -> None:
    """Run a daemon in the foreground. The pool is started with `calabash up`."""
