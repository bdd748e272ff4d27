"""Command tree of ``calabash``; each command's module is imported only when that command runs."""

from __future__ import annotations

import io
import os
import sys

import click

import calabash
from calabash.cli.home import SERVER_VARIABLE
from calabash.cli.lazy import LazyGroup
from calabash.model.errors import CalabashError

# name -> (module:attribute, one-line help). The help is here so that listing commands imports no module.
_COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("pool.lifecycle:up", "Start the pool of this machine."),
    "down": ("pool.lifecycle:down", "Stop the pool."),
    "status": ("pool.lifecycle:status", "Show the pool: node, devices, allocations, database."),
    "login": ("pool.login:login", "Store a token for a pool on another machine."),
    "login-link": ("pool.lifecycle:login_link", "Print a one-time link that logs you in to the console."),
    "demo": ("demo.command:demo", "Run three tenants on one card and check every limit."),
    "doctor": ("pool.doctor:doctor", "Check the requirements of the pool and show what is missing."),
    "run": ("run.help:run", "Run a program on a slice of a GPU."),
    "job": ("pool.job:job", "Run commands as jobs of the pool and show their output."),
    "ps": ("pool.view:ps", "List allocations."),
    "smi": ("pool.view:smi", "Show devices with their allocations and use."),
    "device": ("pool.device:device", "Show, drain, test and reset devices."),
    "top": ("pool.top:top", "Show compute shares and memory use continuously."),
    "release": ("pool.view:release", "End an allocation and its programs."),
    "why": ("pool.view:why", "Explain why a request waits, or where it was placed."),
    "mig": ("pool.mig:mig", "Show, plan and apply MIG layouts of devices."),
    "vm": ("pool.vm:vm", "Attach devices to virtual machines and detach them."),
    "queue": ("pool.queue:queue", "Create, change and list queues, and move waiting requests."),
    "tenant": ("tenancy.tenant:tenant", "Create, change and list tenants: teams with limits and members."),
    "project": ("tenancy.tenant:project", "Create, change and list the projects of a tenant."),
    "user": ("tenancy.user:user", "Create users and grant them roles."),
    "token": ("tenancy.user:token", "Create, list and revoke API tokens."),
    "quota": ("tenancy.tenant:quota", "Show and set guarantees and limits of tenants."),
    "notify": ("tenancy.notify:notify", "Create, change and list notifications by webhook and mail."),
    "audit": ("tenancy.audit:audit", "Show the audit log and verify that it is unchanged."),
    "backup": ("pool.backup:backup", "Write the pool's database to a file."),
    "restore": ("pool.backup:restore", "Replace the pool's database by a backup."),
    "usage": ("tenancy.usage:usage", "Show usage in device hours."),
    "tariff": ("tenancy.tariff:tariff", "Apply and show tariffs, the prices of device hours."),
    "invoice": ("tenancy.invoice:invoice", "Draft, issue, show and void invoices."),
    "server": ("remote.server:server", "Offer the devices of this machine to programs on other machines."),
    "remote": ("remote.group:remote", "Use devices of other machines."),
    "exporter": ("pool.exporter:exporter", "Serve the pool's metrics to Prometheus."),
    "dashboards": ("pool.exporter:dashboards", "Write dashboards and alert rules for these metrics."),
    "bench": ("bench:bench", "Run benchmarks on this machine."),
    "sim": ("pool.sim:sim", "Create simulated GPU nodes and inject faults."),
    "agent": ("programs.cluster:agent", "Serve the devices of one node of a cluster."),
    "plugin-relay": (
        "programs.cluster:plugin_relay",
        "Keep a node's devices registered at the kubelet while its agent restarts.",
    ),
    "node": ("pool.node:node", "Maintain one node of a cluster, from the node itself."),
    "admission": ("programs.cluster:admission", "Serve the admission webhook for pods that request devices."),
    "metrics": ("programs.cluster:metrics", "Serve metrics of slices and queues to a cluster's autoscalers."),
    "planner": ("programs.planner:planner", "Plan a cluster's devices and serve its kube-scheduler."),
    "cluster": ("programs.cluster:cluster", "Serve the API and the console of a cluster, and store its tenants."),
    "cluster-cleanup": (
        "programs.cluster:cluster_cleanup",
        "Remove what components left in the API server of a cluster.",
    ),
    "net": ("net.group:net", "Start and check the network of tenants' VPCs, and apply manifests."),
    "vpc": ("net.objects:vpc", "Create, change, list and connect VPCs, the address spaces of tenants."),
    "subnet": ("net.objects:subnet", "Create, change and list subnets of a VPC."),
    "port": (
        "net.objects:port",
        "Create, change and list ports, which connect programs, pods and machines to a subnet.",
    ),
    "sg": ("net.objects:sg", "Create, change and list security groups."),
    "lb": ("net.objects:lb", "Create, change and list load balancers."),
    "gateway": ("net.objects:gateway", "Create, change and list gateways from VPCs to outside networks."),
    "eip": ("net.objects:eip", "Create, change and list outside addresses of a VPC."),
    "nat": ("net.objects:nat", "Forward outside ports to inside ports."),
    "fip": ("net.objects:fip", "Map outside addresses to ports, in both directions."),
    "peer": ("net.objects:peer", "Create and list peerings, routes between two VPCs that both sides request."),
    "line": ("net.objects:line", "Create, change and list dedicated lines, provider VLANs of one VPC."),
    "endpoint": (
        "net.objects:endpoint",
        "Create and list endpoints, services of other VPCs under an address of the VPC.",
    ),
    "route": ("net.objects:route", "Create, change and list static and policy routes of a VPC."),
    "dns": ("net.objects:dns", "Create, change and list DNS records of a VPC's subnets."),
    "qos": ("net.objects:qos", "Create, change and list rate limits of ports."),
    "uplink": ("net.objects:uplink", "Create, change and list uplinks to outside networks."),
    "certificate": (
        "net.files:certificate",
        "Store, list and delete certificates of load balancers that terminate TLS.",
    ),
    "simulate": ("simulate:simulate", "Replay traces and scenarios against the real scheduler."),
}


