"""Settings of the agent of a node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calabash.kubernetes.node_plugin.reports.usage import EVERY_S
from calabash.kubernetes.node_plugin.reports.usage_sender import UsageServer
from calabash.kubernetes.objects.allocation_api import AllocationApi
from calabash.model.device import REPLICAS
from calabash.node.modes.protocol import WorkerUsers
from calabash.node.processes.unmanaged import UnmanagedPolicy

WORKER_USERS = WorkerUsers(first=2_000_000_000, last=2_000_065_535)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of an agent.

    Args:
        node: name of the agent's Node object.
        home: directory of the agent. It must have the same path on the host, because containers mount files from it.
        kubelet: the kubelet's root directory.
        specs: directory of dynamic CDI specs.
        host: directory in which the host's file system is mounted.
        driver_root: root of the driver's files on the host.
        sim_state: state file of a simulated node, in a directory that has the same path on the host; None for a real
            node.
        kubeconfig: kubeconfig file; None to use the service account of the agent's pod.
        unmanaged_policy: policy for unmanaged processes: those that use a device without an allocation.
        serve_nvidia_names: True to give whole cards to pods that ask for ``nvidia.com/gpu`` and that admission did not
            translate.
        spill_mib: host memory, in MiB, for the spilled device memory of all slices of the node; 0 for no spilling.
        replicas: number of containers that can share a time-sliced card.
        interval: length of the time slices; "" for the driver's default.
        workers: user IDs for the worker processes of isolation ``brokered``. No user of the host or of a pod may have
            them.
        use_every_s: least number of seconds between two reports of used amounts; 0 to report none.
        allocation_api: the allocation API of a node whose Node object has no label that selects one.
        unguarded: namespaces whose pods' access to devices is not guarded (``device_guard``); "*" for all namespaces.
        relay: True to register the device plug-ins at the relay process of this ``home`` instead of the kubelet
            (``devices.relay``).
        usage: server to which usage records are sent; None if no usage is recorded.
        metrics_port: port on which the metrics are served on all addresses; 0 for any free port, None to serve none.
    """

    node: str
    home: Path = Path("/var/lib/calabash")
    kubelet: Path = Path("/var/lib/kubelet")
    specs: Path = Path("/var/run/cdi")
    host: Path = Path("/")
    driver_root: str = "/"
    sim_state: Path | None = None
    kubeconfig: Path | None = None
    unmanaged_policy: UnmanagedPolicy = UnmanagedPolicy.TELL
    serve_nvidia_names: bool = False
    spill_mib: int = 0
    replicas: int = REPLICAS
    interval: str = ""
    workers: WorkerUsers = WORKER_USERS
    use_every_s: float = EVERY_S
    allocation_api: AllocationApi = AllocationApi.TOKENS
    unguarded: frozenset[str] = frozenset()
    relay: bool = False
    usage: UsageServer | None = None
    metrics_port: int | None = None

    @property
    def device_plugins(self) -> Path:
        """Directory of the device plug-ins' sockets and of the socket at which they register."""
        return relay_directory(self.home) if self.relay else self.kubelet / "device-plugins"


def relay_directory(home: Path) -> Path:
    """Directory of the sockets between the agent of ``home`` and its relay."""
    return home / "device-plugins"
