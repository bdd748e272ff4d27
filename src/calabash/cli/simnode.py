"""``calabash sim``: simulated GPU nodes on disk, to try everything without a card and to break it on purpose."""

from __future__ import annotations

from typing import Any

import click

from calabash.cli import output
from calabash.cli.home import home
from calabash.cli.output import Column
from calabash.model.units import format_mib


def _faults(device: output.Row) -> str:
    """What is wrong with a simulated device, in words."""
    wrong = []
    if device["lost"]:
        wrong.append("lost")
    if device["xid_count"]:
        wrong.append(f"{device['xid_count']} xid")
    if device["ecc_volatile_double"]:
        wrong.append(f"{device['ecc_volatile_double']} ecc")
    if device["slow_permille"] != 1000:
        wrong.append(f"slow {device['slow_permille'] // 10}%")
    return ", ".join(wrong) or "-"


NODE_COLUMNS = (
    Column(title="NAME", text=lambda r: r["name"]),
    Column(title="DEVICES", text=lambda r: str(len(r["devices"])), right=True),
    Column(title="MODELS", text=lambda r: ", ".join(sorted({d["model"] for d in r["devices"]}))),
    Column(title="PROCESSES", text=lambda r: str(len(r["processes"])), right=True),
    Column(title="PATH", text=lambda r: r["path"], wide=True),
)
DEVICE_COLUMNS = (
    Column(title="GPU", text=lambda r: str(r["index"]), right=True),
    Column(title="MODEL", text=lambda r: r["name"]),
    Column(title="MEMORY", text=lambda r: format_mib(r["memory_total_bytes"] >> 20), right=True),
    Column(title="USED", text=lambda r: format_mib(r["used_bytes"] >> 20), right=True),
    Column(title="PEAK", text=lambda r: format_mib(r["used_peak_bytes"] >> 20), right=True, wide=True),
    Column(title="BUSY", text=lambda r: f"{r['busy_ns'] / 1e9:.1f}s", right=True, wide=True),
    Column(title="FAULTS", text=_faults),
    Column(title="UUID", text=lambda r: r["uuid"], wide=True),
)


def _node(name: str) -> dict[str, Any]:
    """Everything known of node ``name`` as plain values."""
    import msgspec  # noqa: PLC0415 - only where nodes are shown

    from calabash.seams.gpu import sim as nodes  # noqa: PLC0415

    body: dict[str, Any] = msgspec.to_builtins(nodes.show_node(nodes.find_node(home(), name)))
    return body


@click.group()
def sim() -> None:
    """Create and break simulated GPU nodes."""


@sim.command()
@click.argument("name")
@click.option("--gpus", required=True, metavar="LIST", help="For example 4xA100-40GB,2xT4.")
@click.option("--seed", type=click.IntRange(0), help="The same seed gives the same UUIDs. Default: fresh ones.")
def create(name: str, gpus: str, seed: int | None) -> None:
    """Create node NAME; `calabash up --sim NAME` uses it."""
    from calabash.seams.gpu import sim as nodes  # noqa: PLC0415

    nodes.create_node(home(), name, gpus, seed)
    click.echo(f"{name}: {len(_node(name)['devices'])} devices")


@sim.command("list")
@output.option
def list_(fmt: str) -> None:
    """List simulated nodes."""
    from calabash.seams.gpu import sim as nodes  # noqa: PLC0415

    output.emit("SimNodeList", [_node(n.name) for n in nodes.list_nodes(home())], NODE_COLUMNS, fmt, name="name")


@sim.command()
@click.argument("name")
@output.option
def show(name: str, fmt: str) -> None:
    """Show the devices of node NAME, their faults and their use."""
    node = _node(name)
    if fmt in ("json", "yaml"):
        click.echo(output.document("SimNode", node, fmt))
        return
    output.emit("SimNode", node["devices"], DEVICE_COLUMNS, fmt, name="uuid")
    for function in node["unserved"]:
        click.echo(f"not served: {function['name']} (called {function['count']} times)", err=True)


@sim.command()
@click.argument("name")
@click.option("--gpu", default="0", show_default=True, metavar="INDEX|UUID|all", help="The device.")
@click.argument("fault")
@click.argument("value", required=False)
def inject(name: str, gpu: str, fault: str, value: str | None) -> None:
    """Break a device of NAME: xid 79, ecc-double, lost, recover, slow 300%, alloc-fail 3."""
    from calabash.seams.gpu import sim as nodes  # noqa: PLC0415

    nodes.inject(nodes.find_node(home(), name), gpu, fault, value)
    click.echo(f"{name}: gpu {gpu}: {fault}{f' {value}' if value else ''}")


@sim.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Even while programs are using it.")
def destroy(name: str, force: bool) -> None:
    """Delete node NAME."""
    from calabash.seams.gpu import sim as nodes  # noqa: PLC0415

    nodes.destroy_node(nodes.find_node(home(), name), force=force)
    click.echo(name)
