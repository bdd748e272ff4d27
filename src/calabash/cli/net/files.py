"""``calabash net apply`` and ``diff``, for network objects in files; ``calabash net certificate``."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.net.kinds import NAME
from calabash.cli.output import Column
from calabash.model.errors import CalabashError, Reason, file_reason

MARKS = {"created": "+", "changed": "~", "removed": "-"}
CERTIFICATE_BYTES_MAX = 24_000
CERTIFICATES = (
    NAME,
    Column(title="NAMES", text=lambda r: ",".join(r["names"]) or r["subject"]),
    Column(title="EXPIRES", text=lambda r: time.strftime("%Y-%m-%d", time.gmtime(r["expires_at"]))),
    Column(title="SHA-256", text=lambda r: r["sha256"], wide=True),
)

_files = click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    help="YAML file; -: standard input; repeat for several.",
)
_prune = click.option(
    "--prune",
    is_flag=True,
    help="Delete objects that earlier files created and these files lack, in VPCs that these files define.",
)


@click.command()
@_files
@_prune
@click.option("--dry-run", is_flag=True, help="Only print the changes.")
@output.option
def apply(files: tuple[str, ...], fmt: str, *, prune: bool, dry_run: bool) -> None:
    """Create and change network objects as defined in files: all of them, or none if one is refused."""
    found = _ask(files, prune=prune, dry_run=dry_run)
    if fmt in ("json", "yaml"):
        click.echo(output.document("NetworkChanges", found, fmt))
        return
    for change in found["changes"]:
        if change["change"] != "unchanged":
            click.echo(f"{change['kind']} {change['name']} {change['change']}" + (" (dry run)" if dry_run else ""))
    counts = Counter(change["change"] for change in found["changes"])
    said = ", ".join(
        f"{counts[word]} {word}" for word in ("created", "changed", "removed", "unchanged") if counts[word]
    )
    click.echo(said or "nothing to do")


@click.command()
@_files
@_prune
def diff(files: tuple[str, ...], *, prune: bool) -> None:
    """Show the changes that `apply` would make; exit code 1 if there are any."""
    from calabash.net.store.apply_plan import difference_lines  # noqa: PLC0415

    changes = [c for c in _ask(files, prune=prune, dry_run=True)["changes"] if c["change"] != "unchanged"]
    for change in changes:
        click.echo(f"{MARKS[change['change']]} {change['kind']} {change['name']}")
        for line in difference_lines(change["before"], change["after"]):
            click.echo(f"    {output.printable(line)}")
    if changes:
        sys.exit(1)


def _ask(files: tuple[str, ...], *, prune: bool, dry_run: bool) -> Any:
    from calabash.api.networks import PLACE_CHARACTERS_MAX  # noqa: PLC0415
    from calabash.net.objects.manifest_parser import BYTES_MAX, read_manifests  # noqa: PLC0415 - YAML is loaded where it is read

    found = [one for file in files for one in read_manifests(read_file(file, BYTES_MAX), "" if file == "-" else file)]

    documents = [one.plain() | {"place": output.printable(one.place)[-PLACE_CHARACTERS_MAX:]} for one in found]
    return client().send(endpoints.APPLY_NETWORKS, body={"documents": documents, "prune": prune, "dry_run": dry_run})


def read_file(file: str, most: int) -> str:
    """Return the text of a file, or of standard input for ``-``. Raises CalabashError if it cannot be read."""
    try:
        with click.open_file(file, "rb") as stream:
            raw = stream.read(most + 1)
            return raw.decode() if isinstance(raw, bytes) else str(raw)
    except UnicodeDecodeError:
        raise CalabashError(
            f"{file} is not UTF-8 text", reason=Reason.BAD_FILE, hint="check that it is the right file"
        ) from None
    except OSError as error:
        raise CalabashError(
            f"{file} cannot be read: {error.strerror}", reason=file_reason(error), hint="check the path"
        ) from None


@click.group()
def certificate() -> None:
    """Store, list and delete certificates of load balancers that terminate TLS; keys are not shown."""


@certificate.command("put")
@click.argument("name", metavar="VPC/NAME")
@click.option("--cert", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Certificate chain, PEM.")
@click.option(
    "--key", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Private key, PEM, without password."
)
def put_certificate(name: str, cert: Path, key: Path) -> None:
    """Store a certificate and its key, or replace them."""
    order = {
        "certificate": read_file(str(cert), CERTIFICATE_BYTES_MAX),
        "key": read_file(str(key), CERTIFICATE_BYTES_MAX),
    }
    click.echo(client().send(endpoints.PUT_CERTIFICATE, query={"name": name}, body=order)["name"])


@certificate.command("list")
@output.option
def list_certificates(fmt: str) -> None:
    """List certificates, without their keys."""
    output.emit("CertificateList", client().send(endpoints.LIST_CERTIFICATES)["items"], CERTIFICATES, fmt, name="name")


@certificate.command("delete")
@click.argument("name", metavar="VPC/NAME")
def delete_certificate(name: str) -> None:
    """Delete a certificate and its key. Fails while a load balancer uses it."""
    click.echo(client().send(endpoints.DELETE_CERTIFICATE, query={"name": name})["name"])
