"""``explain-gang``: describe the gangs that the objects in a file form. It needs no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from calabash.cli import output
from calabash.cli.output import Column, Row, dash
from calabash.model.errors import CalabashError, Reason, file_reason
from calabash.model.extras import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from calabash.kubernetes.gangs.explain import Explanation
    from calabash.kubernetes.gangs.gang import Gang, Role
    from calabash.kubernetes.gangs.owner import GangOwner

_OWNERS_BYTES_MAX = 256 * 1024

COLUMNS = (
    Column(title="ROLE", text=lambda r: r["role"]),
    Column(title="PODS", text=lambda r: str(r["pods"]), right=True),
    Column(title="MIN", text=lambda r: str(r["minimum"]), right=True),
    Column(title="MAX", text=lambda r: dash(r["maximum"]), right=True),
    Column(title="SUBGROUPS", text=lambda r: f"{r['subgroups']} of {r['subgroup_size']}" if r["subgroups"] else "-"),
    Column(title="DEVICES", text=lambda r: dash(r["devices"]), right=True),
    Column(title="CPU", text=lambda r: "-" if r["cpu"] is None else f"{r['cpu']:g}", right=True),
    Column(title="REQUEST", text=lambda r: dash(r["request"])),
    Column(title="STARTS", text=lambda r: f"step {r['step'] + 1}" if r["step"] else "first"),
)


@click.command("explain-gang")
@click.option("-f", "--file", "file", required=True, metavar="FILE", help="YAML file; -: standard input.")
@click.option(
    "--owners",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="YAML file with a list of more kinds, as in the chart's value gangs.owners.",
)
@output.option_of("table", "json", "yaml")
def explain_gang(*, file: str, owners: Path | None, fmt: str) -> None:
    """Describe the gangs of pods that the objects in a file form: roles, devices and minimum. Needs no cluster.

    Admission reads the gangs of a cluster in the same way, with the kinds of the chart's value gangs.owners.
    """
    require("kubernetes")
    from calabash.kubernetes.gangs.explain import BYTES_MAX, explain_file  # noqa: PLC0415
    from calabash.kubernetes.gangs.table import table_with  # noqa: PLC0415

    added = _owners(owners) if owners is not None else ()
    shown = "standard input" if file == "-" else file
    found = explain_file(_read(file, BYTES_MAX), shown, table_with(added))
    if fmt == "table":
        for one in found:
            _print(one)
    else:
        click.echo(output.document("GangList", [_row(one) for one in found], fmt))
    invalid = sum(one.invalid for one in found)
    if invalid or not found:
        raise CalabashError(
            f"{shown}: {invalid} of {len(found)} objects are not valid" if found else f"{shown} has no objects",
            reason=Reason.BAD_FILE,
            hint="the reasons are above" if found else "name a file with manifests",
        )


def _read(file: str, bytes_max: int) -> str:
    """Return the contents of a file, or of standard input for ``-``; one byte more than is allowed at most."""
    try:
        with click.open_file(file, "rb") as stream:
            text: str = stream.read(bytes_max + 1).decode()
            return text
    except (OSError, ValueError) as error:
        raise CalabashError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or error}",
            reason=file_reason(error),
            hint="name a YAML file in UTF-8",
        ) from error


def _owners(path: Path) -> Sequence[GangOwner]:
    """Return the entries of a file with additional kinds. Raises CalabashError(BAD_FILE)."""
    from calabash.kubernetes.gangs.owner import HINT, read_owners  # noqa: PLC0415
    from calabash.model.strict_yaml import YamlLimits, read_documents  # noqa: PLC0415

    limits = YamlLimits(bytes_max=_OWNERS_BYTES_MAX, depth_max=12, hint=HINT)
    documents = list(read_documents(_read(str(path), _OWNERS_BYTES_MAX), str(path), limits))
    return read_owners(documents[0] if documents else None)


def _row(one: Explanation) -> Row:
    return {
        "place": one.place,
        "api_version": one.api_version,
        "kind": one.kind,
        "name": one.name,
        "gangs": [_gang_row(gang) for gang in one.gangs],
        "reason": one.reason,
        "valid": not one.invalid,
        "note": one.note,
    }


def _gang_row(gang: Gang) -> Row:
    return {
        "name": gang.name,
        "namespace": gang.namespace,
        "gangs": gang.copies,
        "size": gang.size,
        "minimum": gang.minimum,
        "waits_for": gang.waits_for(),
        "open_size": gang.open_size,
        "in_steps": gang.in_steps,
        "roles": [_role_row(role) for role in gang.roles],
        "topology": [{"level": t.level, "required": t.required, "role": t.role, "size": t.size} for t in gang.topology],
    }


def _role_row(role: Role) -> Row:
    from calabash.kubernetes.gangs.explain import amounts_or_reason  # noqa: PLC0415

    amounts, reason = amounts_or_reason(role)
    request = reason if amounts is None else amounts.slices
    if amounts is not None and amounts.claims:
        request = ", ".join(filter(None, (request, f"{amounts.claims} resource claims")))
    return {
        "role": role.name,
        "pods": role.count,
        "minimum": role.minimum,
        "maximum": role.maximum,
        "subgroups": role.subgroups,
        "subgroup_size": role.subgroup_size,
        "devices": amounts.devices if amounts is not None else None,
        "cpu": amounts.cpu_milli / 1000 if amounts is not None else None,
        "request": request,
        "step": role.step,
    }


def _print(one: Explanation) -> None:
    head = f"{one.kind or 'object'} {one.name or '(without a name)'} ({one.api_version or 'no version'})"
    click.echo(output.printable(f"{head}, {one.place}"))
    if one.reason:
        click.echo(f"  {'not valid' if one.invalid else 'no gang'}: {output.printable(one.reason)}")
    for gang in one.gangs:
        for line in _lines(gang):
            click.echo(f"  {line}")
        rows = [_role_row(role) for role in gang.roles]
        for line in output.table(COLUMNS, rows).splitlines():
            click.echo(f"    {line}")
    if one.note:
        click.echo(f"  note: {one.note}")


def _lines(gang: Gang) -> list[str]:
    pods = f"{'at least ' if gang.open_size else ''}{gang.size} pods"
    several = f"{gang.copies} gangs of {pods}" if gang.copies != 1 else f"a gang of {pods}"
    lines = [f"{several}; {gang.minimum} start together, so the planner waits for {gang.waits_for()}"]
    if gang.in_steps:
        rest = ", then ".join(str(gang.waits_for(step)) for step in range(gang.steps))
        lines.append(f"the controller creates the pods in {gang.steps} steps, each of which starts together: {rest}")
    for request in gang.topology:
        strength = "required" if request.required else "preferred"
        whom = f"role {request.role}" if request.role else "all pods"
        size = f", {request.size} pods each" if request.size else ""
        lines.append(output.printable(f"topology: {whom} within one {request.level} ({strength}{size})"))
    return lines
