"""Command line of the agent: ``python -I -m calabash.kubernetes.node_plugin.daemon``, until SIGTERM or SIGINT.

An agent that cannot start writes two lines to stderr, ``error [reason]: ...`` and ``hint: ...``, and exits with 1.
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
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.kubernetes.objects.plan import MEMORY_MIB_MAX
from calabash.model.device import REPLICAS_MAX, Interval
from calabash.model.errors import CalabashError
from calabash.model.renamed_options import with_current_names
from calabash.node.modes.protocol import WorkerUsers
from calabash.node.processes.unmanaged import UnmanagedPolicy

USAGE_AUTHORITY = Path("/etc/calabash/usage/ca.crt")
USAGE_TOKEN = Path("/var/run/secrets/calabash/usage/token")
RENAMED = {"--strangers": "--unmanaged", "--door": "--allocation-api"}  # former option names


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="calabash serve agent",
        description="Run the agent of one node of a Kubernetes cluster, which serves its devices to containers.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100),
    )
    usual = AgentSettings(node="")
    made.add_argument("--node", default="", help="name of its Node object [NODE_NAME, else the host's name]")
    made.add_argument(
        "--home", type=Path, default=usual.home, help="directory of the agent, at the same path on the host"
    )
    made.add_argument("--kubelet", type=Path, default=usual.kubelet, help="the kubelet's root directory")
    made.add_argument("--specs", type=Path, default=usual.specs, help="directory of dynamic CDI specs")
    made.add_argument("--host", type=Path, default=usual.host, help="path at which the host's file system is mounted")
    made.add_argument("--driver-root", default=usual.driver_root, help="the driver's root on the host")
    made.add_argument("--sim", type=Path, default=None, metavar="STATE", help="state file of a simulated node")
    made.add_argument("--kubeconfig", type=Path, default=None, help="default: the service account of its pod")
    made.add_argument(
        "--unmanaged",
        choices=[policy.value for policy in UnmanagedPolicy],
        default=usual.unmanaged_policy.value,
        help="policy for unmanaged processes, which use a device without a slice of it",
    )
    made.add_argument(
        "--use-every",
        type=_seconds,
        default=usual.use_every_s,
        metavar="SECONDS",
        help="minimum interval between reports of usage to the API server; 0: never report",
    )
    made.add_argument("--usage", default="", metavar="URL", help="server that collects usage; default: none")
    made.add_argument(
        "--usage-authority",
        type=Path,
        default=USAGE_AUTHORITY,
        metavar="FILE",
        help="authority of the server's certificate",
    )
    made.add_argument(
        "--usage-token",
        type=Path,
        default=USAGE_TOKEN,
        metavar="FILE",
        help="token that authenticates the agent to that server",
    )
    made.add_argument(
        "--usage-every", type=_seconds, default=SEND_EVERY_S, metavar="SECONDS", help="interval of sending usage"
    )
    made.add_argument(
        "--spill",
        type=_spilled_mib,
        default=usual.spill_mib,
        metavar="HALF|MIB",
        help="host memory to which all slices of the node together may spill, or half of the host memory",
    )
    made.add_argument(
        "--replicas",
        type=_count,
        default=usual.replicas,
        metavar="N",
        help="maximum number of containers that time-slice a device",
    )
    made.add_argument(
        "--interval",
        choices=[interval.value for interval in Interval],
        default=usual.interval,
        help="length of time windows; default: the driver's",
    )
    made.add_argument(
        "--worker-users",
        type=_users,
        default=usual.workers,
        metavar="FIRST-LAST",
        help="user IDs for workers of isolation brokered; no user of the host or of a pod may have them",
    )
    made.add_argument(
        "--allocation-api",
        choices=[api.value for api in AllocationApi],
        default=usual.allocation_api.value,
        help="allocation API of the node: tokens (device plug-in), or claims (ResourceClaims, DRA); the node's label"
        " calabash.dev/door has precedence",
    )
    made.add_argument(
        "--unguarded",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="do not guard the device access of pods of this namespace; `*`: of all namespaces",
    )
    made.add_argument(
        "--relay",
        action="store_true",
        help="register with `calabash serve plugin-relay` of the same home, which keeps devices registered during restarts",
    )
    made.add_argument(
        "--serve-nvidia-names",
        action="store_true",
        help="serve nvidia.com/gpu, as whole cards, to pods that admission did not translate",
    )
    made.add_argument(
        "--metrics-port",
        type=_port,
        default=None,
        metavar="PORT",
        help="port that serves Prometheus metrics, without authentication; default: none",
    )
    return made


def _port(text: str) -> int | None:
    """Parse a port; 0 gives None. Raises ValueError."""
    found = int(text)
    if not 0 <= found < 1 << 16:
        raise ValueError(text)
    return found or None


def _seconds(text: str) -> float:
    """Parse a number of seconds from 0 to 86400. Raises ValueError."""
    found = float(text)
    if not 0 <= found <= 86400:
        raise ValueError(text)
    return found


def _count(text: str) -> int:
    """Parse the number of containers that may share a time-sliced card. Raises ValueError."""
    found = int(text)
    if not 1 <= found <= REPLICAS_MAX:
        raise ValueError(text)
    return found


def _users(text: str) -> WorkerUsers:
    """Parse a range of user IDs, ``FIRST-LAST``, all 1000 or above. Raises ValueError."""
    first, _, last = text.partition("-")
    users = WorkerUsers(first=int(first), last=int(last))
    if not 1000 <= users.first <= users.last < 1 << 31:
        raise ValueError(text)
    return users


def _spilled_mib(text: str) -> int:
    """Parse an amount of memory in MiB; ``half`` is half the node's memory, rounded down to GiB. Raises ValueError."""
    found = memory_mib() // 2 // 1024 * 1024 if text == "half" else int(text)
    if not 0 <= found <= MEMORY_MIB_MAX:
        raise ValueError(text)
    return found


def read_settings(words: Sequence[str]) -> AgentSettings:
    """Return the settings of a command line; ``NODE_NAME`` is the default of ``--node``."""
    current, warnings = with_current_names(words, RENAMED)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    read = parser().parse_args(current)
    return AgentSettings(
        node=read.node or os.environ.get("NODE_NAME") or socket.gethostname(),
        home=read.home.absolute(),
        kubelet=read.kubelet,
        specs=read.specs,
        host=read.host,
        driver_root=read.driver_root,
        sim_state=read.sim.absolute() if read.sim else None,
        kubeconfig=read.kubeconfig,
        unmanaged_policy=UnmanagedPolicy(read.unmanaged),
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
        allocation_api=AllocationApi(read.allocation_api),
        unguarded=frozenset(read.unguarded),
        relay=read.relay,
        serve_nvidia_names=read.serve_nvidia_names,
        metrics_port=read.metrics_port,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run the agent until it receives SIGTERM or SIGINT; return the exit status."""
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
