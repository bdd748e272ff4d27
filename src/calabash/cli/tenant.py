"""``calabash tenant``, ``project`` and ``quota``: teams, their parts, and what each is promised."""

from __future__ import annotations

from typing import Any

import click

from calabash.cli import output
from calabash.cli.home import client
from calabash.cli.output import Column, Row, dash
from calabash.cli.queue import gpus, names
from calabash.model.tenancy import parse_network_bounds
from calabash.model.units import format_duration, parse_duration_s
from calabash.seams.pool.client import quoted

NAME = Column(title="NAME", text=lambda r: r["name"])
BUDGET = Column(title="BUDGET", text=lambda r: dash(r["budget"]))
TENANT_COLUMNS = (
    NAME,
    gpus("guarantee"),
    gpus("limit"),
    gpus("weight"),
    BUDGET,
    Column(title="PRIORITIES", text=lambda r: f"{r['priority_min']}..{r['priority_max']}", wide=True),
    Column(title="MODES", text=lambda r: dash(",".join(r["modes"])), wide=True),
    Column(title="MODELS", text=lambda r: dash(",".join(r["models"])), wide=True),
    Column(title="SLICES/USER", text=lambda r: dash(r["slices_per_user"] or None), right=True, wide=True),
    Column(title="NETWORKS", text=lambda r: dash(",".join(f"{k}={n}" for k, n in r["networks"].items())), wide=True),
    Column(title="RUN TIME", text=lambda r: format_duration(r["run_s_max"]) if r["run_s_max"] else "-", wide=True),
    Column(title="USERS", text=lambda r: dash(",".join(r["users"]))),
    Column(title="GROUPS", text=lambda r: dash(",".join(r["groups"]))),
)
PROJECT_COLUMNS = (
    NAME,
    Column(title="QUEUE", text=lambda r: r["queue"]),
    gpus("guarantee"),
    gpus("limit"),
    gpus("weight"),
)
QUOTA_COLUMNS = (
    Column(title="TENANT", text=lambda r: r["tenant"]),
    Column(title="PROJECT", text=lambda r: dash(r["project"])),
    gpus("guarantee"),
    gpus("limit"),
    gpus("allocated"),
    gpus("borrowed"),
    gpus("pending"),
    BUDGET,
    Column(title="SPENT", text=lambda r: dash(r.get("spent")), right=True),
)
_NO_LIMIT = "none"


class _Limit(click.ParamType[Any]):
    name = "devices"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value if value == _NO_LIMIT else click.FloatRange(0).convert(value, param, ctx)


def amounts(command: Any) -> Any:
    """The options of whatever has a guarantee."""
    for option in (
        click.option("--weight", type=click.FloatRange(0), help="Share of what nobody claims."),
        click.option("--limit", type=_Limit(), metavar="DEVICES", help="Devices at most; `none`: no limit."),
        click.option("--guarantee", type=click.FloatRange(0), help="Devices that it gets back whenever it wants them."),
    ):
        command = option(command)
    return command


def said(options: dict[str, Any]) -> dict[str, Any]:
    """The body of a change: what was said on the command line."""
    found = {key: value for key, value in options.items() if value is not None}
    if found.get("limit") == _NO_LIMIT:
        found["limit"] = None
    return found


def _settings(command: Any) -> Any:
    for option in (
        click.option(
            "--networks",
            metavar="KIND=MOST,...",
            help="Objects of networks at most, like vpc=4,eip=8; empty: no bounds.",
        ),
        click.option("--groups", metavar="NAMES", help="Groups of this machine whose members are its members."),
        click.option("--users", metavar="NAMES", help="Its members, separated by commas."),
        click.option("--run-time", metavar="TIME", help="A slice is ended after so long: 12h, 2d; 0: no bound."),
        click.option(
            "--slices-per-user", type=click.IntRange(0), help="Slices that one user has at most; 0: no bound."
        ),
        click.option("--models", metavar="NAMES", help="Device models that it may use; empty: any."),
        click.option("--modes", metavar="NAMES", help="Sharing modes that it may ask for; empty: any."),
        click.option("--priority-max", type=click.IntRange(-1000, 1000), help="Largest priority of its requests."),
        click.option("--priority-min", type=click.IntRange(-1000, 1000), help="Least priority of its requests."),
        click.option("--budget", metavar="AMOUNT", help="What it may spend, like 5000EUR; empty: not watched."),
        amounts,
    ):
        command = option(command)
    return command


