"""``calabash remote server``: offer the devices of this machine to programs on other machines."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from calabash.adapters.host.children import start_module
from calabash.api import endpoints, lease_endpoints
from calabash.cli import home as homes
from calabash.cli import output
from calabash.cli.pool.lifecycle import INHERITED, served_node
from calabash.cli.remote.server_tokens import token
from calabash.model.errors import CalabashError, Reason
from calabash.model.extras import require
from calabash.model.units import format_duration, parse_duration_s

READY_TIMEOUT_S = 30.0
COMMANDS = "calabash.cli.main"


def directory() -> Path:
    """Return the directory of the server's files."""
    return homes.home() / "server"


def own_server() -> Any:
    """Return a client for the server of this home, over the socket that only the server's owner can use."""
    from calabash.broker.client.connection import OwnerSocketClient  # noqa: PLC0415
    from calabash.broker.server.directory import SOCKET_FILE  # noqa: PLC0415

    return OwnerSocketClient(path=homes.own_file(f"server/{SOCKET_FILE}"))


@click.group()
def server() -> None:
    """Serve the devices of this machine to programs on other machines."""


server.add_command(token)


@server.command()
@click.option("--listen", default="", metavar="HOST:PORT", help="Address to listen on, such as 0.0.0.0:7433.")
@click.option(
    "--port",
    "ports",
    multiple=True,
    metavar="VPC/SUBNET/PORT",
    help="Listen on this port of a tenant network, at TCP port 7433, or NUMBER with :NUMBER; repeat for several.",
)
@click.option("--sim", metavar="NAME", help="If no pool runs, start one with this simulated node.")
@click.option("--name", default="", metavar="NAME", help="Name of the server in filters. Default: the host name.")
@click.option(
    "--reconnect-within",
    "grace",
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Time for which a lease survives a broken connection.",
)
@click.option(
    "--on-revoke",
    type=click.Choice(["cut", "finish"]),
    default="cut",
    show_default=True,
    help="End programs whose token was revoked or has expired, or let them finish.",
)
@click.option("--foreground", is_flag=True, help="Run in the foreground, attached to the terminal.")
def up(
    *, listen: str, ports: tuple[str, ...], sim: str | None, name: str, grace: str, on_revoke: str, foreground: bool
) -> None:
    """Start the server, and the pool if none runs."""
    require("remote")
    from calabash.broker.addresses import parse_address  # noqa: PLC0415

    _check_addresses(listen, ports)
    address, grace_s = parse_address(listen) if listen else None, parse_duration_s(grace)
    if not 1 <= grace_s <= 86_400:
        raise CalabashError(f"--reconnect-within {grace} is out of range", hint="give 1s to 24h")
    _pool_is_up(sim)
    named = name or socket.gethostname()
    if foreground:
        _serve(address, ports, named, grace_s, on_revoke)
        return
    words = [
        "remote",
        "server",
        "up",
        *(["--listen", str(address)] if address else []),
        *(word for port in ports for word in ("--port", port)),
        "--name",
        named,
        "--reconnect-within",
        f"{grace_s}s",
        "--on-revoke",
        on_revoke,
    ]
    process, log, start = _started(words)
    view = _ready(process, log, start)
    click.echo(f"server is up: {view['name']} at {_addresses()}, {len(view['cards'])} cards, pid {view['pid']}")


def _check_addresses(listen: str, ports: tuple[str, ...]) -> None:
    """Raise CalabashError if the server would have no address, one port twice, or ports that need root."""
    from calabash.broker.server.network_ports import parse_tenant_listener  # noqa: PLC0415

    if not listen and not ports:
        raise CalabashError(
            "neither --listen nor --port is given",
            hint="give --listen 0.0.0.0:7433, or --port VPC/SUBNET/PORT to listen in a tenant network",
        )
    names = [parse_tenant_listener(port).port for port in ports]
    if len(set(names)) != len(names):
        raise CalabashError("--port names a port twice", hint="give each port once")
    if ports and os.geteuid() != 0:
        raise CalabashError(
            "--port requires root, to enter the tenant network",
            reason=Reason.NOT_PERMITTED,
            hint="start the server as root, like its pool",
        )


def _addresses() -> str:
    """Return the addresses of the server as text, such as ``0.0.0.0:7433, 10.0.1.20:7433 (red/a/gpu1)``."""
    lines = (directory() / "address").read_text().splitlines()
    shown = [(address, port) for address, _, port in (line.partition(" ") for line in lines)]
    return ", ".join(f"{address} ({port})" if port else address for address, port in shown)


