"""``calabash sim``: simulated GPU nodes on disk, to try everything without a card and to break it on purpose."""

from __future__ import annotations

import click

from calabash.cli import output
from calabash.cli.home import home
from calabash.cli.output import Column, dash
from calabash.model.units import format_mib

NODE_COLUMNS = (
    Column(title="NAME", text=lambda r: r["name"]),
    Column(title="DEVICES", text=lambda r: str(len(r["devices"])), right=True),
    Column(title="MODELS", text=lambda r: ", ".join(sorted({d["name"] for d in r["devices"]}))),
    Column(title="PROCESSES", text=lambda r: str(len(r["processes"])), right=True),
    Column(title="PATH", text=lambda r: r["path"], wide=True),
)
DEVICE_COLUMNS = (
    Column(title="GPU", text=lambda r: str(r["index"]), right=True),
    Column(title="MODEL", text=lambda r: r["name"]),
    Column(title="MEMORY", text=lambda r: format_mib(r["memory_total_bytes"] >> 20), right=True),
    Column(title="USED", text=lambda r: format_mib(r["used_bytes"] >> 20), right=True),
    Column(title="PEAK ALLOCATED", text=lambda r: f"{r['peak_alloc_bytes'] >> 20}MiB", right=True, wide=True),
    Column(title="FAULTS", text=lambda r: dash(r.get("faults"))),
    Column(title="UUID", text=lambda r: r["uuid"], wide=True),
)


@click.group()
def sim() -> None:
    """Create and break simulated GPU nodes."""


@sim.command()
@click.argument("name")
@click.option("--gpus", required=True, metavar="LIST", help="For example 4xA100-40GB,2xT4.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, help="UUIDs and serials are drawn from it; 0: from the name."
)
def create(name: str, gpus: str, seed: int) -> None:
    """Create node NAME; `calabash up --sim NAME` uses it."""
    from calabash.seams.gpu import sim as nodes  # noqa: PLC0415

    nodes.create_node(home(), name, gpus, seed=seed)
    node = nodes.show_node(home(), name)
    click.echo(f"{name}: {len(node['devices'])} devices")


@sim.command("list")
@output.option
def list_(fmt: str) -> None:
    """List simulated nodes."""
    from calabash.seams.gpu import sim as nodes  # noqa: PLC0415

    rows = [nodes.show_node(home(), name) for name in nodes.list_nodes(home())]
    output.emit("SimNodeList", rows, NODE_COLUMNS, fmt, name="name")


@sim.command()
@click.argument("name")
@output.option
def show(name: str, fmt: str) -> None:
    """Show the devices of node NAME, their faults and their use."""
    from calabash.seams.gpu import sim as nodes  # noqa: PLC0415

    node = nodes.show_node(home(), name)
    if fmt in ("json", "yaml"):
        click.echo(output.document("SimNode", node, fmt))
        return
    output.emit("SimNode", node["devices"], DEVICE_COLUMNS, fmt, name="uuid")


@sim.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.option("--gpu", type=click.IntRange(0), default=0, show_default=True, help="Index of the device.")
@click.argument("fault", nargs=-1, required=True)
def inject(name: str, gpu: int, fault: tuple[str, ...]) -> None:
    """Break a device of NAME: xid 79, ecc-double, lost, recover, slow 300%, alloc-fail 3."""
    from calabash.seams.gpu import sim as nodes  # noqa: PLC0415

    nodes.inject(home(), name, gpu, *fault)
    click.echo(f"{name}: gpu {gpu}: {' '.join(fault)}")


@sim.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Even while programs are using it.")
def destroy(name: str, force: bool) -> None:
    """Delete node NAME."""
    from calabash.seams.gpu import sim as nodes  # noqa: PLC0415

    nodes.destroy_node(home(), name, force=force)
    click.echo(name)
