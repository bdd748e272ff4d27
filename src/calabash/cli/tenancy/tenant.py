"""``calabash tenant``: tenants, their projects, and the guarantees, limits and usage of both."""

from __future__ import annotations

from typing import Any

import click

from calabash.api import endpoints
from calabash.cli import output, settings
from calabash.cli.home import client
from calabash.cli.output import Column, Row, dash
from calabash.cli.pool.queue import gpus
from calabash.cli.tenancy.usage import usage
from calabash.model.errors import CalabashError, Reason
from calabash.model.tenancy import parse_network_bounds
from calabash.model.units import format_duration, parse_duration_s

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
_MODES = ("modes", "models")
_OF_MEMBERS = ("Members of the tenant", "Groups of the pool's machine whose users are members of the tenant")


def _settings(command: Any) -> Any:
    for option in (
        click.option(
            "--networks",
            metavar="KIND=MOST,...",
            help="Maximum number of network objects of each kind, such as vpc=4,eip=8; empty: no limits.",
        ),
        click.option(
            "--run-time", metavar="TIME", help="Maximum duration of an allocation, such as 12h or 2d; 0: no limit."
        ),
        click.option("--slices-per-user", type=click.IntRange(0), help="Maximum slices of one user; 0: no limit."),
        click.option("--models", metavar="NAMES", help="Device models that requests may use; empty: any."),
        click.option("--modes", metavar="NAMES", help="Sharing modes that requests may use; empty: any."),
        click.option("--priority-max", type=click.IntRange(-1000, 1000), help="Highest priority of requests."),
        click.option("--priority-min", type=click.IntRange(-1000, 1000), help="Lowest priority of requests."),
        click.option("--budget", metavar="AMOUNT", help="Monthly budget, such as 5000EUR; empty: none."),
        settings.amounts,
    ):
        command = option(command)
    return command


def _body(options: dict[str, Any]) -> dict[str, Any]:
    body = settings.said(options, lists=_MODES)
    if "networks" in body:
        body["networks"] = parse_network_bounds(body["networks"])
    if "run_time" in body:
        body["run_s_max"] = parse_duration_s(body.pop("run_time"))
    return body


def show(kind: str, row: Row, columns: tuple[Column, ...], fmt: str) -> None:
    """Print an object as a row of a table, or as a document in JSON or YAML."""
    if fmt in ("json", "yaml"):
        click.echo(output.document(kind, row, fmt))
    else:
        output.emit(kind, [row], columns, fmt, name="name")


@click.group()
def tenant() -> None:
    """Create, change and list tenants: teams with a guarantee, limits, projects and members. Amounts are in devices."""


tenant.add_command(usage)


@tenant.command("list")
@output.option
def list_tenants(fmt: str) -> None:
    """List the tenants that you may see."""
    output.emit("TenantList", client().send(endpoints.LIST_TENANTS)["items"], TENANT_COLUMNS, fmt, name="name")


@tenant.command("show")
@click.argument("name")
@output.option
def show_tenant(name: str, fmt: str) -> None:
    """Show one tenant."""
    show("Tenant", client().send(endpoints.SHOW_TENANT, name), TENANT_COLUMNS, "wide" if fmt == "table" else fmt)


@tenant.command("create")
@click.argument("name")
@_settings
@settings.members(*_OF_MEMBERS, changing=False)
@output.option
def create_tenant(name: str, fmt: str, **options: Any) -> None:
    """Create a tenant, and a queue with the same name."""
    settings.create(_tenant(name, fmt), _body(options))


@tenant.command("set")
@click.argument("name")
@_settings
@settings.members(*_OF_MEMBERS, changing=True)
@output.option
def set_tenant(name: str, fmt: str, **options: Any) -> None:
    """Change a tenant. Settings without an option keep their values."""
    settings.change(_tenant(name, fmt), _body(options), command="tenant")


@tenant.command("delete")
@click.argument("name")
def delete_tenant(name: str) -> None:
    """Delete a tenant that has no requests, with its projects and the roles of its members."""
    client().send(endpoints.DELETE_TENANT, name)
    click.echo(name)


@tenant.group("project")
def project() -> None:
    """Create, change and list the projects of a tenant."""


@project.command("list")
@click.argument("tenant")
@output.option
def list_projects(tenant: str, fmt: str) -> None:
    """List the projects of a tenant."""
    items = client().send(endpoints.LIST_PROJECTS, tenant)["items"]
    output.emit("ProjectList", items, PROJECT_COLUMNS, fmt, name="name")


@project.command("show")
@click.argument("tenant")
@click.argument("name")
@output.option
def show_project(tenant: str, name: str, fmt: str) -> None:
    """Show one project."""
    show("Project", client().send(endpoints.SHOW_PROJECT, tenant, name), PROJECT_COLUMNS, fmt)


@project.command("create")
@click.argument("tenant")
@click.argument("name")
@settings.amounts
@output.option
def create_project(tenant: str, name: str, fmt: str, **options: Any) -> None:
    """Create a project of a tenant, and a queue for it."""
    settings.create(_project(tenant, name, fmt), settings.said(options))


@project.command("set")
@click.argument("tenant")
@click.argument("name")
@settings.amounts
@output.option
def set_project(tenant: str, name: str, fmt: str, **options: Any) -> None:
    """Change a project. Settings without an option keep their values."""
    settings.change(_project(tenant, name, fmt), settings.said(options), command="tenant project")


@project.command("delete")
@click.argument("tenant")
@click.argument("name")
def delete_project(tenant: str, name: str) -> None:
    """Delete a project that has no requests."""
    client().send(endpoints.DELETE_PROJECT, tenant, name)
    click.echo(f"{tenant}/{name}")


@tenant.command("quota")
@click.option("--tenant", default="", metavar="NAME", help="Only quotas of this tenant.")
@output.option
def show_quota(tenant: str, fmt: str) -> None:
    """Show guarantees and limits, with the allocated, borrowed and pending devices."""
    items = [q for q in client().send(endpoints.LIST_QUOTA)["items"] if tenant in {"", q["tenant"]}]
    if tenant and not items:
        raise CalabashError(
            f"there is no tenant {tenant}",
            reason=Reason.NOT_FOUND,
            hint="`calabash tenant list` lists the tenants",
        )
    output.emit("QuotaList", items, QUOTA_COLUMNS, fmt, name="queue")


def _tenant(name: str, fmt: str) -> settings.Target:
    return settings.Target(
        kind="Tenant", put=endpoints.PUT_TENANT, show=endpoints.SHOW_TENANT, values=(name,), name=name, fmt=fmt
    )


def _project(tenant: str, name: str, fmt: str) -> settings.Target:
    return settings.Target(
        kind="Project",
        put=endpoints.PUT_PROJECT,
        show=endpoints.SHOW_PROJECT,
        values=(tenant, name),
        name=f"{tenant}/{name}",
        fmt=fmt,
    )
