"""``calabash remote``: servers of other machines, their cards and sessions, and reservations for several programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calabash.api import lease_endpoints
from calabash.cli import output
from calabash.cli.output import Column, Row, command_line, dash
from calabash.cli.remote.benchmark import bench
from calabash.cli.remote.server import server
from calabash.cli.servers import ASK_S, account, every, views
from calabash.cli.several import for_each
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_duration, format_mib, parse_duration_s, parse_memory_mib, parse_percent

if TYPE_CHECKING:
    pass


@click.group()
def remote() -> None:
    """Use devices of other machines: add servers, list and reserve devices; offer the devices of this machine."""


remote.add_command(bench)
remote.add_command(server)


@remote.command()
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--token",
    "file",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Token file of the server; - reads standard input.",
)
@click.option(
    "--name",
    default="",
    metavar="NAME",
    help="Name of the server on this machine. Default: the name that the server reports.",
)
def add(address: str, file: Path, name: str) -> None:
    """Add a server with its token, after checking both with a request to the server."""
    from calabash.broker.addresses import parse_address  # noqa: PLC0415
    from calabash.broker.client.connection import RemoteServerClient  # noqa: PLC0415
    from calabash.broker.token_file import read_token_file  # noqa: PLC0415

    where, said = parse_address(address), read_token_file(file)
    server = RemoteServerClient(name=name or str(where), address=where, certificate=said.certificate, token=said.token)
    view = server.send(lease_endpoints.SHOW_SERVER, timeout_s=ASK_S)
    server = replace(server, name=name or view["name"])
    account().add(server)
    click.echo(f"server {server.name} added: {len(view['cards'])} cards")


@remote.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a server and its token from this machine."""
    account().remove(name)
    click.echo(name)


_SERVER = Column(title="SERVER", text=lambda r: r["server"])
_GPU = Column(title="GPU", text=lambda r: str(r["index"]), right=True)
_MODEL = Column(title="MODEL", text=lambda r: r["model"])
_TOTAL = Column(title="TOTAL", text=lambda r: format_mib(r["memory_mib"]), right=True)
_HEALTH = Column(title="HEALTH", text=lambda r: r["health"])
LIST_COLUMNS = (
    _SERVER,
    _GPU,
    _MODEL,
    _HEALTH,
    _TOTAL,
    Column(title="FREE", text=lambda r: format_mib(r["memory_free_mib"]), right=True),
    Column(title="CORES FREE", text=lambda r: f"{r['cores_free_percent']}%", right=True),
    Column(title="COMPUTE", text=lambda r: dash(r["compute_capability"]), wide=True),
    Column(title="DRIVER", text=lambda r: r["driver"], wide=True),
    Column(title="UUID", text=lambda r: r["uuid"], wide=True),
)
SMI_COLUMNS = (
    _SERVER,
    _GPU,
    _MODEL,
    _HEALTH,
    Column(title="UTIL", text=lambda r: f"{r['utilization_percent']}%", right=True),
    Column(title="MEMORY USED", text=lambda r: format_mib(r["memory_used_mib"]), right=True),
    _TOTAL,
    Column(title="LEASES", text=lambda r: ",".join(lease[:8] for lease in r["leases"]) or "-"),
)


def _cards(names: Sequence[str], filters: Sequence[str]) -> list[Row]:
    import msgspec  # noqa: PLC0415

    from calabash.broker.devices import facts_of  # noqa: PLC0415
    from calabash.broker.filters import parse_filters  # noqa: PLC0415
    from calabash.broker.messages import RemoteCard  # noqa: PLC0415

    wanted = parse_filters(filters)
    return [
        {"server": server.name, "driver": view["driver"], **card}
        for server, view in views(account().servers(*names))
        for card in view["cards"]
        if wanted.accepts(facts_of(msgspec.convert(card, RemoteCard), server=view["name"], driver=view["driver"]))
    ]


_filters = click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="TERMS",
    help="Only matching cards, such as 'memory>=40GiB,model~A100'.",
)
_servers = click.option(
    "--server", "names", multiple=True, metavar="NAME", help="Only this server; repeat for several."
)


@remote.command("list")
@_filters
@_servers
@output.option
def list_cards(filters: tuple[str, ...], names: tuple[str, ...], fmt: str) -> None:
    """List the cards of all servers with their free memory and compute."""
    output.emit("RemoteCardList", _cards(names, filters), LIST_COLUMNS, fmt, name="uuid")


@remote.command()
@_filters
@_servers
@output.option
def smi(filters: tuple[str, ...], names: tuple[str, ...], fmt: str) -> None:
    """Show the utilization, memory use and leases of the cards of all servers."""
    output.emit("RemoteCardList", _cards(names, filters), SMI_COLUMNS, fmt, name="uuid")