def _pool_is_up(sim: str | None) -> None:
    try:
        status = homes.own_client().send(endpoints.SHOW_STATUS)
    except CalabashError as error:
        if error.reason is not Reason.POOL_DOWN:
            raise
        words = ["up", *(["--sim", sim] if sim else [])]
        code = start_module(COMMANDS, *words, inherit=INHERITED, environment=_home(), stdout=sys.stderr.fileno()).wait()
        if code:
            sys.exit(code)  # the command has printed the reason
        return
    if sim and status["sim"] != sim:
        raise CalabashError(
            f"the running pool serves {served_node(status)}, not simulated node {sim}",
            reason=Reason.POOL_RUNNING,
            hint="omit --sim, or stop the pool with `calabash down`",
        )


def _serve(address: Any, ports: tuple[str, ...], name: str, grace_s: float, on_revoke: str) -> None:
    from calabash.adapters.pool.client import socket_path  # noqa: PLC0415
    from calabash.broker.server.broker import ServerSettings  # noqa: PLC0415
    from calabash.broker.server.network_ports import parse_tenant_listener  # noqa: PLC0415
    from calabash.broker.server.serve import run_server  # noqa: PLC0415

    settings = ServerSettings(name=name, grace_s=grace_s, on_revoke="finish" if on_revoke == "finish" else "cut")
    pool = Path(socket_path(homes.directory()))
    run_server(directory(), settings, pool, address=address, ports=[parse_tenant_listener(port) for port in ports])


def _home() -> dict[str, str]:
    return {"CALABASH_HOME": homes.directory()}


def _started(words: list[str]) -> tuple[subprocess.Popen[bytes], Path, int]:
    from calabash.broker.server.directory import LOG_FILE, make_directory  # noqa: PLC0415

    make_directory(directory())
    log = directory() / LOG_FILE
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "ab") as sink:
        start = sink.tell()
        process = start_module(
            COMMANDS, *words, "--foreground", environment=_home(), stdout=sink, stderr=sink, new_session=True
        )
    return process, log, start


def _ready(process: subprocess.Popen[bytes], log: Path, start: int) -> dict[str, Any]:
    """Wait until the server answers, and return its view; raise the error that it printed if it ended instead.

    Args:
        start: size of the log before the server was started, where its output begins.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _last_words(log, start, process.returncode)
        with contextlib.suppress(CalabashError):
            view: dict[str, Any] = own_server().send(lease_endpoints.SHOW_SERVER, timeout_s=5)
            if view["pid"] == process.pid:
                return view
        time.sleep(0.02)
    process.terminate()
    raise CalabashError(
        f"the server did not answer within {READY_TIMEOUT_S:.0f}s", reason=Reason.TIMEOUT, hint=f"see {log}"
    )


def _last_words(log: Path, start: int, code: int) -> CalabashError:
    with log.open("rb") as source:
        source.seek(start)
        lines = source.read(1 << 20).decode(errors="replace").splitlines()
    message = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
    hint = next((line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")), f"see {log}")
    return CalabashError(message or f"the server ended with exit code {code}", reason=Reason.CONFLICT, hint=hint)


@server.command()
@click.option("--force", is_flag=True, help="Release held leases first.")
def down(force: bool) -> None:
    """Stop the server. Fails while leases are held, unless --force is given. The pool keeps running."""
    found = own_server()
    pid = found.send(lease_endpoints.SHOW_SERVER)["pid"]
    found.send(lease_endpoints.SHUT_DOWN_SERVER, body={"force": force}, timeout_s=120)
    deadline = time.monotonic() + 15
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    click.echo("server is down")


@server.command()
@output.option
def status(fmt: str) -> None:
    """Show the server: address, cards, leases."""
    view = own_server().send(lease_endpoints.SHOW_SERVER)
    if fmt in ("json", "yaml"):
        click.echo(output.document("Server", view, fmt))
        return
    if fmt == "name":
        click.echo(view["name"])
        return
    rows = [
        ("server", f"{view['name']}, pid {view['pid']}, version {view['version']}"),
        ("address", _addresses()),
        ("leases", str(view["leases"]) + (", draining: grants no new leases" if view["draining"] else "")),
        ("cards", str(len(view["cards"]))),
        ("grace", format_duration(view["grace_s"])),
        ("driver", view["driver"]),
    ]
    for title, text in rows:
        click.echo(f"{title:<12}{text}")


@server.command()
def drain() -> None:
    """Stop granting new leases; existing leases continue."""
    own_server().send(lease_endpoints.DRAIN_SERVER, body={"draining": True})
    click.echo("the server grants no new leases")


@server.command()
def undrain() -> None:
    """Grant new leases again."""
    own_server().send(lease_endpoints.DRAIN_SERVER, body={"draining": False})
    click.echo("the server grants new leases")
