"""CDI edits of a container: the shim, the slot of its allocation, and the host's driver libraries and device nodes.

The edits need no OCI hook, no shell and no library cache in the container. Files are mounted in the directories in
which the dynamic loader searches by default, both in images like those of Debian and in images like those of Red Hat.
The shim is named in ``/etc/ld.so.preload``, which no environment variable of the pod can override. The slot is mounted
read-only, except its usage page.

Two kinds of grants differ. If the sharing mode does not preload a library, the container does not use CUDA (for
example, the device is passed to a virtual machine), and neither the shim nor the driver is mounted. If the grant has a
worker, a process that makes the CUDA calls for the container, the container gets the socket of the worker and
Calabash's forwarding libraries under the names of the driver's libraries. It gets no slot, no shim, no device node and
no file of the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from calabash.adapters.cdi import ContainerEdits, DeviceNode, MountEdit
from calabash.adapters.host.pci.device_nodes import node_of
from calabash.kubernetes.node_plugin.containers.host_driver import HostDriver, library_directories, names_of
from calabash.model.device import Device, DeviceUuid
from calabash.node.agent import Grant
from calabash.node.slots.names import USAGE_FILE
from calabash.sharing.protocol import Edits

INSIDE = "/run/calabash"
SHIM_INSIDE = f"{INSIDE}/libcalabash.so"
SLOT_INSIDE = f"{INSIDE}/slot"
PRELOAD_INSIDE = "/etc/ld.so.preload"
SIM_INSIDE = f"{INSIDE}/sim"
WORKER_INSIDE = f"{INSIDE}/worker.sock"
_PRELOAD = "LD_PRELOAD"
_NVML = "libnvidia-ml."
_CONTROL = "nvidiactl"
_OTHERWISE_INSIDE = frozenset({_PRELOAD, "CALABASH_SLOT", "NVIDIA_VISIBLE_DEVICES"})
_READ = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_WRITE = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")


class EditsMaker:
    """Build the CDI edits of a container from its grant.

    Args:
        shim: the shim on the host.
        preload: file on the host with the shim's path inside a container.
        driver: files and nodes of the host's driver that containers get.
        forwarding: libraries on the host that replace the driver's and forward calls to a worker, and those that they
            load from their own directory.
    """

    def __init__(self, *, shim: Path, preload: Path, driver: HostDriver, forwarding: Sequence[Path] = ()) -> None:
        self._shim = shim
        self._preload = preload
        self._driver = driver
        self._forwarding = forwarding
        write_preload(preload)

    def for_grant(self, grant: Grant, nodes: Sequence[Path]) -> ContainerEdits:
        """Return the edits for a container that uses a grant.

        Args:
            nodes: paths, on the host, of the device nodes of the grant's devices.
        """
        if grant.edits.worker_socket:
            return self._to_worker(grant.edits)
        uses_cuda = any(key == _PRELOAD for key, _ in grant.edits.environment)
        # "void" keeps NVIDIA's runtime from adding devices; the shim limits the visible devices to the slot.
        env = [("NVIDIA_VISIBLE_DEVICES", "void")]
        env += [(key, value) for key, value in grant.edits.environment if key not in _OTHERWISE_INSIDE]
        slot = Path(grant.record.slot)
        mounts = [
            MountEdit(host_path=str(slot), container_path=SLOT_INSIDE, options=(*_READ, "noexec")),
            MountEdit(host_path=str(slot / USAGE_FILE), container_path=f"{SLOT_INSIDE}/{USAGE_FILE}", options=_WRITE),
        ]
        mounts += [
            MountEdit(host_path=m.path, container_path=m.inside, options=_READ if m.read_only else _WRITE)
            for m in grant.edits.mounts
        ]
        devices: list[DeviceNode] = []
        if uses_cuda:
            mounts += self._libraries()
            devices += (DeviceNode(path=f"/dev/{n.name}", host_path=str(n)) for n in (*self._driver.nodes, *nodes))
            if self._driver.state is not None:
                env.append(("CALABASH_SIM", f"{SIM_INSIDE}/{self._driver.state.name}"))
                mounts.append(
                    MountEdit(host_path=str(self._driver.state.parent), container_path=SIM_INSIDE, options=_WRITE)
                )
        for path in grant.edits.device_nodes:
            node, mount = self._node(path)
            devices += node
            mounts += mount
        return ContainerEdits(env=tuple(env), mounts=tuple(mounts), device_nodes=tuple(devices))

    def for_observer(self, nodes: Sequence[Path]) -> ContainerEdits:
        """Return the edits for a container that only observes devices, by NVML, and gets no CUDA and no slice.

        The device nodes are writable even so, because the driver requires it. The state file of a simulated node must
        be writable as well.
        """
        env = [("NVIDIA_VISIBLE_DEVICES", "void")]
        mounts = _library_mounts([file for file in self._driver.libraries if file.name.startswith(_NVML)])
        control = [node for node in self._driver.nodes if node.name == _CONTROL]
        if self._driver.state is not None:
            state = self._driver.state
            env.append(("CALABASH_SIM", f"{SIM_INSIDE}/{state.name}"))
            mounts.append(MountEdit(host_path=str(state.parent), container_path=SIM_INSIDE, options=_WRITE))
        devices = tuple(DeviceNode(path=f"/dev/{n.name}", host_path=str(n)) for n in (*control, *nodes))
        return ContainerEdits(env=tuple(env), mounts=tuple(mounts), device_nodes=devices)

    def _to_worker(self, edits: Edits) -> ContainerEdits:
        said = dict(edits.environment)
        return ContainerEdits(
            env=(
                ("NVIDIA_VISIBLE_DEVICES", "void"),
                ("CUDA_VISIBLE_DEVICES", said["CUDA_VISIBLE_DEVICES"]),
                ("CALABASH_REMOTE", f"unix:{WORKER_INSIDE}"),
            ),
            mounts=(
                MountEdit(host_path=edits.worker_socket, container_path=WORKER_INSIDE, options=_WRITE),
                *_library_mounts(self._forwarding),
            ),
        )

    def _libraries(self) -> list[MountEdit]:
        return [
            MountEdit(host_path=str(self._shim), container_path=SHIM_INSIDE, options=_READ),
            MountEdit(host_path=str(self._preload), container_path=PRELOAD_INSIDE, options=_READ),
            *_library_mounts(self._driver.libraries),
        ]

    def _node(self, path: str) -> tuple[list[DeviceNode], list[MountEdit]]:
        """Return the edits that give a container the device file ``path``: a device node or a mount.

        On a simulated machine, the file is below the root directory of the simulation and may be a plain file, which is
        mounted.
        """
        if self._driver.state is None:
            return [DeviceNode(path=path)], []
        shown = self._driver.state.parent / "root" / path.lstrip("/")
        if shown.is_char_device():
            return [DeviceNode(path=path, host_path=str(shown))], []
        return [], [MountEdit(host_path=str(shown), container_path=path, options=_WRITE)] if shown.exists() else []


class NodeEdits:
    """Build the CDI edits of containers on this node: ``EditsMaker`` with the device files of the node's devices.

    Args:
        maker: builds the edits.
        host: directory in which the host's file system is mounted.
        devices: returns the devices of the node.
    """

    def __init__(self, maker: EditsMaker, host: Path, devices: Callable[[], Sequence[Device]]) -> None:
        self._maker, self._host, self._devices = maker, host, devices

    def for_grant(self, grant: Grant, wanted: Sequence[DeviceUuid] | None = None) -> ContainerEdits:
        """Return the edits for a container that uses the devices ``wanted`` of a grant; None for all of them."""
        if wanted is None:
            wanted = [s.device for s in grant.record.placement.slices]
        return self._maker.for_grant(grant, self._nodes(wanted))

    def for_observer(self, wanted: Sequence[DeviceUuid]) -> ContainerEdits:
        """Return the edits for a container that only observes the devices ``wanted``."""
        return self._maker.for_observer(self._nodes(wanted))

    def _nodes(self, wanted: Sequence[DeviceUuid]) -> tuple[Path, ...]:
        return device_nodes(self._host, self._devices(), wanted)


def write_preload(path: Path) -> None:
    """Write the file that is mounted as ``/etc/ld.so.preload`` into containers, unless it is up to date."""
    text = SHIM_INSIDE + "\n"
    if not path.exists() or path.read_text() != text:
        coming = path.with_name(path.name + ".new")
        coming.write_text(text)
        coming.chmod(0o644)
        coming.rename(path)


def _library_mounts(files: Sequence[Path]) -> list[MountEdit]:
    return [
        MountEdit(host_path=str(file), container_path=f"{directory}/{name}", options=_READ)
        for file in files
        for directory in library_directories()
        for name in names_of(file)
    ]


def device_nodes(host: Path, devices: Sequence[Device], wanted: Sequence[DeviceUuid]) -> tuple[Path, ...]:
    """Return the paths, on the host, of the device nodes of the devices ``wanted``. Simulated devices have none."""
    by_uuid = {device.uuid: device for device in devices}
    found = (node_of(host, by_uuid[uuid].pci_bus_id) for uuid in wanted if uuid in by_uuid)
    return tuple(Path("/") / path.relative_to(host) for path in found if path is not None and path.is_char_device())
