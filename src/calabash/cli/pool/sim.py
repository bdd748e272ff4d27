"""``calabash sim``: create simulated GPU nodes, which are files, and inject faults into their devices."""

from __future__ import annotations

import os
import shlex
import time
from typing import TYPE_CHECKING, Any

import click

from calabash.api import endpoints
from calabash.cli import output
from calabash.cli.home import home, own_client, uses_system_pool
from calabash.cli.output import Column
from calabash.cli.pool import sim_replay
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_mib

if TYPE_CHECKING:
    from calabash.adapters.gpu.sim import NodeFile

SEEN_WITHIN_S = 5.0


def _faults(device: output.Row) -> str:
    """Return the injected faults of a device as text; ``-`` for none."""
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
    """Return the state of node ``name`` as plain values."""
    import msgspec  # noqa: PLC0415 - only where nodes are shown

    from calabash.adapters.gpu import sim as nodes  # noqa: PLC0415

    body: dict[str, Any] = msgspec.to_builtins(nodes.show_node(_own_node(name)))
    return body


def _own_node(name: str) -> NodeFile:
    """Return the files of node ``name`` of this home. Raises NOT_FOUND."""
    from calabash.adapters.gpu import sim as nodes  # noqa: PLC0415

    try:
        return nodes.find_node(home(), name)
    except CalabashError as error:
        if error.reason is not Reason.NOT_FOUND or not uses_system_pool():
            raise
        raise CalabashError(
            error.message, reason=error.reason, hint=f"{error.hint}; nodes of the system pool belong to root"
        ) from None


def _pool_of(name: str) -> dict[str, Any]:
    """Return the status of the pool of this home if it runs and serves node ``name``, else an empty dict."""
    try:
        status: dict[str, Any] = own_client().send(endpoints.SHOW_STATUS)
    except CalabashError:
        return {}
    return status if status.get("sim") == name else {}


def _wait_until_seen(name: str, fault: str) -> None:
    """Wait at most SEEN_WITHIN_S until the pool of the node shows the injected fault, so the next command sees it."""
    if not _pool_of(name):
        return
    lost = {device["uuid"] for device in _node(name)["devices"] if device["lost"]}

    def seen(device: dict[str, Any]) -> bool:
        if device["uuid"] in lost:
            return bool(device["health"] != "healthy")
        # A device that recovers is tested as soon as no allocation holds it.
        return bool(fault != "recover" or device["health"] == "healthy" or device["allocations"])

    deadline = time.monotonic() + SEEN_WITHIN_S
    while not all(seen(device) for device in own_client().send(endpoints.LIST_DEVICES)["items"]):
        if time.monotonic() > deadline:
            click.echo(
                f"the pool does not show the fault after {SEEN_WITHIN_S:g}s; see `calabash device show`",
                err=True,
            )
            return
        time.sleep(0.05)


@click.group()
def sim() -> None:
    """Create simulated GPU nodes, inject faults into their devices, and replay traces and scenarios."""


for replay in (sim_replay.openb, sim_replay.trace, sim_replay.scenario, sim_replay.snapshot):
    sim.add_command(replay)


@sim.command()
@click.argument("name")
@click.option("--gpus", required=True, metavar="LIST", help="Devices, such as 4xA100-40GB,2xT4.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the devices' UUIDs. Default: random.")
@output.option
def create(name: str, gpus: str, seed: int | None, fmt: str) -> None:
    """Create the simulated node NAME; `calabash up --sim NAME` starts a pool on it."""
    from calabash.adapters.gpu import sim as nodes  # noqa: PLC0415

    nodes.create_node(home(), name, gpus, seed)
    node = _node(name)
    count = len(node["devices"])
    text = name if fmt == "name" else f"{name}: {count} device{'' if count == 1 else 's'}"
    output.emit_made("SimNode", node, text, fmt)


@sim.command("list")
@output.option
def list_(fmt: str) -> None:
    """List simulated nodes."""
    from calabash.adapters.gpu import sim as nodes  # noqa: PLC0415

    output.emit("SimNodeList", [_node(n.name) for n in nodes.list_nodes(home())], NODE_COLUMNS, fmt, name="name")


@sim.command()
@click.argument("name")
def env(name: str) -> None:
    """Print the environment in which programs use node NAME, for eval "$(calabash sim env NAME)"."""
    from calabash.adapters.gpu import sim as nodes  # noqa: PLC0415

    found = nodes.environment(_own_node(name), os.environ.get("LD_LIBRARY_PATH", ""))
    for variable, value in found.items():
        click.echo(f"export {variable}={shlex.quote(value)}")


@sim.command()
@click.argument("name")
@output.option
def show(name: str, fmt: str) -> None:
    """Show the devices of node NAME, their memory use and their injected faults."""
    node = _node(name)
    if fmt in ("json", "yaml"):
        click.echo(output.document("SimNode", node, fmt))
        return
    output.emit("SimNode", node["devices"], DEVICE_COLUMNS, fmt, name="uuid")
    if node["unserved"]:
        _echo_unserved(node["unserved"], everything=fmt == "wide")


def _echo_unserved(unserved: list[dict[str, Any]], *, everything: bool) -> None:
    """Print the number of functions that programs looked up and the simulation lacks; with ``everything`` also their names."""
    kinds = f"{len(unserved)} name{'s' if len(unserved) > 1 else ''}"
    times = sum(entry["count"] for entry in unserved)
    more = "" if everything else "; -o wide lists them"
    click.echo(f"missing functions: {kinds}, looked up {times} times{more}", err=True)
    for entry in unserved if everything else ():
        click.echo(f"  {entry['name']}  {entry['count']}", err=True)


@sim.command()
@click.argument("name")
@click.option("--gpu", default="0", show_default=True, metavar="INDEX|UUID|all", help="Device of the node.")
@click.argument("fault")
@click.argument("value", required=False)
def inject(name: str, gpu: str, fault: str, value: str | None) -> None:
    """Inject a fault into a device of node NAME, or remove its faults.

    FAULT is `xid NUMBER`, `ecc-double`, `lost`, `slow PERCENT` such as `slow 300%`, `alloc-fail N` to fail the N-th memory
    allocation from now, or `recover` to remove the faults.
    """
    from calabash.adapters.gpu import sim as nodes  # noqa: PLC0415

    nodes.inject(_own_node(name), gpu, fault, value)
    _wait_until_seen(name, fault)
    click.echo(f"{name}: gpu {gpu}: {fault}{f' {value}' if value else ''}")


@sim.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete the node even while programs use it.")
def destroy(name: str, force: bool) -> None:
    """Delete the simulated node NAME."""
    from calabash.adapters.gpu import sim as nodes  # noqa: PLC0415

    status = _pool_of(name)
    if status:
        raise CalabashError(
            f"the pool, pid {status['pid']}, serves simulated node {name!r}",
            reason=Reason.CONFLICT,
            hint="stop the pool first: calabash down",
        )
    nodes.destroy_node(_own_node(name), force=force)
    click.echo(name)
