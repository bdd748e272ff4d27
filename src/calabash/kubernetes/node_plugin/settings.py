"""How the agent of a node runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calabash.kubernetes.node_plugin.reports.usage import EVERY_S
from calabash.kubernetes.node_plugin.reports.usage_sender import UsageServer
from calabash.kubernetes.objects.allocation_api import NodeDoor
from calabash.model.device import REPLICAS
from calabash.node.modes.protocol import WorkerUsers
from calabash.node.processes.unmanaged import UnmanagedPolicy

WORKER_USERS = WorkerUsers(first=2_000_000_000, last=2_000_065_535)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """How an agent runs.

    Args:
        node: name of its Node object.
        home: its own directory; the same path on the host, where containers' mounts come from.
        kubelet: the kubelet's root directory.
        specs: directory of dynamic CDI specs.
        host: where the host's file system is seen.
        driver_root: the driver's root on the host.
        sim_state: state file of a simulated node, in a directory that the host has under the same path.
        kubeconfig: None: as a pod of the cluster.
        strangers: what happens to processes on a card that have no slice of it.
        serve_nvidia_names: whether pods that admission did not translate are given whole cards as ``nvidia.com/gpu``.
        spill_mib: host memory that the node gives for what does not fit on its cards; 0: nothing may be spilled.
        replicas: how many containers use a card in turns. interval: how long these turns are; "": the driver's own.
        workers: as whom workers of isolation ``brokered`` run: users that neither the host nor a pod has.
        use_every_s: how often at most it is told what is used of the devices; 0: never.
        door: by which the node's devices are asked for, unless its label says otherwise.
        unguarded: namespaces whose pods' device access is left alone (``device_guard``); "*": all.
        relay: whether the device plug-ins register with the relay of this home instead of the kubelet (``relay.py``).
        usage: where intervals of usage are sent; None: nowhere, and they are not kept.
        metrics_port: where metrics are served, on all addresses; 0: any port, None: nowhere.
    """

    node: str
    home: Path = Path("/var/lib/calabash")
    kubelet: Path = Path("/var/lib/kubelet")
    specs: Path = Path("/var/run/cdi")
    host: Path = Path("/")
    driver_root: str = "/"
    sim_state: Path | None = None
    kubeconfig: Path | None = None
    strangers: UnmanagedPolicy = UnmanagedPolicy.TELL
    serve_nvidia_names: bool = False
    spill_mib: int = 0
    replicas: int = REPLICAS
    interval: str = ""
    workers: WorkerUsers = WORKER_USERS
    use_every_s: float = EVERY_S
    door: NodeDoor = NodeDoor.TOKENS
    unguarded: frozenset[str] = frozenset()
    relay: bool = False
    usage: UsageServer | None = None
    metrics_port: int | None = None

    @property
    def device_plugins(self) -> Path:
        """Directory in which the agent's device plug-ins serve and find whom they register with."""
        return relay_directory(self.home) if self.relay else self.kubelet / "device-plugins"


def relay_directory(home: Path) -> Path:
    """Directory of the sockets between the agent of ``home`` and its relay."""
    return home / "device-plugins"
