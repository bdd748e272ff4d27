"""``calabash net up|down|status|ctl``: a complete OVN network in namespaces, for one machine and for tests."""

from __future__ import annotations

import time
from typing import Any

import click

from calabash.adapters.host.children import become_program, child_environment
from calabash.cli import output
from calabash.cli.home import home
from calabash.cli.net import join as net_join
from calabash.cli.output import Column
from calabash.controllers.lab import supervisor
from calabash.controllers.lab.central import rundirs
from calabash.controllers.lab.lab import Lab
from calabash.controllers.lab.programs import version_text
from calabash.controllers.lab.record import HOSTS_MAX, register, registered
from calabash.controllers.lab.supervisor import DaemonRestarts
from calabash.model.errors import CalabashError, Reason
from calabash.model.extras import require

PREFIX = "cb"
NO_HOST = "none"
_HOSTS, _GATEWAYS = 2, 2
_prefix = click.option(
    "--prefix",
    default=PREFIX,
    envvar="CALABASH_NET_PREFIX",
    show_default=True,
    show_envvar=True,
    help="Name of the lab network, and prefix of its namespaces.",
)

DAEMONS = (
    Column(title="PREFIX", text=lambda r: r["prefix"]),
    Column(title="ON", text=lambda r: r["on"]),
    Column(title="DAEMON", text=lambda r: r["daemon"]),
    Column(title="PID", text=lambda r: str(r["pid"]) if r["pid"] else "does not run", right=True),
    Column(title="RESTARTS", text=lambda r: str(r["restarts"]), right=True),
    Column(title="LAST RESTART", text=lambda r: _when(r["restarted_s"]), wide=True),
)


@click.command()
@click.option(
    "--host-count",
    "hosts",
    type=click.IntRange(1, HOSTS_MAX),
    help=f"Number of hosts for programs. Default for a new network: {_HOSTS}.",
)
@click.option(
    "--gateways", type=click.IntRange(0, 8), help=f"Number of gateway hosts. Default for a new network: {_GATEWAYS}."
)
@_prefix
@click.option(
    "--dummy",
    is_flag=True,
    help="Start the control plane only, without root: databases, and hosts that forward no packets.",
)
@click.option(
    "--host",
    metavar="NAME",
    help="Host of the programs of this home's pool. Default: the first host. none: do not connect the pool.",
)
def up(hosts: int | None, gateways: int | None, prefix: str, dummy: bool, host: str | None) -> None:
    """Start OVN with hosts, gateway hosts and an outside network, each in a network namespace of this machine.

    Running daemons are not touched, ended ones are started again, also later by a supervisor. Uses the OVN and Open vSwitch of
    this machine if they are recent enough, else those of Debian 13, which are downloaded once into ~/.cache/calabash/ovn.
    """
    require("networks")
    known = Lab.of_prefix(prefix)
    # The shape of a network that was not started completely is not kept.
    record = known.record if known is not None and known.record.phase == "up" else None
    old = (len(record.hosts), len(record.gateways)) if record is not None else (_HOSTS, _GATEWAYS)
    wanted = (old[0] if hosts is None else hosts, old[1] if gateways is None else gateways)
    lab = Lab(
        prefix=prefix,
        directory=register() / prefix,
        hosts=[f"h{number}" for number in range(1, wanted[0] + 1)],
        gateways=[f"g{number}" for number in range(1, wanted[1] + 1)],
        dummy=dummy or (hosts is None and gateways is None and record is not None and record.dummy),
    )
    if host != NO_HOST:
        net_join.check(lab, home())
    lab.up()
    supervisor.start_supervisor(lab)
    click.echo(
        f"network {prefix} is up: {_shape(lab)}, OVN {version_text(lab.programs.ovn)},"
        f" Open vSwitch {version_text(lab.programs.ovs)}"
    )
    click.echo(f"northbound: {lab.northbound}")
    if host != NO_HOST:
        net_join.join(lab, home(), host)


@click.command()
@_prefix
def down(prefix: str) -> None:
    """Stop all processes of the network and delete its namespaces and files, also after a crash."""
    lab = Lab(prefix=prefix, directory=register() / prefix)
    lab.record.check()
    net_join.leave(lab, home())
    click.echo(f"network {prefix} is down" if lab.down() else f"no network {prefix} is up")