def _age(row: Row) -> str:
    return format_duration(max(0.0, time.time() - row["made_at"]))


SESSION_COLUMNS = (
    Column(title="LEASE", text=lambda r: r["id"] if r["reserved"] else r["id"][:8]),
    _SERVER,
    Column(title="TOKEN", text=lambda r: r["token"]),
    Column(title="GPUS", text=lambda r: str(r["gpus"]), right=True),
    Column(title="CORES", text=lambda r: f"{r['cores']}%", right=True),
    Column(title="MEMORY", text=lambda r: format_mib(r["memory_mib"]), right=True),
    Column(title="KIND", text=lambda r: "reserved" if r["reserved"] else "run"),
    Column(title="SESSIONS", text=lambda r: str(len(r["sessions"])), right=True),
    Column(title="CLIENTS", text=lambda r: ",".join(sorted({s["peer"] for s in r["sessions"]})) or "-", wide=True),
    Column(title="AGE", text=_age, right=True),
    Column(title="ENDS IN", text=lambda r: format_duration(r["ends_in_s"]), right=True, wide=True),
    Column(title="COMMAND", text=command_line),
)


def _leases(names: Sequence[str]) -> list[dict[str, Any]]:
    answers = every(account().servers(*names), lambda s: s.send(lease_endpoints.LIST_LEASES, timeout_s=ASK_S))
    return [{"server": server.name, **lease} for server, answer in answers for lease in answer["items"]]


@remote.command()
@_servers
@output.option
def sessions(names: tuple[str, ...], fmt: str) -> None:
    """List the leases of this user's tokens, runs and reservations, with the programs that use them."""
    output.emit("LeaseList", _leases(names), SESSION_COLUMNS, fmt)


@remote.command()
@click.option("--gpus", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N", help="Number of cards.")
@click.option("--memory", metavar="SIZE", help="Memory of each card. Default: all of it.")
@click.option(
    "--cores", metavar="PERCENT", help="Compute share of each card. Default: best-effort with --memory, else 100."
)
@click.option(
    "--idle",
    default="10m",
    show_default=True,
    metavar="TIME",
    help="Release the reservation after this time without use.",
)
@click.option("--wait", default="0", metavar="TIME", help="Maximum time to wait for free cards. Default: do not wait.")
@_filters
@click.option("--server", "names", multiple=True, metavar="NAME", help="Use this server; repeat for several.")
@click.option(
    "--span", is_flag=True, help="Use several servers if one has too few cards; prints all leases, joined by commas."
)
@click.option("-q", "--quiet", is_flag=True, help="Print no reason of waiting.")
@output.option_of("table", "json", "yaml")
def reserve(
    *,
    gpus: int,
    memory: str | None,
    cores: str | None,
    idle: str,
    wait: str,
    filters: tuple[str, ...],
    names: tuple[str, ...],
    span: bool,
    quiet: bool,
    fmt: str,
) -> None:
    """Reserve cards for several programs, which `calabash run --remote --lease ID -- PROGRAM` starts."""
    from calabash.cli.run.remote_run import leases, write_keys  # noqa: PLC0415

    idle_s = parse_duration_s(idle)
    if idle_s < 1:
        raise CalabashError(f"--idle {idle} is below the minimum of 1s", hint="give 1s or more")
    order = {
        "gpus": gpus,
        **({"memory_mib": parse_memory_mib(memory)} if memory else {}),
        **({"cores": parse_percent(cores)} if cores else {}),
        "filters": list(filters),
        "wait_s": parse_duration_s(wait),
        "idle_s": idle_s,
        "command": ["(reserved)"],
    }
    granted = leases(order, names, span=span, quiet=quiet)
    write_keys(granted)
    lease = ",".join(grant["id"] for _, grant in granted)
    parts = [{"id": grant["id"], "server": server.name} for server, grant in granted]
    output.emit_made("Lease", {"lease": lease, "parts": parts}, lease, fmt)


@remote.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
def release(ids: tuple[str, ...]) -> None:
    """Release leases of reservations or runs; programs that use them lose their cards."""
    kept, held = account(), _leases(())
    servers: dict[str, str] = {}
    for wanted in (one for several in ids for one in several.split(",")):
        meant = [lease for lease in held if lease["id"].startswith(wanted)] if wanted else []
        if len(meant) != 1:
            raise CalabashError(
                f"{f'{len(meant)} leases match' if meant else 'no lease matches'} {wanted[:40]!r}",
                reason=Reason.NOT_FOUND,
                hint="see `calabash remote sessions`",
            )
        servers[meant[0]["id"]] = meant[0]["server"]

    def give_back(lease: str) -> None:
        kept.servers(servers[lease])[0].send(lease_endpoints.END_LEASE, lease, timeout_s=30)
        kept.delete_key(lease)

    for_each(list(servers), give_back, done="released")
