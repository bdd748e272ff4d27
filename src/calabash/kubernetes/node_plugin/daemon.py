"""``python -I -m calabash.kubernetes.node_plugin.daemon``: the agent of a node in the foreground, until SIGTERM or SIGINT.

What cannot start says why in two lines on stderr, ``error [reason]: ...`` and ``hint: ...``, and ends with 1.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from calabash.adapters.host.memory import memory_mib
from calabash.kubernetes.node_plugin.process_memory import keep_small
from calabash.kubernetes.node_plugin.reports.usage_sender import SEND_EVERY_S, UsageServer
from calabash.kubernetes.node_plugin.settings import AgentSettings
from calabash.kubernetes.objects.allocation_api import NodeDoor
from calabash.kubernetes.objects.plan import MEMORY_MIB_MAX
from calabash.model.device import REPLICAS_MAX, Interval
from calabash.model.errors import CalabashError
from calabash.node.modes.protocol import WorkerUsers
from calabash.node.processes.unmanaged import UnmanagedPolicy

USAGE_AUTHORITY = Path("/etc/calabash/usage/ca.crt")
USAGE_TOKEN = Path("/var/run/secrets/calabash/usage/token")


def parser() -> argparse.ArgumentParser:
    """The words of a command line, and ``NODE_NAME`` as the chart sets it."""
    made = argparse.ArgumentParser(
        prog="calabash agent",
        description="The agent of one node of a Kubernetes cluster.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100),
    )
    usual = AgentSettings(node="")
    made.add_argument("--node", default="", help="name of its Node object [NODE_NAME, else the host's name]")
    made.add_argument("--home", type=Path, default=usual.home, help="its directory, at the same path on the host")
    made.add_argument("--kubelet", type=Path, default=usual.kubelet, help="the kubelet's root directory")
    made.add_argument("--specs", type=Path, default=usual.specs, help="directory of dynamic CDI specs")
    made.add_argument("--host", type=Path, default=usual.host, help="where the host's file system is seen")
    made.add_argument("--driver-root", default=usual.driver_root, help="the driver's root on the host")
    made.add_argument("--sim", type=Path, default=None, metavar="STATE", help="state file of a simulated node")
    made.add_argument("--kubeconfig", type=Path, default=None, help="default: as a pod of the cluster")
    made.add_argument(
        "--strangers",
        choices=[policy.value for policy in UnmanagedPolicy],
        default=usual.strangers.value,
        help="what happens to processes that are on a card without a slice",
    )
    made.add_argument(
        "--use-every",
        type=_seconds,
        default=usual.use_every_s,
        metavar="SECONDS",
        help="how often at most the API server is told what is used; 0: never",
    )
    made.add_argument("--usage", default="", metavar="URL", help="where usage is collected; default: nowhere")
    made.add_argument(
        "--usage-authority", type=Path, default=USAGE_AUTHORITY, metavar="FILE", help="who signs its certificate"
    )
    made.add_argument("--usage-token", type=Path, default=USAGE_TOKEN, metavar="FILE", help="what it is shown")
    made.add_argument(
        "--usage-every", type=_seconds, default=SEND_EVERY_S, metavar="SECONDS", help="how often usage is sent"
    )
    made.add_argument(
        "--spill",
        type=_spilled_mib,
        default=usual.spill_mib,
        metavar="HALF|MIB",
        help="let slices have memory beyond their cards, up to so much memory of this node for all together, or half of it",
    )
    made.add_argument(
        "--replicas", type=_count, default=usual.replicas, metavar="N", help="how many containers use a card in turns"
    )
    made.add_argument(
        "--interval",
        choices=[interval.value for interval in Interval],
        default=usual.interval,
        help="how long these turns are; default: as the driver makes them",
    )
    made.add_argument(
        "--worker-users",
        type=_users,
        default=usual.workers,
        metavar="FIRST-LAST",
        help="as whom workers of isolation brokered run: users that neither the host nor a pod has",
    )
    made.add_argument(
        "--door",
        choices=[door.value for door in NodeDoor],
        default=usual.door.value,
        help="by what devices are asked for: tokens of a device plug-in, or ResourceClaims (DRA); the node's label"
        " calabash.dev/door wins",
    )
    made.add_argument(
        "--unguarded",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="leave the device access of this namespace's pods to their container runtime; `*`: of all namespaces",
    )
    made.add_argument(
        "--relay",
        action="store_true",
        help="register with `calabash plugin-relay` of the same home, which keeps the devices while the agent restarts",
    )
    made.add_argument(
        "--serve-nvidia-names",
        action="store_true",
        help="give whole cards as nvidia.com/gpu to pods that admission did not translate",
    )
    made.add_argument(
        "--metrics-port",
        type=_port,
        default=None,
        metavar="PORT",
        help="where metrics are served to Prometheus, without a credential; default: nowhere",
    )
    return made


def _port(text: str) -> int | None:
    """A port, or None for 0. Raises ValueError."""
    found = int(text)
    if not 0 <= found < 1 << 16:
        raise ValueError(text)
    return found or None


def _seconds(text: str) -> float:
    """A length of time that can be waited. Raises ValueError."""
    found = float(text)
    if not 0 <= found <= 86400:
        raise ValueError(text)
    return found


def _count(text: str) -> int:
    """Containers that use a card in turns. Raises ValueError."""
    found = int(text)
    if not 1 <= found <= REPLICAS_MAX:
        raise ValueError(text)
    return found


def _users(text: str) -> WorkerUsers:
    """A range of users, none of them root. Raises ValueError."""
    first, _, last = text.partition("-")
    users = WorkerUsers(first=int(first), last=int(last))
    if not 1000 <= users.first <= users.last < 1 << 31:
        raise ValueError(text)
    return users


def _spilled_mib(text: str) -> int:
    """An amount of this node's memory; half of it in whole GiB, so that nodes of one kind are alike. Raises ValueError."""
    found = memory_mib() // 2 // 1024 * 1024 if text == "half" else int(text)
    if not 0 <= found <= MEMORY_MIB_MAX:
        raise ValueError(text)
    return found


def read_settings(words: Sequence[str]) -> AgentSettings:
    """From the words of a command line."""
    read = parser().parse_args(words)
    return AgentSettings(
        node=read.node or os.environ.get("NODE_NAME") or socket.gethostname(),
        home=read.home.absolute(),
        kubelet=read.kubelet,
        specs=read.specs,
        host=read.host,
        driver_root=read.driver_root,
        sim_state=read.sim.absolute() if read.sim else None,
        kubeconfig=read.kubeconfig,
        strangers=UnmanagedPolicy(read.strangers),
        spill_mib=read.spill,
        replicas=read.replicas,
        interval=read.interval,
        workers=read.worker_users,
        use_every_s=read.use_every,
        usage=UsageServer(
            url=read.usage, authority=read.usage_authority, token=read.usage_token, every_s=read.usage_every
        )
        if read.usage
        else None,
        door=NodeDoor(read.door),
        unguarded=frozenset(read.unguarded),
        relay=read.relay,
        serve_nvidia_names=read.serve_nvidia_names,
        metrics_port=read.metrics_port,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the agent until it is told to stop."""
    os.umask(0o022)
    keep_small()
    from calabash.kubernetes.node_plugin.service import AgentService  # noqa: PLC0415

    try:
        service = AgentService(read_settings(sys.argv[1:] if words is None else words))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.stop())
        service.run()
    except CalabashError as error:
        print(f"error [{error.reason}]: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
