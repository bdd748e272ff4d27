"""``kubectl calabash drain``: cordon a node's devices and evict the pods that hold them.

The cordon is a field of the node's ``GpuNode``; pods that request no devices are not affected. Pods are evicted through the
eviction API, which respects disruption budgets and grace periods. The drain ends when the agent reports all devices free.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from calabash.cli import output
from calabash.cli.failure import print_on_stderr
from calabash.cli.kubectl import access as kubectl_access
from calabash.cli.kubectl.pods import ENDED
from calabash.cli.kubectl.top import no_such_node
from calabash.cli.output import Column, Row, dash
from calabash.model.errors import CalabashError, Reason
from calabash.model.units import format_duration, parse_duration_s

if TYPE_CHECKING:
    from calabash.adapters.kube import KubeClient
    from calabash.adapters.kube.objects.core import Pod
    from calabash.adapters.kube.objects.resources import GpuNode, GpuNodeDevice

POLL_S = 0.5
ASK_AGAIN_S = 5.0
GRACE_MAX_S = 86400
_NAMED = 3

COLUMNS = (
    Column(title="NAMESPACE", text=lambda r: r["namespace"]),
    Column(title="POD", text=lambda r: r["pod"]),
    Column(title="OWNER", text=lambda r: dash(r["owner"])),
    Column(title="GRACE", text=lambda r: format_duration(r["grace_s"]), right=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Pod that has not ended, and the reason."""

    pod: str
    why: str


class Drain:
    """Drain of one node. Each ``step`` evicts pods, and may be repeated until no pod is left.

    Args:
        grace_s: grace period of evicted pods in seconds; None: each pod's own.
    """

    def __init__(self, client: KubeClient, node: str, *, grace_s: int | None = None) -> None:
        self._client = client
        self._node = node
        self._grace_s = grace_s
        self._asked_at_s: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        self._evicted: set[str] = set()

    @property
    def evicted(self) -> int:
        """Return the number of pods whose eviction was accepted."""
        return len(self._evicted)

    def pods(self) -> list[Pod]:
        """Return the pods that hold or will hold devices of the node. Raises NOT_FOUND if no agent reports the node."""
        return self._there(self._gpu_node())

    def cordon(self, *, on: bool = True) -> None:
        """Cordon the node's devices, or uncordon them."""
        self._gpu_node()
        self._say({"unschedulable": True if on else None})

    def step(self, now_s: float) -> list[Left]:
        """Evict the pods that were not evicted yet and return the remaining ones. Raises CONFLICT if the cordon was lifted."""
        node = self._gpu_node()
        self._require_closed(node)
        there = self._there(node)
        left = [self._ask(pod, now_s) for pod in there]
        known = {pod.metadata.uid for pod in there}
        # Agents may know only the name of a deleted pod.
        parts = [part for device in self._devices(node) for part in device.slices if part.pod_uid not in known]
        gone = dict.fromkeys(part.pod for part in parts)
        return left + [Left(pod=name, why="has ended, its devices are being released") for name in gone]

    def _devices(self, node: GpuNode) -> Sequence[GpuNodeDevice]:
        """Return the devices to empty."""
        return node.status.devices

    def _there(self, node: GpuNode) -> list[Pod]:
        return holders(self._client, node)

    def _require_closed(self, node: GpuNode) -> None:
        if not node.spec.unschedulable:
            raise CalabashError(
                f"another client uncordoned the devices of {self._node}; the drain was stopped",
                reason=Reason.CONFLICT,
                hint="another user ran `drain --undo`; drain the node again if it must stay cordoned",
            )

    def _say(self, spec: Mapping[str, object]) -> None:
        from calabash.adapters.kube.objects.resources import GPU_NODE  # noqa: PLC0415

        self._client.patch(GPU_NODE, self._node, body={"spec": spec})

    def _ask(self, pod: Pod, now_s: float) -> Left:
        from calabash.adapters.kube import EvictedAs  # noqa: PLC0415

        meta = pod.metadata
        name = f"{meta.namespace}/{meta.name}"
        if meta.deletion_timestamp:
            self._evicted.add(meta.uid)
            grace = format_duration(float(meta.deletion_grace_period_seconds or 0))
            return Left(pod=name, why=f"is ending (grace {grace})")
        if now_s - self._asked_at_s.get(meta.uid, float("-inf")) < ASK_AGAIN_S:
            return Left(pod=name, why=self._refused.get(meta.uid, "is being evicted"))
        self._asked_at_s[meta.uid] = now_s
        answer = self._client.evict(meta.namespace, meta.name, meta.uid, grace_s=self._grace_s)
        if answer.as_ is EvictedAs.BLOCKED:
            self._refused[meta.uid] = f"cannot be evicted now: {output.printable(answer.message)}"
            return Left(pod=name, why=self._refused[meta.uid])
        self._refused.pop(meta.uid, None)
        self._evicted.add(meta.uid)
        return Left(pod=name, why="is being evicted")

    def _gpu_node(self) -> GpuNode:
        from calabash.adapters.kube.objects.resources import GPU_NODE  # noqa: PLC0415

        kubectl_access.require(self._client, GPU_NODE)
        found = self._client.get(GPU_NODE, self._node)
        if found is None:
            raise no_such_node(self._node)
        return found