def _put(name: str, options: dict[str, Any]) -> None:
    body = said(options)
    body |= {key: names(body[key]) for key in ("modes", "models", "users", "groups") if key in body}
    if "networks" in body:
        body["networks"] = parse_network_bounds(body["networks"])
    if "run_time" in body:
        body["run_s_max"] = parse_duration_s(body.pop("run_time"))
    client().put(f"/v1/tenants/{quoted(name)}", body)
    click.echo(name)


def show(kind: str, row: Row, columns: tuple[Column, ...], fmt: str) -> None:
    """One object: a line of a table, or the document."""
    if fmt in ("json", "yaml"):
        click.echo(output.document(kind, row, fmt))
    else:
        output.emit(kind, [row], columns, fmt, name="name")


@click.group()
def tenant() -> None:
    """Create, change and list tenants: teams with a guarantee, bounds and members (amounts in devices)."""


@tenant.command("list")
@output.option
def list_tenants(fmt: str) -> None:
    """List the tenants that you may see."""
    output.emit("TenantList", client().get("/v1/tenants")["items"], TENANT_COLUMNS, fmt, name="name")


@tenant.command("show")
@click.argument("name")
@output.option
def show_tenant(name: str, fmt: str) -> None:
    """Show one tenant."""
    show("Tenant", client().get(f"/v1/tenants/{quoted(name)}"), TENANT_COLUMNS, "wide" if fmt == "table" else fmt)


@tenant.command("create")
@click.argument("name")
@_settings
def create_tenant(name: str, **options: Any) -> None:
    """Create a tenant; its queue has its name."""
    _put(name, options)


@tenant.command("set")
@click.argument("name")
@_settings
def set_tenant(name: str, **options: Any) -> None:
    """Create or change a tenant; what is not named stays as it is."""
    _put(name, options)


@tenant.command("delete")
@click.argument("name")
def delete_tenant(name: str) -> None:
    """Delete a tenant without requests, its projects and its members' roles."""
    client().delete(f"/v1/tenants/{quoted(name)}")
    click.echo(name)


@click.group()
def project() -> None:
    """Create, change and list the projects of a tenant."""


@project.command("list")
@click.argument("tenant")
@output.option
def list_projects(tenant: str, fmt: str) -> None:
    """List the projects of a tenant."""
    items = client().get(f"/v1/tenants/{quoted(tenant)}/projects")["items"]
    output.emit("ProjectList", items, PROJECT_COLUMNS, fmt, name="name")


@project.command("show")
@click.argument("tenant")
@click.argument("name")
@output.option
def show_project(tenant: str, name: str, fmt: str) -> None:
    """Show one project."""
    show("Project", client().get(f"/v1/tenants/{quoted(tenant)}/projects/{quoted(name)}"), PROJECT_COLUMNS, fmt)


@project.command("set")
@click.argument("tenant")
@click.argument("name")
@amounts
def set_project(tenant: str, name: str, **options: Any) -> None:
    """Create or change a project; what is not named stays as it is."""
    client().put(f"/v1/tenants/{quoted(tenant)}/projects/{quoted(name)}", said(options))
    click.echo(f"{tenant}/{name}")


@project.command("delete")
@click.argument("tenant")
@click.argument("name")
def delete_project(tenant: str, name: str) -> None:
    """Delete a project without requests."""
    client().delete(f"/v1/tenants/{quoted(tenant)}/projects/{quoted(name)}")
    click.echo(f"{tenant}/{name}")


@click.group()
def quota() -> None:
    """Show and set what tenants and projects are promised (amounts in devices)."""


@quota.command("show")
@click.option("--tenant", default="", metavar="NAME", help="Only this one.")
@output.option
def show_quota(tenant: str, fmt: str) -> None:
    """Show guarantees and limits beside what is held, borrowed and waited for."""
    items = [q for q in client().get("/v1/quota")["items"] if tenant in {"", q["tenant"]}]
    output.emit("QuotaList", items, QUOTA_COLUMNS, fmt, name="queue")


@quota.command("set")
@click.argument("tenant")
@click.option("--project", default="", metavar="NAME", help="Of this project, not of the whole tenant.")
@amounts
def set_quota(tenant: str, project: str, **options: Any) -> None:
    """Set guarantee, limit and weight; what is not named stays as it is."""
    part = f"/projects/{quoted(project)}" if project else ""
    client().put(f"/v1/tenants/{quoted(tenant)}{part}", said(options))
    click.echo(f"{tenant}/{project}" if project else tenant)
