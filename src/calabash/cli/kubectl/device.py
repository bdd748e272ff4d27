"""``kubectl calabash device``: drain, undrain, test and reset single devices of nodes.

The desired state of a device is written into the spec of its node's ``GpuNode``, and the node's agent applies it.
A drain lasts as long as it is in the spec; a test or reset is carried out once. With --evict, the pods on a drained
device are evicted.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from calabash.cli import output
from calabash.cli.failure import print_on_stderr
from calabash.cli.kubectl import access as kubectl_access
from calabash.cli.kubectl.drain import (
    POLL_S,
    Drain,
    GracePeriod,
    ProgressLine,
    holders,
    require_no_data,
    require_owners,
    wait_until_empty,
)
from calabash.cli.kubectl.top import no_such_node
from calabash.cli.output import Column, Row, dash
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_duration, parse_duration_s

if TYPE_CHECKING:
    from calabash.adapters.kube import KubeClient
    from calabash.adapters.kube.objects.core import Pod
    from calabash.adapters.kube.objects.resources import GpuNode, GpuNodeDevice

ANSWER_S = 150.0  # a reset or test takes seconds and may wait for earlier orders
_UUID_MIN = 4

COLUMNS = (
    Column(title="NODE", text=lambda r: r["node"]),
    Column(title="GPU", text=lambda r: str(r["index"]), right=True),
    Column(title="MODEL", text=lambda r: r["model"]),
    Column(title="HEALTH", text=lambda r: r["state"] or r["health"]),
    Column(title="MODE", text=lambda r: dash(r["mode"])),
    Column(title="PODS", text=lambda r: str(len(r["pods"])), right=True),
    Column(title="UUID", text=lambda r: r["uuid"], wide=True),
    Column(title="ORDER", text=lambda r: dash(r["order"]), wide=True),
    Column(title="CAUSE", text=lambda r: dash(r["reason"])),
)


class DeviceDrain(Drain):
    """Drain of one device of a node. Raises NOT_FOUND if the node has no such device."""

    def __init__(
        self, client: KubeClient, node: str, name: str, *, reason: str = "", grace_s: int | None = None
    ) -> None:
        super().__init__(client, node, grace_s=grace_s)
        self.device = find(self._gpu_node(), name)
        self._reason = reason

    def cordon(self, *, on: bool = True) -> None:
        """Drain the device, so that no pods are placed on it; if ``on`` is False, return it to service."""
        if on:
            self.want({"drained": True, "reason": self._reason})
        else:
            self.order("undrain", {"drained": None, "reason": None})

    def order(self, what: str, more: Mapping[str, object] | None = None) -> str:
        """Write an order, which the node's agent carries out once, into the spec; return the ID of the order.

        Args:
            what: ``undrain``, ``test`` or ``reset``.
            more: further settings of the device to write at the same time.
        """
        number = secrets.token_hex(8)
        self.want({**(more or {}), "order": {"id": number, "what": what}})
        return number

    def want(self, settings: Mapping[str, object]) -> None:
        """Write the desired settings of the device into the spec."""
        self._say({"devices": {self.device.uuid: settings}})

    def answer(self, order: str, timeout_s: float = ANSWER_S) -> str:
        """Wait for the result of an order and return it. Raises CONFLICT if it failed, TIMEOUT without an answer."""
        from calabash.adapters.kube.objects.resources import BEGUN, FAILED  # noqa: PLC0415

        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            told = find(self._gpu_node(), self.device.uuid).order
            if told is not None and told.id == order and told.state != BEGUN:
                said = output.printable(told.message)
                if told.state == FAILED:
                    raise CalabashError(f"device {self.device.index} of {self._node}: {said}", reason=Reason.CONFLICT)
                return said
            time.sleep(POLL_S)
        raise CalabashError(
            f"the agent of {self._node} has not answered within {format_duration(timeout_s)}",
            reason=Reason.TIMEOUT,
            hint=f"check that it runs; `kubectl get gpunode {self._node} -o yaml` shows the order, and later its result",
        )

    def _devices(self, node: GpuNode) -> Sequence[GpuNodeDevice]:
        return [device for device in node.status.devices if device.uuid == self.device.uuid]

    def _there(self, node: GpuNode) -> list[Pod]:
        on_it = {part.pod_uid for device in self._devices(node) for part in device.slices}
        return [
            pod
            for pod in holders(self._client, node)
            if pod.metadata.uid in on_it or self.device.uuid in _planned_on(pod)
        ]

    def _require_closed(self, node: GpuNode) -> None:
        wanted = node.spec.devices.get(self.device.uuid)
        if wanted is None or not wanted.drained:
            raise CalabashError(
                f"another client undrained device {self.device.index} of {self._node}; the drain was stopped",
                reason=Reason.CONFLICT,
                hint="another user ran `device undrain`; drain the device again if it must stay drained",
            )


def _planned_on(pod: Pod) -> Iterable[str]:
    from calabash.kubernetes.objects.names import PLAN  # noqa: PLC0415
    from calabash.kubernetes.objects.plan import read_plan  # noqa: PLC0415

    try:
        plan = read_plan(pod.metadata.annotations.get(PLAN, ""))
    except CalabashError:
        return ()
    return {part.device for container in plan.containers for part in container.slices}


def find(node: GpuNode, name: str) -> GpuNodeDevice:
    """Return a device by its number, UUID or UUID prefix. Raises NOT_FOUND if none or several match."""
    devices = node.status.devices
    found = [d for d in devices if name in {str(d.index), d.uuid}]
    found = found or [d for d in devices if len(name) >= _UUID_MIN and d.uuid.startswith(name)]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} devices of {node.metadata.name} match" if found else f"{node.metadata.name} has no device"
    raise CalabashError(
        f"{what} {name[:80]!r}",
        reason=Reason.NOT_FOUND,
        hint=f"see `kubectl calabash device list {node.metadata.name}`",
    )


@click.group("device")
def device() -> None:
    """Show, drain, undrain, test and reset single devices of nodes.

    DEVICE is the device's number on its node, its UUID, or a prefix of the UUID.
    """


@device.command("list")
@click.argument("node", default="")
@kubectl_access.options
@output.option
def list_devices(*, node: str, kubeconfig: str, context: str, fmt: str) -> None:
    """List the devices of a node, or of all nodes, with their health and its cause."""
    client, _ = kubectl_access.connect(kubeconfig, context)
    nodes = [
        one
        for one in kubectl_access.gpu_nodes(client)
        if one.metadata.name == (kubectl_access.checked(node) or one.metadata.name)
    ]
    if node and not nodes:
        raise no_such_node(node)
    output.emit("DeviceList", [row for one in nodes for row in _rows(one)], COLUMNS, fmt, name="uuid")


def _rows(node: GpuNode) -> list[Row]:
    return [
        {
            "node": node.metadata.name,
            "index": one.index,
            "uuid": one.uuid,
            "model": one.model,
            "health": one.health,
            "state": one.state,
            "reason": one.reason,
            "drained": node.spec.devices[one.uuid].drained if one.uuid in node.spec.devices else False,
            "mode": one.mode,
            "pods": list(dict.fromkeys(part.pod for part in one.slices)),
            "order": f"{one.order.what} {one.order.state}: {one.order.message}" if one.order is not None else "",
        }
        for one in sorted(node.status.devices, key=lambda one: one.index)
    ]


@device.command("drain")
@click.argument("node")
@click.argument("name", metavar="DEVICE")
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown to other users.")
@click.option("--evict", is_flag=True, help="Evict the pods on the device, and wait until they have ended.")
@click.option("--timeout", default="10m", show_default=True, metavar="TIME", help="With --evict: maximum waiting time.")
@click.option("--grace", type=GracePeriod(), metavar="TIME", help="With --evict: grace period of the pods.")
@click.option("--force", is_flag=True, help="With --evict: also evict pods without a controller.")
@click.option(
    "--delete-emptydir-data",
    is_flag=True,
    help="With --evict: also evict pods with emptyDir volumes, whose data is lost.",
)
@kubectl_access.options
def drain_device(
    *,
    node: str,
    name: str,
    reason: str,
    evict: bool,
    timeout: str,
    grace: int | None,
    force: bool,
    delete_emptydir_data: bool,
    kubeconfig: str,
    context: str,
) -> None:
    """Drain a device: place no new pods on it until `undrain`. Its pods keep running unless --evict is given."""
    timeout_s = parse_duration_s(timeout)
    if not evict and (force or delete_emptydir_data or grace is not None):
        raise click.UsageError("--grace, --force and --delete-emptydir-data require --evict")
    if len(reason) > 256:
        raise click.UsageError(f"--reason has {len(reason)} characters, the limit is 256")
    client, _ = kubectl_access.connect(kubeconfig, context)
    work = DeviceDrain(client, kubectl_access.checked(node), name, reason=reason, grace_s=grace)
    what = f"device {work.device.index} of {node}"
    if not evict:
        work.cordon()
        click.echo(f"{what}: drained; no new pods are placed on it until undrain")
        return
    pods = work.pods()
    if not force:
        require_owners(pods)
    if not delete_emptydir_data:
        require_no_data(pods)
    undo = f"device undrain {node} {name}"
    line = ProgressLine()
    try:
        work.cordon()
        wait_until_empty(work, what, timeout_s, line, undo=undo)
    except KeyboardInterrupt:
        line.end()
        print_on_stderr(f"interrupted; {what} stays drained, and evictions that were accepted continue")
        print_on_stderr(f"hint: repeat the command to continue, or run `kubectl calabash {undo}`")
        sys.exit(130)
    finally:
        line.end()
    click.echo(f"{what}: drained and empty; no new pods are placed on it until undrain")


def _order(what: str, text: str) -> click.Command:
    @device.command(what, help=text)
    @click.argument("node")
    @click.argument("name", metavar="DEVICE")
    @kubectl_access.options
    def ordered(*, node: str, name: str, kubeconfig: str, context: str) -> None:
        client, _ = kubectl_access.connect(kubeconfig, context)
        work = DeviceDrain(client, kubectl_access.checked(node), name)
        lifted = {"drained": None, "reason": None} if what == "undrain" else None
        click.echo(f"device {work.device.index} of {node}: {work.answer(work.order(what, lifted))}")

    return ordered


undrain = _order(
    "undrain", "Return a device to service, whether it was drained or failed; the device must pass a test first."
)
test = _order(
    "test", "Test an idle device: memory, copies and a kernel with a known result. Fails if the device fails."
)
reset = _order("reset", "Reset an idle device and the devices linked to it by NVLink.")
