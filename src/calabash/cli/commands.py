"""Command tree of ``calabash``; each command's module is imported only when that command runs."""

from __future__ import annotations

import io
import os
import sys

import click

import calabash
from calabash.cli.former import FORMER, FORMER_OPTIONS
from calabash.cli.home import SERVER_VARIABLE, require_this_machine
from calabash.cli.lazy import LazyGroup

# The help is here so that listing commands imports no module.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run programs": {
        "demo": ("demo.command:demo", "Run three tenants on one card and check every limit."),
        "run": ("run.help:run", "Run a program on a slice of a GPU."),
        "job": ("pool.job:job", "Run commands in the background and show their output."),
        "ps": ("pool.view:ps", "List running programs and waiting requests."),
        "top": ("pool.top:top", "Show the use of devices and slices continuously."),
        "why": ("pool.view:why", "Explain why a request waits, or where it was placed."),
        "release": ("pool.view:release", "End an allocation and its programs."),
    },
    "Pool of this machine": {
        "up": ("pool.lifecycle:up", "Start the pool of this machine."),
        "down": ("pool.lifecycle:down", "Stop the pool."),
        "status": ("pool.lifecycle:status", "Show the pool: node, devices, database, console."),
        "doctor": ("pool.doctor:doctor", "Check the requirements and show what is missing."),
        "service": ("service.command:service", "Run the pool as a systemd service."),
        "login": ("pool.login:login", "Log in to a pool on another machine, or to the console."),
        "backup": ("pool.backup:backup", "Back up the pool's database and restore it."),
    },
    "Devices": {
        "smi": ("pool.view:smi", "Show devices with their allocations and use."),
        "device": ("pool.device:device", "Drain, test, partition (MIG) and reset devices."),
        "remote": ("remote.group:remote", "Use devices of other machines, and offer your own."),
    },
    "Teams": {
        "tenant": ("tenancy.tenant:tenant", "Manage teams: members, quotas, projects and usage."),
        "queue": ("pool.queue:queue", "Manage queues and move waiting requests."),
        "user": ("tenancy.user:user", "Manage users, their roles and API tokens."),
        "invoice": ("tenancy.invoice:invoice", "Create invoices from usage and tariffs."),
        "notify": ("tenancy.notify:notify", "Send events to a webhook or a mail address."),
        "audit": ("tenancy.audit:audit", "Show who changed what, and verify the log."),
    },
    "Networks": {
        "net": ("net.group:net", "Manage networks of tenants: VPCs, subnets, ports, gateways."),
    },
    "Cluster": {
        "serve": ("programs.serve:serve", "Run a daemon: node agent, planner, metrics exporter, ..."),
        "explain-gang": ("programs.explain_gang:explain_gang", "Describe the gangs that the objects in a file form."),
        "uninstall": ("programs.uninstall:uninstall", "Remove what is left on a node or in a cluster."),
    },
    "Tools": {
        "sim": ("pool.sim:sim", "Simulate GPU nodes and faults, and replay scenarios."),
        "completion": ("manual:completion", "Print the completion script of bash, zsh or fish."),
        "man": ("manual:write_man_pages", "Write man pages of all commands."),
        "dashboards": ("pool.exporter:dashboards", "Write Grafana dashboards and alert rules."),
    },
}


# Commands that run on the pool's machine only, and what to do instead.
_HERE_ONLY = {
    "run": "log in there, or use its devices from here: calabash run --remote",
    "demo": "run the demo on the pool's machine",
    "service": "manage the service on the pool's machine",
    "up": "start the pool on its machine",
    "down": "stop the pool on its machine",
    "backup": "back up and restore on the pool's machine",
}


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    former=FORMER,
    former_options=FORMER_OPTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
    os.environ[SERVER_VARIABLE] = server
    if context.invoked_subcommand in _HERE_ONLY:
        require_this_machine(context.invoked_subcommand, hint=_HERE_ONLY[context.invoked_subcommand])


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
