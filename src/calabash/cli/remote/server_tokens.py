"""``calabash remote server token``: create, list and revoke the tokens of this server, and change the key that signs them."""

from __future__ import annotations

import os
import re
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any

import click

from calabash.cli import output
from calabash.cli.home import home, own_file
from calabash.cli.output import Column, Row, dash
from calabash.model.errors import CalabashError
from calabash.model.extras import require
from calabash.model.names import NAME_HINT, NAME_PATTERN
from calabash.model.units import format_duration, format_mib, parse_duration_s, parse_memory_mib, parse_percent


def _office() -> Any:
    require("remote")
    from calabash.broker.server.directory import make_directory  # noqa: PLC0415
    from calabash.broker.server.keyring import TokenRegistry  # noqa: PLC0415

    directory = own_file("server")
    make_directory(directory)
    return TokenRegistry(directory)


@click.group()
def token() -> None:
    """Create, list and revoke the tokens of this server, which authenticate users and limit their use."""


@token.command()
@click.argument("name")
@click.option(
    "--gpus",
    type=click.IntRange(0, 4096),
    default=1,
    show_default=True,
    metavar="N",
    help="Maximum number of cards at a time.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="Maximum device memory at a time, summed over cards, such as 40GiB. Default: no limit.",
)
@click.option("--cores", default="100", show_default=True, metavar="PERCENT", help="Maximum compute share of a card.")
@click.option("--expires", default="30d", show_default=True, metavar="TIME", help="Lifetime of the token.")
@click.option(
    "--advertise",
    "servers",
    multiple=True,
    metavar="HOST:PORT",
    help="Address of this server to write into the file; repeat for several.",
)
def create(*, name: str, gpus: int, memory: str | None, cores: str, expires: str, servers: tuple[str, ...]) -> None:
    """Create a token and print it on standard output; redirect it to a file, and give the file to the user.

    \b
    calabash remote server token create vision --gpus 2 --memory 40GiB --expires 30d > vision.token
    """  # noqa: D301 - click reads the backspace
    from calabash.broker.fingerprints import fingerprint  # noqa: PLC0415
    from calabash.broker.server.directory import certificate_of  # noqa: PLC0415
    from calabash.broker.token_file import GivenToken  # noqa: PLC0415

    if re.match(NAME_PATTERN, name) is None:
        raise CalabashError(f"{name[:80]!r} is not a name", hint=NAME_HINT)
    memory_mib = parse_memory_mib(memory) if memory else 0
    percent, valid_s = parse_percent(cores), parse_duration_s(expires)
    if not 1 <= valid_s <= 36_500 * 86_400:
        raise CalabashError(f"--expires {expires} is out of range", hint="give 1s to 36500d")
    office = _office()
    text = office.create(name, gpus=gpus, memory_mib=memory_mib, cores=percent, valid_s=valid_s, now=time.time())
    certificate = fingerprint(certificate_of(home() / "server", socket.gethostname()))
    addresses = servers or _addresses(home() / "server")
    _for_its_owner_only()
    click.echo(GivenToken(token=text, certificate=certificate, servers=tuple(addresses)).text(name=name), nl=False)


def _addresses(directory: Path) -> tuple[str, ...]:
    """Return the addresses that the server last wrote, with this machine's name for an unspecified one such as 0.0.0.0."""
    try:
        lines = (directory / "address").read_text().splitlines()
    except OSError:
        return ()
    return tuple(_address(line.partition(" ")[0]) for line in lines)


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    return f"{socket.gethostname() if host in {'0.0.0.0', '[::]'} else host}:{port}"  # noqa: S104 - compared only


def _for_its_owner_only() -> None:
    """Set mode 0600 on the file that standard output goes to, if it is a regular file of this user."""
    status = os.fstat(sys.stdout.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        os.fchmod(sys.stdout.fileno(), 0o600)


def _state(row: Row) -> str:
    if row["revoked"]:
        return "revoked"
    return "expired" if row["expires"] <= time.time() else "valid"


COLUMNS = (
    Column(title="NAME", text=lambda r: r["name"]),
    Column(title="ID", text=lambda r: r["id"]),
    Column(title="STATE", text=_state),
    Column(title="GPUS", text=lambda r: str(r["gpus"]), right=True),
    Column(title="MEMORY", text=lambda r: format_mib(r["memory_mib"]) if r["memory_mib"] else "-", right=True),
    Column(title="CORES", text=lambda r: f"{r['cores']}%", right=True),
    Column(title="ENDS IN", text=lambda r: format_duration(max(0.0, r["expires"] - time.time())), right=True),
    Column(title="KEY", text=lambda r: dash(r["key"]), wide=True),
)


@token.command("list")
@output.option
def list_tokens(fmt: str) -> None:
    """List the tokens that were created."""
    rows = [
        {
            "name": t.claims.name,
            "id": t.claims.id,
            "gpus": t.claims.gpus,
            "memory_mib": t.claims.memory_mib,
            "cores": t.claims.cores,
            "issued": t.claims.issued,
            "expires": t.claims.expires,
            "key": t.claims.key,
            "revoked": t.revoked,
        }
        for t in _office().issued().tokens
    ]
    output.emit("TokenList", rows, COLUMNS, fmt)


@token.command()
@click.argument("name")
def revoke(name: str) -> None:
    """Revoke all tokens with a name, or the token with an ID, with immediate effect."""
    for claims in _office().revoke(name, time.time()):
        click.echo(claims.id)


@token.command("rotate-keys")
@click.option(
    "--keep",
    default="30d",
    show_default=True,
    metavar="TIME",
    help="Time for which tokens signed with earlier keys remain valid.",
)
def rotate_keys(keep: str) -> None:
    """Create a new key to sign tokens with; `--keep 0` invalidates all earlier tokens immediately."""
    click.echo(_office().rotate(keep_s=parse_duration_s(keep), now=time.time()))
