"""A real node: containerd and a kubelet in a mount namespace of their own within the cluster's namespaces.

    with Cluster(lifecycle=True) as cluster:
        node = RealNode(cluster)
        cluster.start_program("agent", [python, "-m", ...], beside=node.name)  # sees the node's kubelet.sock, CDI, logs
        node.outside("/var/lib/kubelet/device-plugins/kubelet.sock")           # the same path for the test process
        cluster.restart(node.kubelet)

The directories ``/var/lib``, ``/var/log`` and ``/run`` belong to the node and are empty when it is created. All other
directories are those of the machine on which the tests run.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from tests.kube import components, node_settings, programs
from tests.kube.cluster import Cluster
from tests.kube.components import Component
from tests.kube.images import base_images, write_archive
from tests.kube.namespaces import processes_in
from tests.kube.warden import GROUPS, hierarchies, remove_groups

_OWN = ("/var/lib", "/var/log", "/run")
_WITHIN = ("var/lib/kubelet", "var/lib/cni", "var/log/pods", "var/log/containers", "run/cdi", "run/netns", "run/lock")


class RealNode:
    """A node with its kubelet and containerd, which is ready when it is constructed.

    ``containerd`` and ``kubelet`` are the names of its two programs in the cluster.

    Args:
        cluster: the cluster.
        name: name of the node: ``node1``, ``node2`` or ``node3``.
        kubelet_settings: further fields of the KubeletConfiguration.
        runc: program that starts containers; None for the default one.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str = "node1",
        *,
        kubelet_settings: Mapping[str, Any] | None = None,
        runc: Path | None = None,
    ) -> None:
        self.name = name
        self.home = cluster.root / name
        self.containerd = f"containerd-{name}"
        self.kubelet = f"kubelet-{name}"
        self.cluster = cluster
        self._number = components.NODES.index(name) + 1
        self._address = f"10.199.0.{self._number}"  # the kubelet refuses addresses of 127.0.0.0/8
        self.socket = self.home / "containerd.sock"
        group = f"/{cluster.root.name}/{name}"
        make_groups(group)
        self._separate()
        if self._number == 1:
            self._serve_pods()
        self._write(group, kubelet_settings or {}, runc or programs.runc(cluster.programs))
        self._start_containerd()
        self.import_images(write_archive(self.home / "images.tar", base_images(self.home / "images")))
        cluster.begin(self._kubelet_component())
        self.wait_until_ready()

    def import_images(self, archive: Path) -> None:
        """Import the images of an OCI archive into the node's containerd (see ``images.py``)."""
        self._ctr("-n", "k8s.io", "images", "import", "--all-platforms", str(archive), timeout_s=180)

    def reboot(self) -> None:
        """Simulate a reboot: kill all processes of the node, clear ``/run``, keep the disk, and wait until it is ready.

        Programs that were started ``beside`` the node end as well; the test must start them again.
        """
        mounts = self.cluster.namespaces.mounts_of(self.name)
        for name in (self.kubelet, self.containerd, self.name):
            self.cluster.kill(name)
        self.cluster.wait_for(lambda: self._all_ended(mounts), f"the last process of {self.name}", 60)
        remove_groups(f"{self.cluster.root.name}/{self.name}")
        for volatile in (self.home / "own" / "run", self.home / "containerd-state", self.home / "separated"):
            subprocess.run(["rm", "-rf", str(volatile)], check=True)
        make_groups(f"/{self.cluster.root.name}/{self.name}")
        self._separate()
        self._start_containerd()
        self.cluster.begin(self._kubelet_component())
        self.wait_until_ready()

    def restart_containerd(self) -> None:
        """Restart containerd and wait until it answers, because a kubelet without a containerd socket exits."""
        self.cluster.restart(self.containerd)
        self.cluster.wait_for(self._containerd_answers, f"containerd of {self.name}")

    def _all_ended(self, mounts: str) -> bool:
        """Kill the processes in the node's mount namespace or control groups; return True if there were none."""
        groups = (tree / self.cluster.root.name / self.name for tree in hierarchies())
        listed = (number for group in groups for file in group.rglob("cgroup.procs") for number in _lines(file))
        found = {*processes_in(mounts, "mnt"), *map(int, listed)}
        for number in found:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return not found

    def outside(self, path: str) -> Path:
        """Return the path, in the test process, of a file in one of the node's own directories."""
        inside = PurePosixPath(path.replace("/var/run/", "/run/", 1))
        assert any(inside.is_relative_to(own) for own in _OWN), f"{path} is not the node's own"
        return self.home / "own" / inside.relative_to("/")

    def evidence(self) -> Iterable[Path]:
        """Return the files that are copied aside if a test fails: settings, logs of pods, and the agent's directory."""
        settings = [self.home / name for name in ("kubelet.json", "containerd.toml", "cni")]
        inside = ("/var/log", "/var/lib/calabash", "/var/lib/simulated")
        return [*settings, *(self.outside(path) for path in inside)]

    def wait_until_ready(self) -> None:
        """Wait until the node is Ready and has no taint that keeps pods off."""
        self.cluster.wait_for(self._is_ready, f"node {self.name} ready", every_s=0.1)

    def _separate(self) -> None:
        """Create the mount namespace of the node. A program that only sleeps keeps it alive."""
        own = self.home / "own"
        for directory in _WITHIN:
            (own / directory).mkdir(parents=True, exist_ok=True)
        lines = [f"mount --bind {shlex.quote(str(own) + path)} {path}" for path in _OWN]
        lines += [f"ip address replace {self._address}/32 dev lo", f"touch {shlex.quote(str(self.home / 'separated'))}"]
        script = " && ".join([*lines, "exec sleep infinity"])
        holder = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script)
        self.cluster.begin(Component(self.name, holder))
        self.cluster.wait_for((self.home / "separated").exists, f"mounts of {self.name}", 60, every_s=0.01)

    def _serve_pods(self) -> None:
        """Make the API server reachable at the address of its Service, because these nodes have no kube-proxy."""
        namespaces = self.cluster.namespaces
        self.cluster.exec_inside("ip", "address", "add", f"{components.SERVICE_ADDRESS}/32", "dev", "lo")
        namespaces.relay(components.SERVICE_ADDRESS, 443, namespaces.port)

    def _write(self, group: str, kubelet_settings: Mapping[str, Any], runc: Path) -> None:
        (self.home / "cni").mkdir()
        (self.home / "containerd.toml").write_text(node_settings.containerd(self.home, self.socket, runc))
        (self.home / "cni" / "10-pods.conflist").write_text(
            node_settings.network(self.home, f"10.244.{self._number}.0/24")
        )
        (self.home / "kubelet.json").write_text(
            node_settings.kubelet(self._address, self.socket, group, kubelet_settings)
        )

    def _component(self, name: str, program: str, *words: str) -> Component:
        found = self.cluster.programs
        path = f"{found}:{os.environ.get('PATH', os.defpath)}"  # containerd looks for its shim there
        return Component(name, (str(found / program), *words), {"PATH": path}, self.name)

    def _start_containerd(self) -> None:
        settings = str(self.home / "containerd.toml")
        self.cluster.begin(self._component(self.containerd, "containerd", "-c", settings))
        self.cluster.wait_for(self._containerd_answers, f"containerd of {self.name}")

    def _kubelet_component(self) -> Component:
        kubeconfig = self.cluster.secrets.kubeconfig(f"system:node:{self.name}")
        return self._component(
            self.kubelet,
            "kubelet",
            f"--config={self.home / 'kubelet.json'}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={self.name}",
            f"--node-ip={self._address}",
            f"--cert-dir={self.home / 'certificates'}",
            "-v=2",
        )

    def _ctr(self, *words: str, timeout_s: float = 90) -> str:
        program = str(self.cluster.programs / "ctr")
        return self.cluster.exec_inside(program, "-a", str(self.socket), *words, beside=self.name, timeout_s=timeout_s)

    def _containerd_answers(self) -> bool:
        if not self.socket.exists():
            return False
        try:
            self._ctr("version")
        except RuntimeError:
            return False
        return True

    def _is_ready(self) -> bool:
        path = f"/api/v1/nodes/{self.name}"
        if not self.cluster.api.exists(path):
            return False
        node = self.cluster.api.get(path)
        conditions = {one["type"]: one["status"] for one in node["status"].get("conditions", ())}
        return conditions.get("Ready") == "True" and not node["spec"].get("taints")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def make_groups(group: str) -> None:
    """Create a control group in every cgroup hierarchy, as the kubelet requires.

    The warden removes it with its descendants.
    """
    parts = PurePosixPath(group).parts[1:]
    for tree in hierarchies():
        above = tree
        for part in parts:
            if tree == GROUPS:
                _pass_on_controllers(above)
            here = above / part
            here.mkdir(exist_ok=True)
            for given in ("cpuset.cpus", "cpuset.mems"):  # cgroup v1: no process can enter while they are empty
                if tree != GROUPS and (here / given).exists():
                    (here / given).write_text((above / given).read_text())
            above = here


def _pass_on_controllers(group: Path) -> None:
    for controller in (group / "cgroup.controllers").read_text().split():
        try:
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError:
            continue  # a controller that this machine does not delegate
