"""The command tree; each command's module is imported only when that command runs."""

from __future__ import annotations

import io
import os
import sys

import click

import calabash
from calabash.cli.home import SERVER_VARIABLE
from calabash.cli.lazy import LazyGroup
from calabash.model.errors import CalabashError

# name -> (module:attribute, one-line help). The help stands here so that listing imports nothing.
_COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("pool.lifecycle:up", "Start the pool of this machine."),
    "down": ("pool.lifecycle:down", "Stop the pool; running programs stay unless --force."),
    "status": ("pool.lifecycle:status", "Show the pool: devices, allocations, store."),
    "login": ("pool.login:login", "Keep a token for a pool on another machine."),
    "login-link": ("pool.lifecycle:login_link", "Print a link that logs you in to the console, once."),
    "doctor": ("pool.doctor:doctor", "Check what the pool needs and name what is missing."),
    "run": ("run.help:run", "Run a program on a slice of a GPU."),
    "job": ("pool.job:job", "Have the pool run commands, and see what they said."),
    "ps": ("pool.view:ps", "List allocations."),
    "smi": ("pool.view:smi", "Show devices, who holds them and how busy they are."),
    "device": ("pool.device:device", "Show cards, drain, test and reset them."),
    "top": ("pool.top:top", "Watch shares and memory live."),
    "release": ("pool.view:release", "Take a slice back; its programs are ended."),
    "why": ("pool.view:why", "Explain why a request waits, or where it was placed."),
    "mig": ("pool.mig:mig", "Show how MIG cuts the cards, and cut them to stay so."),
    "vm": ("pool.vm:vm", "Give cards to virtual machines and take them back."),
    "queue": ("pool.queue:queue", "Create, change and list queues, and move what waits."),
    "tenant": ("tenancy.tenant:tenant", "Create, change and list tenants: teams with bounds and members."),
    "project": ("tenancy.tenant:project", "Create, change and list the projects of a tenant."),
    "user": ("tenancy.user:user", "Create users and give them roles."),
    "token": ("tenancy.user:token", "Create, list and revoke API tokens."),
    "quota": ("tenancy.tenant:quota", "Show and set what tenants are promised and have."),
    "notify": ("tenancy.notify:notify", "Say who is told of what: by webhooks and by mail."),
    "audit": ("tenancy.audit:audit", "Show who did what from where, and check that nobody has changed it."),
    "backup": ("pool.backup:backup", "Keep the pool's database in a file."),
    "restore": ("pool.backup:restore", "Put a backup in the place of the pool's database."),
    "usage": ("tenancy.usage:usage", "Show what was used, in hours of devices."),
    "tariff": ("tenancy.tariff:tariff", "Set and show what an hour costs."),
    "invoice": ("tenancy.invoice:invoice", "Draft, issue, show and take back invoices."),
    "server": ("remote.server:server", "Offer the cards of this machine to programs on other machines."),
    "remote": ("remote.group:remote", "Use cards of other machines."),
    "exporter": ("pool.exporter:exporter", "Serve the pool's metrics to Prometheus."),
    "dashboards": ("pool.exporter:dashboards", "Write dashboards and alert rules over these metrics."),
    "bench": ("bench:bench", "Measure on this machine what others have published of theirs."),
    "sim": ("pool.sim:sim", "Create and break simulated GPU nodes."),
    "agent": ("programs.cluster:agent", "Serve the devices of one node of a cluster."),
    "plugin-relay": ("programs.cluster:plugin_relay", "Keep a node's devices at the kubelet while its agent restarts."),
    "node": ("pool.node:node", "Work on one node of a cluster, from the node itself."),
    "admission": ("programs.cluster:admission", "Answer a cluster's questions about pods that ask for devices."),
    "metrics": ("programs.cluster:metrics", "Tell a cluster's autoscalers how busy slices are and what waits."),
    "planner": ("programs.planner:planner", "Plan a cluster's devices and answer its kube-scheduler."),
    "cluster": ("programs.cluster:cluster", "Serve the API and the console of a cluster, and keep its tenants."),
    "cluster-cleanup": (
        "programs.cluster:cluster_cleanup",
        "Remove what components left in the API server of a cluster.",
    ),
    "net": ("net.group:net", "Bring up and check the network under tenants' VPCs, and apply files of objects."),
    "vpc": ("net.objects:vpc", "Address spaces of tenants: create, change, list and connect VPCs."),
    "subnet": ("net.objects:subnet", "Parts of a VPC, of which ports get addresses."),
    "port": ("net.objects:port", "Where programs, pods and machines join a subnet."),
    "sg": ("net.objects:sg", "Security groups: what may talk to whom."),
    "lb": ("net.objects:lb", "Load balancers: one address in front of several ports."),
    "gateway": ("net.objects:gateway", "Where a VPC leaves for the outside."),
    "eip": ("net.objects:eip", "Outside addresses of a VPC."),
    "nat": ("net.objects:nat", "What comes to one outside port goes to one inside."),
    "fip": ("net.objects:fip", "Outside addresses that are a port's, both ways."),
    "peer": ("net.objects:peer", "Routes between two VPCs; they stand when both have asked."),
    "line": ("net.objects:line", "VLANs of the provider's network that are one VPC's."),
    "endpoint": ("net.objects:endpoint", "Services of other VPCs under an address of one's own."),
    "route": ("net.objects:route", "Static routes of a VPC, and policy routes."),
    "dns": ("net.objects:dns", "Names that DNS of a VPC's subnets answers."),
    "qos": ("net.objects:qos", "How much ports may send and get."),
    "uplink": ("net.objects:uplink", "Ways out of the platform."),
    "certificate": ("net.files:certificate", "Certificates of load balancers that end TLS."),
    "simulate": ("simulate:simulate", "Replay traces and scenarios against the real scheduler."),
}


# What needs to be a process of the pool's machine, and what to do instead.
_HERE_ONLY = {
    "run": "log in there, or use its cards from here: calabash run --remote",
    "up": "start the pool on its machine",
    "down": "stop the pool on its machine",
    "backup": "write one on the pool's machine",
    "restore": "restore on the pool's machine",
    "login-link": "make one on the pool's machine, or use `calabash login` here",
    "vm": "machines that get cards run on the pool's machine",
}


@click.group(cls=LazyGroup, lazily=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(calabash.__version__, prog_name="calabash")
@click.option(
    "--server",
    metavar="URL",
    envvar=SERVER_VARIABLE,
    help="Ask the pool behind that address instead of this machine's; see `calabash login`.",
)
@click.pass_context
def cli(context: click.Context, server: str | None) -> None:
    """Calabash pools the GPUs of a machine and cuts them to size."""
    if not server:
        return
    if context.invoked_subcommand in _HERE_ONLY:
        raise CalabashError(
            f"`calabash {context.invoked_subcommand}` works on the pool's machine only, not with --server",
            hint=_HERE_ONLY[context.invoked_subcommand],
        )
    os.environ[SERVER_VARIABLE] = server


def invoke(words: list[str], tree: click.Command = cli, name: str = "calabash") -> None:
    """Run a command of a tree. Raises what it raises, and SystemExit for an exit code of its own."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal cannot show is no reason to fail
    code = tree.main(args=words, prog_name=name, standalone_mode=False)
    if isinstance(code, int) and code:
        sys.exit(code)