def holders(client: KubeClient, node: GpuNode) -> list[Pod]:
    """Return the pods on the node that hold devices or have a plan for them."""
    from calabash.adapters.kube.objects.core import POD  # noqa: PLC0415
    from calabash.kubernetes.objects.names import PLAN, REQUEST  # noqa: PLC0415

    held = {part.pod_uid for device in node.status.devices for part in device.slices}
    there = client.list(POD, field_selector=f"spec.nodeName={node.metadata.name}").items
    return [
        pod
        for pod in there
        if pod.status.phase not in ENDED
        and (pod.metadata.uid in held or not {PLAN, REQUEST}.isdisjoint(pod.metadata.annotations))
    ]


def require_no_data(pods: Sequence[Pod]) -> None:
    """Raise CONFLICT if the eviction of a pod loses data in emptyDir volumes; pods that are ending already are ignored."""
    staying = [pod for pod in pods if not pod.metadata.deletion_timestamp]
    local = [
        f"{pod.metadata.namespace}/{pod.metadata.name}"
        for pod in staying
        if any(volume.empty_dir is not None for volume in pod.spec.volumes)
    ]
    if local:
        raise CalabashError(
            f"the eviction of these pods deletes data in their emptyDir volumes: {_named(local)}",
            reason=Reason.CONFLICT,
            hint="--delete-emptydir-data evicts them anyway; nothing has been changed",
        )


def require_owners(pods: Sequence[Pod]) -> None:
    """Raise CONFLICT if a pod has no controller that recreates it; pods that are ending already are ignored."""
    staying = [pod.metadata for pod in pods if not pod.metadata.deletion_timestamp]
    lone = [f"{meta.namespace}/{meta.name}" for meta in staying if meta.controller is None]
    if lone:
        raise CalabashError(
            f"these pods have no controller that recreates them: {_named(lone)}",
            reason=Reason.CONFLICT,
            hint="--force evicts them anyway; nothing has been changed",
        )


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def progress(node: str, left: Sequence[Left]) -> str:
    """Return a line about the remaining pods."""
    told = "; ".join(f"{one.pod} {one.why}" for one in left[:_NAMED])
    more = f"; and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    pods = "1 pod" if len(left) == 1 else f"{len(left)} pods"
    return f"{node}: {pods} left: {told}{more}"


class ProgressLine:
    """Progress of a drain: one line that is updated on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self._last = ""
        self._terminal = sys.stderr is not None and sys.stderr.isatty()

    def show(self, text: str) -> None:
        if text == self._last or sys.stderr is None:
            return
        self._last = text
        if self._terminal:
            width = output.terminal_width() or 120
            sys.stderr.write("\r\x1b[K" + text[: width - 1])
            sys.stderr.flush()
        else:
            print_on_stderr(text)

    def end(self) -> None:
        """End the line, so that further output starts on a new one."""
        if self._terminal and self._last and sys.stderr is not None:
            sys.stderr.write("\n")
            self._last = ""


def wait_until_empty(drain: Drain, node: str, timeout_s: float, line: ProgressLine, *, undo: str = "") -> None:
    """Repeat the drain until no pod is left. If the cluster does not answer, try again.

    Args:
        drain: the node or device.
        node: name of the node or device in messages.
        timeout_s: longest time to wait.
        line: prints the progress.
        undo: for a device, the command that undoes the drain, for the hint; "" for a node.

    Raises:
        CalabashError: TIMEOUT with the remaining pods.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            left = drain.step(time.monotonic())
            if not left:
                return
            line.show(progress(node, left))
        except CalabashError as error:
            if error.reason is not Reason.API_DOWN or time.monotonic() >= end_s:
                raise
            line.show(f"{node}: {output.printable(error.message)}; retrying")
            left = []
        if time.monotonic() >= end_s:
            raise CalabashError(
                f"not empty after {format_duration(timeout_s)}; {progress(node, left)}",
                reason=Reason.TIMEOUT,
                hint=f"it stays {'drained' if undo else 'cordoned'}: repeat the command to continue,"
                f" or run `kubectl calabash {undo or f'drain {node} --undo'}`",
            )
        time.sleep(POLL_S)