@click.command()
@click.option(
    "--prefix", envvar="CALABASH_NET_PREFIX", show_envvar=True, help="Show only the network with this prefix."
)
@output.option
def status(prefix: str | None, fmt: str) -> None:
    """Show the lab networks on this machine, and the state of their daemons."""
    wanted = [name for name in registered() if prefix in (None, name)]
    labs = [lab for lab in map(Lab.of_prefix, wanted) if lab is not None]
    if fmt in ("json", "yaml"):
        click.echo(output.document("NetworkLabList", [_described(lab) for lab in labs], fmt))
    elif not labs:
        click.echo("no network is up; `calabash net up` brings one up")
    elif fmt == "name":
        for lab in labs:
            click.echo(lab.record.prefix)
    else:
        for lab in labs:
            state = lab.record.phase or "broken; `calabash net down` takes it away"
            click.echo(f"network {lab.record.prefix}: {state}, {_shape(lab)}, in {lab.directory}")
            if lab.record.phase == "up" and not supervisor.supervisor_pid(lab.directory):
                click.echo("no supervisor runs: ended daemons are started again only by the next `calabash net up`")
        rows = [row for lab in labs for row in _described(lab)["daemons"]]
        output.emit("NetworkLabDaemonList", rows, DAEMONS, fmt, name="daemon")
        if any(not row["pid"] for row in rows):
            raise CalabashError(
                "some daemons do not run", reason=Reason.API_DOWN, hint="`calabash net up` starts them again"
            )


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_prefix
@click.option("--on", "host", default="", help="Host for ovs-vsctl, ovs-ofctl and ovs-appctl, such as h1.")
@click.argument("program")
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def ctl(prefix: str, host: str, program: str, words: tuple[str, ...]) -> None:
    """Run a program of OVN or Open vSwitch on the network: ovn-nbctl show, ovn-sbctl show, --on h1 ovs-vsctl show."""
    lab = Lab.of_prefix(prefix)
    if lab is None:
        raise CalabashError(
            f"no network {prefix[:40]} is up", reason=Reason.NOT_FOUND, hint="`calabash net up` brings one up"
        )
    if not program.startswith(("ovn-", "ovs-")):
        raise CalabashError(
            f"{program[:40]!r} is not a program of OVN or Open vSwitch",
            hint="give ovn-nbctl, ovn-sbctl or ovs-vsctl, for example",
        )
    if program.startswith("ovs-") and not host:
        raise CalabashError(f"{program} needs a host", hint=f"calabash net ctl --on {next(iter(lab.hosts))} {program}")
    command = lab.programs.command(program)
    directory = lab.host(host).directory if host else lab.central.directory
    sockets = {"ovn-nbctl": lab.northbound, "ovn-sbctl": lab.southbound, "ovn-trace": lab.southbound}
    if program == "ovs-vsctl":
        sockets[program] = lab.host(host).ovs_socket
    database = [f"--db={sockets[program]}"] if program in sockets else []
    line = [*command, *database, *words]
    become_program(line, environment=child_environment(("TERM", "COLUMNS", "LINES")) | rundirs(directory))


def _described(lab: Lab) -> dict[str, Any]:
    prefix = lab.record.prefix
    restarts = supervisor.read_restarts(lab.directory)
    return {
        "prefix": prefix,
        "phase": lab.record.phase,
        "dummy": lab.record.dummy,
        "directory": str(lab.directory),
        "northbound": lab.northbound,
        "southbound": lab.southbound,
        "hosts": list(lab.record.hosts),
        "gateways": list(lab.record.gateways),
        "supervisor": supervisor.supervisor_pid(lab.directory),
        "daemons": [_daemon(prefix, name, pid, restarts.get(name)) for name, pid in lab.daemons().items()],
    }


def _daemon(prefix: str, name: str, pid: int, restarts: DaemonRestarts | None) -> dict[str, Any]:
    on, _, daemon = name.partition("/")
    told = restarts or DaemonRestarts()
    return {
        "prefix": prefix,
        "on": on,
        "daemon": daemon,
        "pid": pid,
        "restarts": told.count,
        "restarted_s": told.last_s,
        "failure": told.failure,
    }


def _when(moment_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment_s)) if moment_s else "-"


def _shape(lab: Lab) -> str:
    hosts, gateways = len(lab.record.hosts), len(lab.record.gateways)
    words = [f"{hosts} host{'' if hosts == 1 else 's'}", f"{gateways} gateway host{'' if gateways == 1 else 's'}"]
    return ", ".join([*words, *(["no packets"] if lab.record.dummy else [])])