# Commands that run on the pool's machine only, and what to do instead.
_HERE_ONLY = {
    "run": "log in there, or use its devices from here: calabash run --remote",
    "demo": "run the demo on the pool's machine",
    "up": "start the pool on its machine",
    "down": "stop the pool on its machine",
    "backup": "write the backup on the pool's machine",
    "restore": "restore on the pool's machine",
    "login-link": "create the link on the pool's machine, or use `calabash login` here",
    "vm": "virtual machines run on the pool's machine",
}


@click.group(cls=LazyGroup, lazily=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(calabash.__version__, prog_name="calabash")
@click.option(
    "--server",
    metavar="URL",
    envvar=SERVER_VARIABLE,
    help="Use the pool at this URL instead of this machine's; see `calabash login`.",
)
@click.pass_context
def cli(context: click.Context, server: str | None) -> None:
    """Manage and share the GPUs of a machine or a cluster."""
    if not server:
        return
    if context.invoked_subcommand in _HERE_ONLY:
        raise CalabashError(
            f"`calabash {context.invoked_subcommand}` works on the pool's machine only, not with --server",
            hint=_HERE_ONLY[context.invoked_subcommand],
        )
    os.environ[SERVER_VARIABLE] = server


def invoke(words: list[str], tree: click.Command = cli, name: str = "calabash") -> None:
    """Run a command of a tree. Raises the command's error, or SystemExit for its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # characters that the terminal cannot show must not cause a failure
    code = tree.main(args=words, prog_name=name, standalone_mode=False)
    if isinstance(code, int) and code:
        sys.exit(code)