class GracePeriod(click.ParamType[int]):
    """Grace period of pods with its unit, converted to seconds; whole seconds up to a day.

    A number without a unit, the former form, is read as seconds with a warning.
    """

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds. Raises BAD_REQUEST if they are no whole number, or more than a day."""
        text = str(value)
        if text.isascii() and text.isdecimal() and int(text):
            print_on_stderr(f"warning: --grace {text} without a unit is deprecated; use --grace {text}s")
            text += "s"
        seconds = parse_duration_s(text)
        if seconds > GRACE_MAX_S or seconds != int(seconds):
            raise CalabashError(f"--grace {value} is out of range", hint="give whole seconds, at most 24h")
        return int(seconds)


@click.command("drain")
@click.argument("node")
@click.option("--undo", is_flag=True, help="Uncordon the node's devices.")
@click.option(
    "--timeout", default="10m", show_default=True, metavar="TIME", help="Maximum time to wait for the pods to end."
)
@click.option(
    "--grace", type=GracePeriod(), metavar="TIME", help="Grace period of the pods, such as 30s. Default: the pods' own."
)
@click.option("--force", is_flag=True, help="Also evict pods without a controller.")
@click.option("--delete-emptydir-data", is_flag=True, help="Also evict pods with emptyDir volumes, whose data is lost.")
@click.option("--dry-run", is_flag=True, help="Only list the pods that would be evicted.")
@kubectl_access.options
@output.option
def drain(
    *,
    node: str,
    undo: bool,
    timeout: str,
    grace: int | None,
    force: bool,
    delete_emptydir_data: bool,
    dry_run: bool,
    kubeconfig: str,
    context: str,
    fmt: str,
) -> None:
    """Cordon a node's devices and evict the pods that hold them.

    Other pods of the node are not affected. Disruption budgets and grace periods are respected. After Ctrl-C or a timeout
    the node stays cordoned; --undo uncordons it.
    """
    timeout_s = parse_duration_s(timeout)
    if undo and (dry_run or force or delete_emptydir_data or grace is not None):
        raise click.UsageError("--undo cannot be combined with --dry-run, --force, --delete-emptydir-data or --grace")
    client, _ = kubectl_access.connect(kubeconfig, context)
    work = Drain(client, kubectl_access.checked(node), grace_s=grace)
    if undo:
        work.cordon(on=False)
        click.echo(f"{node}: uncordoned; its devices are allocated to pods again")
        _print_kubernetes_cordon(client, node)
        return
    pods = work.pods()
    if dry_run:
        output.emit("PodList", [_row(pod, grace) for pod in pods], COLUMNS, fmt, name="pod")
        return
    if not force:
        require_owners(pods)
    if not delete_emptydir_data:
        require_no_data(pods)
    line = ProgressLine()
    try:
        work.cordon()
        wait_until_empty(work, node, timeout_s, line)
    except KeyboardInterrupt:
        line.end()
        print_on_stderr(f"interrupted; {node} stays cordoned, and evictions that were accepted continue")
        print_on_stderr(f"hint: repeat the command to continue, or run `kubectl calabash drain {node} --undo`")
        sys.exit(130)
    finally:
        line.end()
    left = "1 pod evicted" if work.evicted == 1 else f"{work.evicted} pods evicted"
    click.echo(f"{node}: {left}; its devices are free, and are not allocated to pods until --undo")


def _row(pod: Pod, grace: int | None) -> Row:
    owner = pod.metadata.controller
    own_s = pod.spec.termination_grace_period_seconds
    return {
        "namespace": pod.metadata.namespace,
        "pod": pod.metadata.name,
        "owner": f"{owner.kind}/{owner.name}" if owner is not None else "",
        "grace_s": grace if grace is not None else 30 if own_s is None else own_s,
    }


def _print_kubernetes_cordon(client: KubeClient, name: str) -> None:
    """Print a hint if Kubernetes' own cordon of the node remains; nothing for users who may not read nodes."""
    from calabash.adapters.kube.objects.core import NODE  # noqa: PLC0415

    try:
        found = client.get(NODE, name)
    except CalabashError:
        return
    if found is not None and found.spec.unschedulable:
        click.echo(f"hint: the node is also cordoned in Kubernetes: kubectl uncordon {name}", err=True)
